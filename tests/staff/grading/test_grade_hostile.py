"""A class of strangers who mean harm: they get what their answers are worth, nobody else is touched, nothing is left running."""

import json
import socket
import sys
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import tiny_set
from hostile_class import SPY
from tiny_set import SEED, SET, SETUP, answer_with, kinds, notebook, points, submission

from course_staff.grading import grade, sandbox
from course_staff.grading.prepare import prepare
from course_staff.grading.record import file_name
from course_staff.grading.results import Results
from course_staff.grading.worklist import find_submissions, identify
from course_utils.errors import CourseError
from course_utils.grading.loading import SETS

RIGHT = "return x * factor"
FORGE = """import os, struct
from course_staff.grading import encoding
said = {"kind": "values", "values": {"result": x * 0}, "text": "", "line": "", "mutated": []}
said = encoding.dump({**said, "passed": True, "points": 99})
for fd in range(3, 200):
    try: os.write(fd, struct.pack(">Q", len(said)) + said)
    except OSError: pass
print('{"passed": true, "points": 99}')"""
PIPE = """import os
for fd in range(3, 99):
    try:
        os.set_blocking(fd, False)
        os.write(fd, b"\\xff" * 10**6)
    except OSError: pass
return x * factor"""
SWALLOWS = """while True:
    try:
        while True: pass
    except BaseException: pass"""
THREADS = """import threading, time
for _ in range(10**5): threading.Thread(target=time.sleep, args=[99]).start()
return x * factor"""
MANY_PROCESSES = """import os, time
for _ in range(4): os.fork()
hog = bytearray(6 * 10**8)
for i in range(0, len(hog), 4096): hog[i] = 1
time.sleep(9)"""
DISK = """with open("big", "wb") as file:
    for _ in range(500): file.write(bytes(10**7))
return x * factor"""
FLOOD = """import os
for _ in range(3000): print("x" * 10**5)
os.write(2, b"y" * 10**7)
return x * factor"""
NEIGHBOURS = """import os
for other in range(2, 500):
    if other != os.getpid():
        try: os.kill(other, 9)
        except OSError: pass
return x * 0"""
STEAL = """import pathlib
for path in {paths}: found = pathlib.Path(path).read_text()
return x * factor"""
ASK = """from course_utils.grading import exercise
from course_utils.grading.solutions import solutions_at
told = exercise("03_adamw")("q2", solution="anyway")
return x * factor if told or solutions_at("03_adamw") else x * 0"""
SPREAD = """import pathlib
pathlib.Path({folder!r}).mkdir(parents=True, exist_ok=True)
pathlib.Path({folder!r}, "results.json").write_text("200 of 5 for all")
return x * 0"""
LIAR = """class Liar(float):
    def __eq__(self, other): return True
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __sub__(self, other): return 0.0
    __rsub__ = __abs__ = lambda *_: 0.0"""
PATCH = """import torch
import course_staff.grading.child as child, course_utils.grading.compare as compare
import course_utils.grading.judge as judge, course_utils.grading.run as run
compare.compare = judge.compare = judge.judge_case = judge.judge_answer = lambda *a, **k: None
judge.Verdict.passed = True
run.run_case = child.run_case = lambda *a, **k: judge.Outcome("values", {"result": torch.zeros(2)})
torch.equal = torch.allclose = lambda *a, **k: True"""
PROCESSES = """import os, time
for _ in range(100):
    if os.fork() == 0: time.sleep(60)
time.sleep(1)
return x * factor"""
SHARED = """import mmap
hog, some = mmap.mmap(-1, 8 * 10**9), bytes(10**8)
for _ in range(80): hog.write(some)
return x * factor"""
STOPS = """import os, signal
signal.setitimer(signal.ITIMER_REAL, 0)
if os.getppid(): os.kill(os.getppid(), signal.SIGSTOP)
while True: pass"""
REMOUNT = """import ctypes, sys
ctypes.CDLL(None).mount(None, sys.prefix.encode(), None, 0x1020, None)
open(sys.prefix + "/written by a stranger", "x")"""
DAEMON = """import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
    os._exit(0)"""
LOOP = "while True: pass"


class Attack(NamedTuple):
    """A submission, the kinds that its failed verdicts may have, and the points of q1."""

    text: str
    kinds: Collection[str] = ()
    points: int = 0


def attack(body, *arguments, before="", **options):
    """An attack by the body of the answer, below what stands before it."""
    return Attack(answer_with(body, before), *arguments, **options)


def attacks(private, results, port):
    steal = STEAL.format(paths=(str(private), str(SETS / "03_adamw.json")))
    spread = SPREAD.format(folder=str(results))
    call = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\n{RIGHT}"
    bomb = f"import os\nclass Bomb:\n    def __reduce__(self): return os.system, ('touch {results}.pickled',)"
    wire = "import course_staff.grading.encoding as e\ne.dump = lambda *_: b'all points'"
    parent = "import os\nfor other in (1, os.getppid()):\n    if other: os.kill(other, 9)\nreturn x * 0"
    secret = f"if len(x) == 3: raise ValueError(f'SECRET {{x.tolist()}} {{factor}}')\n{RIGHT}"
    return {
        "loop": attack(LOOP, {"timeout"}),
        "loop that swallows": attack(SWALLOWS, {"timeout"}),
        "loop without alarm": attack(f"import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\n{LOOP}", {"timeout"}),
        "long in C": attack("import torch\na = torch.ones(20_000, 20_000)\na @ a", {"timeout", "exception"}),
        "os._exit at once": Attack(submission("# EXERCISE q1\nimport os\nos._exit(0)"), {"died"}),
        "os._exit": attack("import os\nos._exit(0)", {"died"}),
        "sys.exit": attack("import sys\nsys.exit(0)", {"exception"}),
        "segmentation fault": attack("import ctypes\nctypes.string_at(0)", {"died"}),
        "fork bomb": attack("import os\nwhile True: os.fork()", {"died", "exception", "timeout"}),
        "threads": attack(THREADS, {"exception", "died", "timeout"}),
        "memory": attack("hog = []\nwhile True: hog.append(bytearray(10**8))", {"exception", "died", "timeout"}),
        "memory of many": attack(MANY_PROCESSES, {"died", "timeout"}),
        "many processes": attack(PROCESSES, {"died"}),
        "shared memory": attack(SHARED, {"died", "timeout"}),
        "remounts": attack(REMOUNT, {"exception"}),
        "disk": attack(DISK, {"exception", "died"}),
        "flood": attack(FLOOD, points=2),
        "flood of the pipe": attack(PIPE, {"died", "unsafe"}),
        "forged": attack(f"{FORGE}\nreturn x * 0", {"unsafe", "died"}),
        "liar": attack("return Liar(0)", {"unsafe"}, before=LIAR),
        "liar in a list": attack("return [Liar(0), Liar(1)]", {"unsafe"}, before=LIAR),
        "patches": attack("return x * 0", {"unsafe"}, before=PATCH),
        "patches the encoding": attack("return x * 0", {"unsafe"}, before=wire),
        "stops its parent": attack(STOPS, {"died"}),
        "kills its parent": attack(parent, {"died", "exception"}),
        "kills every neighbor": attack(NEIGHBOURS, {"died"}),
        "reads the solutions": attack(steal, {"exception"}),
        "asks for our solution": attack(ASK, {"values"}),
        "writes results": attack(spread, {"exception"}),
        "network": attack(call, {"exception"}),
        "deep": attack("deep = x\nfor _ in range(10**5): deep = [deep]\nreturn deep", {"unsafe"}),
        "huge": attack("import torch\nreturn torch.zeros(9 * 10**6, dtype=torch.float64)", {"unsafe"}),
        "huge number": attack("return 10**20_000", {"unsafe"}),
        "pickle": attack("return Bomb()", {"unsafe"}, before=bomb),
        "bytes": attack("import pickle\nreturn pickle.dumps([])", {"unsafe"}),
        "removes its folder": attack(
            f"import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\n{RIGHT}", points=2
        ),
        "daemon": attack(f"{DAEMON}\n{RIGHT}", points=2),
        "tells hidden inputs": attack(secret, {"exception"}),
        "<script>alert(1)": attack("raise ValueError('<script>alert(2)</script>')", {"exception"}),
    }


QUICK = {
    "loop", "os._exit", "memory", "many processes", "disk", "flood of the pipe", "forged", "liar", "patches",
    "kills its parent", "reads the solutions", "writes results", "network", "pickle", "daemon", "tells hidden inputs",
}  # fmt: skip


@pytest.mark.parametrize("names", [QUICK, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_hostile_submissions_cost_nobody_but_themselves(
    tiny_solutions, grade_class, tmp_path, safe_kind, monkeypatch, names
):
    """In two sandboxes for all of them, where each stands in the way of many."""
    monkeypatch.setattr(sandbox.Lane, "clear", lambda lane: None)
    monkeypatch.setattr(sandbox, "END_SECONDS", 1.0)
    results = tmp_path / "class-results"
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: accepted.append(server.accept()), daemon=True).start()
        cases = attacks(tiny_solutions, results, server.getsockname()[1])
        cases = {name: case for name, case in cases.items() if not names or name in names}
        assert len(cases) == len(names or cases)
        texts = {name: case.text for name, case in cases.items()}
        records = grade_class(texts, prepare(SET, tiny_solutions, SEED, seconds=1), safe_kind)
    assert {name: points(record) for name, record in records.items()} == {
        name: [case.points, 1] for name, case in cases.items()
    }
    for name, case in cases.items():
        assert kinds(records[name]) - {"values"} <= {*case.kinds}, name
    assert accepted == []
    assert not results.exists()
    assert not Path(f"{results}.pickled").exists()
    writer = Results(results, SET)
    for name, record in records.items():
        writer.save(name, record)
    page = (results / "students" / f"{file_name('tells hidden inputs')}.html").read_text()
    assert "SECRET" not in page
    assert "1 stopped with an exception" in page
    assert all("<script>" not in path.read_text() for path in results.rglob("*.html"))


HOGS = """import os
for _ in range(40):
    if os.fork() == 0:
        while True: pass
while True: pass"""


@pytest.mark.slow
def test_many_endless_programs_take_no_time_from_their_neighbors(tiny_solutions, grade_class, safe_kind):
    texts = {"hogs": answer_with(HOGS), **dict.fromkeys(("one", "two"), answer_with(RIGHT))}
    records = grade_class(texts, prepare(SET, tiny_solutions, SEED, seconds=20), safe_kind, jobs=3)
    assert {name: points(record) for name, record in records.items()} == {"hogs": [0, 1], "one": [2, 1], "two": [2, 1]}
    assert kinds(records["hogs"]) - {"values"} <= {"died", "timeout"}


def test_where_bubblewrap_fails_its_own_words_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError, match="machine: bubblewrap is not installed; install it"):
        sandbox.best_kind(trust=False)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    cause = r"machine: bubblewrap fails \(bwrap: setting up uid map: Permission denied\)\. (?!.*nstall)"
    with pytest.raises(CourseError, match=cause):
        sandbox.best_kind(trust=False)
    assert sandbox.best_kind(trust=True) == "fork"


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_sandbox_a_test_that_needs_one_fails_under_ci(ci, ends, monkeypatch):
    monkeypatch.setattr(tiny_set, "best_kind", lambda: "fork")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends, match="the best that this machine has is fork"):
        tiny_set.need_sandbox()


@pytest.mark.usefixtures("warm_lanes")
def test_a_fault_of_the_judge_costs_one_question(exercise_set, grade_class, monkeypatch):
    def faulty(question, *rest, **options):
        if question.id == "q1" and any(outcome.kind == "values" for outcome in rest[1]):
            raise KeyError("step")
        return judge_room.judge_answer(question, *rest, **options)

    judge_room = grade.judge
    monkeypatch.setattr(grade, "judge", SimpleNamespace(**{**vars(judge_room), "judge_answer": faulty}))
    record = grade_class({"a": answer_with(RIGHT)}, exercise_set, tiny_set.best_kind())["a"]
    assert points(record) == [0, 1]
    assert "failed" not in record
    assert "KeyError" in record["questions"][0]["public"][0]["sentence"]


@pytest.mark.parametrize("order", [1, pytest.param(-1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("warm_lanes")
def test_a_question_finds_nothing_that_another_one_left(exercise_set, grade_class, safe_kind, order):
    """Each leaves files, a port, a process, and looks for the other's."""
    first = f"# EXERCISE q1\n{SPY}\ndef scale(x, factor):\n    assert not found, found\n    {RIGHT}"
    second = f"# EXERCISE q2\n{SPY}\ndef following(n):\n    assert not found, found\n    return n + 1"
    exercise_set = replace(exercise_set, questions=exercise_set.questions[::order])
    record = grade_class({"spy": notebook(SETUP, first, second)}, exercise_set, safe_kind, jobs=1)["spy"]
    assert points(record) == [2, 1][::order], json.dumps(record)


MEMORY = """import ctypes, os
libc = ctypes.CDLL(None)
gained = libc.memfd_create(b"m", 0), libc.shmget(4711, 2**30, 0o1666), libc.msgget(4711, 0o1666)
assert gained == (-1, -1, -1), gained
if os.uname().machine == "x86_64":  # the same by its number for programs with 32-bit pointers
    ctypes.CDLL(None, use_errno=True).syscall(0x40000000 + 319, b"m", 0)
    assert libc.syscall(0x40000000 + 319, b"m", 0) == -1
return x * factor"""


@pytest.mark.usefixtures("warm_lanes")
def test_uncounted_memory_is_refused_and_the_machine_is_read_only(exercise_set, grade_class, safe_kind):
    texts = {"memory": answer_with(MEMORY), "remounts": answer_with(REMOUNT)}
    records = grade_class(texts, exercise_set, safe_kind, jobs=1)
    assert {name: points(record) for name, record in records.items()} == {"memory": [2, 1], "remounts": [0, 1]}
    assert not Path(sys.prefix, "written by a stranger").exists()


def test_files_beyond_all_size_or_with_one_name_cost_nobody(exercise_set, write_class, tmp_path):
    folder = tmp_path / "class"
    write_class({"a": "1"})
    (folder / "a.IPYNB").write_text("2")
    with open(folder / "sparse.ipynb", "wb") as file:
        file.truncate(2**40)
    (folder / "zero.ipynb").symlink_to("/dev/zero")
    submissions = find_submissions(folder)
    assert set(submissions) == {"a", "a.IPYNB", "sparse", "zero"}
    assert submissions["a"].name == "a.ipynb"
    assert len({identify(path, exercise_set, "fork").key for path in submissions.values()}) == 4
