"""Checks answers independently, because a solver may be wrong.

`certify` checks a plan against the rules, and a flow against a network that it builds itself: a flow whose value is the
cost of the plan proves that no plan is cheaper. `solve` is the entry point to every solver, and returns only answers
that passed. `budget` decides whether any plan fits a budget. `hull` computes the lower convex hull of saved bytes and
cost, with a flow as the proof of each edge.

This package imports `remat.answer` and the packages below it. Begin reading in `certify`.
"""
