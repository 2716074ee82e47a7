"""Ending with the process that started this one."""

import os
import threading
import time
from multiprocessing import parent_process, spawn
from multiprocessing.connection import wait

from course_utils.settings import set_variable, variables

_LOOKS = 0.5  # seconds
_NAME = "COURSE_PARENT"


def end_with_parent() -> None:
    """End this process within a second after its parent, however that ends: else it would go on, and hold its ports.

    Processes that this one starts may call it too. They know by a variable who started them: their parent may have ended before
    they could ask.
    """
    parent = int(variables(_NAME).get(_NAME, os.getppid()))
    set_variable(_NAME, str(os.getpid()))

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def end_with_beginner() -> None:
    """The same in a process that `distributed.launch.start` began, whose parent may be the server that it is forked from."""
    set_variable(_NAME, str(os.getpid()))
    beginner = parent_process().sentinel

    def look() -> None:
        wait([beginner])
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def spawn_beside() -> None:
    """From now on a process that multiprocessing spawns here, for whichever library, ends with this one.

    It imports `beside` in place of the script that runs here.
    """
    prepare = spawn.get_preparation_data

    def prepared(name: str) -> dict:
        found = {key: value for key, value in prepare(name).items() if not key.startswith("init_main_from")}
        return {**found, "init_main_from_name": "course_utils.elastic.beside"}

    spawn.get_preparation_data = prepared
