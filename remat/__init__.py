"""Which activations should this model save, and which should it recompute?

graph = remat.capture(model, x)                 # the joint graph of a training step: facts
problem = ByteTraffic().pose(graph)             # prices and bans: an optimization problem
solution = remat.solve(problem)                 # a plan, with a proof that none is better
step = remat.compile(model)                     # torch.compile with that plan
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from remat.bans import Bans
from remat.certify import certify, check_plan
from remat.costmodel import CostModel, Terms
from remat.errors import (
    CaptureError,
    CertificateRejected,
    Infeasible,
    InvalidGraph,
    InvalidPlan,
    InvalidProblem,
    LimitReached,
    NotInstalled,
    RematError,
    UnknownName,
    UnsupportedProblem,
    UnsupportedTorch,
)
from remat.graph import Graph, Region
from remat.graph_builder import GraphBuilder
from remat.plan import Plan
from remat.problem import Problem
from remat.registry import register, unregister
from remat.solution import Certificate, Reason, Solution, Termination
from remat.solve import DEFAULT_SOLVER, solve
from remat.solver import Feature, FlowSolver, Solver

if TYPE_CHECKING:
    from remat.compare import compare
    from remat.explain import explain
    from remat.pytorch import capture, compile
    from remat.show import show

# Names whose modules import torch, pandas or matplotlib: loaded when first used.
_LAZY = {
    "capture": "remat.pytorch",
    "compile": "remat.pytorch",
    "compare": "remat.compare",
    "explain": "remat.explain",
    "show": "remat.show",
}

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_SOLVER",
    "Bans",
    "CaptureError",
    "Certificate",
    "CertificateRejected",
    "CostModel",
    "Feature",
    "FlowSolver",
    "Graph",
    "GraphBuilder",
    "Infeasible",
    "InvalidGraph",
    "InvalidPlan",
    "InvalidProblem",
    "LimitReached",
    "NotInstalled",
    "Plan",
    "Problem",
    "Reason",
    "Region",
    "RematError",
    "Solution",
    "Solver",
    "Termination",
    "Terms",
    "UnknownName",
    "UnsupportedProblem",
    "UnsupportedTorch",
    "capture",
    "certify",
    "check_plan",
    "compare",
    "compile",
    "explain",
    "register",
    "show",
    "solve",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
