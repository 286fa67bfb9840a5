"""Contains the solvers of `remat`: one algorithm per file. Each imports the package behind it only when it solves."""

from solvers.cpsat import CPSAT
from solvers.exhaustive import Exhaustive
from solvers.knapsack import DynamicKnapsack, GreedyKnapsack
from solvers.lagrangian import Lagrangian
from solvers.networkx_cut import NetworkX
from solvers.ortools_flow import ORTools
from solvers.portfolio import Portfolio
from solvers.pulp_ilp import PuLP
from solvers.scipy_flow import SciPy

__all__ = [
    "CPSAT",
    "DynamicKnapsack",
    "Exhaustive",
    "GreedyKnapsack",
    "Lagrangian",
    "NetworkX",
    "ORTools",
    "Portfolio",
    "PuLP",
    "SciPy",
]
