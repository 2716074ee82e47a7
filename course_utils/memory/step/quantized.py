"""Linear layers of bitsandbytes in 4 bits, also fake: with its class, its operators and the shapes of its tensors."""

from functools import partial

import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.memory.trace.fake import is_fake

BLOCK, SECOND_BLOCK = 64, 256


def quantize_linears(
    model: nn.Module, checkpointing: bool = False, double: bool = True, upcast: bool = True
) -> nn.Module:
    """Put `Linear4bit` in place of all linear layers but the output layer, and let `peft` prepare the model as for QLoRA.

    Without `upcast` all parameters are frozen and stay in their dtype, as in TRL. Raises `CourseError` for a model without
    linear layers.

    In NF4 (Dettmers et al. 2023) a weight takes half a byte, and each layer a table and a float32 scale for each block of 64
    weights. With `double` a scale takes a byte, and there is a float32 for each 256 scales and a second table. The library cannot
    quantize a fake tensor, so for a fake weight tensors of these shapes are made.
    """
    import peft

    put_in_4_bits(model, model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None, double)
    if not any(hasattr(weight, "quant_state") for weight in model.parameters()):
        raise CourseError(
            "No layer of this model can be kept in 4 bits: Transformers takes nn.Linear and Conv1D alone, not classes made from "
            "them. Leave quantized out."
        )
    model.is_loaded_in_4bit = True
    if not upcast:
        return model.requires_grad_(False)
    return peft.prepare_model_for_kbit_training(model, checkpointing, {"use_reentrant": False})


def put_in_4_bits(model: nn.Module, head: nn.Module | None = None, double: bool = True) -> None:
    """Put `Linear4bit` in place of the layers of `model` for which Transformers 5 does so, except `head`.

    These are `nn.Linear` itself, without its subclasses, and GPT-2's `Conv1D`, whose weight is transposed.
    """
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, Conv1D) and child is not head:
                weight = child.weight.T.contiguous() if type(child) is Conv1D else child.weight
                setattr(parent, name, _make_4_bit(weight, child.bias, double))


def _make_4_bit(weight: torch.Tensor, bias: torch.Tensor | None, double: bool) -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit.__new__(Linear4bit)  # its own `__init__` needs a real tensor
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape
    layer.compute_dtype = weight.dtype
    layer.compute_type_is_set = True
    layer.quant_storage = torch.uint8
    layer.support_avx512bf16_for_cpu = False
    layer.bias = bias
    layer.weight = _make_codes(weight, double)
    return layer


def _make_codes(weight: torch.Tensor, double: bool) -> nn.Parameter:
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Params4bit

    if not is_fake(weight):
        options = {"requires_grad": False, "quant_type": "nf4", "compress_statistics": double}
        return Params4bit(weight.detach(), **options).to(weight.device)
    blocks = -(-weight.numel() // BLOCK)
    floats = partial(weight.detach().new_empty, dtype=torch.float32)
    integers = partial(weight.detach().new_empty, dtype=torch.uint8)
    second = {}
    if double:
        state = QuantState(floats(-(-blocks // SECOND_BLOCK)), None, floats(256), SECOND_BLOCK, dtype=torch.float32)
        second = {"offset": floats(()), "state2": state}
    codes = nn.Parameter(integers(((weight.numel() + 1) // 2, 1)), requires_grad=False)
    scales = integers(blocks) if double else floats(blocks)
    codes.quant_state = QuantState(scales, weight.shape, floats(16), BLOCK, "nf4", weight.dtype, **second)
    codes.quant_type, codes.compress_statistics = "nf4", double
    return codes
