"""The GPT of `experiments.rivals.same_gpt` through lightning-thunder; run in thunder's environment.

Prints JSON: the bytes of what autograd keeps, parameters and inputs aside, and the operations of matrix products beyond
those of eager mode, which recomputes nothing.
"""

# Thunder has an environment of its own.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import sys

import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.models.zoo import gpt2


def main():
    """Measures thunder, and eager mode beside it."""
    for name in ("align_as", "align_to", "has_names", "refine_names", "rename", "rename_"):
        if not hasattr(torch.Tensor, name):  # gone from torch; thunder 0.2.6 lists these methods when it is imported
            gone = lambda tensor: tensor  # noqa: E731
            gone.__name__ = name
            setattr(torch.Tensor, name, gone)
    import thunder

    model, (tokens,) = gpt2(**json.loads(sys.argv[1]))
    rows = [{"case": "eager", **measured(model, model, tokens)}]
    rows.append({"case": "thunder.jit", **measured(thunder.jit(model), model, tokens)})
    least = rows[0]["flops"]
    for row in rows:
        row["extra_flops"] = row.pop("flops") - least
    print(json.dumps({"version": thunder.__version__, "products_flops": least, "rows": rows}))


def measured(step, model, tokens):
    """Runs the second step of a model: bytes that autograd keeps, each storage once, and operations of products."""
    step(tokens).backward()
    kept = {}
    owned = {each.untyped_storage().data_ptr() for each in (*model.parameters(), tokens)}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = (
                storage.nbytes(),
                tensor,
            )  # which holds the memory, so that no address comes twice
        return tensor

    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        loss = step(tokens)
        loss.backward()
    return {"saved_bytes": sum(size for size, _ in kept.values()), "flops": counter.get_total_flops()}


if __name__ == "__main__":
    main()
