"""The search in C was written from the page alone: it finds the costs and peaks of `check.py`, and cheaper plans."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError

import numpy as np
import pytest
from depth import deep_except, drawn
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from costmodels import RecomputeTime
from experiments.benchmark import check
from experiments.benchmark.__main__ import app
from experiments.benchmark.annealing import Annealer
from experiments.benchmark.answers import Answers
from experiments.benchmark.manifest import FOLDER, Manifest
from remat import Corpus, Graph
from remat.predict.memory.memory_export import stated_memory
from remat.problem.problem_file import problem_document
from remat.testing import graphs

CORPUS, RELEASED, ANSWERS = Corpus.open(), Manifest.open(FOLDER), Answers(FOLDER / "answers")
SMALL = ["small-dropout-mlp", "qei-8", "qehvi-4", "small-bert", "small-evonorm"]
NO_LIMIT = 2**62 - 1


@cache
def annealer() -> Annealer:
    return Annealer()


def verdict(instance: check.Instance, saved: list[int], budget: str = "none") -> check.Verdict:
    return check.check(instance, {"budget": budget, "saved": saved})


@drawn(100)
@given(data=st.data(), graph=graphs())
def test_costs_and_peaks_are_those_of_the_checker(data: st.DataObject, graph: Graph) -> None:
    problem = RecomputeTime().pose(graph)
    instance = check.Instance(problem_document(problem, memory=stated_memory(graph)), "")
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem))), np.bool_)
    saved = (wanted | problem.cannot_recompute.mask) & ~problem.cannot_save.mask
    first = verdict(instance, np.flatnonzero(saved).tolist())
    if first.complaints:
        with pytest.raises(CalledProcessError):
            annealer().improved(instance, NO_LIMIT, np.flatnonzero(saved).tolist(), 0)
        return
    cost, peak, found = annealer().improved(instance, NO_LIMIT, np.flatnonzero(saved).tolist(), 0)
    assert (cost, peak) == (first.objective, first.peak)
    assert found == np.flatnonzero(saved).tolist()
    cost, peak, found = annealer().improved(instance, first.peak, found, 50)
    second = verdict(instance, found)
    assert not second.complaints
    assert (cost, peak) == (second.objective, second.peak)
    assert cost <= first.objective
    assert peak <= first.peak


@pytest.mark.parametrize("name", deep_except(SMALL[:3], SMALL))
def test_it_finds_cheaper_plans_within_more_memory(name: str) -> None:
    """The same ones each time, and never one below a bound that is known."""
    instance, known = RELEASED.posed(CORPUS, name).checked, ANSWERS.of(name)
    first, (_, limit_bytes) = known["peak-0.1"], instance.budgets["peak-0.7"]
    cost, peak, found = annealer().improved(instance, limit_bytes, first["saved"], 3000)
    assert cost < first["objective"] or known["peak-0.7"]["objective"] == first["objective"]
    assert cost >= known["peak-0.7"]["bound"]
    assert peak <= limit_bytes
    assert not verdict(instance, found, "peak-0.7").complaints
    assert annealer().improved(instance, limit_bytes, first["saved"], 3000) == (cost, peak, found)


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_better_answer_is_taken(tmp_path: Path, relaxed: bool) -> None:
    """Of a row that has the answer to a smaller budget; found from that answer, or from a plan of Checkmate's."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / FOLDER.name))
    posed, answers = RELEASED.posed(CORPUS, "qehvi-4"), Answers(folder / "answers")
    answers.path("qehvi-4").unlink()
    (roomy,) = [budget for budget in posed.budgets if budget.name == "peak-0.7"]
    known = ANSWERS.of("qehvi-4")["peak-0.1"]
    answers.offer(posed, {"budget": roomy.name, "saved": known["saved"], "bound": 0, "solver": "theirs", "seconds": 1})
    command = ["anneal", "--only", "qehvi-4", "--steps", "3000", "--folder", str(folder)]
    done = CliRunner().invoke(app, [*command, *(["--relaxed"] if relaxed else [])])
    assert done.exception is None
    now = answers.of("qehvi-4")[roomy.name]
    assert now["objective"] < known["objective"]
    assert now["solver"] == ("checkmate, rounded; " if relaxed else "") + "anneal, 3000 steps, seed 1"
    assert done.output == f"qehvi-4 peak-0.7: {now['objective']}\n"
