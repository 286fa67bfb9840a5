"""Budgets of parts of a model: `MemoryBudget(regions=...)`, and regions that the model marks with PyTorch's budgets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from depth import deep_except, drawn
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import Graph, Infeasible, InvalidOption, Plan, UnsupportedProblem, solve
from remat.improve.byte_budgets import default_plan, rows_of, saved_limit
from remat.plugin import InvalidProblem, Terms
from remat.pytorch.measure.saved import saved_activations
from remat.testing import graphs

VISION, DECODER = 40, 56
"""Widths of the parts, which tell of which part a tensor is."""

X = torch.randn(64, VISION, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(nn.functional.gelu(self.a(x)).sin())


class TwoParts(nn.Module):
    """With `marks`, the parts have these budgets of PyTorch; None leaves a part unmarked."""

    def __init__(self, marks: tuple[float | None, ...] = (None, None), *, breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.vision = nn.Sequential(Layer(VISION), Layer(VISION))
        self.decoder = nn.Sequential(nn.Linear(VISION, DECODER), Layer(DECODER), Layer(DECODER))
        self.marks, self.breaks = marks, breaks

    def forward(self, x: Tensor) -> Tensor:
        x = self._run(self.vision, self.marks[0], x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self._run(self.decoder, self.marks[1], x).sum()

    @staticmethod
    def _run(part: nn.Module, mark: float | None, x: Tensor) -> Tensor:
        if mark is None:
            return part(x)
        with torch.autograd.graph.region_activation_memory_budget(mark):
            return part(x)


@cache
def two_parts() -> Graph:
    return remat.capture(TwoParts(), X)


def saved_in(graph: Graph, plan: Plan | None) -> Counter[str]:
    """The bytes that a plan saves of each part, by the module that computes the owner of each storage."""
    assert plan is not None
    found: Counter[str] = Counter()
    for owner in {int(graph.base[graph.index[name]]) for name in plan.saved}:
        found[graph.modules[owner].partition(".")[0]] += int(graph.activation_bytes[owner])
    return found


def kept(step: Any, model: nn.Module, x: Tensor = X) -> Counter[str]:
    """What autograd keeps of each part, by the widths of the tensors."""
    found: Counter[str] = Counter()
    for tensor in saved_activations(step, model, x)[1].each:
        found["vision" if tensor.shape[-1] in (VISION, 2 * VISION) else "decoder"] += tensor.bytes
    return found


def gradients(step: Any, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(step(X), list(model.parameters())))


def default_in(part: str) -> int:
    return saved_in(two_parts(), default_plan(two_parts()))[part]


def test_a_plan_saves_no_more_of_a_part_than_its_budget() -> None:
    graph, half = two_parts(), default_in("decoder") // 2
    for regions, limits in (
        ({"vision": "20%"}, [default_in("vision") // 5]),
        ({"vis*": 0.5, "decoder": 0.2}, [default_in("vision") // 2, default_in("decoder") // 5]),
        ({"decoder": half, "vision": 0}, [half, 0]),
    ):
        model = MemoryBudget(1.0, regions=regions)
        problem, found = model.pose(graph), saved_in(graph, remat.choose(graph, model).plan)
        assert [row.bytes for row in problem.rows] == limits
        assert problem.budget_bytes == MemoryBudget(1.0).pose(graph).budget_bytes
        for pattern, limit in zip(regions, limits, strict=True):
            assert found["vision" if pattern == "vis*" else pattern] <= limit
    free = saved_in(graph, remat.choose(graph, MemoryBudget(1.0)).plan)
    assert free["vision"] > default_in("vision") // 5
    assert free["decoder"] > half


def test_a_pattern_names_modules_and_what_is_inside_of_them() -> None:
    """A view counts where the owner of its storage is computed, and an input of the step counts nowhere."""
    graph = two_parts()
    problem = MemoryBudget(1.0, regions={"decoder.*.a": 0.5, "decoder.1": 0.5, "*": 0.5}).pose(graph)
    owners = graph.base[graph.plannable]
    paths = ["" if graph.input[owner] else graph.modules[owner] for owner in owners.tolist()]
    products, one, everything = (row.values.tolist() for row in problem.rows)
    assert products == [path in ("decoder.1.a", "decoder.2.a") for path in paths]
    assert one == [path.startswith("decoder.1") for path in paths]
    assert everything == [path != "" for path in paths]


def test_the_least_budgets_are_those_of_the_least_plan() -> None:
    """With all shares 0, each part saves the least that it can, and the plan is proven."""
    solution = remat.choose(two_parts(), MemoryBudget(0.0, regions={"vision": 0.0, "decoder": "0%"}))
    assert solution.objective == remat.choose(two_parts(), MemoryBudget(0.0)).objective
    assert solution.plan is not None


@drawn(60)
@given(graphs(facts=False), st.data())
def test_shares_always_have_a_plan(graph: Graph, data: st.DataObject) -> None:
    """Whatever the parts and shares are, and whether they overlap."""
    shares = st.fractions(0, 1, max_denominator=4)
    masks = data.draw(
        st.lists(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph)), min_size=1, max_size=3)
    )
    problem = MemoryBudget(1.0, estimator="flops").pose(graph)
    limit = saved_limit(graph, problem, data.draw(shares))
    parts = [(f"part {i}", np.array(mask, np.bool_), data.draw(shares)) for i, mask in enumerate(masks)]
    over_graph = rows_of(graph, problem, parts, limit)
    rows = tuple(replace(row, values=row.values[graph.plannable]) for row in over_graph)
    assert solve(replace(problem, budget_bytes=limit, rows=rows), "cpsat", throw=False).plan is not None


def test_budgets_in_bytes_that_no_plan_keeps_are_explained() -> None:
    graph, model = two_parts(), MemoryBudget(1.0, regions={"vision": "2 KiB"})
    assert remat.choose(graph, model).plan is not None
    products_stay = replace(graph, must_save=graph.must_save | (graph.compute_bound & graph.in_forward))
    with pytest.raises(Infeasible, match="no plan fits the budget of 2048 bytes of 'vision'"):
        remat.choose(products_stay, model)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({}, "must map at least one path or pattern of modules to a budget"),
        ("vision", "must map at least one path or pattern of modules to a budget"),
        ({"vision": "much"}, r"MemoryBudget\.regions\['vision'\] must be a fraction from 0.0 to 1.0"),
        ({"vision": 2}, r"MemoryBudget\.regions\['vision'\] must be .* for so many bytes"),
        ({"visoin": 0.2}, "no module of this graph is 'visoin'; did you mean 'vision'"),
        ({3: 0.2}, "regions must be paths of modules or patterns, got 3"),
    ],
    ids=str,
)
def test_regions_that_are_none(regions: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        MemoryBudget(1.0, regions=regions).pose(two_parts())


def test_what_does_not_take_regions_says_so() -> None:
    graph, regions = two_parts(), {"vision": 0.2}
    for of in ("peak", "device"):
        with pytest.raises(InvalidOption, match='regions needs of="saved"'):
            MemoryBudget("1 GB", of=of, regions=regions)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedProblem, match="a limit on peak memory does not support a byte budget"):
        remat.choose(graph, MemoryBudget(regions=regions) + MemoryBudget(of="peak"))
    with pytest.raises(UnsupportedProblem, match="copies that kernels hide does not support budgets of some values"):
        remat.choose(graph, MemoryBudget(estimator="roofline:device=h100", offload=True, regions=regions))
    with pytest.raises(UnsupportedProblem, match="solver 'knapsack-dp' does not support budgets of some values"):
        remat.choose(graph, MemoryBudget(regions=regions), "knapsack-dp")
    points = remat.frontier(graph, cost_model=MemoryBudget(regions=regions)).points
    assert [point.cost for point in points] == [
        point.cost for point in remat.frontier(graph, cost_model=MemoryBudget()).points
    ]


@pytest.mark.parametrize("codegen", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["operators", "compiled"])
@pytest.mark.parametrize("budget", [1.0, "200 KB"])
def test_autograd_keeps_no_more_of_a_part_than_its_budget(budget: float | str, codegen: bool) -> None:
    model = TwoParts()
    step = remat.compile(model, cost_model=MemoryBudget(budget, regions={"vision": "20%"}), codegen=codegen)
    free = remat.compile(model, cost_model=MemoryBudget(budget), codegen=codegen)
    found = kept(step, model)
    assert found["vision"] <= default_in("vision") // 5 < kept(free, model)["vision"]
    assert found["decoder"] > default_in("decoder") // 5
    torch.testing.assert_close(gradients(step, model), gradients(model, model))


def test_a_budget_in_bytes_holds_for_larger_batches() -> None:
    model, limit = TwoParts(), default_in("vision") // 2
    cost_model = MemoryBudget(1.0, regions={"vision": limit})
    step = remat.compile(model, cost_model=cost_model, codegen=False, dynamic=True)
    for times in (1, 3, 9):
        assert kept(step, model, X.repeat(times, 1))["vision"] <= limit


def test_a_mapping_that_changes_later_changes_no_budget() -> None:
    regions = {"vision": "20%"}
    budget = MemoryBudget(1.0, regions=regions)
    regions["vision"] = "100%"
    assert budget == MemoryBudget(1.0, regions={"vision": "20%"})


def test_several_graphs_share_shares_and_no_bytes() -> None:
    model = TwoParts(breaks=True)
    in_bytes = remat.compile(model, cost_model=MemoryBudget("1 MB", regions={"*": "50%"}), codegen=False)
    with pytest.raises(UnsupportedProblem, match=r"several graphs .* does not support budgets of some"):
        in_bytes(X)
    torch.compiler.reset()
    shares = remat.compile(model, cost_model=MemoryBudget(1.0, regions={"*": "0%"}), codegen=False)
    for _ in range(4):  # they are not planned anew, although both graphs are alive at once
        torch.testing.assert_close(gradients(shares, model), gradients(model, model))
    free = remat.compile(model, cost_model=MemoryBudget(1.0), codegen=False)
    assert sum(kept(shares, model).values()) < sum(kept(free, model).values())


@pytest.mark.parametrize(
    "marks", deep_except([(0.2, 0.5), (None, 0.2)], [(0.2, 1.0), (0.2, 0.5), (0.2, None), (None, 0.2)]), ids=str
)
def test_regions_that_the_model_marks_have_their_own_budgets(marks: tuple[float | None, ...]) -> None:
    model, plain = TwoParts(marks), TwoParts()
    step, free = (remat.compile(one, codegen=False) for one in (model, plain))
    found = kept(step, model)
    for part, mark in zip(("vision", "decoder"), marks, strict=True):
        limit = default_in(part) if mark is None else int(mark * default_in(part))
        assert found[part] <= limit
    assert sum(found.values()) < sum(kept(free, plain).values())
    torch.testing.assert_close(gradients(step, model), gradients(plain, plain))


def test_marks_that_differ_fall_back_to_pytorchs_plan() -> None:
    model, plain = TwoParts((0.2, 1.0)), TwoParts()
    plain.load_state_dict(model.state_dict())
    step = remat.compile(model, solver="knapsack-dp", on_error="fallback", codegen=False)
    with pytest.warns(UserWarning, match="falls back to PyTorch's partitioner"):
        ours = gradients(step, model)
    torch.testing.assert_close(ours, gradients(plain, plain))


def test_marks_are_part_of_the_key_of_torchs_cache() -> None:
    """Torch's own key has the mark of the first node only."""
    found: list[int] = []
    for mark in (1.0, 0.2, 1.0):
        torch.compiler.reset()
        model = TwoParts((0.2, mark))
        found.append(kept(torch.compile(model, backend="remat"), model)["decoder"])
    assert found[0] == found[2] > found[1]


def test_marks_beside_a_cost_model_are_ignored_with_a_warning() -> None:
    model = TwoParts((0.2, 1.0))
    step = remat.compile(model, cost_model=ByteTraffic(), codegen=False)
    with pytest.warns(UserWarning, match=r"memory budget of 0.2 and 1.0 .* is ignored.*or take MemoryBudget\(regions="):
        step(X)


def test_the_rows_of_a_sum_are_those_of_both_sides() -> None:
    model = MemoryBudget(1.0, regions={"vision": 0.5}) + MemoryBudget(0.8, regions={"decoder": 0.2, "vision": 0.2})
    assert [row.name for row in model.pose(two_parts()).rows] == ["vision", "decoder", "vision"]


class Careless(MemoryBudget):
    def terms(self, graph: Graph) -> Terms:
        return replace(super().terms(graph), rows=[7])  # type: ignore[arg-type]


def test_rows_of_a_plug_in_are_checked() -> None:
    with pytest.raises(InvalidProblem, match=r"Careless.*rows must be a tuple of remat\.plugin\.BudgetRow"):
        Careless().pose(two_parts())
