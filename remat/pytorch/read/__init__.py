"""Reads a model's joint graph just before torch partitions it, and extracts the facts of a `Graph`.

`capture` runs Dynamo and AOTAutograd up to the partitioner. `extract` reads the joint graph there: what operators do
(`operators`), which values share memory (`values`), how many operations each call takes (`flops`), what the forward
pass overwrites (`mutated_inputs`, which also splits the graph in two), the arguments of each call (`call_text`;
`sample_call` repeats a call), and the line of the model (`places`).

This package imports `remat.pytorch.seam`, and `remat` up to `remat.improve`. Begin in `capture`, then `extract`.
"""
