"""The filter of system calls, tried from within the sandbox: what is refused fails with its error, what is needed works."""

import errno
import os
import re
from pathlib import Path

import pytest
import tiny_set
from tiny_set import SEED, SET, SETUP, grade_class

from course_staff.grading import asking, grade, isolate, sandbox, syscalls
from course_staff.grading.source import load_solutions
from course_staff.grading.submission import Cell
from course_utils.files import exercises_of
from course_utils.grading.released import set_names

ROOT = Path(__file__).parents[3]
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ABSENT = {
    "x86_64": "ptrace 101, process_vm_readv 310, process_vm_writev 311, kcmp 312, pidfd_open 434, pidfd_getfd 438, keyctl 250, "
    "add_key 248, request_key 249, io_uring_setup 425, perf_event_open 298, bpf 321, userfaultfd 323, seccomp 317, unshare 272, "
    "setns 308, clone3 435, mount 165, umount2 166, pivot_root 155, chroot 161, open_tree 428, move_mount 429, fsopen 430, "
    "mount_setattr 442, personality 135, name_to_handle_at 303, open_by_handle_at 304, memfd_create 319, flock 73, "
    "inotify_init 253, inotify_init1 294, fanotify_init 300, shmget 29, semget 64, msgget 68, mq_open 240, setuid 105, "
    "capset 126, sethostname 170, settimeofday 164, timer_create 222, "
    "init_module 175, kexec_load 246, reboot 169, swapon 167, quotactl 179, "
    "acct 163, iopl 172, modify_ldt 154, mknod 133, chown 92, setxattr 188, splice 275, tee 276, vmsplice 278, execveat 322, "
    "sched_setscheduler 144, mlock 149, membarrier 324, syslog 103, vhangup 153",
    "aarch64": "ptrace 117, process_vm_readv 270, keyctl 219, io_uring_setup 425, perf_event_open 241, bpf 280, userfaultfd 282, "
    "unshare 97, setns 268, clone3 435, mount 40, chroot 51, personality 92, memfd_create 279, flock 32, shmget 194",
}
TRY = """# EXERCISE q1
import ctypes, fcntl, os, socket
from course_staff.grading import isolate
libc = ctypes.CDLL(None, use_errno=True)

def error(call):
    try:
        call()
        return 0
    except OSError as failed:
        return failed.errno

def raw(number, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(number, *map(ctypes.c_long, arguments or [-1] * 6)) == -1:
        raise OSError(ctypes.get_errno(), "")

def scale(x, factor):
    shared = open(os.__file__)  # as every other question sees it
    own = open("own", "w+")
    found = {name: error(lambda: raw(number)) for name, number in ABSENT.items()}
    arguments = {
        "a child in a user namespace": lambda: raw(CLONE, 0x10000000 | 17, 0, 0, 0, 0),
        "a child in a network namespace": lambda: raw(CLONE, 0x40000000 | 17, 0, 0, 0, 0),
        **{f"family {family}": lambda family=family: socket.socket(family, socket.SOCK_DGRAM) for family in (3, 10, 17, 38, 40)},
        "netlink, not of routes": lambda: socket.socket(16, socket.SOCK_RAW, 9),
        "lock": lambda: fcntl.lockf(shared, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "own lock": lambda: fcntl.lockf(own, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "open file's lock": lambda: fcntl.fcntl(shared, 37, bytes(32)),
        "lease": lambda: fcntl.fcntl(shared, 1024, 0),
        "notice of a folder": lambda: fcntl.fcntl(os.open("/usr", os.O_RDONLY), 1026, 1),
        "size of a pipe": lambda: fcntl.fcntl(os.pipe()[0], 1031, 4096),
        "to type for a terminal": lambda: fcntl.ioctl(own, 0x5412, b"x"),
        "to be dumped": lambda: isolate.prctl(4, 1),
    }
    return [found, {name: error(call) for name, call in arguments.items()}]
"""
RANKS = """# EXERCISE q1
import torch
import torch.distributed as dist
from course_utils.distributed import launch

def total(of):
    sum_ = torch.tensor([float(of[dist.get_rank()])])
    dist.all_reduce(sum_)
    return sum_.item()

def scale(x, factor):
    return launch(total, 2, [1, 2]) + launch(total, 3, [1, 2, 4])
"""
NEEDED = """# EXERCISE q1
import multiprocessing, shutil, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ThreadPoolExecutor

def scale(x, factor):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/a", "w") as file:
            file.write("a")
        shutil.copy2(f"{folder}/a", f"{folder}/b")
        said = open(f"{folder}/b").read()
    said += subprocess.run([sys.executable, "-c", "print('b', end='')"], capture_output=True, text=True).stdout
    with ThreadPoolExecutor(3) as pool:
        said += "".join(pool.map(str, "cd"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        out.sendall(b"e")
        said += server.accept()[0].recv(1).decode()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        said += "".join(pool.map(str, "fg"))
    get_ipython().system("printf h > from-a-shell")
    return said + open("from-a-shell").read()
"""


def answered(source, kind):
    """What the answer gives within the sandbox."""
    entry = grade.load_set(SET)["questions"][0]
    paper = grade._paper(grade.question_from(entry), entry, None)
    lane = sandbox.Lane(kind)
    try:
        cells = [(Cell(1, SETUP), False), (Cell(2, source), True)]
        heard = asking.ask(cells, paper.pickled, paper.inputs[:1], 60.0, lane)
    finally:
        lane.close()
    assert heard.outcomes[0].kind == "values", heard
    return heard.outcomes[0].values["result"]


@pytest.mark.parametrize("machine", syscalls.NUMBERS)
def test_the_numbers_are_those_of_the_systems_headers(machine):
    if not HEADERS[machine].is_file():
        pytest.skip("the headers of the system's calls are not installed")
    text = HEADERS[machine].read_text()
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s", text)}
    known.setdefault("newfstatat", known.get("fstatat"))
    assert syscalls.NUMBERS[machine] == {name: known[name] for name in syscalls.NUMBERS[machine]}


@pytest.mark.skipif(os.uname().machine not in ABSENT, reason="there is no filter for this architecture")
def test_from_within_the_sandbox_what_is_refused_fails_with_its_error(tiny, safe):
    machine = os.uname().machine
    absent = {name: int(number) for name, number in (each.split() for each in ABSENT[machine].split(", "))}
    clone = syscalls.NUMBERS[machine]["clone"]
    calls, arguments = answered(f"{TRY}\nABSENT, CLONE = {absent}, {clone}", safe)
    assert calls == dict.fromkeys(absent, errno.ENOSYS)
    assert arguments == dict.fromkeys(arguments, errno.EPERM)


def test_from_within_the_sandbox_what_libraries_need_works(tiny, safe):
    assert answered(NEEDED, safe) == "abcdefgh"


@pytest.mark.slow
def test_ranks_meet_where_files_cannot_be_locked(tiny, safe):
    assert answered(RANKS, safe) == [3.0, 3.0, 7.0, 7.0, 7.0]


def test_elsewhere_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(syscalls.os, "uname", lambda: os.uname_result(["Linux", "", "", "", "riscv64"]))
    monkeypatch.setattr(isolate, "prctl", lambda *_: pytest.fail("there are no numbers for this architecture"))
    syscalls.restrict()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", set_names())
def test_the_solutions_of_every_set_have_full_points_in_the_sandbox(name, safe, tmp_path):
    solutions = ROOT / "solutions" / f"{name}.ipynb"
    right = {each.question.id: each.solution for each in load_solutions(solutions)}
    (tmp_path / "right.ipynb").write_text(tiny_set.answered(ROOT / exercises_of(name), right))
    papers = grade.prepare(name, solutions, SEED)
    record = grade_class({"right": tmp_path / "right.ipynb"}, papers, safe)["right"]
    assert record["points"] == record["of"], [one["id"] for one in record["questions"] if one["state"] != "passed"]
