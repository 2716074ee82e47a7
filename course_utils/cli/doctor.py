"""`course doctor`."""

import argparse

HELP = "say what this machine has, what of the course runs on it, and how to put right what does not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Print a line per finding; 1 where something must be put right."""
    from course_utils.desk.doctor import examine, verdict

    findings = []
    for finding in examine():
        print(finding, flush=True)
        findings.append(finding)
    print(f"\n{verdict(findings)}")
    return 1 if any(finding.mark == "fix" for finding in findings) else 0
