"""The commands and pages that take plans take those that offload, and say what is on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import answer, run
from examples import cosines

from costmodels import MemoryBudget
from remat import Choice, Corpus, Frontier, Graph, Plan, choose, explain, frontier, predict_traffic
from remat import timeline as timeline_of
from remat.answer.plan_facts import no_recompute_saved
from remat.plugin import PlanFacts, cannot_offload
from remat.views.explain import UNHIDDEN


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Corpus.open().graph("small-dropout-mlp")


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    """What autograd keeps; on the host, if it can be."""
    saved = no_recompute_saved(graph) & ~graph.cannot_save.mask
    return Choice.from_saved(graph, saved, ~cannot_offload(graph).mask).plan(graph)


@pytest.fixture
def files(graph: Graph, plan: Plan, tmp_path: Path) -> tuple[Path, Path]:
    graph.save(tmp_path / "graph.json.gz")
    plan.save(tmp_path / "plan.json")
    return tmp_path / "graph.json.gz", tmp_path / "plan.json"


def test_a_timeline(files: tuple[Path, Path], graph: Graph, plan: Plan) -> None:
    file, plan_file = files
    found = answer("inspect", "timeline", file, "--plan", plan_file)
    line = timeline_of(graph, plan)
    assert (found["peak_bytes"], found["saved_bytes"]) == (line.peak_bytes, line.saved_bytes)
    assert found["lower_bound_bytes"] is None
    assert (
        "no plan that offloads nothing has a smaller peak"
        in run("inspect", "timeline", file, "--plan", plan_file).stdout
    )


def test_traffic(files: tuple[Path, Path], graph: Graph, plan: Plan) -> None:
    file, plan_file = files
    found = answer("inspect", "traffic", file, "--plan", plan_file)
    assert found["bytes"] == predict_traffic(graph, plan).bytes
    assert found["offloaded_bytes"] == PlanFacts.of(graph, plan).offloaded_bytes > 0
    printed = run("inspect", "traffic", file, "--plan", plan_file, "--device", "h100").stdout
    assert "are copied to the host, and as much back" in printed
    assert "(kernels alone, without the copies)" in printed


def test_a_picture(files: tuple[Path, Path], plan: Plan, tmp_path: Path) -> None:
    file, plan_file = files
    picture = tmp_path / "picture.svg"
    assert answer("inspect", "picture", file, "-o", picture, "--plan", plan_file)["plan"] == plan.digest
    assert "waits on the host" in picture.read_text()


def test_an_explanation(files: tuple[Path, Path], graph: Graph, plan: Plan) -> None:
    file, _ = files
    model = "memory-budget:budget=0.0,estimator=roofline:device=h100"
    found = answer("explain", file, plan.offloaded[0], "-m", model, "-O", "offload=h100")
    copies = found["offload_cost"]
    assert copies > 0
    assert {"offloads it"} <= {other["question"] for other in (found["alternative"], *found["others"])}
    ours = explain(graph, plan.offloaded[0], MemoryBudget(0.0, estimator="roofline:device=h100", offload="h100"))
    assert (ours.offload_cost, ours.decision.name.lower()) == (copies, found["decision"])


def test_a_solution_says_what_is_on_the_host(files: tuple[Path, Path]) -> None:
    file, _ = files
    budget = ("-m", "memory-budget", "-O", "budget=0.3", "-O", "estimator=roofline:device=h100", "-O", "offload=h100")
    found = answer("solve", file, *budget)
    assert len(found["offloaded"]) == 1
    assert "1 activation, " in (printed := run("solve", file, *budget).stdout)
    assert " on the host" in printed


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("small") / "cosines.json"
    cosines().save(file)
    return file


@pytest.fixture(scope="module")
def asked(small_file: Path) -> tuple[dict[str, Any], Frontier]:
    """What the command prints of a frontier with a host, and the frontier, whose search takes seconds."""
    found: list[Frontier] = []

    def noted(*args: Any, **options: Any) -> Frontier:
        found.append(frontier(*args, **options))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remat.frontier", noted)
        printed = answer("frontier", small_file, "-e", "roofline:device=h100", "--offload", "h100")
    return printed, found[0]


@pytest.fixture
def curve(asked: tuple[dict[str, Any], Frontier]) -> Frontier:
    return asked[1]


def test_the_picture_of_a_frontier_has_steps_and_no_vertices(curve: Frontier) -> None:
    axes = curve.plot().axes[0]
    assert axes.get_ylabel() == "added time"
    drawn = {line.get_label(): line for line in axes.lines}
    assert drawn["proven bound"].get_drawstyle() == "steps-pre"
    assert len(drawn["plans"].get_xdata()) == len(curve.points)
    assert "hull vertices, optimal" not in drawn


def test_a_printed_frontier_says_whose_host_it_is(asked: tuple[dict[str, Any], Frontier]) -> None:
    printed, _ = asked
    assert (printed["offload"], printed["is_exact"]) == ("NVIDIA H100 SXM", False)


def test_a_solver_that_is_named_solves_a_frontier_with_a_host(files: tuple[Path, Path]) -> None:
    said = ("frontier", files[0], "-e", "roofline:device=h100", "--offload", "h100", "-s")
    assert "does not support a byte budget" in run(*said, "ortools", code=1).stderr
    assert "no solver is named 'dinic'" in run(*said, "dinic", code=2).stderr


def test_a_plan_that_several_budgets_have_is_one_row(
    small_file: Path, curve: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat.frontier", lambda *_, **__: curve)  # whose options are tried above; it takes seconds
    printed = run("frontier", small_file).stdout.splitlines()
    several = {point.point for point in curve.points}
    assert len(several) < len(curve.points)
    assert len(printed) == 1 + len(several) + len(curve.references)


def test_answers_to_a_stated_problem_say_that_nothing_hides_copies(files: tuple[Path, Path]) -> None:
    model = "memory-budget:budget=0.25,offload=h100,estimator=roofline:device=h100"
    assert UNHIDDEN in run("explain", files[0], "addmm", "-m", model).stdout
    assert UNHIDDEN in run("compare", files[0], "-m", model, "-s", "lagrangian").stdout
    assert UNHIDDEN not in run("explain", files[0], "addmm").stdout


def test_a_picture_for_a_cost_model_shows_its_plan(files: tuple[Path, Path], graph: Graph, tmp_path: Path) -> None:
    drawn = answer("inspect", "picture", files[0], "-o", tmp_path / "graph.svg", "-m", "multi-read")
    best = choose(graph, "multi-read").plan
    assert drawn["plan"] == best.digest
