"""Of the repository: the examples in the docstrings of the functions that chapters and solutions use most."""

import doctest

import pytest

from course_utils import data, distributed, grading, models, units, viz
from course_utils.bets import bet, settle

MOST_USED = [grading.design, viz.show, viz.source, units.format_bytes, grading.function, data.batches, bet, settle]
MOST_USED += [models.build, distributed.launch]


def show_in_a_terminal(bundle, **_):
    if bundle["text/plain"]:
        print(bundle["text/plain"])


@pytest.mark.parametrize("function", MOST_USED, ids=lambda function: function.__name__)
@pytest.mark.usefixtures("restart")
def test_an_example_gives_what_it_shows(function, monkeypatch):
    monkeypatch.setitem(viz.show.__globals__, "display", show_in_a_terminal)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=function.__globals__)
    assert example.examples
    failures = []
    doctest.DocTestRunner().run(example, out=failures.append)
    assert not failures, "".join(failures)
