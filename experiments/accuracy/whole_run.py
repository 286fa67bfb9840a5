"""Counts what a small Llama holds between the passes over a run, beside its budget: all graphs and sizes together.

`python -m experiments.accuracy.whole_run`. Each case trains for six steps, the fourth at half the batch, with an
evaluation after every other one. Counted is what autograd keeps for real (`remat.pytorch.measure.saved`), the most of
all steps. Beside it stands the same with `remat.pytorch.Partitioner` set by hand, where each graph has the budget to
itself. The graphs run operator by operator, so that nothing is compiled to kernels: what is saved is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import remat
from costmodels import MemoryBudget
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.pytorch import Partitioner
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.seam.compilations import graphs_compiled
from remat.pytorch.seam.inductor_lowering import run_uncompiled

BATCHES = (4, 4, 4, 2, 4, 4)
CASES = ("one graph", "autocast", "graph breaks")


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


def saved_bytes_of_steps(step: Callable[..., Any], model: nn.Module, *, autocast: bool) -> list[int]:
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


def measure(case: str) -> Iterator[Row]:
    """Runs one case, with a half and with a quarter of what AOTAutograd's default partition of one graph saves."""
    autocast = case == "autocast"
    for share in (2, 4):
        torch.compiler.reset()
        default = torch.compile(llama(), backend="aot_eager")
        budget = max(saved_bytes_of_steps(default, default, autocast=autocast)) // share  # type: ignore[arg-type]
        row: dict[str, Any] = {"budget_bytes": budget}
        for name, compiled in (
            ("held", partial(remat.compile, cost_model=MemoryBudget(budget), codegen=False)),
            ("by_itself", partial(by_itself, budget=budget)),
        ):
            torch.compiler.reset()
            model, before = llama(breaks=case == "graph breaks"), graphs_compiled()
            first, *later = saved_bytes_of_steps(compiled(model), model, autocast=autocast)
            row |= {f"{name}_first_bytes": first, f"{name}_bytes": max(later)}
            row[f"{name}_graphs"] = graphs_compiled() - before
        yield row


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts the budgets that are kept."""
    kept = {name: sum(row[f"{name}_bytes"] <= row["budget_bytes"] for row in rows) for name in ("held", "by_itself")}
    told = [
        f"one budget for the run is kept in {kept['held']} of {len(rows)} cases from the second step on, a "
        f"budget for each graph in {kept['by_itself']}"
    ]
    return [bullets(told)]


TABLE = ResultTable(
    "experiments.accuracy.whole_run",
    "A budget for the whole run",
    cases=lambda: CASES,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
