"""Limits on one question: those that a process sets for itself, and those enforced by the one that watches it."""

import contextlib
import ctypes
import errno
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

BOX = "/box"
"""The sandbox's working directory."""
FOLDERS = BOX, "/dev/shm"
"""All that can be written to in it."""


class Limits(NamedTuple):
    """What one question may use."""

    process_bytes: int = 3 * 2**30  # of memory; all processes together may have twice that
    file_bytes: int = 64 * 2**20
    folder_bytes: int = 256 * 2**20  # of all files in a folder
    files: int = 20_000  # in a folder, since each takes memory that no size counts
    processes: int = 64  # at once
    seconds_ahead: float = 10.0  # of processor time of all together, beyond one busy core, which is a question's share


LIMITS = Limits()
"""Those of every question."""

_PARENT_DEATH, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 22, 36, 38  # PR_SET_…, sys/prctl.h
# AUDIT_ARCH_… (linux/audit.h) and the numbers of memfd_create, memfd_secret, shmget, semget, msgget (asm/unistd.h).
_UNCOUNTED = {"x86_64": (0xC000003E, (319, 447, 29, 64, 68)), "aarch64": (0xC00000B7, (279, 447, 194, 190, 186))}
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
_OTHER_NUMBERS = 0x40000000  # from here on, the same calls of programs with 32-bit pointers (__X32_SYSCALL_BIT)
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_…, linux/seccomp.h
_KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number, asm/unistd.h
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # seconds, in proc_pid_stat(5)

TOO_MANY_PROCESSES, TOO_MUCH_MEMORY, TOO_MUCH_TIME, TOO_MANY_FILES = 81, 82, 83, 84
"""Codes of a question that was ended."""
REASONS = {
    TOO_MANY_PROCESSES: "it started too many processes",
    TOO_MUCH_MEMORY: "it used too much memory",
    TOO_MUCH_TIME: "its processes together used more processor time than one core has",
    TOO_MANY_FILES: "it created too many files",
}


def limit_process(limits: Limits) -> None:
    """Limit the bytes of memory and of a file that this process and its children may use, and their number; forbid core files."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limits
        return
    bounds = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file_bytes, "RLIMIT_NOFILE": 1024}
    if sys.platform == "linux":
        bounds |= {"RLIMIT_DATA": limits.process_bytes}
    if in_own_user_namespace():
        bounds |= {"RLIMIT_NPROC": limits.processes * 4}  # of threads too; the watching process counts exactly
    for name, bound in bounds.items():
        kind = getattr(resource, name)
        maximum = resource.getrlimit(kind)[1]
        with contextlib.suppress(ValueError, OSError):
            allowed = bound if maximum == resource.RLIM_INFINITY else min(bound, maximum)
            resource.setrlimit(kind, (allowed, allowed))


def in_own_user_namespace() -> bool:
    """Whether this process lives in a user namespace that is not the system's first."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def end_with_parent() -> None:
    """Have this process killed when its parent ends, for whatever reason."""
    _prctl(_PARENT_DEATH, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none of them is lost."""
    _prctl(_SUBREAPER, 1)


def keep_no_keys() -> None:
    """Replace the session keyring, which holds the grader's keys, by an empty one."""
    if number := _KEYCTL.get(os.uname().machine):
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def die_first() -> None:
    """Have the system end this process and its children before any other where memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def refuse_uncounted_memory() -> None:
    """Make system calls fail with EPERM that allocate memory which counts for no process. This holds for this process and its
    descendants and cannot be undone; nothing is done on a machine whose calls' numbers are not known (`seccomp(2)`).
    """
    if (machine := os.uname().machine) not in _UNCOUNTED:
        return
    architecture, numbers = _UNCOUNTED[machine]
    refuse = struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | errno.EPERM)
    # A program made for another architecture has other numbers.
    rows = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), refuse, (_LOAD, 0, 0, 0)]
    rows += [(_AT_LEAST, 0, 1, _OTHER_NUMBERS), refuse]
    for number in numbers:
        rows += [(_EQUAL, 0, 1, number), refuse]
    rows.append((_RETURN, 0, 0, _ALLOW))
    program = b"".join(row if isinstance(row, bytes) else struct.pack("HBBI", *row) for row in rows)
    code = ctypes.create_string_buffer(program)
    _prctl(_NO_NEW_PRIVS, 1)
    _prctl(_SECCOMP, 2, ctypes.c_char_p(struct.pack("HP", len(rows), ctypes.addressof(code))))


def _prctl(option: int, value: int, argument: ctypes.c_ulong | ctypes.c_char_p = ctypes.c_ulong(0)) -> None:  # noqa: B008 - a number
    """`prctl(2)`, where there is one; raises `OSError`."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        if libc.prctl(option, ctypes.c_ulong(value), argument, zero, zero):
            raise OSError(ctypes.get_errno(), "prctl")


class Family:
    """All descendants of process `root`, and the processor time that they took, including those that have ended.

    Only they write to `folders`, each of which is a file system of its own.
    """

    def __init__(self, root: int, folders: Iterable[str] = ()):
        self.root = root
        self.folders = tuple(folders)
        self._start = time.monotonic()
        self._seconds_by_process: dict[tuple[int, float], float] = {}

    def excess(self, limits: Limits) -> int:
        """0, or the exit code of the limit that they exceed together."""
        if any(system.f_files - system.f_ffree > limits.files for system in map(os.statvfs, self.folders)):
            return TOO_MANY_FILES
        family = descendants(self.root)
        self._seconds_by_process |= {(process.number, process.start): process.seconds for process in family}
        if len(family) > limits.processes:
            return TOO_MANY_PROCESSES
        if sum(self._seconds_by_process.values()) > time.monotonic() - self._start + limits.seconds_ahead:
            return TOO_MUCH_TIME
        own_bytes = sum(_own_bytes(process.number) for process in family)
        return TOO_MUCH_MEMORY if own_bytes > 2 * limits.process_bytes else 0


class Process(NamedTuple):
    """A process: its number and its parent's, the `uptime` at its start, and the seconds of processor time that it took."""

    number: int
    parent: int
    start: float
    seconds: float


def uptime() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def seconds_computed(root: int, since: float) -> float:
    """Seconds of processor time that process `root` and its descendants have taken, of those that began after `since`."""
    family = [*filter(None, [_process(Path(f"/proc/{root}"))]), *descendants(root)]
    return sum(process.seconds for process in family if process.start > since - _TICK)


def descendants(root: int) -> list[Process]:
    """The children of process `root`, theirs, and so on."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _process(entry)):
            children.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    stack = [root]
    while stack:
        offspring = children.get(stack.pop(), [])
        below += offspring
        stack += [process.number for process in offspring]
    return below


def _process(entry: Path) -> Process | None:
    """What `proc_pid_stat(5)` says of it."""
    try:
        fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        user, system, start = (int(fields[i]) * _TICK for i in (11, 12, 19))
        return Process(int(entry.name), int(fields[1]), start, user + system)
    except (OSError, IndexError, ValueError):  # it has ended meanwhile
        return None


def _own_bytes(process: int) -> int:
    """Resident bytes that lie in no file: the process's own, and those that it shares with others (`proc_pid_status(5)`)."""
    try:
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
    except OSError:
        return 0
    return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)))


def kill_descendants() -> None:
    """End everything below this process, which has adopted its orphans, until nothing is left, and reap what was ended."""
    while family := descendants(os.getpid()):
        for process in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
