"""Local SGD and DiLoCo with members that may die and come back.

A member is a process with a name, on one machine or on several. Each member trains alone for a round. At the end of the round
all living members meet and average. If one has died, the others average without it and lose nothing. A member that comes back
waits for the end of the round, gets the state from the others, and trains along. The process that runs `serve` decides who
takes part; `course_utils.elastic.store` shows what it and the members tell each other.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from course_utils.distributed.local_sgd import OuterNesterov
from course_utils.errors import CourseError

_BEAT = 0.2  # seconds
_PREFIX = "rounds"


@dataclass
class Meeting:
    """What a member gets in one attempt to end a round. It applies this only if the attempt counts."""

    header: torch.Tensor  # rounds and steps done, this round included
    mean: torch.Tensor
    start: torch.Tensor
    velocity: torch.Tensor
    group: dist.ProcessGroupGloo | None = None  # kept for the others, who may still receive from it


class ElasticRounds:
    """Rounds of local SGD (Stich 2019), or of DiLoCo (Douillard et al. 2023) with an `outer_optimizer`, that members may leave.

        with ElasticRounds("127.0.0.1:29400", "ada", net.parameters(), outer_optimizer=OuterNesterov()) as rounds:
            rounds.join()
            while rounds.round < 100:
                for _ in range(50):
                    ...  # an inner step
                rounds.average(steps=50)

    - `store` is the address of the process that runs `serve`. With several machines, do not use 127.0.0.1: a member tells the
      others the address from which it reaches the store.
    - `name` is this member's own. A process that comes back uses its old name.
    - `timeout` is how many seconds this member waits for a meeting. It must be longer than a round.
    - `group_timeout`: an attempt fails after this many seconds without a byte from another member. A killed member is noticed
      sooner, because its heartbeat stops.

    `round` and `step` count what the run has done; `members` has the names of those at the last meeting. `start` has the
    parameters at the last average and `velocity` the outer momentum, both as one flat tensor on the CPU.
    """

    def __init__(
        self,
        store: str,
        name: str,
        parameters: Iterable[torch.Tensor],
        *,
        outer_optimizer: OuterNesterov | None = None,
        timeout: float = 600.0,
        group_timeout: float = 30.0,
    ):
        self.parameters, self.outer_optimizer = list(parameters), outer_optimizer
        self.name, self.timeout, self.group_timeout = name, timeout, group_timeout
        self._place, self.members = _place(store), []
        self.round = self.step = self._calls = 0
        self.start, self._left = self._flat(), threading.Event()
        self.velocity = torch.zeros_like(self.start)
        self._tells, self._hears = self._connect(), self._connect()  # a connection that waits cannot send
        with self._sentence():
            self._number = self._tells.add("members", 1)
        self._heart = threading.Thread(target=self._beat, name="heartbeat")
        self._exchanges: list[threading.Thread] = []
        self._failure = ""

    def __enter__(self) -> "ElasticRounds":
        return self

    def __exit__(self, *_) -> None:
        self.leave()

    def state(self) -> dict:
        """`round`, `step`, and copies of `start` and `velocity`: what a checkpoint needs, and `join` takes."""
        return {"round": self.round, "step": self.step, "start": self.start.clone(), "velocity": self.velocity.clone()}

    def join(self, state: dict | None = None) -> dict:
        """Wait for the end of the round under way, take over the state of the others, and return it.

        This sets the parameters too. If nobody has trained yet, all begin together: from the latest `state` that one of them
        brings, such as that of a checkpoint, or else from round 0 and the parameters of the member that came first.
        """
        if state:
            self.round, self.step = state["round"], state["step"]
            self.start.copy_(state["start"])
            self.velocity.copy_(state["velocity"])
        self._heart.start()
        self._meet(steps=0, trained=False)
        return self.state()

    def average(self, steps: int = 1) -> int:
        """End a round of `steps` inner steps, and set the parameters to those of the next round's start.

        Returns how many members' parameters are in the mean. If the others have gone on without this member, it gets their
        state as a newcomer does, and its own round is lost.
        """
        return self._meet(steps, trained=True)

    def leave(self) -> None:
        """Leave the run: the others no longer wait for this member."""
        self._left.set()
        if self._heart.is_alive():
            self._heart.join()
            with suppress(RuntimeError):  # a store that is gone waits for nobody
                self._call(leaves=True)
        for exchange in self._exchanges:
            exchange.join(self.group_timeout)  # Python must not end while gloo still runs

    @torch.no_grad()
    def _meet(self, steps: int, trained: bool) -> int:
        own, deadline = self._flat(), time.monotonic() + self.timeout
        while True:
            with self._sentence():
                self._call(trained=trained, round=self.round, brings=f"{own.numel()} numbers of {own.dtype}")
            reply = json.loads(self._await(f"reply/{self._number}/{self._calls}", deadline))
            if "refused" in reply:
                raise CourseError(reply["refused"])
            meeting = self._prepare(own, reply, steps)
            # In a thread, because gloo may wait for a dead member long after the store has begun the next attempt.
            exchange = threading.Thread(target=self._exchange, args=(meeting, reply), daemon=True)
            self._exchanges = [other for other in self._exchanges if other.is_alive()] + [exchange]
            exchange.start()
            if self._await(f"verdict/{reply['attempt']}", deadline) == b"commit":
                self._failure = ""
                self._apply(meeting, reply)
                return len(reply["averaging"])

    def _prepare(self, own: torch.Tensor, reply: dict, steps: int) -> Meeting:
        counted = bool(reply["averaging"])  # a beginning is no round
        header = torch.tensor([self.round + counted, self.step + steps])
        mean = own if self._number in reply["averaging"] else torch.zeros_like(own)
        return Meeting(header, mean.clone(), self.start.clone(), self.velocity.clone())

    def _exchange(self, meeting: Meeting, reply: dict) -> None:
        """Fill in the meeting, and tell the store whether that worked."""
        word = f"have/{reply['attempt']}/{self._number}"
        with suppress(CourseError, RuntimeError):  # the store is gone: `_await` says so
            store = self._connect()
            try:
                meeting.group = self._build_group(store, reply)
                self._communicate(meeting, reply)
            except (RuntimeError, OSError) as error:
                self._failure = f"; the last attempt failed: {' '.join(str(error).split())[:200]}"
                store.set(word, "0")
            else:
                store.set(word, "1")

    def _build_group(self, store: dist.Store, reply: dict) -> dist.ProcessGroupGloo:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._own_address())]
        options._timeout = timedelta(seconds=self.group_timeout)
        rank, size = reply["members"].index(self._number), len(reply["members"])
        return dist.ProcessGroupGloo(dist.PrefixStore(f"group/{reply['attempt']}", store), rank, size, options)

    def _communicate(self, meeting: Meeting, reply: dict) -> None:
        source, averaging = reply["members"].index(reply["source"]), reply["averaging"]
        state = [meeting.start, meeting.velocity] if reply["members"] != averaging else []  # a newcomer needs it
        for tensor in [meeting.header, *state]:
            _broadcast(meeting.group, tensor, source)
        if averaging:
            meeting.group.allreduce([meeting.mean]).wait()
            meeting.mean /= len(averaging)

    def _apply(self, meeting: Meeting, reply: dict) -> None:
        self.round, self.step = meeting.header.tolist()
        self.start, self.velocity, self.members = meeting.start, meeting.velocity, reply["names"]
        if reply["averaging"] and self.outer_optimizer:
            self.outer_optimizer.step(self.start, meeting.mean, self.velocity)
        elif reply["averaging"]:
            self.start = meeting.mean
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, value in zip(self.parameters, self.start.split(sizes), strict=True):
            parameter.copy_(value.view_as(parameter))

    def _flat(self) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1).cpu() for parameter in self.parameters])

    def _beat(self) -> None:
        beats = 0
        with suppress(RuntimeError):  # the store is gone: the next call says so
            while threading.main_thread().is_alive():
                beats += 1
                self._tells.set(f"beat/{self._number}", str(beats))
                if self._left.wait(_BEAT):
                    return

    def _call(self, leaves: bool = False, **what) -> None:
        self._calls += 1
        call = json.dumps({"name": self.name, "leaves": leaves, **what})
        self._tells.set(f"call/{self._number}/{self._calls}", call)

    def _await(self, key: str, deadline: float) -> bytes:
        seconds = deadline - time.monotonic()

        def wait() -> bytes:
            self._hears.wait([key], timedelta(seconds=seconds))
            return self._hears.get(key)

        with self._sentence():
            if seconds < 0.01:
                raise TimeoutError
            return _within(seconds + 1, wait)

    def _connect(self) -> dist.Store:
        """A connection of its own to the store."""
        host, port = self._place
        try:  # first by Python's own means: a `TCPStore` fills the screen while it tries
            socket.create_connection((host, port), self.group_timeout).close()
            limit = timedelta(seconds=self.group_timeout)
            store = _within(self.group_timeout, lambda: dist.TCPStore(host, port, is_master=False, timeout=limit))
        except (OSError, RuntimeError) as error:
            raise CourseError(
                f"No store answers at {host}:{port} ({error}); start one: python -m course_utils.elastic.store."
            ) from None
        return dist.PrefixStore(_PREFIX, store)

    def _own_address(self) -> str:
        """The address of this machine from which it reaches the store; the other members find it there."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # UDP: nothing is sent
            probe.connect(self._place)
            return probe.getsockname()[0]

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        """Turn torch's errors about the store into one sentence."""
        host, port = self._place
        try:
            yield
        except (dist.DistStoreError, TimeoutError):
            raise CourseError(
                f"The round did not end within {self.timeout:g} s: look whether the store at {host}:{port} and the other "
                f"members still run and reach each other, or give a longer `timeout`{self._failure}."
            ) from None
        except RuntimeError:
            raise CourseError(
                f"The store at {host}:{port} is gone; start it again, and then the members from their checkpoints."
            ) from None


def _within(seconds: float, work: Callable):
    """What `work` returns. Raises `TimeoutError` if it takes longer: torch itself can wait for a stopped store forever."""
    ended = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except RuntimeError as error:
            ended.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        raise TimeoutError(f"no answer within {seconds:g} s")
    result, error = ended[0]
    if error:
        raise error
    return result


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CourseError(f"{address!r} is no store's address; give one such as 127.0.0.1:29400.")
    return host, int(port)


def _broadcast(group: dist.ProcessGroupGloo, tensor: torch.Tensor, source: int) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    group.broadcast([tensor], options).wait()
