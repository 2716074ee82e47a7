"""The progress bar of a run, in a notebook and in a terminal."""

import time

from course_utils.training.callbacks import Callback

_SECONDS_BETWEEN_LOOKS = 0.5  # drawing takes time, and reading the loss waits for a GPU


class Progress(Callback):
    """A bar over the batches of a run with the latest loss; it disappears when the run ends."""

    def on_train_begin(self, run):
        from tqdm.auto import tqdm

        self.bar = tqdm(
            total=run.total_steps, initial=run.step, unit="batch", leave=False, mininterval=_SECONDS_BETWEEN_LOOKS
        )
        self.shown = time.perf_counter()

    def after_step(self, run):
        if time.perf_counter() - self.shown > _SECONDS_BETWEEN_LOOKS:
            self.shown = time.perf_counter()
            self.bar.set_postfix_str(f"loss {run.history.steps[-1]['loss'].item():.3f}", refresh=False)
        self.bar.update()

    def on_train_end(self, run):
        self.bar.close()
