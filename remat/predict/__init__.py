"""Predicts what becomes of a plan: the kernels of both passes, the memory that is alive, the time to recompute.

`kernels` predicts which kernels TorchInductor makes, and `traffic` adds up what they read and write. `memory`
simulates which bytes are alive at which step. `time` holds the built-in estimators of recompute time. Each works on
the graph alone, without torch; only the estimator `profile` measures, through `remat.pytorch`, inside its call.

This floor imports the floors below it: facts, problem, answer and proof. `kernels` takes the order of both passes from
`memory`, and `time` imports neither of the two. What other floors usually need is exported by the packages `memory`,
`kernels` and `time`. Begin reading in `memory`, whose docstring says what runs in which order.
"""
