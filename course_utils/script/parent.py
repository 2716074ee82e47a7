"""Ending with the process that started this one."""

import os
import threading
import time
from multiprocessing import parent_process
from multiprocessing.connection import wait

from course_utils.settings import set_variable, variables

_SECONDS_BETWEEN_LOOKS = 0.5
_PARENT_VARIABLE = "COURSE_PARENT"


def end_with_parent() -> None:
    """End this process within a second after its parent, however that ends: else it would go on, and hold its ports.

    An agent that `end_with_starter` watches names itself in a variable: it may have ended before its rank looks for its parent.
    """
    parent = int(variables(_PARENT_VARIABLE).get(_PARENT_VARIABLE, os.getppid()))

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def end_with_starter() -> None:
    """End this process after the one that started it by `launch.start`; its parent may be the server that forked it."""
    set_variable(_PARENT_VARIABLE, str(os.getpid()))
    starter = parent_process().sentinel

    def look() -> None:
        wait([starter])
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()
