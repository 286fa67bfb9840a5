"""Compares memory and traffic of our plans with PyTorch's for GPUs: `python -m experiments.bench.gpu_plans`.

For stored graphs, rows have the bytes that PyTorch's partitioner saves at each memory budget from 0.1 to 1.0, and the
bytes that its kernels move, by TorchInductor's Triton schedule for an A100, without a device. Beside them is the plan
of `remat.traffic_frontier` that saves no more, by the same schedule. Rows without a `budget` have the fewest saved
bytes of a plan that moves no more bytes than PyTorch's default, 1% more, or 5% more.

Below a budget of 1, PyTorch draws random numbers twice where there is dropout, once in each pass, and they differ
(pytorch#190758). No legal plan does that. Such a plan is counted with these random numbers saved, a few bytes more, and
marked. The schedule takes seconds a plan, and so hours for the large graphs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import remat
from costmodels import ByteTraffic
from experiments.bench.budgets import illegal
from experiments.models.save_everything import plan_of
from experiments.models.workloads import ZOO_INSTANCES
from experiments.report.charts import chart
from experiments.report.markdown import bullets, section, table
from experiments.report.result_table import ResultTable
from remat import Choice, Corpus, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.improve.for_device import for_device
from remat.improve.refine import SavedBytes
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import TENTHS, legal_plans, torchs_plans_of

PUBLISHED = ("vgg16", "vgg19", "unet", "resnet18", "lstm-16", "gpt2-small-fused", "hf-gpt2-sdpa", "evonorm-resnet50")
PUBLISHED += ("hf-vit-base", "gpt2-small")
BUDGETS = TENTHS[1:]
EXTRA = (0.0, 0.01, 0.05)
DEVICE = "a100"
EFFORT, SECONDS = 30, 8.0
"""Plans that the local search predicts at each budget; and its time for the fewest saved bytes."""


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Compares the plans of one graph: a row for each of PyTorch's budgets, and one for each limit on traffic."""
    yield from compared(for_device(Corpus.open().graph(name), DEVICE), BUDGETS, EFFORT, SECONDS)


def compared(graph: Graph, budgets: Sequence[float], effort: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Compares the plans of a graph for the GPU; the last of the budgets is 1."""
    schedule = Scheduled(graph, device=DEVICE)
    theirs = torchs_plans_of(graph, budgets, device=DEVICE)
    legal = legal_plans(graph, theirs)
    default, aggressive = legal[1.0], plan_of(graph, ByteTraffic(mode="aggressive"))
    sizes = {budget: PlanFacts.of(graph, plan).saved_bytes for budget, plan in legal.items()}
    curve = remat.traffic_frontier(
        graph,
        sorted(set(sizes.values())),
        starts=[default, aggressive, *legal.values()],
        oracle="inductor",
        device=DEVICE,
        effort=effort,
        tries=1,
    )

    def facts(plan: Plan) -> dict[str, int]:
        kernels = schedule.kernels(plan)
        return {
            "saved_bytes": PlanFacts.of(graph, plan).saved_bytes,
            "traffic_bytes": sum(kernel.bytes for kernel in kernels),
            "kernels": len(kernels),
            "recomputed_flops": int(graph.flops[Choice.from_plan(graph, plan).recomputed].sum()),
        }

    for budget, plan in legal.items():
        ours = facts(curve.at(sizes[budget]).plan)
        yield {"budget": budget, "illegal": illegal(graph, theirs[budget]), "pytorch": facts(plan), "ours": ours}
    most, saved = facts(default), facts(default)
    for extra in EXTRA:
        known = curve.within(int(most["traffic_bytes"] * (1 + extra))).plan
        starts = [known, *(point.plan for point in curve.points)]
        refined = remat.refine(
            graph, default, SavedBytes(extra), "inductor", starts=starts, time_limit_s=seconds, device=DEVICE
        )
        # A plan that keeps a tighter limit keeps this one, too.
        saved = min(saved, facts(refined.plan), key=lambda found: found["saved_bytes"])
        yield {"extra_traffic": extra, "pytorch": most, "ours": saved}


def fewer(row: dict[str, Any], fact: str = "traffic_bytes") -> float:
    """Returns by how much fewer bytes ours moves, or saves, than PyTorch's plan, as a fraction."""
    return 1 - row["ours"][fact] / row["pytorch"][fact] if row["pytorch"][fact] else 0.0


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts on how many models and budgets each claim holds, and sums up each model."""
    compared = [row for row in rows if "budget" in row]
    below = [row for row in compared if row["budget"] < 1]
    gains, best = [fewer(row) for row in below], max(below, key=fewer)
    worse = sum(
        row["ours"][fact] > row["pytorch"][fact] for row in compared for fact in ("saved_bytes", "traffic_bytes")
    )
    again = [row["ours"]["recomputed_flops"] / flops for row in below if (flops := row["pytorch"]["recomputed_flops"])]
    default = [fewer(row) for row in compared if row["budget"] == 1]
    names = dict.fromkeys(row["case"] for row in rows)
    lines: list[list[object]] = []
    for name in names:
        own = [fewer(row) for row in below if row["case"] == name]
        less = {row["extra_traffic"]: row for row in rows if row["case"] == name and "extra_traffic" in row}
        shares = [statistics.median(own), min(own), max(own), *(fewer(less[e], "saved_bytes") for e in EXTRA)]
        lines.append([name, *(f"{share:.1%}" for share in shares)])
    headings = ["model", "fewer bytes moved: median", "least", "most"]
    told = [
        f"{len(names)} models, {len(below)} of PyTorch's budgets from 0.1 to 0.9",
        f"ours moves or saves more at {worse}",
        f"ours moves fewer bytes at {sum(gain > 0 for gain in gains)}: median "
        f"{statistics.median(gains):.1%}, most {max(gains):.1%} ({best['case']} at {best['budget']})",
        f"at PyTorch's default: median {statistics.median(default):.1%}, most {max(default):.1%}",
        f"PyTorch's plan is not legal at {sum(bool(row['illegal']) for row in compared)}",
        f"operations that ours computes again, of PyTorch's: median {statistics.median(again):.2f}, most "
        f"{max(again):.0f} times; more than PyTorch's at {sum(ratio > 1 for ratio in again)}",
    ]
    return [
        bullets(told),
        section("Each model", table([*headings, *(f"fewer saved, {e:.0%} more traffic" for e in EXTRA)], lines)),
    ]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the models' gains at each of PyTorch's budgets: the middle half as a box, the others as lines."""
    gains: dict[float, list[float]] = {}
    for row in rows:
        if "budget" in row:
            gains.setdefault(row["budget"], []).append(100 * fewer(row))
    with chart(path) as axes:
        axes.boxplot(list(gains.values()), tick_labels=[f"{budget:g}" for budget in gains], whis=(0, 100))
        axes.set(xlabel="PyTorch's memory budget", ylabel="fewer bytes moved than by PyTorch's plan, %")


TABLE = ResultTable(
    "experiments.bench.gpu_plans",
    "Saved memory against traffic, beside PyTorch's budgets, for a GPU",
    cases=lambda: (*ZOO_INSTANCES, *PUBLISHED),
    measure=measure,
    summary=summary,
    draw=draw,
    columns=(
        *("case", "budget", "extra_traffic", "pytorch, saved_bytes", "pytorch, traffic_bytes"),
        *("ours, saved_bytes", "ours, traffic_bytes", "illegal"),
    ),
)

if __name__ == "__main__":
    TABLE.command()
