"""Makes the README of the corpus from its index, so that the two agree."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report.markdown import bullets, page, section, table
from remat.facts.corpus import Entry
from remat.words import human_bytes

_INTRODUCTION = """\
`python -m experiments.corpus` makes these files, the index and this page; do not edit them by hand.

Each file is the joint forward+backward graph of a training step, as TorchInductor would partition it: every value
with its operator, shape, bytes and flops, and every use (the format is documented in `remat/facts/graph_file.py`; plain
JSON, gzipped, and no PyTorch is needed to read it). With the files, solvers can be compared on the same instances,
without PyTorch and without a GPU. We know of no other public collection of joint graphs with operators, bytes, flops,
and marks of what fuses and what is random. Nearest come Checkmate's training graphs of seven convolutional nets, with a
cost and a size for each layer (in the repository of MOCCASIN, GPL-3), and forward graphs as PyTorch code (GraphNet,
MIT).

```sh
remat corpus list
remat corpus get resnet50 -o resnet50.json.gz
remat solve resnet50.json.gz
```

```python
from remat.facts.corpus import Corpus

graph = Corpus.open().graph("resnet50")
```

## How they were made

By `remat.capture` on fake tensors, which have sizes but no contents: so the sizes are those at which people train, and
the weights do not matter. All were captured in training mode, with static shapes, for the CPU; those whose names end in
`-a100` or `-h100` for that GPU, on a machine without one. `remat corpus show NAME` says with which versions, when, and
by which command. Graphs for a GPU differ in details, above all where attention is one operator. Losses are part of the
graph; optimizers are not. Batch sizes are ours.

- `small-*`, `gpt*`, `lstm-*`: models of this repository (`workloads.py` and `zoo.py` in `experiments/models`); `gpt*`
  has an output layer of its own, where the published models reuse the embedding. A path that a graph names is one of
  the commit at which it was captured.
- Convolutional nets and acquisition functions: written out in `published.py`, there, at the published widths.
- U-Net and transformer of diffusion models: written out in `diffusion.py`, there, with as many parameters as published.
- Autocast, adapters (LoRA) and shards: set up by `setups.py`. A *sharded* parameter is gathered from eight ranks where
  it is used, and its gradient is reduced and scattered, by functional collectives of a group that is not there: fully
  sharded training that gathers each parameter by itself.
- `gpt2-medium-step` and `deepnet-500` were traced by `make_fx` over forward pass, loss and `torch.autograd.grad`, and
  read by `remat.pytorch.read_step`: the passes of TorchInductor over joint graphs have not seen them.
- `hf-*`: the configurations of the `transformers` package (Apache-2.0; `pip install '.[corpus]'`), without weights.

*Saved* is what the forward pass hands to the backward pass if no operator runs twice, about what autograd keeps;
parameters and inputs do not count."""

_END = """\
## Licence, and what to cite

The files are under the licence of this repository, BSD-3-Clause. They contain no weights and no data, only which
operators a model consists of. Please cite this repository with the commit that a file names, and the publication of the
model:"""


def markdown(entries: Sequence[Entry]) -> str:
    """Makes the page with a table for each family of instances."""
    size = human_bytes(sum(entry.file_bytes for entry in entries))
    families = dict.fromkeys(entry.family for entry in entries)
    cited = dict.fromkeys(entry.cite for entry in entries if entry.cite)
    models = {cite: ", ".join(f"`{entry.name}`" for entry in entries if entry.cite == cite) for cite in cited}
    return page(
        "Joint graphs of real models",
        _INTRODUCTION,
        f"## {len(entries)} instances, {size}",
        *(section(name, _family([entry for entry in entries if entry.family == name]), level=3) for name in families),
        _END,
        bullets(f"{cite}: {names}" for cite, names in models.items()),
    )


def _family(entries: Sequence[Entry]) -> str:
    """Makes a table of the instances of one family."""
    rows = [
        (
            f"`{entry.name}`",
            entry.values,
            entry.uses,
            human_bytes(entry.no_recompute_saved_bytes),
            entry.model,
            f"{entry.sizes}, {entry.dtype}",
        )
        for entry in entries
    ]
    return table(("name", "values", "uses", "saved", "model", "sizes"), rows)
