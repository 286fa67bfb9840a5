"""Makes every model that the experiments take, from a chain of ten operators to the sizes that were published.

`cases` are small, each for one thing that a partitioner must get right; `zoo` and `workloads` are kinds of models that
people train, at sizes to choose; `published` and `hugging_face` have published architectures and widths;
`synthetic` makes joint graphs of any size without a model. `held_out` has models that no rule was written for.
`recipe` captures a model of published size from tensors without contents, and `training` runs two steps of a case.
There are no commands here. These modules import each other and `remat`; any other package may import them. Begin
reading in `zoo`.
"""
