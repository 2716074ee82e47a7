"""Of the room: the commands as one types them."""

import subprocess
import sys

import pytest

from course_utils import cli
from course_utils.cli import COMMANDS, STAFF, main
from course_utils.desk.ledger import record

HEAVY = (
    "torch", "transformers", "datasets", "accelerate", "bitsandbytes", "pandas", "matplotlib", "numpy", "IPython", "nbformat",
    "jaxtyping",
)  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "names"), [([], [*COMMANDS, *STAFF]), (["plan"], ["llama-7b", "RTX 3090", "torchrun"])]
)
def test_help_names_every_choice_and_loads_nothing_heavy(argv, names):
    program = (
        "import sys; from course_utils.cli import main\n"
        f"try: main([*{argv}, '--help'])\n"
        f"except SystemExit as end: print('CODE', end.code, [name for name in {HEAVY} if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout
    assert output.splitlines()[-1] == "CODE 0 []"
    assert all(name in " ".join(output.split()) for name in names)


@pytest.mark.parametrize(
    "argv", [["gpt2-small", "trl.yaml", "--memory", "8GB"], ["gpt2-small", "--memory", "8GB", "trl.yaml"]]
)
def test_files_can_follow_options(argv):
    assert cli.make_parser().parse_args(["plan", *argv]).model == ["gpt2-small", "trl.yaml"]


def broken_entry(missing):
    class Entry:
        name = "grade"

        def load(self):
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    return [Entry()]


@pytest.mark.parametrize("entries", [[], broken_entry("course_staff")], ids=["none", "of a package that is gone"])
def test_without_the_staffs_package_its_commands_say_how_to_get_it(entries, monkeypatch, capsys):
    monkeypatch.setattr("course_utils.cli.entry_points", lambda group: entries)
    assert main(["grade", "class", "--set", "03"]) == 2
    assert "is in course_staff, which is not installed here. To install it, run `make lab`" in capsys.readouterr().err
    assert main(["check"]) == 0


def test_a_module_that_the_staffs_package_lacks_is_no_package_to_install(monkeypatch):
    monkeypatch.setattr("course_utils.cli.entry_points", lambda group: broken_entry("course_staff.nowhere"))
    with pytest.raises(ModuleNotFoundError):
        main(["check"])


def test_the_ledger_is_printed(capsys):
    record("03_adamw", "AdamW", "optimizer state", predicted=2**20, measured=2**21)
    assert main(["ledger"]) == 0
    assert "2.00 MiB" in capsys.readouterr().out
