"""Ranks in real processes: what they give, what their failures say, and that none is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils.distributed import RankError, launch
from course_utils.errors import CourseError


def sum_over_ranks(number: int):
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total + number


def unlucky():
    if dist.get_rank() == 1:
        raise ValueError("no luck")
    dist.all_reduce(torch.ones(1))


def test_every_rank_gives_its_result_in_order_though_this_process_has_computed():
    assert torch.ones(300, 300).mm(torch.ones(300, 300)).sum()
    assert launch(sum_over_ranks, 3, 10) == [(rank, 3, torch.tensor([16.0])) for rank in range(3)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")
def test_ready_comes_back_when_the_server_has_imported(tmp_path):
    """The server imports the models' modules that this process has; here a slow one, which notes who has imported it."""
    models = tmp_path / "transformers" / "models"
    models.mkdir(parents=True)
    for folder in (models.parent, models):
        (folder / "__init__.py").touch()
    (models / "slow.py").write_text(
        "import os, time, pathlib; time.sleep(1); pathlib.Path(__file__).with_name(f'by {os.getpid()}').touch()"
    )
    code = (
        "import sys; from pathlib import Path; from course_utils.distributed import launch; import transformers.models.slow\n"
        "sys.modules[launch.__module__].wait_for_server()\n"
        "assert len(list(Path(sys.argv[1]).glob('by *'))) == 2"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])  # the server's too
    subprocess.run(
        [sys.executable, "-c", code, str(models)], check=True, timeout=120, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_function_of_a_notebook_crosses_by_value():
    names = {"__name__": "__main__"}
    exec("import torch.distributed as dist\ndef work(): return dist.get_rank() * factor\nfactor = 3", names)
    assert launch(names["work"], 2) == [0, 3]


def test_threads_are_shared_out():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert launch(torch.get_num_threads, 2) == [2, 2]
    finally:
        torch.set_num_threads(before)


def test_the_first_failure_is_told_with_its_place_and_not_what_follows_from_it():
    with pytest.raises(RankError, match=r"Rank 1 of 2 stopped with ValueError: no luck, at line \d+") as failure:
        launch(unlucky, 2)
    file, line = failure.value.place
    assert file == __file__
    assert "ValueError" in Path(file).read_text().splitlines()[line - 1]
    assert "unlucky" in failure.value.trace


@pytest.mark.parametrize("world_size", [0, True, 2.0])
def test_a_world_without_ranks_is_refused(world_size):
    with pytest.raises(CourseError, match="give a world size from 1 on"):
        launch(sum_over_ranks, world_size)


@pytest.mark.parametrize("seconds", [0, None, float("inf"), float("nan")])
def test_no_time_at_all_is_refused(seconds):
    with pytest.raises(CourseError, match="give a number above 0"):
        launch(sum_over_ranks, 2, seconds=seconds)


def end_of_the_group():
    dist.destroy_process_group()
    return "done"


def test_work_may_end_its_group_itself():
    assert launch(end_of_the_group, 2) == ["done", "done"]


class NotHere:
    def __reduce__(self):
        return not_here, ()


def not_here():
    if not dist.is_initialized():
        raise ValueError("not in this process")
    return NotHere()


def test_a_result_that_cannot_be_read_is_told_with_its_rank():
    with pytest.raises(RankError, match="Rank 0 of 2 gave a result that cannot be read here .not in this process"):
        launch(NotHere, 2)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux gives a process its cores")
def test_ranks_that_are_done_at_once_do_not_leave_the_others_alone():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for _ in range(40):
            assert launch(dist.get_rank, 4) == [0, 1, 2, 3]
    finally:
        os.sched_setaffinity(0, cores)
