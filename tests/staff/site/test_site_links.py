"""Where a page's links lead: from the repository's files to the site's pages, and never to nothing."""

import json

import pytest

from course_staff.documents.readme import files_place
from course_staff.site.links import Links, with_named_headings

CELL = {"id": "a", "cell_type": "markdown", "metadata": {}, "source": "# One `x`\n\n## The *bytes* of it"}
CHAPTER = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [CELL]})
GUIDE = '# Guide\n\n## Will it fit?\n\n### <a id="8-bit-adam"></a>8-bit Adam\n\nText.\n'


@pytest.fixture
def links(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "notebooks" / "01_one.ipynb").write_text(CHAPTER, encoding="utf-8")
    (tmp_path / "docs" / "guide.md").write_text(GUIDE, encoding="utf-8")
    return Links(tmp_path, ["notebooks/01_one.ipynb", "docs/guide.md", "index.md"], ["docs/guide.pdf"])


@pytest.mark.parametrize(
    ("target", "page", "on_the_site"),
    [
        ("../docs/guide.md", "notebooks/01_one.ipynb", "../docs/guide.html"),
        ("01_one.ipynb", "notebooks/01_one.ipynb", "01_one.html"),
        ("guid%65.md", "docs/other.md", "guide.html"),
        ("notebooks/01_one.ipynb", "index.md", "notebooks/01_one.html"),
        ("https://arxiv.org/abs/1711.05101", "docs/guide.md", "https://arxiv.org/abs/1711.05101"),
        ("guide.pdf", "docs/guide.md", "guide.pdf"),
        ("../_static/figures/01-1.webp", "notebooks/01_one.ipynb", "../_static/figures/01-1.webp"),
        ("../README.md", "docs/guide.md", "../index.html"),
        ("../notebooks/", "docs/guide.md", "../notebooks/01_one.html"),
        # What is no page and is not handed out can be read nowhere on the site.
        ("../CONTRIBUTING.md", "docs/guide.md", ""),
    ],
)
def test_a_link_leads_to_the_page(links, target, page, on_the_site):
    assert links.target(target, page) == on_the_site


@pytest.mark.parametrize(
    ("anchor", "page", "on_the_site"),
    [
        ("../docs/guide.md#will-it-fit", "notebooks/01_one.ipynb", "../docs/guide.html#will-it-fit"),
        ("../notebooks/01_one.ipynb#The-bytes-of-it", "docs/guide.md", "../notebooks/01_one.html#the-bytes-of-it"),
        ("guide.md#8-bit-adam", "docs/guide.md", "guide.html#bit-adam"),
        ("#8-bit-adam", "docs/guide.md", "#bit-adam"),
    ],
)
def test_an_anchor_is_named_as_sphinx_names_it(links, anchor, page, on_the_site):
    """An id of Sphinx's begins with a letter; `test_site_build.py` looks whether it is there."""
    assert links.target(anchor, page) == on_the_site


def test_a_heading_has_its_anchor_in_sphinxs_way():
    assert "(8-bit-adam)=\n### 8-bit Adam" in with_named_headings(GUIDE)


def test_html_keeps_all_but_the_addresses_and_no_link_leads_to_nothing(links):
    text = '<a class="x" href="guide.md">a</a> <a href="../Makefile">b</a> <pre>handlers[name](argument)</pre>'
    expected = '<a class="x" href="guide.html">a</a> <a>b</a> <pre>handlers[name](argument)</pre>'
    assert links.in_html(text, "docs/other.md") == expected


def test_with_a_repository_its_other_files_are_one_link_away(links):
    at_home = Links(links.root, links.pages, links.files, files_place("https://github.com/a/b.git"))
    assert at_home.target("../Makefile", "docs/guide.md") == "https://github.com/a/b/blob/main/Makefile"
    assert files_place("https://git.somewhere.org/a/b") == "", "another host may name its files otherwise"
