"""One training step on paper: micro-batches forward and back, clipping, update; who keeps what, and for how long."""

from math import prod

from course_utils.memory.estimate.log import Log, Piece
from course_utils.memory.estimate.model import Named, PencilModel, Weights
from course_utils.memory.estimate.shards import Shards
from course_utils.memory.estimate.tape import Parameter, Tape
from course_utils.memory.optimizers import COSTS
from course_utils.memory.recipe import Recipe


def walk(model: PencilModel, numeric: PencilModel, recipe: Recipe, log: Log) -> None:
    """The second of two steps, booked in `log`; `model` has sizes or symbols, `numeric` always the sizes."""
    log.mark("forward")
    weights = _parameters(model, recipe, log)
    there = [_there(log, "buffers", recipe, model.buffers()), *_inputs(model, recipe, log)]
    there += _state(model, numeric, recipe, log)
    gathered = _gathered(model, numeric.largest_unit(), recipe, log)
    for _ in range(min(recipe.accumulation, 2)):  # from the second micro-batch on they are all alike
        _forward_and_backward(model, weights, recipe, log)
    del gathered
    log.mark("end of backward")
    if recipe.clipping:
        _clip(list(weights.values()), log)
    if not recipe.offload:
        _update(model, numeric, recipe, log)
    log.mark("end")


def _parameters(model: PencilModel, recipe: Recipe, log: Log) -> Weights:
    shards, weights = Shards.of(recipe), {}
    for named in model.parameters():
        size = shards.of_parameters(prod(named.shape) * recipe.itemsize)
        piece = log.new(size, "parameters", named.name, named.part)
        weights[named.name] = Parameter(named.shape, recipe.itemsize, piece, named.name, named.part)
    return weights


def _there(log: Log, kind: str, recipe: Recipe, tensors: list[Named]) -> list[Piece]:
    return [log.new(_size(named, recipe), kind, named.name, named.part) for named in tensors]


def _inputs(model: PencilModel, recipe: Recipe, log: Log) -> list[Piece]:
    return [
        log.new(recipe.accumulation * _size(named, recipe), "inputs", named.name, named.part)
        for named in model.inputs()
    ]


def _state(model: PencilModel, numeric: PencilModel, recipe: Recipe, log: Log) -> list[Piece]:
    """On the device, unless it is kept on the host."""
    if recipe.offload:
        return []
    cost, shards, source = COSTS[recipe.optimizer], Shards.of(recipe), _for_the_optimizer(model, numeric, recipe)
    pieces = []
    for named in source.parameters():
        size = shards.of_state(cost.state_bytes(named.shape, recipe.itemsize))
        pieces.append(log.new(size, "optimizer state", f"state of {named.name}", named.part))
    shapes = [named.shape for named in numeric.parameters()]
    return [*pieces, log.new(cost.shared_bytes(shapes, recipe.itemsize), "optimizer state", "code books", "code books")]


def _gathered(model: PencilModel, part: str, recipe: Recipe, log: Log) -> Piece:
    unit = sum(_size(named, recipe) for named in model.parameters() if named.part == part)
    return log.new(Shards.of(recipe).gathered(unit), "temporaries", "gathered parameters", "the gathered unit")


def _forward_and_backward(model: PencilModel, weights: Weights, recipe: Recipe, log: Log) -> None:
    log.mark("forward")
    kept = Shards.of(recipe).of_gradients
    tape = Tape(log, recipe.device, recipe.precision == "autocast", kept, recipe.saved_on_disk)
    loss = model.loss(tape, weights)
    tape.end_forward()
    tape.backward(loss)


def _clip(weights: list[Parameter], log: Log) -> None:
    """The norm of every gradient, the norms side by side, their norm; the gradients are scaled in place."""
    log.mark("clipping")
    norms = [log.new(weight.itemsize, "temporaries", "norm of a gradient", "clipping") for weight in weights]
    together = log.new(len(norms) * weights[0].itemsize, "temporaries", "norms, side by side", "clipping")
    del norms, together


def _update(model: PencilModel, numeric: PencilModel, recipe: Recipe, log: Log) -> None:
    log.mark("update")
    source, shards = _for_the_optimizer(model, numeric, recipe), Shards.of(recipe)
    shapes = [named.shape for named in source.parameters()]
    new = lambda size: log.new(shards.of_state(size), "temporaries", "of the update", "the update")  # noqa: E731
    cost = COSTS[recipe.optimizer]
    if recipe.device == "cpu" or not cost.opaque:  # on CUDA the opaque updates are kernels that need no memory
        cost.update(shapes, recipe.itemsize, new)


def _for_the_optimizer(model: PencilModel, numeric: PencilModel, recipe: Recipe) -> PencilModel:
    return model if COSTS[recipe.optimizer].in_symbols else numeric


def _size(named: Named, recipe: Recipe):
    return prod(named.shape) * (named.itemsize or recipe.itemsize)
