"""The classic cost model: memory traffic between the forward and the backward pass."""

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
    """Saving v costs the bytes that the save moves; recomputing is free where it is allowed.

    A value that is in memory anyway (`Graph.materialized`: an input, an output, or a value with a
    use that cannot be fused) is only read by the backward pass: B(v). Any other is written, too:
    2 B(v) (paper, section 3.3 and Algorithm 2). B(v) is what reading v moves, so that an expanded
    view costs its base.

    The optimum of this model is one minimum cut. With the paper's prices it departs from PyTorch's
    partitioner in this: nothing is weighted by its distance (ties are broken exactly instead), and a view
    costs what reading it moves. In either case a forward output may be recomputed, and "aggressive" bans
    no small reductions.

    Prices of bytes alone know no kernels. Among plans that move as much by these prices, some save what a
    call of a library left in memory in another layout, or what is far from its reader: Inductor makes more
    kernels of them. PyTorch's prices, those of `remat.compile` with nothing else, avoid nearly all of
    this: they prefer what is near the backward pass, and the owner of a storage to its views. What they
    add up to is no number of bytes any more.

    Attributes:
        mode: "conservative" recomputes only what fuses into the backward's kernels, so that time
            never suffers; "aggressive" recomputes all but compute-bound and random operators,
            to save memory (post).
        rules: switches single rules on or off, e.g. {"used_far_apart": False}; see `RULES`.
        free_parameters: reading a parameter costs nothing, as in PyTorch's partitioner.
        prices: "paper", as above; or "pytorch": those of PyTorch's partitioner, in which parameters are free
            and bytes weigh more the farther a value is from the backward pass (`costmodels.pytorch_prices`).
    """

    name: ClassVar[str] = "byte-traffic"

    mode: Mode = "conservative"
    rules: Mapping[str, bool] = field(default_factory=dict[str, bool], hash=False)
    free_parameters: bool = False
    prices: Prices = "paper"

    def __post_init__(self) -> None:
        me = type(self).__name__
        for label, known in (("mode", get_args(Mode)), ("prices", get_args(Prices))):
            given: Any = getattr(self, label)
            if not isinstance(given, str) or given not in known:
                raise InvalidOption(f"{me}.{label} must be one of {', '.join(known)}, got {given!r}")
        if not _are_switches(self.rules):
            raise InvalidOption(f"{me}.rules must map names of rules to true or false, got {self.rules!r}")
        unknown = sorted(set(self.rules) - set(RULES))
        if unknown:
            raise InvalidOption(f"{me}.rules: no rule is named {unknown[0]!r}; there are: {', '.join(RULES)}")

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # of the prices
        """Bytes; or bytes that weigh more the farther they are from the backward pass."""
        return "bytes" if self.prices == "paper" else "weighted bytes"

    @property
    def active_rules(self) -> tuple[Rule, ...]:
        """The rules that this instance applies, in order."""
        return tuple(rule for rule in RULES.values() if self.rules.get(rule.name, self.mode in rule.modes))

    def terms(self, graph: Graph) -> Terms:
        """Prices by bytes moved, bans by the active rules."""
        if self.prices == "pytorch":
            price = pytorch_prices(graph)
        else:
            price = np.where(graph.materialized, graph.moved_bytes, 2 * graph.moved_bytes)
        if self.free_parameters:
            price = np.where(graph.parameter, 0, price)
        own = ~graph.view & ~graph.input
        in_forward = own & graph.in_forward
        nothing = Terms.nothing(graph)
        bans = nothing.cannot_recompute
        for rule in self.active_rules:
            # Random numbers that both passes draw differ: there the rule is about being right.
            speaks_of = own if rule.name == "random" else in_forward
            bans = bans.also(rule.bans(graph, bans.mask) & speaks_of, rule.reason)
        return Terms(price, nothing.recompute_cost, nothing.cannot_save, bans)


def _are_switches(rules: object) -> bool:
    return isinstance(rules, Mapping) and all(isinstance(on, bool) for on in cast(Mapping[Any, Any], rules).values())
