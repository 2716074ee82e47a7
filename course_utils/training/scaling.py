"""Loss scaling as a callback: what fp16 needs beside `Autocast`."""

from course_utils.precision import LossScaler
from course_utils.training.callbacks import Callback


class ScaleLoss(Callback):
    """Scale the loss, unscale the gradients before the update, leave it out where they overflowed (`precision.LossScaler`).

    It stands before callbacks that look at gradients, such as ClipGradients. With accumulation all micro-batches of an
    update have one scale, and an overflow in any of them leaves the update out.
    """

    rescales = True

    def __init__(self, scaler: LossScaler | None = None):
        self.scaler = LossScaler() if scaler is None else scaler

    def scale_loss(self, run, loss):
        """S times the loss."""
        return self.scaler.scale(loss)

    def before_update(self, run):
        """Divide the gradients by S."""
        self.scaler.unscale_(run.optimizer)

    def update(self, run, step):
        """Step where all gradients are finite, then adapt S; False where the step was left out."""
        made = False if self.scaler.overflowed(run.optimizer) else step()
        self.scaler.update()
        return made

    def state_dict(self):
        """The scaler's."""
        return self.scaler.state_dict()

    def load_state_dict(self, state):
        """Into the scaler."""
        self.scaler.load_state_dict(state)
