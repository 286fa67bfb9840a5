"""Defines the optimization problem of a graph: what to save and what to recompute.

A `CostModel` contributes `Terms`: the prices of saving and recomputing each value, and bans. `CostModel.pose` adds them
to the constraints of the graph itself (`constraints`) and returns a `Problem`: prices, uses, bans and possibly a
budget, over the values that the forward pass can compute. `Problem.of` makes one from plain lists, without a graph.
`feasibility` decides whether any plan exists, `multipliers` combines cost and bytes in one integer, and an `Estimator`
gives a cost model the time of recomputing.

This package imports `remat.facts`. Begin reading in `problem`: its first lines state the formulation.
"""
