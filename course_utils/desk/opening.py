"""What each chapter's set-up cell does."""

import logging
import random
import sys
import warnings
from importlib import import_module

from course_utils.settings import LIVE_OUTPUT, set_variable, settings, variables

# Variables that a library reads once, when it is imported or (torch's profiler) at its first use.
_QUIET = {
    "DATASETS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "KINETO_LOG_LEVEL": "99",
    "TRANSFORMERS_VERBOSITY": "error",
}
_LOGGING_LIBRARIES = {"datasets", "transformers"}

_COLAB = """\
Colab deletes this machine's files. To keep your progress, run the two lines below in a new cell, then rerun this cell.
from google.colab import drive; drive.mount("/content/drive")
%env COURSE_HOME=/content/drive/MyDrive/efficient-training-course"""


def begin() -> None:
    """Make the run repeatable and quiet, and print what it runs on: `laptop scale on cpu, seed 0`.

    In Colab it also says how to keep one's progress. A second call reads the settings and sets the seeds again. Raises
    `CourseError` on settings that cannot be used here.
    """
    import numpy
    import torch
    from IPython.display import display

    settings.cache_clear()
    run_settings = settings()
    line = f"{run_settings.scale.name} scale on {run_settings.device}, seed {run_settings.seed}"
    random.seed(run_settings.seed)
    numpy.random.seed(run_settings.seed % 2**32)
    torch.manual_seed(run_settings.seed)
    _quiet_the_libraries()
    from course_utils.desk.bets import has_kernel
    from course_utils.viz import use_course_style
    from course_utils.viz.controls import page_support

    use_course_style()
    print(line)
    if has_kernel():  # styles for figures and source in a light or dark notebook, which are not stored
        display(page_support(), metadata=LIVE_OUTPUT, raw=True)
    if "google.colab" in sys.modules and not variables("COURSE_HOME"):
        print(_COLAB)


def _quiet_the_libraries() -> None:
    """Hide the libraries' progress bars, remarks and the files of warnings, but not errors, without importing any of them."""
    warnings.formatwarning = lambda message, category, *location, **options: f"{category.__name__}: {message}\n"
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for name, value in _QUIET.items():
        if not variables(name):
            set_variable(name, value)
    for library in _LOGGING_LIBRARIES.intersection(sys.modules):
        log = import_module(f"{library}.utils.logging")
        log.set_verbosity_error()
        log.disable_progress_bar()
