"""What a probe says."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What a probe found. `mark`: all is well (`ok`), good to know (`note`), or to be put right by the `remedy` (`fix`)."""

    mark: Literal["ok", "note", "fix"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.mark:4}  {self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")
