"""Run claims over seeds that no chapter uses: `COURSE_SCALE=laptop python -m benchmarks.claims 02 07-root`."""

import argparse
import sys

from benchmarks.claims import SEEDS, load


def main() -> int:
    """Print a line for each claim with the seeds on which it failed; 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of claims' names; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parsed = parser.parse_args()
    failures = 0
    for name, holds in load().items():
        if name.startswith(tuple(parsed.names) or ""):
            against = [seed for seed in parsed.seeds if not holds(seed)]
            failures += bool(against)
            outcome = f"fails with {', '.join(map(str, against))}" if against else "holds"
            print(f"{name:30} {outcome} ({len(parsed.seeds) - len(against)} of {len(parsed.seeds)} seeds)", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
