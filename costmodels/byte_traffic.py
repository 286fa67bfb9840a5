"""The classic cost model: memory traffic between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from costmodels.recompute_rules import RULES, Rule
from remat import CostModel, Graph, InvalidOption, Terms

Mode = Literal["conservative", "aggressive"]


@dataclass(frozen=True)
class ByteTraffic(CostModel):
    """Saving v costs the bytes that the save moves; recomputing is free where it is allowed.

    A value that is in memory anyway (`Graph.materialized`: an input, an output, or a value with a
    use that cannot be fused) is only read by the backward pass: B(v). Any other is written, too:
    2 B(v) (paper, section 3.3 and Algorithm 2). B(v) is what reading v moves, so that an expanded
    view costs its base.

    The optimum of this model is one minimum cut. It departs from the sources, or from PyTorch's
    partitioner, in this: no reweighting by distance (ties are broken exactly instead); a view costs
    what reading it moves; a forward output may be recomputed; "aggressive" bans no small reductions.

    Attributes:
        mode: "conservative" recomputes only what fuses into the backward's kernels, so that time
            never suffers; "aggressive" recomputes all but compute-bound and random operators,
            to save memory (post).
        rules: switches single rules on or off, e.g. {"used_far_apart": False}; see `RULES`.
        free_parameters: reading a parameter costs nothing, as in PyTorch's partitioner.
    """

    name: ClassVar[str] = "byte-traffic"
    unit: ClassVar[str] = "bytes"

    mode: Mode = "conservative"
    rules: Mapping[str, bool] = field(default_factory=dict[str, bool], hash=False)
    free_parameters: bool = False

    def __post_init__(self) -> None:
        me = type(self).__name__
        if not isinstance(self.mode, str) or self.mode not in get_args(Mode):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"{me}.mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}")
        if not _are_switches(self.rules):
            raise InvalidOption(f"{me}.rules must map names of rules to true or false, got {self.rules!r}")
        unknown = sorted(set(self.rules) - set(RULES))
        if unknown:
            raise InvalidOption(f"{me}.rules: no rule is named {unknown[0]!r}; there are: {', '.join(RULES)}")

    @property
    def active_rules(self) -> tuple[Rule, ...]:
        """The rules that this instance applies, in order."""
        return tuple(rule for rule in RULES.values() if self.rules.get(rule.name, self.mode in rule.modes))

    def terms(self, graph: Graph) -> Terms:
        """Prices by bytes moved, bans by the active rules."""
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
