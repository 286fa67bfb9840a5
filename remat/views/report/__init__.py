"""A report of results: one HTML file with interactive plots, tables and provenance, that needs no network.

Page.of(["experiments/results/traffic.json", "gpt2.json.gz"]).save("report.html")
"""

from remat.views.report.document import Entry, Page

__all__ = ["Entry", "Page"]
