"""Predictions as on CUDA beside measurements that others have published; `--write` puts the table into docs/accuracy.md."""

import argparse
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils import checkpoint

from benchmarks.document import write
from course_utils import models
from course_utils.memory.model import source_of
from course_utils.memory.recipe import Recipe
from course_utils.memory.trial import Trial, attempt
from course_utils.units import GiB

TORCHAO = "[torchao](https://github.com/pytorch/ao/blob/main/torchao/optim/README.md)"
TORCHTITAN = "[torchtitan](https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md)"
TORCHTUNE = "[torchtune, request 961](https://github.com/meta-pytorch/torchtune/pull/961)"


@dataclass(frozen=True)
class Row:
    """A published peak in GiB, reserved or allocated, the step taken for it, and what the source leaves open (`unknown`)."""

    name: str
    published: float
    what: object
    recipe: Recipe
    source: str
    reserved: bool = False
    unknown: str = ""


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
    kept = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}

    def policy(context, operator, *_, **__):
        if operator == aten.mm.default:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operator in kept or "attention_for_cpu" in str(operator)
        return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)


_TUNED = Recipe("adamw-fused", "bf16", batch=2, sequence=512, checkpointing=True, keeps_outputs=False, device="cuda")
_TITAN = Recipe(
    "adamw-fused", "autocast", 2, 8192, zero_stage=3, ranks=8, clipping=True, keeps_outputs=False, device="cuda"
)
_LOW = replace(_TUNED, optimizer="sgd", in_backward=True, batch=4, sequence=2048)
_LENGTHS = "the sequence length (512 is assumed); GB are taken for GiB, since only so the parts add up"
_TORCHAO = (
    ("fused AdamW", 51.6, "adamw-fused"),
    ("AdamW of 8 bits", 39.3, "adamw8bit"),
    ("AdamW of 4 bits", 33.2, "adamw4bit"),
)
_STREAMS = "fragments that several streams leave; torchtitan has a Llama of its own"
ROWS = (
    *(
        Row(f"Llama-2-7B bf16, {name}", peak, "llama-2-7b", replace(_TUNED, optimizer=made), TORCHAO, unknown=_LENGTHS)
        for name, peak, made in _TORCHAO
    ),
    Row(
        "Llama-2-7B bf16, paged AdamW in backward",
        20.2e9 / GiB,
        "llama-2-7b",
        _LOW,
        TORCHTUNE,
        unknown="predicted with SGD, since the paged states lie on the host",
    ),
    Row("Llama-3.1-8B FSDP2, 8 cards", 82.4, selective_llama, _TITAN, TORCHTITAN, True, _STREAMS),
    Row("Llama-3.1-8B FSDP2, 128 cards", 67.0, selective_llama, replace(_TITAN, ranks=128), TORCHTITAN, True, _STREAMS),
)


def predicted(row: Row) -> float:
    """GiB, allocated or reserved as the source counts."""
    trial: Trial = attempt(source_of(row.what), row.recipe)
    return (trial.log.reserved if row.reserved else trial.peak) / GiB


def table() -> str:
    """Markdown, a row for each published figure."""
    lines = [
        "| what is trained | source | counted | published, GiB | predicted | difference | unknown |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for row in ROWS:
        size, counted = predicted(row), "reserved" if row.reserved else "allocated"
        figures = f"{row.published:.1f} | {size:.1f} | {size / row.published - 1:+.1%}"
        lines.append(f"| {row.name} | {row.source} | {counted} | {figures} | {row.unknown} |")
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
