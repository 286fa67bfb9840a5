"""Floor 3: answers to a problem, and who gives them.

A `Choice` says for each value whether it is saved, recomputed or neither; a `Plan` says the same by name, so that it
can be kept in a file and run later. A `Solver` finds one and returns a `Solution`: the plan, the best bound it knows,
and the evidence for that bound. `network` turns a problem into a flow network whose minimum cut is an optimal choice;
`FlowSolver` is what all maximum-flow solvers share. `registry` finds solvers, cost models and estimators by name.

This floor imports `remat.problem` and `remat.facts`. It knows no algorithm: these are in the package `solvers`.
Begin with `choice`, then `solver`.
"""
