"""Runs every solver on every instance of the corpus under several cost models: `python -m experiments.compare_solvers`.

Each solve runs in a process that is killed at the time limit (10 s; a solver that keeps a limit itself has time to
build its model and to stop), and each answer is checked. Seconds are of the solver alone: of wall time, without posing,
imports and checks.

*Solved*: a plan that costs at most 0.1% more than the best bound of any solver. *Certified*: proven, and the proof
verified without trusting the solver. *x fastest*: how many times as long as the fastest solver it took, on the
instances that it solved; the geometric mean, and the worst. *Gap*: how much more its plans cost than the best bound of
any solver, as a share of that bound. *Refused*: the solver does not take the problem, and says so. Without a budget, a
solver that is not exact (`lagrangian`, the knapsacks, `portfolio`) is one cut by the default flow solver.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.charts import chart
from experiments.report.markdown import bullets, section, table
from experiments.report.result_table import ResultTable, Row
from remat import Corpus, Graph, Problem, solve
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import find_costmodel, find_solver, usable_solvers
from remat.errors import UnsupportedProblem
from remat.plugin import Feature, Solver
from remat.views.compare import warm_up
from remat.views.comparison import profile, ratios

COST_MODELS = (
    "byte-traffic",
    "byte-traffic:mode=aggressive",
    "multi-read",
    "memory-budget:budget=0.5,estimator=roofline:device=h200",
)
LIMIT_S = 10.0
IMPORT_S = 30.0
READY = "ready"
WITHIN = 0.001


def measure(case: tuple[str, str]) -> Iterator[Row]:
    """Poses a problem, and lets every solver solve it."""
    name, cost_model = case
    graph = Corpus.open().graph(name)
    problem = find_costmodel(cost_model).pose(graph)
    about = {"instance": name, "cost_model": cost_model, "values": len(graph), "budget_bytes": problem.budget_bytes}
    for solver in usable_solvers():
        yield about | {"solver": solver} | answer(graph, problem, find_solver(solver), LIMIT_S)


def answer(graph: Graph, problem: Problem, solver: Solver, limit_s: float) -> Row:
    """Solves in a process of its own, and kills it with all that it has started when its time is over."""
    context = get_context("fork")  # the problem needs no copy
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_solved, args=(there, graph, problem, solver, limit_s))
    process.start()
    there.close()
    patience_s = 2 * limit_s + 10 if Feature.TIME_LIMIT in solver.features else limit_s
    try:
        row, seconds = READY, IMPORT_S
        while row == READY:
            if not here.poll(seconds):
                return {"status": "timeout", "note": f"killed after {seconds:g} s"}
            row, seconds = here.recv(), patience_s
        return row
    except EOFError:
        process.join()
        return {"status": "error", "note": f"the process ended with {process.exitcode}"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def _solved(connection: Connection, graph: Graph, problem: Problem, solver: Solver, limit_s: float) -> None:
    os.setpgid(0, 0)  # a solver may start a process of its own, such as CBC
    try:
        warm_up(solver)
        connection.send(READY)
        connection.send(facts(graph, problem, solver, limit_s))
    except UnsupportedProblem as error:
        connection.send({"status": "refused", "note": str(error).splitlines()[0]})
    except Exception as error:  # a solver that fails in a way of its own must not end the comparison
        connection.send({"status": "error", "note": f"{type(error).__name__}: {error}".splitlines()[0]})


def facts(graph: Graph, problem: Problem, solver: Solver, limit_s: float) -> Row:
    """Solves a problem, and says what came of it."""
    limit = limit_s if Feature.TIME_LIMIT in solver.features else None
    solution = solve(problem, solver, time_limit_s=limit, throw=False)
    ended = solution.termination
    row = {
        "status": ended.reason.name.lower(),
        "objective": solution.objective,
        "bound": solution.bound,
        "certified": solution.is_proven,
        "solve_s": round(solution.solve_time_s, 6),
        "note": ended.detail or (f"stopped by the {ended.limit} limit" if ended.limit else ""),
    }
    if solution.plan is not None:
        saved_bytes = PlanFacts.of(graph, solution.plan).saved_bytes
        row |= {"saved_bytes": saved_bytes, "plan": solution.plan.digest[:16]}
    return row


def disagreements(rows: Sequence[Row]) -> list[str]:
    """Lists claims that cannot be true at once, and answers that did not pass their check.

    One rule is enough: no plan may cost less than any solver's bound. An optimal plan's bound is its cost, so two
    solvers that call different costs optimal break it, and so does a heuristic below an exact solver's optimum.
    """
    wrong = ("InvalidPlan:", "CertificateRejected:")
    found = [f"{row['case']}: {row['solver']}: {row['note']}" for row in rows if row["note"].startswith(wrong)]
    for case, own in _by(rows, "case").items():
        plans = [row for row in own if row.get("objective") is not None]
        if plans:
            best = min(plans, key=lambda row: row["objective"])
            found += [
                f"{case}: {row['solver']} says that no plan costs less than {row.get('bound')}, or that there is none; "
                f"{best['solver']} has one of {best['objective']}"
                for row in own
                if row["status"] == "infeasible" or (row.get("bound") or 0) > best["objective"]
            ]
    return found


def same_plans(rows: Sequence[Row]) -> tuple[int, int]:
    """Counts the problems whose certified plans are all the same plan, and those with two or more certified plans."""
    plans = [
        [row["plan"] for row in own if row.get("certified") and row.get("plan")] for own in _by(rows, "case").values()
    ]
    several = [own for own in plans if len(own) > 1]
    return sum(len(set(own)) == 1 for own in several), len(several)


def _by(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[column], []).append(row)
    return found


def with_gaps(rows: Sequence[Row]) -> pd.DataFrame:
    """Makes a table of rows, with `gap`, to the best bound of any solver, and `taken`, infinite where not solved."""
    frame = pd.DataFrame(rows)
    best = frame.groupby("case")["bound"].transform("max")
    frame["gap"] = (frame["objective"] / best - 1).mask(frame["objective"] == best, 0.0)
    frame["taken"] = frame["solve_s"].clip(lower=1e-6).where(frame["gap"] <= WITHIN, np.inf)
    return frame


def times(frame: pd.DataFrame) -> pd.DataFrame:
    """Divides the seconds of one cost model by those of the fastest: instances x solvers, infinite where not solved."""
    return ratios(frame.pivot(index="instance", columns="solver", values="taken").dropna())


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Says whether the solvers agree, and sums up each solver under each cost model."""
    same, several = same_plans(rows)
    plans = sum(row.get("objective") is not None for row in rows)
    yield bullets(
        [f"**The solvers disagree.** {conflict}" for conflict in disagreements(rows)]
        or [
            f"All solvers agree: of {plans:,} plans, none costs less than any solver's bound.",
            f"{sum(row.get('certified', False) for row in rows):,} answers are certified.",
            f"Where several plans are certified, all are the same plan: on {same} of {several} problems.",
        ]
    )
    statuses = ("optimal", "feasible", "refused", "timeout", "error")
    headings = ("solver", "solved", "certified", *statuses, "x fastest, mean", "worst", "worst on", "slowest, s")
    for cost_model, own in with_gaps(rows).groupby("cost_model", sort=False):
        ratio = times(own)
        lines: list[list[object]] = []
        for solver, of in own.groupby("solver"):
            finite = ratio[solver][np.isfinite(ratio[solver])]
            solved = of[np.isfinite(of["taken"])]
            lines.append(
                [
                    *(solver, len(solved), int(of["certified"].eq(True).sum())),
                    *(int((of["status"] == status).sum()) for status in statuses),
                    *(
                        (f"{np.exp(np.log(finite).mean()):,.1f}", f"{finite.max():,.1f}", finite.idxmax())
                        if len(finite)
                        else ("", "", "")
                    ),
                    "" if solved.empty else f"{solved['solve_s'].max():.3g}",
                    *(["", ""] if of["gap"].isna().all() else [f"{of['gap'].median():.2%}", f"{of['gap'].max():.2%}"]),
                ]
            )
        yield section(f"`{cost_model}`", table([*headings, "gap, median", "gap, worst"], lines))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws performance profiles, a panel for each cost model."""
    frame = with_gaps(rows)
    cut = {name for name in frame["solver"].unique() if not find_solver(name).exact}
    frame = frame[frame["budget_bytes"].notna() | ~frame["solver"].isin(cut)]
    colours = {solver: f"C{place % 10}" for place, solver in enumerate(sorted(frame["solver"].unique()))}
    with chart(path, (10, 8.3), 2, 2) as panels:
        for axes, (cost_model, own) in zip(panels.flat, frame.groupby("cost_model", sort=False), strict=False):
            ratio = {solver: factors for solver, factors in times(own).items() if np.isfinite(factors).any()}
            end = 1.5 * max(10.0, *(float(factors[np.isfinite(factors)].max()) for factors in ratio.values()))
            for solver, factors in ratio.items():
                factor, share = profile(factors.to_numpy())
                axes.step([*factor, end], [*share, share[-1]], where="post", color=colours[solver], label=solver)
            axes.set(xscale="log", xlim=(1, end), ylim=(0, 1.03), xlabel="time, to that of the fastest: at most")
            axes.set_ylabel(f"instances solved (to {WITHIN:.1%})")
            axes.set_title(str(cost_model).replace(",", ",\n"), fontsize=9.5, family="monospace")
            axes.legend(fontsize=8)


TABLE = ResultTable(
    "experiments.compare_solvers",
    "Solvers on the corpus",
    cases=lambda: [(entry.name, cost_model) for entry in Corpus.open().entries for cost_model in COST_MODELS],
    key=", ".join,
    measure=measure,
    summary=summary,
    columns=None,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
