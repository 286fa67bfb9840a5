"""For the tests of solvers, cost models and estimators, yours included. Needs `hypothesis`."""

from remat.testing.checks import check_cost_model, check_estimator, check_solver
from remat.testing.strategies import dags, graphs, problems

__all__ = ["check_cost_model", "check_estimator", "check_solver", "dags", "graphs", "problems"]
