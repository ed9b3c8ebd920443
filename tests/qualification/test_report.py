"""The report: text, data, the row, and a page that needs nothing else."""

import html
import html.parser
import json
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import pytest

from alpha_mpi.qualification import report as reports
from alpha_mpi.qualification.check import (
    FAILED,
    HELD,
    NOT_TRIED,
    PARTLY,
    REMEDIES,
    TITLES,
    Check,
    Plan,
    Plot,
    Table,
    ended,
    not_tried,
    shorten,
)
from alpha_mpi.qualification.gpu import report_of
from alpha_mpi.qualification.page import page
from alpha_mpi.qualification.report import COLUMNS, Report
from alpha_mpi.testing.qualify import Row
from tests.fake_device import CARD

RACE = ended(
    "race",
    HELD,
    "each of 1,000 names",
    "1,000 names, one winner each",
    tables=(Table("wins", ("rank", "names won"), (("0", "611"), ("1", "389"))),),
    plots=(Plot("bars", "wins", "names", (("rank 0", (611.0,)), ("rank 1", (389.0,)))),),
    figures={"names": 1000, "ranks": 2},
    seconds=4.06,
)
SEEN = ended(
    "visibility",
    HELD,
    "seen",
    "from 2 nodes",
    plots=(Plot("dots", "time until seen", "s", (("listed <before>", (0.0021, 0.11, 3.2)),)),),
    figures={"nodes": 2, "across": True, "median": 0.0021, "most": 3.2},
)
SPEED = ended(
    "speed",
    HELD,
    "measured",
    "256 MiB",
    plots=(Plot("dots", "each round", "GB/s", (("save", (0.5, 0.75)), ("plain write", (1.5, 1.0)))),),
    figures={
        "save_bytes_per_second": 7e8,
        "write_bytes_per_second": 1.4e9,
        "resume_bytes_per_second": 8e8,
        "read_bytes_per_second": 2e9,
        "small_save_seconds": 0.0134,
    },
)
SHARED = ended("shared", HELD, "the same", "2 ranks on 2 nodes", figures={"ranks": 2, "nodes": 2})


def report(*checks, **more):
    by_key = {check.key: check for check in checks}
    every = tuple(by_key.get(key) or not_tried(key, "not here") for key in TITLES)
    row = reports.row("login, ext4", every, "alpha-mpi qualify here", "2026-05-04")
    facts = (("file system", "ext4 & co"),)
    return Report("/scratch/<me>", facts, every, "alpha-mpi qualify here", "2026-05-04", (row,), **more)


class Reader(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects what the page says and refers to."""

    VOID = ("meta", "br", "line", "rect", "circle")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.references, self.text = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def test_the_page_stands_for_itself_and_has_the_numbers():
    text = page(report(RACE, SEEN, SPEED, SHARED))
    reader = read(text)
    assert not reader.references and not {"script", "link", "img", "iframe"} & set(reader.tags)
    assert not re.search(r"https?:|url\(|@import|//", text.replace("</", ""))
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    said = " ".join(reader.text)
    for number in ("611", "389", "1,000 names", "2.1 ms", "0.70 / 1.40", "2026-05-04", "/scratch/<me>"):
        assert number in said, number
    assert reader.tags.count("svg") == 3 and reader.tags.count("circle") == 7
    assert reader.tags.count("rect") == 2


def test_pictures_are_drawn_to_scale():
    pictures = re.findall(r"<svg.*?</svg>", page(report(RACE, SEEN)), re.S)
    bars, dots = (ElementTree.fromstring(one) for one in pictures)
    widths = [float(rect.get("width")) for rect in bars.iter("rect")]
    assert widths[1] / widths[0] == pytest.approx(389 / 611, abs=1e-3)
    xs = [float(dot.get("cx")) for dot in dots.iter("circle")]
    # Times stand on a logarithmic axis.
    assert xs == sorted(xs)
    share = (xs[1] - xs[0]) / (xs[2] - xs[0])
    assert share == pytest.approx(0.5402, abs=1e-2)
    width = float(dots.get("viewBox").split()[2])
    assert all(0 <= x <= width for x in xs)


def test_an_axis_has_round_marks():
    [picture] = re.findall(r"<svg.*?</svg>", page(report(SPEED)), re.S)
    plot = ElementTree.fromstring(picture)
    marks = [text.text for text in plot.iter("text") if text.get("class") == "tick"]
    assert marks == ["0", "0.5", "1", "1.5"]
    xs = [float(dot.get("cx")) for dot in plot.iter("circle")]
    grid = [float(line.get("x1")) for line in plot.iter("line") if line.get("class") == "grid"]
    # 0.5, 0.75, 1.5 and 1.0 GB/s
    assert [xs[0], xs[2], xs[3]] == [grid[1], grid[3], grid[2]]


def test_a_plot_of_nothing_is_left_out():
    empty = ended("race", HELD, "", "", plots=(Plot("dots", "empty", "s", (("none", ()),)),))
    assert "<svg" not in page(report(empty))


def test_what_was_not_tried_is_no_pass():
    found = report(RACE)
    assert found.qualified
    assert found.verdict.startswith("QUALIFIED, but not covered: what the file system gives (not tried); ")
    assert "one winner for each name" not in found.verdict
    partly = report(ended("race", PARTLY, "", "412 of 1,000 names"), SHARED)
    assert partly.qualified and "one winner for each name (partly)" in partly.verdict
    assert not report().qualified and report().verdict == "NOT QUALIFIED: nothing was tried"


def test_a_first_look_qualifies_nothing():
    found = report(RACE, quick=True)
    assert found.fine and not found.qualified and not found.as_data()["qualified"]
    assert found.verdict.startswith(
        "NOTHING FAILED, in a first look, which qualifies nothing, but not covered: "
    )
    assert 'class="said open"' in page(found) and 'class="said held"' not in page(found)
    assert report(ended("race", FAILED, "", "two"), quick=True).verdict.startswith("NOT QUALIFIED")


def test_a_row_is_one_line():
    row = reports.row("here", (), "alpha-mpi qualify 'a\nb | c'", "2026-05-04")
    assert row.endswith("| `alpha-mpi qualify 'a b / c'` |") and row.count("\n") == 0


@pytest.mark.parametrize("key", TITLES)
def test_a_check_that_failed_says_what_to_do(key):
    failed = report(ended(key, FAILED, "well", "badly"))
    [told] = [line for line in failed.lines() if line.startswith("  to do:    ")]
    assert REMEDIES[key] in told and html.escape(REMEDIES[key]) in page(failed)
    assert "to do" not in "".join(report(RACE).lines())


def test_a_failed_check_is_on_top():
    failed = ended("kills", FAILED, "whole", "torn <words>", notes=["torn <words>", "rank 3"])
    found = report(RACE, failed)
    assert not found.qualified and found.verdict == "NOT QUALIFIED: killed around the rename (failed)"
    lines = found.lines()
    at = next(i for i, line in enumerate(lines) if line.startswith("FAILED     Killed around the rename"))
    assert lines[at + 1 : at + 4] == [
        "  expected: whole",
        "  found:    torn <words>",
        "  note:     rank 3",
    ]
    assert "torn &lt;words&gt;" in page(found) and 'class="said failed"' in page(found)


def test_what_could_not_be_removed_is_named():
    found = report(RACE, left=("/scratch/qualify-1",))
    assert not found.qualified and "could not be removed: /scratch/qualify-1" in found.lines()
    assert "could not be removed: /scratch/qualify-1" in page(found)


def test_a_warning_is_in_the_verdict():
    probe = ended("probe", HELD, "", "tmpfs", notes=["in memory"], figures={"warnings": ["in memory"]})
    assert report(probe).verdict.endswith(". WARNING: in memory")


def test_the_row_has_the_columns_of_the_page():
    [row] = report(RACE, SEEN, SPEED, SHARED).rows
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert dict(zip(COLUMNS, cells, strict=True)) == {
        "date": "2026-05-04",
        "where": "login, ext4",
        "ranks on nodes": "2 on 2",
        "names": "1,000",
        "seen after, median / most": "2.1 ms / 3.2 s",
        "kills": "not tried",
        "bits refused": "not tried",
        "resumed the same": "not tried",
        "save / plain, GB/s": "0.70 / 1.40",
        "resume / plain, GB/s": "0.80 / 2.00",
        "save of 4 KiB": "13.4 ms",
        "command": "`alpha-mpi qualify here`",
    }


def test_the_page_of_rows_has_the_columns_of_a_row():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "qualification.md").read_text()
    part = text.partition("\n## Stores\n")[2].partition("\n## ")[0]
    head, _, *rows = [line for line in part.splitlines() if line.startswith("|")]
    assert tuple(cell.strip() for cell in head.strip("|").split("|")) == COLUMNS
    assert rows and all(row.count("|") == head.count("|") for row in rows)


def test_a_row_shows_what_failed_and_what_ended_early():
    failed = [ended(key, FAILED, "", "") for key in ("race", "kills", "speed")]
    partly = ended("damage", PARTLY, "", "", figures={"tried": 15})
    [row] = report(*failed, partly).rows
    cells = dict(zip(COLUMNS, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
    assert cells["names"] == cells["kills"] == cells["save of 4 KiB"] == "**no**"
    assert cells["bits refused"] == "15 (partly)"


def test_data_is_the_same_after_a_journey():
    for check in (RACE, SEEN, SPEED):
        assert Check.from_data(json.loads(json.dumps(check.as_data()))) == check
    data = json.loads(json.dumps(report(RACE).as_data()))
    assert data["qualified"] is True and len(data["checks"]) == len(TITLES)
    assert data["checks"][2]["figures"]["names"] == 1000


def test_the_report_of_gpus_is_of_the_same_kind():
    speeds = {"staged_out": 2e10, "staged_in": 1e10, "plain": 2.5e10, "save": 1e9, "floor": 2e9}
    checks = {"resume": "yes", "shadow": "no", "wrong device": "yes", "corrupt chunk": "yes"}
    row = Row(CARD, "2026-05-04", 2, 1, checks, speeds)
    found = report_of([row], "alpha-mpi qualify --gpu")
    assert found.verdict == "NOT QUALIFIED: device 0: shadow (failed)"
    assert found.rows == (row.line("alpha-mpi qualify --gpu"),) and str(CARD) in found.lines()[1]
    assert "20.00" in " ".join(read(page(found)).text)
    assert report_of([Row(CARD, "", 2, 1, dict.fromkeys(checks, "yes"), speeds)], "").qualified


def test_times_are_short():
    found = [shorten(s) for s in (0.0000517, 0.00142, 3.2, 61.06, 475e-3)]
    assert found == ["51.7 us", "1.42 ms", "3.2 s", "61.1 s", "475 ms"]


def test_a_plan_has_shares_and_limits():
    usual = Plan.of(5, 0, False)
    assert (usual.names, usual.size, usual.quick) == (1000, 64 << 20, False)
    assert sum(usual.share(key) for key in TITLES) == pytest.approx(300)
    assert all(usual.limit(key) == usual.share(key) + 60 for key in TITLES)
    quick = Plan.of(5, 3 << 20, True)
    assert quick.quick and quick.size == 3 << 20 and quick.names < 100


def test_a_check_keeps_ten_notes():
    check = ended("race", FAILED, "", "", notes=[f"note {n}" for n in range(25)])
    assert len(check.notes) == 11 and check.notes[-1] == "and 15 more"
    assert not_tried("race", "why").verdict == NOT_TRIED
