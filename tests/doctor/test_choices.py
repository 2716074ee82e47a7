"""What is said of variables, devices and scales."""

from course_utils.doctor import choices
from course_utils.settings import Settings, read_settings
from course_utils.units import GiB


def test_variables_one_by_one():
    environment = {"COURSE_SCALE": "huge", "COURSE_SEED": "3", "COURSE_SCLAE": "gpu", "PATH": "x"}
    findings = list(choices.probe_variables(environment))
    assert [finding.mark for finding in findings] == ["fix", "note", "ok"]
    assert "COURSE_SCALE='huge'" in findings[0].remedy
    assert choices.usable_settings(environment) == Settings(seed=3, home=read_settings({}).home)


def test_the_variables_known_are_those_that_are_read():
    class Recorder(dict):
        def get(self, name, default=None):
            self[name] = default
            return default

    recorder = Recorder()
    read_settings(recorder)
    assert set(recorder) == set(choices.VARIABLES)


def test_a_gpu_asked_for_in_vain_does_not_stop_the_doctor():
    import torch

    chosen = Settings(device_name="cuda")
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choices.with_usable_device(chosen).device.type == expected


def test_a_home_of_an_unknown_user_is_told_like_any_other_bad_value():
    (finding,) = choices.probe_variables({"COURSE_HOME": "~no-such-user-here/x"})
    assert finding.mark == "fix"
    assert "COURSE_HOME='~no-such-user-here/x'" in finding.remedy


def test_devices():
    assert choices.probe_device("auto", "cpu", []).mark == "ok"
    assert choices.probe_device("cuda", "cpu", []).mark == "fix"
    assert choices.probe_device("cuda", "cuda", [("A", 80 * GiB)]).text.startswith("Training on the GPU: A with 80")
    assert choices.probe_device("auto", "cuda", [("A", GiB)]).mark == "note"
    assert "there is A" in choices.probe_device("cpu", "cpu", [("A", GiB)]).text


def test_the_scale_is_explained():
    assert choices.probe_scale("auto", "laptop", "cpu").text.endswith("laptop scale: the default on cpu")
    assert choices.probe_scale("smoke", "smoke", "cpu").text.endswith("COURSE_SCALE says so")
