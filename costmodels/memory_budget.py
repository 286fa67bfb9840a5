"""Minimizes recompute time within a memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal, get_args

from costmodels.recompute_time import RecomputeTime
from remat import CostModel, Graph, InvalidOption
from remat.facts.argument_checks import checked_number
from remat.facts.columns import is_whole
from remat.facts.module_paths import computed_in
from remat.improve.byte_budgets import read_amount, rows_of, saved_limit
from remat.plugin import DEFAULT_ESTIMATOR, DeviceLimit, Estimator, Terms, find_estimator
from remat.predict.offloading.clock import copy_ns, linked
from remat.predict.time import DeviceProfile
from remat.problem.costmodel import GRAPHS_OWN
from remat.problem.offload import Offload, cannot_offload

Of = Literal["saved", "peak", "device"]


@dataclass(frozen=True)
class MemoryBudget(CostModel):
    """Saves values up to a budget, and recomputes the rest in as little time as possible.

    The budget limits one of three amounts (see `of`): the memory of the saved activations, where each storage counts
    once, and inputs and parameters, which are alive anyway, do not count; or the peak of all memory except inputs and
    parameters, over both passes (`remat.predict.memory`); or the peak of everything that training holds, with
    parameters, buffers, inputs, gradients and the optimizer's state (`remat.pytorch.run.on_device`).

    A fraction f of saved activations means different things elsewhere:

    - here: f times what PyTorch's default plan saves (`remat.improve.byte_budgets`), rounded down;
    - PyTorch's `activation_memory_budget`: 1 is the same default plan, but 0 is a plan that saves only the inputs. A
      plan may save less or more than f, and saved parameters count, too;
    - the paper and the post have no budget. They compare with what autograd saves, mostly more than PyTorch's default.

    With `in_flight=k`, the budget is for k calls that are alive at the same time, such as the microbatches that a stage
    of a pipeline holds (`remat.plan_pipeline` computes k). Each call saves at most a k-th of a size. While one call
    runs, a peak counts what the k - 1 others save and return; and a device, also their arguments. Parameters, gradients
    of parameters and the optimizer's state count once. A value that is computed from parameters alone, such as a copy
    in bfloat16, counts k times if it is saved, because each call computes its own.

    An offloaded value waits in host memory, and does not count. `pose` and `remat.compile` price its copies as if no
    kernel ran meanwhile: `remat.compile` runs copies in the stream of the kernels. `remat.choose` simulates concurrent
    copies, and counts only the time that kernels do not hide (`remat.predict.offloading`).

    Attributes:
        budget: a size ("8GB", "512MiB"), a whole number of bytes from 1024 on, or a fraction from 0.0 to 1.0, also as
            "50%". 1.0 is what PyTorch's default plan saves, 0.5 half of that. Some values must be saved, such as the
            seed of a dropout: a fraction means at least their bytes, so 0.0 is the least possible, but a smaller size
            is an error. For a peak, a fraction is a share of the peak of PyTorch's default plan, but at least the
            smallest peak that the search reaches. For a device, a fraction is an error.
        of: "saved" activations, "peak", or all memory of a "device". A peak requires a search: use `remat.choose` or
            `remat.compile`. For a device, use `remat.compile` or `remat.forecast`, which know the memory outside a
            graph.
        estimator: the estimator of recompute times, a registered name or an instance.
        optimizer: the optimizer whose memory counts on a device: the name of one of torch.optim, also with options
            ("sgd:momentum=0.9"), a callable such as `torch.optim.SGD`, or "none". The default is AdamW, because few
            optimizers need more memory.
        offload: True if saved activations may wait on the host; or a device, if the estimator has none with a host: a
            known name such as "h100", a file, or a profile. Recompute times are always the estimator's.
        regions: smaller budgets of parts of the model, which hold besides `budget`: paths of modules, or patterns such
            as "vision_tower.*", each with an amount like `budget`. What these modules compute counts, with the modules
            inside of them. A fraction is a share of what PyTorch's default plan saves there, but at least what must be
            saved there (`remat.improve.byte_budgets.rows_of`).
        in_flight: how many calls are alive at the same time. A size, also one of `regions`, is for all of them
            together. A fraction of saved activations is a share of what each call saves by default; a fraction of a
            peak is a share of the peak of as many calls under PyTorch's default plan.
    """

    name: ClassVar[str] = "memory-budget"

    budget: float | int | str = 0.5
    of: Of = "saved"
    estimator: str | Estimator = DEFAULT_ESTIMATOR
    optimizer: object = "adamw"
    offload: bool | str | Path | DeviceProfile = False
    regions: Mapping[str, float | int | str] | None = field(default=None, hash=False)
    in_flight: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.regions, Mapping):  # a later change of the caller's mapping changes nothing here
            object.__setattr__(self, "regions", {**self.regions})
        find_estimator(self.estimator)  # an unknown name raises here, where the user typed it
        _ = self.amount  # and so does a budget that cannot be parsed
        if not isinstance(self.budget, str):  # NumPy's integers overflow silently, and their repr differs
            plain = int(self.budget) if is_whole(self.budget) else float(self.budget)
            object.__setattr__(self, "budget", plain)
        object.__setattr__(self, "in_flight", checked_number("MemoryBudget.in_flight", self.in_flight, 1))
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
        for option, given in (("offload", self.offload_device is not None), ("regions", bool(self._region_amounts))):
            if given and self.of != "saved":
                raise InvalidOption(f'MemoryBudget.{option} needs of="saved", got of={self.of!r}')

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's
        return find_estimator(self.estimator).unit

    def data(self) -> str:
        """Returns the data of the estimator, and the figures of the device that offloads."""
        figures = find_estimator(self.estimator).data()
        return f"{figures}\n{self.offload_device!r}" if self.offload else figures

    def terms(self, graph: Graph) -> Terms:
        """Adds one call's budget, unless it limits a peak, and the price of copies to the terms of `RecomputeTime`."""
        terms = RecomputeTime(self.estimator).terms(graph)
        if self.limits_peak:
            return terms
        problem = RecomputeTime(self.estimator).pose(graph)
        if (device := self.offload_device) is not None:
            offload = Offload(2 * copy_ns(graph, device), cannot_offload(graph))
            terms = replace(terms, offload=offload)
            problem = replace(problem, offload=offload.take(graph.plannable))
        limit = saved_limit(graph, problem, self._of_one_call(self.amount))
        amounts = {part: self._of_one_call(amount) for part, amount in self._region_amounts.items()}
        parts = [(str(part), computed_in(graph, part), amount) for part, amount in amounts.items()]
        return replace(terms, budget_bytes=limit, rows=rows_of(graph, problem, parts, limit) if parts else ())

    def _of_one_call(self, amount: int | Fraction) -> int | Fraction:
        return amount if isinstance(amount, Fraction) else amount // self.in_flight

    @property
    def calls_in_flight(self) -> int:
        return self.in_flight

    @property
    def row_limits(self) -> tuple[int | Fraction, ...]:
        return tuple(self._region_amounts.values())

    @property
    def _region_amounts(self) -> dict[str, int | Fraction]:
        if self.regions is None:
            return {}
        if not isinstance(self.regions, Mapping) or not self.regions:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"MemoryBudget.regions must map at least one path or pattern of modules to a budget, such as "
                f'{{"vision_tower.*": "20%"}}, got {self.regions!r}'
            )
        return {part: read_amount(of, f"MemoryBudget.regions[{part!r}]") for part, of in self.regions.items()}

    @property
    def offload_device(self) -> DeviceProfile | None:
        """Returns the device that offloads to its host; None if nothing is offloaded.

        Raises:
            InvalidOption: the device has no host, or the estimator has no device, or its unit is not nanoseconds.
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
    def step_device(self) -> object:
        """Returns the device of the estimator; for the default estimator, the device of the graph.

        With an estimator without a device, such as "flops", plans are ranked by price alone.
        """
        return GRAPHS_OWN if self.estimator == DEFAULT_ESTIMATOR else find_estimator(self.estimator).step_device

    def on_device(self, device: str) -> MemoryBudget:
        """Returns this cost model, with the roofline of a device if its estimator is the default.

        Raises:
            InvalidOption: the estimator names another device.
        """
        if self.estimator == DEFAULT_ESTIMATOR:
            return replace(self, estimator=f"{DEFAULT_ESTIMATOR}:device={device}")
        named = find_estimator(self.estimator).step_device
        if named not in (None, device):
            raise InvalidOption(
                f"device={device!r}, but MemoryBudget.estimator has the times of {named!r}: name one device, or leave "
                f"one of the two out"
            )
        return self

    @property
    def amount(self) -> int | Fraction:
        """Returns the budget in bytes, or as an exact fraction; a double would lose bytes past 2**53."""
        return read_amount(self.budget, "MemoryBudget.budget")

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        return (self.amount,) if self.of == "saved" else ()

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        return (self.amount,) if self.of == "peak" else ()

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        return (DeviceLimit(int(self.amount), self.optimizer),) if self.of == "device" else ()
