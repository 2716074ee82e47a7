"""A plain convolutional network: for the course what an image model is to memory, no more."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.errors import CourseError


@dataclass(frozen=True)
class ConvNetConfig:
    """Sizes of a `ConvNet`: `widths` are the channels of its stages, each with `depth` convolutions, the first of stride 2.

    `image` is the side of the square input in pixels, `channels` its colors. Raises `CourseError` for a size that is no whole
    number from 1 on.
    """

    widths: tuple[int, ...] = (32, 64, 128)
    depth: int = 2
    image: int = 32
    channels: int = 3
    num_labels: int = 10

    def __post_init__(self):
        sizes = {"depth": self.depth, "image": self.image, "channels": self.channels, "num_labels": self.num_labels}
        sizes |= {f"widths[{stage}]": width for stage, width in enumerate(self.widths)}
        wrong = [f"{name}={size}" for name, size in sizes.items() if type(size) is not int or size < 1]
        if wrong or not self.widths:
            raise CourseError(
                f"A ConvNet has stages, and sizes that are whole numbers from 1 on, not {', '.join(wrong) or 'widths=()'}."
            )


@dataclass
class Answer:
    """A model's output: the loss (if there are labels) and the logits, shape (batch, classes)."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class ConvNet(nn.Module):
    """Stages of convolution 3x3, batch normalization (Ioffe & Szegedy 2015) and ReLU; the mean over positions; a linear head.

    Pictures and weights lie in memory with the channels last, as the libraries that convolve (oneDNN, cuDNN) want them; in
    any other layout these make copies of whole activations, which neither PyTorch nor a meter sees.
    """

    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config = config
        inputs = (config.channels, *config.widths)
        stages = (_stage(before, width, config.depth) for before, width in zip(inputs, config.widths, strict=False))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(config.widths[-1], config.num_labels)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> Answer:
        """`pixel_values` (batch, channels, image, image) floats, `labels` (batch,) int64; the loss is cross-entropy."""
        pictures = pixel_values.contiguous(memory_format=torch.channels_last)
        logits = self.head(F.adaptive_avg_pool2d(self.stages(pictures), 1).flatten(1))
        return Answer(logits, None if labels is None else F.cross_entropy(logits, labels))


def _stage(before: int, width: int, depth: int) -> nn.Sequential:
    layers = []
    for index, inputs in enumerate((before, *[width] * (depth - 1))):
        convolution = nn.Conv2d(inputs, width, 3, stride=1 if index else 2, padding=1, bias=False)
        weight = convolution.weight.detach().contiguous(memory_format=torch.channels_last)
        convolution.weight = nn.Parameter(weight)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)
