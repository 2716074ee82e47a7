"""Who takes part in which attempt, decided look by look on a store in memory; and the store as a process."""

import json
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from course_utils.elastic import serve, store
from course_utils.errors import CourseError


class Meeting:
    """A coordinator whose clock stands still, and members that say what the test has them say."""

    def __init__(self, monkeypatch, **options):
        self.now = 0.0
        monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: self.now))
        memory = dist.HashStore()
        self.coordinator, self.keys = store.Coordinator(memory, **options), dist.PrefixStore("rounds", memory)
        self.calls, self.beats, self.living = {}, 0, set()

    def come(self, name, **what):
        number = self.keys.add("members", 1)
        self.living.add(number)
        self.call(number, name, trained=False, **what)
        return number

    def call(self, number, name, trained=True, round=0, brings="7 numbers", leaves=False):
        self.calls[number] = self.calls.get(number, 0) + 1
        call = {"name": name, "leaves": leaves, "trained": trained, "round": round, "brings": brings}
        self.keys.set(f"call/{number}/{self.calls[number]}", json.dumps(call))

    def pass_by(self, seconds=0.1):
        """Time passes, in which those who live give signs of it."""
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.beats += 1
            for number in self.living:
                self.keys.set(f"beat/{number}", str(self.beats))
            self.coordinator.look()

    def reply(self, number):
        """The reply to the member's last call, or None."""
        key = f"reply/{number}/{self.calls[number]}"
        return json.loads(self.keys.get(key)) if self.keys.check([key]) else None

    def have(self, attempt, *numbers, word="1"):
        for number in numbers:
            self.keys.set(f"have/{attempt}/{number}", word)
        self.pass_by()

    def verdict(self, attempt):
        return self.keys.get(f"verdict/{attempt}").decode() if self.keys.check([f"verdict/{attempt}"]) else None


@pytest.fixture
def meeting(monkeypatch):
    def begin(*names, **options):
        """A meeting at which those of the names have begun, and are in their first round."""
        each = Meeting(monkeypatch, members=max(1, len(names)), **options)
        numbers = [each.come(name) for name in names]
        each.pass_by()
        if numbers:
            each.have(1, *numbers)
            assert each.verdict(1) == "commit"
        return each

    return begin


def test_a_beginning_waits_for_all_that_are_expected(monkeypatch):
    meeting = Meeting(monkeypatch, members=3)
    numbers = [meeting.come("ada"), meeting.come("bob")]
    meeting.pass_by(5)
    assert [meeting.reply(number) for number in numbers] == [None, None]
    numbers.append(meeting.come("cyd"))
    meeting.pass_by()
    for number in numbers:
        assert meeting.reply(number) == {
            "attempt": 1,
            "members": numbers,
            "names": ["ada", "bob", "cyd"],
            "source": numbers[0],
            "averaging": [],
        }


def test_a_beginning_does_not_wait_longer_than_its_patience(monkeypatch):
    meeting = Meeting(monkeypatch, members=3, patience=60.0)
    number = meeting.come("ada")
    meeting.pass_by(59)
    assert not meeting.reply(number)
    meeting.pass_by(2)
    assert meeting.reply(number)["members"] == [number]


def test_a_round_ends_when_all_who_live_have_called(meeting):
    meeting = meeting("ada", "bob", "cyd")
    meeting.call(1, "ada")
    meeting.call(2, "bob")
    meeting.pass_by(5)
    assert not meeting.reply(1)
    meeting.living.remove(3)
    meeting.pass_by(store.SILENCE - 0.2)
    assert not meeting.reply(1)
    meeting.pass_by(0.4)
    assert meeting.reply(1)["averaging"] == [1, 2]


def test_who_leaves_is_not_waited_for(meeting):
    meeting = meeting("ada", "bob")
    meeting.call(1, "ada")
    meeting.call(2, "bob", leaves=True)
    meeting.pass_by()
    assert meeting.reply(1)["members"] == [1]


def test_a_newcomer_waits_for_the_end_of_the_round_however_long_it_is(meeting):
    meeting = meeting("ada", "bob", patience=60.0)
    newcomer = meeting.come("cyd")
    meeting.pass_by(200)
    assert not meeting.reply(newcomer)
    meeting.call(1, "ada", round=4)
    meeting.call(2, "bob", round=4)
    meeting.pass_by()
    reply = meeting.reply(newcomer)
    assert reply["averaging"] == [1, 2]
    assert reply["members"] == [1, 2, newcomer]
    assert reply["source"] == 1


def test_who_lives_and_does_not_come_is_left_behind_and_gets_the_state_when_it_does(meeting):
    meeting = meeting("ada", "bob", patience=60.0)
    meeting.call(1, "ada", round=0)
    meeting.pass_by(59)
    assert not meeting.reply(1)
    meeting.pass_by(2)
    assert meeting.reply(1)["members"] == [1]
    meeting.have(2, 1)
    meeting.call(2, "bob", round=0)
    meeting.call(1, "ada", round=1)
    meeting.pass_by()
    reply = meeting.reply(2)
    assert (reply["members"], reply["averaging"], reply["source"]) == ([1, 2], [1], 1)


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_an_attempt_that_somebody_has_not_got_is_void(meeting, how):
    meeting = meeting("ada", "bob")
    meeting.call(1, "ada")
    meeting.call(2, "bob")
    meeting.pass_by()
    meeting.have(2, 1)
    assert meeting.verdict(2) is None
    if how == "fails":
        meeting.have(2, 2, word="0")
    else:
        meeting.living.remove(2)
        meeting.pass_by(store.SILENCE + 0.2)
    assert meeting.verdict(2) == "void"
    meeting.call(1, "ada")
    meeting.pass_by()
    assert bool(meeting.reply(1)) == (how == "dies")


def test_an_attempt_counts_if_who_died_had_the_result(meeting):
    meeting = meeting("ada", "bob")
    meeting.call(1, "ada")
    meeting.call(2, "bob")
    meeting.pass_by()
    meeting.have(2, 2)
    meeting.living.remove(2)
    meeting.pass_by(store.SILENCE + 3)
    assert meeting.verdict(2) is None
    meeting.have(2, 1)
    assert meeting.verdict(2) == "commit"


def test_who_comes_under_a_name_takes_its_place_at_once(meeting):
    meeting = meeting("ada", "bob")
    meeting.call(1, "ada")
    meeting.pass_by()
    again = meeting.come("bob")
    meeting.pass_by()
    assert meeting.reply(1)["members"] == [1, again]
    meeting.call(2, "bob")
    meeting.pass_by()
    assert "Another member has come under the name 'bob'" in meeting.reply(2)["refused"]


def test_when_the_store_itself_was_stopped_nobody_is_to_blame(meeting):
    meeting = meeting("ada", "bob")
    meeting.call(1, "ada")
    meeting.now += 1000
    meeting.coordinator.look()
    meeting.pass_by()
    assert not meeting.reply(1), "bob is still waited for"


def test_who_trains_another_model_is_refused_alone(meeting):
    meeting = meeting("ada")
    other = meeting.come("eve", brings="3 numbers")
    meeting.call(1, "ada")
    meeting.pass_by()
    assert meeting.reply(other) == {
        "refused": "This member brings 3 numbers, the others 7 numbers; train the same model."
    }
    assert meeting.reply(1)["members"] == [1]


def test_a_port_that_is_taken_is_named():
    memory = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(
        CourseError, match=f"No store can listen at 127.0.0.1:{memory.port} .*; give another host or port"
    ):
        serve(port=memory.port)


@pytest.fixture
def process():
    command = [sys.executable, "-m", "course_utils.elastic.store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


@pytest.mark.slow
def test_as_a_process_it_says_where_it_is_and_ends_when_asked(process):
    assert re.fullmatch(r"The store is at 127\.0\.0\.1:\d+\.\n", process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_torchruns_agents_meet_there(process, tmp_path):
    address = process.stdout.readline().split()[-1].rstrip(".")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(1)\n"
        "dist.all_reduce(one)\n"
        "print('sum', one.item(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-conf", "is_host=0", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert sorted(re.findall(r"sum|2\.0", done.stdout)) == ["2.0", "2.0", "sum", "sum"]  # two write at once
