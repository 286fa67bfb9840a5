"""Writes results of the experiments down for people: Markdown pages, and where each result comes from.

`markdown` is the one writer of all
pages in `experiments/results`, which `python -m experiments.pages` writes again from their data. `provenance` says of
each result where it comes from, and `result_files` writes it. All other packages of the experiments may import these
modules; they import only each other and `remat`. Begin reading in `markdown`.
"""
