"""Chapter 06: two means of one loss, clipping over a wrong factor, and noise, with seeds of their own, at laptop scale."""

from itertools import product

import torch

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons.c06_gradient_accumulation import NotesNorms, noise_by_groups, train_on_texts
from course_utils.settings import SCALES
from course_utils.training.gradients import relative_error

SCALE = SCALES["laptop"]


@claim("06-report")
def the_mean_over_texts_is_lower_and_held_out_tokens_are_predicted_alike(seed):
    """The seed decides the weights and the order of the texts."""
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)
    order = torch.randperm(60 * 32, generator=torch.Generator().manual_seed(seed))
    names = ("input_ids", "attention_mask")
    texts, held_out = (
        [torch.tensor(rows[split][:count][n]) for n in names] for split, count in (("train", 1920), ("validation", 200))
    )
    texts = [tensor[order] for tensor in texts]
    runs = [
        train_on_texts(models.build("llama", scale=SCALE, seed=seed), *texts, held_out, by_text)
        for by_text in (False, True)
    ]
    is_lower = (
        all(run["by text"][-1] < run["by token"][-1] for run in runs)
        and runs[1]["reported"][-1] < runs[0]["reported"][-1]
    )
    is_lower_in_training = all(run["training, by text"][-1] < run["training, by token"][-1] for run in runs)
    return is_lower_in_training and is_lower and abs(runs[0]["by token"][-1] - runs[1]["by token"][-1]) < 0.1


@claim("06-clip")
def clipping_hides_a_factor_of_four_under_sgd_and_worsens_adamw_later(seed):
    """Trainer's path from the right one, as a share of it, without clipping and with its default; the seed makes the weights.

    AdamW's is the worse after 12 updates where one of the right gradients was shorter than 1, and as good as none elsewhere.
    """
    off, shorter = {}, {}
    for kind, updates, norm in product(KINDS, (3, 12), (0.0, 1.0)):
        off[kind, updates, norm], shorter[kind, updates, norm] = _measure_error(seed, kind, updates, norm)
    sgd, adamw = KINDS
    hidden = all(off[sgd, updates, 1.0] < 0.2 < 2 < off[sgd, updates, 0.0] for updates in (3, 12))
    free, clipped = off[adamw, 12, 0.0], off[adamw, 12, 1.0]
    later = clipped > 2 * free if shorter[adamw, 12, 1.0] else clipped < 0.1 * free
    return hidden and off[adamw, 3, 1.0] < off[adamw, 3, 0.0] and later


@claim("06-noise")
def noise_falls_as_one_over_k_and_grows_with_training(seed):
    """The simple noise scale of the blocks' gradient, fresh and after 20 updates."""
    rows, labels = _load_rows()
    model = models.build("distilbert", labels=labels, seed=seed, scale=SCALE, **NO_DROPOUT)
    shuffled = data.batches(rows.select(range(256)), 4, seed=seed)
    before = _measure_noise(model, shuffled)
    others = data.batches(rows.select(range(256, 896)), 32, seed=seed)
    training.train(model, optim.AdamW(model.parameters(), lr=1e-3), others, progress=False)
    return 0.3 < before[1] / before[0] < 0.75 and _measure_noise(model, shuffled)[0] > before[0]


KINDS = torch.optim.SGD, torch.optim.AdamW
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}


def _load_rows() -> tuple:
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)["train"]
    return rows, functions["train"].features["label"].num_classes


def _measure_error(seed: int, kind: type, updates: int, norm: float) -> tuple[float, int]:
    """The error, and how many right gradients were shorter than 1."""
    rows, labels = _load_rows()
    batches, lengths = data.batches(rows.select(range(16 * updates)), 4), NotesNorms()
    ends = []
    for by_trainer in (False, True):
        model = models.build("distilbert", labels=labels, seed=seed, scale=SCALE, **NO_DROPOUT).double()
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        optimizer = kind(model.parameters(), lr=1e-3)
        if by_trainer:
            options = {"gradient_accumulation_steps": 4, "max_grad_norm": norm}
            training.train_with_trainer(model, optimizer, batches, **options)
        else:
            callbacks = [training.Accumulate(4), lengths, *([training.ClipGradients(norm)] if norm else [])]
            training.train(model, optimizer, batches, callbacks=callbacks, progress=False)
        ends.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach() - start)
    right, other = ends
    return relative_error(other, right), sum(length < 1 for length in lengths.norms)


def _measure_noise(model: torch.nn.Module, batches) -> list[float]:
    layers, gradients = list(model.distilbert.transformer.parameters()), []
    for batch in batches:
        by_parameter = torch.autograd.grad(model(**batch).loss, layers)
        gradients.append(torch.cat([gradient.flatten() for gradient in by_parameter]))
    return noise_by_groups(torch.stack(gradients), (1, 2))
