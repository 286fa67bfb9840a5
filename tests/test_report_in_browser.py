"""The page of `remat report` in a browser: it draws every plot, asks the network for nothing, and fits the window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from report_samples import EVIL, RESULTS, drawn, evil_files, solver_runs, write_csv, write_json

from experiments.report.result_readers import READERS
from remat import Corpus
from remat.views.report import Page


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Tab]:
    found = chromium.find()
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    with chromium.browser(found, tmp_path_factory.mktemp("profile")) as tab:
        tab.resize(1400)
        yield tab


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path]:
    """A page of every kind of file, evil names included."""
    folder = tmp_path_factory.mktemp("page")
    files = [*sorted(RESULTS.glob("*.json")), write_csv(folder / "solvers.csv", solver_runs()), *evil_files(folder)]
    page = Page.of(files, refine=4, readers=READERS)
    page.save(folder / "page.html")
    return page, folder / "page.html"


def test_a_browser_draws_every_plot_without_a_complaint_or_a_request(
    tab: chromium.Tab, everything: tuple[Page, Path]
) -> None:
    page, path = everything
    tab.open(path)
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [path.resolve().as_uri()]
    expected = [drawn(figure) for file in page.files for figure in file.section.figures]
    there = tab.js(
        "[...document.querySelectorAll('.plot')].map((plot) => plot.querySelector('.main-svg') && "
        "plot.querySelectorAll('.scatterlayer > .trace, .barlayer > .trace').length)"
    )
    assert there == expected
    legend = tab.js("[...document.querySelectorAll('.legendtext')].map((name) => name.textContent)")
    assert EVIL in legend  # as it is, not as HTML
    assert tab.js("[...document.querySelectorAll('a')].filter((link) => !link.hash).length") == 0
    buttons = (
        "[...document.querySelector('.plot').querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)"
    )
    *_, download = names = tab.js(buttons)
    assert names == ["Zoom", "Pan", "Reset axes", download]  # none of them sends it anywhere
    assert download.startswith("Download plot")


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_sticks_out_of_the_page_and_all_of_it_turns_dark(
    tab: chromium.Tab, everything: tuple[Page, Path], width: int
) -> None:
    tab.resize(width)
    tab.dark(False)
    tab.open(everything[1])
    assert tab.js("document.documentElement.scrollWidth") <= width
    for dark, paper in ((True, "rgb(20, 23, 28)"), (False, "rgb(255, 255, 255)")):
        tab.dark(dark)
        assert tab.js("getComputedStyle(document.body).backgroundColor") == paper
        ink = tab.js("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
        assert ink == tab.js("getComputedStyle(document.body).color")
    assert tab.complaints == []


def test_a_choice_shows_its_own_traces(tab: chromium.Tab, tmp_path: Path) -> None:
    page = Page.of([write_csv(tmp_path / "solvers.csv", solver_runs())])
    page.save(tmp_path / "page.html")
    tab.open(tmp_path / "page.html")
    shown = "document.querySelector('.plot').data.flatMap((trace, i) => (trace.visible === true ? [i] : []))"
    figure = page.files[0].section.figures[0]
    assert tuple(tab.js(shown)) == figure.views[0].traces
    tab.js("(() => { const menu = document.querySelector('select'); menu.selectedIndex = 1; "
           "menu.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert tuple(tab.js(shown)) == figure.views[1].traces
    assert tab.complaints == []


def test_a_click_sorts_by_number_and_words_filter(tab: chromium.Tab, tmp_path: Path) -> None:
    Page.of([write_csv(tmp_path / "solvers.csv", solver_runs())]).save(tmp_path / "page.html")
    tab.open(tmp_path / "page.html")
    table = "[...document.querySelectorAll('table')].at(-1)"
    press = f"[...{table}.querySelectorAll('th button')].find((button) => button.textContent === 'solve').click()"
    keys = f"[...{table}.tBodies[0].rows].map((row) => row.cells[{table}.querySelector('[aria-sort]').cellIndex]" \
           ".dataset.key ?? null)"  # fmt: skip
    times = sorted(run["solve_s"] for run in solver_runs() if run["solve_s"] is not None)
    tab.js(press)
    assert [float(key) for key in tab.js(keys)[:-2]] == times
    tab.js(press)
    assert [float(key) for key in tab.js(keys)[:-2]] == times[::-1]
    assert tab.js(keys)[-2:] == [None, None]  # what is missing comes last, both ways
    tab.js("(() => { const box = [...document.querySelectorAll('input[type=search]')].at(-1); box.value = 'PULP 5000'; "
           "box.dispatchEvent(new Event('input')); })()")  # fmt: skip
    assert tab.js(f"[...{table}.tBodies[0].rows].filter((row) => !row.hidden).length") == 2


def test_numbers_sort_before_words_and_integers_beyond_floats_sort_exactly(tab: chromium.Tab, tmp_path: Path) -> None:
    amounts = [2**60 + 1, "b", 2**60, 10, None, float("nan"), "10", -(2**60), 9.5, float("inf")]
    document = {"provenance": {}, "rows": [{"amount": amount} for amount in amounts]}
    Page.of([write_json(tmp_path / "r.json", document)]).save(tmp_path / "page.html")
    tab.open(tmp_path / "page.html")
    tab.js("document.querySelector('th button').click()")
    whole = [f"{amount:,}" for amount in (-(2**60), 9.5, 10, 2**60, 2**60 + 1)]
    found = tab.js("[...document.querySelectorAll('td')].map((cell) => cell.textContent)")
    assert found == [*whole, "∞", "10", "b", "not a number", "\u2013"]


@pytest.mark.parametrize("width", [400, 1400])
def test_navigation_stays_in_view_and_says_what_is_read(tab: chromium.Tab, tmp_path: Path, width: int) -> None:
    files = [write_json(tmp_path / f"{name}.json", solver_runs()) for name in "abc"]
    Page.of(files).save(tmp_path / "page.html")
    tab.resize(width)
    tab.open(tmp_path / "page.html")
    for file in ("a", "c", "b"):
        at = tab.js(f"""(() => {{
            const link = [...document.querySelectorAll('nav a')].find((link) => link.textContent === '{file}.json');
            const there = document.querySelector(link.hash);
            there.scrollIntoView();
            window.dispatchEvent(new Event('scroll'));
            const [nav, entry] = [document.querySelector('nav'), there].map((part) => part.getBoundingClientRect());
            const read = [...document.querySelectorAll('nav a[aria-current]')].map((link) => link.textContent);
            return [nav.top, nav.bottom, nav.right, entry.top, entry.left, read];
        }})()""")
        top, bottom, right, entry_top, entry_left, read = at
        assert top >= 0
        assert bottom <= 900
        assert bottom <= entry_top or right <= entry_left  # above what is read, or beside it
        assert read == [f"{file}.json"]


@pytest.mark.parametrize("width", [400, 1400])
def test_no_row_and_no_point_is_cut(tab: chromium.Tab, tmp_path: Path, width: int) -> None:
    page = Page.of([Corpus.open().path("small-bert")], refine=16)
    page.save(tmp_path / "page.html")
    tab.resize(width)
    tab.open(tmp_path / "page.html")
    edges = tab.js("""(() => {
        const box = document.querySelector('.scroll.tall');
        const bottom = box.getBoundingClientRect().top + box.clientTop + box.clientHeight;
        return [...box.querySelectorAll('tr')].map((row) => row.getBoundingClientRect().bottom - bottom);
    })()""")
    assert min(map(abs, edges)) < 1
    assert max(edges) > 100  # there are more rows
    cut = "[...document.querySelectorAll('.scatterlayer .point')].filter((at) => at.closest('[clip-path]')).length"
    assert tab.js(cut) == 0
    assert any(0 in trace["y"] for trace in page.files[0].section.figures[0].data if trace["mode"] == "markers")


@pytest.mark.parametrize("width", [400, 1400])
def test_long_names_leave_room_for_the_plot(tab: chromium.Tab, tmp_path: Path, width: int) -> None:
    names = ["n" * 500, "<&>" * 100, "some words " * 40, "2", "1"]
    rows = [{"step": name, "median_s": 1.0} for name in names]
    Page.of([write_json(tmp_path / "r.json", {"provenance": {}, "rows": rows})], readers=READERS).save(
        tmp_path / "page.html"
    )
    tab.resize(width)
    tab.open(tmp_path / "page.html")
    assert tab.complaints == []
    assert tab.js("document.querySelector('.plot .gridlayer').getBoundingClientRect().width") > width / 4
    labels = tab.js("[...document.querySelectorAll('.plot .ytick text')].map((label) => label.textContent)")
    assert labels[-2:] == ["2", "1"]
    assert labels[1].startswith("<&><&>")


def test_without_scripts_the_tables_are_there_and_no_holes_for_plots(tab: chromium.Tab, tmp_path: Path) -> None:
    Page.of([write_json(tmp_path / "r.json", solver_runs())]).save(tmp_path / "page.html")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(tmp_path / "page.html")
        shown = "[...document.querySelectorAll('{}')].filter((part) => part.offsetHeight > 0).length"
        assert [tab.js(shown.format(part)) for part in (".plot", "select", ".filter", "table")] == [0, 0, 0, 2]
        assert "need JavaScript" in tab.js("document.querySelector('noscript p').innerText")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>nobody.knows()</script>", "nobody is not defined"),
        ("<script>console.error('broken')</script>", "broken"),
        ("<script src='https://example.com/plotly.js'></script>", "net::ERR_NAME_NOT_RESOLVED"),
    ],
)
def test_the_check_in_the_browser_would_notice(tab: chromium.Tab, tmp_path: Path, body: str, complaint: str) -> None:
    (tmp_path / "broken.html").write_text(f"<!doctype html><title>broken</title>{body}")
    tab.open(tmp_path / "broken.html")
    assert any(complaint in found for found in tab.complaints)
    assert ("https://example.com/plotly.js" in tab.requests) is ("https" in body)


def test_the_policy_of_the_page_lets_no_other_script_run(tab: chromium.Tab, tmp_path: Path) -> None:
    text = Page.of([write_json(tmp_path / "r.json", solver_runs())]).html()
    (tmp_path / "page.html").write_text(text.replace("<main", "<script>window.intruder = 1</script><main", 1))
    tab.open(tmp_path / "page.html")
    assert tab.js("typeof window.intruder") == "undefined"
    assert any("Content Security Policy" in found for found in tab.complaints)
