"""`course train`: a training run as a script, alone, under torchrun or under Accelerate, with checkpoints that outlive it."""

from course_utils.script.job import PRECISIONS, SAVING, STRATEGIES, Job
from course_utils.script.loggers import CsvLogger, Logger, TensorBoardLogger
from course_utils.script.run import Result, train

__all__ = [
    "PRECISIONS",
    "SAVING",
    "STRATEGIES",
    "CsvLogger",
    "Job",
    "Logger",
    "Result",
    "TensorBoardLogger",
    "train",
]
