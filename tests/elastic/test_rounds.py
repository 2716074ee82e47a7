"""Rounds of those that are there, beside DiLoCo computed in one process; members are killed at every place, and come back."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from course_utils.distributed import OuterNesterov
from course_utils.elastic import ElasticRounds, serve
from course_utils.errors import CourseError

STEPS = 3
NAMES = ["ada", "bob", "cyd"]
PLACES = ["training", "called", "replied", "connected", "reduced", "applied"]


def begin():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(7, generator=draw, dtype=torch.float64)


def gradient(theta, name, number):
    """Of a quadratic that is this member's own, and another at every step."""
    draw = torch.Generator().manual_seed(1000 * NAMES.index(name) + number)
    matrix, right = torch.randn(5, 7, generator=draw, dtype=torch.float64), torch.randn(5, generator=draw).double()
    return matrix.T @ (matrix @ theta - right)


def definition(averaged):
    """DiLoCo in one process: θ and the outer velocity after each round, where `averaged` says who is in its mean."""
    theta, velocity, states = begin(), torch.zeros(7, dtype=torch.float64), []
    for number, names in enumerate(averaged):
        ends = []
        for name in names:
            end = theta.clone()
            for step in range(STEPS):
                end -= 0.02 * gradient(end, name, STEPS * number + step)
            ends.append(end)
        delta = theta - sum(ends) / len(ends)
        velocity = 0.9 * velocity + delta
        theta = theta - 0.7 * (delta + 0.9 * velocity)
        states.append({"theta": theta, "velocity": velocity})
    return states


class Mortal(ElasticRounds):
    """Dies in the round and at the place that `dies` names, and touches the file call-K at its K-th call in a `life`."""

    dies: tuple[int, str] | None = None
    folder: Path
    life: str

    def at(self, place):
        if (self.round, place) == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, **what):
        super()._call(**what)
        (self.folder / f"{self.life}-call-{self._calls}").touch()
        self.at("called")

    def _build_group(self, *arguments):
        self.at("replied")
        return super()._build_group(*arguments)

    def _communicate(self, *arguments):
        self.at("connected")
        super()._communicate(*arguments)
        self.at("reduced")

    def _apply(self, *arguments):
        self.at("applied")
        super()._apply(*arguments)


def member(folder, address, name, rounds, dies=None, waits=(None, ""), state=None, stops=None, life=None, **options):
    """A process: trains, and writes down what it has after each round, or the sentence with which it ends.

    In the round `waits[0]` it trains until there is a file called `waits[1]`; in the round `stops` it stops itself.
    """
    theta = begin()
    parameters = [theta[:4].clone().view(2, 2), theta[4:].clone()]
    try:
        options = {"timeout": 60, "group_timeout": 5, "outer_optimizer": OuterNesterov(), **options}
        with Mortal(address, name, parameters, **options) as rounds_of:
            rounds_of.dies, rounds_of.folder, rounds_of.life = dies, folder, life or name
            torch.save(rounds_of.join(state), folder / f"{name}-joined")
            while rounds_of.round < rounds:
                for step in range(STEPS):
                    number = rounds_of.round * STEPS + step
                    flat = torch.cat([p.reshape(-1) for p in parameters])
                    move = 0.02 * gradient(flat, name, number)
                    parameters[0] -= move[:4].view(2, 2)
                    parameters[1] -= move[4:]
                    rounds_of.at("training")
                if rounds_of.round == stops:
                    os.kill(os.getpid(), signal.SIGSTOP)
                while rounds_of.round == waits[0] and not (folder / waits[1]).exists():
                    time.sleep(0.05)
                count = rounds_of.average(STEPS)
                done = {"count": count, "members": rounds_of.members, "step": rounds_of.step}
                done |= {"theta": torch.cat([p.reshape(-1) for p in parameters]), "velocity": rounds_of.velocity}
                with_draft(folder / f"{name}-{rounds_of.round - 1}", done)
    except CourseError as error:
        (folder / f"{name}-sentence").write_text(str(error))


def with_draft(path, value):
    torch.save(value, path.with_suffix(".draft"))
    path.with_suffix(".draft").rename(path)


def store_process(port, members, patience):
    serve(port=0, members=members, patience=patience, say=port.send)


class Run:
    """The store and the members of one run."""

    def __init__(self, folder, members=3, patience=60.0):
        self.folder, self.members = folder, {}
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["course_utils.distributed.preload", "course_utils.elastic.rounds"])
        ours, theirs = self.context.Pipe()
        self.store = self.context.Process(target=store_process, args=(theirs, members, patience))
        self.store.start()
        assert ours.poll(60)
        self.address = ours.recv().split()[-1].rstrip(".")

    def start(self, *names, **how):
        for name in names:
            process = self.context.Process(target=member, args=(self.folder, self.address, name), kwargs=how)
            process.start()
            self.members[name] = process

    def wait_for(self, name):
        """Until there is a file of this name."""
        for _ in range(1200):
            if (self.folder / name).exists():
                return
            time.sleep(0.05)
        pytest.fail(f"{name} has not come; there is {sorted(path.name for path in self.folder.iterdir())}")

    def join(self, *names):
        for name in names or self.members:
            self.members[name].join(60)
        return [self.members[name].exitcode for name in names or self.members]

    def done(self, name, rounds):
        """What the member wrote down after each of `rounds`."""
        return [torch.load(self.folder / f"{name}-{number}") for number in rounds]

    def end(self):
        for process in (self.store, *self.members.values()):
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture
def run(tmp_path):
    started = []

    def start(**options):
        started.append(Run(tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def check(run, name, averaged, first=0):
    """The member went through the rounds from `first` on as the definition does."""
    rights = definition(averaged)
    for number, done in enumerate(run.done(name, range(first, len(averaged))), start=first):
        assert done["count"] == len(averaged[number]), f"round {number} of {name}"
        assert done["step"] == STEPS * (number + 1)
        for key in ("theta", "velocity"):
            torch.testing.assert_close(done[key], rights[number][key], rtol=1e-10, atol=1e-10)


def check_equal(run, names, rounds):
    """Bit for bit."""
    for others in zip(*(run.done(name, rounds) for name in names), strict=True):
        for other in others[1:]:
            assert all(torch.equal(other[key], others[0][key]) for key in ("theta", "velocity"))


def test_three_undisturbed_are_diloco(run):
    run = run()
    run.start(*NAMES, rounds=5)
    assert run.join() == [0, 0, 0]
    for name in NAMES:
        check(run, name, [NAMES] * 5)
    check_equal(run, NAMES, range(5))
    assert sorted(run.done("ada", [4])[0]["members"]) == NAMES


def go_on_without(run, dead, when, place, rounds=4):
    """One dies; the others are told by nobody."""
    run = run()
    others = [name for name in NAMES if name != dead]
    run.start(*others, rounds=rounds)
    run.start(dead, rounds=rounds, dies=(when, place))
    assert run.join() == [0, 0, -signal.SIGKILL]
    last = when + (place == "applied")  # all had its part already
    for name in others:
        check(run, name, [NAMES] * last + [others] * (rounds - last))
    check_equal(run, others, range(rounds))


@pytest.mark.parametrize("place", [pytest.param("training", marks=pytest.mark.slow), "connected"])
def test_two_go_on_when_one_dies(run, place):
    """In its inner steps; when it has called and may be in the next attempt; in the all-reduce."""
    go_on_without(run, "cyd", 1, place)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("dead", "when"), [("ada", 1), ("bob", 2), ("cyd", 3)])
def test_whoever_dies_wherever_the_others_agree_bit_for_bit(run, dead, when, place):
    go_on_without(run, dead, when, place)


def test_who_returns_is_taken_in_at_the_next_round_with_the_outer_velocity(run):
    run, two = run(), NAMES[:2]
    run.start(*two, rounds=6, waits=(3, "again-call-1"))
    run.start("cyd", rounds=6, dies=(1, "training"))
    assert run.join("cyd") == [-signal.SIGKILL]
    run.wait_for("ada-2")
    run.start("cyd", rounds=6, life="again")
    assert run.join() == [0, 0, 0]
    averaged = [NAMES] + [two] * 3 + [NAMES] * 2
    for name in two:
        check(run, name, averaged)
    check(run, "cyd", averaged, first=4)
    joined, right = torch.load(run.folder / "cyd-joined"), definition(averaged)[3]
    assert (joined["round"], joined["step"]) == (4, 4 * STEPS)
    torch.testing.assert_close(joined["start"], right["theta"], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(joined["velocity"], right["velocity"], rtol=1e-10, atol=1e-10)
    assert joined["velocity"].norm() > 0


@pytest.mark.slow
def test_who_was_stopped_for_a_while_gets_the_state_and_goes_on(run):
    run, two = run(), NAMES[:2]
    run.start(*two, rounds=5, waits=(3, "cyd-call-3"))
    run.start("cyd", rounds=5, stops=1)
    run.wait_for("ada-2")
    os.kill(run.members["cyd"].pid, signal.SIGCONT)
    assert run.join() == [0, 0, 0]
    averaged = [NAMES] + [two] * 3 + [NAMES]
    for name in two:
        check(run, name, averaged)
    check(run, "cyd", averaged, first=3)


def test_without_an_outer_optimizer_the_parameters_become_the_mean(run):
    run = run(members=2)
    run.start("ada", "bob", rounds=2, outer_optimizer=None)
    assert run.join() == [0, 0]
    ends = []
    for name in NAMES[:2]:
        end = begin()
        for step in range(STEPS):
            end -= 0.02 * gradient(end, name, step)
        ends.append(end)
    check_equal(run, NAMES[:2], range(2))
    torch.testing.assert_close(run.done("ada", [0])[0]["theta"], (ends[0] + ends[1]) / 2, rtol=1e-12, atol=1e-12)


def test_all_begin_from_the_checkpoint_of_the_latest_round(run):
    run, averaged = run(members=2), [NAMES[:2]] * 4
    theta, velocity = definition(averaged)[1].values()
    run.start("ada", rounds=4)
    run.start("bob", rounds=4, state={"round": 2, "step": 2 * STEPS, "start": theta, "velocity": velocity})
    assert run.join() == [0, 0]
    for name in NAMES[:2]:
        check(run, name, averaged, first=2)


@pytest.mark.slow
def test_the_last_one_goes_on_alone(run):
    run = run(members=2)
    run.start("ada", rounds=3)
    run.start("bob", rounds=3, dies=(1, "training"))
    assert run.join() == [0, -signal.SIGKILL]
    check(run, "ada", [NAMES[:2], ["ada"], ["ada"]])


def sentences(run):
    assert run.join() == [0] * len(run.members)
    return [(run.folder / f"{name}-sentence").read_text() for name in run.members]


def test_without_the_store_all_end_with_a_sentence(run):
    run = run()
    run.start(*NAMES, rounds=3, waits=(1, "killed"))
    for name in NAMES:
        run.wait_for(f"{name}-0")
    run.store.kill()
    run.store.join()
    (run.folder / "killed").touch()
    for sentence in sentences(run):
        assert sentence == (
            f"The store at {run.address} is gone; start it again, and then the members from their checkpoints."
        )


@pytest.mark.slow
def test_a_store_that_says_nothing_is_not_waited_for_without_end(run):
    run = run()
    run.start(*NAMES, rounds=3, waits=(1, "stopped"), timeout=3, group_timeout=2)
    for name in NAMES:
        run.wait_for(f"{name}-0")
    os.kill(run.store.pid, signal.SIGSTOP)
    (run.folder / "stopped").touch()
    assert all(
        sentence.startswith("The round did not end within 3 s: look whether the store") for sentence in sentences(run)
    )


def test_members_that_train_different_models_are_told(run):
    run = run(members=1)
    run.start("ada", rounds=3, waits=(1, "bob-sentence"))
    run.wait_for("ada-0")
    with ElasticRounds(run.address, "eve", [torch.zeros(3)], timeout=60) as rounds:
        (run.folder / "bob-sentence").touch()
        with pytest.raises(
            CourseError, match=r"brings 3 numbers of torch.float32, the others 7 numbers of torch.float64"
        ):
            rounds.join()
    assert run.join() == [0]
    check(run, "ada", [["ada"]] * 3)


class Cut(ElasticRounds):
    """Cannot reach the others."""

    def _build_group(self, *arguments):
        raise OSError("No route to host")


@pytest.mark.slow
def test_a_meeting_that_fails_again_and_again_says_why(run):
    run = run(members=1)
    with Cut(run.address, "ada", [torch.zeros(3)], timeout=1) as rounds, pytest.raises(CourseError) as raised:
        rounds.join()
    assert str(raised.value).startswith("The round did not end within 1 s: look whether")
    assert str(raised.value).endswith("the last attempt failed: No route to host.")


def test_where_no_store_is_there_is_a_sentence():
    with pytest.raises(CourseError, match=r"No store answers at 127.0.0.1:1 \(.*\); start one"):
        ElasticRounds("127.0.0.1:1", "ada", [torch.zeros(3)])
    with pytest.raises(CourseError, match="'somewhere' is no store's address"):
        ElasticRounds("somewhere", "ada", [torch.zeros(3)])
