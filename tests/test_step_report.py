"""Whoever trains sees what was chosen: `step.report()`, `remat.last_report()`, and the log."""

from __future__ import annotations

import copy
import html
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from depth import deep_except
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.accuracy.live_kernels import visited
from remat.improve.byte_budgets import default_plan, default_saved_bytes
from remat.predict.time import modelled_time
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.run import ranks, shared_budget
from remat.pytorch.run.plan_log import Log, log_plans_if_asked
from remat.pytorch.run.report import Report
from remat.pytorch.seam.torch_names import torch_compile
from remat.words import human_bytes
from tests.test_whole_run import WIDTH, Block, Model


def batch() -> Tensor:
    return torch.randn(64, WIDTH)


def test_a_report_without_graphs_names_graph_breaks() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return torch.compiler.disable(self.layer)(x)

    step = remat.compile(Broken(), codegen=False)
    step(batch()).sum().backward()
    with_reason = r"Dynamo compiled nothing of it.* graph break.*TORCH_LOGS=graph_breaks says why"
    assert re.search(with_reason, str(step.report()))


def test_a_report_says_what_is_kept_for_real() -> None:
    model, x = Model(), batch()
    step = remat.compile(model, codegen=False)
    assert "no graph was planned" in str(step.report())
    result, kept = saved_activations(step, model, x)
    result.sum().backward()
    (row,) = step.report().as_frame().to_dict("records")
    assert row["saved_bytes"] == row["default_saved_bytes"] == kept.bytes < row["no_recompute_saved_bytes"]
    assert row["peak_bytes"] == row["default_peak_bytes"] == remat.timeline(*graph_and_plan(step)).peak_bytes
    assert row["is_proven"]
    assert row["seconds"] > 0


def test_one_look_at_a_report_tells_memory_time_and_budget() -> None:
    """The times are those of the same kernels that `predict_traffic` and `modelled_time` give."""
    model, x = Model(2), batch()
    step = remat.compile(model, cost_model=MemoryBudget(0.3), codegen=False)
    step(x).sum().backward()
    report = step.report()
    graph, plan = graph_and_plan(step)
    (row,) = report.as_frame().to_dict("records")
    default = default_plan(graph)
    assert default is not None
    for column, one in (("step_ns", plan), ("default_step_ns", default)):
        kernels = remat.predict_traffic(graph, one).kernels
        assert row[column] == pytest.approx(modelled_time(graph, kernels, "cpu").ns)
    saved, time, budget, *_ = str(report).splitlines()
    share = row["saved_bytes"] / row["default_saved_bytes"]
    assert saved.startswith(f"saved {human_bytes(row['saved_bytes'])}, {share:.0%} of PyTorch's default; peak ")
    assert time.startswith(f"step {row['step_ns'] / row['default_step_ns'] - 1:+.1%} beside PyTorch's default")
    assert f"{row['step_ns'] / row['checkpointed_step_ns'] - 1:+.1%} beside every layer checkpointed" in time
    assert budget == "budget: kept"
    assert "next: for a faster step" in str(report)


def test_a_report_says_at_once_that_a_budget_is_not_kept() -> None:
    step = remat.compile(Model(), cost_model=MemoryBudget(0.01, of="peak"), codegen=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(batch()).sum().backward()
    told = str(step.report()).splitlines()
    assert "budget: not kept, see below" in told
    assert any(line.startswith("next: a smaller batch") for line in told)


def test_a_plan_that_saves_nothing_has_a_share_of_zero() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    step = remat.compile(model, cost_model=MemoryBudget(0.0), codegen=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peak rises
        step(torch.randn(64, 8)).sum().backward()
    assert str(step.report()).startswith("saved 0 B, 0% of PyTorch's default")


def test_a_notebook_shows_what_print_shows() -> None:
    step = remat.compile(Model(), codegen=False)
    step(batch()).sum().backward()
    shown = step.report()._repr_html_()
    assert html.unescape(shown.removeprefix("<pre>").removesuffix("</pre>")) == str(step.report())
    assert "budget:" not in shown
    assert "next: for less memory, lower the budget" in shown  # no step is slower: there is more to gain


def graph_and_plan(step: object) -> tuple[remat.Graph, remat.Plan]:
    (planned,) = step.report().graphs  # type: ignore[attr-defined]
    return planned.graph, planned.plan


def test_graphs_that_are_planned_again_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_budget, "_WORTHWHILE", -1)
    model = Model(2, breaks=True)
    step = remat.compile(model, cost_model=MemoryBudget(0.5), codegen=False)
    for _ in range(3):
        step(batch()).sum().backward()
    report = step.report()
    assert len(report.graphs) == 2
    assert re.search(r"^saved .* of PyTorch's default, in 2 graphs together\n", str(report))
    assert {planned.chosen.by for planned in report.graphs} == {"all graphs together"}
    frame = report.as_frame()
    assert frame["default_saved_bytes"].tolist() == [default_saved_bytes(planned.graph) for planned in report.graphs]
    assert frame["saved_bytes"].sum() <= frame["default_saved_bytes"].sum() / 2
    assert frame["gap"].max() < 0.001
    assert max(map(len, str(report).splitlines())) <= 80


def test_several_calls_are_added_up_as_the_budget_counts_them() -> None:
    """Graphs that are called more than once, and what one makes for the next, are a part of what is held."""
    model = Model(2, breaks=True)
    step = remat.compile(model, cost_model=MemoryBudget("100KB"), codegen=False)
    for _ in range(3):
        result, kept = saved_activations(step, model, batch())
        result.sum().backward()
    assert step.report().held_bytes == kept.bytes


def beside_default(make: Callable[[], nn.Module], budget: float) -> tuple[Report, list[int]]:
    """Returns the report of a model within a share, and what autograd kept: by PyTorch's default, and within it."""
    kept = list[int]()
    for cost_model in None, MemoryBudget(budget):
        model = make()
        step = remat.compile(model, cost_model=cost_model, codegen=False)
        for _ in range(4):
            result, saved = saved_activations(step, model, batch())
            result.sum().backward()
        kept.append(saved.bytes)
    return step.report(), kept


class Ending(Block):
    """A block whose graph ends with it: the graph is called once for each block."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        torch._dynamo.graph_break()
        return x


@pytest.mark.parametrize("budget", deep_except([0.3], [0.3, 0.6]))
def test_a_graph_counts_as_often_as_it_is_called(budget: float) -> None:
    """Of a budget of 0.3, which was kept, the report said 40%."""
    report, kept = beside_default(lambda: nn.Sequential(*(Ending() for _ in range(3))), budget)
    assert sum(report.calls) > len(report.graphs)
    share = f", {kept[1] / kept[0]:.0%} of PyTorch's default, in {sum(report.calls)} calls of {len(report.graphs)} "
    assert share in str(report)
    assert "\nbudget: kept\n" in str(report)
    assert report.limit_bytes >= report.held_bytes == kept[1]


class Squashing(nn.Module):
    """Its graph saves its result, and the next one saves the same storage as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x).tanh()
        torch._dynamo.graph_break()
        return x


def test_the_share_of_what_two_graphs_save_counts_it_once() -> None:
    """The report said 55% where autograd held all that it holds by PyTorch's default, and called 60% kept."""
    told, kept = beside_default(lambda: nn.Sequential(*(Squashing() for _ in range(6))), 0.6)
    report = str(told)
    assert f", {kept[1] / kept[0]:.0%} of PyTorch's default, in " in report
    assert ("budget: kept" in report) is (kept[1] <= 0.6 * kept[0])


def test_a_step_without_a_plan_of_ours_says_why() -> None:
    impossible = remat.compile(Model(), plan=remat.Plan(("nothing",), ()), on_error="fallback", codegen=False)
    with pytest.warns(UserWarning, match="falls back"):
        impossible(batch()).sum().backward()
    assert "runs PyTorch's own plan: Plan.saved names 'nothing'" in str(impossible.report())
    torch.compiler.reset()
    with torch._dynamo.config.patch(disable=True):
        for off in (remat.compile(Model(), codegen=False), remat.compile(torch.sin), remat.compile(Model().forward)):
            assert "torch.compile is switched off" in str(off.report())


@dataclass(frozen=True)
class HasAnotherBudget(ByteTraffic):
    """Has an option with this name, and limits no memory."""

    name: ClassVar[str] = "has-another-budget"

    budget: str = ""


@pytest.mark.parametrize(
    ("cost_model", "told"),
    [("step-time", []), (HasAnotherBudget(budget="money"), []), (MemoryBudget(0.5), ["budget: kept in each call"])],
)
def test_the_last_report_has_what_a_backend_by_name_planned(
    cost_model: object, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, 1))
    compiled: Any = torch_compile(model, backend="remat", options={"remat.cost_model": cost_model})
    with caplog.at_level(logging.INFO, logger="remat"), visited():
        compiled(batch()).sum().backward()
    planned = remat.last_report().graphs[-1]
    assert "aten.erf.default" in planned.graph.ops
    assert f"a graph of {len(planned.graph)} values saves" in caplog.text
    lines = str(replace(remat.last_report(), graphs=(planned,), notes=())).splitlines()
    assert [line for line in lines if line.startswith("budget:")] == told


def test_a_row_of_a_long_search_fits_into_80_columns() -> None:
    step = remat.compile(Model(2), cost_model=MemoryBudget(0.5), codegen=False)
    step(batch()).sum().backward()
    (planned,) = step.report().graphs
    chosen = replace(planned.chosen, by="peak-search", is_proven=False, gap=0.786)
    told = str(Report((replace(planned, chosen=chosen, seconds=115.80),))).splitlines()
    assert any(line.split()[-3:] == ["78.6%", "116", "peak-search"] for line in told)


def test_a_report_leaves_the_model_as_it_is() -> None:
    class Reporting(nn.Linear):
        def report(self) -> str:
            return "my own"

    model, reporting = Model(), Reporting(WIDTH, WIDTH)
    step = remat.compile(model, codegen=False)
    step(batch()).sum().backward()
    assert not hasattr(model, "report")
    assert set(step.state_dict()) == {f"_orig_mod.{name}" for name in model.state_dict()}  # type: ignore[attr-defined]
    copy.deepcopy(step)(batch()).sum().backward()  # a copy trains, and has no report
    assert remat.compile(reporting, codegen=False).report() == "my own"
    function = remat.compile(torch.sin, codegen=False)
    function(torch.ones(3, requires_grad=True)).sum().backward()
    assert len(function.report().graphs) == 1


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The library's own, which is put back as it was."""
    own = logging.getLogger("remat")
    level = own.level
    monkeypatch.setattr(own, "handlers", [*own.handlers])
    monkeypatch.setattr(own, "propagate", own.propagate)
    yield own
    own.setLevel(level)


@pytest.mark.usefixtures("logger")
def test_the_log_is_quiet_unless_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    """As at the end of the import, where the environment says so; `test_cached_plans.py` sets it for a process."""
    for setting, expected in (("", []), ("plans", ["remat: planning a graph", "remat: a graph"])):
        log_plans_if_asked(setting)
        remat.compile(nn.Linear(2, 2), codegen=False)(torch.ones(2, 2)).sum().backward()
        printed = capfd.readouterr().err.splitlines()
        assert [line.partition(" of ")[0] for line in printed if line.startswith("remat: ")] == expected
    with pytest.warns(UserWarning, match=r'REMAT_LOG must be "plans", or not set, got \'plan\': nothing is logged'):
        log_plans_if_asked("plan")


@pytest.fixture
def nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_warned_about", set[str]())


@pytest.mark.usefixtures("nothing_warned_of")
@pytest.mark.parametrize(
    ("budget", "said", "takes"),
    [
        (MemoryBudget(0.3, of="peak"), "30% of the predicted peak of PyTorch's default plan", "is predicted to take"),
        (MemoryBudget(0.0), "0% of what PyTorch's default plan saves", "takes"),
    ],
)
def test_a_share_that_no_plan_keeps_is_told_once(budget: MemoryBudget, said: str, takes: str) -> None:
    """It was raised in silence, and called "within the budget"."""

    def drops(x: Tensor) -> Tensor:  # whose mask is a matter of chance
        return torch.nn.functional.dropout(x.sin(), 0.5).cos()

    steps = [remat.compile(drops, cost_model=budget, codegen=False) for _ in range(2)]
    told = rf"{said} \(.*\) was asked for, but a graph of the model {takes} .*B, \d+%: "
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step, rows in zip(steps, (16, 24), strict=True):
            torch.compiler.reset()
            step(torch.randn(rows, 32, requires_grad=True)).sum().backward()
    assert len([warning for warning in warned if re.search(told, str(warning.message))]) == 1
    for step in steps:
        report = step.report()
        assert said in str(report)
        assert "within the budget" not in str(report)
        assert re.search(told, report.graphs[0].remarks[0])


@pytest.mark.usefixtures("nothing_warned_of")
@pytest.mark.parametrize("breaks", [False, True])
def test_of_a_graph_that_others_may_follow_it_is_told_that_its_share_is_not_the_last_word(breaks: bool) -> None:
    step = remat.compile(Model(2, breaks=breaks), cost_model=MemoryBudget(0.3, of="peak"), codegen=False)
    with pytest.warns(UserWarning, match="was asked for") as warned:
        step(batch()).sum().backward()
    told = str(warned[0].message)
    assert told.endswith("all graphs are planned again together after the first steps") is breaks


@pytest.mark.usefixtures("nothing_warned_of")
def test_of_unrelated_models_it_is_counted_how_many_miss_their_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.pytorch.run.plan_log._recent", Log(64))
    for width, budget in (8, MemoryBudget(0.0, of="peak")), (16, MemoryBudget(1.0, of="peak")):
        model = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            remat.compile(model, cost_model=budget, codegen=False)(torch.randn(4, width)).sum().backward()
    assert "\nbudget: not kept by 1 of 2 graphs, see below\n" in str(remat.last_report())


@pytest.mark.usefixtures("nothing_warned_of")
def test_a_share_that_is_kept_is_not_told() -> None:
    model = Model()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*was asked for")
        for budget in MemoryBudget(0.9), MemoryBudget(1.0, of="peak"):
            torch.compiler.reset()
            step = remat.compile(model, cost_model=budget, codegen=False)
            step(batch()).sum().backward()
            assert step.report().graphs[0].remarks == ()


@pytest.mark.usefixtures("nothing_warned_of")
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_budget_of_a_checkpointed_model_is_told_with_the_switch(is_checkpointed: bool) -> None:
    model = Model()

    def forward(x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False).sin() if is_checkpointed else model(x).sin()

    step = remat.compile(forward, cost_model=MemoryBudget("1MB"), codegen=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step(batch().requires_grad_()).sum().backward()
    switch = "model.gradient_checkpointing_disable()"
    assert sum(switch in str(warning.message) for warning in warned) == is_checkpointed
    assert (switch in str(step.report())) == is_checkpointed


@pytest.mark.usefixtures("nothing_warned_of")
@pytest.mark.parametrize("options", [{"max_fusion_size": 8}, {"cpp.max_horizontal_fusion_size": 2}, {}])
def test_settings_that_predictions_do_not_know_are_told_by_their_names(options: dict[str, int]) -> None:
    step = remat.compile(nn.Linear(WIDTH, WIDTH, bias=False), cost_model=MemoryBudget("1MB"), options=options)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step(batch()).sum().backward()  # a product: no kernel has to be compiled
    told = [str(warning.message) for warning in warned if "not the default" in str(warning.message)]
    assert len(told) == len(options)
    assert all(f"torch._inductor.config.{name}: " in text for name, text in zip(options, told, strict=True))


def test_the_first_line_tells_both_peaks_where_the_check_finds_another_one() -> None:
    step = remat.compile(Model(), cost_model=MemoryBudget(0.9, of="peak"))
    with visited():
        step(batch()).sum().backward()
    (planned,) = step.report().graphs
    assert planned.chosen.checked_peak_bytes == planned.row["peak_bytes"]
    first, *_ = str(step.report()).splitlines()
    assert "Inductor's code" not in first
    other = replace(planned, chosen=replace(planned.chosen, checked_peak_bytes=2 * planned.row["peak_bytes"]))
    first = " ".join(str(Report((other,))).split())
    share = planned.row["peak_bytes"] / planned.row["default_peak_bytes"]
    size = human_bytes(planned.row["peak_bytes"])
    assert f"peak {size}, {share:.0%} of it, as predicted, but {human_bytes(2 * planned.row['peak_bytes'])}" in first


def test_a_warning_comes_from_the_first_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "several_ranks", lambda: True)
    for rank, times in ((0, 1), (1, 0)):
        monkeypatch.setattr(ranks, "_warned_about", set[str]())
        monkeypatch.setattr(ranks.dist, "get_rank", lambda rank=rank: rank)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            ranks.warn("once", "this")
            ranks.warn("once", "this")
        assert len(warned) == times


class Quantizer(nn.Module):
    """Graphs that hand activations to each other, as a residual quantizer's: each takes what the last one left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.layers
        x = x - first(x).tanh()
        torch._dynamo.graph_break()
        return x - second(x).tanh()


def test_what_graphs_hand_to_each_other_is_in_a_column_and_counts_beside_pytorchs_too() -> None:
    """PyTorch's plan was said to keep as much as ours, and kept an input of another graph's beside it."""
    step = remat.compile(Quantizer(), cost_model=MemoryBudget(0.5), codegen=False)
    for _ in range(4):
        result, kept = saved_activations(step, step, batch())  # type: ignore[arg-type]
        result.sum().backward()
    report, size = step.report(), 64 * WIDTH * 4
    frame = report.as_frame()
    assert frame["handed_bytes"].tolist() == frame["default_handed_bytes"].tolist() == [0, size]
    assert frame["saved_bytes"].tolist() == [0, 0]
    assert frame["default_saved_bytes"].tolist() == [size, size]
    assert report.held_bytes == kept.bytes
    row = next(line for line in str(report).splitlines() if line.startswith("2"))
    assert row.split()[1:7] == ["8.0", "KiB", "8.0", "KiB", "16.0", "KiB"]
    assert "handed: made by other graphs" in str(report)


class Handing(nn.Module):
    """Graphs that save what they hand to each other: two of them read `y`, and all of them read the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.detach().cumsum(0).sin()
        y = (self.first(x) * mask).exp()
        torch._dynamo.graph_break()
        z = (self.second(y.sin()) * mask).tanh()
        torch._dynamo.graph_break()
        return (z * y).sin() * mask


def steps_within(budget: float | str) -> Iterator[tuple[Report, int]]:
    """After each of four steps of `Handing`, the report, and what autograd kept."""
    step = remat.compile(Handing(), cost_model=MemoryBudget(budget), codegen=False)  # type: ignore[arg-type]
    for _ in range(4):
        result, kept = saved_activations(step, step, batch())  # type: ignore[arg-type]
        result.sum().backward()
        yield step.report(), kept.bytes


@pytest.mark.parametrize("budget", deep_except([0.3, "40KB"], [0.3, 0.8, 1.0, "40KB"]))
def test_what_several_graphs_save_is_held_once(budget: float | str) -> None:
    """It said 80,896 bytes of a residual quantizer where autograd held 25,600."""
    held = [(report.held_bytes, kept) for report, kept in steps_within(budget)]
    assert all(told >= kept for told, kept in held)
    # Before the graphs were planned together, they saved other values: what is told is of the plans that they have.
    assert held[-1][0] == held[-1][1]


@pytest.mark.parametrize(("budget", "recomputed"), [("25KB", 2), ("34KB", 0)])
def test_what_several_graphs_save_is_paid_once(budget: str, recomputed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 KB were refused where autograd holds 24,576 bytes, and of 34 KB a third was spent on the same bytes again."""
    *_, (report, kept) = steps_within(budget)
    assert report.held_bytes == kept == 3 * 64 * WIDTH * 4
    assert len(report.graphs[0].chosen.plan.recomputed) == recomputed
    monkeypatch.setattr("remat.pytorch.run.report._size", lambda _: "1023.9 KiB")
    assert "chosen by" in str(report)  # long sizes leave room for it
    assert "\n\n" not in str(report)


def test_a_graph_that_launches_nothing_has_a_peak_of_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timeline has no steps, and so is false."""

    class Empty:
        saved_bytes = peak_bytes = 0

        def __len__(self) -> int:
            return 0

    monkeypatch.setattr("remat.pytorch.run.planned_graph.timeline", lambda *_, **__: Empty())
    step = remat.compile(nn.Linear(2, 2), codegen=False)
    step(torch.randn(3, 2)).sum().backward()
    assert step.report().as_frame().peak_bytes.tolist() == [0]
    assert str(step.report())


def test_a_budget_that_several_calls_exceed_is_not_called_kept() -> None:
    step = remat.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU()), cost_model=MemoryBudget("40kB"), codegen=False)
    with pytest.warns(UserWarning, match="the budget of 40000 bytes"):
        results = [step(torch.randn(64, 64, requires_grad=True)) for _ in range(3)]
    sum(result.sum() for result in results).backward()
    assert "budget: not kept" in str(step.report())
