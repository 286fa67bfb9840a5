"""Decisions about modules, on graphs: exact, and with the meaning that `region_problem` defines."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from depth import deep
from examples import with_backward
from torch import nn

import remat
from experiments.models.zoo import gpt2
from remat import Graph, GraphBuilder, Infeasible, InvalidOption
from remat.improve.region_choice import RegionChoice, choose_graph_regions
from remat.improve.region_front import RegionFront
from remat.improve.region_problem import RegionProblem
from remat.predict.time.known_devices import find_device

A100 = find_device("a100")


@pytest.fixture(scope="module")
def gpt() -> Graph:
    model, args = gpt2(layers=2, width=32, heads=2, vocabulary=64, context=16, batch=2, fused=True)
    return remat.capture(model, *args)


def chain(layers: int = 3, seed: int = 0) -> Graph:
    """Layers of four products with something cheap between them; the sizes are drawn."""
    draw, g = np.random.default_rng(seed), GraphBuilder()
    names = [g.input("x", bytes=8)]
    where = {}
    for layer in range(layers):
        for module in ("a", "b.c", "b", "d"):
            product = g.op("mm", *names[-2:], bytes=int(draw.integers(1, 9)), flops=10**12, compute_bound=True)
            cheap = g.op("gelu", product, bytes=int(draw.integers(1, 9)))
            where |= {product: f"net.{layer}.{module}", cheap: f"net.{layer}" if module == "d" else f"net.{layer}.b"}
            names += [product, cheap]
    return with_backward(g, names, where)


def every_decision(regions: RegionProblem) -> dict[tuple[bool, ...], tuple[int, int]]:
    """What all decisions save, and cost: 2^k of them."""
    problem, groups = regions.problem, max(regions.groups) + 1
    each = {}
    for flags in product((False, True), repeat=groups):
        choice = regions.choice([flags[group] for group in regions.groups])
        assert choice.keeps_bans(problem)
        assert choice.keeps_ties(problem)
        each[flags] = choice.saved_bytes(problem), choice.cost(problem)
    return each


@pytest.mark.parametrize("tied", [False, True], ids=["free", "tied"])
@pytest.mark.parametrize("seed", range(4))
def test_no_decisions_are_better_than_the_chosen_ones(seed: int, tied: bool) -> None:
    regions = RegionProblem.of(chain(2, seed), A100, ["net.*.a", "net.*.b*", "net.*.d"], tied=tied)
    assert len(regions.names) == 8
    figures = every_decision(regions)
    assert len(figures) == (16 if tied else 256)
    front = RegionFront.of(regions)
    assert front is not None
    for limit in sorted({size for size, _ in figures.values()}):
        best = min(cost for size, cost in figures.values() if size <= limit)
        position = front.within(limit)
        assert position is not None
        assert int(front.cost[position]) == best
        for solver in ("cpsat", "pulp"):
            assert remat.solve(replace(regions.problem, budget_bytes=limit), solver).objective == best


def test_both_ways_to_solve_agree_on_a_captured_model(gpt: Graph) -> None:
    for regions in (None, "layers", "blocks.*"):
        for budget in (0.4, 0.7, 1.0):
            first, second = (choose_graph_regions(gpt, budget, regions=regions, solver=s) for s in (None, "cpsat"))
            assert first.cost_ns == second.cost_ns == first.bound_ns == second.bound_ns
            assert first.solution.is_optimal
            assert not first.is_proven  # a comparison of all decisions is no certificate
            assert first.saved_bytes <= first.limit


def test_a_saved_region_repeats_nothing_and_another_one_keeps_nothing(gpt: Graph) -> None:
    chosen = choose_graph_regions(gpt, 0.3, regions=["blocks.*.qkv", "blocks.*.up", "blocks.1.project"])
    assert {*chosen.saves} == {True, False}
    plan, regions = chosen.solution.plan, chosen.regions
    assert plan is not None
    remat.check_plan(remat.plugin.base_problem(gpt), plan)
    at = dict(zip(gpt.names, gpt.modules, strict=True))
    views = {name for name, view in zip(gpt.names, gpt.view, strict=True) if view}
    kept = {at[name] for name in plan.saved if gpt.in_forward[gpt.index[name]] and not gpt.leaf[gpt.index[name]]}
    again = {at[name] for name in plan.recomputed if name not in views}
    for region, saved in chosen.decisions.items():
        assert region not in (again if saved else kept)
    assert "blocks.0.down" not in kept  # in no region: it is recomputed
    assert regions.layers == ("blocks.0", "blocks.1")


def test_the_innermost_named_module_decides() -> None:
    graph = chain(2)
    outer = RegionProblem.of(graph, A100, "net.*.b")
    nested = RegionProblem.of(graph, A100, ["net.*.b", "net.*.b.c"])
    tied_to = [dict(zip(p.problem.names, p.problem.tied.tolist(), strict=True)) for p in (outer, nested)]  # type: ignore[union-attr]
    product_of_c = next(n for n, m in zip(graph.names, graph.modules, strict=True) if m == "net.0.b.c")
    assert outer.names[tied_to[0][product_of_c]] == "net.0.b"
    assert nested.names[tied_to[1][product_of_c]] == "net.0.b.c"


def test_where_nothing_repeats_the_regions_are_the_layers() -> None:
    graph = chain(1)
    regions = RegionProblem.of(graph, A100)
    assert regions.layers == ("net.0.a", "net.0.b", "net.0.d")  # `b.c` is inside `b`
    assert {*regions.names} == {"net.0.a", "net.0.b.c", "net.0.b", "net.0.d"}
    assert dict(zip(regions.names, regions.layer_of, strict=True))["net.0.b.c"] == "net.0.b"


def test_blocks_of_a_bare_sequential_are_layers() -> None:
    blocks = (nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.Tanh()) for _ in range(3))
    model, x = nn.Sequential(nn.Embedding(9, 8), *blocks, nn.Linear(8, 1)), torch.arange(9)
    chosen = remat.choose_regions(model, x, budget=0.0, regions="layers")
    assert chosen.layers == ("0", "1", "2", "3", "4")
    free = remat.choose_regions(model, x, budget=1.0)
    assert {"1.0", "1.2", "2.0", "2.2"} <= {*free.save_regions, *free.recompute_regions}
    with chosen.apply(model):
        model(x).sum().backward()


def test_by_default_a_region_is_a_module_that_computes_a_product_itself(gpt: Graph) -> None:
    modules = ("", ".qkv", ".project", ".up", ".down")  # a block itself computes attention
    assert {*RegionProblem.of(gpt, A100).names} == {f"blocks.{i}{module}" for i in (0, 1) for module in modules}
    assert RegionProblem.of(gpt, A100, "layers").names == ("blocks.0", "blocks.1")


def test_a_limit_of_the_peak_is_kept_by_prediction(gpt: Graph) -> None:
    most = choose_graph_regions(gpt, 1.0, of="peak")
    assert most.peak_bytes is not None
    chosen = [choose_graph_regions(gpt, share, of="peak") for share in (0.0, 0.7, 0.9)]
    for each in chosen:
        assert each.peak_bytes is not None
        assert each.peak_bytes <= each.limit
        assert "no proof" in str(each)
    assert [each.peak_bytes for each in chosen] == sorted(each.peak_bytes for each in chosen if each.peak_bytes)
    with pytest.raises(Infeasible, match="smallest peak found"):
        choose_graph_regions(gpt, "2 KiB", of="peak")


def test_equal_layers_save_from_the_last_one_on(gpt: Graph) -> None:
    model, args = gpt2(layers=5, width=32, heads=2, vocabulary=64, context=16, batch=2, fused=True)
    graph = remat.capture(model, *args)
    least, most = (choose_graph_regions(graph, share, regions="blocks.*.up").saved_bytes for share in (0.0, 1.0))
    chosen: RegionChoice = choose_graph_regions(graph, (least + most) // 2, regions="blocks.*.up")
    saves = [saved for _, saved in sorted(chosen.decisions.items())]
    assert {*saves} == {True, False}
    assert saves[1:-1] == sorted(saves[1:-1])  # the first and the last layer differ from the others
    assert "blocks.*.up: save in layers" in str(chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regions": "blocks.*.attention"}, r"no module in a layer is 'blocks.*.attention'"),
        ({"regions": ["head"]}, "no module in a layer is 'head'"),
        ({"regions": [1]}, "must be paths of modules or patterns"),
        ({"regions": []}, "at least one module"),
        ({"of": "device"}, '"saved" or "peak"'),
        ({"budget": "much"}, "budget must be"),
    ],
)
def test_wrong_arguments_are_named(gpt: Graph, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        choose_graph_regions(gpt, **({"budget": 0.5} | options))  # type: ignore[arg-type]


def test_a_graph_without_modules_and_a_budget_without_decisions_are_explained(gpt: Graph) -> None:
    with pytest.raises(InvalidOption, match="does not know its modules"):
        choose_graph_regions(replace(gpt, modules=()), 0.5)
    for solver in (None, "cpsat"):
        with pytest.raises(Infeasible, match=r"save as little as 2\.0 KiB"):
            choose_graph_regions(gpt, "2 KiB", solver=solver)


@deep
def test_a_layer_with_many_regions_is_solved_by_an_integer_program() -> None:
    graph = remat.Corpus.open().graph("hf-llama3-8b-lora")
    regions = RegionProblem.of(graph, A100)
    assert RegionFront.of(regions) is None
    chosen = choose_graph_regions(graph, 0.5)
    assert chosen.solution.solver == "cpsat"
    assert chosen.solution.is_optimal
