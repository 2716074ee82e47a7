"""Agents of torchrun on this machine, each a node with one rank that runs `course train`."""

import os
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import torch.distributed as dist

from course_utils.distributed.launch import start
from course_utils.distributed.worker import LOOPBACK
from course_utils.errors import CourseError
from course_utils.memory.planning.command import FRESH_ADDRESSES
from course_utils.script.parent import end_with_starter
from course_utils.settings import environment_for_child, set_variable

_GRACE_SECONDS = 5.0  # seconds in which a killed process is gone


def torchrun_arguments(address: str, nodes: int, flags: Sequence[str]) -> list[str]:
    """The arguments of `torchrun` for each agent; `address` is the store's, `flags` are those of `course train`."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-id", "job"]
    rendezvous += ["--rdzv-conf", "is_host=0,keep_alive_interval=1", "--local-addr", "127.0.0.1"]
    counts = ["--nnodes", str(nodes), "--nproc-per-node", "1", "--max-restarts", "3"]
    return [*counts, *rendezvous, "-m", "--", "course_utils.cli", "train", *flags]


class Agents:
    """`nodes` agents that meet at a store of this process. Agent K writes to `agent-K.log` in `folder`.

    It is a context, at whose end no agent and no rank is left.
    """

    def __init__(self, folder: Path, nodes: int, flags: Sequence[str]):
        self.folder = folder
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        # Without a folder for logs each agent would leave one of its own.
        self.arguments = ["--log-dir", str(folder), *torchrun_arguments(f"127.0.0.1:{self.store.port}", nodes, flags)]
        self.agents: dict[int, BaseProcess] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in self.agents:
            self.kill(number)

    def start(self, number: int) -> None:
        """Begin agent `number`, or begin it again."""
        environment = environment_for_child(OMP_NUM_THREADS="1", COURSE_DEVICE="cpu", **LOOPBACK, **FRESH_ADDRESSES)
        self.agents[number] = start(_run_agent, self.arguments, self.folder / f"agent-{number}.log", environment)

    def kill(self, number: int) -> None:
        """SIGKILL for the agent and for its rank, as where a machine is lost."""
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self.agents[number].pid)
            agent.suspend()  # else it may begin a rank while it is looked at
            processes = [agent, *agent.children(recursive=True)]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=_GRACE_SECONDS)
        self.agents[number].join()

    def output(self) -> str:
        """All that the agents and their ranks have written."""
        files = sorted(self.folder.glob("agent-*.log"))
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

    @property
    def have_ended(self) -> bool:
        """Whether all agents have ended. Raises `CourseError` where one ended badly."""
        codes = [agent.exitcode for agent in self.agents.values()]
        if any(codes):
            raise CourseError(
                f"An agent of torchrun ended with code {max(codes, key=bool)}; it said: {self.output()[-1000:]}"
            )
        return None not in codes


def _run_agent(arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
    """Do what `torchrun` does with these words."""
    for name, value in environment.items():
        set_variable(name, value)
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    end_with_starter()
    from torch.distributed.run import main

    main(list(arguments))
