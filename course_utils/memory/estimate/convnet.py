"""The course's own ConvNet: convolution, batch normalization, ReLU, again and again."""

from course_utils.memory.estimate.convolution import Layout, convolution
from course_utils.memory.estimate.model import Named, PencilModel, Weights
from course_utils.memory.estimate.operations import (
    INDEX,
    batch_norm,
    cross_entropy,
    linear,
    mean,
    saves_output,
)
from course_utils.memory.estimate.tape import Tape, Tensor


class ConvNet(PencilModel):
    """`w1`, `w2`, … are the widths of the stages, `r1`, `r2`, … the sides of their pictures; the first stage reads `r0`."""

    @staticmethod
    def sizes_of(config, recipe):
        """See `PencilModel`."""
        sizes = {"b": recipe.batch, "c": config.num_labels, "w0": config.channels, "r0": config.image}
        for stage, width in enumerate(config.widths, 1):
            # a 3x3 window with a margin of one that moves by two
            sizes |= {f"w{stage}": width, f"r{stage}": (sizes[f"r{stage - 1}"] - 1) // 2 + 1}
        return sizes

    def _layers(self):
        """(name, stage, channels before, channels after) of every convolution."""
        for stage in range(1, len(self.config.widths) + 1):
            before, width = (getattr(self.sizes, f"w{number}") for number in (stage - 1, stage))
            for layer in range(self.config.depth):
                yield f"stages.{stage - 1}.{3 * layer}", stage, width if layer else before, width

    def _layouts(self) -> list[Layout]:
        """What every convolution reads, in numbers."""
        sizes, layouts = self.sizes_of(self.config, self.recipe), []
        for stage in range(1, len(self.config.widths) + 1):
            for layer in range(self.config.depth):
                channels, side = (sizes[f"{letter}{stage if layer else stage - 1}"] for letter in "wr")
                follows = bool(layouts) and layouts[-1].reads_one
                elements = self.recipe.batch * channels * side**2
                layouts.append(Layout(elements, self.recipe.batch, channels == 1, follows))
        return layouts

    def parameters(self):
        """See `PencilModel`."""
        named = []
        for name, stage, before, width in self._layers():
            part, norm = f"stage {stage}", _norm_of(name)
            named.append(Named(f"{name}.weight", part, (width, before, 3, 3)))
            named += [Named(f"{norm}.weight", part, (width,)), Named(f"{norm}.bias", part, (width,))]
        last = getattr(self.sizes, f"w{len(self.config.widths)}")
        shapes = {"weight": (self.sizes.c, last), "bias": (self.sizes.c,)}
        return [*named, *(Named(f"head.{leaf}", "output layer", shape) for leaf, shape in shapes.items())]

    def buffers(self):
        """See `PencilModel`."""
        named = []
        for name, stage, _, width in self._layers():
            part, norm = f"stage {stage}", _norm_of(name)
            named += [Named(f"{norm}.running_{kind}", part, (width,)) for kind in ("mean", "var")]
            named.append(Named(f"{norm}.num_batches_tracked", part, (), INDEX))
        return named

    def inputs(self):
        """See `PencilModel`."""
        n = self.sizes
        return [Named("pictures", "inputs", (n.b, n.w0, n.r0, n.r0)), Named("labels", "inputs", (n.b,), INDEX)]

    def loss(self, tape: Tape, weights: Weights) -> Tensor:
        """See `PencilModel`."""
        n = self.sizes
        x = tape.there((n.b, n.w0, n.r0, n.r0), self.recipe.itemsize)
        for (name, stage, _, width), layout in zip(self._layers(), self._layouts(), strict=True):
            tape.part, side = f"stage {stage}", getattr(n, f"r{stage}")
            x = convolution(tape, x, weights[f"{name}.weight"], (n.b, width, side, side), layout)
            x = batch_norm(tape, x, weights[f"{_norm_of(name)}.weight"], weights[f"{_norm_of(name)}.bias"])
            x = saves_output(tape, x, "activated")
        tape.part = "output layer"
        pooled = mean(tape, x, (n.b, x.shape[1]), "mean over positions")
        logits = linear(tape, pooled, weights["head.weight"], weights["head.bias"], features=n.c, name="logits")
        return cross_entropy(tape, logits)


def _norm_of(convolution_name: str) -> str:
    base, _, number = convolution_name.rpartition(".")
    return f"{base}.{int(number) + 1}"
