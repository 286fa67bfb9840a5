"""Defines answers to a problem, and the interface of the solvers that compute them.

A `Choice` holds for each value whether it is saved, recomputed or neither. A `Plan` holds these decisions by name, so
that it can be stored in a file and run later. A `Solver` finds a choice and returns a `Solution`: the plan, the best
known bound, and the evidence for that bound. `network` converts a problem to a flow network whose minimum cut is an
optimal choice; all maximum-flow solvers share `FlowSolver`. `registry` finds plug-ins by name.

This package imports `remat.problem` and `remat.facts`. It contains no algorithm: those are in the package `solvers`.
Begin reading in `choice`, then `solver`.
"""
