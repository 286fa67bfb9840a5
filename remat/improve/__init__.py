"""Searches for plans that no single minimum cut finds, and for whole trade-offs between two costs.

A minimum cut prices each value by itself. But peak memory, and the kernels that a plan becomes, depend on many
decisions together. `peak_search` finds plans within a limit of peak memory, `cross_kernel` decides what the kernels of
one pass compute again, `offload_search` decides what waits on a host. `frontier` trades saved bytes for recompute time,
and `step_frontier` trades the peak for the time of the step.

This package imports `remat.predict`, `remat.proof` and the packages below them. Begin reading in `choose`, which finds
a plan for a graph under a cost model: the kind of budget decides which of these searches finds the plan.
"""
