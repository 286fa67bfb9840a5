"""The tables of the sources, one module each, with the published figure beside ours.

`python -m experiments.paper.<table>` runs on the CPU at a small size, and on CUDA at the published one. Rows are kept
as they finish, so a table may be measured in pieces: `--only`, `--budget-minutes`.
"""
