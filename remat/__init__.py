"""Answers: which activations should this model save, and which should it recompute?

graph = remat.capture(model, x)                 # the joint graph of a training step: facts
problem = ByteTraffic().pose(graph)             # prices and bans: an optimization problem
solution = remat.solve(problem)                 # a plan, with a proof that none is better
step = remat.compile(model)                     # torch.compile with that plan
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

# This import comes first: it handles Ctrl-C during the other imports.
import remat.startup  # noqa: F401  # pyright: ignore[reportUnusedImport]

# `import X as X` tells type checkers that the name is public here.
from remat import errors as errors
from remat import plugin as plugin
from remat.answer.choice import Choice as Choice
from remat.answer.plan import Plan as Plan
from remat.answer.solution import Solution as Solution
from remat.answer.solution import TerminationReason as TerminationReason
from remat.errors import CaptureError as CaptureError
from remat.errors import Infeasible as Infeasible
from remat.errors import InvalidOption as InvalidOption
from remat.errors import InvalidPlan as InvalidPlan
from remat.errors import LimitReached as LimitReached
from remat.errors import NotInstalled as NotInstalled
from remat.errors import RematError as RematError
from remat.errors import UnsupportedProblem as UnsupportedProblem
from remat.facts.annotations import recompute_parameter_copies as recompute_parameter_copies
from remat.facts.corpus import Corpus as Corpus
from remat.facts.graph import Graph as Graph
from remat.facts.graph_builder import GraphBuilder as GraphBuilder
from remat.improve.choose import choose as choose
from remat.improve.frontier import Frontier as Frontier
from remat.improve.frontier import frontier as frontier
from remat.improve.step_frontier import StepFrontier as StepFrontier
from remat.improve.step_frontier import step_frontier as step_frontier
from remat.predict.device_timeline import timeline as timeline
from remat.predict.memory import Simulator as Simulator
from remat.predict.memory import Timeline as Timeline
from remat.predict.offloading.offload_timeline import offload_timeline as offload_timeline
from remat.predict.traffic import predict_traffic as predict_traffic
from remat.problem.costmodel import CostModel as CostModel
from remat.problem.problem import Problem as Problem
from remat.proof.certify import certify as certify
from remat.proof.certify import check_plan as check_plan
from remat.proof.solve import solve as solve
from remat.views.compare import compare as compare
from remat.views.explain import explain as explain
from remat.views.show import show as show

if TYPE_CHECKING:
    __version__: str
    from remat.pytorch import SharedBudget as SharedBudget
    from remat.pytorch import capture as capture
    from remat.pytorch import compile as compile
    from remat.pytorch import last_report as last_report
    from remat.pytorch.ahead import forecast as forecast
    from remat.pytorch.ahead import largest_batch as largest_batch
    from remat.pytorch.ahead import plan_pipeline as plan_pipeline
    from remat.pytorch.eager.regions import choose_regions as choose_regions

# Names whose modules import torch: loaded when first used. Not for a name that is also the name of
# its module: importing the module, anywhere, would bind the module to that name.
_LAZY = {
    "SharedBudget": "remat.pytorch",
    "capture": "remat.pytorch",
    "choose_regions": "remat.pytorch.eager.regions",
    "compile": "remat.pytorch",
    "last_report": "remat.pytorch",
    "forecast": "remat.pytorch.ahead",
    "largest_batch": "remat.pytorch.ahead",
    "plan_pipeline": "remat.pytorch.ahead",
}

# Names of version 0.1 -> their names now. The old names will be removed in 0.4.
_MOVED = {
    **{
        name: f"remat.errors.{name}"
        for name in ("CertificateRejected", "InvalidGraph", "InvalidProblem", "UnknownName", "UnsupportedTorch")
    },
    **{
        name: f"remat.plugin.{name}"
        for name in (  # noqa: SIM905  # a list would take thirty lines
            "Bans BoolArray Certificate ClaimedBound DEFAULT_COST_MODEL DEFAULT_ESTIMATOR "
            "DEFAULT_SOLVER DeviceLimit Enumeration Estimator Feature FlowCertificate FlowSolver "
            "IntArray Network Offload PlanFacts Reduction Region SINK SOURCE Sides Solver Termination "
            "Terms cannot_offload estimator_names find_estimator register unregister"
        ).split()
    },
    "Reason": "remat.TerminationReason",
    "Weights": "remat.plugin.Multipliers",
    "forced": "remat.plugin.forced_values",
    "unpriced": "remat.plugin.base_problem",
}

# Names that are gone -> what to use instead.
_REFINE = ': remat.choose with MemoryBudget(limit, of="peak") finds a fast step within the peak of a plan'
_TRAFFIC = ": remat.step_frontier trades peaks against step times"
_GONE = {
    "selective_policy": ": remat.choose_regions chooses what eager PyTorch saves",
    **dict.fromkeys(("refine", "Refined"), _REFINE),
    **dict.fromkeys(("traffic_frontier", "TrafficFrontier"), _TRAFFIC),
}


def __dir__() -> list[str]:
    public = {name for name, thing in globals().items() if getattr(thing, "__module__", "").startswith("remat.")}
    return sorted(public | set(_LAZY) | {"__version__"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("remat")
    if name in _MOVED:
        warnings.warn(f"remat.{name} is {_MOVED[name]} now; 0.4 removes the old name", DeprecationWarning, stacklevel=2)
        return attrgetter(_MOVED[name].removeprefix("remat."))(import_module("remat"))
    if name not in _LAZY:
        raise AttributeError(f"module 'remat' has no attribute {name!r}{_GONE.get(name, '')}")
    if find_spec("torch") is None:
        from remat.words import pip_install

        raise NotInstalled(f"remat.{name} needs torch: {pip_install('torch')}")
    return getattr(import_module(_LAZY[name]), name)
