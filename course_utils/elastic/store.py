"""The store at which members meet. It is a process of its own, so that it outlives every member.

    python -m course_utils.elastic.store --host 127.0.0.1 --port 29400 --members 3

It is torch's `TCPStore`. torchrun's agents can meet there too: `--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400 --rdzv-conf
is_host=0`. A `TCPStore` asks nobody for a password, so use it only inside a network that you trust.

The same process decides who takes part in a round of `ElasticRounds`. It talks with the members through keys of the store:

| key | written by | what it says |
|---|---|---|
| `members` | a member adds 1 | the number that this member has from now on |
| `beat/MEMBER` | the member, five times a second | a number that grows as long as the member lives |
| `call/MEMBER/K` | the member | its K-th call: it has come to the end of its round, or it leaves |
| `reply/MEMBER/K` | the store | who takes part in the next attempt to end the round |
| `have/ATTEMPT/MEMBER` | the member | 1: it has the attempt's result; 0: it could not get it |
| `verdict/ATTEMPT` | the store | "commit": all have the result, and all apply it. "void": nobody applies it, and all call again |

This is a two-phase commit. A member can die at any instant, and those who are left still agree on every bit.
"""

import argparse
import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from course_utils.errors import CourseError, require_count

SILENCE = 5.0
"""A member whose heartbeat does not change for this many seconds counts as dead until it changes again."""
_TICK = 0.05  # seconds between two looks at the store
_PREFIX = "rounds"


@dataclass
class Member:
    """What the store knows of one member. Times are in seconds of the store's own clock: two machines' clocks may differ."""

    name: str = ""
    calls: int = 0
    call: dict | None = None  # the one that waits for its reply
    called: float = 0.0
    beat: bytes = b""
    heard: float = 0.0
    gone: bool = False
    refused: str = ""  # the sentence for a member that may not take part


class Coordinator:
    """Decides at each look who takes part in the next attempt, and whether the last one counts.

    - As long as nobody has trained, the store waits until `members` have called. They then begin together.
    - Later it waits until every living member has called.
    - It waits for `patience` seconds at most. Then those who have called go on without the others.
    """

    def __init__(self, store: dist.Store, members: int = 1, patience: float = 300.0):
        self.store, self.least, self.patience = dist.PrefixStore(_PREFIX, store), members, patience
        self.members: dict[int, Member] = {}
        self.attempt, self.taking_part = 0, []
        self.clock, self.looked = 0.0, time.monotonic()

    def look(self) -> None:
        """Read what members have written since the last look, and answer."""
        now = time.monotonic()
        self.clock += min(now - self.looked, 10 * _TICK)  # if this process was stopped, the silence is its own
        self.looked = now
        for number in range(1, self.store.add("members", 0) + 1):
            self._listen(number)
        if self.taking_part:
            self._judge()
        elif self._is_complete():
            self._begin_attempt()

    def _listen(self, number: int) -> None:
        member = self.members.setdefault(number, Member(heard=self.clock))
        if (beat := self._read(f"beat/{number}")) != member.beat:
            member.beat, member.heard = beat, self.clock
        if text := self._read(f"call/{number}/{member.calls + 1}"):
            call = json.loads(text)
            if not member.name:
                self._replace(call["name"])
            member.name, member.call, member.called = call["name"], call, self.clock
            member.calls += 1
            self._forget(f"call/{number}/{member.calls}", f"reply/{number}/{member.calls - 1}")
            member.gone |= call["leaves"]
            if member.refused:
                self._refuse(number, member.refused)

    def _replace(self, name: str) -> None:
        """Refuse the earlier member of this name: usually it has died, and the new one is its return."""
        for number in [number for number, member in self.members.items() if member.name == name]:
            self._refuse(number, f"Another member has come under the name {name!r}; give each a name of its own.")

    def _lives(self, number: int) -> bool:
        member = self.members[number]
        return bool(member.name) and not member.gone and self.clock - member.heard < SILENCE

    def _is_complete(self) -> bool:
        """Whether everybody has called, or those who have called have waited long enough."""
        living = [member for number, member in self.members.items() if self._lives(number)]
        called = [member for member in living if member.call]
        trained = [member for member in called if member.call["trained"]]
        if not called or (not trained and len(called) < len(living)):
            return False
        begun = min(member.called for member in trained or called)
        enough = len(called) == len(living) and (trained or len(called) >= self.least)
        return bool(enough) or self.clock - begun > self.patience

    def _begin_attempt(self) -> None:
        """Reply to all who have called. Those of the latest round average; the others get the state from `source`."""
        calls = {number: member.call for number, member in self.members.items() if self._lives(number) and member.call}
        trained = [number for number, call in calls.items() if call["trained"]]
        latest = max(calls[number]["round"] for number in trained or calls)
        averaging = [number for number in trained if calls[number]["round"] == latest]
        source = next(number for number in trained or calls if calls[number]["round"] == latest)
        for number, call in calls.items():
            if call["brings"] != calls[source]["brings"]:
                theirs = calls[source]["brings"]
                self._refuse(number, f"This member brings {call['brings']}, the others {theirs}; train the same model.")
        self.taking_part = [number for number in calls if not self.members[number].gone]
        self.attempt += 1
        names = [self.members[number].name for number in self.taking_part]
        reply = {"attempt": self.attempt, "members": self.taking_part, "names": names}
        for number in self.taking_part:
            self._reply(number, {**reply, "source": source, "averaging": averaging})

    def _judge(self) -> None:
        said = {number: self._read(f"have/{self.attempt}/{number}") for number in self.taking_part}
        if all(word == b"1" for word in said.values()):
            verdict = "commit"
        elif b"0" in said.values() or any(not word and not self._lives(number) for number, word in said.items()):
            verdict = "void"
        else:
            return
        self.store.set(f"verdict/{self.attempt}", verdict)
        self._forget(*(f"have/{self.attempt}/{number}" for number in self.taking_part))
        self._forget(*(f"group/{self.attempt}/0/{rank}" for rank in range(len(self.taking_part))))  # gloo's addresses
        self.taking_part = []

    def _refuse(self, number: int, sentence: str) -> None:
        member = self.members[number]
        member.gone, member.refused = True, sentence
        if member.call:
            self._reply(number, {"refused": sentence})

    def _reply(self, number: int, reply: dict) -> None:
        member = self.members[number]
        self.store.set(f"reply/{number}/{member.calls}", json.dumps(reply))
        member.call = None

    def _forget(self, *keys: str) -> None:
        for key in keys:
            self.store.delete_key(key)

    def _read(self, key: str) -> bytes:
        return self.store.get(key) if self.store.check([key]) else b""


def serve(
    host: str = "127.0.0.1",
    port: int = 29400,
    *,
    members: int = 1,
    patience: float = 300.0,
    say: Callable[[str], None] = print,
) -> None:
    """Run the store until this process ends. When it can be reached, `say` gets one line with its address.

    - `host` is the address to listen at; 0.0.0.0 means every address of this machine. Port 0 takes a free port.
    - The run begins when `members` have come.
    - Members wait for a living member that does not come for `patience` seconds at most. Then they go on without it.
    """
    require_count("members", members)
    try:
        listener = socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise CourseError(f"No store can listen at {host}:{port} ({error}); give another host or port.") from None
    port = listener.getsockname()[1]
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    coordinator = Coordinator(store, members, patience)
    say(f"The store is at {host}:{port}.")
    while True:
        coordinator.look()
        time.sleep(_TICK)


def main() -> None:
    """Run the store until SIGTERM or Ctrl-C; end with code 0."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.elastic.store", description="The store of a run.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0: every address")
    parser.add_argument("--port", type=int, default=29400, help="0: a free one")
    parser.add_argument("--members", type=int, default=1, help="how many must come before the run begins")
    parser.add_argument("--patience", type=float, default=300.0, help="how many seconds to wait for a living member")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        try:
            serve(**vars(parser.parse_args()), say=lambda line: print(line, flush=True))
        except CourseError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
