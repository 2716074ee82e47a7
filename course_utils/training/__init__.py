"""One training loop, techniques as callbacks to it, and the same run through Accelerate and through Trainer."""

from course_utils import import_when_used
from course_utils.training.accumulation import Accumulate, accumulated_step, num_loss_tokens, num_updates
from course_utils.training.callbacks import Autocast, Callback, ClipGradients
from course_utils.training.checkpoint import SaveCheckpoints
from course_utils.training.evaluation import evaluate
from course_utils.training.history import History
from course_utils.training.in_backward import UpdateInBackward
from course_utils.training.loop import Run, train, train_step
from course_utils.training.profile import Profile, throughput
from course_utils.training.scaling import ScaleLoss
from course_utils.training.schedules import linear_decay
from course_utils.training.updates import model_with_gradients, seconds_of_update, update

# Imported when first used: they load Accelerate and Transformers' Trainer.
_LATER = {"with_accelerate": ("train_with_accelerate",), "with_trainer": ("train_with_trainer",)}

__all__ = [
    "Accumulate",
    "Autocast",
    "ClipGradients",
    "History",
    "Callback",
    "Profile",
    "Run",
    "SaveCheckpoints",
    "ScaleLoss",
    "UpdateInBackward",
    "accumulated_step",
    "evaluate",
    "linear_decay",
    "model_with_gradients",
    "num_loss_tokens",
    "num_updates",
    "seconds_of_update",
    "throughput",
    "train",
    "train_step",
    "train_with_accelerate",
    "train_with_trainer",
    "update",
]

__getattr__, __dir__, _ = import_when_used(__name__, _LATER)
