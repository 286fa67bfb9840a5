"""Which activations should this model save, and which should it recompute?

graph = remat.capture(model, x)                 # the joint graph of a training step: facts
problem = ByteTraffic().pose(graph)             # prices and bans: an optimization problem
solution = remat.solve(problem)                 # a plan, with a proof that none is better
step = remat.compile(model)                     # torch.compile with that plan
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

# It answers Ctrl-C while the others are imported.
import remat.startup  # noqa: F401  # pyright: ignore[reportUnusedImport]

# `import X as X` makes a name public: so a type checker knows that it is meant to be imported from here.
from remat.answer.choice import Choice as Choice
from remat.answer.network import SINK as SINK
from remat.answer.network import SOURCE as SOURCE
from remat.answer.network import Network as Network
from remat.answer.network import Reduction as Reduction
from remat.answer.network import Sides as Sides
from remat.answer.plan import Plan as Plan
from remat.answer.plan_facts import PlanFacts as PlanFacts
from remat.answer.registry import DEFAULT_COST_MODEL as DEFAULT_COST_MODEL
from remat.answer.registry import DEFAULT_ESTIMATOR as DEFAULT_ESTIMATOR
from remat.answer.registry import DEFAULT_SOLVER as DEFAULT_SOLVER
from remat.answer.registry import estimator_names as estimator_names
from remat.answer.registry import find_estimator as find_estimator
from remat.answer.registry import register as register
from remat.answer.registry import unregister as unregister
from remat.answer.solution import Certificate as Certificate
from remat.answer.solution import ClaimedBound as ClaimedBound
from remat.answer.solution import Enumeration as Enumeration
from remat.answer.solution import FlowCertificate as FlowCertificate
from remat.answer.solution import Reason as Reason
from remat.answer.solution import Solution as Solution
from remat.answer.solution import Termination as Termination
from remat.answer.solver import Feature as Feature
from remat.answer.solver import FlowSolver as FlowSolver
from remat.answer.solver import Solver as Solver
from remat.errors import CaptureError as CaptureError
from remat.errors import CertificateRejected as CertificateRejected
from remat.errors import Infeasible as Infeasible
from remat.errors import InvalidGraph as InvalidGraph
from remat.errors import InvalidOption as InvalidOption
from remat.errors import InvalidPlan as InvalidPlan
from remat.errors import InvalidProblem as InvalidProblem
from remat.errors import LimitReached as LimitReached
from remat.errors import NotInstalled as NotInstalled
from remat.errors import RematError as RematError
from remat.errors import UnknownName as UnknownName
from remat.errors import UnsupportedProblem as UnsupportedProblem
from remat.errors import UnsupportedTorch as UnsupportedTorch
from remat.facts.annotations import recompute_parameter_copies as recompute_parameter_copies
from remat.facts.bans import Bans as Bans
from remat.facts.columns import BoolArray as BoolArray
from remat.facts.columns import IntArray as IntArray
from remat.facts.corpus import Corpus as Corpus
from remat.facts.graph import Graph as Graph
from remat.facts.graph import Region as Region
from remat.facts.graph_builder import GraphBuilder as GraphBuilder
from remat.improve.choose import choose as choose
from remat.improve.frontier import Frontier as Frontier
from remat.improve.frontier import frontier as frontier
from remat.improve.refine import Refined as Refined
from remat.improve.refine import refine as refine
from remat.improve.traffic_frontier import TrafficFrontier as TrafficFrontier
from remat.improve.traffic_frontier import traffic_frontier as traffic_frontier
from remat.predict.device_timeline import timeline as timeline
from remat.predict.memory import Simulator as Simulator
from remat.predict.memory import Timeline as Timeline
from remat.predict.offloading.timeline import offload_timeline as offload_timeline
from remat.predict.traffic import predict_traffic as predict_traffic
from remat.problem.costmodel import CostModel as CostModel
from remat.problem.costmodel import DeviceLimit as DeviceLimit
from remat.problem.costmodel import Terms as Terms
from remat.problem.demands import unpriced as unpriced
from remat.problem.estimator import Estimator as Estimator
from remat.problem.feasibility import forced as forced
from remat.problem.offload import Offload as Offload
from remat.problem.offload import cannot_offload as cannot_offload
from remat.problem.problem import Problem as Problem
from remat.problem.weights import Weights as Weights
from remat.proof.certify import certify as certify
from remat.proof.certify import check_plan as check_plan
from remat.proof.solve import solve as solve
from remat.views.compare import compare as compare
from remat.views.explain import explain as explain
from remat.views.show import show as show

if TYPE_CHECKING:
    from remat.pytorch import SharedBudget as SharedBudget
    from remat.pytorch import capture as capture
    from remat.pytorch import compile as compile
    from remat.pytorch import last_report as last_report
    from remat.pytorch.ahead import forecast as forecast
    from remat.pytorch.ahead import largest_batch as largest_batch
    from remat.pytorch.eager.selective import selective_policy as selective_policy

# Names whose modules import torch: loaded when first used. Not for a name that is also the name of
# its module: importing the module, anywhere, would bind the module to that name.
_LAZY = {
    "SharedBudget": "remat.pytorch",
    "capture": "remat.pytorch",
    "compile": "remat.pytorch",
    "last_report": "remat.pytorch",
    "forecast": "remat.pytorch.ahead",
    "largest_batch": "remat.pytorch.ahead",
    "selective_policy": "remat.pytorch.eager.selective",
}

_NOT_OURS = {"Any", "ModuleType", "TYPE_CHECKING", "annotations", "find_spec", "import_module"}

__version__ = "0.1.0"


def __dir__() -> list[str]:
    listed = {name for name, thing in globals().items() if not isinstance(thing, ModuleType)} - _NOT_OURS
    return sorted({name for name in listed if name[0] != "_" or name[:2] == "__"} | set(_LAZY))


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    if find_spec("torch") is None:
        raise NotInstalled(f"remat.{name} needs torch: pip install 'remat[torch]'")
    return getattr(import_module(_LAZY[name]), name)
