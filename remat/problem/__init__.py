"""Floor 2: a question about a graph, as an optimization problem.

A `CostModel` holds opinions: what saving and recomputing each value costs (`Terms`), and what is forbidden.
`CostModel.pose` adds them to what the graph itself demands (`constraints`) and returns a `Problem`: prices, uses, bans
and perhaps a budget, over the values that the forward pass can compute. A problem needs no graph: `Problem.of` takes
plain lists. `feasibility` says whether any plan exists, `multipliers` weighs costs and bytes in one integer, and an
`Estimator` tells a cost model how long recomputing takes.

This floor imports `remat.facts`. Begin with `problem`: its first lines state the formulation.
"""
