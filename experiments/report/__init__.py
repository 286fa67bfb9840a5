"""Writes results of the experiments down for people: Markdown pages, the report page, provenance.

`python -m experiments.report FILES -o report.html` makes the page of `remat report` with the plots of our own results:
`result_readers` says which files it knows, `charts` which plot a list of rows gets. `markdown` is the one writer of all
pages in `experiments/results`, which `python -m experiments.pages` writes again from their data. `provenance` says of
each result where it comes from, and `result_files` writes it. All other packages of the experiments may import these
modules; they import only each other and `remat`. Begin reading in `markdown`, then in `charts`.
"""
