"""Plans all stages of a pipeline within the memory of their devices, before anything runs: `remat.plan_pipeline`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from remat.answer.choice import Choice
from remat.answer.option_text import option_text
from remat.answer.plan_facts import no_recompute_plan
from remat.answer.registry import DEFAULT_BUDGET_MODEL, costmodel_class
from remat.answer.solver import check_time_limit
from remat.errors import Infeasible, InvalidOption, LimitReached
from remat.facts.argument_checks import checked_bytes, checked_list, model_and_arguments
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan
from remat.improve.choose import choose
from remat.improve.progress import ending_within
from remat.improve.step_predictor import predictor_on
from remat.predict.device_timeline import timeline
from remat.predict.in_flight import accumulated_bytes, argument_bytes, result_bytes
from remat.predict.memory import Timeline
from remat.predict.pipeline_schedule import PipelineSchedule, Schedule
from remat.predict.whole_step import FixedMemory
from remat.problem.costmodel import CostModel
from remat.pytorch.ahead.forecasting import capture_with_memory
from remat.pytorch.read.optimizer_memory import MakeOptimizer
from remat.words import human_bytes


@dataclass(frozen=True)
class StagePlan:
    """Holds the plan of a stage of a pipeline, and its memory; None where a figure is unknown, or there is no plan.

    Attributes:
        stage, rank: its number, and the rank that runs it.
        in_flight: the most microbatches that it holds at the same time.
        saved_bytes: the bytes that it saves of each microbatch.
        peak_bytes: the predicted peak of all that its rank holds, in bytes.
        extra_time: how much longer both passes take than with PyTorch's default plan, as modelled: 0.1 is a tenth more.
        fits: whether the peak of its rank is within the memory.
        cost_model: for `remat.compile(stage, cost_model=...)`.
        why: why there is no plan; "" if there is one.
    """

    stage: int
    rank: int
    in_flight: int
    saved_bytes: int | None = None
    peak_bytes: int | None = None
    extra_time: float | None = None
    fits: bool = False
    cost_model: CostModel | None = None
    why: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """Returns the cells of this stage in the table of `PipelinePlan`."""
        saved, peak = ("-" if size is None else human_bytes(size) for size in (self.saved_bytes, self.peak_bytes))
        time = "-" if self.extra_time is None else f"{self.extra_time:+.1%}"
        numbers = map(str, (self.stage, self.rank, self.in_flight))
        cost_model = self.why if self.cost_model is None else option_text(self.cost_model)
        return (*numbers, saved, peak, time, "yes" if self.fits else "no", cost_model)


@dataclass(frozen=True)
class PipelinePlan:
    """Holds the plans of all stages of a pipeline, in their order. Print it for a table."""

    stages: tuple[StagePlan, ...]

    def __str__(self) -> str:
        headings = ("stage", "rank", "in flight", "saves of each", "peak", "time", "fits", "cost model")
        rows = [headings, *(one.row for one in self.stages)]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
        return "\n".join(
            "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
        )


def plan_pipeline(
    stages: Iterable[tuple[Any, ...]],
    memory: int | str,
    *,
    microbatches: int,
    schedule: Schedule = "1f1b",
    ranks: int | None = None,
    optimizer: MakeOptimizer | None = None,
    device: Any = None,
    time_limit_s: float | None = None,
) -> PipelinePlan:
    """Plans all stages of a pipeline, each for the microbatches that it holds, within the memory of a device per rank.

    Counts what `torch.distributed.pipelining` holds of all microbatches: the inputs of a stage, the buffers for the
    gradients of its results, the last messages, and the results of the last stage, which `schedule.step` joins unless
    it is called with `return_outputs=False`. What runs outside a stage, such as the loss after the last one, does not
    count: leave room for it. The stages of one rank divide what their microbatches may hold, in proportion to what they
    hold with PyTorch's default plan. What else a pass needs is in memory once, since one stage runs at a time: so the
    budgets of these stages add up to more than the memory. If the predicted peak of the rank then exceeds the memory,
    each stage gets room of its own for its passes.

    Args:
        stages: for each stage (model, args) or (model, args, kwargs), with the arguments of one microbatch. Built with
            fake tensors (`torch._subclasses.FakeTensorMode()`), they take no memory.
        memory: the memory of a device: bytes, or a size such as "80GB".
        microbatches: the number of microbatches in a step.
        schedule: "1f1b", "interleaved-1f1b" or "gpipe" (`remat.predict.pipeline_schedule`).
        ranks: the number of ranks; None for one stage on each.
        optimizer: makes an optimizer of parameters, such as `torch.optim.AdamW`; None for no optimizer.
        device: the device to train on, as in `remat.capture`.
        time_limit_s: wall time in seconds for all searches together; each then ends with its best plan so far.

    Raises:
        CaptureError: see `remat.capture`; or a stage is not such a tuple.
        InvalidOption: an argument is invalid, or torch has no such schedule.
    """
    check_time_limit(time_limit_s)
    listed = checked_list("stages", stages, InvalidOption)
    if not listed:
        raise InvalidOption("stages must have at least one (model, args), got none")
    parts = [model_and_arguments(f"stages[{i}]", stage) for i, stage in enumerate(listed)]
    order = PipelineSchedule(schedule, len(parts), len(parts) if ranks is None else ranks, microbatches)
    memory_bytes, planned = checked_bytes("memory", memory), list[StagePlan]()
    with ending_within(time_limit_s):
        for rank in range(order.ranks):
            of_rank = list[_Stage]()
            for number in range(rank, order.stages, order.ranks):
                model, args, kwargs = parts[number]
                graph, fixed, _ = capture_with_memory(model, _received(number, args), kwargs, optimizer, device)
                of_rank.append(_Stage(number, order, graph, fixed))
            planned += _plan_rank(of_rank, rank, memory_bytes)
    return PipelinePlan(tuple(sorted(planned, key=lambda one: one.stage)))


# What the stage before has sent, which needs a gradient.
def _received(stage: int, args: Sequence[Any]) -> list[Any]:
    takes = [stage > 0 and isinstance(one, Tensor) and one.is_floating_point() for one in args]
    return [one.detach().requires_grad_() if needs else one for one, needs in zip(args, takes, strict=True)]


@dataclass(eq=False)
class _Stage:
    number: int
    order: PipelineSchedule
    graph: Graph
    fixed: FixedMemory
    budget: CostModel | None = None
    line: Timeline | None = None  # of its plan
    extra_time: float | None = None
    why: str = ""
    in_flight: int = field(init=False)
    accumulated_bytes: int = field(init=False)  # gradients of parameters that earlier microbatches left
    buffer_bytes: int = field(init=False)  # for messages and results, all the time
    joined_bytes: int = field(init=False)  # more of them at the end of the step

    def __post_init__(self) -> None:
        n, is_last = self.order.microbatches, self.number == self.order.stages - 1
        self.in_flight = self.order.in_flight(self.number)
        self.accumulated_bytes = accumulated_bytes(self.graph) if n > 1 else 0
        sent, received = 0 if is_last else self.fixed.tangent_bytes, argument_bytes(self.graph)
        self.buffer_bytes = (n - 1) * (received + sent)
        # The last message in each direction stays until the next one: a result, and a gradient of what was received.
        self.buffer_bytes += sent + (received if self.number else 0)
        # By default, `schedule.step` keeps all results of the last stage, and joins them in the end.
        results = result_bytes(self.graph) if is_last else 0
        self.buffer_bytes += (n - self.in_flight) * results
        self.joined_bytes = (n + self.in_flight) * results

    @property
    def held_bytes(self) -> int:
        """Returns the bytes that are alive while a pass runs, without those that the graph computes."""
        fixed = self.fixed.own_bytes + self.fixed.optimizer.state_bytes + self.fixed.tangent_bytes
        return fixed + self.buffer_bytes + self.accumulated_bytes

    def default_bytes(self) -> tuple[int, int]:
        """Returns, for PyTorch's default plan, the bytes that one pass adds, and those of all calls in flight."""
        plan = default_plan(self.graph)
        line = timeline(self.graph, no_recompute_plan(self.graph) if plan is None else plan, torchs_order=True)
        return line.peak_bytes - line.at_forward_end, self.in_flight * line.at_forward_end

    def plan_within(self, limit_bytes: int) -> None:
        """Finds a plan with which all microbatches in flight stay within a limit, or notes why there is none."""
        self.budget, self.line, self.extra_time, self.why = None, None, None, ""
        if limit_bytes < 0:
            self.why = f"what every plan holds takes {human_bytes(-limit_bytes)} more than the memory"
            return
        # With several calls in flight, a budget counts the accumulated gradients, too.
        limit_bytes += self.accumulated_bytes if self.in_flight > 1 else 0
        make: Any = costmodel_class(DEFAULT_BUDGET_MODEL)
        budget: CostModel = make(f"{limit_bytes} B", of="peak", in_flight=self.in_flight)
        try:
            plan = choose(self.graph, budget).plan
        except (Infeasible, LimitReached) as error:
            self.why = str(error).splitlines()[0]
            return
        assert plan is not None  # choose() raises if there is none
        self.budget, self.line = budget, timeline(self.graph, plan)
        predictor, default = predictor_on(self.graph), default_plan(self.graph)
        if predictor is not None and default is not None:
            ours, theirs = (predictor.ns(Choice.from_plan(self.graph, one).saved) for one in (plan, default))
            self.extra_time = ours / theirs - 1

    def stage_plan(self, rank: int, peak_bytes: int | None, *, fits: bool) -> StagePlan:
        saved_bytes = None if self.line is None else self.line.saved_bytes
        about = self.extra_time, fits, self.budget, self.why
        return StagePlan(self.number, rank, self.in_flight, saved_bytes, peak_bytes, *about)


def _plan_rank(stages: Sequence[_Stage], rank: int, memory_bytes: int) -> list[StagePlan]:
    available = memory_bytes - sum(one.held_bytes for one in stages)
    passes, waiting = zip(*(one.default_bytes() for one in stages), strict=True)
    peak = None
    for most in dict.fromkeys((max(passes), sum(passes))):  # room for one pass at a time, or for each
        for one, own, held in zip(stages, passes, waiting, strict=True):
            part = (available - most) * held // max(sum(waiting), 1)
            one.plan_within(part + (most if most == max(passes) else own))
        peak = _peak(stages, rank)
        if peak is None or peak <= memory_bytes:
            break
    fits = peak is not None and peak <= memory_bytes
    return [one.stage_plan(rank, peak, fits=fits) for one in stages]


def _peak(stages: Sequence[_Stage], rank: int) -> int | None:
    """Predicts the peak bytes of a rank: what all microbatches hold, plus what a pass adds; None if unknown."""
    lines = {one.number: one.line for one in stages if one.line is not None}
    if len(lines) < len(stages):
        return None
    during = (
        sum(count * lines[stage].at_forward_end for stage, count in held.items())
        + lines[runs].peak_bytes
        - lines[runs].at_forward_end
        for runs, held in stages[0].order.moments(rank)
    )
    outside = sum(max(one.fixed.outside_bytes) + one.buffer_bytes + one.joined_bytes for one in stages)
    return max(sum(one.held_bytes for one in stages) + max(during), outside)
