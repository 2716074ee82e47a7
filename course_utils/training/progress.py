"""The progress bar of a run, in a notebook and in a terminal."""

import time
from typing import TYPE_CHECKING

from course_utils.settings import LIVE_OUTPUT
from course_utils.training.callbacks import Callback

if TYPE_CHECKING:
    from course_utils.training.loop import Run

_SECONDS_BETWEEN_LOOKS = 0.5  # drawing takes time, and reading the loss waits for a GPU


class Progress(Callback):
    """A bar over the batches of a run with the latest loss; it disappears when the run ends."""

    def on_train_begin(self, run: "Run") -> None:
        from tqdm.auto import tqdm
        from tqdm.notebook import tqdm as in_notebook

        options = {"unit": "batch", "leave": False, "mininterval": _SECONDS_BETWEEN_LOOKS}
        self.handle = None
        is_widget = issubclass(tqdm, in_notebook)
        self.bar = tqdm(total=run.total_steps, initial=run.step, **options, **({"display": False} if is_widget else {}))
        if is_widget:
            from IPython.display import display

            self.handle = display(self.bar.container, display_id=True, metadata=LIVE_OUTPUT)
        self.shown_at = time.perf_counter()

    def after_batch(self, run: "Run") -> None:
        if time.perf_counter() - self.shown_at > _SECONDS_BETWEEN_LOOKS:
            self.shown_at = time.perf_counter()
            self.bar.set_postfix_str(f"loss {run.history.steps[-1]['loss'].item():.3f}", refresh=False)
        self.bar.update()

    def on_train_end(self, run: "Run") -> None:
        self.bar.close()
        if self.handle is not None:  # a saved notebook would look for the bar, and say that it is not found
            self.handle.update({"text/plain": ""}, metadata=LIVE_OUTPUT, raw=True)
