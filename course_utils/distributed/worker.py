"""The process of a rank, from its start to its end."""

import os
import pickle
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

import cloudpickle
import torch
import torch.distributed as dist

from course_utils.files import atomic_write
from course_utils.settings import set_variable

# For gloo, which would look up the host's name to find its interface, and many a laptop's name leads nowhere.
_LOOPBACKS = {"linux": "lo", "darwin": "lo0"}
LOOPBACK = {"GLOO_SOCKET_IFNAME": _LOOPBACKS[sys.platform]} if sys.platform in _LOOPBACKS else {}
_JOB_FILE, _MEETING_FILE = "job", "meeting"
_MAX_MESSAGE = 1000
_LIBRARY_FOLDERS = tuple(
    str(Path(folder).resolve())
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), Path(__file__).parents[1])
)


def write_job(folder: Path, work: Callable, arguments: tuple, seconds: float) -> Path:
    """Write the file that tells every rank what to do; raises pickle's own error for what cannot be copied."""
    job = folder / _JOB_FILE
    job.write_bytes(cloudpickle.dumps((work, arguments, seconds, torch.get_num_threads())))
    return job


def main(job: Path, rank: int, world_size: int, reader: Connection) -> None:
    """Run one rank: its result goes into a file; its error goes into another, and the exit code is 1.

    Once `reader` can be read, a third file says where the rank is; `reader` is all ranks' own, so nobody reads it.
    """
    threading.Thread(target=_watch, args=(reader, _path_of(job.parent, "whereabouts", rank)), daemon=True).start()
    try:
        work, arguments, seconds, threads = pickle.loads(job.read_bytes())
        torch.set_num_threads(max(1, threads // world_size))
        result = _run_in_group(work, arguments, job.parent, rank, world_size, seconds)
        _write(_path_of(job.parent, "result", rank), result)
    except BaseException as error:  # SystemExit too: the others must hear of it
        _write(_path_of(job.parent, "failure", rank), _describe_error(error))
        os._exit(1)


def read_result(folder: Path, rank: int):
    """The result of the rank's work."""
    return pickle.loads(_path_of(folder, "result", rank).read_bytes())


def read_report(folder: Path, rank: int) -> dict:
    """The rank's failure: `kind`, `text`, `place`, `trace`, and the `time` it came; raises `OSError` without one."""
    return pickle.loads(_path_of(folder, "failure", rank).read_bytes())


def read_whereabouts(folder: Path, rank: int) -> str:
    """The place in the work where the rank was when asked; raises `OSError` before it has answered."""
    return pickle.loads(_path_of(folder, "whereabouts", rank).read_bytes())


def _run_in_group(work: Callable, arguments: tuple, folder: Path, rank: int, world_size: int, seconds: float) -> object:
    for name, value in LOOPBACK.items():
        set_variable(name, value)
    limit = timedelta(seconds=2 * seconds)  # `launch` comes first, and can tell where every rank is
    store = _meet(folder / _MEETING_FILE, rank, limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    dist.barrier()  # else a rank that is done at once leaves while another still connects to it
    result = work(*arguments)
    if dist.is_initialized():  # work may have ended the group itself
        dist.destroy_process_group()  # not after a failure: the others would fail of it before this rank has told its own
    return result


def _meet(path: Path, rank: int, limit: timedelta) -> dist.Store:
    """The store where the ranks meet, at a port that the system gives the first rank, which writes it to a file.

    A free port found beforehand may be taken a moment later; torch's own file store needs locks, which a sandbox may not have.
    """
    if not rank:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False)
        with atomic_write(path) as draft:
            draft.write_text(str(store.port), encoding="utf-8")
        return store
    while not path.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(path.read_text("utf-8")), is_master=False, timeout=limit)


def _watch(reader: Connection, path: Path) -> None:
    """Say where this rank is, if asked; end when the process ends that started it, however that came."""
    parent = parent_process().sentinel
    if parent not in wait([parent, reader]):
        with suppress(OSError):  # the folder goes with the process that asked
            _write(path, _place_of(sys._current_frames()[threading.main_thread().ident]))
        wait([parent])
    os._exit(1)


def _place_of(frame: FrameType) -> str:
    """The line of the learner's code that is running, and the public function that it calls there."""
    callee = ""
    for caller, line in traceback.walk_stack(frame):
        code = caller.f_code
        if _is_own(code.co_filename):
            return f"{callee}at line {line} of {code.co_filename}"
        if not code.co_name.startswith(("_", "<", "wrapper")):
            callee = f"in {code.co_name} "
    return f"{callee}outside the work"


def _is_own(file: str) -> bool:
    return not (file.startswith("<frozen") or str(Path(file).resolve()).startswith(_LIBRARY_FOLDERS))


def _describe_error(error: BaseException) -> dict:
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own_places = [place for place in frames if _is_own(place[0])]
    return {
        "kind": type(error).__name__,
        "text": _shorten(error),
        "place": own_places[-1] if own_places else None,
        "trace": "".join(traceback.format_exception(error)),
        "time": time.time(),
    }


def _shorten(error: BaseException) -> str:
    """The error as one line of at most `_MAX_MESSAGE` characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an exception of the learner's own
        return "an error that cannot say what it is"
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} …"


def _write(path: Path, value: object) -> None:
    with atomic_write(path) as draft:
        draft.write_bytes(cloudpickle.dumps(value))


def _path_of(folder: Path, kind: str, rank: int) -> Path:
    """The file of a rank's "result", "failure" or "whereabouts"."""
    return folder / f"{kind}-{rank}"
