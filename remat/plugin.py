"""Exports what authors of solvers, cost models and estimators import; `remat` itself exports what users need.

`remat.testing` checks plug-ins, and CONTRIBUTING.md shows an example of each kind.
"""

from __future__ import annotations

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
from remat.answer.solution import Solution as Solution
from remat.answer.solution import Termination as Termination
from remat.answer.solution import TerminationReason as TerminationReason
from remat.answer.solver import FlowSolver as FlowSolver
from remat.answer.solver import Solver as Solver
from remat.errors import InvalidOption as InvalidOption
from remat.errors import InvalidPlan as InvalidPlan
from remat.errors import InvalidProblem as InvalidProblem
from remat.errors import NotInstalled as NotInstalled
from remat.errors import UnsupportedProblem as UnsupportedProblem
from remat.facts.bans import Bans as Bans
from remat.facts.columns import BoolArray as BoolArray
from remat.facts.columns import IntArray as IntArray
from remat.facts.graph import Graph as Graph
from remat.facts.graph import Region as Region
from remat.facts.graph_builder import GraphBuilder as GraphBuilder
from remat.problem.budget_row import BudgetRow as BudgetRow
from remat.problem.constraints import base_problem as base_problem
from remat.problem.costmodel import CostModel as CostModel
from remat.problem.costmodel import DeviceLimit as DeviceLimit
from remat.problem.costmodel import Terms as Terms
from remat.problem.estimator import Estimator as Estimator
from remat.problem.feasibility import forced_values as forced_values
from remat.problem.features import Feature as Feature
from remat.problem.multipliers import Multipliers as Multipliers
from remat.problem.offload import Offload as Offload
from remat.problem.offload import cannot_offload as cannot_offload
from remat.problem.problem import Problem as Problem
