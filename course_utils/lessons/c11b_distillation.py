"""Chapter 11b: language models that learn from another."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_utils import data, memory, models
from course_utils.memory.step.workload import Workload
from course_utils.optim import schedules
from course_utils.settings import settings
from course_utils.techniques import distillation_loss

Loss = Callable[[nn.Module, Tensor], Tensor]
"""The loss of a model on rows of tokens."""
VOCABULARY = 1_000  # tokens
ROW_LENGTH = 64  # tokens
TEACHER_SEED = 99


@cache
def token_rows(split: str) -> Tensor:
    """All functions one after the other, cut into rows of `ROW_LENGTH` tokens out of `VOCABULARY` different ones, int64."""
    corpus = data.load_functions()
    texts = data.tokenizer_for(corpus, VOCABULARY)(list(corpus[split]["text"]))["input_ids"]
    tokens = [token for ids in texts for token in ids]
    count = len(tokens) // ROW_LENGTH
    return torch.tensor(tokens[: count * ROW_LENGTH]).view(count, ROW_LENGTH)


def build_language_model(width: int, layers: int, seed: int) -> nn.Module:
    """A Llama with heads of 32 numbers."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    sizes |= {"vocab_size": VOCABULARY, "num_attention_heads": width // 32, "num_key_value_heads": width // 32}
    return models.build("llama", scale=settings().scale, seed=seed, **sizes).to(settings().device)


def train_language_model(
    model: nn.Module, lr: float, seed: int, epochs: int = 1, limit: int | None = None, loss: Loss | None = None
) -> nn.Module:
    """Train by AdamW with warm-up and cosine, on at most `limit` rows of each epoch; `loss(model, ids)` or the model's own."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    train = token_rows("train")
    orders = [train[torch.randperm(len(train), generator=generator)][:limit] for _ in range(epochs)]
    batches = [part for order in orders for part in order.to(device).split(16)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    steps = len(batches)
    factor = partial(schedules.cosine, total=steps + 1, warmup=steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: factor(update + 1))
    for ids in batches:
        (model(input_ids=ids, labels=ids).loss if loss is None else loss(model, ids)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def held_out_token_loss(model: nn.Module, limit: int | None = None) -> float:
    """The mean loss of a token of held-out functions."""
    parts = token_rows("test")[:limit].to(next(model.parameters()).device).split(64)
    return sum(model(input_ids=ids, labels=ids).loss.item() * len(ids) for ids in parts) / sum(map(len, parts))


def loss_from_teacher(teacher: nn.Module, temperature: float) -> Loss:
    """The loss of a student beside a teacher, whose forward pass makes no graph. A place's logits are of the next token."""

    def loss(student: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = teacher(input_ids=ids).logits[:, :-1]
        return distillation_loss(student(input_ids=ids).logits[:, :-1], teacher_logits, ids[:, 1:], temperature, 0.5)

    return loss


def train_teacher(limit: int | None = None) -> nn.Module:
    """A model twice as wide and deep as a student, and trained for twice as many epochs."""
    return train_language_model(build_language_model(128, 2, TEACHER_SEED), 3e-3, TEACHER_SEED, epochs=2, limit=limit)


def train_student(seed: int, loss: Loss | None = None, epochs: int = 1, limit: int | None = None) -> nn.Module:
    """A student of `seed`, trained alone or with this loss."""
    return train_language_model(build_language_model(64, 1, seed), 5e-3, seed, epochs, limit, loss)


def bytes_beside_teacher(student: nn.Module, teacher: nn.Module) -> tuple[int, int, int]:
    """Bytes at the peak of a step of 16 rows: alone as predicted, beside the teacher as predicted and as measured."""
    recipe = memory.Recipe(batch=16, sequence=ROW_LENGTH, device=settings().device.type)
    with TemporaryDirectory() as folder:
        teacher.config.save_pretrained(folder)
        taught = replace(recipe, teacher=folder)
        work = Workload(student.config, taught)
        expected = [memory.estimate(student.config, step_recipe).peak for step_recipe in (recipe, taught)]
        return *expected, memory.measure(work.build, work.step, timed=0).peak


def operations_of_step(student: nn.Module, loss: Loss | None = None) -> int:
    """Operations of the products in a student's step on 16 rows, with `loss(model, ids)` or the model's own."""
    ids = token_rows("train")[:16].to(next(student.parameters()).device)
    with FlopCounterMode(display=False) as counted:
        (student(input_ids=ids, labels=ids).loss if loss is None else loss(student, ids)).backward()
    student.zero_grad()
    return counted.get_total_flops()
