"""Writes results of the experiments down for people: files of rows, Markdown pages, and where each row comes from.

`result_table` keeps the rows of an experiment, and goes on where it stopped. `markdown` is the one writer of all
pages in `experiments/results`, which `python -m experiments.pages` writes again from their data. `provenance` says of
each run where it was. All other packages of the experiments may import these modules; they import only each other and
`remat`. Begin reading in `result_table`.
"""
