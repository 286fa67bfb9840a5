"""Solves Checkmate's program with CP-SAT or with PuLP's CBC; what they say is replayed before it is believed."""

# OR-Tools and PuLP ship few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

from experiments.rivals.checkmate.instance import Instance, InvalidSchedule, replay
from experiments.rivals.checkmate.program import Program, Rules

Backend = Literal["cpsat", "pulp"]


@dataclass(frozen=True)
class Found:
    """What a solver has found.

    Attributes:
        cost: of what the schedule computes more than once, as replayed; None if there is none, or none was found in
            time.
        bound: no schedule of these stages costs less, says the solver; infinite if there is none.
        seconds: for writing and solving the program.
    """

    cost: int | None
    bound: float
    seconds: float

    @property
    def is_proven(self) -> bool:
        """Whether the bound is met; also if there is proven to be none."""
        return self.bound == (math.inf if self.cost is None else self.cost)


def least_cost(
    instance: Instance,
    budget_bytes: int,
    backend: Backend = "cpsat",
    *,
    rules: Rules = "checkmate",
    time_limit_s: float | None = None,
) -> Found:
    """Finds the schedule that recomputes least within a budget of the peak.

    Args:
        instance: what to schedule.
        budget_bytes: of the peak.
        backend: who solves the program.
        rules: how often, and where, a value may be computed.
        time_limit_s: wall time in seconds, of the solver alone.

    Raises:
        InvalidSchedule: what the solver calls a solution is none, when replayed.
    """
    began = time.perf_counter()
    program = Program(instance, budget_bytes, rules)
    values, bound = _BACKENDS[backend](program, time_limit_s)
    seconds = time.perf_counter() - began
    if values is None:
        return Found(None, bound, seconds)
    replayed = replay(instance, program.schedule(values))
    if replayed.peak_bytes > budget_bytes:
        raise InvalidSchedule(f"{backend}: a peak of {replayed.peak_bytes} bytes, for a budget of {budget_bytes}")
    return Found(replayed.cost, bound, seconds)


def _cpsat(program: Program, time_limit_s: float | None) -> tuple[list[int] | None, float]:
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in range(program.length)]
    for terms, bound in program.rows:
        columns = [variables[i] for i in terms]
        model.add(cp_model.LinearExpr.weighted_sum(columns, [*terms.values()]) <= bound)
    model.minimize(
        cp_model.LinearExpr.weighted_sum([variables[i] for i in program.cost], [*program.cost.values()])
        + program.constant
    )
    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = 8
    solver.parameters.linearization_level = 2
    solver.parameters.presolve_inclusion_work_limit = 0  # as in `solvers.cpsat`: it adds in 32 bits
    if time_limit_s is not None:
        solver.parameters.max_time_in_seconds = time_limit_s
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, math.inf
    bound = max(math.ceil(solver.best_objective_bound - 1e-3), 0)  # it is a double; prices are whole
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound
    return [*solver.response_proto.solution], bound


def _pulp(program: Program, time_limit_s: float | None) -> tuple[list[int] | None, float]:
    import pulp

    problem: Any = pulp.LpProblem("checkmate", pulp.LpMinimize)
    variables = [pulp.LpVariable(f"x{i}", cat=pulp.LpBinary) for i in range(program.length)]
    problem += pulp.LpAffineExpression({variables[i]: price for i, price in program.cost.items()}), "cost"
    for terms, bound in program.rows:
        problem += pulp.LpAffineExpression({variables[i]: c for i, c in terms.items()}) <= bound
    problem.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=time_limit_s))
    # CBC's presolve may prove that nothing is feasible; PuLP then says so in `status` alone.
    if pulp.LpStatusInfeasible == problem.status or pulp.LpSolutionInfeasible == problem.sol_status:
        return None, math.inf
    if problem.sol_status == pulp.LpSolutionNoSolutionFound:
        return None, 0.0
    values = [round(variable.value() or 0) for variable in variables]
    proven = problem.sol_status == pulp.LpSolutionOptimal
    cost = sum(price * values[i] for i, price in program.cost.items()) + program.constant
    return values, float(cost) if proven else 0.0


_BACKENDS = {"cpsat": _cpsat, "pulp": _pulp}
