"""Searches for plans that are better than what a single cut can find, and for whole curves of trade-offs.

A cut prices each value by itself. What is searched for here depends on many decisions together: peak memory
(`peak_search`, from plans that `peak_plans` and `step_plans` collect), the kernels that a plan becomes (`refine`), what
the kernels of one pass compute again (`between_kernels`), and the whole curves of memory against time (`frontier`) and
against traffic (`traffic_frontier`, from plans that `plan_pool` collects). `choose` is the short way from a graph and a
cost model to a plan, whichever of these it takes.

This package imports the four floors and `remat.predict`. Begin with `choose`.
"""
