"""Measures how fast choices, predictions and compilations are, beside PyTorch's on the same graphs.

`python -m experiments.bench.speed` times the choice of a plan, `speed_compile` and `speed_total` what it costs within
`torch.compile`, `predictor_speed` the prediction of kernels, and `budgets` compares plans and times under a budget of
memory. The modules that end in `_case` run one measurement in a process of its own. Each command writes JSON, and some
write a page, to `experiments/results`. Begin reading in `speed`.
"""
