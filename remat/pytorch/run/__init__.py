"""Makes a compiled training step that follows a plan.

Torch calls `partitioner` with each joint graph. It finds a plan, or takes one that was made before (`replay`), checks
the plan, and splits the graph in two. `compile` is `torch.compile` with that partitioner. `plan_request` and `sizes`
describe for which sizes and which budget a graph is planned.

If several graphs share a budget, `calls` tells it of each graph and of each call, `live_calls` counts which of their
calls are alive at the same time, `shared_budget` makes plans for all of them together, and `budget_backend` compiles a
model again when its plans change. `peak_check` checks the peak of a plan by the code that Inductor writes. `ranks`
makes all processes of a distributed run use one plan, `cache_key` tells torch's caches on what a plan depends,
`cached_plans` stores plans in these caches, and `eager_warning` warns if a model runs without a plan. `report` prints
what was planned.

This package imports the packages of `remat` up to `remat.improve`, and `remat.pytorch.read` and `.seam`. Begin reading
in `partitioner`.
"""
