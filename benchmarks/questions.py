"""The questions of docs/plan.md and their answers: every command there, run again; `--write` puts the answers in."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "plan.md"
_BLOCK = re.compile(r"```console\n\$ (?P<command>course plan .*)\n(?P<answer>[^`]*)```")


def questions() -> list[re.Match]:
    """Every command of the document with the answer that stands there."""
    return list(_BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")))


def answer(command: str) -> str:
    """Its output, worked out anew."""
    argv = [sys.executable, "-m", "course_utils.cli", "plan", "--again", *shlex.split(command)[2:]]
    process = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    if not process.stdout:
        raise SystemExit(f"{command}: {process.stderr}")
    return "\n".join(line.rstrip() for line in process.stdout.splitlines()) + "\n"


def main():
    """Say which answers changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write, text = parser.parse_args().write, DOCUMENT.read_text(encoding="utf-8")
    for question in questions():
        output = answer(question["command"])
        print(f"{'as before' if output == question['answer'] else 'changed'}: {question['command']}", flush=True)
        text = text.replace(question[0], f"```console\n$ {question['command']}\n{output}```")
        if write:
            DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
