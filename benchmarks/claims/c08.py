"""Chapter 08: its gradients, its runs and its quantized products with a seed of their own, at the scale that it is stored at."""

import copy
from functools import cache, partial

import torch

from benchmarks.claims import claim
from course_utils import data, models, optim, precision, training
from course_utils.lessons import c08_mixed_precision as lesson
from course_utils.precision import FORMATS, fp8
from course_utils.settings import SCALES

SCALE, FP16 = SCALES["laptop"], FORMATS["fp16"]
QUERY, HEAD = "distilbert.transformer.layer.0.attention.q_lin.weight", "classifier.weight"


def _batches(count: int, size: int, sequence: int, seed: int):
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), sequence)["train"]
    return data.batches(rows.select(range(count * size)), size, seed=seed)


def _model(seed: int):
    labels = data.load_functions()["train"].features["label"].num_classes
    return models.build("distilbert", labels=labels, scale=SCALE, seed=seed)


def _batch(seed: int) -> dict:
    return next(iter(_batches(10, SCALE.batch_size, SCALE.sequence, seed)))


def _short_batches(seed: int):
    return _batches(48, 16, SCALE.sequence // 2, seed)


@cache
def _train(seed: int):
    model = _model(seed)
    training.train(
        model, optim.AdamW(model.parameters(), lr=1e-3), _short_batches(seed), epochs=2, seed=seed, progress=False
    )
    return model


def _underflow_of(model, seed: int) -> list[float]:
    """The shares that vanish of the gradients of outputs, and of those of parameters."""
    batch = _batch(seed)
    by_element = lesson.gradients_of(model, lambda: model(**batch).loss)
    return [lesson.underflow_in(gradients, FP16).vanished for gradients in by_element]


def _last_third(history) -> float:
    return sum(history.losses[-16:]) / 16


@claim("08-outputs")
def most_gradients_of_outputs_vanish_and_hardly_any_of_parameters(seed):
    """The seed decides the weights, the batch and dropout."""
    outputs, parameters = _underflow_of(_model(seed), seed)
    return outputs > 0.5 and parameters < 0.02


@claim("08-window")
def fewer_vanish_in_a_model_that_has_learned(seed):
    """By at least a tenth of all."""
    return _underflow_of(_train(seed), seed)[0] < _underflow_of(_model(seed), seed)[0] - 0.1


@claim("08-lost")
def rounding_to_nearest_falls_behind_and_each_cure_brings_it_back(seed):
    """One run of each, from a model that has learned: what a cure leaves is a third of what is lost, or less."""
    loss = {}
    kinds = (precision.RoundToNearest, precision.StochasticRounding, precision.KahanSum, precision.MasterWeights)
    for name, kind in {"float32": kinds[0], **{kind.__name__: kind for kind in kinds}}.items():
        model = copy.deepcopy(_train(seed))
        model = model if name == "float32" else model.bfloat16()
        draws = {"seed": seed} if kind is precision.StochasticRounding else {}
        optimizer = kind(model.parameters(), partial(optim.AdamW, lr=3e-5), **draws)
        loss[name] = _last_third(training.train(model, optimizer, _short_batches(seed), seed=seed, progress=False))
    behind = {name: final_loss - loss["float32"] for name, final_loss in loss.items()}
    nearest = behind.pop("RoundToNearest")
    return nearest > 0.01 and all(abs(gap) < nearest / 3 for gap in behind.values())


@claim("08-no-scale")
def training_does_not_notice_at_first_and_then_learns_the_frequencies_alone(seed):
    """At S = 1 as with a dynamic scale; at 2⁻⁸ the first block's queries get nothing and the classifier its own gradient."""

    def loss(scaler):
        model = _model(seed)
        lesson.round_output_gradients(model)
        optimizer, callbacks = optim.AdamW(model.parameters(), lr=1e-3), [training.ScaleLoss(scaler)]
        run = {"callbacks": callbacks, "seed": seed, "progress": False}
        return _last_third(training.train(model, optimizer, _short_batches(seed), **run))

    fixed = partial(precision.LossScaler, growth_factor=1.0, backoff_factor=1.0)
    counts = torch.bincount(torch.cat([batch["labels"] for batch in _short_batches(seed)]))
    frequencies = torch.distributions.Categorical(counts / counts.sum()).entropy().item()
    off = lesson.error_by_rounding(_model(seed), _batch(seed), 2.0**-8)
    unnoticed = abs(loss(fixed(1.0)) - loss(precision.LossScaler())) < 0.03
    stopped = abs(loss(fixed(2.0**-8)) - frequencies) < 0.07 and off[QUERY] > 0.99 and off[HEAD] < 0.01
    return unnoticed and stopped and loss(fixed(2.0**-24)) > frequencies + 0.1


@claim("08-blocks")
def blocks_help_in_four_bits_and_one_scale_in_eight_has_more_precision_in_e4m3(seed):
    """Forward and backward products of the chapter's layer."""
    matrices, model = {}, _model(seed)

    def keep(module, inputs, output):
        matrices["x"], matrices["w"] = inputs[0].detach().flatten(0, -2), module.weight.detach().T
        output.register_hook(lambda g: matrices.update(g=g.flatten(0, -2)))

    next(m for n, m in model.named_modules() if n.endswith("ffn.lin1")).register_forward_hook(keep)
    model(**_batch(seed)).loss.backward()
    e4m3, e5m2, e2m1 = (FORMATS[name] for name in ("fp8 e4m3", "fp8 e5m2", "fp4 e2m1"))
    by_tensor, by_block = fp8.fake_quantize, fp8.fake_quantize_blocks
    eight, four = partial(by_tensor, fmt=e4m3), partial(by_tensor, fmt=e2m1)
    mx, nv = partial(by_block, fmt=e4m3, size=32), partial(by_block, fmt=e2m1, size=16, steps=e4m3)
    outcomes = []
    for a, b in ((matrices["x"], matrices["w"]), (matrices["g"].T, matrices["x"])):
        error = {
            quantize: lesson.relative_error(fp8.matmul(a, b, quantize), a @ b) for quantize in (eight, four, mx, nv)
        }
        hybrid = lesson.relative_error(fp8.matmul(a, b, partial(by_tensor, fmt=e5m2), eight), a @ b)
        outcomes += [error[nv] < 0.85 * error[four], abs(error[mx] / error[eight] - 1) < 0.15, error[eight] < hybrid]
    return all(outcomes)
