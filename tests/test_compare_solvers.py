"""The comparison of solvers: rows that survive, workers anywhere, nothing that hangs, and no lie that goes unseen."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.compare_solvers.__main__ import main
from experiments.compare_solvers.agreement import disagreements, same_plans
from experiments.compare_solvers.case import Named, SolverCase, cases_of, graph_of, unfinished
from experiments.compare_solvers.gaps_over_time import gap_rows, gap_titles, gaps_over_time
from experiments.compare_solvers.performance_profile import coverage, seconds
from experiments.compare_solvers.rows import COLUMNS, SolverRow, frame_of
from experiments.compare_solvers.scheduling import check_code, run, workers
from experiments.compare_solvers.solver_pictures import looks, profiles, scaling
from experiments.compare_solvers.store import Store, read
from experiments.compare_solvers.summary import markdown, solver_table
from experiments.compare_solvers.supervision import ROOT, rows_of
from remat import InvalidOption, RematError
from remat.facts.corpus import Corpus
from remat.plugin import Solver
from remat.views.performance_profile import profile, ratios
from solvers import Exhaustive, NetworkX, ORTools

CORPUS = Corpus.open()
SMALL = ("small-dropout-mlp", "small-layernorm-gelu-mlp")
CLASSIC = Named("byte-traffic", ByteTraffic())
BUDGET = Named("memory-budget:estimator=flops", MemoryBudget(estimator="flops"))
OURS = Named("ortools", ORTools())

FAULTY = '''
"""Solvers that do what no solver should."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from remat import Choice, Plan, Reason, Solution
from remat.plugin import Solver, Termination
from remat.answer.solution import ClaimedBound
from solvers import ORTools


@dataclass(frozen=True)
class Liar(Solver):
    """Saves all it can, and says that nothing is cheaper than one more than the optimum."""

    name: ClassVar[str] = "liar"
    exact: ClassVar[bool] = False

    def _solve(self, problem, *, time_limit_s):
        bound = ORTools()._solve(problem, time_limit_s=None).objective + 1
        choice = Choice.from_saved(problem, ~problem.cannot_save.mask)
        claim = Termination(Reason.FEASIBLE, bound)
        return Solution(choice.plan(problem), choice.cost(problem), claim, ClaimedBound("nobody"), self.name)


@dataclass(frozen=True)
class Miscounter(Solver):
    """Says that the optimal plan costs one less than it does."""

    name: ClassVar[str] = "miscounter"

    def _solve(self, problem, *, time_limit_s):
        right = ORTools()._solve(problem, time_limit_s=None)
        wrong = right.objective - 1
        return replace(right, objective=wrong, termination=Termination(Reason.OPTIMAL, wrong))


@dataclass(frozen=True)
class Hangs(Solver):
    """Starts a process, ignores every signal that can be ignored, and sleeps."""

    name: ClassVar[str] = "hangs"
    note: str = ""

    def _solve(self, problem, *, time_limit_s):
        if len(problem) < 3:
            return ORTools()._solve(problem, time_limit_s=None)  # the trifle that warms it up
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "120"])
        Path(self.note + ".part").write_text(f"{os.getpid()} {child.pid}")
        os.replace(self.note + ".part", self.note)
        time.sleep(120)


@dataclass(frozen=True)
class Crashes(Solver):
    """Dies as C++ does."""

    name: ClassVar[str] = "crashes"

    def _solve(self, problem, *, time_limit_s):
        os.kill(os.getpid(), signal.SIGSEGV)


@dataclass(frozen=True)
class Chatters(ORTools):
    """Prints where our messages go."""

    name: ClassVar[str] = "chatters"

    def _solve(self, problem, *, time_limit_s):
        print("to standard output")
        os.write(1, b"past Python\\n")
        return super()._solve(problem, time_limit_s=time_limit_s)


@dataclass(frozen=True)
class Raises(Solver):
    """Fails in two lines."""

    name: ClassVar[str] = "raises"

    def _solve(self, problem, *, time_limit_s):
        raise ZeroDivisionError("one\\n  two")


@dataclass(frozen=True)
class Garbage(Solver):
    """Claims a bound that no table holds, or fails with words that no file holds."""

    name: ClassVar[str] = "garbage"
    exact: ClassVar[bool] = False
    bound: str = ""

    def _solve(self, problem, *, time_limit_s):
        if not self.bound:
            raise ValueError("half a pair: \\udcff" + "!" * 5000)
        claim = Termination(Reason.FEASIBLE, eval(self.bound, {"np": np}))
        right = ORTools()._solve(problem, time_limit_s=None)
        return replace(right, termination=claim, certificate=ClaimedBound("nobody"))


@dataclass(frozen=True)
class StartsSlowly(ORTools):
    """Has a large package to import."""

    name: ClassVar[str] = "starts-slowly"

    def _solve(self, problem, *, time_limit_s):
        if len(problem) < 3:
            time.sleep(1.5)
        return super()._solve(problem, time_limit_s=time_limit_s)
'''


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "faulty_solvers.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("faulty_solvers")
    del sys.modules["faulty_solvers"]


def case(
    *solvers: Named[Solver] | Solver, instance: str = SMALL[0], cost_model: Any = CLASSIC, **changes: Any
) -> SolverCase:
    named = tuple(solver if isinstance(solver, Named) else Named(solver.name, solver) for solver in solvers)
    return replace(SolverCase(instance, cost_model, named, time_limit_s=20, repeats=1), **changes)


def row(**changes: Any) -> SolverRow:
    about = {name: {"str": "?", "bool": False}.get(kind.dtype, 1) for name, kind in COLUMNS.items()}
    return SolverRow(**(about | {"status": "optimal", "note": "", "graph": "a"} | changes))


def timeless(rows: list[SolverRow]) -> list[dict[str, Any]]:
    """Rows without what differs from run to run: times, the date, and the commit if somebody commits just then."""
    plain = sorted(rows, key=lambda found: found.key)
    unsteady = {name for name in COLUMNS if name.endswith("_s")} | {"date", "commit"}
    return [{name: cell for name, cell in asdict(found).items() if name not in unsteady} for found in plain]


def command(*arguments: object, code: int = 0) -> Result:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def collected(cases: list[SolverCase]) -> list[SolverRow]:
    found: list[SolverRow] = []
    run(cases, found.extend)
    return found


def test_a_row_says_what_was_solved_how_long_it_took_and_where_it_comes_from() -> None:
    (found,) = rows_of(case(OURS, repeats=3))
    entry = CORPUS.entry(SMALL[0])
    problem = ByteTraffic().pose(CORPUS.graph(SMALL[0]))
    solution = remat.solve(problem, "ortools")
    assert solution.plan is not None
    assert (found.instance, found.family, found.values, found.uses) == (
        entry.name,
        entry.family,
        entry.values,
        entry.uses,
    )
    assert (found.cost_model, found.solver, found.status, found.exact, found.unit) == (
        "byte-traffic",
        "ortools",
        "optimal",
        True,
        "bytes",
    )
    assert (found.objective, found.bound, found.gap, found.certified) == (solution.objective, solution.bound, 0, True)
    assert solution.plan.digest.startswith(found.plan)
    assert found.plan
    assert found.repeats == 3
    assert found.total_s == pytest.approx((found.pose_s or 0) + (found.solve_s or 0) + (found.certify_s or 0), abs=1e-5)
    assert min(found.pose_s or 0, found.solve_s or 0, found.certify_s or 0) > 0
    assert entry.sha256.startswith(found.graph)
    assert len(found.graph) == 16
    assert found.commit
    assert found.date
    assert "cores" in found.machine
    assert "ortools " in found.versions


def test_refusals_have_their_reason() -> None:
    tiny, plain = rows_of(case(Exhaustive(), OURS))
    assert (tiny.status, tiny.objective, tiny.certified, tiny.solve_s) == ("refused", None, False, None)
    assert "takes up to 16 values" in tiny.note
    assert plain.status == "optimal"
    network, lagrangian = rows_of(
        case(NetworkX(), Named("lagrangian", remat.answer.registry.find_solver("lagrangian")), cost_model=BUDGET)
    )
    assert (network.status, network.note.count("\n")) == ("refused", 0)
    assert "does not support a byte budget" in network.note
    assert lagrangian.objective is not None


def test_a_solver_that_hangs_is_killed_with_all_that_it_started_and_the_next_one_runs(
    faulty: ModuleType, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    hung, after = rows_of(case(faulty.Hangs(str(note)), OURS, time_limit_s=1))
    assert (hung.status, hung.stopped, hung.objective, hung.repeats) == ("timeout", True, None, 0)
    assert "killed after 1 s" in hung.note
    assert after.status == "optimal"
    gone(note)


def test_a_solver_dies_with_whoever_started_it(faulty: ModuleType, tmp_path: Path) -> None:
    note, task = tmp_path / "pids", tmp_path / "case"
    task.write_bytes(pickle.dumps(case(faulty.Hangs(str(note)))))
    program = (
        f"import pickle, sys; sys.path[:0] = {[str(tmp_path), str(Path.cwd())]}\n"
        "from experiments.compare_solvers.supervision import ROOT, rows_of\n"
        f"rows_of(pickle.load(open({str(task)!r}, 'rb')))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    until(note.exists)
    parent.kill()
    parent.wait()
    gone(note)


def gone(note: Path) -> None:
    """Waits until the processes of a note have ended."""
    pids = list(map(int, note.read_text().split()))
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may wait for it here


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_crashes_and_exceptions_make_rows_and_what_is_printed_is_no_answer(faulty: ModuleType) -> None:
    crashed, raised, printed = rows_of(case(faulty.Crashes(), faulty.Raises(), faulty.Chatters()))
    assert (crashed.status, raised.status, printed.status) == ("error", "error", "optimal")
    assert signal.SIGSEGV.name in crashed.note
    assert raised.note == "ZeroDivisionError: one two"


@pytest.mark.parametrize(
    ("bound", "status", "note"),
    [
        ("float('nan')", "error", "got nan"),
        ("0.5", "error", "got 0.5"),
        ("-(2**70)", "error", "OverflowError: the bound must fit a table's 64 bits"),
        ("np.int64(1)", "feasible", ""),
        ("", "error", "half a pair: \\udcff!"),
    ],
)
def test_garbage_makes_rows_that_can_be_kept(
    faulty: ModuleType, tmp_path: Path, bound: str, status: str, note: str
) -> None:
    (found,) = rows_of(case(faulty.Garbage(bound)))
    assert (found.status, note in found.note, len(found.note) <= 1000) == (status, True, True)
    with Store(tmp_path / "solvers.duckdb") as store:
        store.add([found])
        assert store.rows() == [found]


def test_the_time_limit_is_not_for_importing(faulty: ModuleType) -> None:
    (found,) = rows_of(case(faulty.StartsSlowly(), time_limit_s=1))
    assert (found.status, found.note) == ("optimal", "")


def test_a_problem_that_cannot_be_posed_makes_a_row_for_each_solver() -> None:
    rows = rows_of(case(OURS, NetworkX(), cost_model=Named("peak", MemoryBudget(of="peak"))))
    assert [found.status for found in rows] == ["refused", "refused"]
    assert all("limits peak memory" in found.note for found in rows)


def test_rows_survive_an_interruption_and_only_the_rest_runs_again(tmp_path: Path) -> None:
    cases = cases_of(
        map(CORPUS.entry, SMALL),
        [CLASSIC],
        [OURS, Named("networkx", NetworkX())],
        time_limit_s=20,
        repeats=1,
        folder=None,
    )

    def interrupted(rows: list[SolverRow]) -> None:
        store.add(rows)
        raise KeyboardInterrupt

    with Store(tmp_path / "solvers.duckdb") as store, pytest.raises(KeyboardInterrupt):
        run(cases, interrupted)
    with Store(tmp_path / "solvers.duckdb") as store:
        kept = store.rows()
        assert sorted(found.instance for found in kept) == [SMALL[1]] * 2  # the larger one runs first
        left = unfinished(cases, kept, CORPUS)
        assert [remaining.instance for remaining in left] == [SMALL[0]]
        run(left, store.add)
        assert store.rows()[2:] == kept
        assert unfinished(cases, store.rows(), CORPUS) == []
        store.forget(cases[0].keys)  # as --again does
        assert unfinished(cases, store.rows(), CORPUS) == cases[:1]


def test_a_row_holds_unless_something_has_changed() -> None:
    plan = case(OURS, Named("networkx", NetworkX()), time_limit_s=10)
    known = {"instance": SMALL[0], "cost_model": "byte-traffic", "graph": graph_of(CORPUS.entry(SMALL[0]))}

    def left(**changes: Any) -> list[str]:
        kept = [row(**known, solver="ortools"), row(**known | {"solver": "networkx", "time_limit_s": 5.0} | changes)]
        return [solver.text for remaining in unfinished([plan], kept, CORPUS) for solver in remaining.solvers]

    assert left() == left(status="refused") == left(status="timeout", stopped=True, time_limit_s=10.0) == []
    for changes in (
        {"status": "error"},
        {"graph": "another file"},
        {"status": "timeout", "stopped": True},
        {"status": "feasible", "stopped": True},
        {"cost_model": "multi-read"},
    ):
        assert left(**changes) == ["networkx"]


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    return timeless(collected(tasks()))


def tasks() -> list[SolverCase]:
    return [case(OURS, Exhaustive(), instance=name) for name in SMALL]


@pytest.mark.parametrize(("backend", "jobs"), [("threading", 2), ("loky", 2), ("multiprocessing", 2), ("dask", 1)])
def test_workers_of_every_kind_give_the_same_rows(backend: str, jobs: int, expected: list[dict[str, Any]]) -> None:
    with workers(backend, jobs=jobs):
        assert timeless(collected(tasks())) == expected


def test_a_dask_cluster_that_is_there_gives_the_same_rows(expected: list[dict[str, Any]]) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, processes=False, threads_per_worker=1, dashboard_address=":0") as cluster,
        workers("dask", scheduler=cluster.scheduler_address),
    ):
        assert timeless(collected(tasks())) == expected


@pytest.mark.parametrize("error", [CancelledError("gone"), TimeoutError("no worker after 10 seconds")])
def test_a_cluster_that_is_lost_is_explained(error: Exception) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, processes=False, threads_per_worker=1, dashboard_address=":0") as cluster,
        pytest.raises(RematError, match=rf"has no workers, or was lost .*{error}.*finished rows are kept"),
        workers("dask", scheduler=cluster.scheduler_address),
    ):
        raise error


@pytest.mark.parametrize("without", ["scheduler", "workers"])
def test_a_cluster_without_this_code_is_refused_at_once(without: str) -> None:
    def fails(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'experiments'")

    calls = {"scheduler": "run_on_scheduler", "workers": "run"}
    client = SimpleNamespace(**{name: fails if who == without else print for who, name in calls.items()})
    with pytest.raises(RematError, match=rf"the {without} of the Dask cluster .*PYTHONPATH={ROOT}"):
        check_code(client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "carrier-pigeon"}, "--backend must be one of threading"),
        ({"scheduler": "tcp://x:1"}, "--scheduler is for --backend dask or ray, got 'threading'"),
        ({"jobs": 0}, "--jobs must be a positive number"),
        ({"backend": "dask", "scheduler": "tcp://x:1", "jobs": 2}, "leave it out with --scheduler"),
    ],
)
def test_options_that_make_no_sense_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message), workers(**options):
        pass


def test_a_lie_by_one_is_printed_loudly_and_fails_the_command(faulty: ModuleType, tmp_path: Path) -> None:
    for kind in (faulty.Liar, faulty.Miscounter):
        remat.plugin.register(kind)
    try:
        named = (part for name in ("ortools", "liar", "miscounter") for part in ("--solvers", name))
        options = ("--instances", SMALL[0], "--cost-models", "byte-traffic", "--output", tmp_path / "out")
        lied = command(*options, *named, code=1)
    finally:
        for kind in (faulty.Liar, faulty.Miscounter):
            remat.plugin.unregister(kind.name)
    (optimum,) = read(tmp_path / "out" / "solvers.csv").query("solver == 'ortools'")["objective"]
    said = " ".join(lied.output.split())
    assert said.count("DISAGREEMENT") == 2
    assert f"no plan costs less than {optimum + 1}" in said
    assert f"has one of {optimum}" in said
    assert "the answer of miscounter is wrong: InvalidPlan" in said
    assert "The solvers disagree" in (tmp_path / "out" / "solvers.md").read_text()


def test_agreement_is_judged_on_one_graph_and_one_cost_model() -> None:
    exact = {"solver": "exact", "objective": 2**60 + 1, "bound": 2**60 + 1}
    below = {"solver": "heuristic", "objective": 2**60, "bound": None, "status": "feasible"}
    assert len(disagreements(frame_of([row(**exact), row(**below)]))) == 1
    assert disagreements(frame_of([row(**exact), row(**below | {"objective": 2**60 + 1})])) == []
    assert disagreements(frame_of([row(**exact), row(**below, graph="b")])) == []
    assert disagreements(frame_of([row(**exact), row(**below, cost_model="other")])) == []
    without = {"solver": "pessimist", "status": "infeasible", "objective": None, "bound": None}
    assert len(disagreements(frame_of([row(**exact), row(**without)]))) == 1
    assert disagreements(frame_of([row(**without)])) == []
    refused = {"solver": "refuses", "status": "refused", "objective": None, "bound": None, "note": "too large"}
    assert disagreements(frame_of([row(**exact), row(**refused)])) == []


def test_certified_plans_are_counted_as_the_same_only_if_they_are() -> None:
    rows = [row(solver=solver, certified=True, plan=plan) for solver, plan in (("a", "x"), ("b", "x"), ("c", "y"))]
    assert same_plans(frame_of(rows[:1])) == (0, 0)
    assert same_plans(frame_of(rows[:2])) == (1, 1)
    assert same_plans(frame_of(rows)) == (0, 1)


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
numbers = st.integers(0, 2**62 - 1)
some_rows = st.lists(
    st.builds(
        SolverRow,
        **{name: texts for name, kind in COLUMNS.items() if kind.dtype == "str"},
        **{name: st.booleans() for name, kind in COLUMNS.items() if kind.dtype == "bool"},
        **{name: numbers for name, kind in COLUMNS.items() if kind.dtype == "int64"},
        **{name: st.none() | numbers for name, kind in COLUMNS.items() if kind.dtype == "Int64"},
        **{
            name: st.floats(0, 1e6, allow_subnormal=False) | (st.nothing() if name == "time_limit_s" else st.none())
            for name, kind in COLUMNS.items()
            if kind.dtype == "float64"
        },
    ),
    max_size=4,
    unique_by=lambda found: found.key,
)


@settings(max_examples=6)
@given(some_rows)
def test_exports_read_back_equal(tmp_path_factory: pytest.TempPathFactory, rows: list[SolverRow]) -> None:
    folder = tmp_path_factory.mktemp("store")
    with Store(folder / "solvers.duckdb") as store:
        store.add(rows)
        store.add(rows[:1])  # again: replaced, not doubled
        kept = store.rows()
        assert sorted(kept, key=lambda found: found.key) == sorted(rows, key=lambda found: found.key)
        frame = store.frame()
        assert [
            SolverRow(**cells) for cells in frame.astype(object).where(frame.notna(), None).to_dict("records")
        ] == kept
        for suffix in ("csv", "parquet"):
            store.export(folder / f"rows.{suffix}")
            pd.testing.assert_frame_equal(read(folder / f"rows.{suffix}"), frame)


def test_stores_and_exports_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "solvers.duckdb").write_text("no database")
    with pytest.raises(RematError, match="cannot be opened as a DuckDB database"):
        Store(tmp_path / "solvers.duckdb")
    with Store(tmp_path / "good.duckdb") as store, pytest.raises(RematError, match=r"must be \.csv or \.parquet"):
        store.export(tmp_path / "rows.xlsx")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for path in (tmp_path / "rows.csv", tmp_path / "none.parquet"):
        with pytest.raises(RematError, match="not an export of the comparison"):
            read(path)


def test_stores_of_another_schema_or_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "solvers.duckdb"
    columns = [f'"{name}" {kind.sql}' for name, kind in COLUMNS.items()]
    keyless, texts = ", ".join(columns), ", ".join(f'"{name}" VARCHAR' for name in COLUMNS)
    for table_like in (
        f"TABLE solvers ({keyless})",
        f"TABLE solvers ({texts}, PRIMARY KEY (instance, cost_model, solver))",
        f"TABLE t ({keyless}); CREATE VIEW solvers AS FROM t",
    ):
        with duckdb.connect(str(path)) as database:
            database.execute(f"CREATE {table_like}")
        with pytest.raises(RematError, match="other columns than this version writes"):
            Store(path)
        path.unlink()
    with Store(path) as store:
        store.add([row()])
    good = path.read_bytes()
    for damaged in (good[:9000], good[:12288] + b"?" * 100 + good[12388:]):
        path.write_bytes(damaged)
        with pytest.raises(RematError, match="move it away if it is damaged"):
            Store(path)


times = st.one_of(st.just(np.inf), st.floats(1e-6, 1e4))


@given(st.integers(1, 4).flatmap(lambda k: st.lists(st.lists(times, min_size=k, max_size=k), min_size=1, max_size=6)))
def test_profiles_are_what_dolan_and_more_define(taken: list[list[float]]) -> None:
    frame = pd.DataFrame(taken)
    ratio = ratios(frame)
    for solver in frame:
        tau, share = profile(ratio[solver].to_numpy())
        assert tau[0] == 1
        for factor in {*tau.tolist(), 1.0, 1.5, 7.0, 1e12}:
            within = sum(instance[solver] < np.inf and instance[solver] / min(instance) <= factor for instance in taken)
            steps = [rho for at, rho in zip(tau, share, strict=True) if at <= factor]
            assert steps[-1] == pytest.approx(within / len(taken))


def test_failures_and_instances_that_nobody_solves_count_in_profiles() -> None:
    solver = {"a": {"solver": "a", "bound": 100}, "b": {"solver": "b", "bound": None}}
    rows = [
        row(**solver["a"], instance="easy", objective=100, solve_s=1.0),
        row(**solver["b"], instance="easy", objective=100, solve_s=4.0),
        row(**solver["a"], instance="hard", objective=200, solve_s=1.0),
        row(**solver["b"], instance="hard", objective=None, solve_s=None),
        row(**solver["a"], instance="one", objective=100, solve_s=2.0),
        row(**solver["b"], instance="one", objective=101, solve_s=1.0),
        row(**solver["a"], instance="not asked of b", objective=100, solve_s=1.0),
    ]
    found = seconds(frame_of(rows))
    assert found.loc[["easy", "hard", "one"]].to_numpy().tolist() == [[1, 4], [np.inf, np.inf], [2, np.inf]]
    assert len(found) == 3
    assert profile(ratios(found)["a"].to_numpy())[1].tolist() == [pytest.approx(2 / 3)]
    shown = solver_table(frame_of(rows)).set_index("solver")
    assert shown["solved"].to_dict() == {"a": 3, "b": 1}
    assert shown["x fastest, mean"].to_dict() == {"a": 1, "b": 4}


def test_a_gap_needs_a_bound() -> None:
    solver = {"objective": 100, "bound": None, "status": "feasible"}
    shown = solver_table(frame_of([row(**solver | {"solver": "a"}), row(**solver | {"solver": "b", "objective": 200})]))
    assert shown["gap, median"].isna().all()
    assert solver_table(frame_of([row(objective=0, bound=0)]))["gap, worst"].tolist() == [0]


def test_a_solver_is_at_100_percent_until_it_answers() -> None:
    rows = [
        row(solver="quick", instance="one", objective=125, bound=None, solve_s=0.05, status="feasible"),
        row(solver="quick", instance="two", objective=100, bound=100, solve_s=0.05),
        row(solver="exact", instance="one", objective=100, bound=100, solve_s=0.5),
        row(solver="exact", instance="two", objective=100, bound=100, solve_s=11.0),
        row(solver="none", instance="one", objective=None, bound=None, solve_s=None, status="timeout"),
        row(solver="picky", instance="one", objective=None, bound=None, solve_s=None, status="refused"),
    ]
    found = gaps_over_time(frame_of(rows))
    assert gap_titles(found) == ["gap after", "0.01 s", "0.1 s", "1 s", "the end"]
    assert gap_rows(found) == [
        ("exact", "-", "-", "50.00%", "0.00%"),
        ("quick", "-", "10.00%", "10.00%", "10.00%"),
        ("none", "-", "-", "-", "-"),
    ]


def test_rows_of_another_file_are_not_compared() -> None:
    old = row(solver="a", objective=100, bound=100, graph="old", solve_s=1.0)
    new = row(solver="b", objective=50, bound=50, graph="new", solve_s=2.0)
    shown = solver_table(frame_of([old, new]))
    assert shown["solved"].tolist() == [1, 1]
    assert shown["gap, worst"].tolist() == [0, 0]
    assert shown["x fastest, mean"].isna().all()
    assert same_plans(frame_of([replace(found, certified=True, plan=found.solver) for found in (old, new)])) == (0, 0)


def test_the_page_says_on_how_many_instances_times_are_compared() -> None:
    rows = [row(solver="a", instance=name) for name in ("one", "two|2")]
    assert coverage(frame_of(rows)) == ""
    some = frame_of([*rows, row(solver="b", instance="one")])
    said = "times compared on 1 of 2 instances"
    assert said in coverage(some)
    assert said in markdown(some, "command", {})
    assert "two\\|2" in markdown(frame_of([replace(found, instance="two|2") for found in rows[:1]]), "command", {})


def test_every_solver_has_a_look_of_its_own() -> None:
    names = ["scipy", "networkx:flow_func=dinitz", "networkx", "networkx:flow_func=preflow_push"]
    found = looks(names)
    assert len({tuple(look.items()) for look in found.values()}) == len(names)
    assert len({found[name]["color"] for name in names}) == 2
    assert found["networkx"] == looks(["networkx"])["networkx"]


def test_pictures_of_cost_models_that_no_solver_takes_can_be_drawn(tmp_path: Path) -> None:
    refused = row(exact=True, cost_model="none", status="refused", objective=None, bound=None, solve_s=None)
    for rows in ([], [refused], [row(exact=True), refused]):
        for draw in (scaling, profiles):
            draw(frame_of(rows), tmp_path / "picture.svg")


def test_where_results_go_is_checked_before_anything_is_solved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.csv").mkdir()
    for options, message in (
        (("--output", tmp_path / "file"), "no folder can be made there (File exists); choose another --output"),
        (("--output", tmp_path, "--export", tmp_path / "rows.xlsx"), "the suffix must be .csv or .parquet"),
        (("--output", tmp_path, "--export", tmp_path / "folder.csv"), "a file is needed, got a folder"),
        (("--output", tmp_path, "--export", tmp_path / "file" / "x.csv"), "no folder can be made there"),
    ):
        assert message in command(*options, code=1).output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


@pytest.mark.parametrize("again", [(), ("--again",)])
def test_who_interrupts_is_told_how_to_go_on(
    again: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("experiments.compare_solvers.__main__.run", interrupted)
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: str(tmp_path))
    small = ("--solvers", "ortools", *again)
    added = " without --again" if again else ""
    assert f"the same command{added} goes on" in command("--output", tmp_path, *small, code=130).output
    assert f"the same command with --output {tmp_path}{added} goes on" in command("--smoke", *small, code=130).output


def test_the_command_solves_writes_and_goes_on(tmp_path: Path) -> None:
    options = ("--instances", SMALL[0], "--cost-models", "byte-traffic", "--repeats", 1, "--output", tmp_path)
    command(*options, "--solvers", "ortools")
    first = read(tmp_path / "solvers.csv")
    said = command(*options, "--solvers", "ortools", "--solvers", "networkx", "--export", tmp_path / "x.parquet").output
    assert "1 of 2 rows are kept" in said
    assert "All solvers agree" in said
    both = read(tmp_path / "x.parquet")
    pd.testing.assert_frame_equal(both[both["solver"] == "ortools"].reset_index(drop=True), first)
    assert set(both["objective"]) == set(first["objective"])
    assert len(both) == 2
    page = (tmp_path / "solvers.md").read_text()
    for name in ("solvers-scaling.svg", "solvers-profile.svg"):
        assert f"({name})" in page
        assert (tmp_path / name).read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--instances", "small-bart"), 2, "did you mean 'small-bert'"),
        (("--solvers", "ortool"), 2, "did you mean 'ortools'"),
        (("--cost-models", "byte-traffic:mode=loud"), 2, "must be one of conservative, aggressive"),
        (("--folder", "nowhere"), 1, "no corpus in nowhere"),
        (("--backend", "pigeon"), 2, "--backend must be one of"),
        (("--time-limit", "inf"), 2, "less than or equal to 1000000"),
    ],
)
def test_mistakes_on_the_command_line_are_explained(
    options: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    result = command("--output", tmp_path, *options, code=code)
    assert message in " ".join(result.output.replace("│", " ").split())


def test_two_runs_cannot_write_to_one_store(tmp_path: Path) -> None:
    program = (
        f"import duckdb, sys; kept = duckdb.connect({str(tmp_path / 'solvers.duckdb')!r}); "
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(RematError, match="let the run that uses it end"):
            Store(tmp_path / "solvers.duckdb")
        other.communicate()
    with Store(tmp_path / "solvers.duckdb") as store:
        assert store.rows() == []
