"""The first thing a chapter does, through its set-up cell."""

import logging
import random
import sys
import warnings
from importlib import import_module

from course_utils.settings import LIVE_OUTPUT, set_variable, settings, variables

_QUIET = {
    "DATASETS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "KINETO_LOG_LEVEL": "99",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Variables that a library reads once: two of them when they are imported, torch's profiler at its first use."""
_READ_THEM = {"datasets", "transformers"}

_COLAB = """\
Colab deletes this machine's files. To keep your progress, run the two lines below in a new cell, then rerun this cell.
from google.colab import drive; drive.mount("/content/drive")
%env COURSE_HOME=/content/drive/MyDrive/efficient-training-course"""


def begin() -> None:
    """Make the run repeatable and quiet, and print what it runs on: `laptop scale on cpu, seed 0`.

    In Colab it also says how to keep what the machine would forget. Safe to call again: settings are read and seeds are set
    anew, and the lines are the same. Raises `CourseError` on settings that cannot be used here.
    """
    import numpy
    import torch
    from IPython.display import display

    settings.cache_clear()
    chosen = settings()
    line = f"{chosen.scale.name} scale on {chosen.device}, seed {chosen.seed}"
    random.seed(chosen.seed)
    numpy.random.seed(chosen.seed % 2**32)
    torch.manual_seed(chosen.seed)
    _quiet_the_libraries()
    from course_utils.desk.bets import has_kernel
    from course_utils.viz import use_course_style
    from course_utils.viz.controls import page_support

    use_course_style()
    print(line)
    if has_kernel():  # how figures and source look in a notebook, in the light and in the dark: nothing of it is stored
        display(page_support(), metadata=LIVE_OUTPUT, raw=True)
    if "google.colab" in sys.modules and not variables("COURSE_HOME"):
        print(_COLAB)


def _quiet_the_libraries() -> None:
    """Errors still show; progress bars and remarks about the libraries' own doings do not. Imports none of them.

    A warning says what it has to say: in a notebook the file that Python names before it is a temporary one of the kernel.
    """
    warnings.formatwarning = lambda message, category, *where, **more: f"{category.__name__}: {message}\n"
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for name, value in _QUIET.items():
        if not variables(name):
            set_variable(name, value)
    for library in _READ_THEM.intersection(sys.modules):
        log = import_module(f"{library}.utils.logging")
        log.set_verbosity_error()
        log.disable_progress_bar()
