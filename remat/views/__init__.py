"""Presents graphs, plans and comparisons: in words, in tables, in pictures, on a page.

`explain` tells why a value is saved, `compare` makes a `comparison` table, `show` draws a graph with the `layout` of
its nodes, and `report_page` makes a page of many results. A view may import every package below it, and computes no
results of its own. Frontiers and timelines have their pictures in `remat.improve` and `remat.predict`. pandas and
matplotlib are imported inside the calls that need them. Begin reading in `explain`.
"""
