"""Tests plug-ins: one function each decides whether a solver, a cost model or an estimator meets its contract.

    from remat.testing import check_solver

    def test_my_solver_conforms():
        check_solver(MySolver)

The strategies `dags`, `problems` and `graphs` draw small inputs that are difficult for solvers: zeros, ties, diamonds,
disconnected parts, bans, prices and sizes past 2**33. They discard no draw and shrink to two values.

This package needs `hypothesis`, and no other part of the library imports it. It imports nothing above `remat.proof`.
Import all names from here. Begin reading in `solver_check`.
"""

from remat.testing.cost_model_check import check_cost_model
from remat.testing.estimator_check import check_estimator
from remat.testing.solver_check import check_solver
from remat.testing.strategies import dags, graphs, problems

__all__ = ["check_cost_model", "check_estimator", "check_solver", "dags", "graphs", "problems"]
