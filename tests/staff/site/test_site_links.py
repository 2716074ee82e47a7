"""Where a page's links lead: from the repository's files to the site's pages, and never to nothing."""

import json

import pytest

from course_staff.site.links import Rewriter

CELL = {"id": "a", "cell_type": "markdown", "metadata": {}, "source": "# One `x`\n\n## The *bytes* of it"}
CHAPTER = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [CELL]})
GUIDE = '# Guide\n\n## Will it fit?\n\n### <a id="8-bit-adam"></a>8-bit Adam\n\nText.\n'


@pytest.fixture
def rewriter(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "notebooks" / "01_one.ipynb").write_text(CHAPTER, encoding="utf-8")
    (tmp_path / "docs" / "guide.md").write_text(GUIDE, encoding="utf-8")
    return Rewriter(tmp_path, {"notebooks/01_one.ipynb", "docs/guide.md"}, {"docs/guide.pdf"})


@pytest.mark.parametrize(
    ("link", "page", "on_the_site"),
    [
        ("[a](../docs/guide.md)", "notebooks/01_one.ipynb", "[a](../docs/guide.html)"),
        ('[a](../docs/guide.md "A term.")', "notebooks/01_one.ipynb", '[a](../docs/guide.html "A term.")'),
        ("[a](01_one.ipynb)", "notebooks/01_one.ipynb", "[a](01_one.html)"),
        ("[`code [x]`](guide.md)", "docs/other.md", "[`code [x]`](guide.html)"),
        ("[a](notebooks/01_one.ipynb)", "README.md", "[a](notebooks/01_one.html)"),
        ('<a href="guide.md">a</a>', "docs/other.md", '<a href="guide.html">a</a>'),
        ("[a](https://arxiv.org/abs/1711.05101)", "docs/guide.md", "[a](https://arxiv.org/abs/1711.05101)"),
        ("[a](guide.pdf)", "docs/guide.md", "[a](guide.pdf)"),
        # What is no page and is not handed out can be read nowhere on the site.
        ("see [the file](../CONTRIBUTING.md).", "docs/guide.md", "see the file."),
    ],
)
def test_a_link_leads_to_the_page(rewriter, link, page, on_the_site):
    assert rewriter.rewrite(link, page) == on_the_site


@pytest.mark.parametrize(
    ("anchor", "page", "on_the_site"),
    [
        ("../docs/guide.md#will-it-fit", "notebooks/01_one.ipynb", "../docs/guide.html#will-it-fit"),
        ("../notebooks/01_one.ipynb#The-bytes-of-it", "docs/guide.md", "../notebooks/01_one.html#the-bytes-of-it"),
        ("guide.md#8-bit-adam", "docs/guide.md", "guide.html#bit-adam"),
        ("#8-bit-adam", "docs/guide.md", "#bit-adam"),
    ],
)
def test_an_anchor_is_named_as_sphinx_names_it(rewriter, anchor, page, on_the_site):
    """An id of Sphinx's begins with a letter; `test_site_build.py` looks whether it is there."""
    assert rewriter.target(anchor, page) == on_the_site


def test_a_heading_with_an_anchor_of_its_own_keeps_it(rewriter):
    assert "(8-bit-adam)=\n### 8-bit Adam" in rewriter.rewrite(GUIDE, "docs/guide.md")


def test_code_is_left_alone(rewriter):
    text = "`[a](guide.md)` and\n\n```md\n[a](guide.md)\n```\n"
    assert rewriter.rewrite(text, "docs/guide.md") == text


def test_with_a_repository_its_other_files_are_one_link_away(rewriter):
    at_home = Rewriter(rewriter.root, rewriter.pages, rewriter.files, "https://github.com/a/b/blob/main/")
    assert at_home.target("../Makefile", "docs/guide.md") == "https://github.com/a/b/blob/main/Makefile"
