"""Which activations should this model save, and which should it recompute?

graph = remat.capture(model, x)                 # the joint graph of a training step: facts
problem = ByteTraffic().pose(graph)             # prices and bans: an optimization problem
solution = remat.solve(problem)                 # a plan, with a proof that none is better
step = remat.compile(model)                     # torch.compile with that plan
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from remat.answer.choice import Choice
from remat.answer.network import SINK, SOURCE, Network, Reduction, Sides
from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import (
    DEFAULT_COST_MODEL,
    DEFAULT_ESTIMATOR,
    DEFAULT_SOLVER,
    estimator_names,
    find_estimator,
    register,
    unregister,
)
from remat.answer.solution import (
    Certificate,
    ClaimedBound,
    Enumeration,
    FlowCertificate,
    Reason,
    Solution,
    Termination,
)
from remat.answer.solver import Feature, FlowSolver, Solver
from remat.errors import (
    CaptureError,
    CertificateRejected,
    Infeasible,
    InvalidGraph,
    InvalidOption,
    InvalidPlan,
    InvalidProblem,
    LimitReached,
    NotInstalled,
    RematError,
    UnknownName,
    UnsupportedProblem,
    UnsupportedTorch,
)
from remat.facts.annotations import recompute_parameter_copies
from remat.facts.bans import Bans
from remat.facts.columns import BoolArray, IntArray
from remat.facts.corpus import Corpus
from remat.facts.graph import Graph, Region
from remat.facts.graph_builder import GraphBuilder
from remat.improve.choose import choose
from remat.improve.frontier import Frontier, frontier
from remat.improve.refine import Refined, refine
from remat.predict.memory import Simulator, Timeline
from remat.predict.memory import simulate as timeline
from remat.predict.traffic import predict_traffic
from remat.problem.costmodel import CostModel, Terms
from remat.problem.demands import unpriced
from remat.problem.estimator import Estimator
from remat.problem.feasibility import forced
from remat.problem.problem import Problem
from remat.problem.weights import Weights
from remat.proof.certify import certify, check_plan
from remat.proof.solve import solve
from remat.views.compare import compare
from remat.views.explain import explain
from remat.views.show import show

if TYPE_CHECKING:
    from remat.pytorch import capture, compile
    from remat.pytorch.eager.selective import selective_policy

# Names whose modules import torch: loaded when first used. Not for a name that is also the name of
# its module: importing the module, anywhere, would bind the module to that name.
_LAZY = {
    "capture": "remat.pytorch",
    "compile": "remat.pytorch",
    "selective_policy": "remat.pytorch.eager.selective",
}

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_COST_MODEL",
    "DEFAULT_ESTIMATOR",
    "DEFAULT_SOLVER",
    "SINK",
    "SOURCE",
    "Bans",
    "BoolArray",
    "CaptureError",
    "Certificate",
    "CertificateRejected",
    "Choice",
    "ClaimedBound",
    "Corpus",
    "CostModel",
    "Enumeration",
    "Estimator",
    "Feature",
    "FlowCertificate",
    "FlowSolver",
    "Frontier",
    "Graph",
    "GraphBuilder",
    "Infeasible",
    "IntArray",
    "InvalidGraph",
    "InvalidOption",
    "InvalidPlan",
    "InvalidProblem",
    "LimitReached",
    "Network",
    "NotInstalled",
    "Plan",
    "PlanFacts",
    "Problem",
    "Reason",
    "Reduction",
    "Refined",
    "Region",
    "RematError",
    "Sides",
    "Simulator",
    "Solution",
    "Solver",
    "Termination",
    "Terms",
    "Timeline",
    "UnknownName",
    "UnsupportedProblem",
    "UnsupportedTorch",
    "Weights",
    "capture",
    "certify",
    "check_plan",
    "choose",
    "compare",
    "compile",
    "estimator_names",
    "explain",
    "find_estimator",
    "forced",
    "frontier",
    "predict_traffic",
    "recompute_parameter_copies",
    "refine",
    "register",
    "selective_policy",
    "show",
    "solve",
    "timeline",
    "unpriced",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    if find_spec("torch") is None:
        raise NotInstalled(f"remat.{name} needs torch: pip install 'remat[torch]'")
    return getattr(import_module(_LAZY[name]), name)
