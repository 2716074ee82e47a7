"""What is handed out is generated, the same every time, and gives nothing away."""

import ast
import inspect
import json
import re
from pathlib import Path

import nbformat
import pytest
import torch
from own_solutions import PATHS, solutions_of
from tiny_set import best_kind, notebook

from course_staff.grading.prepare import prepare
from course_staff.notebooks.files import notebook_text, read_notebook, write_notebook
from course_staff.notebooks.setup_cell import is_setup, setup_source
from course_staff.release.cache import ReleaseCache
from course_staff.release.release import digest_of, exercise_notebook, facts, find_differing, renew, set_entry, terms
from course_staff.release.release_sets import release_sets
from course_staff.release.skeleton import SKELETONS, empty_notebook, with_question
from course_staff.release.source import apply_mistake, load_solutions, marker
from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.files import exercises_of, set_of
from course_utils.grading import kinds, loading
from course_utils.grading.loading import SETS, load_set, question_from
from course_utils.grading.values import same
from course_utils.settings import settings

ROOT = Path(__file__).parents[3]
FOR_ALL_SETS = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
# In the last but one and the two before it, ranks start for every answer and every case; in the last each answer trains.
MANY_ANSWERS = (
    "02_optimizers_from_scratch", "03_adamw", "04_adafactor", "05_8bit_adam", "06_gradient_accumulation",
    "08_mixed_precision", "11_long_sequences", "11b_fewer_bits_and_weights",
    "09_local_sgd", "10_fsdp_and_zero", "12_scaling_out", "13_capstone",
)  # fmt: skip
QUICK_SETS = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in MANY_ANSWERS else [], id=path.stem) for path in PATHS],
)
QUICK_KINDS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "collective" else []) for kind in SKELETONS]
)
# A line this short says nothing: `return total`, `])`.
TELLING = 16


def lines(source: str) -> set[str]:
    return {line.strip() for line in source.splitlines() if len(line.strip()) >= TELLING}


def released(path: Path, exercises: Path, sets: Path) -> dict[Path, str]:
    """The two files that `path` is released as, with their texts."""
    [texts] = release_sets([path], exercises, sets, ReleaseCache(settings().home / "released"), 1, lambda part: None)
    return texts


def cut_out(authored) -> set[str]:
    """The lines of a solution that its stub does not have."""
    return lines(authored.solution) - lines(authored.stub)


def hidden_parts(path: Path) -> list[str]:
    sources = [cell["source"] for cell in read_notebook(path).cells if (marker(cell) or ("",))[0] == "QUESTION"]
    return [part for source in sources for part in re.findall(r"^# HIDDEN\n(.*?)^# END HIDDEN", source, re.M | re.S)]


@FOR_ALL_SETS
def test_every_generated_file_was_made_from_the_solutions_as_they_are(path):
    """Without running any answer: by the notebook's text, and the digest that the set holds."""
    text = notebook_text(nbformat.from_dict(exercise_notebook(read_notebook(path), solutions_of(path.stem))))
    assert (ROOT / exercises_of(path.stem)).read_text(encoding="utf-8") == text, f"run `course release {path.stem}`"
    assert load_set(path.stem)["source"] == digest_of(path), f"run `course release {path.stem}`"


def test_the_digest_is_of_all_sources_hidden_parts_too(tmp_path):
    text = (ROOT / "solutions" / "00_start_here.ipynb").read_text(encoding="utf-8")
    path = tmp_path / "changed.ipynb"
    hidden = '"def hidden(random):\\n"'
    assert text.count(hidden) > 0
    path.write_text(text.replace(hidden, hidden.replace(":", ":  # changed")), encoding="utf-8")
    assert digest_of(path) != digest_of(ROOT / "solutions" / "00_start_here.ipynb")


@QUICK_SETS
def test_every_generated_file_is_what_the_solutions_say(path):
    """Runs every known answer."""
    assert not find_differing(released(path, ROOT / "exercises", SETS)), f"run `course release {path.stem}`"


def test_there_is_nothing_but_what_was_generated():
    stems = {path.stem for path in PATHS}
    assert {set_of(path) for path in ROOT.glob("exercises/*.ipynb")} == stems
    assert {path.stem for path in SETS.glob("*.json")} == stems


@pytest.mark.parametrize(
    ("stored_text", "differs"),
    [
        ('{"numbers": [0.0667475], "text": "a"}', False),
        ('{"numbers": [0.0668474], "text": "a"}', True),
        ('{"numbers": [0.0667474], "text": "b"}', True),
        ('{"numbers": [', True),
    ],
    ids=["another machine's last digit", "another number", "another word", "half a file"],
)
def test_the_last_digit_of_another_machine_is_no_difference(tmp_path, stored_text, differs):
    path = tmp_path / "99_test.json"
    path.write_text(stored_text)
    assert bool(find_differing({path: '{"numbers": [0.0667474], "text": "a"}'})) == differs


def test_where_only_words_changed_the_numbers_stay_as_they_were_released(tmp_path):
    path = tmp_path / "99_test.json"
    old, new = (
        {
            "source": source,
            "questions": [{"id": "q1", "numbers": [0.1, last], "hints": [hint]}, {"id": "q2", "numbers": [other]}],
        }
        for source, last, hint, other in (("a", 0.0667474, "old", 1.0), ("b", 0.0667475, "new", 2.0))
    )
    path.write_text(json.dumps(old))
    assert find_differing({path: json.dumps(new)}) == [path]
    renew({path: json.dumps(new)})
    new["questions"][0]["numbers"] = [0.1, 0.0667474]
    assert json.loads(path.read_text()) == new


@FOR_ALL_SETS
def test_nothing_of_a_solution_is_handed_out(path):
    cells = read_notebook(ROOT / exercises_of(path.stem)).cells
    handed_out = {line for cell in cells for line in lines(cell["source"])}
    entries = json.loads((SETS / f"{path.stem}.json").read_text(encoding="utf-8"))["questions"]
    handed_out |= {line for entry in entries for line in lines(entry["code"] + entry["stub"])}
    for authored in solutions_of(path.stem):
        assert cut_out(authored)
        assert not cut_out(authored) & handed_out, authored.question.id


@FOR_ALL_SETS
def test_nothing_hidden_is_handed_out(path):
    texts = (
        (ROOT / exercises_of(path.stem)).read_text(encoding="utf-8"),
        (SETS / f"{path.stem}.json").read_text(encoding="utf-8"),
    )
    for mark in ("HIDDEN", "SOLUTION", "BEGIN STUB", "QUESTION q"):
        assert mark not in texts[0]
    for mark in ("HIDDEN", "def hidden", "mistakes = ", "variants = ", "SOLUTION"):
        assert mark not in texts[1]
    for part in hidden_parts(path):
        constants = [node.value for node in ast.walk(ast.parse(part)) if isinstance(node, ast.Constant)]
        for text in (text for text in constants if isinstance(text, str) and "\n" in text.strip()):
            assert not any(json.dumps(text, ensure_ascii=False)[1:-1] in handed for handed in texts)


@FOR_ALL_SETS
def test_everything_outside_the_holes_is_the_same(path):
    before = [cell for cell in read_notebook(path).cells if (marker(cell) or ("",))[0] != "QUESTION"]
    after = read_notebook(ROOT / exercises_of(path.stem)).cells
    assert [cell["id"] for cell in before] == [cell["id"] for cell in after]
    all_authored = solutions_of(path.stem)
    stubs = {authored.question.id: authored.stub for authored in all_authored}
    added = {terms(authored.question) for authored in all_authored}
    for cell, exercise_cell in zip(before, after, strict=True):
        mark = marker(cell)
        sentences = [line for line in exercise_cell["source"].split("\n\n") if line not in added]
        assert "\n\n".join(sentences) == (stubs[mark[1]] if mark else cell["source"])
        assert marker(exercise_cell) == mark
        assert cell["metadata"].get("tags") == exercise_cell["metadata"].get("tags")
        assert not exercise_cell.get("outputs")
        assert exercise_cell.get("execution_count") is None


@FOR_ALL_SETS
@pytest.mark.parametrize("name", ["solutions/{}.ipynb".format, exercises_of], ids=["solutions", "exercises"])
def test_notebooks_are_valid_and_stamped(name, path):
    notebook = nbformat.read(ROOT / name(path.stem), as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if is_setup(cell)] == [setup_source()]


@FOR_ALL_SETS
def test_every_statement_shows_its_facts_and_is_followed_by_its_check(path):
    cells = read_notebook(ROOT / exercises_of(path.stem)).cells
    for authored in solutions_of(path.stem):
        position = next(i for i, cell in enumerate(cells) if marker(cell) == ("EXERCISE", authored.question.id))
        text = f"{facts(authored.question)}\n\n{terms(authored.question)}"
        assert any(text in cell["source"] for cell in cells[:position])
        assert cells[position + 1]["source"] == f'check("{authored.question.id}")'


@QUICK_KINDS
def test_a_new_question_can_be_released_as_it_is(kind, tmp_path):
    notebook, _ = with_question(empty_notebook("99_test", ""), kind)
    write_notebook(nbformat.from_dict(notebook), tmp_path / "99_test.ipynb")
    assert len(find_differing(released(tmp_path / "99_test.ipynb", tmp_path, tmp_path))) == 2


def test_the_command_releases_new_questions_once_and_keeps_copies(checkout, capsys):
    assert main(["new", "question", "99_test", "--kind", "choice"]) == 0
    assert main(["new", "question", "99_test"]) == 0
    assert main(["release", "--check"]) == 1
    assert main(["release"]) == 0
    assert "2 files changed" in capsys.readouterr().out
    assert main(["release", "--check"]) == 0
    exercise = checkout / exercises_of("99_test")
    assert [cell["id"] for cell in read_notebook(exercise).cells][-3:] == ["q2-statement", "q2-exercise", "q2-check"]
    answered = exercise.read_text(encoding="utf-8").replace("# EXERCISE q1", "# EXERCISE q1, answered here")
    exercise.write_text(answered, encoding="utf-8")
    assert main(["release"]) == 0
    assert "99_exercises_test.ipynb: written; old copy in " in capsys.readouterr().out
    (copy,) = (settings().home / "copies").glob("*/99_exercises_test.ipynb")
    assert copy.read_text(encoding="utf-8") == answered


def test_there_is_a_skeleton_of_every_kind_and_of_a_question_of_none():
    functions = inspect.getmembers(kinds, inspect.isfunction)
    functions = [(name, value) for name, value in functions if value.__module__ == kinds.__name__]
    assert {name for name, _ in functions if not name.startswith("_")} | {"question"} == set(SKELETONS)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind != "function" else []) for kind in SKELETONS]
)
@pytest.mark.usefixtures("warm_lanes")
def test_a_new_question_shows_a_wrong_answer_and_a_right_one_that_are_graded_so(
    kind, grade_class, tmp_path, monkeypatch
):
    solutions, _ = with_question(empty_notebook("99_test", ""), kind)
    write_notebook(nbformat.from_dict(solutions), tmp_path / "99_test.ipynb")
    monkeypatch.setattr(loading, "SETS", tmp_path)
    renew(released(tmp_path / "99_test.ipynb", tmp_path / "exercises", tmp_path))
    (authored,) = load_solutions(tmp_path / "99_test.ipynb")
    question = authored.question
    assert question.mistakes
    assert question.variants
    answers = {"stub": authored.stub, "solution": authored.solution}
    answers |= {mistake.name: apply_mistake(authored.solution, mistake) for mistake in question.mistakes}
    answers |= {variant.name: f"# EXERCISE q1\n{variant.source}" for variant in question.variants}
    exercise_set = prepare("99_test", tmp_path / "99_test.ipynb", 7)
    texts = {name: notebook(answer) for name, answer in answers.items()}
    records = grade_class(texts, exercise_set, best_kind(), jobs=1)
    graded = {name: record["questions"][0] for name, record in records.items()}
    assert graded["stub"]["state"] == "untouched"
    for right in ("solution", *(variant.name for variant in question.variants)):
        assert graded[right]["state"] == "passed", graded[right]
    for mistake in question.mistakes:
        assert graded[mistake.name]["diagnosis"] == mistake.sentence
        assert graded[mistake.name]["points"] < question.points


def test_a_new_question_goes_to_the_set_that_its_number_stands_for(checkout, capsys):
    assert main(["new", "question", "99_test"]) == 0
    assert main(["new", "question", "99", "--kind", "choice"]) == 0
    assert "99_test.ipynb: question q2 added" in capsys.readouterr().out
    assert [path.name for path in (checkout / "solutions").iterdir()] == ["99_test.ipynb"]
    assert main(["new", "question", "my question"]) == 2
    assert "such as 04_adafactor" in capsys.readouterr().err


def test_an_unknown_kind_is_answered_with_those_that_are_there(checkout, capsys):
    assert main(["new", "question", "99_test", "--kind", "essay"]) == 2
    assert f"choose one of {', '.join(SKELETONS)}" in capsys.readouterr().err
    assert not list((checkout / "solutions").iterdir())


RUN_OUT_OF_TIME = "exec('from course_utils.grading.time_limit import OutOfTime; raise OutOfTime')"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return 2 * x", "return 2 * x + 1", "q1 cannot be released: the solution fails on the case 'a vector': "),
        ('("2 * x", "x**2")', '("2 * x", "x + x")', "the mistake 'square' passes"),
        ('("2 * x", "x.mul_(2)")', '("2 * x", "x**2 ")', "is taken for"),
        ('"2 * x", "x**2"', f'"2 * x", "{RUN_OUT_OF_TIME}"', "the mistake 'square' ran out of time on 'a vector'"),
        ("x.add(x)", "x.add(1)", "the variant 'a sum' fails on the case 'a vector': "),
        ("*q1 · easy", "*q1 · hard", "its question's cell says difficulty=1"),
        ("*q1 · easy", "q1 · easy", "lacks its facts"),
        (
            '"2 * x", "x**2"',
            '"3 * x", "x**2"',
            "q1 cannot be released: The mistake 'square' replaces '3 * x', which occurs 0 times",
        ),
    ],
)
def test_a_question_that_is_not_fit_is_not_released(old, new, says, tmp_path):
    solutions, _ = with_question(empty_notebook("99_test", ""), "function")
    path = tmp_path / "99_test.ipynb"
    text = json.dumps(solutions, ensure_ascii=False)
    before, after = (json.dumps(part, ensure_ascii=False)[1:-1] for part in (old, new))
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(CourseError, match=re.escape(says)):
        released(path, tmp_path, tmp_path)


HIDDEN_ORACLE = """# QUESTION q1
import torch
from course_utils.grading import Case, function

# HIDDEN
def oracle(x):
    return x * 2.5, {"of": [float("nan"), x.to(torch.bfloat16)]}
# END HIDDEN

question = function(oracle, id="q1", title="T", points=1, difficulty=1, minutes=1, hints=("a", "b", "c"), answer="scaled",
    public=lambda random: [Case(f"case {i}", {"x": torch.rand(3, dtype=torch.float64) * 0 + i}) for i in range(3)],
    replaces=("torch.nn.functional.softmin", "torch._foreach_mul"))
"""
SCALED = """# EXERCISE q1
def scaled(x):
    ### BEGIN SOLUTION
    return x * 2.5, {"of": [float("nan"), x.to(torch.bfloat16)]}
    ### END SOLUTION
"""


def test_a_hidden_oracle_stays_and_its_words_on_the_public_cases_go(release_set):
    """The released question judges as the authored one, to the last bit; of other cases it knows nothing."""
    path = release_set(notebook("import torch", HIDDEN_ORACLE, SCALED))
    [authored] = load_solutions(path)
    entry = set_entry(authored)
    assert "2.5" not in entry["code"]
    question = question_from(entry)
    for right, case in zip(authored.question.cases(), question.cases(), strict=True):
        assert same(authored.question.expected(right.inputs), question.expected(case.inputs))
    with pytest.raises(KeyError):
        question.expected({"x": torch.ones(3)})
    assert terms(authored.question) == "*You may use everything except `torch.nn.functional.softmin`.*"
