"""Of the room: whoever is killed, and whenever, the run ends as an undisturbed one does, and leaves no process behind."""

import os
import random
import signal
from contextlib import ExitStack, suppress
from unittest.mock import patch

import psutil
import pytest
from processes import COURSE, TORCHRUN, background_process, flags, is_alive, parameters_in, store, wait_for, workers
from small_job import largest_difference, run_job, write_small_model
from torch.distributed.checkpoint import FileSystemWriter

from course_utils.distributed import RankError, launch
from course_utils.memory.planning.command import FRESH_ADDRESSES
from course_utils.script import checkpoints
from course_utils.script.update_log import last_started_update


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return write_small_model(folder, precision="fp64", steps=6, save_every=2, micro_batch=3, quick=True)


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return run_job({**job, "out": tmp_path_factory.mktemp("reference")})[0]


@pytest.fixture(scope="module")
def long_job(job):
    return {**job, "steps": 200, "save_every": 10}


@pytest.fixture(scope="module")
def undisturbed(long_job, tmp_path_factory):
    return run_job({**long_job, "out": tmp_path_factory.mktemp("undisturbed")})[0]


# Where the checkpoint of update 4 is then: what is called at that moment, and which rank dies there.
MOMENTS = {
    "before the shards": (FileSystemWriter, "write_data", 0),
    "between the shards": (FileSystemWriter, "write_data", 1),
    "between shards and metadata": (FileSystemWriter, "finish", 0),
    "between metadata and name": (checkpoints.os, "replace", 0),
    "before the old ones are dropped": (checkpoints.Checkpoints, "paths", 0),
}


def run_until_killed(fields, moment):
    """A rank that is killed when the second checkpoint comes to this moment."""
    import torch.distributed as dist

    owner, name, rank = MOMENTS[moment]
    original = getattr(owner, name)
    calls = []

    def killed(*arguments, **options):
        calls.append(1)
        if dist.get_rank() == rank and len(calls) == 2 + (name == "paths"):  # it is looked at once when the run begins
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    with patch.object(owner, name, killed):
        return run_job(fields)


# Those with "metadata" are the two instants at which all data is there and no checkpoint is.
OFTEN = [moment if "metadata" in moment else pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS]


@pytest.mark.parametrize("moment", OFTEN)
def test_there_is_always_one_good_checkpoint(job, reference, moment, tmp_path):
    fields = {**job, "strategy": "fsdp2", "out": tmp_path}
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        launch(run_until_killed, 2, fields, moment)
    resumed, _ = launch(run_job, 2, fields)
    assert min(resumed[1]) in (3, 5)
    assert largest_difference(resumed[0], reference) < 1e-10


def kill_a_worker(out, agent, chance):
    """A worker killed, a while after it and the other have made an update; with it the processes that were there."""
    team = wait_for(lambda: len(workers(agent)) == 2 and workers(agent))
    before = last_started_update(out)
    wait_for(lambda: last_started_update(out) != before)
    wait_for(lambda: chance.random() < 0.1)
    pids = {worker.pid for worker in team}
    with suppress(psutil.NoSuchProcess):
        pids |= {child.pid for worker in team for child in worker.children(recursive=True)}
    chance.choice(team).kill()
    wait_for(lambda: not any(is_alive(worker.pid) for worker in team))
    return pids


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thirty_workers_killed_in_a_row(long_job, undisturbed, tmp_path):
    kills, chance = 30, random.Random(1)
    fields = {**long_job, "strategy": "fsdp2"}
    command = [*COURSE, "--ranks", 2, "--max-restarts", 100, *flags(fields, tmp_path / "run")]
    with background_process(command, tmp_path / "output.log") as agent:
        seen = set().union(*(kill_a_worker(tmp_path / "run", agent.pid, chance) for _ in range(kills)))
        assert agent.wait(240) == 0
        wait_for(lambda: not any(map(is_alive, seen)), 3)
    output = (tmp_path / "output.log").read_text(encoding="utf-8", errors="replace")
    assert "Connection refused" not in output
    assert output.count("computed again") == kills
    assert largest_difference(parameters_in(tmp_path / "run", 200), undisturbed) < 1e-10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_agents_killed_and_started_again(long_job, undisturbed, tmp_path):
    """As Slurm would. The store is a process of its own, and a killed agent's worker ends within three seconds."""
    fields, chance = {**long_job, "strategy": "ddp"}, random.Random(2)
    with ExitStack() as stack:
        address = stack.enter_context(store(tmp_path / "store.txt"))
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-id", "job"]
        rendezvous += ["--rdzv-conf", "is_host=0,keep_alive_interval=1", "--max-restarts", 100, "--nnodes", 2]
        command = [*TORCHRUN, *rendezvous, "--nproc-per-node", 1, "-m", "course_utils.cli", "train"]
        command += flags(fields, tmp_path / "run")

        def start(number):
            return stack.enter_context(background_process(command, tmp_path / f"agent {number}.log", **FRESH_ADDRESSES))

        agents = [start(0), start(1)]
        for _ in range(5):
            before = last_started_update(tmp_path / "run")
            wait_for(lambda before=before: last_started_update(tmp_path / "run") != before, 120)
            number = chance.randrange(2)
            [worker] = workers(agents[number].pid)
            os.kill(agents[number].pid, signal.SIGKILL)
            wait_for(lambda worker=worker: not is_alive(worker.pid), 3)
            agents[number] = start(number)
        assert [agent.wait(240) for agent in agents] == [0, 0]
    assert largest_difference(parameters_in(tmp_path / "run", 200), undisturbed) < 1e-10
