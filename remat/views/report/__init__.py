"""Puts files of results on one HTML page: interactive plots, tables and provenance, without a network.

    Page.of(["gpt2.json.gz", "solvers.csv"]).save("report.html")

It draws frontiers and solver comparisons; other results with their provenance become tables. Further kinds of
files, and further plots, are a `Reader` each: `Page.of(files, readers=[...])`. Begin reading in `document`; `readers`
says what a file is, `section` what a page is made of, and `render` makes the HTML.
"""

from remat.views.report.document import Page
from remat.views.report.readers import Options, Reader

__all__ = ["Options", "Page", "Reader"]
