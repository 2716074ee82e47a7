"""What `course train` adds to the same training written bare, and how soon a killed run is at work again.

`--what speed`: DDP or FSDP2 on two ranks of this machine, eleven pairs of twenty updates, in turn update by update; of the ratio
of seconds the median and its 95 % interval (order statistics). `--what restart`: ten killed workers, seconds until the
next update.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_utils import data, models
from course_utils.distributed import launch
from course_utils.memory.step.sharded import units_of
from course_utils.script import Job
from course_utils.script.examples import Order
from course_utils.script.expectation import Expectation
from course_utils.script.loop import JobRun, prepare
from course_utils.script.rank import find_rank
from course_utils.script.reporter import Reporter
from course_utils.script.update_log import UPDATE_FILE
from course_utils.settings import environment_for_child

PAIRS, UPDATES = 11, 20
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}


def make_job(folder: Path, **changes) -> Job:
    """A small language model on the course's functions, in micro-batches of 4."""
    config = models.configuration("llama", **SIZES)
    (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    texts = data.load_functions()["validation"]["text"]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    fields = {"sequence": 128, "batch": 16, "micro_batch": 4, "steps": 10_000, "clipping": True, "quick": True}
    fields |= {"model": str(folder / "config.json"), "data": folder / "text.txt", "out": folder / "run"}
    return Job(**fields | changes)


class Bare:
    """The same training by hand: nothing is logged, saved or looked up."""

    def __init__(self, job: Job, source, examples):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.model = model = source.make()
        if job.strategy == "ddp":
            self.model = DistributedDataParallel(model)
        else:
            for unit in [*units_of(model), model]:
                fully_shard(unit)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        order, per_rank = Order(len(examples), job.batch, 0), job.batch // ranks
        rows = [order[step][rank * per_rank : (rank + 1) * per_rank] for step in range(200)]
        self.batches = [[examples[step[i : i + 4]] for i in range(0, per_rank, 4)] for step in rows]
        self.ddp = job.strategy == "ddp"

    def update(self, number: int) -> None:
        """Make update `number`."""
        batches = self.batches[number % len(self.batches)]
        for batch in batches:
            if self.ddp:
                self.model.require_backward_grad_sync = batch is batches[-1]
            (self.model(**batch).loss / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def pairs(folder: Path, strategy: str) -> list[float]:
    """Seconds of `course train` over those of the bare loop, pair by pair."""
    job = make_job(folder, strategy=strategy)
    this_rank = find_rank()
    split, source, examples = prepare(job, this_rank.world_size)
    bare = Bare(job, source, examples)
    ratios = []
    run = JobRun(split, source, examples, this_rank, print)
    reporter = Reporter(run, Expectation())
    for pair in range(PAIRS + 1):
        ours = bares = 0.0
        for number in range(UPDATES):
            for ours_now in (True, False) if number % 2 else (False, True):
                dist.barrier()
                began = time.perf_counter()
                if ours_now:
                    reporter.add(run.make_update(pair * UPDATES + number + 1))
                    ours += time.perf_counter() - began
                else:
                    bare.update(number)
                    bares += time.perf_counter() - began
        ratios.append(ours / bares)
    return ratios[1:]  # the first pair warms up


def restarts(folder: Path, kills: int) -> list[float]:
    """Seconds from a killed worker to the next update, on two ranks that save every tenth."""
    job = make_job(folder, strategy="fsdp2", save_every=10, steps=100_000)
    command = [sys.executable, "-m", "course_utils.cli", "train", "--ranks", "2", "--max-restarts", "100", *job.flags()]
    at_work, seconds = job.out / UPDATE_FILE, []
    with (folder / "agent.log").open("w") as log:
        agent = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment_for_child(OMP_NUM_THREADS="1"), start_new_session=True
        )
    try:
        for _ in range(kills + 1):
            began, before = time.perf_counter(), _text(at_work)
            while _text(at_work) in (before, ""):
                time.sleep(0.01)
                if agent.poll() is not None or time.perf_counter() - began > 120:
                    raise SystemExit((folder / "agent.log").read_text())
            seconds.append(time.perf_counter() - began)
            time.sleep(1.0)
            workers = [child for child in psutil.Process(agent.pid).children() if "train" in child.cmdline()]
            workers[len(seconds) % 2].kill()
            # The other one still makes updates for a moment, until it misses the one that was killed.
            psutil.wait_procs(workers, timeout=30)
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
    return seconds[1:]


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""


def main():
    """Print a row for each strategy, and the median of the restarts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=["speed", "restart"], default="speed")
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.what == "restart":
            measured = sorted(restarts(folder, arguments.kills))
            print(
                f"restart: median {statistics.median(measured):.1f} s, from {measured[0]:.1f} to {measured[-1]:.1f} s"
            )
            return
        for strategy in ("ddp", "fsdp2"):
            (folder / strategy).mkdir()
            measured = sorted(launch(pairs, 2, folder / strategy, strategy, seconds=600)[0])
            # Of eleven values, the second and the last but one enclose the median in 98.8 of 100.
            low, high = measured[1], measured[-2]
            print(f"{strategy}: median {statistics.median(measured):.3f}, 95 % interval {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
