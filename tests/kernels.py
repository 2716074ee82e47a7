"""Kernels that are forked from one process, which has imported what nearly every chapter does: `make test` runs some two dozen.

`python kernels.py serve SOCKET` imports and forks; `python -S kernels.py start SOCKET CONNECTION_FILE` is what Jupyter takes for
the kernel: it ends with it, and the kernel with it.
"""

import json
import os
import socket
import sys

NAME = "forked"
"""What Jupyter calls such a kernel, while there are any."""
_IMPORTED = (
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "sklearn.model_selection",
    "torch._dynamo",
    "torch.distributed.optim",
    "torch.utils.flop_counter",
    "transformers.models.distilbert.modeling_distilbert",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "accelerate",
    "datasets",
    "course_utils.distributed",
    "course_utils.grading.check",
    "course_utils.memory",
    "course_utils.models",
    "course_utils.training",
    "course_utils.viz",
)


def offer():
    """Start the process and let Jupyter know of its kernels, here and in processes started from now on; gives what ends it."""
    import contextlib
    import subprocess
    import tempfile
    from pathlib import Path

    ending = contextlib.ExitStack()
    folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
    spec = folder / "kernels" / NAME / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [sys.executable, "-S", "-E", __file__, "start", str(folder / "socket"), "{connection_file}"]
    spec.write_text(json.dumps({"argv": command, "display_name": NAME, "language": "python"}))
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", str(folder / "socket")],
        env={**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline", "JUPYTER_PATH": str(folder)},
        stdin=subprocess.PIPE,  # closed when this process ends, however that comes
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ending.callback(server.kill)
    os.environ["JUPYTER_PATH"] = str(folder)
    return ending.close


def serve(address):
    """Fork for every connection, until stdin is closed; what comes over a connection is the kernel's environment."""
    import gc
    import select
    import signal
    import threading
    from importlib import import_module

    import pandas

    for name in _IMPORTED:
        import_module(name)
    _measure_once()
    pandas.set_option("display.max_columns", 20)  # its choice where a kernel imports it, and not a terminal
    assert threading.active_count() == 1, threading.enumerate()  # others would not be there after a fork
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            os.setsid()
            _run(connection)
        connection.close()


def _measure_once():
    """The rates of this machine, which nearly every chapter asks for."""
    from course_utils import hardware
    from course_utils.settings import settings

    for dtypes in (["float32"], ["float32", "bfloat16"]):
        hardware.calibrate(dtypes, exchange=False)
    settings.cache_clear()


def _run(connection):
    import signal
    import threading

    from ipykernel.kernelapp import launch_new_instance

    from course_utils.distributed.launch import fork_server

    with connection.makefile() as lines:
        request = json.loads(lines.readline())
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    fork_server()

    def end_with_the_other_side():
        connection.recv(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_the_other_side, daemon=True).start()
    sys.argv = ["ipykernel_launcher", "-f", request["file"]]
    sys.path[0] = ""
    try:
        launch_new_instance()
    finally:
        os._exit(0)


def start(address, file):
    """Ask for a kernel and wait for its end."""
    import time

    with socket.socket(socket.AF_UNIX) as connection:
        while not os.path.exists(address):  # what has to be imported, the first kernel waits for, as it would alone
            time.sleep(0.05)
        connection.connect(address)
        request = {"environment": dict(os.environ), "folder": os.getcwd(), "file": file}
        connection.sendall(json.dumps(request).encode() + b"\n")
        connection.recv(1)


if __name__ == "__main__":
    {"serve": serve, "start": start}[sys.argv[1]](*sys.argv[2:])
