"""The sources' tables about single operators and small modules: what must hold at any size, on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from depth import deep
from torch import Tensor
from torch.autograd import DeviceType
from typer.testing import CliRunner

import remat
from costmodels import ByteTraffic
from experiments.accuracy.peak_error import solved
from experiments.demo import SaveLeast
from experiments.paper import autocast, cosines, dropout_mask, encoder, evonorm, gelu, steps
from experiments.paper.measure_table import command
from experiments.paper.row_file import Rows
from experiments.paper.steps import EAGER, EVERYTHING, NOTHING, OURS, PYTORCH
from experiments.paper.table import Figures, PaperTable, Setting, WrongStep
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.inductor.scheduled import inductor_kernels
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.measure.step_strategies import Strategy
from remat.pytorch.measure.training_step import measure

TINY = Setting("cpu", "small", 1)
SIZE = 2**12
MODULES = (gelu, cosines, dropout_mask, evonorm, encoder, autocast)


def checked(table: PaperTable, figures: Figures) -> Figures:
    """What was measured has a heading in its table, and is a number, or is None."""
    assert set(figures) <= set(table.figures)
    assert all(value is None or math.isfinite(float(value)) for value in figures.values())
    return figures


def inputs(count: int = 1) -> list[Tensor]:
    return [torch.randn(SIZE, requires_grad=i == 0) for i in range(count)]


def moved(function: Callable[..., Tensor], args: list[Tensor], plan: remat.Plan) -> float:
    """Bytes by Inductor's own scheduler, over those of an input; no code is generated."""
    return sum(kernel.bytes for kernel in inductor_kernels(function, *args, plans=plan)) / args[0].nbytes


def test_gelu_reads_and_writes_as_often_as_the_paper_says() -> None:
    args = inputs()
    graph, plans = steps.plans(gelu.gelu, args)
    assert {name: moved(gelu.gelu, args, plan) for name, plan in plans.items()} == {
        NOTHING: 13,
        EVERYTHING: 5,
        PYTORCH: 5,
        OURS: 5,
    }
    kept = {name: PlanFacts.of(graph, plan).saved_bytes for name, plan in plans.items()}
    assert kept == {NOTHING: 4 * 4 * SIZE, EVERYTHING: 0, PYTORCH: 0, OURS: 0}, "x apart"


def test_without_fusion_recomputing_gelu_takes_more_operators_and_accesses() -> None:
    graph, plans = steps.plans(gelu.gelu, inputs())
    kept, again = (remat.predict_traffic(graph, plans[name], fused=False) for name in (NOTHING, EVERYTHING))
    assert len(again.kernels) > len(kept.kernels)
    assert again.accesses > kept.accesses > 13


def test_a_row_of_the_table_of_gelu() -> None:
    found = checked(gelu.TABLE, gelu.measure(NOTHING, TINY, elements=SIZE))
    assert found["fused_accesses"] == found["predicted_accesses"] == 13
    assert found["acts_mb"] == pytest.approx(5 * 4 * SIZE / 1e6)
    assert found["saved_mb"] == pytest.approx(4 * 4 * SIZE / 1e6)
    assert found["fused_kernels_ms"] is None, "a CPU has no time of kernels alone"
    assert float(found["fused_ms"] or 0) > 0
    assert float(found["unfused_ms"] or 0) > 0


def test_of_two_cosines_the_sum_alone_is_saved() -> None:
    args = inputs(4)
    graph, plans = steps.plans(cosines.cosines, args)
    assert {name: moved(cosines.cosines, args, plan) for name, plan in plans.items()} == {
        NOTHING: 11,
        EVERYTHING: 11,
        PYTORCH: 9,
        OURS: 9,
    }
    assert [graph.ops[graph.index[name]] for name in plans[OURS].saved] == ["aten.add.Tensor"]


def test_a_row_of_the_table_of_two_cosines() -> None:
    found = checked(cosines.TABLE, cosines.measure(OURS, TINY, elements=SIZE))
    assert found["accesses"] == found["predicted_accesses"] == 9
    assert found["saved_mb"] == pytest.approx(4 * SIZE / 1e6)
    assert isinstance(found["over_nothing_percent"], float)
    assert isinstance(found["over_everything_percent"], float)


def test_the_mask_takes_a_byte_an_element_where_the_random_numbers_take_four() -> None:
    (x,) = inputs()
    graph = remat.capture(dropout_mask.dropout, x)
    plans = {
        "numbers": dropout_mask.saving_the_numbers(graph),
        "mask": solved(graph, ByteTraffic()),
        "seed": solved(graph, SaveLeast()),
    }
    saved = {name: PlanFacts.of(graph, plan).saved_bytes / SIZE for name, plan in plans.items()}
    assert saved == {"numbers": 4, "mask": 1, "seed": 8 / SIZE}
    bytes_ = {name: 4 * moved(dropout_mask.dropout, [x], plan) for name, plan in plans.items()}
    # Twice a seed of 8 bytes, or four times where both passes draw.
    assert bytes_ == pytest.approx({"numbers": 24, "mask": 18, "seed": 16}, abs=64 / SIZE)
    assert 1 - bytes_["mask"] / bytes_["numbers"] == pytest.approx(0.25, abs=1e-3)


def test_a_row_of_the_table_of_the_mask() -> None:
    found = checked(dropout_mask.TABLE, dropout_mask.measure(OURS, TINY, elements=SIZE))
    assert found["saved_bytes_per_element"] == 1
    assert found["memory_percent"] == pytest.approx(25)
    assert isinstance(found["time_percent"], float)


@pytest.mark.parametrize("strategy", [OURS, dropout_mask.SEED])
def test_both_passes_have_one_mask(strategy: str) -> None:
    x = (torch.rand(SIZE) + 1).requires_grad_()
    step = dropout_mask.strategies(remat.capture(dropout_mask.dropout, x))[strategy](dropout_mask.dropout)
    output, tangents = step(x), torch.rand(SIZE) + 1
    steps.handing(tangents)(output).backward()
    assert x.grad is not None
    mask = output != 0
    assert 0.4 < float(mask.float().mean()) < 0.6
    assert torch.equal(x.grad, tangents * mask)


def test_evonorm_keeps_no_more_than_eager() -> None:
    shape = (2, 64, 8, 8)
    found = checked(evonorm.TABLE, evonorm.measure(OURS, evonorm.WIDE, TINY, own=shape))
    eager = evonorm.measure(EAGER, evonorm.WIDE, TINY, own=shape)
    assert isinstance(found["saved_mb"], float)
    assert isinstance(eager["saved_mb"], float)
    assert found["saved_mb"] <= eager["saved_mb"]
    assert found["accesses"] == pytest.approx(found["predicted_accesses"], rel=0.05)


def test_an_encoder_keeps_less_than_eager_and_least_when_aggressive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operator by operator: what is kept is the same, and no code has to be compiled."""
    modes = {OURS: ByteTraffic(), encoder.AGGRESSIVE: ByteTraffic(mode="aggressive")}
    ways: dict[str, Strategy] = {EAGER: lambda model: model}
    ways |= {name: partial(remat.compile, cost_model=mode, codegen=False) for name, mode in modes.items()}
    monkeypatch.setattr(encoder, "strategies", lambda: ways)
    sizes = encoder.EncoderSizes(32, 2, 64, 1, 4, 16)
    found = {name: checked(encoder.TABLE, encoder.measure(name, TINY, sizes=sizes)) for name in ways}
    saved, held = ({name: float(row[key] or 0) for name, row in found.items()} for key in ("saved_mb", "held_mb"))
    assert saved[encoder.AGGRESSIVE] < saved[OURS] < saved[EAGER]
    assert held[encoder.AGGRESSIVE] < held[OURS] < held[EAGER]
    assert found[OURS]["memory_percent"] == pytest.approx(100 * (1 - held[OURS] / held[EAGER]))


def test_eager_attention_keeps_its_scores_on_a_cpu() -> None:
    """As the notes say; with dropout torch has no operator for all of it there."""
    model, x = encoder.encoder(encoder.EncoderSizes(32, 2, 64, 1, 4, 24), "cpu")
    _, saved = saved_activations(model, model, x)
    assert (4, 2, 24, 24) in {each.shape for each in saved.each}
    _, saved = saved_activations(model.eval(), model, x)
    assert (4, 2, 24, 24) not in {each.shape for each in saved.each}


SMALL_GPT = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64, "context": 8, "batch": 2}


@deep
def test_copies_of_parameters_are_kept_unless_the_option_is_given() -> None:
    names = (OURS, autocast.NONE_KEPT)
    found = {
        name: checked(
            autocast.TABLE,
            autocast.measure(name, autocast.OPERATORS, autocast.AUTOCAST, TINY, sizes=SMALL_GPT),
        )
        for name in names
    }
    copies, saved = ({name: float(found[name][key] or 0) for name in names} for key in ("copies_mb", "saved_mb"))
    # Of all products: three weights of the attention, one after it, eight of the perceptron, and the head.
    weights = 12 * 32 * 32 + 64 * 32
    assert copies == {OURS: pytest.approx(2 * weights / 1e6), autocast.NONE_KEPT: 0}
    assert saved[OURS] - saved[autocast.NONE_KEPT] == pytest.approx(copies[OURS])


def test_weights_in_half_precision_have_no_copies() -> None:
    graph, plans = steps.plans(*autocast.transformer(autocast.BFLOAT16, "cpu", SMALL_GPT))
    for strategy in (NOTHING, PYTORCH, OURS, autocast.NONE_KEPT):
        assert autocast.chosen(strategy, autocast.OPERATORS, graph, plans)[1] == 0


def test_what_is_said_of_copies_holds_of_the_step_that_runs() -> None:
    """By the tensors that autograd packs away: those in bfloat16 with the shape of a weight, either way round."""
    model, args = autocast.transformer(autocast.AUTOCAST, "cpu", SMALL_GPT)
    shapes = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}
    shapes |= {shape[::-1] for shape in shapes}
    graph, plans = steps.plans(model, args)
    for strategy, kept in ((NOTHING, True), (OURS, True), (autocast.NONE_KEPT, False)):
        torch.compiler.reset()
        way, copies = autocast.chosen(strategy, autocast.OPERATORS, graph, plans)
        _, saved = saved_activations(way(model), model, *args)
        packed = sum(each.bytes for each in saved.each if each.dtype == "bfloat16" and each.shape in shapes)
        assert packed == copies
        assert (copies > 0) is kept


def cubed(x: Tensor) -> Tensor:
    return x * x * x


def wrong(model: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: 1.1 * model(x)


def test_a_wrong_step_is_an_error_and_no_figure() -> None:
    x = torch.randn(8, requires_grad=True)
    loss = steps.handing(torch.ones(8))
    with pytest.raises(WrongStep, match=r"tenth: wrong: .* is off by .* from eager"):
        steps.measured(cubed, (x,), {EAGER: lambda model: model, "tenth": wrong}, TINY, loss=loss)


def test_the_gradient_of_the_output_is_the_one_that_is_given() -> None:
    x, tangents = torch.randn(8, requires_grad=True), torch.randn(8)
    steps.handing(tangents)(cubed(x)).backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2 * tangents)
    frame = measure(cubed, x, strategies={EAGER: lambda model: model}, loss=steps.handing(tangents), repeats=1)
    assert frame["error"].tolist() == [""]


def test_what_is_held_after_the_forward_pass_counts_each_storage_once() -> None:
    x = torch.randn(SIZE, requires_grad=True)
    assert steps.held_bytes(torch.exp, torch.exp, (x,)) == 2 * x.nbytes, "the output is what exp keeps"
    assert steps.held_bytes(cubed, cubed, (x,)) == 3 * x.nbytes
    linear = torch.nn.Linear(16, 16)
    assert steps.held_bytes(linear, linear, (torch.randn(2, 16),)) == 4 * (16 * 16 + 16 + 2 * 2 * 16)


def test_the_time_of_kernels_is_that_of_kernels_alone() -> None:
    def event(key: str, us: float, *, on_device: bool = True, span: bool = False) -> Any:
        device = DeviceType.CUDA if on_device else DeviceType.CPU
        return SimpleNamespace(key=key, device_type=device, is_user_annotation=span, self_device_time_total=us)

    events = [event("triton_poi_fused_0", 10), event("Memcpy DtoD", 2)]
    events += [event("Context Sync", 50), event("Stream Wait Event", 5)]
    events += [event("aten::mul", 10, on_device=False), event("## Call CompiledFxGraph ##", 90, span=True)]
    assert steps.kernels_us(events) == 12


def test_the_profilers_events_have_what_is_asked_of_them() -> None:
    """On a CPU, where no kernel is: the attributes must be there, and nothing may be counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.randn(8).exp()
    events = list(profile.key_averages())
    assert events
    assert steps.kernels_us(events) == 0


def published(table: PaperTable) -> dict[str, dict[str, Any]]:
    return {case.name: dict(case.published) for case in table.cases if case.published}


def test_published_figures_of_the_paper() -> None:
    """Table 1, with the column of activations as section 2.2 says; and section 2.3."""
    names = ("acts_mb", "ops", "fused_accesses", "fused_ms", "unfused_accesses", "unfused_ms")
    assert published(gelu.TABLE) == {
        NOTHING: dict(zip(names, (671, 34, 13, 1.33, 74, 7.3), strict=True)),
        EVERYTHING: dict(zip(names, (134, 47, 5, 0.5, 98, 10.1), strict=True)),
    }
    assert published(gelu.TABLE)[NOTHING]["acts_mb"] == round(5 * 4 * 2**25 / 1e6)
    f1, f2 = published(cosines.TABLE), published(dropout_mask.TABLE)
    assert [f1[name]["accesses"] for name in (NOTHING, EVERYTHING, OURS)] == [11, 11, 9]
    assert f1[OURS]["over_nothing_percent"] == f1[OURS]["over_everything_percent"] == "21.6 (post: about 25)"
    assert f2[OURS] == {"saved_bytes_per_element": 1, "memory_percent": 25, "time_percent": 25}


def test_published_figures_of_the_post() -> None:
    found = published(evonorm.TABLE)
    times = {name: figures["step_us"] for name, figures in found.items()}
    assert times == {
        "(128, 32, 128, 128): eager": 6617.910861968994,
        "(128, 32, 128, 128): everything recomputed": 2145.9293365478516,
        "(128, 32, 128, 128): ours, minimum cut": 1474,
        "(128, 32, 128, 128): TorchScript": 3630.642890930176,
        "(128, 2048, 8, 8): eager": 1932.8975677490234,
        "(128, 2048, 8, 8): everything recomputed": 874.9675750732422,
        "(128, 2048, 8, 8): ours, minimum cut": 545,
        "(128, 2048, 8, 8): TorchScript": 1140.0103569030762,
    }
    assert found["(128, 32, 128, 128): ours, minimum cut"]["speedup"] == pytest.approx(4.49)
    shares = published(encoder.TABLE)
    assert shares[OURS] == {"memory_percent": "about 11", "time_percent": "about 11"}
    assert shares[encoder.AGGRESSIVE]["memory_percent"] == 45
    assert "11 less than this" in shares["TorchScript"]["memory_percent"], "improved by 11%, not 11% more"
    assert "3 less than this" in shares["TorchScript"]["time_percent"]


def test_published_figures_of_the_pull_request() -> None:
    found = published(autocast.TABLE)
    rows = {
        f"{backend}, {precision}": [
            found[f"{backend}, {precision}: {name}"][key]
            for name in (NOTHING, autocast.NONE_KEPT)
            for key in ("step_ms", "peak_gb")
        ]
        for backend, precision in autocast.PUBLISHED
    }
    assert rows == {
        "operator by operator, autocast": [551.92, 12.07, 571.24, 9.96],
        "operator by operator, bfloat16 weights": [419.87, 9.47, 445.76, 7.30],
        "Inductor, autocast": [546.97, 12.84, 570.09, 13.04],
        "Inductor, bfloat16 weights": [444.03, 10.01, 444.70, 10.19],
    }
    assert found["operator by operator, autocast: " + autocast.NONE_KEPT]["peak_percent"] == 17.5
    assert "not the published experiment" in autocast.TABLE.notes


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.TABLE.name)
def test_every_published_figure_has_a_heading_and_every_case_a_name_of_its_own(module: Any) -> None:
    table: PaperTable = module.TABLE
    assert module.__name__ == f"experiments.paper.{table.name}", "the command that its Markdown names"
    assert len({case.name for case in table.cases}) == len(table.cases)
    for case in table.cases:
        assert set(case.published) <= set(table.figures)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.TABLE.name)
def test_only_the_sizes_that_the_sources_say_are_called_published(module: Any) -> None:
    assert module.TABLE.full_size == ("published" if module in (gelu, evonorm) else "full")


def test_a_table_is_measured_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocast, "SMALL", SMALL_GPT)
    app = typer.Typer()
    app.command()(command(autocast.TABLE))
    only = "operator by operator, bfloat16 weights: nothing"
    options = ["--device", "cpu", "--repeats", "2", "--only", only, "--output", str(tmp_path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    (row,) = Rows.open(tmp_path / "autocast.json", "autocast").rows.values()
    assert float(row.figures["step_ms"]) > 0
    line = next(line for line in (tmp_path / "autocast.md").read_text().splitlines() if only in line)
    assert "not yet measured" in line
