"""Contains the cost models of `remat`; each converts a graph to a problem."""

from costmodels.byte_traffic import ByteTraffic
from costmodels.fusion_pairs import FusionPairs
from costmodels.memory_budget import MemoryBudget
from costmodels.multi_read import MultiRead
from costmodels.recompute_time import RecomputeTime
from costmodels.step_time import StepTime

__all__ = ["ByteTraffic", "FusionPairs", "MemoryBudget", "MultiRead", "RecomputeTime", "StepTime"]
