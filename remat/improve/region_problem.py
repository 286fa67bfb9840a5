"""States which modules of a model to save or to recompute, as a problem with one tied group for each decision.

A *layer* is a module with a number in its path ("model.layers.3"), which `torch.utils.checkpoint` can run again. A
*region* is a module inside of a layer, or a layer. An operator belongs to the innermost region whose module runs it.
"Save" a region: nothing of it is computed twice, so what the backward pass, or a recomputation of others, reads of it
is kept. "Recompute" it: none of its values is kept. In either case, what one layer passes to another is kept, and so is
what may not be computed twice. In a layer, what belongs to no region is recomputed. Outside of layers, PyTorch's
default plan decides. Where nothing repeats, the outermost regions are the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_TIME_MODEL, costmodel_class
from remat.errors import InvalidOption
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.facts.module_paths import matching, with_parents
from remat.facts.uses import propagate_to_operands
from remat.improve.one_liners import checkpointed, layer_paths
from remat.predict.time.device import DeviceProfile
from remat.predict.time.roofline import Roofline
from remat.problem.feasibility import forced_values
from remat.problem.problem import Problem

Keep = Literal["all", "expensive"]

WHOLE_LAYERS = "layers"
"""The value of `regions` with which each layer is one region: it is checkpointed, or it is not."""


@dataclass(frozen=True)
class RegionProblem:
    """Holds the decisions of one graph, and the problem that they make.

    Attributes:
        names: the paths of the regions, in the order in which they run.
        layer_of: for each region, the path of its layer.
        layers: the paths of all layers, in the order in which they run.
        groups: for each region, the number of its decision; regions of one name share it if they are tied.
        scope: for each value of the problem, the number of its layer, counted from 1; 0 outside of layers.
        problem: the prices, bans and tied groups; it has no budget.
    """

    names: tuple[str, ...]
    layer_of: tuple[str, ...]
    layers: tuple[str, ...]
    groups: tuple[int, ...]
    scope: IntArray
    problem: Problem

    @classmethod
    def of(
        cls,
        graph: Graph,
        device: DeviceProfile,
        regions: str | Iterable[str] | None = None,
        *,
        tied: bool = False,
        keep: Keep = "all",
    ) -> RegionProblem:
        """States the decisions of a graph.

        Args:
            device: its times are the prices of recomputing.
            regions: paths or patterns ("model.layers.*.mlp.*"), "layers", or None for all modules in layers that
                themselves compute a product, a convolution or attention.
            tied: whether regions of one name have one decision in all layers.
            keep: what "save" means: "all", as above; or "expensive": of a saved region, only products, convolutions and
                attention are not computed twice.

        Raises:
            InvalidOption: the graph has no module paths, or what is named is no module in a layer.
        """
        if not any(graph.modules):
            raise InvalidOption("regions are modules, and this graph does not know its modules: capture a module")
        runs: list[bool] = (graph.with_elements(graph.in_forward) & ~graph.leaf).tolist()
        paths = [path if run else "" for path, run in zip(graph.modules, runs, strict=True)]
        modules = {module: None for path in dict.fromkeys(paths) for module in with_parents(path)}
        layers_by_module = dict(zip(modules, layer_paths(tuple(modules)), strict=True)) | {"": ""}
        repeats = len({*layers_by_module.values()} - {""}) > 1
        find_layer: Callable[[str], str] = layers_by_module.__getitem__ if repeats else lambda path: path
        layers_of_modules = {module: layer for module in modules if (layer := find_layer(module))}
        chosen = _chosen(graph, paths, layers_of_modules, regions)
        if not repeats:
            find_layer = lambda path: _outermost(path, chosen)  # noqa: E731
        innermost = [_innermost(path, chosen) for path in paths]
        scopes = [find_layer(path) for path in paths]
        names = tuple(dict.fromkeys(filter(None, innermost)))
        layer_of = tuple(map(find_layer, names))
        group_of = {name: position for position, name in enumerate(names)}
        group = np.array([group_of.get(name, -1) for name in innermost], np.int64)
        layers = tuple(dict.fromkeys(filter(None, scopes)))
        number_of = {layer: position for position, layer in enumerate(layers, start=1)}
        scope = np.array([number_of.get(path, 0) for path in scopes], np.int64)
        problem = _problem(graph, device, scope, group, keep)
        free = cls(names, layer_of, layers, tuple(range(len(names))), scope[graph.plannable], problem)
        return free.tied_by_name() if tied else free

    def tied_by_name(self) -> RegionProblem:
        """Returns the same regions, where those of one name have one decision in all layers."""
        assert self.problem.tied is not None
        names = [name.removeprefix(layer) for name, layer in zip(self.names, self.layer_of, strict=True)]
        number = {name: position for position, name in enumerate(dict.fromkeys(names))}
        groups = tuple(number[name] for name in names)
        new = np.full(max(self.groups) + 2, -1)  # the last one stands for values in no group
        new[list(self.groups)] = groups
        return replace(self, groups=groups, problem=replace(self.problem, tied=new[self.problem.tied]))

    @property
    def layers_interact(self) -> bool:
        """Returns whether a decision in one layer may change what another one saves or recomputes.

        The more regions are recomputed, the more values are available in the backward pass. So a value that is
        available both with all regions saved and with all recomputed is always available.
        """
        ends = (self.choice([flag] * len(self.names)) for flag in (False, True))
        most, least = (choice.saved | choice.recomputed for choice in ends)
        u, v = self.problem.producers, self.problem.consumers
        crosses = (self.scope[u] > 0) & (self.scope[u] != self.scope[v]) & ~self.problem.cannot_recompute.mask[v]
        return bool((crosses & (most & ~least)[u]).any())

    def choice(self, saves: Sequence[bool]) -> Choice:
        """Returns what is saved and recomputed if the regions with a true flag are saved."""
        assert self.problem.tied is not None
        of_group = np.ones(max(self.groups) + 2, np.bool_)  # the last one stands for values in no group
        of_group[list(self.groups)] = saves
        return Choice.from_saved(self.problem, ~self.problem.cannot_save.mask & of_group[self.problem.tied])

    def decisions_of(self, plan: Plan) -> list[bool]:
        """Returns for each region whether a plan saves it; False if the plan needs none of the region's values."""
        assert self.problem.tied is not None
        saved = {*self.problem.tied[Choice.from_plan(self.problem, plan).saved].tolist()}
        return [group in saved for group in self.groups]


def _chosen(
    graph: Graph, paths: Sequence[str], layers: Mapping[str, str], regions: str | Iterable[str] | None
) -> set[str]:
    if regions is None:
        expensive: list[int] = np.flatnonzero(graph.compute_bound).tolist()
        chosen = {paths[v] for v in expensive} & layers.keys()
        if not chosen:
            raise InvalidOption("no layer has a module with a product, a convolution or attention: name `regions`")
        return chosen
    if regions == WHOLE_LAYERS:
        return {*layers.values()}
    chosen = set[str]()
    for pattern in [regions] if isinstance(regions, str) else regions:
        chosen |= matching(pattern, layers, "regions: no module in a layer")
    if not chosen:
        raise InvalidOption("regions must name at least one module")
    return chosen


def _innermost(path: str, chosen: set[str]) -> str:
    return next((module for module in with_parents(path) if module in chosen), "")


def _outermost(path: str, chosen: set[str]) -> str:
    return next((module for module in reversed(with_parents(path)) if module in chosen), "")


def _problem(graph: Graph, device: DeviceProfile, scope: IntArray, group: IntArray, keep: Keep) -> Problem:
    inside, passed_on = scope > 0, _passed_on(graph, scope)
    # Prices are those of what layers compute again: outside, nothing is decided.
    problem = costmodel_class(DEFAULT_TIME_MODEL)(estimator=Roofline(device)).pose(graph)  # pyright: ignore[reportCallIssue]
    by_default = checkpointed(graph, scope - 1, np.zeros(len(graph), np.bool_))
    kept_outside = np.zeros(len(graph), np.bool_) if by_default is None else graph.owners(by_default) & ~inside
    values = graph.plannable
    settled = forced_values(problem).not_recomputable | problem.cannot_save.mask
    of_input = graph.input[graph.base][values]
    fixed = (passed_on | kept_outside)[values] & ~settled
    tied = (inside & (group >= 0))[values] & ~settled & ~fixed & ~of_input
    if keep == "expensive":
        tied &= graph.with_elements(graph.compute_bound)[values]
    recomputed = ~settled & ~fixed & ~tied
    problem = problem.priced(
        save_cost=problem.save_cost,
        recompute_cost=np.where(inside[values], problem.recompute_cost, 0),
        cannot_save=problem.cannot_save.also(recomputed, "in no region"),
        cannot_recompute=problem.cannot_recompute.also(fixed, "kept whatever is decided about regions"),
        budget_bytes=None,
    )
    # A checkpoint keeps its arguments whatever is decided, so they are needed whatever is decided.
    most = propagate_to_operands(problem.operands, problem.needed, recomputed | tied)
    return replace(problem, needed=problem.needed | (most & fixed), tied=np.where(tied, group[values], -1))


def _passed_on(graph: Graph, scope: IntArray) -> BoolArray:
    """Returns (n,) the owners of what one layer passes to another, or to what is outside."""
    passed_on, forward = graph.output & (scope > 0), graph.with_elements(graph.in_forward)
    maker, reader = scope[graph.producers], scope[graph.consumers]
    passed_on[graph.producers[forward[graph.consumers] & (maker > 0) & (maker != reader)]] = True
    return graph.owners(passed_on) & (scope > 0)
