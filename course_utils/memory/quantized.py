"""Linear layers of bitsandbytes in 4 bits; without numbers its class, its operators, tensors of its shapes."""

import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.memory.fake import is_fake

BLOCK, SECOND_BLOCK = 64, 256


def quantize_linears(model: nn.Module, checkpointing: bool = False) -> nn.Module:
    """Put `Linear4bit` in place of all linear layers but the output layer, and prepare the model as QLoRA does, by `peft`.

    Raises `CourseError` for a model that has none.

    NF4, statistics quantized too (Dettmers et al. 2023): half a byte a weight, a byte for each block of 64, a float32 for each
    256 of these, two tables. The library cannot quantize a fake tensor, so a fake weight is made as it would be.
    """
    import peft

    put_in_4_bits(model, model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None)
    if not any(hasattr(weight, "quant_state") for weight in model.parameters()):
        raise CourseError(
            "No layer of this model can be kept in 4 bits: Transformers takes nn.Linear and Conv1D alone, not classes made from "
            "them. Leave quantized out."
        )
    model.is_loaded_in_4bit = True
    return peft.prepare_model_for_kbit_training(model, checkpointing, {"use_reentrant": False})


def put_in_4_bits(model: nn.Module, head: nn.Module | None = None) -> None:
    """`Linear4bit` in place of the layers within `model` for which Transformers 5 has it, but `head`; in place.

    These are `nn.Linear` itself and GPT-2's `Conv1D`, which is one with its weight transposed.
    """
    from transformers.pytorch_utils import Conv1D

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, Conv1D) and child is not head:
                weight = child.weight.T.contiguous() if type(child) is Conv1D else child.weight
                setattr(parent, name, _make_4_bit(weight, child.bias))


def _make_4_bit(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit.__new__(Linear4bit)  # its own way to begin wraps a real tensor
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features = weight.shape
    layer.compute_dtype, layer.compute_type_is_set = weight.dtype, True
    layer.quant_storage, layer.support_avx512bf16_for_cpu = torch.uint8, False
    layer.bias, layer.weight = bias, _make_codes(weight)
    return layer


def _make_codes(weight: torch.Tensor) -> nn.Parameter:
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Params4bit

    if not is_fake(weight):
        return Params4bit(weight.detach(), requires_grad=False, quant_type="nf4").to(weight.device)
    blocks, new = -(-weight.numel() // BLOCK), weight.detach().new_empty
    second = QuantState(
        new(-(-blocks // SECOND_BLOCK), dtype=torch.float32),
        code=new(256, dtype=torch.float32),
        blocksize=SECOND_BLOCK,
        dtype=torch.float32,
    )
    codes = nn.Parameter(new(((weight.numel() + 1) // 2, 1), dtype=torch.uint8), requires_grad=False)
    codes.quant_state = QuantState(
        new(blocks, dtype=torch.uint8),
        weight.shape,
        new(16, dtype=torch.float32),
        BLOCK,
        "nf4",
        weight.dtype,
        offset=new((), dtype=torch.float32),
        state2=second,
    )
    codes.quant_type, codes.compress_statistics = "nf4", True
    return codes
