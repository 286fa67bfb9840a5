"""Measures the tables of the sources again, one module each, with the published figure beside ours.

`python -m experiments.paper.<table>` runs on the CPU at a small size, and on CUDA at the published one: `acquisition`,
`autocast`, `budget_curve`, `cosines`, `dropout_mask`, `encoder`, `evonorm`, `gelu`, `largest_batch`, `solver_time`,
`throughput`. Rows are kept as they finish, so a table may be measured in pieces: `--only`, `--budget-minutes`. Results
lie in `experiments/results/paper`. Begin reading in `table`, which says what a table is; `measure_table` measures one,
`row_file` keeps its rows, `table_page` writes its page; `methods` and `ten_models` are those of the paper's section 4.
"""
