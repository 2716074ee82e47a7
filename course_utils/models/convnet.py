"""A plain convolutional network: for the course what an image model is to memory, no more."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ConvNetConfig:
    """Sizes of a `ConvNet`: `widths` are the channels of its stages, each with `depth` convolutions and then half the side.

    `image` is the side of the square input in pixels, `channels` its colors.
    """

    widths: tuple[int, ...] = (32, 64, 128)
    depth: int = 2
    image: int = 32
    channels: int = 3
    num_labels: int = 10


@dataclass
class Answer:
    """What a model answers: the loss (where labels were given) and the logits, shape (batch, classes)."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class ConvNet(nn.Module):
    """Stages of convolution 3x3, batch normalization (Ioffe & Szegedy 2015) and ReLU; the mean over positions; a linear head."""

    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config = config
        inputs = (config.channels, *config.widths)
        stages = (_stage(before, width, config.depth) for before, width in zip(inputs, config.widths, strict=False))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(config.widths[-1], config.num_labels)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> Answer:
        """`pixel_values` (batch, channels, image, image) floats, `labels` (batch,) int64; the loss is cross-entropy."""
        logits = self.head(self.stages(pixel_values).mean(dim=(2, 3)))
        return Answer(logits, None if labels is None else F.cross_entropy(logits, labels))


def _stage(before: int, width: int, depth: int) -> nn.Sequential:
    layers = []
    for inputs in (before, *[width] * (depth - 1)):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2))
