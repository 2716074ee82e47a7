"""A small language model and its batches, for ranks that train it in several ways."""

import torch
import torch.distributed as dist

from course_utils import memory, models, techniques
from course_utils.distributed import DDP, FSDP, ShardedOptimizer, counted
from course_utils.memory.step.examples import random_batch

VOCABULARY = 600
SIZES = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "distilbert": {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "dropout": 0.0, "attention_dropout": 0.0},
}
CHECKPOINTS = {"none": None, "by hooks": techniques.checkpoint_by_hooks, "re-entrant": techniques.checkpoint}
UPDATES = 2


def model_of(family, seed=0):
    return models.from_configuration(models.configuration(family, vocab_size=VOCABULARY, **SIZES[family]), seed)


def batch(share, step):
    tokens = torch.randint(5, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(1000 * share + step))
    return {"input_ids": tokens, "labels": tokens}


def train(model, shares, optimizer=None):
    """Some updates, by default of plain SGD: without momentum or decay a zero gradient and none are the same."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(UPDATES):
        for share in shares:
            (model(**batch(share, step)).loss / len(shares)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def sharded_families(families):
    """The full state after some updates, by family, checkpoint and units."""
    results = {}
    for family in families:
        for name, using in CHECKPOINTS.items():
            for is_one_unit in (False, True) if name != "re-entrant" else (False,):
                plain = model_of(family, seed=dist.get_rank())
                model = FSDP(plain, () if is_one_unit else techniques.blocks_of(plain))
                if using is None:
                    train(model, [dist.get_rank()])
                else:
                    with techniques.checkpoint_blocks(plain, using=using):
                        train(model, [dist.get_rank()])
                results[family, name, is_one_unit] = model.full_state_dict()
    return results


def count_sent():
    """Bytes that this rank sends in some updates, by method, with the number of the model's elements."""
    results, rank = {}, dist.get_rank()
    for method in ("ddp", "zero1", "zero2", "zero3"):
        plain = model_of("gpt2")
        model = plain
        optimizer = None
        if method == "ddp":
            model = DDP(plain)
        elif method == "zero1":
            optimizer = ShardedOptimizer(plain.parameters(), torch.optim.SGD, lr=0.1)
        else:
            model = FSDP(plain, techniques.blocks_of(plain), reshard_after_forward=method == "zero3")
        with counted() as traffic:
            train(model, [rank], optimizer)
        results[method] = traffic.sent
    return results


def sharded(stage, sizes, ranks):
    """A model, its optimizer and its inputs by stage of ZeRO, on one of `ranks`."""
    recipe = memory.Recipe(batch=4, sequence=64, zero_stage=stage, ranks=ranks)
    plain = models.from_configuration(models.configuration("gpt2", **sizes), seed=0)
    inputs = random_batch(plain, recipe)
    if stage == 1:
        return plain, ShardedOptimizer(plain.parameters(), torch.optim.AdamW, foreach=False), inputs
    model = FSDP(plain, techniques.blocks_of(plain), reshard_after_forward=stage == 3)
    return model, torch.optim.AdamW(model.parameters(), foreach=False), inputs


def peaks(stages, sizes):
    """The allocator's peaks on this rank in three runs, by stage of ZeRO."""
    ranks = dist.get_world_size()
    return {
        stage: [memory.measure(sharded(stage, sizes, ranks), step, timed=0).peak for _ in range(3)] for stage in stages
    }


def step(model, optimizer, inputs):
    model(**inputs).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
