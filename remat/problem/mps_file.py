"""Writes a problem as an integer program in free MPS, which CBC, HiGHS, SCIP and others read.

Column `s<v>` is 1 where value v is saved, and `r<v>` where v is recomputed. The program is that of
`remat.problem.problem`, with `b_v = s<v> + r<v>`:

    minimize    COST:  sum save_cost[v] * s<v> + recompute_cost[v] * r<v>
    subject to  n<v>:  s<v> + r<v> = 1               where v is needed; elsewhere a<v>: s<v> + r<v> <= 1
                u<k>:  r<v> - s<u> - r<u> <= 0       for use k, u -> v
                BUDGET: sum save_bytes[v] * s<v> <= budget_bytes
                BUDGET<r>: the same over the values of row r, counted from 1
    bounds      s<v> = 0 where v cannot be saved, r<v> = 0 where it cannot be recomputed

If v can be offloaded, the column `h<v>` is 1 where v is offloaded, and `s<v>` is 1 where v is saved on the device. In
the rows n, a and u, `h<v>` counts like `s<v>`; its cost is offload.cost[v].

Prices are written in full. A budget is written in units of the greatest common divisor of all sizes, rounded down.
Integer-program solvers compute in doubles, so a row may be violated by about a millionth: only a check in integers can
tell whether a plan fits its budget to the byte. FREE tells CBC that names and numbers are not in fixed columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from remat.facts.columns import common_divisor
from remat.facts.files import write_file
from remat.problem.features import ONE_BUDGET, Feature, check_features, features_of
from remat.problem.problem import Problem


def write_mps(problem: Problem, path: Path) -> None:
    """Writes a problem as free MPS; equal problems always give equal bytes.

    Raises `UnsupportedProblem` if values are tied.
    """
    check_features(features_of(problem), "the MPS file", ONE_BUDGET | {Feature.ROWS})
    write_file(path, "".join(f"{line}\n" for line in _lines(problem)).encode("ascii"))


def _lines(problem: Problem) -> Iterator[str]:
    needed: list[bool] = problem.needed.tolist()
    rows = [("E n" if must else "L a") + str(v) for v, must in enumerate(needed)]
    row_of = [row[2:] for row in rows]
    uses: list[tuple[int, int]] = list(zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True))
    hosted = _hosted(problem)
    unit = common_divisor(problem.save_bytes)
    whole = [] if problem.budget_bytes is None else ["BUDGET"]
    limits = [*whole, *(f"BUDGET{r}" for r in range(1, len(problem.rows) + 1))]
    sizes = [(column // unit).tolist() for _, column, _ in problem.budgets]
    yield f"* {len(problem)} values, {len(uses)} uses; BUDGET counts units of {unit} bytes"
    yield from ("NAME remat FREE", "ROWS", " N COST", *(f" {row}" for row in rows))
    yield from (f" L u{k}" for k in range(len(uses)))
    yield from (f" L {label}" for label in limits)
    yield from ("COLUMNS", " MARKER 'MARKER' 'INTORG'")
    uses_of: list[list[int]] = [[] for _ in needed]
    operands_of: list[list[int]] = [[] for _ in needed]
    for k, (u, v) in enumerate(uses):
        uses_of[u].append(k)
        operands_of[v].append(k)
    costs: tuple[list[int], list[int]] = problem.save_cost.tolist(), problem.recompute_cost.tolist()
    for v, (save, recompute) in enumerate(zip(*costs, strict=True)):
        rows_of = [f"{row_of[v]} 1", *(f"u{k} -1" for k in uses_of[v])]
        used = (f"{label} {column[v]}" for label, column in zip(limits, sizes, strict=True))
        yield from (f" s{v} {entry}" for entry in (f"COST {save}", *rows_of, *used))
        yield from (f" r{v} {entry}" for entry in (f"COST {recompute}", *rows_of, *(f"u{k} 1" for k in operands_of[v])))
        if v in hosted:
            yield from (f" h{v} {entry}" for entry in (f"COST {hosted[v]}", *rows_of))
    yield from (" MARKER 'MARKER' 'INTEND'", "RHS")
    yield from (f" RHS {row_of[v]} 1" for v in range(len(needed)))
    yield from (f" RHS {label} {most // unit}" for label, (_, _, most) in zip(limits, problem.budgets, strict=True))
    yield "BOUNDS"
    for label, ban in (("s", problem.cannot_save), ("r", problem.cannot_recompute)):
        yield from (
            f" {'FX' if no else 'UP'} BND {label}{v} {0 if no else 1}" for v, no in enumerate(ban.mask.tolist())
        )
    yield from (f" UP BND h{v} 1" for v in hosted)
    yield "ENDATA"


def _hosted(problem: Problem) -> dict[int, int]:
    if problem.offload is None:
        return {}
    can = ~problem.offload.banned.mask & ~problem.cannot_save.mask
    return {v: int(problem.offload.cost[v]) for v in np.flatnonzero(can).tolist()}
