"""What some chapters need, tried here and made to fail."""

from course_utils.doctor import abilities


def test_the_hub_is_only_a_note_and_a_broken_library_no_crash():
    def broken():
        raise ImportError

    assert abilities.probe_hub(lambda: True).mark == "ok"
    assert abilities.probe_hub(lambda: False).mark == "note"
    assert abilities.probe_hub(broken).mark == "note"


def test_workers():
    assert [abilities.probe_workers(gloo).mark for gloo in (True, False)] == ["ok", "note"]


def test_8bit_adam_says_why_it_fails():
    finding = abilities.probe_8bit_adam("cpu", lambda source, timeout: "RuntimeError: no kernel")
    assert finding.mark == "fix"
    assert "RuntimeError: no kernel" in finding.text


def test_8bit_adam_really_takes_a_step():
    assert abilities.probe_8bit_adam("cpu", abilities.run_snippet).mark == "ok"
    wrong = abilities.probe_8bit_adam("cuda:7", abilities.run_snippet)
    assert wrong.mark == "fix"


def test_a_snippet_that_hangs_or_dies_is_told():
    assert abilities.run_snippet("import time; time.sleep(60)", 0.5) == "no answer within 0.5 s"
    assert abilities.run_snippet("import os; os._exit(3)", 30) == "exit code 3"
    assert abilities.run_snippet("raise ValueError('no')", 30) == "ValueError: no"
