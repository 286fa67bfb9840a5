"""Floor 4: nothing that a solver says is believed before it is checked.

`certify` checks a plan against the rules, and a flow against a network that it builds afresh: a flow that is as large
as the plan is expensive proves that no plan is cheaper. `solve` is the entry point to every solver, and returns only
what passed. `budget` decides whether any plan fits a budget. `hull` finds the lower convex hull of saved bytes and
cost, each edge with a flow as its proof.

This floor imports `remat.answer` and what is below it. Begin with `certify`.
"""
