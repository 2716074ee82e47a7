"""Random examples for models that take pictures, sound or several labels: estimates compared with real steps."""

import pytest
import torch
import transformers

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.memory.step.model import source_of

TEXT = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 500, "bos_token_id": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 2, "pad_token_id": 0},
}
VISION = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"image_size": 56, "patch_size": 14},
}
ROTARY = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}


def llava():
    text, vision = transformers.LlamaConfig(**TEXT), transformers.CLIPVisionConfig(**VISION)
    options = {"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 499}
    return transformers.LlavaConfig(vision_config=vision, text_config=text, **options)


def qwen():
    vision = {"hidden_size": 64, "depth": 2, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 64}
    tokens = {"image_token_id": 499, "video_token_id": 498, "vision_start_token_id": 497, "vision_end_token_id": 496}
    text, classes = {**TEXT, "rope_parameters": ROTARY}, ["Qwen2_5_VLForConditionalGeneration"]
    return transformers.Qwen2_5_VLConfig(architectures=classes, **tokens, text_config=text, vision_config=vision)


def gemma():
    text, classes = {**TEXT, "head_dim": 16}, ["Gemma3ForConditionalGeneration"]
    options = {"architectures": classes, "mm_tokens_per_image": 4, "image_token_index": 499}
    return transformers.Gemma3Config(text_config=text, vision_config=VISION, **options)


def internvl():
    vision = {**VISION, "image_size": [56, 56], "patch_size": [14, 14]}
    text = {**TEXT, "model_type": "qwen2"}
    options = {"architectures": ["InternVLForConditionalGeneration"], "image_token_id": 499}
    return transformers.InternVLConfig(text_config=text, vision_config=vision, **options)


def bert_of_several_labels():
    sizes = {name: size for name, size in TEXT.items() if name != "num_key_value_heads"}
    options = {"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification"}
    return transformers.BertConfig(**sizes, num_labels=7, **options)


def segformer():
    sizes = {"hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2], "depths": [1, 1, 1, 1]}
    sizes["architectures"] = ["SegformerForSemanticSegmentation"]
    return transformers.SegformerConfig(**sizes, decoder_hidden_size=32, num_labels=5, image_size=64)


def wav2vec():
    sizes = {key: TEXT[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    sizes |= {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "vocab_size": 32, "mask_time_prob": 0.0}
    return transformers.Wav2Vec2Config(**sizes, architectures=["Wav2Vec2ForCTC"], layerdrop=0.0)


def mistral():
    text, vision = {**TEXT, "model_type": "mistral", "head_dim": 16}, {**VISION, "model_type": "pixtral"}
    options = {"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 499}
    return transformers.Mistral3Config(text_config=text, vision_config=vision, spatial_merge_size=2, **options)


def liquid():
    text = {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    vision = {**VISION, "model_type": "siglip2_vision_model", "num_patches": 256, "vision_use_head": False}
    options = {"architectures": ["Lfm2VlForConditionalGeneration"], "image_token_id": 499, "projector_hidden_size": 64}
    return transformers.Lfm2VlConfig(text_config=text, vision_config=vision, downsample_factor=2, **options)


def mllama():
    text = {**TEXT, "cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_global_layers": 1}
    vision |= {"attention_heads": 4, "image_size": 56, "patch_size": 14, "intermediate_layers_indices": [0]}
    options = {"architectures": ["MllamaForConditionalGeneration"], "image_token_index": 499}
    return transformers.MllamaConfig(text_config=text, vision_config={**vision, "vision_output_dim": 128}, **options)


def scout():
    text = {**TEXT, "head_dim": 16, "intermediate_size_mlp": 128, "num_local_experts": 4, "num_experts_per_tok": 1}
    vision = {**VISION, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 64, "projector_output_dim": 64}
    options = {"architectures": ["Llama4ForConditionalGeneration"], "image_token_index": 499}
    vision |= {"intermediate_size": 256, "vision_output_dim": 64}
    return transformers.Llama4Config(text_config=text, vision_config=vision, **options)


SLOW = (llava, qwen, gemma, internvl, segformer, wav2vec, mistral, liquid, mllama, scout)
FURTHER = [pytest.param(config, marks=pytest.mark.slow) for config in SLOW]


@pytest.mark.parametrize("config", [bert_of_several_labels, *FURTHER])
def test_the_estimate_is_what_the_allocator_counts(config):
    predicted = estimate(config(), Recipe(batch=2, sequence=96))
    workload = predicted.workload
    assert predicted.peak == pytest.approx(memory.measure(workload.build, workload.step, timed=0).peak, rel=0.002)


def test_a_row_has_room_for_its_picture():
    with pytest.raises(CourseError, match=r"A picture is 16 tokens of this model; give a sequence of more\."):
        estimate(llava(), Recipe(batch=2, sequence=16))


@pytest.mark.parametrize("name", ["Roberta", "MPNet", "Bert"])
def test_the_longest_example_is_the_longest_that_the_model_takes(name):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = getattr(transformers, f"{name}Config")(**sizes, vocab_size=40, max_position_embeddings=20)
    model, longest = getattr(transformers, f"{name}ForMaskedLM")(config), source_of(config).positions
    model(torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 5))
