"""Of the repository: what the recipes in docs/teaching name exists, its commands parse, and its image can grade."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from course_utils import cli
from course_utils.grading.loading import load_set
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[3]
TEACHING = ROOT / "docs" / "teaching"
RECIPE = (TEACHING / "Containerfile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# What Docker takes from a container and a sandbox inside it needs.
SECURITY_OPTIONS = {"seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"}


def instructions() -> list[tuple[str, str]]:
    """The recipe's instructions with what follows them, continued lines joined."""
    code = "\n".join(line for line in RECIPE.splitlines() if line and not line.startswith("#"))
    return [tuple(line.split(maxsplit=1)) for line in code.replace("\\\n", " ").splitlines()]


def commands() -> dict[str, list[str]]:
    """The commands in its head: `build` and `run` to the words that follow."""
    text = re.sub(r"^# ?", "", RECIPE.partition("\nFROM")[0], flags=re.MULTILINE).replace("\\\n", " ")
    lines = [shlex.split(line) for line in re.findall(r"^ +docker (.*)$", text, re.MULTILINE)]
    return {argv[0]: argv[1:] for argv in lines}


def copied_paths() -> list[str]:
    return [source for kind, rest in instructions() if kind == "COPY" for source in rest.split()[:-1]]


def test_everything_that_the_container_is_made_of_exists():
    assert all((ROOT / source).exists() for source in copied_paths())
    for file in (*PROJECT["license-files"], PROJECT["readme"], "constraints.txt"):
        assert any(Path(file).is_relative_to(source) for source in copied_paths()), file
    shell = " && ".join(rest for kind, rest in instructions() if kind == "RUN")
    assert subprocess.run(["bash", "-n", "-c", shell], check=False).returncode == 0
    assert "apt-get install -y --no-install-recommends bubblewrap " in shell


def test_the_containers_commands_parse_and_take_away_no_more_than_the_sandbox_needs():
    build, run = commands()["build"], commands()["run"]
    assert ROOT / build[build.index("-f") + 1] == TEACHING / "Containerfile"
    image = build[build.index("-t") + 1]
    options, arguments = run[: run.index(image)], run[run.index(image) + 1 :]
    assert {options[place + 1] for place, word in enumerate(options) if word == "--security-opt"} == SECURITY_OPTIONS
    assert not {"--privileged", "--cap-add"} & set(options)
    (entry,) = [yaml.safe_load(rest) for kind, rest in instructions() if kind == "ENTRYPOINT"]
    assert entry[0] in PROJECT["scripts"]
    parsed = cli.make_parser().parse_args([*entry[1:], *arguments])
    assert not parsed.trust
    assert load_set(parsed.set)


@pytest.mark.slow
def test_what_is_copied_into_the_container_is_enough_to_grade(tmp_path):
    for source in copied_paths():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / "course" / source if (ROOT / source).is_dir() else tmp_path)
    (folder := tmp_path / "class" / "submissions").mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / "00_exercises_start_here.ipynb", folder)
    process = subprocess.run(
        [sys.executable, "-m", "course_utils.cli", "grade", "submissions", "--set", "00", "--seed", "1", "--trust"],
        cwd=folder.parent,
        env=environment_for_child(PYTHONPATH=str(tmp_path / "course")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "1 submission, 0% of all points" in process.stdout


def test_the_classrooms_workflow_checks_its_set_on_every_push():
    workflow = yaml.safe_load((TEACHING / "classroom.yml").read_text("utf-8"))
    assert "push" in workflow[True]  # YAML reads `on` so
    (job,) = workflow["jobs"].values()
    steps = {step["id"]: step for step in job["steps"] if "id" in step}
    shell = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    assert f"""pip install --quiet "$(echo ./{PROJECT["name"].replace("-", "_")}-*.whl)[course]\"""" in shell
    (check,) = (step["with"] for step in steps.values())
    program, *arguments = shlex.split(check["command"])
    parsed = cli.make_parser().parse_args(arguments)
    assert program in PROJECT["scripts"]
    assert check["max-score"] == sum(entry["points"] for entry in load_set(parsed.set)["questions"])
    assert (ROOT / "exercises" / parsed.notebook).is_file()
    report = job["steps"][-1]
    assert report["with"]["runners"].split(",") == list(steps)
    for name in steps:
        assert report["env"][f"{name.upper()}_RESULTS"] == f"${{{{ steps.{name}.outputs.result }}}}"
