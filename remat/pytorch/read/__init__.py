"""Reads a model's joint graph just before torch partitions it, and from that the facts of a `Graph`.

`capture` runs Dynamo and AOTAutograd up to the partitioner; `extract` reads the joint graph there: what operators do
(`operators`), which values share memory (`sharing`), what the forward pass overwrites (`mutated_inputs`, which also
splits the graph in two), how each operator was called (`call_text`, from which `sample_call` makes a call again), and
where in the model (`places`).

This room imports `remat.facts` and `remat.pytorch.seam`. Begin with `capture`, then `extract`.
"""
