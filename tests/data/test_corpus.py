import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

import course_utils
from course_utils.data import corpus
from course_utils.errors import CourseError

SAMPLE = textwrap.dedent(
    '''
    import os

    def plain(first, second):
        """Said here."""
        # kept
        return first + second + os.sep

    class Outer(dict, metaclass=abc.ABCMeta):
        @property
        def value(self):
            def inner():
                return self

            return inner().first + inner().second

        class Inner:
            async def wait(self): return await self.one(self.two, self.three)

    if os.name == "nt":
        def on_windows(path):
            return path.replace("/", os.sep)
    else:
        try:
            pass
        except OSError:
            def elsewhere(path):
                return path
    '''
)


def sample():
    return {row.name: row for row in corpus.functions_in(SAMPLE, "pkg", "pkg/sample.py")}


def test_methods_and_branches_are_found_and_inner_functions_stay_in_their_outer_one():
    assert list(sample()) == ["plain", "Outer.value", "Outer.Inner.wait", "on_windows", "elsewhere"]


def test_the_text_is_the_source_under_its_class_line():
    assert sample()["plain"].text == (
        'def plain(first, second):\n    """Said here."""\n    # kept\n    return first + second + os.sep'
    )
    assert sample()["Outer.value"].text.splitlines()[:3] == [
        "class Outer(dict):",
        "    @property",
        "    def value(self):",
    ]
    assert sample()["Outer.value"].line == SAMPLE.splitlines().index("    @property") + 1
    assert corpus.without_class_line(sample()["Outer.value"].text).lstrip().startswith("@property")
    assert corpus.without_class_line(sample()["plain"].text) == sample()["plain"].text


def test_every_text_parses_and_stands_at_its_line(rows):
    library = corpus.standard_library()
    for row in rows:
        ast.parse(row.text)
        source = (library / row.file).read_text(encoding="utf-8").splitlines()
        first = corpus.without_class_line(row.text).splitlines()[0]
        assert source[row.line - 1].strip() == first.strip(), row[:4]


def test_short_functions_and_those_that_name_their_package_are_left_out(rows):
    for row in rows:
        assert not re.search(rf"\b{row.label}\b", row.text), row[:4]
        assert len(re.findall(r"\w+|[^\w\s]", corpus.without_class_line(row.text))) >= corpus.MIN_TOKENS
    telling = corpus.Function("pkg", "f", 1, "f", "def f(a, b, c):\n    return pkg.run(a, b, c)")
    assert not corpus.is_worth_keeping(telling)
    assert corpus.is_worth_keeping(telling._replace(text=telling.text.replace("pkg", "package")))
    assert not corpus.is_worth_keeping(telling._replace(text="def f(a):\n    return a"))
    assert not corpus.is_worth_keeping(
        telling._replace(text="class A(b, c, d, e, f, g):\n    def f(a):\n        return a")
    )


def _most_similar(texts):
    """Every pair's Jaccard similarity at once, by sparse products; shares no code with the corpus."""
    counter = CountVectorizer(
        analyzer=lambda text: set(zip(*(re.findall(r"\w+|[^\w\s]", text)[i:] for i in range(3)), strict=False)),
        dtype=np.int64,
    )
    present = counter.fit_transform(texts)
    shared = (present @ present.T).tocoo()
    size = np.asarray(present.sum(axis=1)).ravel()
    different = shared.row < shared.col
    together, row, col = shared.data[different], shared.row[different], shared.col[different]
    return together / (size[row] + size[col] - together)


def test_no_two_functions_are_near_duplicates(rows):
    similarity = _most_similar([corpus.without_class_line(row.text) for row in rows])
    assert 0.5 < similarity.max() < float(corpus.NEAR_DUPLICATE)


def test_the_near_duplicates_that_are_dropped_are_such():
    read = [
        row for file in corpus.source_files(corpus.standard_library(), "email")
        for row in corpus.functions_in(file.read_text(encoding="utf-8"), "email", file.name)
    ]  # fmt: skip
    kept = set(corpus.drop_near_duplicates(read))
    for row in (row for row in read if row not in kept):
        mine = corpus.shingles(corpus.without_class_line(row.text))
        sets = [corpus.shingles(corpus.without_class_line(other.text)) for other in kept]
        similarities = [len(mine & other) / len(mine | other) for other in sets if mine | other]
        assert max(similarities, default=0.0) >= 0.7, row[:4]


@given(st.lists(st.lists(st.sampled_from("abcde"), min_size=3, max_size=9), max_size=12))
def test_near_duplicates_are_dropped_as_by_comparing_every_pair(texts):
    rows = [corpus.Function("l", "f", line, "n", " ".join(text)) for line, text in enumerate(texts)]
    kept = []
    for row in rows:
        mine = corpus.shingles(row.text)
        if all(Fraction(len(mine & other), len(mine | other)) < corpus.NEAR_DUPLICATE for _, other in kept):
            kept.append((row, mine))
    assert corpus.drop_near_duplicates(rows) == [row for row, _ in kept]


def test_every_label_is_in_every_split_in_about_its_share(rows):
    splits = corpus.assign_files(rows)
    counts = defaultdict(Counter)
    for row in rows:
        counts[row.label][splits[row.file]] += 1
    assert set(counts) == set(corpus.PACKAGES)
    for label, count in counts.items():
        assert 0.7 <= count["train"] / count.total() <= 0.9, label
        assert count["validation"] >= 4, label
        assert count["test"] >= 2, label
    assert max(count["train"] for count in counts.values()) < 0.3 * sum(count["train"] for count in counts.values())


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(1, 50), min_size=3, max_size=15))
def test_three_files_fill_three_splits_whatever_their_sizes_and_order(sizes):
    rows = [corpus.Function("l", file, line, "n", "") for file, size in sizes.items() for line in range(size)]
    splits = corpus.assign_files(rows)
    assert set(splits) == set(sizes)
    assert set(splits.values()) == set(corpus.SPLITS)
    assert splits == corpus.assign_files(rows[::-1])


def _library(folder: Path, packages, files=3) -> Path:
    for label in packages:
        (folder / label / "tests").mkdir(parents=True)
        (folder / label / "tests" / "test_it.py").write_text("def test():\n    assert [1, 2, 3, 4, 5, 6, 7]\n")
        for number in range(files):
            names = " + ".join(f"{label}_{number}_{word}" for word in "abcdefgh")
            (folder / label / f"file{number}.py").write_text(f"def add{number}():\n    return {names}\n")
    return folder


def test_a_library_without_some_packages_gives_the_others(tmp_path):
    library = _library(tmp_path, corpus.PACKAGES[:6])
    assert {row.label for row in corpus.read_functions(library)} == set(corpus.PACKAGES[:6])
    assert not any("test" in row.file for row in corpus.read_functions(library))


@pytest.mark.parametrize("files", [0, 2])
def test_a_library_without_source_files_is_refused_in_one_sentence(tmp_path, files):
    library = _library(tmp_path, corpus.PACKAGES, files)
    with pytest.raises(CourseError, match="Only 0 of the 10 packages of the corpus have source files"):
        corpus.read_functions(library)


def _other_pythons():
    versions = ("3.11", "3.12", "3.13", "3.14")
    found = [shutil.which(f"python{version}") for version in versions]
    siblings = Path(sys.base_prefix).parent.glob("*/bin/python3")
    system = [Path(f"/usr/bin/python{version}") for version in versions]
    return sorted({str(path) for path in [*filter(None, found), *siblings, *system] if Path(path).exists()})


def _report_of(python: str) -> str | None:
    """What another Python says of its corpus; None where it is older than the course or does not start."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(course_utils.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run([python, "-c", check], capture_output=True, timeout=20).returncode:
        return None
    ran = subprocess.run(
        [python, "-m", "course_utils.data.corpus"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_other_pythons_have_the_same_labels():
    reports = {python: report for python in _other_pythons() if (report := _report_of(python))}
    if not reports:
        pytest.skip("no other Python from 3.11 on this machine")
    for python, report in reports.items():
        counts = {label: list(map(int, numbers)) for label, *numbers in map(str.split, report.splitlines()[1:])}
        assert tuple(counts) == corpus.PACKAGES, python
        assert all(min(split) >= 2 and sum(split) >= 40 for split in counts.values()), (python, counts)
