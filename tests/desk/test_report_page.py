"""A learner's own page: everything they did, nothing of anybody else, and what to do where there is nothing."""

import re
import socket
from html.parser import HTMLParser

import pytest

from course_utils.capstone.kept import Choice, keep
from course_utils.cli import main
from course_utils.desk import bets, report
from course_utils.desk.ledger import record
from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.store import Section

HOSTILE = "<script>alert('$x$')</script>\N{RIGHT-TO-LEFT OVERRIDE}"


pytestmark = pytest.mark.usefixtures("restart")


class Page(HTMLParser):
    """A page's text, its tags, and the addresses that it would load or lead to."""

    def __init__(self, html):
        super().__init__()
        self.texts, self.tags, self.addresses, self.alternatives = [], [], [], []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]
        self.alternatives += [value for name, value in attributes if name == "alt"]

    def handle_data(self, data):
        self.texts.append(data)


def page_of(path):
    return Page(path.read_text(encoding="utf-8"))


def do_something(bet=2.0):
    """A bet that is settled and one that waits, a row of the ledger, a choice."""
    bets.bet("00-peak", bet, "MiB")
    bets.settle("00-peak", 1.0)
    bets.bet("03-update", 0.1, "times")
    record("03_adamw", "AdamW", "optimizer state", predicted=2**20, measured=2**21)
    rows = (("peak of a step", 2**30, 2**29, None, "bytes"), ("accuracy", 75, 80, 77.5, "%"))
    keep(Choice("one-card", {"optimizer": "adamw8bit", "keeps_outputs": False}, {"ranks": 4}, rows))


def test_the_page_holds_all_that_was_done_and_says_what_is_not_done(capsys, restart):
    do_something()
    restart()
    page = page_of(report.write())
    assert "1 settled bet, 1 within a factor of 2; 1 row in the ledger; choices for 1 scenario" in page.text
    assert page.alternatives == [
        "Each bet as a multiple of the truth, on a logarithmic axis: 00-peak: bet 2, is 1 MiB, too high by a factor of 2."
    ]
    assert "still wait for their measurement: 03-update." in page.text
    assert "03_adamw, at smoke scale on cpu AdamW optimizer state 1.00 MiB 2.00 MiB 1.00 MiB +50.0%" in page.text
    assert "optimizer = adamw8bit , keeps_outputs = False , ranks = 4 budget predicted measured" in page.text
    assert "peak of a step 1.00 GiB 512 MiB not measured" in page.text
    assert "accuracy 75 % 80 % 77.5 %" in page.text
    assert "Nothing yet from chapters 01, 02, 04, " in page.text
    assert "yet. Chapter" not in page.text
    output = capsys.readouterr().out.splitlines()
    assert output[-2].startswith("Your report: 1 settled bet,")
    assert output[-1] == f"Open {settings().home / 'report.html'} in a browser."


def test_who_has_done_nothing_reads_which_chapter_fills_each_part():
    page = page_of(report.write())
    assert page.alternatives == []
    assert "No bet is settled yet. Chapter 00 asks for the first two" in page.text
    assert "The ledger is empty. Chapter 00 writes its first rows" in page.text
    assert "No choice is kept yet. Chapter 13, the capstone, asks for them." in page.text


def test_the_page_loads_nothing_and_names_neither_a_folder_nor_the_host():
    do_something()
    path = report.write()
    page, text = page_of(path), path.read_text(encoding="utf-8")
    assert page.addresses, "the picture"
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert not re.search(r"@import|url\(", text)
    assert str(settings().home) not in text
    assert socket.gethostname() not in page.text
    assert re.search(r"Python \d+\.\d+\.\d+", page.text)
    assert re.search(r"\btorch \d", page.text)


def test_equal_deeds_give_equal_pages_but_for_the_memory_that_is_free(tmp_path):
    do_something()
    first, second = (report.write(tmp_path / name).read_text(encoding="utf-8") for name in ("a.html", "b.html"))
    free = re.compile(r"<li>.* memory available</li>")
    assert free.search(first)
    assert free.sub("", first) == free.sub("", second)


def test_whatever_a_learner_typed_stays_text():
    bets.bet("00-peak", 2.0, HOSTILE)
    bets.settle("00-peak", 1.0)
    record("03_<b>", HOSTILE, HOSTILE, predicted=1, measured=1)
    keep(Choice("x", {HOSTILE: HOSTILE}, {HOSTILE: 1}, ((HOSTILE, 1, 2, 3, HOSTILE),)))
    path = report.write()
    page = page_of(path)
    assert "script" not in page.tags
    assert "<script" not in path.read_text(encoding="utf-8")
    assert page.text.count("alert('$x$')") == 9
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in path.read_text(encoding="utf-8")
    assert "alert('$x$')" in page.alternatives[0]


def test_many_bets_are_cut_into_pictures_of_a_page_between_chapters():
    for chapter in range(13):
        chapter_bets = {f"{chapter:02d}-{name}": bets.Bet(1, 1, "", 1) for name in "abcd"}
        Section("bets").put(f"{chapter:02d}", chapter_bets)
    page = page_of(report.write())
    assert re.findall(r"Chapters? \d\d(?: to \d\d)?(?= )", page.text)[:3] == [
        "Chapters 00 to 04",
        "Chapters 05 to 09",
        "Chapters 10 to 12",
    ]
    figures = [re.findall(r"(\d\d-\w): bet", alternative) for alternative in page.alternatives]
    assert [len(names) for names in figures] == [20, 20, 12]
    assert sorted(sum(figures, [])) == sorted(bets.load_bets())


def test_where_nobody_reads_along_the_page_is_of_this_process(monkeypatch, restart, capsys):
    do_something(bet=30.0)
    restart()
    monkeypatch.setenv("COURSE_READER", "0")
    settings.cache_clear()
    assert "choices for 0 scenarios" in page_of(report.write()).text
    do_something()
    path = report.write()
    page = page_of(path)
    assert "1 settled bet, 1 within a factor of 2; 1 row in the ledger; choices for 1 scenario" in page.text
    assert "what one run did by itself" in page.text
    assert "Nothing yet from" not in page.text
    output = capsys.readouterr().out
    assert output.endswith("It is in report.html.\n")
    assert str(path.parent) not in output


def test_a_notebook_shows_a_link(monkeypatch, tmp_path):
    bundles = []
    monkeypatch.setattr(report, "has_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    path = report.write(tmp_path / "a <b> c.html")
    assert path.is_file()
    assert f"<a href='{path.as_uri()}'>" in bundles[0]["text/html"]
    assert "a &lt;b&gt; c.html</a>" in bundles[0]["text/html"]
    assert str(path) in bundles[0]["text/plain"]


def test_the_command_writes_where_it_is_told_or_says_why_not(tmp_path, capsys):
    assert main(["report", "--out", str(tmp_path / "new" / "mine.html")]) == 0
    assert (tmp_path / "new" / "mine.html").is_file()
    (tmp_path / "file").write_text("")
    assert main(["report", "--out", str(tmp_path / "file" / "mine.html")]) == 2
    assert "name another file with --out" in capsys.readouterr().err
    with pytest.raises(CourseError, match="cannot be written"):
        report.write(tmp_path)
