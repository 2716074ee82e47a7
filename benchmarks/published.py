"""Predictions as on CUDA beside measurements that others have published; `--write` puts the table into docs/accuracy.md."""

import argparse
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
import transformers
from torch.utils import checkpoint

from benchmarks.document import write
from course_utils import models
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.need import CONTEXT, Need
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import Log
from course_utils.units import GiB

TORCHAO = "[torchao](https://github.com/pytorch/ao/blob/main/torchao/optim/README.md)"
TORCHTITAN = "[torchtitan](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)"
GUIDE = (
    "[Transformers' guide of 2022](https://github.com/huggingface/transformers/blob/"
    "0016acf7ef421c7fe8eff7945de52c71896c3b01/docs/source/en/perf_train_gpu_one.mdx)"
)
RASBT = "[pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md)"
TUNE = "[torchtune's README](https://github.com/meta-pytorch/torchtune/blob/main/README.md)"
LITGPT = "[LitGPT](https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md)"
VRAMCALC = "[vramcalc's README](https://pypi.org/project/vramcalc/0.1.2/)"
FMS = "[fms-acceleration](https://github.com/foundation-model-stack/fms-acceleration/tree/main/scripts/benchmarks/refs)"
TORCHTUNE = "[torchtune, pull request 961](https://github.com/meta-pytorch/torchtune/pull/961)"


@dataclass(frozen=True)
class Row:
    """A published peak in GiB, and the step that its source took as far as it says; `unknown` is what it leaves open.

    `counted` is one of `allocated`, `reserved` and `NVML`, of which the context that the source states is taken off. `old` is
    software of 2022, whose operators are not those of today.
    """

    name: str
    published: float
    model: object
    recipe: Recipe
    source: str
    counted: str = "allocated"
    unknown: str = ""
    old: bool = False


def llama_8b() -> torch.nn.Module:
    return models.from_configuration(models.configuration("llama-3.1-8b"))


def selective_llama() -> torch.nn.Module:
    """Every block recomputed but for its attention and every other product, as torchtitan's `selective` by operators does."""
    model = llama_8b()
    model.config.use_cache = False  # a block recomputed would append its keys again
    for block in model.model.layers:
        forward = partial(checkpoint.checkpoint, block.forward, use_reentrant=False, context_fn=_every_other_product)
        block.forward = forward
    return model


def _every_other_product():
    aten, seen = torch.ops.aten, {False: 0, True: 0}
    attention = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}

    def policy(context, operator, *_, **__):
        if operator == aten.mm.default:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operator in attention or "attention_for_cpu" in str(operator)
        return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)


_TUNED = Recipe("adamw-fused", "bf16", batch=2, sequence=512, checkpointing=True, keeps_outputs=False, device="cuda")
_TITAN = Recipe(
    "adamw-fused", "autocast", 2, 8192, zero_stage=3, ranks=8, clipping=True, keeps_outputs=False, device="cuda"
)
_LOW = replace(_TUNED, optimizer="sgd", in_backward=True, batch=4, sequence=2048)
_LENGTHS = "the sequence length (512 is assumed); GB are read as GiB, since only then do the parts add up"
_TORCHAO = (
    ("fused AdamW", 51.6, "adamw-fused"),
    ("AdamW of 8 bits", 39.3, "adamw8bit"),
    ("AdamW of 4 bits", 33.2, "adamw4bit"),
)
_STREAMS = "fragments that several streams leave; torchtitan has a Llama of its own"
ROWS = (
    *(
        Row(
            f"Llama-2-7B bf16, {name}",
            peak,
            "llama-2-7b",
            replace(_TUNED, optimizer=optimizer),
            TORCHAO,
            unknown=_LENGTHS,
        )
        for name, peak, optimizer in _TORCHAO
    ),
    Row(
        "Llama-2-7B bf16, paged AdamW in backward",
        20.2e9 / GiB,
        "llama-2-7b",
        _LOW,
        TORCHTUNE,
        unknown="predicted with SGD, since the paged states lie on the host",
    ),
    Row("Llama-3.1-8B FSDP2, 8 cards", 82.4, selective_llama, _TITAN, TORCHTITAN, "reserved", _STREAMS),
    Row(
        "Llama-3.1-8B FSDP2, 128 cards",
        67.0,
        selective_llama,
        replace(_TITAN, ranks=128),
        TORCHTITAN,
        "reserved",
        _STREAMS,
    ),
)


def bert() -> object:
    """bert-large-uncased with a head for two classes."""
    return models.configuration("bert-large", labels=2)


def vit() -> transformers.PretrainedConfig:
    """ViT-L/16 with a head for the ten classes of CIFAR-10."""
    return transformers.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=10
    )


def powerlm() -> transformers.PretrainedConfig:
    """ibm/PowerLM-3b: 3.51 billion parameters."""
    return transformers.GraniteConfig(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=40, num_attention_heads=36, num_key_value_heads=36,
        vocab_size=49152, max_position_embeddings=4096, tie_word_embeddings=True, architectures=["GraniteForCausalLM"],
    )  # fmt: skip


_GUIDE = Recipe(
    "adamw",
    batch=4,
    sequence=512,
    clipping=True,
    keeps_outputs=False,
    attention="eager",
    zero_grad="never",
    device="cuda",
)
_VIT = Recipe("adamw-foreach", batch=64, zero_grad="before-backward", device="cuda")
_PACKED = Recipe("adamw-fused", "bf16", 2, 4096, keeps_outputs=False, use_cache=False, device="cuda")
_LIT = Recipe(
    *("adamw-foreach", "bf16", 1, 1304, 4),
    **{"use_cache": False, "lora": 8, "lora_targets": ("q_proj", "v_proj"), "lora_dropout": 0.05, "device": "cuda"},
)
_LIT_QUANTIZED = replace(_LIT, quantized="nf4", double_quantization=False, upcast=False)
_CALC = Recipe("adamw-foreach", "bf16", 1, 2048, zero_grad="never", use_cache=False, device="cuda")
_OTHER_MODEL = "its own model; with all that is open in it"
_QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
_CALC_LORA = replace(_CALC, lora=16, lora_targets=_QKVO)
_FMS = Recipe(
    "adamw-foreach",
    "bf16",
    4,
    4096,
    checkpointing=True,
    clipping=True,
    keeps_outputs=False,
    use_cache=False,
    device="cuda",
)
_FMS_LORA = replace(_FMS, lora=16, lora_targets=_QKVO, lora_dropout=0.1)
_FMS_QUANTIZED = replace(_FMS_LORA, precision="autocast", quantized="nf4")
_OF_2022 = "PyTorch's kernels of 2022; what the allocator had kept before"
ROWS += (
    Row("BERT-large", (14949 - 1343) / 1024, bert(), _GUIDE, GUIDE, "NVML", _OF_2022, True),
    Row("BERT-large, 4 micro-batches of 1, checkpointing", (6775 - 1343) / 1024, bert(),
        replace(_GUIDE, batch=1, accumulation=4, checkpointing=True), GUIDE, "NVML", _OF_2022, True),
    Row("BERT-large, fp16", (13939 - 1343) / 1024, bert(), replace(_GUIDE, precision="fp16"), GUIDE, "NVML", _OF_2022, True),
    Row("BERT-large, 8-bit Adam", (13085 - 1343) / 1024, bert(),
        replace(_GUIDE, optimizer="adamw8bit"), GUIDE, "NVML", _OF_2022, True),
    Row("ViT-L/16", 26.79e9 / GiB, vit(), _VIT, RASBT, "reserved", "the batch: 32 in the log's head, 64 further down"),
    Row("ViT-L/16, fp16", 18.21e9 / GiB, vit(), replace(_VIT, precision="fp16"), RASBT, "reserved", "as above"),
    Row("Llama-3.2-3B bf16, packed", 60.0, "llama-3.2-3b", _PACKED, TUNE, unknown=_OTHER_MODEL),
    Row("Llama-2-7B bf16, LoRA on q and v", 21.30e9 / GiB, "llama-2-7b", _LIT, LITGPT, unknown=_OTHER_MODEL),
    Row("Llama-2-7B NF4, LoRA on q and v", 14.14e9 / GiB, "llama-2-7b", _LIT_QUANTIZED, LITGPT, unknown=_OTHER_MODEL),
    Row("Qwen2.5-1.5B bf16", 23.40e9 / GiB, "qwen2.5-1.5b", _CALC, VRAMCALC),
    Row("Llama-3.2-1B autocast, checkpointing", 25.22e9 / GiB, "llama-3.2-1b",
        replace(_CALC, precision="autocast", checkpointing=True), VRAMCALC),
    Row("Llama-3.2-3B bf16, LoRA on q, k, v and o", 18.98e9 / GiB, "llama-3.2-3b",
        _CALC_LORA, VRAMCALC),
    *(Row(f"Mistral-7B bf16, batch {b}", size / GiB, "mistral-7b", replace(_FMS, batch=b), FMS)
      for b, size in ((4, 72434837504), (8, 72435230720))),
    Row("Llama-3-8B bf16, batch 4", 80318097408 / GiB, "llama-3-8b", _FMS, FMS),
    *(Row(f"PowerLM-3B bf16, batch {b}", size / GiB, powerlm(), replace(_FMS, batch=b), FMS)
      for b, size in ((4, 35134836736), (8, 47059390976))),
    *(Row(f"PowerLM-3B bf16, LoRA, batch {b}", size / GiB, powerlm(), replace(_FMS_LORA, batch=b), FMS)
      for b, size in ((4, 20193463808), (8, 33176473088))),
    *(Row(f"Mistral-7B bf16, LoRA, batch {b}", size / GiB, "mistral-7b", replace(_FMS_LORA, batch=b), FMS)
      for b, size in ((4, 26704571904), (8, 38742912512))),
    *(Row(f"PowerLM-3B, QLoRA, batch {b}", size / GiB, powerlm(), replace(_FMS_QUANTIZED, batch=b), FMS)
      for b, size in ((4, 18174161920), (8, 34177070080))),
    *(Row(f"Mistral-7B, QLoRA, batch {b}", size / GiB, "mistral-7b", replace(_FMS_QUANTIZED, batch=b), FMS, unknown="fp16 there")
      for b, size in ((4, 22825932800), (8, 40278956032))),
    Row("Llama-2-7B bf16, LoRA on q and v, 2 texts", 29.07e9 / GiB, "llama-2-7b", replace(_LIT, batch=2), LITGPT,
        unknown=_OTHER_MODEL),
    Row("Llama-2-7B NF4 with double quantization, LoRA on q and v", 13.84e9 / GiB, "llama-2-7b",
        replace(_LIT_QUANTIZED, double_quantization=True), LITGPT, unknown=_OTHER_MODEL),
    Row("Llama-2-13B bf16, LoRA on q and v", 38.12e9 / GiB, "llama-2-13b", _LIT, LITGPT, unknown=_OTHER_MODEL),
    Row("Llama-2-13B NF4, LoRA on q and v", 23.14e9 / GiB, "llama-2-13b", _LIT_QUANTIZED, LITGPT, unknown=_OTHER_MODEL),
    *(Row(f"Mistral-7B bf16, batch {b}, by older libraries", size / GiB, "mistral-7b", replace(_FMS, batch=b), FMS)
      for b, size in ((4, 72971724288), (8, 72972117504))),
    Row("Llama-3.2-1B bf16", 17.51e9 / GiB, "llama-3.2-1b", _CALC, VRAMCALC),
    Row("Llama-3.2-1B bf16, checkpointing", 13.76e9 / GiB, "llama-3.2-1b", replace(_CALC, checkpointing=True), VRAMCALC),
    Row("Llama-3.2-1B autocast", 30.55e9 / GiB, "llama-3.2-1b", replace(_CALC, precision="autocast"), VRAMCALC),
    Row("Llama-3.2-1B bf16, eager", 30.26e9 / GiB, "llama-3.2-1b", replace(_CALC, attention="eager"), VRAMCALC),
    Row("Llama-3.2-3B bf16, checkpointing", 32.15e9 / GiB, "llama-3.2-3b", replace(_CALC, checkpointing=True), VRAMCALC),
    Row("Llama-3.2-1B bf16, LoRA", 10.13e9 / GiB, "llama-3.2-1b", _CALC_LORA, VRAMCALC),
    Row("Llama-3.2-1B autocast, LoRA", 14.52e9 / GiB, "llama-3.2-1b", replace(_CALC_LORA, precision="autocast"), VRAMCALC),
    Row("Llama-3.1-8B bf16, LoRA, checkpointing", 20.55e9 / GiB, "llama-3.1-8b", replace(_CALC_LORA, checkpointing=True),
        VRAMCALC),
    Row("Qwen2.5-1.5B bf16, LoRA", 13.78e9 / GiB, "qwen2.5-1.5b", _CALC_LORA, VRAMCALC),
    *(Row(f"Mistral-7B bf16, LoRA, batch {b}, by older libraries", size / GiB, "mistral-7b", replace(_FMS_LORA, batch=b), FMS)
      for b, size in ((4, 26108963328), (8, 37098695168))),
)  # fmt: skip
TWELVE = slice(6, 18)
"""The rows that were chosen by somebody who did not look at the tool's answers."""


@cache
def logs() -> tuple[Log, ...]:
    """The predicted step of each row."""
    return tuple(try_recipe(source_of(row.model), row.recipe, traffic=False).log for row in ROWS)


def predicted(row: Row, log: Log) -> float:
    """GiB, allocated or reserved as the source counts."""
    return (log.peak if row.counted == "allocated" else log.reserved) / GiB


def in_range(row: Row, log: Log) -> bool:
    """Whether the figure is between the least and the most that `course plan` says; no row counts a context."""
    low, high = (size - context for size, context in zip(Need.from_log(log, "cuda"), CONTEXT, strict=True))
    return low <= row.published * GiB <= high


def width(log: Log) -> float:
    """The quotient of the most and the least."""
    low, high = Need.from_log(log, "cuda")
    return high / low


def table() -> str:
    """Markdown, a row for each published figure."""
    lines = [
        "| what is trained | source | counted | published, GiB | predicted | difference | unknown |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for row, log in zip(ROWS, logs(), strict=True):
        size = predicted(row, log)
        figures = f"{row.published:.1f} | {size:.1f} | {size / row.published - 1:+.1%}"
        lines.append(f"| {row.name} | {row.source} | {row.counted} | {figures} | {row.unknown} |")
    return "\n".join(lines)


def main():
    """Predict all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    text = table()
    print(text)
    if parser.parse_args().write:
        write("published.py", text)


if __name__ == "__main__":
    main()
