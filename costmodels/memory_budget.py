"""The least recompute time within a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal, get_args

from costmodels.recompute_time import RecomputeTime
from remat import CostModel, Graph, InvalidOption
from remat.facts.columns import is_whole
from remat.improve.byte_budgets import read_amount, saved_limit
from remat.plugin import DEFAULT_ESTIMATOR, DeviceLimit, Estimator, Terms, find_estimator
from remat.predict.offloading.clock import copy_ns, linked
from remat.predict.time import DeviceProfile
from remat.problem.offload import Offload, cannot_offload

Of = Literal["saved", "peak", "device"]


@dataclass(frozen=True)
class MemoryBudget(CostModel):
    """Saves up to a budget, and recomputes the rest in as little time as possible.

    What counts is the memory of the saved activations (each storage once; inputs and parameters are
    alive anyway, and count nothing), or the peak of all memory beside inputs and parameters, over
    both passes (`remat.predict.memory`), or the peak of all that training holds: parameters, buffers, inputs,
    gradients and the optimizer's state, too (`remat.pytorch.run.on_device`).

    Three conventions of a fraction f of saved activations:

    - here: f times what PyTorch's default plan saves (`remat.improve.byte_budgets`), rounded down;
    - PyTorch's `activation_memory_budget`: the same default is 1, but 0 is a plan that saves the inputs
      alone, a plan may end below or above f, and parameters that are saved count, too;
    - the paper and the post have no budget. What they call memory saved is against autograd's own saves,
      which are mostly more than PyTorch's default.

    Offloaded values wait in the memory of the host, and count nothing. `pose` states copies that nothing hides, and so
    `remat.compile` chooses: there copies run in the stream of the kernels. `remat.choose` has copies run beside
    kernels, until there are too many to hide: it simulates both (`remat.predict.offloading`).

    Attributes:
        budget: a size ("8GB", "512MiB"), a whole number of bytes from 1024 on, or a fraction from 0.0 to
            1.0, also as "50%". 1.0 is what PyTorch's default plan saves, 0.5 half of that. Where something
            can be had by no other way, say the seed of a dropout, a fraction means at least that, so that
            0.0 is the least possible; a size that is too small is an error. Of the peak: a fraction of
            the fastest plan's, but at least the smallest peak that is found. Of the device: no fraction.
        of: "saved" activations, "peak", or all memory of a "device". A peak is searched for: use `remat.choose`, or
            compile. For a device, `remat.compile` and `remat.forecast` know what there is beside a graph.
        estimator: how long recomputing a value takes: a registered name or an instance.
        optimizer: whose memory counts, where it is that of a device: one of torch.optim by name, also with options
            ("sgd:momentum=0.9"), a callable such as `torch.optim.SGD`, or "none". What is left out is AdamW: few
            optimizers keep more.
        offload: True if saved activations may wait on the host; or its device, if the estimator knows none that has a
            host: a known name such as "h100", a file, or a profile. What is recomputed takes what the estimator says,
            whatever the device.
    """

    name: ClassVar[str] = "memory-budget"

    budget: float | int | str = 0.5
    of: Of = "saved"
    estimator: str | Estimator = DEFAULT_ESTIMATOR
    optimizer: object = "adamw"
    offload: bool | str | Path | DeviceProfile = False

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name is refused where it is typed
        _ = self.amount  # so is a budget that is none
        if not isinstance(self.budget, str):  # numbers of numpy wrap, and print otherwise
            plain = int(self.budget) if is_whole(self.budget) else float(self.budget)
            object.__setattr__(self, "budget", plain)
        if not isinstance(self.of, str) or self.of not in get_args(Of):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"MemoryBudget.of must be one of {', '.join(get_args(Of))}, got {self.of!r}")
        if self.of == "device" and isinstance(self.amount, Fraction):
            raise InvalidOption(
                f'MemoryBudget.budget must be a size such as "80GB" where of="device", got {self.budget!r}'
            )
        if not (isinstance(self.optimizer, str) or callable(self.optimizer)):
            raise InvalidOption(
                f"MemoryBudget.optimizer must make an optimizer of parameters, as torch.optim.AdamW does, or be the "
                f'name of one, such as "adamw", or "none", got {self.optimizer!r}'
            )
        if self.offload_device is not None and self.of != "saved":
            raise InvalidOption(f'MemoryBudget.offload is for of="saved": what is offloaded, got of={self.of!r}')

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's
        """The unit of the estimator."""
        return find_estimator(self.estimator).unit

    def data(self) -> str:
        """What the estimator depends on, and the figures of a device that offloads."""
        figures = find_estimator(self.estimator).data()
        return f"{figures}\n{self.offload_device!r}" if self.offload else figures

    def terms(self, graph: Graph) -> Terms:
        """Those of `RecomputeTime`, and the budget, unless it is one of the peak; and the price of copies."""
        terms = RecomputeTime(self.estimator).terms(graph)
        if self.limits_peak:
            return terms
        problem = RecomputeTime(self.estimator).pose(graph)
        if (device := self.offload_device) is not None:
            offload = Offload(2 * copy_ns(graph, device), cannot_offload(graph))
            terms = replace(terms, offload=offload)
            problem = replace(problem, offload=offload.take(graph.plannable))
        return replace(terms, budget_bytes=saved_limit(graph, problem, self.amount))

    @property
    def offload_device(self) -> DeviceProfile | None:
        """The device that offloads to its host; None if nothing is offloaded.

        Raises:
            InvalidOption: it has no host; or the estimator knows no device, or counts no nanoseconds.
        """
        if self.offload is False:
            return None
        estimator = find_estimator(self.estimator)
        device = getattr(estimator, "device", None) if self.offload is True else self.offload
        if not isinstance(device, str | Path | DeviceProfile) or estimator.unit != "ns":
            raise InvalidOption(
                f"MemoryBudget.offload weighs copies against times on a device: name one, such as 'h100', and an "
                f"estimator in ns, got {self.offload!r} and {estimator!r}"
            )
        return linked(device)

    @property
    def amount(self) -> int | Fraction:
        """The budget, read: bytes, or a fraction; a double would lose bytes past 2^53."""
        return read_amount(self.budget, "MemoryBudget.budget")

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        """The budget, if it is one of saved activations."""
        return (self.amount,) if self.of == "saved" else ()

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        """The budget, if it is one of the peak."""
        return (self.amount,) if self.of == "peak" else ()

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        """The budget, if it is one of a device."""
        return (DeviceLimit(int(self.amount), self.optimizer),) if self.of == "device" else ()
