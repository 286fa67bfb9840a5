"""Every picture of the library: the same slip gives the same error, and formats go by the suffix."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run
from examples import cosines

import remat
from remat import InvalidOption, NotInstalled


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
