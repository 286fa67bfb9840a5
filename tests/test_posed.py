"""A posed problem is plain numbers: JSON is read back equal; in MPS and DIMACS, solvers of others find our optimum."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pulp
import pytest
from commands import answer, run
from depth import drawn
from hypothesis import given
from ortools.linear_solver.python import model_builder

from costmodels import ByteTraffic, MemoryBudget
from experiments.benchmark import check
from remat import Choice, Corpus, InvalidOption, Problem, UnsupportedProblem, check_plan, solve
from remat.answer.dimacs_file import write_dimacs
from remat.plugin import Bans, InvalidProblem, Offload
from remat.problem.mps_file import write_mps
from remat.problem.problem_file import Budget, problem_document
from remat.testing import problems

COLUMNS = ("save_cost", "recompute_cost", "save_bytes", "producers", "consumers", "needed")


def assert_same(one: Problem, other: Problem) -> None:
    """Equal in all that an answer depends on."""
    assert one.names == other.names
    for column in COLUMNS:
        assert getattr(one, column).tolist() == getattr(other, column).tolist()
    assert (one.cannot_save, one.cannot_recompute) == (other.cannot_save, other.cannot_recompute)
    assert one.budget_bytes == other.budget_bytes
    assert (one.offload is None) == (other.offload is None)
    if one.offload is not None and other.offload is not None:
        assert one.offload.cost.tolist() == other.offload.cost.tolist()
        assert one.offload.banned == other.offload.banned


ANY = (
    problems(feasible=None) | problems(feasible=None, budget=True) | problems(feasible=None, budget=True, offload=True)
)


@drawn(100)
@given(problem=ANY)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_json_is_read_back_equal(problem: Problem, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("posed") / f"problem{suffix}"
    problem.save(path)
    assert_same(Problem.load(path), problem)
    assert Problem.load(path, "none").budget_bytes is None


CHAIN = Problem.of([4, 2, 9], edges=[(0, 1), (1, 2)], needed=[2], cannot_recompute={0: "input"}, budget_bytes=9)
BUDGETS = [Budget("saved-0.3", "saved", 7), Budget("saved-0.5", "saved", 8), Budget("peak-0.5", "peak", 9)]


HOSTED = problem_document(replace(CHAIN, offload=Offload(np.array([1, 2, 3]), Bans.none(3))))


def written(folder: Path, **changed: Any) -> Path:
    """A file of CHAIN with three budgets, and with other fields."""
    path = folder / "chain.json"
    path.write_text(json.dumps(problem_document(CHAIN, budgets=BUDGETS) | changed))
    return path


def test_a_budget_is_chosen_by_name(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert Problem.load(path, "saved-0.5").budget_bytes == 8
    with pytest.raises(
        InvalidOption, match=r'several budgets: name one of saved-0\.3, saved-0\.5, peak-0\.5, or "none"'
    ):
        Problem.load(path)
    with pytest.raises(InvalidOption, match=r"no budget is named 'saved-0\.7'; did you mean"):
        Problem.load(path, "saved-0.7")
    with pytest.raises(UnsupportedProblem, match="limits the peak"):
        Problem.load(path, "peak-0.5")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": "remat.graph"}, "not a problem file"),
        ({"version": 4}, "version 4, but this remat reads 1 to 3"),
        ({"version": 3}, '"rows" must be a list, got NoneType'),
        ({"version": 3, "rows": [{"name": "y"}]}, '"rows" must hold objects with "name", "values" and "bytes"'),
        ({"version": 3, "rows": [{"name": "y", "bytes": 1, "values": [0, 1]}]}, "BudgetRow of 3 values"),
        ({"version": 3, "rows": [{"name": "y", "bytes": -1, "values": [0, 1, 0]}]}, "budget of 'y' must be a non-neg"),
        ({"version": 2}, '"host_budgets" must be an object, got NoneType'),
        ({"version": 2, "host_budgets": {}}, '"values.cannot_offload" must be a list, got NoneType'),
        (HOSTED | {"host_budgets": {"bytes": 7}}, '"host_budgets" must be empty'),
        ({"values": []}, '"values" must be an object, got list'),
        ({"uses": {"producer": [0]}}, '"uses.consumer" must be a list, got NoneType'),
        ({"uses": {"producer": [1], "consumer": [0]}}, "topological order"),
        ({"reasons": []}, "must be from 0 to 0"),
        ({"budgets": [7]}, '"budgets" must hold objects'),
        ({"budgets": [{"name": "saved", "of": "saved", "bytes": -1}]}, "must be a non-negative integer or None"),
    ],
)
def test_a_damaged_file_is_refused_with_its_path(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = written(tmp_path, **{"budgets": [], **changed})
    with pytest.raises(InvalidProblem, match=message) as caught:
        Problem.load(path)
    assert str(path) in str(caught.value)


def test_mps_states_prices_in_full_and_a_budget_in_units_of_the_sizes(tmp_path: Path) -> None:
    """What solvers of integer programs find below follows from smaller numbers."""
    large = replace(CHAIN, save_cost=[2**40 + 1, 0, 0], save_bytes=[0, 3 * 2**40, 6 * 2**40], budget_bytes=2**43 - 1)
    write_mps(large, tmp_path / "problem.mps")
    text = (tmp_path / "problem.mps").read_text()
    for line in (f" s0 COST {2**40 + 1}", " s1 BUDGET 1", " s2 BUDGET 2", " RHS BUDGET 2"):
        assert f"{line}\n" in text


def by_cbc(path: Path, *options: str) -> dict[str, float] | None:
    """CBC reads the file itself."""
    cbc, output = pulp.PULP_CBC_CMD().path, path.with_suffix(".sol")
    subprocess.run(
        [cbc, path, *options, "ratio", "0", "allow", "0", "solve", "solu", output], capture_output=True, check=True
    )
    status, *rows = output.read_text().splitlines()
    if not status.startswith("Optimal"):
        return None
    return {name: float(value) for _, name, value, *_ in map(str.split, rows)}


def by_or_tools(backend: str, path: Path) -> dict[str, float] | None:
    """OR-Tools reads the file, and HiGHS or SCIP solves it."""
    model, solver = model_builder.Model(), model_builder.Solver(backend)
    assert model.import_from_mps_file(str(path))
    if solver.solve(model) != model_builder.SolveStatus.OPTIMAL:
        return None
    return {variable.name: solver.value(variable) for variable in model.get_variables()}


BACKENDS = {"cbc": by_cbc, "highs": partial(by_or_tools, "highs"), "scip": partial(by_or_tools, "scip")}
each_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


@drawn(30)
@given(problem=problems(budget=True, largest=1000))
@each_backend
def test_solvers_of_integer_programs_find_our_optimum(
    problem: Problem, backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """JSON, read again, as MPS, to a solver; its answer as a solution, to the checker."""
    folder = tmp_path_factory.mktemp("posed")
    problem.save(folder / "problem.json")
    write_mps(Problem.load(folder / "problem.json"), folder / "problem.mps")
    document, digest = check.read(folder / "problem.json", "remat.problem")
    optimum = solve(problem, "cpsat", throw=False)
    if optimum.plan is None:
        return  # no plan fits the budget: the next test
    found = backend(folder / "problem.mps")
    answer = {
        "budget": "saved",
        **{key: [v for v in range(len(problem)) if round(found[f"{key[0]}{v}"])] for key in ("saved", "recomputed")},
        "objective": optimum.objective,
        "bound": optimum.bound,
        "status": "optimal",
    }
    verdict = check.check(check.Instance(document, digest), answer)
    assert not verdict.complaints


@drawn(30)
@given(problem=problems(budget=True, offload=True, largest=1000))
@each_backend
def test_solvers_of_integer_programs_offload_within_the_budget(
    problem: Problem, backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("posed") / "problem.mps"
    write_mps(problem, path)
    optimum = solve(problem, "cpsat", throw=False)
    found = backend(path)
    if optimum.plan is None or found is None:
        assert optimum.plan is found is None
        return
    said = np.zeros((3, len(problem)), np.bool_)
    for name, value in found.items():
        said["srh".index(name[0]), int(name[1:])] = round(value)
    saved, recomputed, hosted = said
    plan = Choice(saved | hosted, recomputed, hosted).plan(problem)
    assert check_plan(problem, plan) == optimum.objective


@each_backend
def test_solvers_of_integer_programs_see_that_nothing_fits(backend: Any, tmp_path: Path) -> None:
    problem = Problem.of([4, 2], edges=[(0, 1)], needed=[1], cannot_recompute={0: "input"}, budget_bytes=1)
    write_mps(problem, tmp_path / "tight.mps")
    assert backend(tmp_path / "tight.mps") is None


def flow_of(path: Path, n: int) -> tuple[int, dict[str, Any]]:
    """The least cost by a maximum flow of NetworkX over a DIMACS file, and the answer that its cut means."""
    graph: Any = networkx.DiGraph()
    graph.add_nodes_from((1, 2))
    base, ends = 0, dict[int, tuple[int, int]]()
    for kind, *fields in map(str.split, path.read_text().splitlines()):
        if kind == "a":
            graph.add_edge(int(fields[0]), int(fields[1]), capacity=int(fields[2]))
        elif fields[0] == "base":
            base = int(fields[1])
        elif fields[0] == "value":
            ends[int(fields[1])] = int(fields[2]), int(fields[3])
        elif kind == "n":
            assert fields in (["1", "s"], ["2", "t"])
    value, (source_side, _) = networkx.minimum_cut(graph, 1, 2)
    # What has no arcs is on the source's side: whatever the side, it is neither saved nor recomputed for a price.
    beyond = {v for v in graph.nodes if v not in source_side}
    saved = [v for v in range(n) if ends[v][0] not in beyond and ends[v][1] in beyond]
    recomputed = [v for v in range(n) if ends[v][0] in beyond]
    return base + int(value), {"budget": "none", "saved": saved, "recomputed": recomputed}


@drawn(100)
@given(problem=problems())
def test_a_maximum_flow_finds_our_optimum(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("posed") / "problem.max"
    write_dimacs(problem, path)
    least, answer = flow_of(path, len(problem))
    verdict = check.check(check.Instance(problem_document(problem), ""), answer)
    assert not verdict.complaints
    assert verdict.objective == least == solve(problem).objective


def test_a_budget_is_no_maximum_flow(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProblem, match="in a DIMACS file does not support a byte budget; use MPS or JSON"):
        write_dimacs(CHAIN, tmp_path / "chain.max")


@pytest.mark.parametrize(("suffix", "form"), [(".json", "json"), (".mps", "mps"), (".max", "dimacs"), (".out", "json")])
def test_the_command_writes_each_form(suffix: str, form: str, tmp_path: Path) -> None:
    graph, output = Corpus.open().path("vgg16"), tmp_path / f"vgg16{suffix}"
    options = [] if form == "dimacs" else ["-m", "memory-budget", "-O", "budget=0.5"]
    done = answer("solve", graph, *options, "--problem", output)
    model = ByteTraffic() if form == "dimacs" else MemoryBudget(0.5)
    problem = model.pose(Corpus.open().graph("vgg16"))
    assert done == {"problem": str(output), "format": form, "values": len(problem), "unit": model.unit}
    if form == "json":
        assert_same(Problem.load(output), problem)
        assert json.loads(output.read_text())["name"] == "vgg16"
    elif form == "mps":
        write_mps(problem, tmp_path / "again")
        assert output.read_text() == (tmp_path / "again").read_text()
    else:
        least, _ = flow_of(output, len(problem))
        assert least == solve(problem).objective


def test_the_command_says_what_a_form_cannot_state(tmp_path: Path) -> None:
    options = "-m", "memory-budget", "-O", "budget=0.5", "--problem", tmp_path / "vgg16.max"
    said = run("solve", Corpus.open().path("vgg16"), *options, code=1).stderr
    assert "a DIMACS file does not support a byte budget" in said
