"""`course train`: a training run as a script, alone, under torchrun or under Accelerate, with checkpoints that outlive it."""

from course_utils import import_when_used

_HOMES = {
    "job": ("LOGS", "PRECISIONS", "STRATEGIES", "Job"),
    "loggers": ("CsvLogger", "Logger", "TensorBoardLogger"),
    "loop": ("JobResult", "train"),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
