"""Runs whole steps that follow tags, ours and others': `python -m experiments.bench.memory_policies`.

Each model's step is traced by `make_fx`, and tagged by each policy. It runs on the CPU, operator by operator
(`experiments.models.tagged_steps`). The peak is that of the live tensors, without the inputs. The step is modelled for
an H100, with a kernel for each operator. Ours has the peak of another policy as its limit. The table is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import fx

from costmodels import MemoryBudget
from experiments.models.hugging_face import NextToken
from experiments.models.recipe import Sample
from experiments.models.tagged_steps import Step, recomputing, run, traced
from experiments.models.workloads import ConvNet, Mixer
from experiments.models.zoo import gpt2
from remat import Graph, LimitReached, Plan, timeline
from remat.answer.choice import Choice
from remat.answer.plan_facts import no_recompute_plan
from remat.facts.columns import BoolArray
from remat.improve.byte_budgets import default_plan
from remat.predict.kernels.unfused import unfused_kernels
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts
from remat.predict.time.modelled_step import modelled_time
from remat.pytorch import MemoryPolicy


def llama() -> Sample:
    """Makes a Llama of four layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    return NextToken(LlamaForCausalLM(config)), (torch.randint(4096, (2, 512)),)


MODELS: dict[str, Callable[[], Sample]] = {
    "GPT": lambda: gpt2(layers=4, width=512, heads=8, vocabulary=4096, context=512, batch=4, fused=True, dropout=0.0),
    "Llama": llama,
    "EvoNorm": lambda: (ConvNet(4, 64, 10), (torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))),
    "MLP-Mixer": lambda: (Mixer(6, 196, 384), (torch.randn(16, 196, 384), torch.randint(10, (16,)))),
}


def saving(graph: Graph, stays: BoolArray) -> Plan:
    """Saves these values and what may not be recomputed, and recomputes the rest."""
    saved = graph.with_elements(graph.cannot_recompute.mask | graph.input | stays)
    return Choice.from_saved(graph, saved & ~graph.cannot_save.mask).plan(graph)


def policies(module: fx.GraphModule) -> Iterator[tuple[str, Plan]]:
    """Yields the policies that we compare with, as plans."""
    graph = MemoryPolicy("step-time").graph(module)
    yield "nothing recomputed", no_recompute_plan(graph)
    free = MemoryPolicy("step-time", across_layers=True, compiled=True).graph(module)
    if (least := default_plan(free)) is not None:
        yield "min_cut", least
    yield "default", saving(graph, graph.compute_bound & graph.in_forward)
    yield "full", saving(graph, np.zeros(len(graph), np.bool_))


def step_ms(graph: Graph, plan: Plan) -> float:
    """Models the step for an H100, operator by operator."""
    order = Order.of(StorageFacts.of(graph), Choice.from_plan(graph, plan).saved)
    return modelled_time(graph, unfused_kernels(graph, order), "h100").ns / 1e6


def tagged_peak(step: Step, plan: Plan) -> int:
    """Tags a step, runs it, checks its results, and returns its peak in bytes."""
    tagged = run(recomputing(MemoryPolicy(plan, across_layers=True)(step.module)), step.inputs)
    assert all(map(torch.equal, tagged.results, run(step.module, step.inputs).results))
    return tagged.peak_bytes


def row(step: Step, graph: Graph, plan: Plan) -> tuple[int, str]:
    """Returns the peak, and what a row says about a plan."""
    peak, expected = tagged_peak(step, plan), timeline(graph, plan).peak_bytes
    exactly = "" if peak == expected else f" (predicted {expected / 1e6:.1f})"
    return peak, f"{peak / 1e6:.1f}{exactly} | {step_ms(graph, plan):.3f}"


def main() -> None:
    print("| model | policy | peak, MB | step, ms | ours: peak, MB | step, ms | search, s |")
    print("|---|---|---|---|---|---|---|")
    for name, make in MODELS.items():
        torch.manual_seed(0)
        step = traced(*make())
        for other, plan in policies(step.module):
            loose = MemoryPolicy("step-time", across_layers=True).graph(step.module)
            peak, text = row(step, loose, plan)
            budget = MemoryBudget(peak, of="peak", estimator="roofline:device=h100")
            policy, start = MemoryPolicy(budget), time.perf_counter()
            try:
                ours = policy.plan(step.module)
            except LimitReached as error:
                print(f"| {name} | {other} | {text} | {str(error)[:150]} |", flush=True)
                continue
            took_s = time.perf_counter() - start
            print(f"| {name} | {other} | {text} | {row(step, loose, ours)[1]} | {took_s:.0f} |", flush=True)


if __name__ == "__main__":
    main()
