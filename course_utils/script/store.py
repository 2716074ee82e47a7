"""The store at which torchrun's agents meet. It is a process of its own, so that it outlives every agent.

    python -m course_utils.script.store --host 127.0.0.1 --port 29400

It is torch's `TCPStore`, for `--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400 --rdzv-conf is_host=0`. A `TCPStore` asks
nobody for a password, so use it only inside a network that you trust.
"""

import argparse
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist

from course_utils.errors import CourseError


def serve(host: str = "127.0.0.1", port: int = 29400, say: Callable[[str], None] = print) -> None:
    """Run the store until this process ends. When it can be reached, `say` gets one line with its address.

    `host` is the address to listen at; 0.0.0.0 means every address of this machine. Port 0 takes a free port. Raises
    `CourseError` where it cannot listen there.
    """
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise CourseError(f"No store can listen at {host}:{port} ({error}); give another host or port.") from None
    port = listener.getsockname()[1]
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    say(f"The store is at {host}:{store.port}.")
    while True:
        time.sleep(3600)


def main() -> None:
    """Run the store until SIGTERM or Ctrl-C; end with code 0."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.script.store", description="The store of a run.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0: every address")
    parser.add_argument("--port", type=int, default=29400, help="0: a free one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        try:
            serve(**vars(parser.parse_args()), say=lambda line: print(line, flush=True))
        except CourseError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
