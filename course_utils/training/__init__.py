"""One training loop, techniques as callbacks to it, and the same run through Accelerate and through Trainer."""

from course_utils import import_when_used

_HOMES = {
    "accumulation": ("Accumulate", "accumulated_step", "num_loss_tokens", "num_updates"),
    "callbacks": ("Autocast", "Callback", "ClipGradients"),
    "checkpoint": ("SaveCheckpoints",),
    "evaluation": ("evaluate",),
    "history": ("History",),
    "in_backward": ("UpdateInBackward",),
    "loop": ("Run", "train", "train_step"),
    "profile": ("Profile", "throughput"),
    "scaling": ("ScaleLoss",),
    "schedules": ("linear_decay",),
    "updates": ("model_with_gradients", "seconds_of_update", "update"),
    "with_accelerate": ("train_with_accelerate",),
    "with_trainer": ("train_with_trainer",),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
