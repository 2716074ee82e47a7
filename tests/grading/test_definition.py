"""The line in which a cell binds a name."""

from course_utils.grading.definition import binding_line


def test_lines_that_bind_a_name():
    assert binding_line("a = 1\nwith b:\n    a: int = 2\ndef f():\n    a = 3", "a") == 3
    assert binding_line("import x.y\nfrom z import w as v", "x") == 1
    assert binding_line("import x.y\nfrom z import w as v", "v") == 2
    assert binding_line("a +=", "a") is None
    assert binding_line("b = a", "a") is None
