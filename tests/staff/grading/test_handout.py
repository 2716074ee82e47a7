"""Of the repository: `make handout` copies the course as it lies here, and no file of it holds a line of an answer."""

import ast
import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from own_solutions import PATHS, solutions_of

from course_staff.notebooks.files import read_notebook
from course_staff.release.release import file_names
from course_staff.release.source import marker, public_part
from course_utils.grading.loading import SETS, set_names

ROOT = Path(__file__).parents[3]
LONG = 28
"""Shorter lines, such as `return total / count`, stand in many programs."""

pytestmark = pytest.mark.skipif(
    not (shutil.which("make") and shutil.which("git") and (ROOT / ".git").exists()),
    reason="make copies what git tracks",
)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "-s", *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def course(tmp_path):
    """A repository with this Makefile and little else."""
    root = tmp_path / "repository"
    texts = dict.fromkeys(("README.md", "docs/a name.txt", "docs/gone.txt", "docs/tests/a.txt"), "committed")
    texts |= dict.fromkeys(("solutions/a.txt", "tests/a.txt"), "the answer")
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(ROOT / "Makefile", root)
    (root / ".gitignore").write_text("my-course/\n")
    for args in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "all"]):
        subprocess.run(["git", *args], cwd=root, check=True)
    return root


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_copies_what_is_tracked_as_it_lies_here_without_the_folders_of_answers(course, tmp_path):
    (course / "README.md").write_text("just released")
    (course / "docs" / "gone.txt").unlink()
    (course / "docs" / "grades.csv").write_text("private")
    out = tmp_path / "for learners"
    process = make(course, "handout", f"ARGS={out}")
    assert (process.returncode, process.stderr) == (0, "")
    assert files_in(out) == {".gitignore", "Makefile", "README.md", "docs/a name.txt", "docs/tests/a.txt"}
    assert (out / "README.md").read_text() == "just released"
    assert "Left out" not in process.stdout


def test_a_class_that_git_tracks_is_left_out_and_named_but_no_new_document(course, tmp_path):
    for name in ("class/ann.ipynb", "class/bo.ipynb", "Zoë's class-results/results.csv", "notes.txt", "docs/new.md"):
        (course / name).parent.mkdir(exist_ok=True)
        (course / name).write_text("added")
    subprocess.run(["git", "add", "-A"], cwd=course, check=True)
    out = tmp_path / "out"
    process = make(course, "handout", f"ARGS={out}")
    assert (process.returncode, process.stderr) == (0, "")
    documents = {f"docs/{name}" for name in ("a name.txt", "gone.txt", "new.md", "tests/a.txt")}
    assert files_in(out) == {".gitignore", "Makefile", "README.md", *documents}
    left, last = process.stdout.splitlines()
    message, _, others = left.partition(": ")
    assert message == "Left out, since the course has no such file or folder"
    assert set(others.removesuffix(".").split(", ")) == {"Zoë's class-results", "class", "notes.txt"}
    assert last == f"The course without answers is in {out}."


def test_nothing_is_written_where_something_lies_or_where_answers_could_go_along(course, tmp_path):
    for arguments, message in (([], "Name a new folder"), ([f"ARGS={course}"], "is not an empty folder")):
        refused = make(course, "handout", *arguments)
        assert refused.returncode
        assert message in refused.stderr
    shutil.rmtree(course / ".git")
    refused = make(course, "handout", f"ARGS={tmp_path / 'out'}")
    assert refused.returncode
    assert "could not be listed" in refused.stderr
    assert files_in(tmp_path / "out") == set()


def test_a_copy_that_was_handed_out_says_that_it_has_no_tests(course, tmp_path):
    make(course, "handout", f"ARGS={tmp_path / 'out'}")
    output = make(tmp_path / "out", "test")
    assert output.returncode == 0
    assert "without the tests" in output.stdout
    assert "was handed out itself" in make(tmp_path / "out", "handout", "ARGS=further").stderr


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    out = tmp_path_factory.mktemp("handed") / "course"
    process = make(ROOT, "handout", f"ARGS={out}")
    assert process.returncode == 0, process.stderr
    return out


def test_all_that_the_course_has_at_the_top_is_handed_out_but_the_folders_of_answers(handed_out):
    listed = subprocess.run(
        ["git", "ls-tree", "-z", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = {*listed.stdout.split("\0")} - {"", "solutions", "tests"}
    assert {path.name for path in handed_out.iterdir()} == names, "a new one is named in the Makefile, in HANDED_OUT"


def test_no_file_that_is_handed_out_holds_a_line_of_an_answer(handed_out):
    """But for lines that learners are shown: in the package, the chapters, the statements, stubs and hints of any question."""
    all_authored = [authored for path in PATHS for authored in solutions_of(path.stem)]
    sources = [
        text for authored in all_authored for text in (authored.statement, authored.stub, *authored.question.hints)
    ]
    sources += [path.read_text("utf-8") for path in (ROOT / "course_utils").rglob("*.py")]
    sources += [cell["source"] for path in (ROOT / "notebooks").glob("*.ipynb") for cell in read_notebook(path).cells]
    public = "\n".join(sources)
    secret = {line for authored in all_authored for line in lines_of(authored.solution) if line not in public}
    assert len(secret) > 300, "else nothing is looked for"

    texts = {name: text_of(handed_out / name) for name in files_in(handed_out)}
    assert {f"course_utils/grading/sets/{name}.json" for name in set_names()} <= {*texts}
    leaks = {name: [line for line in secret if line in text] for name, text in texts.items()}
    assert {name: lines for name, lines in leaks.items() if lines} == {}
    survivors = text_of(ROOT / "solutions" / "survivors.json")
    assert any(line in survivors for line in secret), "a file that quotes answers is found"


@pytest.mark.parametrize("name", set_names())
def test_what_is_released_of_a_set_holds_no_line_of_a_hidden_function(name):
    """Such as the one that draws hidden cases, or an oracle; but for lines that its public parts have, too."""
    path = ROOT / "solutions" / f"{name}.ipynb"
    cells = [cell["source"] for cell in read_notebook(path).cells if (marker(cell) or "?")[0] == "QUESTION"]
    sources = [path.read_text("utf-8") for path in (ROOT / "course_utils").rglob("*.py")]
    sources += map(public_part, cells)
    public = "\n".join([*sources, *(f"{authored.statement}\n{authored.stub}" for authored in solutions_of(name))])
    hidden = [part.partition("# END HIDDEN")[0] for cell in cells for part in cell.split("# HIDDEN\n")[1:]]
    nodes = [node for part in hidden for node in ast.parse(part).body]
    functions = [ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    secret = {line for source in functions for line in lines_of(source) if line not in public}
    released = "\n".join(map(text_of, file_names(path, ROOT / "exercises", SETS)))
    assert [line for line in secret if line in released] == []


def lines_of(source: str) -> set[str]:
    """Long lines of a solution, as they are written and as Python would write them."""
    lines = {line.strip() for text in (source, ast.unparse(ast.parse(source))) for line in text.splitlines()}
    return {line for line in lines if len(line) >= LONG and not line.startswith("#")}


def text_of(path: Path) -> str:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8", "replace")
    text = re.sub(r'"image/png": "[^"]*"', "", text)  # nine tenths of a chapter
    return text.replace('\\"', '"').replace("\\\\", "\\") if path.suffix in (".json", ".ipynb") else text
