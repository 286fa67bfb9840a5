"""Floor 4: checks of answers, since a solver may be wrong.

`certify` checks a plan against the rules, and a flow against a network that it builds afresh: a flow whose value is
the cost of the plan proves that no plan is cheaper. `solve` is the entry point to every solver, and returns only
answers that passed. `budget` decides whether any plan fits a budget. `hull` finds the lower convex hull of saved bytes
and cost, each edge with a flow as its proof.

This floor imports `remat.answer` and the floors below. Begin with `certify`.
"""
