"""The formulation of Checkmate (Jain et al., MLSys 2020) as a solver of its own: recompute as often as it pays.

It is no `Solver`: a `remat.Problem` has neither an order nor lifetimes, and a `remat.Plan` cannot say that a
value is computed three times. So it has an `Instance` and schedules of its own, and a replayer that checks them. Every
plan of ours is one of its schedules (`Instance.schedule`), so what it finds is never above ours: the difference is what
our model, one recomputation in one fixed order, gives up. Begin reading in `instance`.
"""
