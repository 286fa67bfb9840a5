"""What a small Llama holds between the passes over a run, beside its budget: all graphs and sizes together.

Each case trains for six steps, the fourth at half the batch, with an evaluation after every other one. Counted is what
autograd keeps for real (`remat.pytorch.measure.saved`), the most of all steps. Beside it stands the same with
`remat.pytorch.Partitioner` set by hand, where each graph has the budget to itself. The graphs run operator by operator,
so that nothing is compiled to kernels: what is saved is the same. Run with

    python -m experiments.accuracy.whole_run -o experiments/results/whole_run.json
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import remat
from costmodels import MemoryBudget
from experiments.report.provenance import provenance
from experiments.report.result_files import write_results
from remat.pytorch import Partitioner
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.read.interpreter import run_uncompiled
from remat.pytorch.seam.compilations import graphs_compiled

BATCHES = (4, 4, 4, 2, 4, 4)
SHARES = (2, 4)
"""Budgets: a half and a quarter of what AOTAutograd's default partition of one graph saves."""


def llama(*, breaks: bool = False) -> nn.Module:
    """Builds a Llama of three layers; with a graph break between the second and the third."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, use_cache=False))
    if breaks:
        unseen: Any = torch._dynamo.disable(lambda *_: None)
        model.model.layers[1].register_forward_hook(unseen)
    return model


def held(step: Callable[..., Any], model: nn.Module, *, autocast: bool) -> list[int]:
    """Trains, and lists the bytes that each step keeps."""
    kept: list[int] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for i, batch in enumerate(BATCHES):
        ids = torch.randint(0, 256, (batch, 64))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            result, saved = saved_activations(step, model, input_ids=ids, labels=ids)
        kept.append(saved.bytes)
        result.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 2:
            with torch.no_grad():
                step(input_ids=ids, labels=ids)
    return kept


def by_itself(model: nn.Module, budget: int) -> Callable[..., Any]:
    """Compiles a model so that each graph has the budget to itself."""
    partitioner = Partitioner.of(MemoryBudget(budget))
    uncompiled = partial(run_uncompiled, partitioner=partitioner, options={"fallback_random": True})
    compiled: Any = torch.compile(model, backend=uncompiled)
    return compiled


def row(case: str, share: int, *, breaks: bool = False, autocast: bool = False) -> dict[str, Any]:
    """Runs one case."""
    torch.compiler.reset()
    default = torch.compile(llama(), backend="aot_eager")
    budget = max(held(default, default, autocast=autocast)) // share  # type: ignore[arg-type]
    found: dict[str, Any] = {"case": case, "budget_bytes": budget}
    for name, compiled in (
        ("held_bytes", partial(remat.compile, cost_model=MemoryBudget(budget), codegen=False)),
        ("by_itself_bytes", partial(by_itself, budget=budget)),
    ):
        torch.compiler.reset()
        model, before = llama(breaks=breaks), graphs_compiled()
        found[name] = held(compiled(model), model, autocast=autocast)
        found[name.replace("bytes", "graphs")] = graphs_compiled() - before
    return found


def main() -> None:
    """Runs all cases, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    warnings.simplefilter("ignore")
    cases = {"one graph": {}, "autocast": {"autocast": True}, "graph breaks": {"breaks": True}}
    rows: list[dict[str, Any]] = []
    for case, settings in cases.items():
        for share in SHARES:
            rows.append(row(case, share, **settings))
            print(rows[-1], flush=True)
    write_results(output, {"provenance": provenance(gpu=False), "rows": rows})


if __name__ == "__main__":
    main()
