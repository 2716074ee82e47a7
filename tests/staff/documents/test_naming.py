"""Names that say too little, and names that a rule may not take for such."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_staff.documents.naming import ROOMS, VAGUE, remarks_on, vague_names
from course_staff.notebooks.files import write_notebook


@pytest.mark.parametrize("name", ["_named", "_kept", "_found_by", "_measured_update", "_quiet", "_older"])
@pytest.mark.parametrize("source", ["def {}(): ...", "async def {}(): ...", "class A:\n    def {}(self): ..."])
def test_a_private_function_that_describes_is_refused(name, source):
    ((_, remark),) = remarks_on(source.format(name))
    assert name in remark


@pytest.mark.parametrize(
    "name", ["_need", "_embed_all", "_feed", "_seed", "_split", "_same_document", "__added__", "scaled"]
)
def test_verbs_nouns_and_public_names_pass(name):
    assert not remarks_on(f"def {name}(): ...")


BINDINGS = [
    "{} = 1",
    "a.{} = 1",
    "a, (b, *{}) = c",
    "{}: int = 1",
    "{} += 1",
    "if ({} := a): ...",
    "for {} in a: ...",
    "[{} for {} in a]",
    "with a as {}: ...",
    "try: ...\nexcept E as {}: ...",
    "def f({}): ...",
    "def f(*, {}=1): ...",
    "def f(**{}): ...",
    "lambda {}: 1",
    "class {}: ...",
    "class A:\n    {}: int",
    "class A:\n    def {}(self): ...",
    "match a:\n    case A({}): ...",
    "match a:\n    case [*{}]: ...",
]


@pytest.mark.parametrize("source", BINDINGS)
def test_a_vague_name_is_refused_wherever_it_is_bound(source):
    for name in VAGUE:
        ((line, remark),) = remarks_on(source.replace("{}", name))
        assert line >= 1
        assert repr(name) in remark
    assert not remarks_on(source.replace("{}", "found_path"))


def test_neither_underscores_nor_capitals_make_a_vague_name_a_better_one():
    sources = ["self._said = 1", "KEPT = 1", "class _Kept: ...", "class A:\n    def Each(self, given_): ..."]
    assert [len(remarks_on(source)) for source in sources] == [1, 1, 1, 2]


def test_a_key_of_a_dictionary_may_be_any_word():
    assert not remarks_on("class Record(TypedDict):\n    found: int")
    assert len(remarks_on("class Found(TypedDict):\n    found: int")) == 1


@pytest.mark.parametrize("source", ["f(found=1)", "found()", "a.kept", "import known", "'said'", "{'told': 1}"])
def test_a_vague_name_that_is_only_used_passes(source):
    assert not remarks_on(source)


def test_a_remark_says_where_the_name_stands(tmp_path):
    path = tmp_path / ROOMS[0] / "deeper" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text('"""A file."""\n\nfound = 1\n')
    assert list(vague_names(tmp_path)) == [
        f"{ROOMS[0]}/deeper/a.py:3: 'found' could be anything; name the value by what it is."
    ]


def test_the_code_of_chapters_is_read_around_what_only_ipython_understands(tmp_path):
    source = "if found:\n    %pip install one\n!echo\nx = (\n    1\n    % 2\n)\nkept = 1"
    cells = [new_markdown_cell("found = 1"), new_code_cell(source, id="peaks"), new_code_cell("%%bash\neach=1 ls")]
    write_notebook(new_notebook(cells=cells), tmp_path / "notebooks" / "a.ipynb")
    assert list(vague_names(tmp_path)) == [
        "a.ipynb, cell peaks: 'kept' could be anything; name the value by what it is."
    ]
