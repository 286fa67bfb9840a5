"""Contains what all CP-SAT programs share: settings that make it exact, and sums that propagate well."""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from remat.improve.progress import is_over
from remat.plugin import IntArray

_LOOK_S = 0.05
"""The interval at which a search checks whether it must end."""


def new_backend(workers: int) -> Any:
    from ortools.sat.python import cp_model

    backend: Any = cp_model.CpSolver()
    parameters = backend.parameters
    parameters.num_workers = workers
    # All rows are in the relaxation: a transformer of 300 values then takes 0.03 to 0.45 s, like with eight workers.
    parameters.linearization_level = 2
    # The gap is computed in doubles, in which different costs past 2**53 may have a gap of 0.
    parameters.absolute_gap_limit = parameters.relative_gap_limit = 0
    # This presolve rule adds coefficients in 32 bits, and called a plan optimal that was not, where the sum
    # passes 2**31 (OR-Tools 9.15, google/or-tools#5293): two gigabytes of activations are enough.
    parameters.presolve_inclusion_work_limit = 0
    return backend


def run_search(backend: Any, program: Any) -> int:
    """Runs the search and returns the status; it ends early if `is_over` says so, and at Ctrl-C.

    Python runs signal handlers only in the main thread, and only after a call into C++ has returned. So the search has
    a separate thread. OR-Tools must not handle Ctrl-C itself: it would silently end only this search.
    """
    backend.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(backend.solve, program)
        try:
            while not search.done() and not is_over():
                wait([search], _LOOK_S)
        finally:
            while not search.done():  # a search that has not begun yet ignores the request to stop
                backend.stop_search()
                wait([search], _LOOK_S)
    return search.result()


def sum_by_weight(program: Any, literals: list[Any], weights: IntArray) -> Any:
    """Returns the weighted sum of literals, with one variable for the number of true literals of each weight."""
    from ortools.sat.python import cp_model

    terms: list[Any] = []
    distinct = np.unique(weights[weights > 0])
    for weight in distinct.tolist():
        alike = [literals[i] for i in np.flatnonzero(weights == weight).tolist()]
        if len(alike) > 1:
            count = program.new_int_var(0, len(alike), "")
            program.add(cp_model.LinearExpr.sum(alike) == count)
            alike = [count]
        terms += alike
    return cp_model.LinearExpr.weighted_sum(terms, distinct.tolist())
