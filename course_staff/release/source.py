"""The one source of every question, a notebook in `solutions/`, and what is released of it.

A cell is recognized by its first line, which survives tools that strip metadata: `# QUESTION q1` holds the question, `#
EXERCISE q1` the answer; any other cell goes to the learner as it is. Between `# HIDDEN` and `# END HIDDEN` is what never
leaves `solutions/`: `hidden`, `mistakes`, `variants`, and a function `oracle`; the set holds what it returns on the public cases.
In an answer, `### BEGIN SOLUTION` … `### END SOLUTION`, or `  ### SOLUTION`
behind an assignment, mark what is cut out; `### BEGIN STUB` … `### END STUB`, directly below, is a comment that the learner gets
as code instead.
"""

import ast
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from course_staff.notebooks.cell_names import statements_of
from course_staff.notebooks.files import read_notebook
from course_utils.errors import CourseError
from course_utils.grading import subjects
from course_utils.grading.definition import binding_line
from course_utils.grading.loading import run_question
from course_utils.grading.oracles import Recorder, with_answers
from course_utils.grading.question import UNTOUCHED, Mistake, Question
from course_utils.grading.subjects import Zoo

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # questions import it, and it warns of missing kernels

_DEFAULT_STUB = f'raise NotImplementedError("{UNTOUCHED}")'
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
_MARKER = re.compile(r"# (?P<kind>QUESTION|EXERCISE) (?P<id>\w+)\s*(?:\n|$)")
_HIDDEN = re.compile(r"^# HIDDEN\n.*?^# END HIDDEN(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_HOLE = re.compile(
    r"^(?P<indent> *)### BEGIN SOLUTION\n(?P<solution>.*?)^(?P=indent)### END SOLUTION(?:\n|\Z)"
    r"(?:(?P=indent)### BEGIN STUB\n(?P<stub>.*?)^(?P=indent)### END STUB(?:\n|\Z))?",
    re.MULTILINE | re.DOTALL,
)
_ASSIGNED = re.compile(r"^(?P<target> *[\w.]+(?:: [^=\n]+)? = )(?P<value>.*?)  ### SOLUTION$", re.MULTILINE)
_LEFT_OVER = re.compile(r"^.*### (?:BEGIN |END )?(?:SOLUTION|STUB)\b.*$|^# (?:END )?HIDDEN$", re.MULTILINE)


@dataclass(frozen=True)
class AuthoredQuestion:
    """A question with everything its author knows."""

    question: Question
    solution: str  # the answer's cell as a perfect learner would hand it in
    stub: str  # the answer's cell as it is handed out
    code: str  # the public part of the question's cell
    statement: str  # the Markdown above it
    preamble: str  # what the cells above the answer import and define
    oracle: Callable | None  # None if it is not secret
    names: Mapping[str, object]  # all that the question's cell defines

    def record_answers(self) -> list:
        """What the hidden oracle returns, call by call, while the public part works out what is right on its cases."""
        recorder = Recorder(self.oracle)
        with_answers(run_question(self.code, self.question.id, {"oracle": recorder})["question"])
        return recorder.answers


def load_solutions(path: Path) -> list[AuthoredQuestion]:
    """The questions of the notebook at `path`, in order; runs their cells.

    Raises `CourseError`, naming the question, if a cell is missing, marked twice, or cannot be read.
    """
    cells = read_notebook(path).cells
    questions = _indices_of(cells, "QUESTION")
    answers = _indices_of(cells, "EXERCISE")
    if set(questions) != set(answers):
        odd = ", ".join(sorted(set(questions) ^ set(answers)))
        raise CourseError(f"{path.name}: {odd} needs a QUESTION cell and an EXERCISE cell; write the missing one.")
    all_authored = [_read_question(path.stem, cells, questions[name], answers[name], name) for name in questions]
    return [_with_zoo(authored, all_authored) for authored in all_authored]


def marker(cell: dict) -> tuple[str, str] | None:
    """(`QUESTION` or `EXERCISE`, the question's id) of a marked code cell, else None."""
    match = _MARKER.match(cell["source"]) if cell["cell_type"] == "code" else None
    return (match["kind"], match["id"]) if match else None


def split_answer(source: str) -> tuple[str, str]:
    """(solution, stub) of an answer's cell, both without marks; raises `CourseError` if the marks do not fit together."""
    if not (_HOLE.search(source) or _ASSIGNED.search(source)):
        raise CourseError("nothing is removed; put ### BEGIN SOLUTION and ### END SOLUTION around the solution.")
    solution = _ASSIGNED.sub(r"\g<target>\g<value>", _HOLE.sub(lambda hole: hole["solution"], source))
    stub = _ASSIGNED.sub(r"\g<target>...", _HOLE.sub(_stub_of, source))
    for text in (solution, stub):
        _refuse_left_over(text)
    return solution.rstrip("\n"), stub.rstrip("\n")


def public_part(source: str) -> str:
    """A question's cell without what is hidden; raises `CourseError` if the marks do not fit together."""
    public = _HIDDEN.sub("", source).strip("\n") + "\n"
    _refuse_left_over(public)
    return public


def apply_mistake(solution: str, mistake: Mistake) -> str:
    """The solution with the mistake's patches; raises `CourseError` if a patch does not fit exactly once."""
    for old, new in mistake.patches:
        if solution.count(old) != 1:
            raise CourseError(
                f"The mistake {mistake.name!r} replaces {old!r}, which occurs {solution.count(old)} times in the solution; "
                "give a longer piece that occurs once."
            )
        solution = solution.replace(old, new)
    return solution


def _indices_of(cells: list[dict], kind: str) -> dict[str, int]:
    """Ids to indices of the cells marked as `kind`."""
    indices: dict[str, int] = {}
    for index, cell in enumerate(cells):
        if (mark := marker(cell)) and mark[0] == kind:
            if mark[1] in indices:
                raise CourseError(f"Two cells begin with # {kind} {mark[1]}; give each question its own id.")
            indices[mark[1]] = index
    return indices


def _read_question(stem: str, cells: list[dict], question_index: int, answer_index: int, name: str) -> AuthoredQuestion:
    try:
        code = public_part(cells[question_index]["source"])
        names = run_question(cells[question_index]["source"], name)
        oracle = names.get("oracle") if binding_line(code, "oracle") is None else None
        question = run_question(code, name, oracle and {"oracle": oracle})["question"]
        fields = {key: names[key] for key in ("hidden", "mistakes", "variants") if key in names}
        fields = {key: value if key == "hidden" else tuple(value) for key, value in fields.items()}
        solution, stub = split_answer(cells[answer_index]["source"])
        return AuthoredQuestion(
            question=replace(question, **fields),
            solution=solution,
            stub=stub,
            code=code,
            statement=_statement(cells, min(question_index, answer_index)),
            preamble=_preamble(cells[:answer_index]),
            oracle=oracle,
            names=names,
        )
    except CourseError as error:
        raise CourseError(f"{stem}, {name}: {error}") from None


def _with_zoo(authored: AuthoredQuestion, all_authored: list[AuthoredQuestion]) -> AuthoredQuestion:
    """The question with the known answers of its `zoo`, if it has one, as hidden cases."""
    zoo = authored.names.get("zoo")
    name = authored.question.id
    if not isinstance(zoo, Zoo):
        return authored
    right, wrong = dict(zoo.right), dict(zoo.wrong)
    if zoo.of:
        other = next((candidate for candidate in all_authored if candidate.question.id == zoo.of), None)
        if other is None:
            raise CourseError(f"{name}: there is no question {zoo.of!r} for its zoo; name one of this notebook.")
        mistakes = {mistake.name: apply_mistake(other.solution, mistake) for mistake in other.question.mistakes}
        if unknown := set(zoo.without) - set(mistakes):
            raise CourseError(f"{name}: {zoo.of} has no mistake {min(unknown)!r}; take it out of the zoo's `without`.")
        variants = {variant.name: variant.source for variant in other.question.variants}
        sources = {"the solution": other.solution, **variants}
        right |= {name: f"{other.preamble}\n{source}" for name, source in sources.items()}
        wrong |= {name: f"{other.preamble}\n{mistakes[name]}" for name in mistakes if name not in zoo.without}
    return replace(authored, question=subjects.with_subjects(authored.question, right, wrong))


def _statement(cells: list[dict], index: int) -> str:
    """The Markdown cells that end just above `index`."""
    first = index
    while first and cells[first - 1]["cell_type"] == "markdown":
        first -= 1
    return "\n\n".join(cell["source"] for cell in cells[first:index])


def _preamble(cells: list[dict]) -> str:
    """The imports and definitions of the plain code cells, without what these cells do."""
    plain = [cell["source"] for cell in cells if cell["cell_type"] == "code" and not marker(cell)]
    nodes = [node for source in plain for node in statements_of(source) if isinstance(node, _DEFINITIONS)]
    return "\n".join(map(ast.unparse, nodes))


def _stub_of(hole: re.Match) -> str:
    indent = hole["indent"]
    if hole["stub"] is None:
        return f"{indent}{_DEFAULT_STUB}\n"
    return "".join(_uncomment(line, indent) for line in hole["stub"].splitlines(keepends=True))


def _uncomment(line: str, indent: str) -> str:
    beginning = f"{indent}#"
    if not line.startswith(beginning):
        raise CourseError(f"a line of the stub is not a comment: {line.strip()!r}; begin it with '# '.")
    rest = line.removeprefix(beginning).removeprefix(" ")
    return indent + rest if rest.strip() else "\n"


def _refuse_left_over(text: str) -> None:
    if mark := _LEFT_OVER.search(text):
        raise CourseError(
            f"the mark {mark.group().strip()!r} has no partner at the same indentation; marks come in pairs, "
            "a stub directly below its solution."
        )
