"""The page of `remat frontier --html`: what it reads and shows, and that nothing in a file breaks out of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands import answer, run
from examples import chain, cosines

import remat
from remat.errors import InvalidOption, RematError
from remat.improve.frontier import EAGER, PYTORCH
from remat.views.report_page import Page

EVIL = "</table><script>alert(1)</script>&\"'"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def compared(path: Path, **names: str) -> Path:
    graphs = {names.get("graph", "a"): chain(3), "b": cosines()}
    comparison = remat.compare(graphs, solvers=["ortools", "scipy"])
    if path.suffix == ".csv":
        comparison.to_csv(path, index=False)
    else:
        path.write_text(json.dumps(comparison.records()))
    return path


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_graph_becomes_a_picture_and_a_table_of_its_frontier(tmp_path: Path, name: str) -> None:
    chain(6).save(tmp_path / name)
    (section,) = Page.of([tmp_path / name], refine=4).sections
    assert section.kind == "Frontier"
    assert len(section.pictures) == 1
    ((_, table),) = section.tables
    rows = [*remat.frontier(chain(6)).refine(4).points, PYTORCH, EAGER]
    assert table.count("<tr") == 1 + len(rows)
    assert PYTORCH in table
    assert "proven" in table


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_comparison_keeps_all_that_compare_says(tmp_path: Path, suffix: str) -> None:
    (section,) = Page.of([compared(tmp_path / f"runs.{suffix}")]).sections
    ((_, table),) = section.tables
    for row in remat.compare({"a": chain(3), "b": cosines()}, solvers=["ortools", "scipy"]).texts():
        for title in ("graph", "solver", "objective", "certified", "saved memory"):
            assert f"<td>{row[title]}</td>" in table


def test_a_comparison_on_three_graphs_has_a_performance_profile(tmp_path: Path) -> None:
    graphs = {f"chain {n}": chain(n) for n in (2, 3, 4)}
    for some in (2, 3):
        runs = remat.compare(dict([*graphs.items()][:some]), solvers=["ortools", "scipy"])
        runs.to_csv(tmp_path / "runs.csv", index=False)
        (section,) = Page.of([tmp_path / "runs.csv"]).sections
        assert len(section.pictures) == (some == 3)


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    chain(6).save(tmp_path / "graph.json")
    files = [tmp_path / "graph.json", compared(tmp_path / "runs.json")]
    assert Page.of(files, refine=2).html() == Page.of(files, refine=2).html()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("file", b'{"format": "remat.plan"}', "not a graph file"),
        ("file", b"[]", "must have the columns"),
        ("file", b"[1, 2]", "must be CSV or JSON"),
        ("file", b"[", "must be CSV or JSON"),
        ("file", b"\xff\xfe\x00", "not JSON"),
        ("file", b'[{"graph": "a", "objective": "many"}]', "must be CSV or JSON"),
        ("rows.csv", b"", "must be CSV or JSON"),
        ("rows.csv", b"graph,solver\na,b,c\n", "must have the columns"),
        ("rows.csv", b"graph,values\na,many\n", "must be CSV or JSON"),
    ],
)
def test_what_is_neither_a_graph_nor_a_comparison_is_refused(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RematError, match=re.escape(says)):
        Page.of([tmp_path / name])


def test_a_page_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="got none"):
        Page.of([])


def evil_page(folder: Path) -> Page:
    replace(chain(4), meta={"model": EVIL, EVIL: EVIL}).save(folder / "<script>alert(2)<b>.json")
    return Page.of(
        [folder / "<script>alert(2)<b>.json", compared(folder / "runs.json", graph=EVIL)], title=EVIL, refine=0
    )


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_no_name_breaks_out_of_the_page_and_nothing_is_fetched(tmp_path: Path) -> None:
    tags = _Tags()
    tags.feed(evil_page(tmp_path).html())
    assert not {"script", "iframe", "object", "b"} & set(tags.names)
    assert all(address.startswith(("#", "data:image/svg+xml;base64,")) for address in tags.addresses)


def test_the_command_writes_the_page_and_never_over_a_result(tmp_path: Path) -> None:
    chain(4).save(tmp_path / "graph.json")
    output = tmp_path / "page.html"
    assert "graph.json: frontier" in run("frontier", tmp_path / "graph.json", "--html", output).output
    written: Any = answer("frontier", tmp_path / "graph.json", "--html", output)
    assert written["bytes"] == output.stat().st_size
    assert "would be lost" in run("frontier", tmp_path / "graph.json", "--html", tmp_path / "graph.json", code=2).output
    nowhere = tmp_path / "no" / "page.html"
    assert "make it first" in run("frontier", tmp_path / "graph.json", "--html", nowhere, code=2).output


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_the_page_without_scrolling_sideways(tmp_path: Path, width: int) -> None:
    text = evil_page(tmp_path).html().encode(errors="backslashreplace").decode()
    text = re.sub("<meta http-equiv[^>]*>", "", text)  # the policy forbids the script that measures
    document = json.dumps(text).replace("</", "<\\/")
    # A window of Chromium has a least width; a frame has none. Files may not look into each other, so it is one file.
    measure = f"""<iframe id="page" style="width: {width}px; height: 900px; border: 0"></iframe><p id="found"></p>
    <script>
    const frame = document.getElementById("page");
    frame.onload = () => {{ document.getElementById("found").textContent =
      [frame.contentDocument.documentElement.scrollWidth, frame.contentDocument.images.length,
       [...frame.contentDocument.images].filter((image) => image.naturalWidth > 0).length].join(" "); }};
    frame.srcdoc = {document};</script>"""
    (tmp_path / "measure.html").write_text(measure)
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
    run = [CHROMIUM, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    address = (tmp_path / "measure.html").as_uri()
    seen = subprocess.run([*run, address], check=False, capture_output=True, text=True, timeout=120)
    found = re.search(r'<p id="found">(\d+) (\d+) (\d+)</p>', seen.stdout)
    assert found, seen.stderr
    assert int(found[1]) <= width
    assert found[2] == found[3] == "1"
