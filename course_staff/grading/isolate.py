"""What a process of the grader does to itself before it runs a stranger's code: limits, and namespaces of its own (Linux).

`limit` bounds one process. Namespaces give a question its own process numbers, its own empty folders, a network without a way
out and its own view of `/proc`, so that nothing of it outlives it and it sees nobody else; this needs `unshare(2)` and
`setns(2)`, within `bwrap` or without.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

BOX, STAGE = "/box", "/stage"
"""Folders that the sandbox holds ready: the working directory of a question, and a place to prepare its `/proc`."""

LIMITS = {"memory": 3 * 2**30, "file": 64 * 2**20, "folder": 256 * 2**20, "processes": 64, "ahead": 10.0}
"""Bytes of memory (of each process, and twice that of all together), of a file, of all files; processes at once; seconds of
processor time by which all together may be ahead of one busy core, which is a question's share."""

_USER, _PIDS, _MOUNTS = 0x10000000, 0x20000000, 0x00020000  # CLONE_NEW…, sched.h
_IPC, _NETWORK = 0x08000000, 0x40000000
_NOSUID_NODEV, _BIND, _MOVE, _PRIVATE = 0x6, 0x1000, 0x2000, 0x40000 | 0x4000  # MS_…, sys/mount.h
_DUMPABLE, _PARENT_DEATH, _SUBREAPER = 4, 1, 36  # PR_SET_…, sys/prctl.h
_CAPABILITIES_V3 = 0x20080522  # linux/capability.h
_KEYCTL = {"x86_64": 250, "aarch64": 219}  # its number, asm/unistd.h
_JOIN_SESSION_KEYRING = 1  # linux/keyctl.h
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP, linux/if.h
_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # seconds, in proc_pid_stat(5)
_FILES = 20_000  # in each folder; their names and owners take memory that no size counts

TOO_MANY_PROCESSES, TOO_MUCH_MEMORY, TOO_MUCH_TIME = 81, 82, 83
"""Codes of a question that was ended."""
WHY = {
    TOO_MANY_PROCESSES: "it started more processes than it may",
    TOO_MUCH_MEMORY: "it took more memory than it may",
    TOO_MUCH_TIME: "its processes together took more processor time than one core has",
}


def limit(memory: int, file: int, processes: int, **_) -> None:
    """Bound this process and its children: bytes of memory, of a file, and how many there are; no core files."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limits
        return
    bounds = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": file, "RLIMIT_NOFILE": 1024}
    if sys.platform == "linux":
        bounds |= {"RLIMIT_DATA": memory}
    if in_own_user_namespace():
        bounds |= {"RLIMIT_NPROC": processes * 4}  # of threads too; whoever watches counts processes exactly
    for name, bound in bounds.items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        with contextlib.suppress(ValueError, OSError):
            least = bound if most == resource.RLIM_INFINITY else min(bound, most)
            resource.setrlimit(kind, (least, least))


def in_own_user_namespace() -> bool:
    """Whether this process lives in a user namespace that is not the system's first."""
    try:
        return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def hide_memory(hidden: bool = True) -> None:
    """Keep other processes of the same user from reading or tracing this one; `False` undoes it for a child."""
    prctl(_DUMPABLE, 0 if hidden else 1)


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however that comes."""
    prctl(_PARENT_DEATH, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none of them is lost."""
    prctl(_SUBREAPER, 1)


def keep_no_keys() -> None:
    """A session keyring of its own: the one of whoever grades holds their keys, and would carry notes between questions."""
    if number := _KEYCTL.get(os.uname().machine):
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def die_first() -> None:
    """Where memory runs out, the system ends this process and its children before any other."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def become_first() -> None:
    """The first process of new user and process namespaces goes on from here, and may `fork_first`; the one that calls this waits
    for it, and ends as it does. Raises `OSError`."""
    _own_users(_PIDS)
    first = os.fork()
    if first:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) % 256)
    end_with_parent()


def _own_users(more: int) -> None:
    """A new user namespace, and new ones of the kinds `more` that belong to it."""
    user, group = os.getuid(), os.getgid()
    hide_memory(False)  # what is hidden may not write its own maps
    _call("unshare", _USER | more)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def fork_first() -> int:
    """`os.fork` after `become_first`: the child is the first process of a namespace again, and all in it end with it."""
    home, first = os.open("/proc/self/ns/pid", os.O_RDONLY), -1
    _call("unshare", _PIDS)
    try:
        first = os.fork()
    finally:
        if first:
            _call("setns", home, _PIDS)
        os.close(home)
    return first


def _start_loopback() -> None:
    """Ranks talk over it; one of the question's own, because a port in use is a note to whoever comes next."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))


def furnish(folder: int) -> None:
    """For a process that `fork_first` began: users, folders of at most `folder` bytes, a `/proc` and a network of its own, and no
    rights left."""
    _own_users(_MOUNTS | _IPC | _NETWORK)
    _start_loopback()
    _call("mount", None, b"/", None, _PRIVATE, None)
    for place in (BOX, "/dev/shm"):
        _tmpfs(place, folder)
    _own_proc()
    give_up_capabilities()
    os.chdir(BOX)


def _own_proc() -> None:
    """A fresh /proc may not be mounted below the sandbox's; this one shows the process itself and the machine's figures."""
    _tmpfs(STAGE, 2**20)
    os.mkdir(f"{STAGE}/1")
    os.symlink("1", f"{STAGE}/self")
    _call("mount", b"/proc/self", f"{STAGE}/1".encode(), None, _BIND | 0x4000, None)
    for name in ("meminfo", "cpuinfo", "stat"):
        Path(STAGE, name).touch()
        _call("mount", f"/proc/{name}".encode(), f"{STAGE}/{name}".encode(), None, _BIND, None)
    _call("mount", STAGE.encode(), b"/proc", None, _MOVE, None)


def give_up_capabilities() -> None:
    """Keep none of the rights that root, or whoever made a namespace, has in it; for what runs here later too."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def _tmpfs(place: str, size: int) -> None:
    _call("mount", b"tmpfs", place.encode(), b"tmpfs", _NOSUID_NODEV, f"size={size},nr_inodes={_FILES}".encode())


def prctl(option: int, value: int, more=None) -> None:
    """`prctl(2)`, where there is one; raises `OSError`."""
    if sys.platform == "linux":
        _call("prctl", option, ctypes.c_ulong(value), more or ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _call(name: str, *arguments) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


class Family:
    """All descendants of process `root`, and the processor time that they took, those that have ended included."""

    def __init__(self, root: int):
        self.root, self._start, self._took = root, time.monotonic(), {}

    def excess(self, memory: int, processes: int, ahead: float, **_) -> int:
        """0, or the exit code for what they together have too much of."""
        family = descendants(self.root)
        self._took |= {(each.number, each.began): each.took for each in family}
        if len(family) > processes:
            return TOO_MANY_PROCESSES
        if sum(self._took.values()) > time.monotonic() - self._start + ahead:
            return TOO_MUCH_TIME
        return TOO_MUCH_MEMORY if sum(_own_bytes(each.number) for each in family) > 2 * memory else 0


class Process(NamedTuple):
    """A process: its number and its parent's, when it began as `now` gives it, and the seconds of processor time that it took."""

    number: int
    parent: int
    began: float
    took: float


def own_number() -> int:
    """This process's number in `/proc`, which within namespaces of its own is another than `os.getpid()`."""
    return int(os.readlink("/proc/self"))


def now() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def computed(root: int, since: float) -> float:
    """Seconds of processor time that process `root` and its descendants have taken, those of them that began after `since`."""
    family = [*filter(None, [_process(Path(f"/proc/{root}"))]), *descendants(root)]
    return sum(each.took for each in family if each.began > since - _TICK)


def descendants(root: int) -> list[Process]:
    """The children of process `root`, theirs, and so on."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _process(entry)):
            children.setdefault(process.parent, []).append(process)
    below, pending = [], [root]
    while pending:
        own = children.get(pending.pop(), [])
        below += own
        pending += [each.number for each in own]
    return below


def _process(entry: Path) -> Process | None:
    """What `proc_pid_stat(5)` says of it."""
    try:
        words = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        user, system, began = (int(words[i]) * _TICK for i in (11, 12, 19))
        return Process(int(entry.name), int(words[1]), began, user + system)
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
    """End everything below this process, which has adopted its orphans, until nothing is left; what was ended is reaped."""
    while family := descendants(os.getpid()):
        for each in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each.number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _try() -> int:
    """0 where this process can have namespaces of its own, else 3; ends as a process of its own would."""
    try:
        become_first()
        first = fork_first()
        if not first:
            furnish(LIMITS["folder"])
            os._exit(0)
        return 3 if os.waitpid(first, 0)[1] else 0
    except OSError:
        return 3


if __name__ == "__main__":
    sys.exit(_try())
