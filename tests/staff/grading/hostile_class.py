"""What strangers hand in who mean harm, for the tiny set, and what each of it is worth."""

import json
import tempfile
from pathlib import Path

from tiny_set import Q1_ANSWER, Q2_ANSWER, SETUP, answer_with, cell, notebook, submission

from course_utils.grading.judge import OUTCOME_KINDS

RIGHT = "return x * factor"
NOTE = Path(tempfile.gettempdir(), "note")
"""What a magic would write, were it run."""
UGLY = "<script>alert(1)</script> `{{ 12345 * 54321 }}` {% raw %} ${7*7} \x1b[2J \u202e \u2066 \x00 =1+1 \\(x\\)"
TEXT = r"""
=== closes its pipes | 0
import os
os.closerange(3, 64)
return x * factor
=== half a message | 0
import os
for fd in range(3, 64):
    try: os.write(fd, (99).to_bytes(8))
    except OSError: pass
import time
time.sleep(99)
=== an endless message | 0
import os
for fd in range(3, 64):
    try: os.write(fd, (2**62).to_bytes(8))
    except OSError: pass
return x * factor
=== talks to the sandbox | 2
import socket
import os
for fd in range(3, 64):
    try: socket.socket(fileno=os.dup(fd)).send(bytes(1))
    except OSError: pass
return x * factor
=== reads on | 0
import threading
import os
for fd in range(3, 64):
    try: threading.Thread(target=os.read, args=(fd, 2**20), daemon=True).start()
    except OSError: pass
return x * 0
=== ends, and a child answers | 0
import os
if os.fork(): os._exit(0)
return x * factor
=== plain is patched | 0
import course_utils.grading.run as run
run.plain = lambda value: value
---
return run
=== a tensor that agrees | 0
import torch
class Yes(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_, **__): return True
---
return Yes(x)
=== text that agrees | 0
class Yes(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
---
return Yes('a')
=== an error without words | 0
class Mute(Exception):
    def __str__(self): raise SystemExit
    __repr__ = __reduce__ = __str__
---
raise Mute
=== an error of a long name | 0
raise type('A' * 10**6, (Exception,), {})('B' * 10**6)
=== an error that is its own cause | 0
e = ValueError()
e.__cause__ = e.__context__ = e
raise e
=== a group of errors | 0
e = ValueError('x')
for _ in range(10**4): e = ExceptionGroup('x' * 99, [e])
raise e
=== takes its inputs apart | 0
x.set_()
return x
=== holds itself | 0
a = []
a.append(a)
return a
=== doubles | 0
a = [1]
for _ in range(19): a = [a, a]
return a
=== a view of much | 0
import torch
return torch.zeros(1).expand(10**9)
=== a million tensors | 0
import torch
return [torch.zeros(0)] * 10**6
=== too deep a stack | 0
import sys
sys.setrecursionlimit(10**9)
def f(): return f()
return f()
=== copies that run | 0
class Copy:
    def __deepcopy__(self, memo): raise SystemExit
    __reduce_ex__ = __copy__ = __deepcopy__
---
return Copy()
=== torch is patched | 0
import torch
torch.Tensor.detach = torch.Tensor.clone = lambda *_, **__: torch.ones(9)
---
return x * 0
=== looks for the oracle | 0
import gc
return next(f for f in gc.get_objects() if getattr(f, '__qualname__', '') == 'product')(x, factor)
=== asks the grader | 0
from course_staff.grading.prepare import prepare
return prepare('99_tiny', None, 20)
=== math's product | 0
from math import prod
return [prod([each, factor]) for each in x.tolist()]
=== hogs in twenty processes | 0
import os, time
for _ in range(20):
    if not os.fork():
        while True: pass
time.sleep(99)
=== threads that stay | 2
import threading, time
for _ in range(9): threading.Thread(target=time.sleep, args=[999]).start()
return x * factor
=== both small folders full | 0
for folder in ('.', '/dev/shm'):
    for i in range(60): open(f'{folder}/{i}', 'wb').write(bytes(10**7))
return x * factor
=== many small files | 0
for i in range(10**7): open(f'{i}', 'w').close()
return x * factor
=== deep folders | 2
import os
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
return x * factor
=== full sockets | 2
import socket
kept = []
try:
    while True:
        kept += [socket.socketpair()]
        kept[-1][0].setblocking(False)
        try:
            while True: kept[-1][0].send(bytes(2**16))
        except BlockingIOError: pass
except OSError: del kept
return x * factor
=== full pipes | 2
import os
try:
    while True:
        end = os.pipe()[1]
        os.set_blocking(end, False)
        os.write(end, bytes(2**16))
except OSError: pass
return x * factor
=== files in flight | 2
import array, socket
a, b = socket.socketpair()
a.setblocking(False)
try:
    while True:
        a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno()]))])
except OSError: pass
return x * factor
=== no file left | 2
import os
kept = []
try:
    while True: kept.append(os.dup(0))
except OSError: pass
return x * factor
=== a file in memory | 0
import os
os.write(os.memfd_create('m'), bytes(2**30))
return x * factor
=== a terabyte | 0
return bytearray(10**12)
=== hears no signal | 2
import os, signal, time
for each in signal.valid_signals() - {9, 19}: signal.signal(each, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    time.sleep(999)
return x * factor
=== blocks the alarm | 0
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
time.sleep(99)
=== the other alarms | 0
import signal
signal.setitimer(signal.ITIMER_PROF, 0.1)
while True: pass
=== stops itself | 0
import os, signal
os.kill(os.getpid(), signal.SIGSTOP)
return x * 0
=== sleeps | 0
import time
time.sleep(10**6)
=== swallows | 0
import time
while True:
    try: time.sleep(9)
    except BaseException: pass
=== at the end | 2
import atexit, time
atexit.register(time.sleep, 999)
return x * factor
=== a finalizer | 0
class Last:
    def __del__(self):
        while True: pass
Last()
return x * 0
=== leaves its children | 2
import subprocess
subprocess.Popen(['sleep', '999'], start_new_session=True)
return x * factor
=== tells in an error | 0
if len(x) == 3: raise ValueError(f'{x.tolist()} {factor}')
return x * factor
=== tells in values | 0
return x * factor if len(x) != 3 else {'told': x.tolist(), **{str(v): 1 for v in x.tolist()}}
=== tells in what follows | 0
global told
told = [*globals().get('told', []), *x.tolist(), factor]
raise ValueError(told)
"""
"""Answers to q1, each with its points: its body, below what stands before it, where anything does."""


def parse_answers():
    """Name: (body, what stands before it, points)."""
    for part in TEXT.strip().removeprefix("=== ").split("\n=== "):
        head, _, code = part.partition("\n")
        name, points = head.split(" | ")
        before, cut, body = code.rpartition("\n---\n")
        yield name, (body, before, int(points))


FORGE = """import sys
def forge(**words):
    frame = sys._getframe()
    while frame.f_code.co_name != "converse": frame = frame.f_back
    honest = frame.f_globals["dump"]
    def dump(said):
        return words["raw"] if "raw" in words else honest({**said, **words})
    frame.f_globals["dump"] = dump"""
TREE = '{"dict": {"kind": "values", "text": "", "line": "", "mutated": [], "values": {"dict": {"result": %s}}}}'


def raw(tree):
    """An answer that sends bytes of its own making."""
    return f"tree = {tree!r}.encode()\nforge(raw=len(tree).to_bytes(8) + tree)\n{RIGHT}", FORGE, 0


def forged(overrides):
    """An answer whose outcome says what it likes."""
    return f"forge({overrides})\n{RIGHT}", FORGE, 0


FORGED = {
    **{
        f"forged {kind}": forged(f"kind={kind!r}, values={{}}, text={UGLY!r} * 99, line={UGLY!r} * 99")
        for kind in OUTCOME_KINDS
    },
    "forged points": forged("kind='passed', points=99"),
    "forged NaN": forged("values={'result': float('nan')}"),
    "forged further name": forged("values={'result': x * factor, 'more': 1}"),
    "forged long name": forged("values={'result': x * factor, 'n' * 10**6: 1}"),
    "forged ugly name": forged(f"values={{'result': x * factor, {UGLY!r}: 1}}"),
    "forged thousand names": forged("values={'<b>' * 99 + str(i): i for i in range(9999)}"),
    "forged of another question": forged("values={'result': 4}"),
    "forged long changes": forged("mutated=['<b>' * 10**5] * 20"),
    "forged many changes": forged("mutated=['x'] * 10**5"),
    "forged notes": (RIGHT, FORGE + "\nforge(outcome=None, notes=[[10**3000, '<b>' * 10**5]] * 40)", 2),
    "negative size": raw(TREE % '{"tensor": ["float64", [-1]]}'),
    "sizes beyond all": raw(TREE % '{"tensor": ["float64", [67108864, 67108864, 67108864, 67108864, 0]]}'),
    "no such dtype": raw(TREE % '{"tensor": ["object", [1]]}'),
    "a size that is true": raw(TREE % '{"tensor": ["float64", [true]]}'),
    "half a surrogate": raw(TREE.replace('"text": ""', '"text": "\\ud800"').replace('"values"', '"died"', 1) % "1"),
    "a number of many digits": raw(TREE % ("1" * 9999)),
    "infinite": raw(TREE % "-Infinity"),
    "very deep": raw("[" * 10**5),
    "not UTF-8": (f"tree = bytes([255]) * 9\nforge(raw=len(tree).to_bytes(8) + tree)\n{RIGHT}", FORGE, 0),
    "nothing": ("forge(raw=b'')\n" + RIGHT, FORGE, 0),
    "two keys": raw('{"dict": {}, "tensor": ["float64", [0]]}'),
    "an ugly error": (f"raise ValueError({UGLY!r})", "", 0),
    "a pickle": ("import os, pickle\nforge(raw=pickle.dumps(os.system))\n" + RIGHT, FORGE, 0),
}


# ---- channels between questions: whoever finds a note has wrong answers

SPY = """import ctypes, glob, os, socket, time
NOTE = "note-of-a-stranger"
libc = ctypes.CDLL(None)
def look():
    for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/box", os.environ["HOME"], "/dev/mqueue"):
        yield glob.glob(f"{place}/{NOTE}*")
    for number in filter(str.isdigit, os.listdir("/proc")):
        try: yield NOTE in open(f"/proc/{number}/cmdline").read()
        except OSError: pass
    yield libc.shmget(4711, 0, 0) != -1 or libc.semget(4711, 0, 0) != -1 or libc.msgget(4711, 0) != -1
kept = []
def leave():
    for place in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/box", "/dev/mqueue", os.path.dirname(os.__file__)):
        try: open(f"{place}/{NOTE}", "w").close()
        except OSError: pass
    for name, kind in (("\\0" + NOTE, socket.AF_UNIX), (("127.0.0.1", 47110), socket.AF_INET)):
        server = socket.socket(kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that has ended rests for a minute
        try:
            server.bind(name)
            server.listen()
            kept.append((server, client := socket.socket(kind), client.connect(name), server.accept()))
        except OSError as error: yield f"{name}: {error}"
    libc.shmget(4711, 4096, 0o1666); libc.semget(4711, 1, 0o1666); libc.msgget(4711, 0o1666)
    if not os.fork():
        os.execv("/bin/sh", [NOTE, "-c", "sleep 99", NOTE])
found = [*filter(None, look()), *leave()]
time.sleep(0.5)"""
SPIES = {f"spy {number}": (f"assert not found, found\n{RIGHT}", SPY, 2) for number in range(4)}

# ---- files that are not what they seem

HONEST = submission(Q1_ANSWER)
MUTE = """# EXERCISE q1
class Mute(type):
    def __getattribute__(cls, name): raise SystemExit(name)
class scale(metaclass=Mute): pass"""


def with_cells(*texts):
    """The right answers, and other cells among them."""
    return notebook(SETUP, *texts, Q1_ANSWER, Q2_ANSWER)


def with_required_cells(*texts):
    """As `with_cells`; the answer rests on each of the cells."""
    names = [f"base{number}" for number in range(len(texts))]
    cells = [f"{name} = 0\n{text}" for name, text in zip(names, texts, strict=True)]
    return notebook(SETUP, *cells, Q1_ANSWER.replace(RIGHT, f"{RIGHT} + {' + '.join(names)}"), Q2_ANSWER)


def files():
    """Name: (text, points of both questions)."""
    cells = json.loads(HONEST)["cells"]
    attached = [{**cell, "attachments": {"../a": {"image/png": "x" * 10**6}}} for cell in cells]
    odd = [{**cell(""), "source": source} for source in (5, [1, 2, None], {"a": 1}, None, True, [["x"]])]
    return {
        "null byte": (with_cells("a = 1\0"), [2, 1]),
        "surrogate": (with_cells("a = '\ud800'"), [2, 1]),
        "parentheses": (with_cells("(" * 10**5), [2, 1]),
        "minus signs": (with_cells("-" * 10**5 + "1"), [2, 1]),
        "attributes": (with_cells("a" + ".b" * 10**5), [2, 1]),
        "a long name": (with_cells("a" * 10**5 + " = 1"), [2, 1]),
        "many names": (with_cells("\n".join(f"a{i} = 1" for i in range(30_000))), [2, 1]),
        "magics": (with_cells(f"!touch {NOTE}\n%system id\n%run nothing", "%%bash\nkill -9 1", "%load_ext nothing\n%%%"), [2, 1]),
        "a magic that hangs": (with_cells("!sleep 999"), [2, 1]),
        "cells that stop": (with_cells(*["1 / 0"] * 2000), [2, 1]),
        "answers in thousands": (notebook(SETUP, *["# EXERCISE q1\n1"] * 30_000, Q2_ANSWER), [0, 1]),
        "markers in thousands": (with_cells("# EXERCISE q9\n" * 30_000), [2, 1]),
        "ugly markers": (with_cells("# EXERCISE q1_\n" + "exercise('<script>')" + f"\n{UGLY!r}"), [2, 1]),
        "cells twice, empty last": (HONEST[:-1] + ', "cells": []}', [0, 0]),
        "cells twice, empty first": ('{"cells": [], ' + HONEST[1:], [2, 1]),
        "sources of all kinds": (json.dumps({"cells": [*odd, *cells]}), [2, 1]),
        "types of all kinds": (json.dumps({"cells": [5, None, [], {"cell_type": ["code"]}, *cells]}), [2, 1]),
        "attachments": (json.dumps({"cells": attached}), [2, 1]),
        "worksheets": (json.dumps({"worksheets": [{"cells": cells}]}), [0, 0]),
        "cells in an object": (json.dumps({"cells": {str(i): cell for i, cell in enumerate(cells)}}), [0, 0]),
        "a number without end": ('{"cells": [], "a": ' + "1" * 10**5 + "}", [0, 0]),
        "JSON without end": ("[" * 10**6, [0, 0]),
        "another student's page": ("<!DOCTYPE html><title>3 of 3 points</title><p>✓ right, 2 of 2 points", [0, 0]),
        "another student's notebook": (HONEST, [2, 1]),
        "not a notebook": ("\x7fELF\0\0", [0, 0]),
        "a cell that exits": (with_cells("exit()", "quit()", "raise SystemExit", "raise KeyboardInterrupt"), [2, 1]),
        "a cell that ends all": (with_cells("import os\nos._exit(0)"), [2, 1]),
        "needed magics": (with_required_cells(f"!touch {NOTE}", "%system kill -9 1", "%load_ext nothing"), [2, 1]),
        "a needed magic that hangs": (with_required_cells("!sleep 999"), [2, 1]),
        "needed cells that stop": (with_required_cells(*["1 / 0"] * 500), [2, 1]),
        "needed cells that exit": (with_required_cells("exit()", "raise SystemExit", "raise KeyboardInterrupt"), [2, 1]),
        "a needed cell that ends all": (with_required_cells("import os\nos._exit(0)"), [0, 1]),
        "needed attributes, which end Python": (with_required_cells("a" + ".b" * 10**5), [0, 1]),
        "needed ugly error": (with_required_cells(f"raise ValueError({UGLY!r} * 99)"), [2, 1]),
        "a right number of another type": (notebook(SETUP, Q1_ANSWER, "# EXERCISE q2\nfollowing = lambda n: True"), [2, 0]),
        "a number beyond every float": (notebook(SETUP, Q1_ANSWER, "# EXERCISE q2\nfollowing = lambda n: 10**3999"), [2, 0]),
        "long text": (notebook(SETUP, Q1_ANSWER, "# EXERCISE q2\nfollowing = lambda n: '<b>`' * 10**5"), [2, 0]),
        "a class that answers nothing": (submission(MUTE), [0, 1]),
        **{name: (HONEST, [2, 1]) for name in NAMES},
    }  # fmt: skip


NAMES = (
    "<img src=x onerror=alert(1)>",
    "`{{ 12345 * 54321 }}` {% include 'x' %}",
    "=HYPERLINK(1)",
    "gnp.\u202e",
    "two\nlines\x1b[2J",
    "$x^2$ \\(x\\)",
    "../..%2f..",
    "é" * 100,
    "-rf ~",
    "CON",
)


def everything():
    """Name: (a notebook's text, the points of both questions)."""
    bodies = {**dict(parse_answers()), **FORGED, **SPIES}
    return {name: (answer_with(body, before), [points, 1]) for name, (body, before, points) in bodies.items()} | files()
