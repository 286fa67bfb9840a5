"""Compares greedy, integer programs and uniform budgets with proven bounds: `python -m experiments.bench.greedy`.

The question is that of torchtitan's pull request 4636: is greedy as good as an integer program (ILP)? A row is a
training step and a budget: what is saved with every layer checkpointed, and a share of what PyTorch's default plan
saves more.

`independent` has what greedy and ILP are both given (`experiments.rivals.greedy`): the same candidates, each at the
time of its own operator, run alone, as if what it reads were there. Its answers, beside a bound of all answers, are:

- `greedy`: torchtitan's greedy, where each layer gets the same share of the budget;
- `by ratio`: the same budgets, spent by PyTorch's `greedy_knapsack`, the dearest per byte first;
- `ilp`: the same budgets, spent by an exact integer program: the best choice that is the same in equal layers;
- `ilp in turn`: the first layers keep everything, and at most one layer a part: as good to torchtitan's outer program;
- `greedy knapsack`, `dp knapsack`: PyTorch's functions, with one budget for all layers. The second one rounds sizes, so
  that it may exceed the budget;
- `exact`: the best that was found with one budget for all layers.

`whole` has what the plans really recompute: what a value needs is recomputed with it, unless it is saved, and what can
fuse joins a kernel of the backward pass. There are other plans, too, which know these costs: `candidates` may save what
the plans above may save, or less; `uniform` may save anything, the same in each layer; `best` may save anything. And
`budget` is the best one of PyTorch's `activation_memory_budget`, `choose` is the plan of `remat.choose`, which looks
for the fastest step. The bound is that of `best`. Times of both kinds are those of the roofline of an H100.

`step` is by which part the modelled step is longer than with PyTorch's default plan. Graphs are captured, and kernels
and times are predicted, for an H100. No device was used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch._functorch._activation_checkpointing import knapsack as pytorch

import remat
from costmodels import MemoryBudget
from experiments.corpus.catalogue import recipes
from experiments.models.recipe import capture
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from experiments.rivals.greedy import Candidates, equal_layers, exact, greedy, knapsack
from remat import Choice, Graph, Problem, Solution
from remat.facts.columns import BoolArray, IntArray
from remat.improve.byte_budgets import default_saved
from remat.improve.one_liners import every_layer_checkpointed, layer_paths
from remat.improve.step_predictor import StepPredictor
from remat.improve.torch_knapsack import torch_budget_plans
from remat.predict.time.known_devices import find_device

CASES = (
    "hf-llama3-8b-32k",
    "hf-llama3-8b-lora",
    "hf-mixtral-8x7b",
    "hf-vit-base",
    "gpt2-medium-h100",
    "hf-bert-large-sdpa",
    "hf-t5-base",
    "hf-llama3-8b-h100",
)
SHARES = (0.8, 0.6, 0.4, 0.2, 0.1)
EXAMPLE = "hf-llama3-8b-32k", 0.4
"""The row that has the candidates of one layer."""


def compared(name: str) -> Iterator[dict[str, Any]]:
    """Captures a training step for an H100, and yields its rows."""
    yield from compare(capture(replace(recipes()[name], device="h100")), name)


def compare(graph: Graph, name: str, shares: Sequence[float] = SHARES) -> Iterator[dict[str, Any]]:
    """Yields a row for each budget."""
    device = find_device("h100")
    predictor = StepPredictor.of(graph, device, "h100")
    model = MemoryBudget(1.0, estimator="roofline:device=h100")
    free = replace(model.pose(graph), budget_bytes=None)
    default, stays = default_saved(graph), every_layer_checkpointed(graph)
    assert default is not None
    assert stays is not None
    least, most = (_choice(graph, free, saved).saved_bytes(free) for saved in (stays, graph.owners(default)))
    default_ns = predictor.ns(graph.owners(default))
    candidates = Candidates.of(graph, free, stays, device)
    for share in shares:
        room = int(share * (most - least))
        problem = replace(free, budget_bytes=least + room)
        answers = _knapsack_answers(candidates, room, share)
        pooled = knapsack(candidates.times_ns, candidates.sizes_bytes, room)
        answers["exact"] = _saved(pooled, optimum := remat.solve(pooled))
        plans = {way: candidates.saved(keeps, stays) for way, keeps in answers.items()}
        found = _aware(graph, problem, candidates, stays)
        best, begin = found["best"], time.process_time()
        chosen = remat.choose(graph, replace(model, budget=least + room))
        choose_s = time.process_time() - begin
        plans |= {way: _saved(graph, one) for way, one in (found | {"choose": chosen}).items() if one.plan is not None}
        if (budget := _pytorch_budget(graph, problem)) is not None:
            plans["budget"] = budget
        choices = {way: _choice(graph, free, saved) for way, saved in plans.items()}
        assert all(choice.keeps_bans(problem) for choice in choices.values())
        yield {
            "share": share,
            "budget_bytes": least + room,
            "default_ns": round(default_ns),
            "candidates": len(candidates.values),
            "independent": {way: candidates.cost(keeps) for way, keeps in answers.items()} | {"bound": optimum.bound},
            "whole": {way: choice.cost(free) for way, choice in choices.items()} | {"bound": best.bound},
            "step": {way: round(predictor.ns(saved) / default_ns - 1, 6) for way, saved in plans.items()},
            "over": {way: one.saved_bytes(free) - least - room for way, one in choices.items()},
            "seconds": {"best": round(best.solve_time_s, 2), "choose": round(choose_s, 1)},
            **({"layer": _layer(graph, free, candidates, stays, answers)} if (name, share) == EXAMPLE else {}),
        }


def _knapsack_answers(candidates: Candidates, room: int, share: float) -> dict[str, BoolArray]:
    times, sizes, uniform = candidates.times_ns, candidates.sizes_bytes, candidates.uniform(room)
    return {
        "greedy": candidates.spend(greedy, uniform),
        "by ratio": candidates.spend(by_ratio, uniform),
        "ilp": candidates.spend(exact, uniform),
        "ilp in turn": candidates.spend(exact, candidates.one_after_another(room)),
        "greedy knapsack": by_ratio(times, sizes, room),
        "dp knapsack": _mask(pytorch.dp_knapsack((sizes * share / room).tolist(), times.tolist(), share), len(sizes)),
    }


def by_ratio(times: IntArray, sizes: IntArray, budget_bytes: int) -> BoolArray:
    """Keeps what PyTorch's `greedy_knapsack` picks, the dearest per byte first."""
    return _mask(pytorch.greedy_knapsack(sizes.tolist(), times.tolist(), budget_bytes), len(sizes))


def _mask(result: tuple[float, list[int], list[int]], count: int) -> BoolArray:
    mask = np.zeros(count, np.bool_)
    mask[result[1]] = True
    return mask


def _aware(graph: Graph, problem: Problem, candidates: Candidates, stays: BoolArray) -> dict[str, Solution]:
    """Solves with all that a recomputation needs: with the candidates alone, with equal layers, and with all values."""
    every = candidates.saved(np.ones(len(candidates.values), np.bool_), stays)[graph.plannable]
    return {
        "candidates": remat.solve(replace(problem, cannot_save=problem.cannot_save.also(~every, "no candidate"))),
        "uniform": remat.solve(
            replace(problem, tied=equal_layers(graph, problem)), "cpsat", time_limit_s=20, throw=False
        ),
        "best": remat.solve(problem),
    }


def _pytorch_budget(graph: Graph, problem: Problem) -> BoolArray | None:
    """Returns (n,) what the best plan of PyTorch's budgets within ours saves; None if none fits and is legal."""
    plans = [graph.owners(saved) for _, saved in torch_budget_plans(graph, [i / 50 for i in range(1, 50)])]
    choices = [(saved, _choice(graph, problem, saved)) for saved in plans]
    fits = [(saved, choice) for saved, choice in choices if choice.keeps_budget(problem) and choice.keeps_bans(problem)]
    return min(fits, key=lambda one: one[1].cost(problem))[0] if fits else None


def _choice(graph: Graph, problem: Problem, saved: BoolArray) -> Choice:
    return Choice.from_saved(problem, saved[graph.plannable])


def _saved(owner: Problem | Graph, solution: Solution) -> BoolArray:
    assert solution.plan is not None
    return Choice.from_plan(owner, solution.plan).saved


def _layer(
    graph: Graph, problem: Problem, candidates: Candidates, stays: BoolArray, answers: dict[str, BoolArray]
) -> list[list[Any]]:
    """Lists the candidates of the second layer: operator, module, bytes, time, the time if it alone goes, who keeps it.

    The time if it alone goes has everything that is recomputed for it while all other candidates are saved.
    """
    every = np.ones(len(candidates.values), np.bool_)
    base = _choice(graph, problem, candidates.saved(every, stays)).cost(problem)
    found: list[list[Any]] = []
    prefixes = layer_paths(graph.modules)
    for i in np.flatnonzero(candidates.layers == 1).tolist():
        others = every.copy()
        others[i] = False
        alone = _choice(graph, problem, candidates.saved(others, stays)).cost(problem) - base
        maker = candidates.makers[i]
        who = [bool(answers[way][i]) for way in ("greedy", "by ratio", "ilp")]
        path = graph.modules[maker].removeprefix(prefixes[maker] + ".")
        sizes = int(candidates.sizes_bytes[i]), int(candidates.times_ns[i])
        found.append([graph.ops[maker], path, *sizes, alone, *who])
    return found


def loss(row: dict[str, Any], way: str, costs: str) -> float:
    """Returns what an answer costs beyond the bound, as a part of the step with PyTorch's default plan."""
    return (row[costs][way] - row[costs]["bound"]) / row["default_ns"]


def gap(row: dict[str, Any], way: str, costs: str) -> float:
    """Returns by which part an answer costs more than the bound."""
    return row[costs][way] / row[costs]["bound"] - 1


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says of each way how far it is from the bound, in the median and at worst."""
    told: list[str] = []
    for costs in ("independent", "whole"):
        for way in [way for way in rows[0][costs] if way != "bound"]:
            own = [row for row in rows if way in row[costs]]
            over, lost = ([of(row, way, costs) for row in own] for of in (gap, loss))
            worst = own[lost.index(max(lost))]
            steps = [row["step"][way] for row in own]
            told.append(
                f"{costs}, {way}: {statistics.median(over):+.1%} beside the bound in the median; of a step "
                f"{statistics.median(lost):.2%} in the median, {max(lost):.1%} at worst ({worst['case']} at "
                f"{worst['share']}); within 0.1% of a step at {sum(each <= 0.001 for each in lost)} of {len(own)}"
                + (f"; modelled step {statistics.median(steps):+.1%} in the median" if costs == "whole" else "")
            )
    return [bullets(told)]


_COLUMNS = {
    "independent": ("greedy", "by ratio", "ilp", "ilp in turn", "greedy knapsack", "bound"),
    "whole": ("greedy", "ilp", "exact", "candidates", "uniform", "budget", "best", "bound"),
    "step": ("greedy", "ilp", "exact", "candidates", "uniform", "budget", "best", "choose"),
}

TABLE = ResultTable(
    "experiments.bench.greedy",
    "Greedy, integer programs and uniform budgets beside proven bounds",
    cases=lambda: CASES,
    measure=compared,
    summary=summary,
    columns=["case", "share", "budget_bytes", *(f"{kind}, {way}" for kind in _COLUMNS for way in _COLUMNS[kind])],
)

if __name__ == "__main__":
    TABLE.command()
