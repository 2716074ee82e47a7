"""The system calls that a question needs, and no more: a filter (`seccomp(2)`, Linux) on its process and all that come from it.

A call that is not listed fails with ENOSYS, as on a kernel that does not have it, and libraries do without. A listed call whose
argument is refused fails with EPERM. Nothing is killed. Two questions share files for reading, so whatever a process
could leave or see there is refused: locks, leases, notices of who reads what.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator

from course_staff.grading import isolate

_COLUMNS = {"x86_64": 0, "aarch64": 1}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…, linux/audit.h
_TABLE = """
read = 0 63, write = 1 64, readv = 19 65, writev = 20 66, pread64 = 17 67, pwrite64 = 18 68, lseek = 8 62
sendfile = 40 71, open = 2 -, openat = 257 56, creat = 85 -, close = 3 57, close_range = 436 436, dup = 32 23
dup2 = 33 -, dup3 = 292 24, pipe = 22 -, pipe2 = 293 59, stat = 4 -, fstat = 5 80, lstat = 6 -, newfstatat = 262 79
statx = 332 291, statfs = 137 43, fstatfs = 138 44, getdents64 = 217 61, access = 21 -, faccessat = 269 48
faccessat2 = 439 439, readlink = 89 -, readlinkat = 267 78, getcwd = 79 17, chdir = 80 49, fchdir = 81 50
getxattr = 191 8, lgetxattr = 192 9, listxattr = 194 11, llistxattr = 195 12, umask = 95 166, utimensat = 280 88
ftruncate = 77 46, truncate = 76 45, fallocate = 285 47, fadvise64 = 221 223, fsync = 74 82, fdatasync = 75 83
mkdir = 83 -, mkdirat = 258 34, rmdir = 84 -, unlink = 87 -, unlinkat = 263 35, rename = 82 -, renameat = 264 38
renameat2 = 316 276, link = 86 -, linkat = 265 37, symlink = 88 -, symlinkat = 266 36, chmod = 90 -, fchmod = 91 52
fchmodat = 268 53, mmap = 9 222, munmap = 11 215, mprotect = 10 226, mremap = 25 216, brk = 12 214, madvise = 28 233
msync = 26 227, fork = 57 -, vfork = 58 -, execve = 59 221, exit = 60 93, exit_group = 231 94, wait4 = 61 260
waitid = 247 95, kill = 62 129, tgkill = 234 131, tkill = 200 130, getpid = 39 172, getppid = 110 173
gettid = 186 178, getpgrp = 111 -, getpgid = 121 155, setpgid = 109 154, getsid = 124 156, setsid = 112 157
getuid = 102 174, geteuid = 107 175, getgid = 104 176, getegid = 108 177, getresuid = 118 148, getresgid = 120 150
getgroups = 115 158, prlimit64 = 302 261, getrlimit = 97 163, setrlimit = 160 164, getrusage = 98 165, times = 100 153
sysinfo = 99 179, uname = 63 160, arch_prctl = 158 -, set_tid_address = 218 96, set_robust_list = 273 99
rseq = 334 293, futex = 202 98, getrandom = 318 278, getcpu = 309 168, sched_yield = 24 124
sched_getaffinity = 204 123, sched_setaffinity = 203 122, sched_getparam = 143 121, sched_getscheduler = 145 120
getpriority = 140 141, clock_gettime = 228 113, clock_getres = 229 114, clock_nanosleep = 230 115, nanosleep = 35 101
gettimeofday = 96 169, time = 201 -, setitimer = 38 103, getitimer = 36 102, alarm = 37 -, restart_syscall = 219 128
rt_sigaction = 13 134, rt_sigprocmask = 14 135, rt_sigreturn = 15 139, rt_sigpending = 127 136
rt_sigsuspend = 130 133, rt_sigtimedwait = 128 137, sigaltstack = 131 132, pause = 34 -, poll = 7 -, ppoll = 271 73
select = 23 -, pselect6 = 270 72, eventfd2 = 290 19, epoll_create = 213 -, epoll_create1 = 291 20, epoll_ctl = 233 21
epoll_wait = 232 -, epoll_pwait = 281 22, connect = 42 203, accept = 43 202, accept4 = 288 242, bind = 49 200
listen = 50 201, shutdown = 48 210, sendto = 44 206, recvfrom = 45 207, sendmsg = 46 211, recvmsg = 47 212
getsockname = 51 204, getpeername = 52 205, setsockopt = 54 208, getsockopt = 55 209, clone = 56 220, socket = 41 198
socketpair = 53 199, fcntl = 72 25, ioctl = 16 29, prctl = 157 167
"""
_ROWS = [row.replace("=", "").split() for row in _TABLE.strip().replace("\n", ",").split(",")]
NUMBERS = {
    machine: {row[0]: int(row[1 + column]) for row in _ROWS if row[1 + column] != "-"}
    for machine, column in _COLUMNS.items()
}
"""For each architecture that has a filter, the numbers of the calls that are allowed (asm/unistd.h)."""

_OF_FILES = (0x541B, 0x5421, 0x5450, 0x5451)  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_OF_TERMINALS = (
    0x5401,
    0x5402,
    0x5403,
    0x5404,
    0x540E,
    0x540F,
    0x5410,
    0x5413,
    0x5414,
)  # TCGETS … TIOCSWINSZ, not TIOCSTI
_OF_NEW_TERMINALS = (
    0x5441,
    0x80045430,
    0x40045431,
)  # TIOCGPTPEER, TIOCGPTN, TIOCSPTLCK: a shell command in a notebook has one
_ALLOWED = {
    # AF_UNIX; AF_INET, for ranks on the loopback of their own network; AF_NETLINK to the routes, where gloo finds that
    "socket": ({0: 1}, {0: 2}, {0: 16, 2: 0}),
    "socketpair": ({0: 1},),
    "fcntl": tuple({1: command} for command in (0, 1, 2, 3, 4, 1030)),  # F_DUPFD, F_…FD, F_…FL, F_DUPFD_CLOEXEC
    "ioctl": tuple({1: request} for request in (*_OF_FILES, *_OF_TERMINALS, *_OF_NEW_TERMINALS)),
    "prctl": tuple({0: option} for option in (1, 15, 16)),  # PR_SET_PDEATHSIG, PR_SET_NAME, PR_GET_NAME
}
"""Calls that are allowed with certain arguments only: one of these sets of position and value."""
_NAMESPACES = 0x7E020000  # every CLONE_NEW… that clone(2) takes

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_…, linux/seccomp.h
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2  # PR_SET_…, SECCOMP_MODE_FILTER


def restrict(programs: bool = True) -> None:
    """Refuse this process and its children every other call, for good, and with `programs` false to run any other program.

    Elsewhere than on a Linux of `NUMBERS` nothing happens; nor where the kernel has no such filters.
    """
    machine = os.uname().machine if sys.platform == "linux" and sys.maxsize > 2**32 else ""
    if machine not in NUMBERS:
        return
    program = list(_program(machine, programs))
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HP", len(program), ctypes.addressof(code))
    isolate.prctl(_NO_NEW_PRIVS, 1)
    try:
        isolate.prctl(_SECCOMP, _FILTER, header)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel was built without
            raise


def _program(machine: str, programs: bool) -> Iterator[bytes]:
    """The filter's instructions; the number of the call stays in the accumulator until its turn has come."""
    yield _instruction(_LOAD, _ARCHITECTURE)
    yield _instruction(_EQUAL, _ARCHITECTURES[machine], then=1)
    yield _refuse(errno.ENOSYS)
    yield _instruction(_LOAD, _NUMBER)
    for name, number in NUMBERS[machine].items():
        verdict = [_refuse(errno.EPERM)] if name == "execve" and not programs else list(_verdict(name))
        yield _instruction(_EQUAL, number, otherwise=len(verdict))
        yield from verdict
    yield _refuse(errno.ENOSYS)


def _verdict(name: str) -> Iterator[bytes]:
    if name == "clone":
        yield _instruction(_LOAD, _ARGUMENTS)
        yield _instruction(_ANY_BIT, _NAMESPACES, otherwise=1)
        yield _refuse(errno.EPERM)
    elif name in _ALLOWED:
        for wanted in _ALLOWED[name]:
            for left, (position, value) in zip(reversed(range(len(wanted))), wanted.items(), strict=True):
                yield _instruction(
                    _LOAD, _ARGUMENTS + 8 * position
                )  # its lower half, which is all that the kernel looks at
                yield _instruction(_EQUAL, value, otherwise=2 * left + 1)
            yield _instruction(_RETURN, _ALLOW)
        yield _refuse(errno.EPERM)
        return
    yield _instruction(_RETURN, _ALLOW)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """`struct sock_filter`; `then` and `otherwise` are how many instructions a comparison leaps over."""
    return struct.pack("HBBI", code, then, otherwise, value)
