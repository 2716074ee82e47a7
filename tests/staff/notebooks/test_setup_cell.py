"""The set-up cell, run where the package is not, and where nothing can be fetched; every notebook runs it where it is."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_staff.notebooks.setup_cell import setup_source, stamp
from course_utils.errors import CourseError
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[3]
NOWHERE = "https://127.0.0.1:9/course"

# The cell run twice by IPython, in a process that cannot see the package yet where `hide` is given.
RUNNER = """
import sys
from IPython.core.interactiveshell import InteractiveShell
if "hide" in sys.argv:
    sys.path[:] = [entry for entry in sys.path if "editable" not in entry and entry != {root!r}]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
shell = InteractiveShell.instance()
if "colab" in sys.argv:
    import google.colab
result = shell.run_cell(open({cell!r}).read())
result = shell.run_cell(open({cell!r}).read()) if result.success else result
print("RESULT", type(result.error_in_exec).__name__, result.error_in_exec)
"""


def run_cell(tmp_path, source, *flags, python=sys.executable, timeout=100, folder=None, **environment):
    """What the cell says, run twice in `folder`; `environment` are further variables."""
    cell = tmp_path / "cell.py"
    cell.write_text(source, encoding="utf-8")
    runner = RUNNER.format(cell=str(cell), root=str(ROOT))
    process = subprocess.run(
        [python, "-c", runner, *flags],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder or tmp_path,
        stdin=subprocess.DEVNULL,
        # "false" it is: build with what is installed
        env=environment_for_child(PIP_NO_BUILD_ISOLATION="false", **environment),
    )
    return process.stdout + process.stderr


def test_without_package_and_network_one_sentence_says_so(tmp_path):
    output = run_cell(tmp_path, setup_source(NOWHERE), "hide")
    message = "The course could not be fetched: check the network, then run this cell again."
    assert f"RESULT AssertionError {message}" in output
    assert output.count("ERROR:") <= 1, "pip gives its reason in one line, or, in older versions, not at all"
    assert len(output.splitlines()) < 20


def test_without_package_and_address_it_says_how_to_install_from_a_wheel_and_from_a_folder(tmp_path):
    output = run_cell(tmp_path, setup_source(""), "hide")
    assert "RESULT AssertionError The course is not installed here." in output
    assert "make wheel" in output
    assert "%pip install FOLDER" in output
    assert "ERROR:" not in output, "nothing was tried that cannot work"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_an_address_the_cell_installs_the_wheel_that_lies_beside_the_notebook(tmp_path):
    """In an environment that sees this one's packages but not ours, as in Colab; the wheel is what `make wheel` writes."""
    clone, folder = tmp_path / "origin", tmp_path / "content"
    _commit_a_copy(clone)
    shutil.copy(ROOT / "Makefile", clone)
    shutil.copy(ROOT / "constraints.txt", clone)
    folder.mkdir()
    # In this environment instead of one of its own, which it would fill for minutes; the newest file says that it is whole.
    (clone / "complete").touch()
    ours = metadata.distribution("course-utils").read_text("direct_url.json")
    make = ["make", "-s", "wheel", f"VENV={sys.executable}", "STAMP=complete"]
    process = subprocess.run(make, cwd=clone, capture_output=True, text=True, timeout=200)
    assert metadata.distribution("course-utils").read_text("direct_url.json") == ours, "nothing was installed here"
    wheel = clone / process.stdout.splitlines()[-1]
    shutil.copy(wheel, folder)
    python = _empty_python(tmp_path)
    _share_packages(python)
    before = _versions(python)
    output = run_cell(tmp_path, setup_source(""), "hide", python=str(python), folder=folder, timeout=300)
    assert output.count("smoke scale on cpu, seed 0") == 2, output
    assert "RESULT NoneType None" in output
    after = _versions(python)
    assert after.pop("course-utils")
    assert after == before
    assert [path.name for path in folder.iterdir()] == [wheel.name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_colab_the_cell_fetches_the_course_and_moves_nothing(tmp_path, monkeypatch):
    """`google.colab` is there, numpy of another version, a torch that says it is older, an empty folder, a remote of git."""
    monkeypatch.delenv("COURSE_HOME")
    remote, python, folder = _bare_remote(tmp_path), _colab(tmp_path), tmp_path / "content"
    folder.mkdir()
    cell = setup_source(remote.as_uri().replace("file://", "file://localhost"))
    before = _versions(python)
    assert (before["numpy"], before["torch"]) == (OTHER_NUMPY, OTHER_TORCH)

    output = run_cell(tmp_path, cell, "hide", "colab", python=str(python), folder=folder, timeout=400)
    assert output.count("smoke scale on cpu, seed 0\nColab deletes this machine's files.") == 2, output
    assert "RESULT NoneType None" in output
    after = _versions(python)
    assert after.pop("course-utils")
    assert after == before

    shutil.rmtree(remote)  # on another day, without the network, all is there
    output = run_cell(tmp_path, cell, "hide", "colab", python=str(python), folder=folder)
    assert "RESULT NoneType None" in output
    assert list(folder.iterdir()) == []


OTHER_NUMPY, OTHER_TORCH = "2.0.2", "2.9.1"


def _empty_python(tmp_path):
    """A Python of its own, with pip and nothing else."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    return next(path for path in (environment / "bin/python", environment / "Scripts/python.exe") if path.exists())


def _bare_remote(tmp_path):
    """A repository as a code host keeps it."""
    _commit_a_copy(tmp_path / "origin")
    remote = tmp_path / "course.git"
    subprocess.run(["git", "clone", "-q", "--bare", tmp_path / "origin", remote], check=True, timeout=60)
    return remote


def _colab(tmp_path):
    """A Python that has what Colab has: these packages less the course, but for numpy, which is really another version, and
    torch, of which there is only one to be had here: its files say another."""
    python = _empty_python(tmp_path)
    purelib = _share_packages(python, "numpy*", "torch", "torch-*")
    command = [python, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", f"numpy=={OTHER_NUMPY}"]
    if (process := subprocess.run(command, capture_output=True, text=True, timeout=200)).returncode:
        pytest.skip(f"numpy {OTHER_NUMPY} cannot be had: {process.stderr.strip().splitlines()[-1]}")
    _say_another_torch(Path(sysconfig.get_path("purelib")), purelib)
    (purelib / "google" / "colab").mkdir(parents=True)
    (purelib / "google" / "colab" / "__init__.py").touch()
    return python


def _say_another_torch(shared, purelib):
    """Torch as it is here, with a number of its own in the two places that tell it."""
    (purelib / "torch").mkdir()
    for entry in (shared / "torch").iterdir():
        if entry.name != "version.py":
            (purelib / "torch" / entry.name).symlink_to(entry)
    version = (shared / "torch" / "version.py").read_text(encoding="utf-8")
    (purelib / "torch" / "version.py").write_text(version.replace(_torch(), OTHER_TORCH), encoding="utf-8")
    (info,) = shared.glob("torch-*.dist-info")
    shutil.copytree(info, purelib / f"torch-{OTHER_TORCH}.dist-info")
    wheel_metadata = purelib / f"torch-{OTHER_TORCH}.dist-info" / "METADATA"
    wheel_metadata.write_text(
        wheel_metadata.read_text(encoding="utf-8").replace(f"Version: {_torch()}", f"Version: {OTHER_TORCH}", 1),
        "utf-8",
    )


def _torch():
    return metadata.version("torch")


def _commit_a_copy(clone):
    for package in ("course_utils", "course_staff"):
        shutil.copytree(ROOT / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    git = ["git", "-C", clone, "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "copy"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)


def _share_packages(python, *without):
    """Let `python` see this environment's packages, except the course itself and those that fit a pattern of `without`."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.check_output([python, "-c", program], text=True, timeout=60)
    shared = Path(sysconfig.get_path("purelib"))
    target = Path(purelib.strip())
    for folder in target.glob("setuptools*"):
        shutil.rmtree(folder)
    for entry in shared.iterdir():
        left_out = any(fnmatch(entry.name, pattern) for pattern in ("__editable__*", "course_utils*", "pip*", *without))
        if not left_out and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)
    return target


def _versions(python):
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format=json"], text=True, timeout=100)
    return {package["name"]: package["version"] for package in json.loads(listed)}


def test_stamping_renews_only_the_tagged_cell_and_only_once(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [new_code_cell("x = 1"), new_code_cell("old", metadata={"tags": ["setup"]})]
    nbformat.write(new_notebook(cells=cells), path)
    assert stamp(path)
    assert [cell.source for cell in nbformat.read(path, 4).cells] == ["x = 1", setup_source()]
    before = path.read_bytes()
    assert not stamp(path)
    assert path.read_bytes() == before


def test_stamping_needs_one_tagged_cell(tmp_path):
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), tmp_path / "a.ipynb")
    with pytest.raises(CourseError, match="a.ipynb has 0 cells tagged 'setup'"):
        stamp(tmp_path / "a.ipynb")
