"""Pictures: each value is drawn once, legibly, in the colour of what the plan does; slips give one error in all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import run
from depth import drawn
from examples import chain, cosines, linear_dropout
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import remat
from remat import Graph, InvalidOption, InvalidPlan, NotInstalled, Plan, RematError
from remat.errors import UnknownName
from remat.testing import dags, graphs
from remat.views import show as view
from remat.views.layout import layered

PLAN = Plan(("add3",), ("cos1", "sin2", "sin1"))


def boxes(figure: object) -> dict[str, FancyBboxPatch]:
    patches = figure.axes[0].patches
    return {patch.get_label(): patch for patch in patches if isinstance(patch, FancyBboxPatch)}


def legend(figure: object) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_colours_follow_the_plan() -> None:
    fills = {name: to_hex(box.get_facecolor()) for name, box in boxes(remat.show(cosines(), PLAN)).items()}
    expected = {
        "a": view.INPUT,
        "add1": view.FORWARD,
        "add3": view.SAVED,
        "cos1": view.RECOMPUTED,
        "sin1": view.DEFERRED,
        "grad_in": view.TANGENTS,
    }
    assert {name: style.fill for name, style in expected.items()} == {name: fills[name] for name in expected}
    assert set(cosines().names) == set(fills)


def test_colours_follow_the_region_without_a_plan() -> None:
    graph = cosines()
    assert view.styles(graph, None)[graph.index["sin1"]] == view.EITHER
    assert "forward pass" in legend(remat.show(graph))
    assert "saved" not in legend(remat.show(graph))


def test_saved_inputs_and_their_views_look_different_from_saved_activations() -> None:
    graph = linear_dropout()
    drawn = dict(zip(graph.names, view.styles(graph, Plan(("x", "t", "mask"), ())), strict=True))
    assert (drawn["x"], drawn["t"], drawn["mask"]) == (view.SAVED_INPUT, view.SAVED_INPUT, view.SAVED)


def test_what_waits_on_the_host_has_a_colour_of_its_own() -> None:
    graph, plan = cosines(), Plan(PLAN.saved, PLAN.recomputed, offloaded=("add3",))
    drawn = dict(zip(graph.names, view.styles(graph, plan), strict=True))
    assert drawn["add3"] == view.OFFLOADED
    assert {name for name, style in drawn.items() if style == view.OFFLOADED} == {"add3"}
    picture = remat.show(graph, plan)
    assert view.OFFLOADED.text in legend(picture)
    arrows = [patch for patch in picture.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    thick = {to_hex(arrow.get_edgecolor()) for arrow in arrows if arrow.get_linewidth() > 1}
    assert "#6d4fc0" in thick


def test_the_legend_names_exactly_what_is_drawn() -> None:
    shown = (view.INPUT, view.FORWARD, view.SAVED, view.RECOMPUTED, view.DEFERRED, view.TANGENTS)
    assert [style.text for style in shown] == legend(remat.show(cosines(), PLAN))


def test_labels_are_the_name_and_the_size_unless_it_is_zero() -> None:
    texts = [text.get_text() for text in remat.show(linear_dropout()).axes[0].texts]
    assert texts[texts.index("x") + 1] == "400 B"
    assert "0 B" not in texts
    assert set(linear_dropout().names) <= set(texts)


def test_a_large_graph_is_refused_but_a_part_of_it_drawn() -> None:
    large = chain(view.LARGEST)
    with pytest.raises(RematError, match=r"can hold 300 values, got 900; .*--around"):
        remat.show(large)
    assert set(boxes(remat.show(large, around="cos_10", hops=1))) == {"cos_9", "cos_10", "cos_11", "sin_288"}
    assert set(boxes(remat.show(large, around="cos_10", hops=0))) == {"cos_10"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'add3'"):
        remat.show(cosines(), around=["ad3"])
    with pytest.raises(InvalidPlan, match="'cos9'"):
        remat.show(cosines(), Plan(("cos9",), ()))


@drawn(40)  # a picture takes 40 ms
@given(graphs(max_values=20))
def test_no_two_boxes_overlap(graph: Graph) -> None:
    extents = [box.get_path().get_extents(box.get_patch_transform()) for box in boxes(remat.show(graph)).values()]
    assert len(graph) == len(extents)
    for k, one in enumerate(extents):
        assert not any(one.overlaps(other) for other in extents[:k])


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), dags(n))))
def test_arrows_lead_down_between_the_right_nodes_and_bends_keep_clear_of_the_boxes(
    drawn: tuple[int, list[tuple[int, int]]],
) -> None:
    n, edges = drawn
    layout = layered(edges, [1.0] * n, [0.0] * n, gap=0.2, drop=1.0)
    for (u, v), route in zip(edges, layout.routes, strict=True):
        assert ((layout.x[u], layout.y[u]), (layout.x[v], layout.y[v])) == (route[0], route[-1])
        assert all(above[1] < below[1] for above, below in pairwise(route))
        for x, y in route[1:-1]:
            assert all(abs(x - layout.x[v]) > 0.6 for v in range(n) if layout.y[v] == y)


def test_the_same_graph_gives_the_same_picture() -> None:
    first, second = (remat.show(cosines(), PLAN) for _ in range(2))
    where = [{name: box.get_bbox().bounds for name, box in boxes(figure).items()} for figure in (first, second)]
    assert where[0] == where[1]


def show(path: Path | None = None) -> Any:
    return remat.show(cosines(), path=path)


def plot(path: Path | None = None) -> Any:
    return remat.frontier(cosines()).plot(path)


def draw_timeline(path: Path | None = None) -> Any:
    plan = remat.choose(cosines()).plan
    return remat.timeline(cosines(), plan).show(path)


each_picture = pytest.mark.parametrize("draw", [show, plot, draw_timeline])


@each_picture
@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.SVG", b"<?xml"), ("p.pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(draw: Callable[[Path], Any], name: str, start: bytes, tmp_path: Path) -> None:
    draw(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@each_picture
def test_the_same_picture_gives_the_same_svg_in_each_run(draw: Callable[[Path], Any], tmp_path: Path) -> None:
    for name in ("first.svg", "second.svg"):
        draw(tmp_path / name)
    first = (tmp_path / "first.svg").read_bytes()
    assert first == (tmp_path / "second.svg").read_bytes()
    assert b"<dc:date>" not in first


@each_picture
@pytest.mark.parametrize("name", ["a.foo", "a"])
def test_an_unknown_suffix_is_refused_in_the_same_words(draw: Callable[[Path], Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as caught:
        draw(tmp_path / name)
    assert re.fullmatch(
        rf"{tmp_path / name}: the suffix must be one of .*pdf, .*svg.*, got '{Path(name).suffix}'", str(caught.value)
    )
    assert list(tmp_path.iterdir()) == []


@each_picture
def test_without_matplotlib_the_error_names_the_extra(draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("remat.pictures", "remat.improve.frontier_plot", "remat.predict.memory.memory_picture"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotInstalled, match=r"pictures need matplotlib: pip install '.\[plot\]'"):
        draw()


@pytest.mark.parametrize("command", ["inspect picture", "frontier", "inspect timeline"])
def test_commands_refuse_an_unknown_suffix_in_the_same_words(command: str, tmp_path: Path) -> None:
    cosines().save(tmp_path / "graph.json")
    result = run(*command.split(), tmp_path / "graph.json", "-o", "a.foo", code=2)
    assert result.stderr.startswith("error: a.foo: the suffix must be one of ")


def test_a_command_refuses_a_picture_that_cannot_be_written_before_it_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.step_frontier", lambda *_, **__: pytest.fail("a search of minutes would be lost"))
    line = "frontier", "small-dropout-mlp", "--against", "step"
    told = run(*line, "-o", "no-folder/steps.svg", code=2).stderr
    assert told == "error: no-folder/steps.svg must be in a folder that exists, got no-folder: make it first\n"
    assert "the suffix must be one of" in run(*line, "-o", "steps.txt", code=2).stderr
