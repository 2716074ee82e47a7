"""The benchmarks' clock: whom it lets run when. What it reads is not tested."""

from benchmarks.side_by_side import hand_over, take_turns


def test_ways_advance_step_by_step_in_turn_and_each_round_in_the_other_order():
    seen = []

    def way(name, steps):
        def run():
            for step in range(steps):
                hand_over()
                seen.append(f"{name}{step}")

        return run

    seconds = take_turns({"a": way("a", 2), "b": way("b", 3)}, rounds=1)
    assert seen == ["b0", "a0", "b1", "a1", "b2", "a0", "b0", "a1", "b1", "b2"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 1, "b": 1}


def test_handing_over_alone_does_nothing():
    assert hand_over() is None
