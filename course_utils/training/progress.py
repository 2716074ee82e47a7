"""The progress bar of a run, in a notebook and in a terminal."""

import time

from course_utils.training.plugins import Plugin

_SECONDS_BETWEEN_LOSSES = 0.5  # reading the loss waits for a GPU, so it is read rarely


class Progress(Plugin):
    """A bar over the batches of a run with the latest loss; it disappears when the run ends."""

    def start(self, run):
        """Open the bar where the run stands."""
        from tqdm.auto import tqdm

        self.bar = tqdm(total=run.total_steps, initial=run.step, unit="batch", leave=False)
        self.shown = time.perf_counter()

    def after_step(self, run):
        """Advance by one batch."""
        self.bar.update()
        if time.perf_counter() - self.shown > _SECONDS_BETWEEN_LOSSES:
            self.shown = time.perf_counter()
            self.bar.set_postfix_str(f"loss {run.history.steps[-1]['loss'].item():.3f}")

    def finish(self, run):
        """Close the bar."""
        self.bar.close()
