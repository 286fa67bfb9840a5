"""Compares plans with PyTorch's on the same graphs, and times how fast they are chosen.

`users_table` compares predicted steps at the peaks of PyTorch's one-liners, `least_overhead` says how much less is
possible, and `measured_steps` measures such steps. `measured_copies` is about the host's memory, `largest_batches`,
`measured_batches` and `acquisition` about the paper's tables, and `rivals` and `simple_searches` answer the benchmark.
`greedy` compares greedy policies with integer programs, and `speed` times the choice. Begin reading in `users_table`.
"""
