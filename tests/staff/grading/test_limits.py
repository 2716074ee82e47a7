"""What a question's processes take together is seen, and what is too much of it."""

import os
import subprocess
import sys

import psutil
import pytest

from course_staff.grading import limits


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is known of it")
def test_what_a_family_computed_is_what_the_system_says():
    since = limits.uptime()
    program = "import os; os.fork(); sum(range(10**7)); os.write(1, b'.'); os.read(0, 1)"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.read(2) == b".."
        family = [psutil.Process(child.pid), *psutil.Process(child.pid).children()]
        took = sum(sum(process.cpu_times()[:2]) for process in family)
        assert limits.seconds_computed(child.pid, since) == pytest.approx(took, abs=0.05)
        assert limits.seconds_computed(child.pid, limits.uptime() + 1) == 0
    finally:
        child.communicate(b"..")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is read")
def test_too_many_processes_or_files_and_too_much_memory_or_time_are_seen():
    family = limits.Family(os.getpid(), ["/dev/shm"])
    enough = limits.Limits(process_bytes=2**40, processes=10**6, seconds_ahead=10.0**6, files=10**9)
    assert family.excess(enough) == 0
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in {process.number for process in limits.descendants(os.getpid())}
        assert family.excess(enough._replace(processes=0)) == limits.TOO_MANY_PROCESSES
        assert family.excess(enough._replace(files=0)) == limits.TOO_MANY_FILES
        assert family.excess(enough._replace(process_bytes=0)) == limits.TOO_MUCH_MEMORY
        assert family.excess(enough._replace(seconds_ahead=-(10.0**6))) == limits.TOO_MUCH_TIME
    finally:
        child.kill()
        child.communicate()
