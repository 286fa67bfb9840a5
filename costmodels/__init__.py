"""Cost models for `remat`: each turns a graph into a problem."""

from costmodels.byte_traffic import ByteTraffic
from costmodels.memory_budget import MemoryBudget
from costmodels.recompute_time import RecomputeTime

__all__ = ["ByteTraffic", "MemoryBudget", "RecomputeTime"]
