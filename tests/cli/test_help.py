"""Of the room: what `--help` and a refusal say, of every command."""

import argparse
import re
from dataclasses import fields

import pytest

from course_utils import cli
from course_utils.memory.step.recipe import Recipe

PARSER = cli.make_parser()
PARSERS = next(action for action in PARSER._actions if isinstance(action, argparse._SubParsersAction)).choices
OPTIONS = [
    pytest.param(name, action, id=f"{name} {action.option_strings[0] if action.option_strings else action.dest}")
    for name, command in PARSERS.items()
    for action in command._actions
]


def test_the_commands_of_both_packages_are_here():
    assert [*PARSERS] == [*cli.COMMANDS, *sorted(cli.STAFF)]


@pytest.mark.parametrize("name", PARSERS)
def test_a_command_shows_its_exit_codes_and_an_example_that_it_takes(name):
    text = " ".join(PARSERS[name].format_help().split())
    assert cli.EXIT_CODES in text
    example = re.search(r"example: course (.*?) exit codes", text)[1].split()
    assert PARSER.parse_args(example).command == name


@pytest.mark.parametrize(("name", "action"), OPTIONS)
def test_every_option_has_a_help_that_tells_its_default_and_its_choices(name, action):
    assert action.help
    if action.option_strings and action.default not in (None, False, argparse.SUPPRESS, ""):
        default = rf"default: .*{action.default:g}" if isinstance(action.default, float) else "default"
        assert re.search(default, action.help)
    text = " ".join(PARSERS[name].format_help().split())
    assert not re.search(r"\{[\w.]+:\w+\}", text), "the names of a constant stand in its place"
    for choice in action.choices or ():
        assert str(choice) in text


def test_a_plan_tells_the_defaults_of_a_recipe_and_every_name_that_it_knows():
    from course_utils.memory.planning.emit import FORMATS
    from course_utils.memory.step.recipe import LOOPS, OPTIMIZERS, PRECISIONS

    text = PARSERS["plan"].format_help()
    helps = {option.dest: option.help for option in PARSERS["plan"]._actions}
    defaults = {field.name: field.default for field in fields(Recipe)} | LOOPS["trainer"] | {"device": "cuda"}
    for name, default in defaults.items():
        expected = ("yes" if default else "no") if isinstance(default, bool) else default or "none"
        assert f"(default: {expected}" in helps[name], name
    assert all(re.search(rf"\b{name}\b", text) for name in (*OPTIMIZERS, *PRECISIONS, *FORMATS, *LOOPS))


def test_a_new_question_can_be_of_each_kind_that_its_help_lists():
    from course_staff.release.skeleton import SKELETONS

    text = " ".join(PARSERS["new"].format_help().split())
    assert ", ".join(SKELETONS) in text
    assert len(SKELETONS) > 6


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("chekc 03", "did you mean check?"),
        ("plan llama-7b --memry 24GB", "did you mean --memory"),
        ("new chaptr x", "did you mean chapter?"),
        ("run 03 --scale smok", "did you mean smoke?"),
    ],
)
def test_a_mistyped_word_is_one_line_with_what_was_meant(line, meant, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(line.split())
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert meant in captured.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("lab adamw", "did you mean 03_adamw?"),
        ("check adam", "did you mean 03_adamw or 05_8bit_adam?"),
        ("lint 99", "the chapters are: 00_start_here, "),
        ("plan lama-7b --memory 24GB", "did you mean llama-7b"),
        ("plan llama-7b --memory 3090", "did you mean RTX 3090?"),
        ("plan llama-7b --memory A100", "did you mean A100-40GB or A100-80GB?"),
        ("plan llama-7b --memory 24GB --optimizer adamW", "did you mean adamw?"),
        ("plan llama-7b --memory 24GB --precision bf61", "did you mean bf16?"),
        ("plan llama-7b --emit slrum", "did you mean slurm?"),
        ("new question 04 --kind kill", "did you mean kills?"),
        ("train --out x --optimizer torch.Adamw", "did you mean torch.AdamW?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(line, meant, capsys):
    assert cli.main(line.split()) == 2
    assert meant in capsys.readouterr().err
