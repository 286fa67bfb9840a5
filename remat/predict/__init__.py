"""Predicts the effects of a plan: the kernels of both passes, live memory, and recompute time.

`kernels` predicts the kernels that TorchInductor generates, and `traffic` sums their reads and writes. `memory`
simulates the live bytes at each step, `buffers` those of compiled code. `time` has the built-in estimators of recompute
time. Each needs only the graph, not torch, except the estimator `profile`, which measures through `remat.pytorch`.

This package imports facts, problem, answer and proof. `kernels` takes the order of both passes from `memory`; `time`
imports only the class `Kernel` of both. Begin reading in `memory`, whose docstring defines what runs in which order.
"""
