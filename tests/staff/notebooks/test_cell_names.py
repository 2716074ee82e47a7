"""The names by which cells depend on each other."""

import pytest

from course_staff.notebooks.cell_names import uses_and_binds


@pytest.mark.parametrize(
    ("source", "uses", "binds"),
    [
        ("x = y", {"y"}, {"x"}),
        ("x = x + 1", {"x"}, {"x"}),
        ("x = 1\ny = x", set(), {"x", "y"}),
        ("x += 1", {"x"}, {"x"}),
        ("x[0] = y.z", {"x", "y"}, set()),
        ("for i in xs:\n    print(i)", {"xs"}, {"i"}),
        ("def f(a, b=c):\n    d = a + e\n    return f(d)", {"c", "e"}, {"f"}),
        ("x = [i for i in xs if i > y]", {"xs", "y"}, {"x"}),
        ("import a.b as c\nfrom d import e", set(), {"c", "e"}),
        ("with f() as g:\n    g()", {"f"}, {"g"}),
        ("class A(B):\n    c = d", {"B", "d"}, {"A"}),
        ("%pip install x", set(), set()),
    ],
)
def test_names_used_and_bound(source, uses, binds):
    assert uses_and_binds(source) == (uses, binds)
