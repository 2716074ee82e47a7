"""Random examples for a model whose `forward` names its inputs as Transformers does."""

import inspect
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from course_utils.errors import CourseError
from course_utils.memory.step.losses import without_adapters
from course_utils.memory.step.recipe import Recipe
from course_utils.models import ConvNetConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Inputs = dict[str, torch.Tensor]
_MAIN_INPUTS = {"input_ids", "pixel_values", "input_features", "input_values"}
# The side of a picture in patches, for models that take pictures of any size.
_PATCHES = 16


def random_batch(model: nn.Module, recipe: Recipe) -> Inputs:
    """One micro-batch of random examples: token ids, one picture for each example, both, or sound, with labels.

    A classifier's texts differ in length, so they have a mask. If a text contains its picture, each row begins with as many image
    tokens as the model makes of one picture. For a model that takes waves, `sequence` is the number of frames that it makes of
    them. Raises `CourseError` for a model that takes something else.
    """
    config = getattr(model, "config", None)
    plain = without_adapters(model)
    input_names = set(inspect.signature(plain.forward).parameters)
    name = type(plain).__name__
    reason = ""
    if not input_names & _MAIN_INPUTS:
        reason = "takes neither token ids nor pictures by Transformers' names"
    elif config is None:
        reason = "has no .config, which says how large its vocabulary is"
    elif "ForMultipleChoice" in name:
        reason = "has inputs of three dimensions"
    elif "input_ids" in input_names and hasattr(config, "audio_config"):
        reason = "is trained on sound within texts, of which there are no examples here"
    if reason:
        raise CourseError(
            f"{name} {reason}; give batch=lambda b, s: …, what the model is called with (for course plan a function "
            "batch(b, s) beside it)."
        )
    if "ForObjectDetection" in name or "ForUniversalSegmentation" in name:
        raise CourseError(
            f"{name} matches its boxes with their labels by the values of both, and a dry run has none; give a function that "
            "makes a module whose loss takes them in order."
        )
    inputs = _make_pictures(config, recipe, input_names)
    if "input_ids" in input_names:
        inputs |= _make_tokens(config, recipe, name, input_names)
        if "pixel_values" in inputs and hasattr(plain, "get_image_features"):
            inputs |= _insert_pictures(plain, config, input_names, inputs)
    elif "input_features" in input_names:
        frames = 2 * config.max_source_positions
        labels = torch.randint(config.vocab_size, (recipe.batch, recipe.sequence))
        inputs |= {"input_features": torch.randn(recipe.batch, config.num_mel_bins, frames), "labels": labels}
    elif "input_values" in input_names:
        ratio = getattr(config, "inputs_to_logits_ratio", 1)
        inputs["input_values"] = torch.randn(recipe.batch, recipe.sequence * ratio)
    if "labels" in input_names and "labels" not in inputs:
        inputs["labels"] = _make_labels(config, recipe, name)
    return inputs | ({"return_loss": True} if "return_loss" in input_names else {})


def _make_pictures(config: "PretrainedConfig | ConvNetConfig", recipe: Recipe, input_names: set[str]) -> Inputs:
    if "pixel_values" not in input_names or "input_ids" in input_names and not hasattr(config, "vision_config"):
        return {}
    batch = recipe.batch
    ones = partial(torch.ones, dtype=torch.int64)
    vision = getattr(config, "vision_config", config)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "channels", None) or 3
    # All patches as rows, and for each picture their number in time, height and width.
    if "image_grid_thw" in input_names:
        numbers = vision.temporal_patch_size * vision.patch_size**2 * getattr(vision, "in_channels", channels)
        grid = torch.tensor([[1, _PATCHES, _PATCHES]] * batch)
        return {"pixel_values": torch.randn(batch * _PATCHES**2, numbers), "image_grid_thw": grid}
    if "spatial_shapes" in input_names:
        return {
            "pixel_values": torch.randn(batch, _PATCHES**2, channels * vision.patch_size**2),
            "pixel_attention_mask": ones(batch, _PATCHES**2),
            "spatial_shapes": torch.tensor([[_PATCHES, _PATCHES]] * batch),
        }
    if "aspect_ratio_ids" in input_names:  # a picture of one tile, padded to the largest number of tiles
        tiles, side = vision.max_num_tiles, vision.image_size
        return {
            "pixel_values": torch.randn(batch, 1, tiles, channels, side, side),
            "aspect_ratio_ids": ones(batch, 1),
            "aspect_ratio_mask": ones(batch, 1, tiles),
            "cross_attention_mask": ones(batch, recipe.sequence, 1, tiles),
        }
    if getattr(vision, "model_type", "") == "pixtral":
        side = _PATCHES * vision.patch_size
        pictures = torch.randn(batch, channels, side, side)
        return {"pixel_values": pictures, "image_sizes": torch.tensor([[side, side]] * batch)}
    side = getattr(vision, "image_size", None) or getattr(vision, "image", 224)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    picture_count = (1,) if "pixel_attention_mask" in input_names and "input_ids" in input_names else ()
    pictures = torch.randn(batch, *picture_count, channels, height, width)
    if isinstance(config, ConvNetConfig):
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    return {"pixel_values": pictures}


def _insert_pictures(model: nn.Module, config: "PretrainedConfig", input_names: set[str], inputs: Inputs) -> Inputs:
    """Inputs with each row's image tokens at its beginning; empty for a model without image tokens, such as CLIP."""
    token = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", None)
    if token is None:
        return {}
    feature_inputs = inspect.signature(model.get_image_features).parameters.keys() | {"pixel_values"}
    with torch.no_grad():
        output = model.get_image_features(**{name: inputs[name] for name in feature_inputs & inputs.keys()})
    pooled = getattr(output, "pooler_output", None)
    features = getattr(output, "last_hidden_state", output) if pooled is None else pooled
    ids = inputs["input_ids"]
    count = sum(tensor.numel() // tensor.shape[-1] for tensor in tree_leaves(features)) // len(ids)
    if count >= ids.shape[1]:
        raise CourseError(f"A picture is {count} tokens of this model; give a sequence of more.")
    ids = ids.masked_fill(ids == token, token - 1)
    ids[:, :count] = token
    types = (ids == token).to(torch.int64)
    others = {name: types for name in ("token_type_ids", "mm_token_type_ids") if name in input_names}
    # Positions in time, height and width, which the model would else find from the values of the ids.
    if "image_grid_thw" in input_names:
        others["position_ids"] = torch.arange(ids.shape[1]).expand(3, *ids.shape)
    return {"input_ids": ids} | others


def _make_labels(config: "PretrainedConfig | ConvNetConfig", recipe: Recipe, name: str) -> torch.Tensor:
    """Labels for the model's task: a class for each pixel, a text for each sound, numbers, or a class for each example."""
    classes = getattr(config, "num_labels", 2)
    if "ForSemanticSegmentation" in name:
        side = getattr(config, "image_size", 224)
        return torch.randint(classes, (recipe.batch, side, side))
    if "ForCTC" in name:
        return torch.randint(1, config.vocab_size, (recipe.batch, max(1, recipe.sequence // 4)))
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        return torch.rand(recipe.batch, classes)
    return torch.rand(recipe.batch) if problem == "regression" else torch.randint(classes, (recipe.batch,))


def _make_tokens(config: "PretrainedConfig", recipe: Recipe, name: str, input_names: set[str]) -> Inputs:
    size = (recipe.batch, recipe.sequence)
    text = getattr(config, "text_config", config)
    ids = torch.randint(1, text.vocab_size, size)
    if recipe.packed:  # two documents in each row, marked by positions that restart
        half = recipe.sequence // 2
        positions = torch.cat([torch.arange(half), torch.arange(recipe.sequence - half)]).expand(size)
        inputs = {"input_ids": ids, "position_ids": positions, "labels": ids.clone()}
        # With a cache the documents would attend to each other.
        return inputs | ({"use_cache": False} if "use_cache" in input_names else {})
    if "ForSequenceClassification" in name:
        mask = torch.ones(size, dtype=torch.int64)
        mask[0, recipe.sequence // 2 :] = 0
        if getattr(config, "is_encoder_decoder", False):  # the model looks for the one end token of each text
            another = config.eos_token_id - 1 or config.eos_token_id + 1
            ids = ids.masked_fill(ids == config.eos_token_id, another)
            ids[:, -1] = config.eos_token_id
        return {"input_ids": ids, "attention_mask": mask, "labels": _make_labels(config, recipe, name)}
    if "start_positions" in input_names:
        starts, ends = torch.randint(recipe.sequence, (2, recipe.batch))
        return {"input_ids": ids, "start_positions": starts, "end_positions": ends}
    if "labels" not in input_names:
        return {"input_ids": ids}
    classes = config.num_labels if "ForTokenClassification" in name else text.vocab_size
    return {"input_ids": ids, "labels": ids.clone() if classes == text.vocab_size else torch.randint(classes, size)}
