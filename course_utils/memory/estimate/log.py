"""A book of births and deaths: which pieces of memory are in use at each moment of a step worked out on paper."""

from dataclasses import dataclass, field


@dataclass
class Entry:
    """One piece as the book remembers it: `exact` bytes (a number or an expression) and those the allocator gives for them."""

    exact: object
    bytes: object
    kind: str
    name: str
    part: str


@dataclass
class Log:
    """`events` are (index of the entry, +1 or -1, stage), in order; an index of -1 marks a moment and changes nothing.

    The allocator gives multiples of `grain` bytes.
    """

    entries: list[Entry] = field(default_factory=list)
    events: list[tuple[int, int, str]] = field(default_factory=list)
    stage: str = ""
    grain: int = 1

    def new(self, size, kind: str, name: str, part: str = "") -> "Piece":
        """A piece born now; it dies when the last reference to it does, as a tensor's memory does."""
        rounded = -(-size // self.grain) * self.grain if isinstance(size, int) else size
        return Piece(self, Entry(size, rounded, kind, name, part))

    def mark(self, stage: str) -> None:
        """From now on the events belong to `stage`."""
        self.stage = stage
        self.events.append((-1, 0, stage))


class Piece:
    """Memory behind a tensor and its views."""

    __slots__ = ("_index", "_log")

    def __init__(self, log: Log, entry: Entry):
        self._log, self._index = log, len(log.entries)
        log.entries.append(entry)
        log.events.append((self._index, 1, log.stage))

    def become(self, kind: str, name: str, part: str) -> None:
        """Be booked as something else, from birth on: a finished gradient was one all along."""
        entry = self._log.entries[self._index]
        entry.kind, entry.name, entry.part = kind, name, part

    def __del__(self):
        self._log.events.append((self._index, -1, self._log.stage))
