"""Compares plans with PyTorch's on the same graphs, and times how fast they are chosen.

`default_plan` compares what happens without a setting, `budgets`, `budget_kernels` and `budget_steps` what happens
within PyTorch's memory budgets, and `gpu_plans` the same for a GPU. `budget_gap` says how near the default solver
comes to the optimum, `refined_plans` and `duplicates` what two ways to move fewer bytes gain, `offloading` and
`offloaded_peaks` what the host's memory does. `speed` times the choice. Begin reading in `default_plan`.
"""
