"""Floor 3: answers to a problem, and the solvers that give them.

A `Choice` says for each value whether it is saved, recomputed or neither. A `Plan` says the same by name, so that it
can be stored in a file and run later. A `Solver` finds a choice and returns a `Solution`: the plan, the best bound
that it knows, and the evidence for that bound. `network` turns a problem into a flow network whose minimum cut is an
optimal choice; `FlowSolver` is what all maximum-flow solvers share. `registry` finds plug-ins by name.

This floor imports `remat.problem` and `remat.facts`. It contains no algorithm: those are in the package `solvers`.
Begin with `choice`, then `solver`.
"""
