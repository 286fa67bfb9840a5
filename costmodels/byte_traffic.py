"""Prices a plan by the memory traffic between the forward and the backward pass: the classic cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from costmodels.pytorch_prices import pytorch_prices
from costmodels.recompute_rules import RULES, Rule
from remat.plugin import CostModel, Graph, InvalidOption, Terms

Mode = Literal["conservative", "aggressive"]
Prices = Literal["paper", "pytorch"]


@dataclass(frozen=True)
class ByteTraffic(CostModel):
    """Prices a saved value v by the bytes that move through memory; recomputing is free where it is allowed.

    The backward pass only reads a value that is in memory anyway (`Graph.materialized`: an input, an output, or a value
    with a use that cannot be fused): B(v). Any other value must also be written: 2 B(v) (paper, section 3.3 and
    Algorithm 2). B(v) is the number of bytes that reading v moves, so an expanded view costs what its base costs.

    The optimum of this model is one minimum cut. With the paper's prices it differs from PyTorch's partitioner in two
    ways: no price depends on the distance from the backward pass (ties are broken exactly instead), and a view costs
    what reading it moves. With both kinds of prices, a forward output may be recomputed, and "aggressive" bans no small
    reductions.

    The paper's prices ignore kernels. Of the plans that move equally many bytes, some save a result that a library call
    left in memory in another layout, or one far from its reader, and then Inductor generates more kernels. PyTorch's
    prices, the default of `remat.compile`, avoid nearly all of this: they prefer values near the backward pass, and the
    owner of a storage to its views. But their sum is no number of bytes.

    Attributes:
        mode: "conservative" recomputes only what fuses into the kernels of the backward pass, so that a step never gets
            slower; "aggressive" recomputes everything but compute-bound and random operators, to save memory (post).
        rules: switches single rules on or off, e.g. {"used_far_apart": False}; see `RULES`.
        free_parameters: whether reading a parameter costs nothing, as in PyTorch's partitioner.
        prices: "paper", as above; or "pytorch": those of PyTorch's partitioner, in which parameters are free and a byte
            costs more the farther its value is from the backward pass (`costmodels.pytorch_prices`).
    """

    name: ClassVar[str] = "byte-traffic"

    mode: Mode = "conservative"
    rules: Mapping[str, bool] = field(default_factory=dict[str, bool], hash=False)
    free_parameters: bool = False
    prices: Prices = "paper"

    def __post_init__(self) -> None:
        me = type(self).__name__
        for label, options in (("mode", get_args(Mode)), ("prices", get_args(Prices))):
            value: Any = getattr(self, label)
            if not isinstance(value, str) or value not in options:
                raise InvalidOption(f"{me}.{label} must be one of {', '.join(options)}, got {value!r}")
        if not _are_switches(self.rules):
            raise InvalidOption(f"{me}.rules must map names of rules to true or false, got {self.rules!r}")
        unknown = sorted(set(self.rules) - set(RULES))
        if unknown:
            raise InvalidOption(f"{me}.rules: no rule is named {unknown[0]!r}; there are: {', '.join(RULES)}")

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # of the prices
        """Returns "bytes"; with PyTorch's prices "weighted bytes": a byte farther from the backward pass costs more."""
        return "bytes" if self.prices == "paper" else "weighted bytes"

    @property
    def active_rules(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in RULES.values() if self.rules.get(rule.name, self.mode in rule.modes))

    def terms(self, graph: Graph) -> Terms:
        """Prices values by the bytes that move, and bans what the active rules forbid to recompute."""
        price = pytorch_prices(graph) if self.prices == "pytorch" else graph.save_traffic
        if self.free_parameters:
            price = np.where(graph.parameter, 0, price)
        operators = ~graph.view & ~graph.input
        in_forward = operators & graph.in_forward
        nothing = Terms.nothing(graph)
        bans = nothing.cannot_recompute
        for rule in self.active_rules:
            # Other rules save time; this one is about correctness: the two passes would draw different numbers.
            scope = operators if rule.name == "random" else in_forward
            bans = bans.also(rule.bans(graph, bans.mask) & scope, rule.reason)
        return Terms(price, nothing.recompute_cost, nothing.cannot_save, bans)


def _are_switches(rules: object) -> bool:
    return isinstance(rules, Mapping) and all(isinstance(on, bool) for on in cast(Mapping[Any, Any], rules).values())
