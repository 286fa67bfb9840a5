"""A problem as an integer program in free MPS, which CBC, HiGHS, SCIP and others read.

Columns `s<v>` and `r<v>` are 1 where value v is saved, or recomputed. It is the program of `remat.problem.problem`,
with `b_v = s<v> + r<v>`:

    minimize    COST:  sum save_cost[v] * s<v> + recompute_cost[v] * r<v>
    subject to  n<v>:  s<v> + r<v> = 1               where v is needed; elsewhere a<v>: s<v> + r<v> <= 1
                u<k>:  r<v> - s<u> - r<u> <= 0       for use k, u -> v
                BUDGET: sum save_bytes[v] * s<v> <= budget_bytes
    bounds      s<v> = 0 where v cannot be saved, r<v> = 0 where it cannot be recomputed

Prices are written in full. The budget is written in units of the largest number of bytes that divides every size, and
rounded down. Solvers of integer programs compute in doubles, and keep a row to a part in a million or so: whether a
plan keeps its budget to the byte is for a check in integers to say. The word FREE tells CBC that names and numbers are
not at fixed columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from remat.problem.problem import Problem


def write_mps(problem: Problem, path: Path) -> None:
    """Writes a problem as free MPS; the same one always gives the same bytes.

    Raises:
        UnsupportedProblem: values can be offloaded.
    """
    problem.require_two_choices("the MPS file")
    with path.open("w", encoding="ascii", newline="\n") as file:
        file.writelines(f"{line}\n" for line in _lines(problem))


def _lines(problem: Problem) -> Iterator[str]:
    needed: list[bool] = problem.needed.tolist()
    rows = [("E n" if must else "L a") + str(v) for v, must in enumerate(needed)]
    row_of = [row[2:] for row in rows]
    uses: list[tuple[int, int]] = list(zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True))
    unit = max(int(np.gcd.reduce(problem.save_bytes)), 1) if len(problem) else 1
    budget = None if problem.budget_bytes is None else problem.budget_bytes // unit
    yield f"* {len(problem)} values, {len(uses)} uses; BUDGET counts units of {unit} bytes"
    yield from ("NAME remat FREE", "ROWS", " N COST", *(f" {row}" for row in rows))
    yield from (f" L u{k}" for k in range(len(uses)))
    if budget is not None:
        yield " L BUDGET"
    yield from ("COLUMNS", " MARKER 'MARKER' 'INTORG'")
    made: list[list[int]] = [[] for _ in needed]
    read: list[list[int]] = [[] for _ in needed]
    for k, (u, v) in enumerate(uses):
        made[u].append(k)
        read[v].append(k)
    sizes: list[int] = (problem.save_bytes // unit).tolist()
    costs: tuple[list[int], list[int]] = problem.save_cost.tolist(), problem.recompute_cost.tolist()
    for v, (save, recompute) in enumerate(zip(*costs, strict=True)):
        used = [f"u{k} -1" for k in made[v]]
        size = [f"BUDGET {sizes[v]}"] if budget is not None else []
        yield from (f" s{v} {entry}" for entry in (f"COST {save}", f"{row_of[v]} 1", *used, *size))
        yield from (
            f" r{v} {entry}" for entry in (f"COST {recompute}", f"{row_of[v]} 1", *used, *(f"u{k} 1" for k in read[v]))
        )
    yield from (" MARKER 'MARKER' 'INTEND'", "RHS")
    yield from (f" RHS {row_of[v]} 1" for v in range(len(needed)))
    if budget is not None:
        yield f" RHS BUDGET {budget}"
    yield "BOUNDS"
    for label, ban in (("s", problem.cannot_save), ("r", problem.cannot_recompute)):
        yield from (
            f" {'FX' if no else 'UP'} BND {label}{v} {0 if no else 1}" for v, no in enumerate(ban.mask.tolist())
        )
    yield "ENDATA"
