"""Makes the page of the rivals: each with what is fair about the comparison, and what is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.report.markdown import bullets, cited, page, section, table
from experiments.rivals.same_gpt import SIZES

_GPT = ", ".join(f"{name} {size}" for name, size in SIZES.items())

_FAIR: Mapping[str, tuple[str, ...]] = {
    "price": (
        "Fair: one graph, the same prices, one memory model (each value has a storage of its own, nothing is fused). "
        "Each of our plans is one of Checkmate's schedules, and our model is the same program with more rows. Every "
        "schedule is replayed by a simulator that knows nothing of the program; the bounds are what CP-SAT claims.",
        "Not fair: groups are coarser than operators; who needs a part takes the whole. Fusion, which our own peaks "
        "know, is left out. And nobody runs Checkmate's schedules here: a backward pass that computes values of its "
        "own twice is more than PyTorch's partitioner can hand over.",
    ),
    "pytorch": (
        "Fair: the same joint graph, and products counted by the same formulas.",
        "Not fair: PyTorch looks for the fewest bytes by its default, and for the fewest flops of all operators within "
        "a budget; here matrix products alone count. `budgets.md` has six models by other prices, and "
        "`budget_kernels.md` what becomes of kernels.",
    ),
    "jax": (
        "Fair: the same sizes, float32, attention written out. Without recomputation, JAX's compiled program has as "
        "many operations of products as our joint graph. What is saved is what `saved_residuals` lists, parameters and "
        "inputs aside.",
        "Not fair: a policy is a rule, and no optimizer; nobody asked JAX for the least work within these bytes. Some "
        "element-wise operators differ (layer norm, loss). On a CPU, XLA merges what is recomputed with what was "
        "computed before, where it can: such a compiled program has fewer products than JAX traced, and holds more "
        "than JAX lists. Ours is a plan here, not a compiled program.",
    ),
    "thunder": (
        "Fair: the same module and tokens; the storages that autograd keeps, parameters and inputs aside; products as "
        "they run.",
        "Not fair: on a CPU no fusion executor runs, and with it no rematerialization between fusions; thunder is made "
        "for GPUs. Methods of tensors that torch no longer has are stubbed, so that it can be imported.",
    ),
    "moccasin": (
        "Fair: graphs, sizes, prices and budgets (shares of the peak without recomputation) are those of its authors' "
        "README, read from a checkout; its memory model is that of our replayer.",
        "Not fair: MOCCASIN computes a node at most twice, and takes the topological order that NetworkX finds, which "
        "may be another one. Our model is stated where the file marks the backward pass. The paper's figures for each "
        "graph are not beside ours: the repository has none, and all that could be had of the paper is its claim, up "
        "to an order of magnitude faster than Checkmate's program.",
    ),
}


def markdown(document: dict[str, Any]) -> str:
    """Makes the page of what was measured."""
    rivals = document["rivals"]
    titles = {
        "price": ("What one recomputation in one order gives up: Checkmate's formulation", _price),
        "pytorch": (f"PyTorch's partitioner, on one GPT ({_GPT})", _same_gpt),
        "jax": ("JAX's policies of `jax.checkpoint`, on the same GPT", _same_gpt),
        "thunder": ("lightning-thunder, on the same GPT", _same_gpt),
        "moccasin": ("MOCCASIN's instances", _moccasin),
    }
    blocks: list[str] = []
    for name, (title, shown) in titles.items():
        rival = rivals.get(name, {"skipped": "it was not run"})
        told = [f"Not measured: {rival['skipped']}."] if "skipped" in rival else shown(rival)
        origin = cited(rival["provenance"], "experiments.rivals") if "provenance" in rival else ""
        blocks.append(section(title, origin, bullets(_FAIR[name]), *told))
    return page("Rivals, side by side", *blocks)


def summary(graphs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts pairs of a graph and a budget; "more" has the shares by which ours costs more, where both are proven."""
    rows = [(f"{graph['graph']} at {row['share']}", row) for graph in graphs for row in graph["budgets"]]
    reached = [(name, row) for name, row in rows if row["ours"]["cost"] is not None]
    both = {name: row for name, row in reached if row["ours"]["proven"] and row["checkmate"]["proven"]}
    above = {name: row["ours"]["cost"] / row["checkmate"]["cost"] - 1 for name, row in both.items()}
    return {
        "pairs": len(rows),
        "reached_by_checkmate": sum(row["checkmate"]["cost"] is not None for _, row in rows),
        "reached": len(reached),
        "both_proven": len(both),
        "more": {name: more for name, more in sorted(above.items(), key=lambda item: -item[1]) if more > 0},
        "found_by_search": sum(row["search"] is not None for _, row in reached),
        "best_by_search": sum(row["search"] == row["ours"]["cost"] for _, row in reached),
    }


def _price(rival: dict[str, Any]) -> list[str]:
    graphs: list[dict[str, Any]] = rival["rows"]
    found = summary(graphs)
    more = ", ".join(f"{share:.0%} ({name})" for name, share in found["more"].items())
    said = (
        "Small graphs of the corpus, their values joined to at most "
        f"{max(graph['groups'] for graph in graphs)} groups; prices in nanoseconds, by the roofline of an A100 without "
        "launches; budgets are shares of the peak without recomputation.",
        f"Of {found['pairs']} pairs of a graph and a budget, {found['reached_by_checkmate']} are reached by computing "
        f"values any number of times, and {found['reached']} by our model. Where both optima are proven "
        f"({found['both_proven']} pairs), ours costs as much in {found['both_proven'] - len(found['more'])}, and more "
        f"in {len(found['more'])}: {more}.",
        'Our search (that of `MemoryBudget(of="peak")`, by simulated values, with `cpsat` for `lagrangian`) '
        f"finds a plan in {found['found_by_search']} of "
        f"the {found['reached']}, in {found['best_by_search']} the best one.",
    )
    lowest = [
        (graph["graph"], graph["groups"], f"{graph['lowest_searched']}%", *map(_percent, graph["lowest"].values()))
        for graph in graphs
    ]
    models = ("ours", "twice", "checkmate")
    costs = [
        (graph["graph"], row["share"], _none(row["search"]), *(_cost(row[name]) for name in models))
        for graph in graphs
        for row in graph["budgets"]
    ]
    return [
        bullets(said),
        section(
            "The lowest peak that is reached, as a share of that without recomputation",
            "In whole percents. One percent less is proven to be out of reach, but for those with ≤.",
            table(("graph", "groups", "our search", "our model", "any number of times"), lowest),
            level=3,
        ),
        section(
            "What recomputation costs, in nanoseconds",
            "`none`: nothing was found, or it is proven that there is nothing. Where time ended a proof, the bound "
            "stands beside.",
            table(("graph", "budget", "our search", "our model", "twice, any time", "any number of times"), costs),
            level=3,
        ),
    ]


def _percent(found: Mapping[str, Any]) -> str:
    return f"{'' if found['proven'] else '≤ '}{found['percent']}%"


def _none(cost: int | None) -> int | str:
    return "none" if cost is None else cost


def _cost(found: Mapping[str, Any]) -> str:
    cost = "none" if found["cost"] is None else f"{found['cost']:,}"
    return cost if found["proven"] else f"{cost} (≥ {found['bound']:,})"


_COLUMNS = {
    "case": "case",
    "saved_bytes": "saved bytes",
    "extra_flops": "flops of products computed twice",
    "extra_compiled_flops": "in the compiled program",
    "ours_flops": "ours, within these bytes",
    "bound_flops": "bound",
}


def _same_gpt(rival: dict[str, Any]) -> list[str]:
    shown = [column for column in _COLUMNS if column in rival["rows"][0]]
    return [
        f"Version {rival['version']}; {rival['products_flops']:,} flops of products without recomputation.",
        table([_COLUMNS[column] for column in shown], [[row[column] for column in shown] for row in rival["rows"]]),
    ]


def _moccasin(rival: dict[str, Any]) -> list[str]:
    columns = ("graph", "nodes", "uses", "budget", "our model", "any number of times", "its time, s")
    cells = [
        (*(row.get(key) for key in ("graph", "nodes", "uses", "share")), *_relative(row, "ours", "checkmate"))
        for row in rival["rows"]
    ]
    return ["What recomputation costs, as a share of computing every node once.", table(columns, cells)]


def _relative(row: Mapping[str, Any], *models: str) -> list[object]:
    if "left_out" in row:
        return [row["left_out"], "", ""]
    shares: list[object] = []
    for found in (row.get(model) for model in models):
        share = "" if found is None else "none" if found["cost"] is None else f"{found['cost'] / row['cost']:.2%}"
        shares.append(share if found is None or found["proven"] else f"{share} (≥ {found['bound'] / row['cost']:.2%})")
    return [*shares, row["checkmate"]["seconds"]]
