"""The first thing a chapter does, through its set-up cell."""

import logging
import random
import sys

from course_utils.settings import set_variable, settings, variables

_COLAB = """\
Colab forgets this machine's files. To keep your progress, run the two lines below in a cell of their own, then this cell again.
from google.colab import drive; drive.mount("/content/drive")
%env COURSE_HOME=/content/drive/MyDrive/efficient-training-course"""


def begin() -> None:
    """Make the run repeatable and quiet, and print what it runs on: `laptop scale on cpu, seed 0`.

    In Colab it also says how to keep what the machine would forget. Safe to call again: settings are read and seeds are set
    anew, and the lines are the same. Raises `CourseError` on settings that cannot be used here.
    """
    settings.cache_clear()
    chosen = settings()
    line = f"{chosen.scale.name} scale on {chosen.device}, seed {chosen.seed}"
    _seed_everything(chosen.seed)
    _quiet_the_libraries()
    from course_utils.viz import use_course_style

    use_course_style()
    print(line)
    if "google.colab" in sys.modules and not variables("COURSE_HOME"):
        print(_COLAB)


def _seed_everything(seed: int) -> None:
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _quiet_the_libraries() -> None:
    """Errors still show; progress bars and remarks about the libraries' own doings do not."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not variables("KINETO_LOG_LEVEL"):
        set_variable("KINETO_LOG_LEVEL", "99")  # read once, when anything is profiled for the first time
    import datasets
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
