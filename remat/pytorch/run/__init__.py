"""Makes a compiled training step that follows a plan.

`partitioner` is what torch calls with each joint graph: it solves, or takes a plan that was made before (`replay`),
checks it, and splits the graph. `compile` is `torch.compile` with that partitioner. `shared_budget` gives the graphs
of a run plans within one budget, by what `calls` has seen to be alive at the same time; `budgeted` compiles again
where they change; `plan_request` and `sizes` say what a graph is planned for. `ranks` has all processes of a
distributed run take one plan; `cache_key` tells torch's caches what a plan depends on; and `eager_warning` says if a
model runs without one.

This room imports the floors of `remat` up to `remat.improve`, and `remat.pytorch.read` and `.seam`. Begin with
`partitioner`.
"""
