"""Shows people what a graph, a plan or a comparison holds: in words, in tables, in pictures, on a page.

`explain` says why a value is saved, `compare` makes the table that `comparison` holds, `show` draws a graph on the
`layout` of its nodes, and `report_page` makes a page of many results. A view may import every floor below it, and
decides nothing: what it shows, others have computed. What a frontier and a timeline look like is drawn beside them, in
`remat.improve` and `remat.predict`. pandas and matplotlib are imported inside the calls that need them. Begin reading
in `explain`.
"""
