"""What chapter 11 says of a GPU, measured on one; `--write` puts the tables into docs/accuracy.md.

Each table is made in one run, its ways beside each other; bytes are above what was in use before, by CUDA's allocator.
"""

import argparse
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from benchmarks.document import write
from course_utils import data, hardware, models, techniques
from course_utils.lessons import c11_long_sequences as lesson
from course_utils.settings import SCALES, settings
from course_utils.techniques import attention
from course_utils.units import MiB, format_bytes, format_seconds

GPU, HALF = torch.device("cuda"), torch.bfloat16


def loss() -> str:
    """Peak and seconds of a loss over 8,192 tokens and Qwen2.5-0.5B's vocabulary."""
    n, h, vocabulary, rows = 8192, 896, 151_936, []
    methods = {
        "plain": lambda x, w, labels: F.cross_entropy((x @ w.T).float(), labels),
        "tiles": lambda *a: techniques.LossByTiles.apply(*a, 1024, vocabulary // 16),
        "gradients in forward": lambda *a: techniques.LossWithGradients.apply(*a, 1024),
    }
    for dtype in (torch.float32, HALF):
        inputs = lesson.random_head(n, h, vocabulary, GPU, dtype)
        costs = {name: lesson.measure_cost(method, *inputs) for name, method in methods.items()}
        compiled = torch.compile(methods["plain"])
        costs["plain, compiled"] = lesson.measure_cost(compiled, *inputs)
        rows += [[str(dtype).removeprefix("torch."), name, *_peak_and_seconds(cost)] for name, cost in costs.items()]
    return _table(["dtype", "way", "peak", "forward and backward"], rows)


def lengths() -> str:
    """Attention over one text in 16 bits: 16 heads of 64, causal."""
    methods = {"whole matrix": attention.attention, "tiles": attention.TiledAttention.apply, "SDPA": _sdpa}
    rows = []
    for length in (1024, 4096, 16384):
        heads = lesson.random_qkv(length, GPU, heads=16, width=64, dtype=HALF)
        for name, method in methods.items():
            if name == "tiles" and length > 4096:
                continue  # a kernel launched for each of 32,896 tiles, several times
            cost = lesson.measure_cost(method, *heads, True)
            rows.append([f"{length:,}", name, format_bytes(cost.saved), *_peak_and_seconds(cost)])
    return _table(["tokens", "way", "saved besides Q, K, V", "peak", "forward and backward"], rows)


def documents() -> str:
    """Attention of documents that are packed into one row: FlexAttention, compiled, beside SDPA with a dense mask."""
    rows, texts = [], data.load_functions()["train"]["text"]
    tokenizer = data.tokenizer_for(data.load_functions(), SCALES["laptop"].vocabulary)
    sizes = [len(ids) for ids in tokenizer(texts[:2000], max_length=512, truncation=True)["input_ids"]]
    for room in (2048, 8192):
        lengths = [size for size, total in zip(sizes, accumulate(sizes), strict=True) if total <= room]
        owner = lesson.owners(lengths, room).to(GPU)
        heads = lesson.random_qkv(room, GPU, heads=16, width=64, dtype=HALF)
        blocks = create_block_mask(_same_document(owner), None, None, room, room, "cuda")
        position = torch.arange(room, device=GPU)
        mask = (owner[:, None] == owner) & (position[:, None] >= position)
        methods = {
            "SDPA, one text": lambda *a: _sdpa(*a, True),
            "SDPA, dense mask": partial(F.scaled_dot_product_attention, attn_mask=mask),
            "FlexAttention": partial(torch.compile(flex_attention, dynamic=False), block_mask=blocks),
        }
        squares = (partial(_mean_square, methods[name]) for name in ("FlexAttention", "SDPA, dense mask"))
        largest_error = lesson.largest_error(*squares, *heads)
        for name, method in methods.items():
            cost = lesson.measure_cost(method, *heads, times=5)
            rows.append([f"{room:,}", len(lengths), name, *_peak_and_seconds(cost)])
        rows[-1][2] += f" (gradients {largest_error:.0e} apart)"
    return _table(["tokens", "documents", "way", "peak", "forward and backward"], rows)


def packed() -> str:
    """Real tokens a second of GPT-2 on the corpus of Python functions: padded to 128, and packed into rows of 1,024."""
    functions, scale = data.load_functions(), SCALES["gpu"]
    tokenizer = data.tokenizer_for(functions, scale.vocabulary)
    texts = tokenizer(functions["train"]["text"][:1024], max_length=128, truncation=True)["input_ids"]
    sizes, room, off = [len(ids) for ids in texts], 1024, {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = models.from_configuration(models.configuration("gpt2", scale=scale, n_positions=room, **off)).to(GPU, HALF)
    rows = techniques.first_fit(sizes, room)
    packed = techniques.pack([torch.tensor(ids) for ids in texts], rows, room)
    padded = [lesson.pad(texts[first : first + 128], 128, GPU) for first in range(0, len(texts), 128)]
    batches = {
        "padded": padded,
        "packed": [{k: t[first : first + 16].to(GPU) for k, t in packed.items()} for first in range(0, len(rows), 16)],
    }
    seconds = lesson.time_epochs(model, batches)
    positions = {name: sum(batch["input_ids"].numel() for batch in some) for name, some in batches.items()}
    return _table(
        ["way", "positions", "of them real", "real tokens a second"],
        [
            [n, f"{positions[n]:,}", f"{sum(sizes) / positions[n]:.0%}", f"{sum(sizes) / s:,.0f}"]
            for n, s in seconds.items()
        ],
    )


def host() -> str:
    """Four blocks of GPT-2 in 16 bits on one text of 4,096 tokens: activations kept, made again, or moved to the host."""
    machine, rows = hardware.calibrate(exchange=False), []
    methods = {"kept": (_run, nullcontext), "made again": (_run_checkpointed, nullcontext)}
    methods["moved"] = _run, save_on_cpu
    methods["moved, pinned"] = _run, partial(save_on_cpu, pin_memory=True)
    for width in (768, 2048, 8192):
        changes = {"n_embd": width, "n_layer": 4, "n_head": width // 64, "n_positions": 4096, "vocab_size": 1000}
        changes |= {"n_inner": 4 * width, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        with GPU:
            blocks = models.from_configuration(models.configuration("gpt2", **changes)).transformer.h.to(HALF)
            states = torch.randn(1, 4096, width, dtype=HALF, requires_grad=True)
        costs = {}
        for name, (run, context) in methods.items():
            costs[name] = lesson.measure_cost(
                partial(_run_blocks, context, run, blocks), states, parameters=[*blocks.parameters()]
            )
        per_number = costs["kept"].saved / 4 / states.numel()
        moving, recomputing = lesson.host_or_again(width, 4096, machine, per_number)
        seconds = {"made again": recomputing, "moved, pinned": moving}
        for name, cost in costs.items():
            beyond = cost.seconds - costs["kept"].seconds
            promised = format_seconds(seconds[name] * 4 * 4096) if name in seconds else ""
            rows.append([f"{width:,}", name, *_peak_and_seconds(cost), format_seconds(max(beyond, 0.0)), promised])
        del blocks, states
    link = f"Host link {machine.host_link / 1e9:.1f} GB/s, bf16 products {machine.flop_rates['bfloat16'] / 1e12:.0f} TFLOP/s."
    head = ["width", "activations", "peak", "forward and backward", "beyond kept", "from rates"]
    return f"{link}\n\n{_table(head, rows)}"


def budgets() -> str:
    """Saved bytes and peak of a compiled Llama's loss against the budget, with either backend."""
    scale = SCALES["gpu"]
    llama = models.from_configuration(models.configuration("llama", scale=scale)).to(GPU)
    ids, rows = torch.randint(1, scale.vocabulary, (32, scale.sequence), device=GPU), []

    def step(ids: Tensor) -> Tensor:
        return llama(input_ids=ids, labels=ids, use_cache=False).loss

    parameters = list(llama.parameters())
    plainly = lesson.measure_cost(step, ids, parameters=parameters)
    rows.append(["not compiled", "", format_bytes(plainly.saved), *_peak_and_seconds(plainly)])
    for backend, shares in {
        "aot_eager_decomp_partition": (1.0, 0.5, 0.15, 0.05, 0.0),
        "inductor": (1.0, 0.15, 0.05),
    }.items():
        for share in shares:
            with lesson.activation_budget(share):
                cost = lesson.measure_cost(torch.compile(step, backend=backend), ids, parameters=parameters)
            rows.append([backend, share, format_bytes(cost.saved), *_peak_and_seconds(cost)])
    return _table(["backend", "budget", "saved", "peak", "forward and backward"], rows)


def start() -> str:
    """Seconds until a tiny function's first step through Inductor is done, nothing cached."""
    x, w = torch.randn(256, 64, device=GPU), torch.randn(64, 64, device=GPU, requires_grad=True)
    return f"Inductor: {lesson.seconds_to_start(lambda x, w: torch.sin(torch.sin(x @ w) @ w), x, w):.1f} s to start."


TABLES = {table.__name__: table for table in (loss, lengths, documents, packed, host, budgets, start)}


def _sdpa(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def _mean_square(method: Callable, *heads: Tensor) -> Tensor:
    return method(*heads).float().square().mean()


def _same_document(owner: Tensor) -> Callable:
    return lambda b, h, i, j: (owner[i] == owner[j]) & (i >= j)


def _run(block: nn.Module, states: Tensor) -> Tensor:
    out = block(states)
    return out[0] if isinstance(out, tuple) else out


def _run_checkpointed(block: nn.Module, states: Tensor) -> Tensor:
    return checkpoint(_run, block, states, use_reentrant=False)


def _run_blocks(context: Callable, run: Callable, blocks: nn.ModuleList, states: Tensor) -> Tensor:
    with context():
        for block in blocks:
            states = run(block, states)
        return states.float()


def _peak_and_seconds(cost: lesson.Cost) -> tuple[str, str]:
    return f"{cost.peak / MiB:,.1f} MiB", format_seconds(cost.seconds)


def _table(head: list[str], rows: Iterable[list]) -> str:
    lines = [" | ".join(map(str, row)) for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def main():
    """Make every table, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"of {', '.join(TABLES)}; by default all")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if settings().device.type != "cuda":
        parser.error("PyTorch sees no GPU here")
    parts = []
    for name in arguments.tables or TABLES:
        parts.append(f"{TABLES[name].__doc__}\n\n{TABLES[name]()}")
        print(f"{parts[-1]}\n", flush=True)
        torch.cuda.empty_cache()
    if arguments.write:
        write("long_sequences.py", "\n\n".join(parts))


if __name__ == "__main__":
    main()
