"""Random examples for what takes pictures, sound, or several labels: real steps beside the estimate."""

import pytest
import transformers

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate

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
    return transformers.LlavaConfig(
        architectures=["LlavaForConditionalGeneration"], image_token_index=499, vision_config=vision, text_config=text
    )


def qwen():
    vision = {"hidden_size": 64, "depth": 2, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 64}
    tokens = {"image_token_id": 499, "video_token_id": 498, "vision_start_token_id": 497, "vision_end_token_id": 496}
    text = {**TEXT, "rope_parameters": ROTARY}
    return transformers.Qwen2_5_VLConfig(
        architectures=["Qwen2_5_VLForConditionalGeneration"], **tokens, text_config=text, vision_config=vision
    )


def gemma():
    text = {**TEXT, "head_dim": 16}
    options = {"mm_tokens_per_image": 4, "image_token_index": 499}
    options["architectures"] = ["Gemma3ForConditionalGeneration"]
    return transformers.Gemma3Config(text_config=text, vision_config=VISION, **options)


def internvl():
    vision = {**VISION, "image_size": [56, 56], "patch_size": [14, 14]}
    text = {**TEXT, "model_type": "qwen2"}
    return transformers.InternVLConfig(
        architectures=["InternVLForConditionalGeneration"], image_token_id=499, text_config=text, vision_config=vision
    )


def bert_of_several_labels():
    sizes = {name: size for name, size in TEXT.items() if name != "num_key_value_heads"}
    return transformers.BertConfig(
        **sizes,
        architectures=["BertForSequenceClassification"],
        num_labels=7,
        problem_type="multi_label_classification",
    )


def segformer():
    sizes = {"hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2], "depths": [1, 1, 1, 1]}
    sizes["architectures"] = ["SegformerForSemanticSegmentation"]
    return transformers.SegformerConfig(**sizes, decoder_hidden_size=32, num_labels=5, image_size=64)


@pytest.mark.parametrize(
    "config",
    [
        bert_of_several_labels,
        *(pytest.param(config, marks=pytest.mark.slow) for config in (llava, qwen, gemma, internvl, segformer)),
    ],
)
def test_the_estimate_is_what_the_allocator_counts(config):
    found = estimate(config(), Recipe(batch=2, sequence=96))
    work = found.workload
    assert found.peak == pytest.approx(memory.measure(work.build, work.step, timed=0).peak, rel=0.002)


def test_a_row_has_room_for_its_picture():
    with pytest.raises(CourseError, match=r"A picture is 16 tokens of this model; give a sequence of more\."):
        estimate(llava(), Recipe(batch=2, sequence=16))
