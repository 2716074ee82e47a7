"""`course doctor`, which reports what this machine has and lacks."""

import argparse

HELP = "report what this machine has, what runs on it, and how to fix what does not"


def run(arguments: argparse.Namespace) -> int:
    """Print a line per finding; return 1 if something must be fixed."""
    from course_utils.desk.doctor import examine, verdict

    findings = []
    for finding in examine():
        print(finding, flush=True)
        findings.append(finding)
    print(f"\n{verdict(findings)}")
    return 1 if any(finding.level == "fix" for finding in findings) else 0
