"""The tables of the sources about whole models: methods save what they should, searches find what fits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from depth import deep
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import remat
from costmodels import ByteTraffic
from experiments.models.recipe import fake
from experiments.paper import acquisition, batch_trial, budget_curve, geomean, largest_batch, solver_time, throughput
from experiments.paper.batch_search import DoesNotFit, Found, grain
from experiments.paper.batch_search import largest_batch as search
from experiments.paper.batch_trial import Trials, captured, estimated_bytes
from experiments.paper.largest_batch import NothingFits
from experiments.paper.measure_table import measure
from experiments.paper.methods import FULL, MIN_CUT, NO, OURS, checkpointed, cut
from experiments.paper.row_file import Rows, TableRow
from experiments.paper.scheduled_step import Unwritten, computed
from experiments.paper.table import PaperTable, Setting, Unavailable
from experiments.paper.ten_models import MODELS, Amp, ModelSource, Whole
from remat.answer.plan_facts import PlanFacts, no_recompute_saved_bytes
from remat.pytorch.measure.step_values import Outcome

SMALL = Setting("cpu", "small", repeats=1)
PUBLISHED = Setting("cpu", "published", repeats=1)
BY_NAME = {whole.name: whole for whole in MODELS}
TABLES = (throughput.TABLE, largest_batch.TABLE, acquisition.TABLE, solver_time.TABLE, budget_curve.TABLE)


def measured(table: PaperTable, tmp_path: Path, only: str) -> dict[str, Any]:
    rows = measure(table, SMALL, tmp_path, only=only, minutes=5)
    problems = [row.problem for row in rows.rows.values() if row.kind]
    assert not problems
    return {row.case: row.figures for row in rows.rows.values()}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_figure_has_a_heading_and_every_case_a_name_of_its_own(table: PaperTable) -> None:
    names = [case.name for case in table.cases]
    assert len(set(names)) == len(names)
    for case in table.cases:
        assert case.published.keys() <= table.figures.keys()


def test_published_batches_are_those_of_table_2() -> None:
    table = {  # full-checkpoint, min-cut, no-checkpoint
        "densenet121": (2880, 512, 384),
        "hf_Albert": (1088, 64, 48),
        "hf_GPT2": (480, 56, 32),
        "mobilenet_v2": (5504, 768, 512),
        "resnet18": (5504, 2560, 1536),
        "timm_efficientnet": (5120, 768, 512),
        "timm_regnet": (5120, 768, 512),
        "timm_resnest": (4096, 896, 768),
        "timm_vovnet": (4352, 768, 512),
        "vgg16": (4096, 512, 512),
    }
    assert {whole.name: tuple(whole.batches[m] for m in (FULL, MIN_CUT, NO)) for whole in MODELS} == table
    cases = {case.name: case.published for case in largest_batch.TABLE.cases}
    assert cases["hf_GPT2, min-cut"] == {"batch": 56}
    assert cases["hf_GPT2, ours"] == {}, "nobody published a figure of ours"
    # "up to 1.75 times larger on standard models" (abstract)
    assert max(whole.batches[MIN_CUT] / whole.batches[NO] for whole in MODELS) == 1.75


def test_published_figures_of_table_3_and_section_4_4() -> None:
    cases = {case.name: case.published for case in acquisition.TABLE.cases}
    assert cases["qEHVI, min-cut"] == {"peak_gb": 0.946, "step_s": 0.158, "saved_gb": 0.83}
    assert cases["qEHVI, no-checkpoint"] == {"peak_gb": 5.3, "step_s": 1.13, "saved_gb": 5.2}
    named = {case.name: case.published for case in solver_time.TABLE.cases if case.published}
    assert named["hf-gpt2"]["networkx_s"] == 0.48
    assert not any(case.published for case in throughput.TABLE.cases), "Figure 5 prints no numbers beside its bars"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("densenet121", 7_978_856),
        ("mobilenet_v2", 3_504_872),
        ("resnet18", 11_689_512),
        ("timm_efficientnet", 5_288_548),
        ("timm_resnest", 10_611_688),
        ("timm_vovnet", 22_600_296),
        ("vgg16", 138_357_544),
    ],
)
def test_own_networks_have_as_many_parameters_as_the_packages(name: str, parameters: int) -> None:
    """Counts of torchvision and timm, which list them with their weights."""
    with torch.device("meta"):
        model = BY_NAME[name].own.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("whole", MODELS, ids=lambda whole: whole.name)
def test_checkpointing_shares_parameters_and_wraps_every_layer(whole: Whole) -> None:
    for source in (whole.small, whole.own):
        with torch.device("meta"):
            model = Amp(source.build(), "cpu")
        layers = source.layers_of(model)
        twin = checkpointed(model, source.layers_of)
        wrapped = [module.layer for module in twin.modules() if type(module).__name__ == "Checkpointed"]
        assert len(wrapped) == len({id(layer) for layer in layers}) > 0
        assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
        assert {id(b) for b in twin.buffers()} == {id(b) for b in model.buffers()}
        assert not any(type(module).__name__ == "Checkpointed" for module in model.modules())


def test_the_packages_models_have_the_layers_that_are_named() -> None:
    for name, layers in (("hf_GPT2", 12), ("hf_Albert", 1)):
        with torch.device("meta"):
            model = Amp(BY_NAME[name].library.build(), "cpu")
        assert len(BY_NAME[name].library.layers_of(model)) == layers


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has none of the layers"):
        checkpointed(nn.Linear(2, 2), lambda _: [])


@pytest.mark.parametrize("module", ["torchvision.models", "timm", "botorch.models"])
def test_a_missing_package_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    package = module.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    builds: dict[str, Callable[[], object]] = {
        "torchvision": BY_NAME["resnet18"].library.build,
        "timm": BY_NAME["timm_vovnet"].library.build,
        "botorch": lambda: acquisition.botorchs(acquisition.SMALL, "cpu"),
    }
    with pytest.raises(Unavailable, match=f"needs the package {package}: pip install {package}"):
        builds[package]()


def test_the_published_size_of_measured_steps_needs_cuda() -> None:
    with pytest.raises(Unavailable, match="needs CUDA"):
        throughput.case(BY_NAME["resnet18"], OURS, PUBLISHED)
    with pytest.raises(Unavailable, match="--device cpu"):
        solver_time.stored("hf-gpt2", Setting("cuda", "published", 1))


def test_methods_save_what_they_should() -> None:
    whole = BY_NAME["hf_Albert"]
    graph, torchs, _ = captured(whole, "small", False, 8)
    layered, full, _ = captured(whole, "small", True, 8)
    ours = PlanFacts.of(graph, cut(graph)).saved_bytes
    min_cut = PlanFacts.of(graph, torchs).saved_bytes
    assert PlanFacts.of(layered, full).saved_bytes < min(ours, min_cut)
    assert max(ours, min_cut) < no_recompute_saved_bytes(graph)


@deep
def test_a_layer_with_batch_normalization_is_checkpointed_right(tmp_path: Path) -> None:
    found = measured(throughput.TABLE, tmp_path, "resnet18, full")["resnet18, full-checkpoint"]
    assert found["error"] <= throughput.TOLERANCE
    assert found["kernels"] > 0
    assert "step_ms" not in found, "nothing is timed on the CPU"
    page = (tmp_path / "throughput.md").read_text()
    assert "| min-cut | 1.10 |" in page
    assert "not yet measured" in page


def test_a_step_that_is_wrong_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(step: object, model: nn.Module, args: tuple[Any, ...]) -> Unwritten:
        right = computed(model, model, args)
        return Unwritten((), 0, Outcome({name: 2 * value for name, value in right.values.items()}, right.drew))

    def right(whole: Whole, setting: Setting) -> tuple[Outcome, float]:
        model, args = whole.source(setting).sample("cpu", whole.batch(setting))
        return computed(model, model, args), 0.0

    monkeypatch.setattr(throughput, "unwritten", doubled)
    monkeypatch.setattr(throughput, "reference", right)
    rows = measure(throughput.TABLE, SMALL, tmp_path, only="resnet18, min-cut")
    row = rows.rows["resnet18, min-cut", "cpu", "small"]
    assert row.kind == "error"
    assert row.problem.startswith("WrongStep: ")
    assert "from a step that recomputes nothing, above 0.02" in row.problem


# --- the largest batch -------------------------------------------------------------------------------------------


@st.composite
def memories(draw: st.DrawFn) -> tuple[list[int], int]:
    """What batches 0, 1, ... take, in order; and a limit."""
    base, steps = draw(st.integers(0, 50)), draw(st.lists(st.integers(0, 30), min_size=1, max_size=600))
    taken = [base]
    for step in steps:
        taken.append(taken[-1] + step)
    return taken, draw(st.integers(0, max(taken) + 10))


@given(memories(), st.integers(1, 700), st.booleans())
def test_the_search_finds_the_largest_batch_that_fits(
    memory: tuple[list[int], int], first: int, runs_out: bool
) -> None:
    taken, limit = memory

    def held_bytes(batch: int) -> int:
        if batch >= len(taken):
            raise DoesNotFit("no such batch")
        if runs_out and taken[batch] > limit:
            raise DoesNotFit("out of memory")
        return taken[batch]

    largest = max((batch for batch, size in enumerate(taken) if size <= limit), default=0)
    found = search(held_bytes, limit, first=first, at_rest_bytes=taken[0])
    assert found.is_settled
    assert found.batch <= largest < found.batch + grain(found.batch) or largest == found.batch
    assert found.too_large is not None
    assert largest < found.too_large <= found.batch + grain(found.batch)
    assert found.reason
    if found.batch:
        assert found.held_bytes == taken[found.batch]


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(0, 10**9), st.integers(1, 10**4))
def test_a_straight_line_is_found_in_a_few_trials(slope: int, first: int, base: int, largest: int) -> None:
    """Each trial compiles a model: at most the first, two to reach the end, and two to prove it."""
    limit = base + slope * largest + slope - 1
    found = search(lambda batch: base + slope * batch, limit, first=first, at_rest_bytes=base)
    assert found.batch <= largest < found.batch + max(grain(found.batch), 1)
    doublings = max(0, math.ceil(math.log(largest / first, 8))) if largest > first else 0
    assert found.trials <= 5 + doublings + (math.ceil(math.log2(first / largest)) if first > largest else 0)


@pytest.mark.parametrize("lost", [0.03, 0.12, 0.3])
def test_memory_that_runs_out_early_costs_few_trials(lost: float) -> None:
    """An allocator never hands out all that there is: a search that trusts the line goes down step by step."""

    def held_bytes(batch: int) -> int:
        if 100 + 10 * batch > 10_000 * (1 - lost):
            raise DoesNotFit("out of memory")
        return 100 + 10 * batch

    found = search(held_bytes, 10_000, first=100, at_rest_bytes=100)
    assert found.is_settled
    assert found.trials <= 10


def test_a_search_that_ends_early_says_so() -> None:
    found = search(lambda batch: batch, 1000, first=1, most_trials=2)
    assert found == Found(found.batch, None, found.batch, 2)
    assert not found.is_settled
    assert search(lambda batch: batch, 10, first=1, time_limit_s=0).trials == 0


def test_the_estimate_grows_with_the_batch_and_falls_with_what_is_recomputed() -> None:
    whole = BY_NAME["hf_Albert"]
    at_8 = {method: estimated_bytes(whole, method, SMALL, 8) for method in (NO, FULL, MIN_CUT, OURS)}
    assert at_8[FULL] < min(at_8[MIN_CUT], at_8[OURS])
    assert max(at_8[MIN_CUT], at_8[OURS]) < at_8[NO]
    assert estimated_bytes(whole, OURS, SMALL, 4) < at_8[OURS]


@deep
def test_the_largest_estimated_batch_fits_and_the_next_does_not(tmp_path: Path) -> None:
    found = measured(largest_batch.TABLE, tmp_path, "resnet18, ours")["resnet18, ours"]
    limit = largest_batch.SMALL_GIB * 2**30
    whole = BY_NAME["resnet18"]
    assert estimated_bytes(whole, OURS, SMALL, found["estimated_batch"]) <= limit
    assert estimated_bytes(whole, OURS, SMALL, found["estimated_too_large"]) > limit
    assert "batch" not in found, "an estimate is no measurement"


def test_a_trial_that_fails_is_a_batch_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Trials, batch: int) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")

    monkeypatch.setattr(Trials, "_run", no_memory)
    with pytest.raises(DoesNotFit, match=r"CUDA out of memory\. Tried to allocate 2 GiB$"):
        Trials(BY_NAME["resnet18"], OURS, SMALL, limit_bytes=2**27).held_bytes(8)


def test_only_steps_are_limited_and_not_their_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's trials of configurations take a good part of the memory that small models get."""
    events: list[object] = []
    whole = BY_NAME["resnet18"]
    sample = whole.small.sample("cpu", 2)
    monkeypatch.setattr(ModelSource, "sample", lambda *_: sample)
    monkeypatch.setattr(batch_trial, "compiled", lambda method, model, *_: model)
    train = batch_trial._train
    monkeypatch.setattr(batch_trial, "_train", lambda *args: (events.append("step"), train(*args)))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(batch_trial, "_device_bytes", lambda: 2**30)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", events.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5)
    assert batch_trial.allowed_bytes(0.5) == 2**29
    assert batch_trial.allowed_bytes(80) == 2**30, "no more than there is"
    assert Trials(whole, OURS, SMALL, limit_bytes=2**29).held_bytes(2) == 5
    assert events == ["step", 0.5, "step", 1.0]


def test_a_batch_that_fails_for_another_reason_than_memory_says_so() -> None:
    figures = partial(largest_batch._figures, batch="batch", held_gib="held_gib", too_large="too_large")
    for reason in ("OutOfMemoryError: CUDA out of memory.", "9 bytes are above the limit of 8", ""):
        assert "failed" not in figures(Found(8, 9, 2**30, 3, reason))
    assert figures(Found(8, 9, 2**30, 3, "AcceleratorError: CUDA error: illegal memory access"))["failed"]
    with pytest.raises(NothingFits, match=r"^not a batch of 43 \(the search ended after 4 trials\): out of memory$"):
        figures(Found(0, 43, 0, 4, "out of memory"))
    with pytest.raises(NothingFits, match=r"^not a batch of 1: out of memory$"):
        figures(Found(0, 1, 0, 4, "out of memory"))


# --- means -------------------------------------------------------------------------------------------------------


def test_means_are_of_the_models_that_have_both() -> None:
    values = {("a", NO): 2.0, ("a", OURS): 4.0, ("b", NO): 1.0, ("b", OURS): 8.0, ("c", OURS): 100.0}
    (mean, models) = geomean.means(values)[OURS]
    assert models == 2
    assert math.isclose(mean, 4.0)
    assert NO not in geomean.means(values)


def test_means_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "x.json", "x")
    for case, kind in (("a, no-checkpoint", ""), ("a, ours", ""), ("b, no-checkpoint", ""), ("b, ours", "error")):
        row = TableRow(case, "cpu", "small", {"samples_per_s": 3.0}, kind)
        rows.rows[row.key] = row
    assert geomean.measured(rows, "cpu", "small", "samples_per_s") == {OURS: (1.0, 1)}
    assert geomean.measured(rows, "cuda", "small", "samples_per_s") == {}


# --- the acquisition function ------------------------------------------------------------------------------------


def test_the_acquisition_function_needs_a_fraction_of_what_autograd_stores() -> None:
    model, args = acquisition.ours(acquisition.SMALL, "cpu")
    graph = remat.capture(model, *args)
    stored = no_recompute_saved_bytes(graph)
    assert PlanFacts.of(graph, cut(graph)).saved_bytes < 0.6 * stored
    aggressive = remat.choose(graph, ByteTraffic(mode="aggressive")).plan
    assert aggressive is not None
    assert PlanFacts.of(graph, aggressive).saved_bytes < stored / 5, "the published min-cut stores a sixth"


def test_the_published_size_of_the_acquisition_function_stores_what_was_published() -> None:
    model, args = fake(*acquisition.ours(acquisition.PUBLISHED, "meta"))
    graph = remat.capture(model, *args)
    assert 5.0e9 < no_recompute_saved_bytes(graph) < 5.4e9


def test_the_acquisition_function_is_that_of_the_corpus() -> None:
    from experiments.models.published import ExpectedHypervolumeImprovement

    model, args = acquisition.ours(acquisition.SMALL, "cpu")
    sizes = acquisition.SMALL
    other = ExpectedHypervolumeImprovement(sizes.restarts, sizes.q, sizes.dims).double()
    other.load_state_dict({"candidates": model.get_parameter("candidates")})
    torch.testing.assert_close(model(*args), other(*args))


# --- solver time -------------------------------------------------------------------------------------------------


def test_solver_times_are_of_all_flow_solvers() -> None:
    found = solver_time.stored("small-bert", SMALL)
    assert found["values"] == 332
    times = {name: seconds for name, seconds in found.items() if name.endswith("_s")}
    assert times.keys() == solver_time.solvers().keys()
    assert {"ortools_s", "scipy_s", "networkx_s", "networkx_boykov_kolmogorov_s"} <= times.keys()
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in times.values())
    assert solver_time.stored("gpt2-small", SMALL)["scipy_s"] == solver_time.TOO_LARGE


def test_a_solver_that_takes_long_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    choose = solver_time.chosen

    def counted(graph: remat.Graph, solver: remat.plugin.Solver) -> remat.Solution:
        ran.append(solver.name)
        return choose(graph, solver)

    monkeypatch.setattr(solver_time, "chosen", counted)
    monkeypatch.setattr(solver_time, "ONCE_S", 0.0)
    found = solver_time.stored("small-bert", Setting("cpu", "small", repeats=3))
    assert len(ran) == len(solver_time.solvers())
    assert found["networkx_s"] > 0


def test_pytorchs_own_choice_is_timed_on_a_live_graph() -> None:
    found = solver_time.live(1, SMALL)
    assert found["pytorch_s"] > 0
    assert found["facts_s"] > 0


def test_the_large_graphs_are_larger_than_the_papers() -> None:
    from remat.facts.corpus import Corpus

    corpus = Corpus.open()
    stored = [case.name for case in solver_time.TABLE.cases if "live" not in case.name][2:]
    assert len(stored) > 5
    assert all(corpus.entry(name).values > 5000 for name in stored)


# --- the curve of budgets ----------------------------------------------------------------------------------------


def test_a_budget_saves_less_and_recomputes_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = {"saved_bytes": 2**20, "median_s": 1e-3, "peak_bytes": 2**21, "error": ""}
    steps = {"pytorch": step, "ours": step}
    monkeypatch.setattr(budget_curve, "measured_rows", lambda *args, **options: steps)  # compiling takes a minute
    measure(budget_curve.TABLE, SMALL, tmp_path, only="budget 0.4")
    rows = measure(budget_curve.TABLE, SMALL, tmp_path, only="budget 1.0")
    tight, loose = (rows.rows[f"budget {budget}", "cpu", "small"].figures for budget in ("0.4", "1.0"))
    for who in ("pytorch", "ours"):
        assert tight[f"{who}_share"] <= 40 < loose[f"{who}_share"] <= 100
        assert tight[f"{who}_recompute_ms"] > loose[f"{who}_recompute_ms"]
    assert loose["pytorch_share"] == 100
    assert "<svg" in (tmp_path / "budget_curve-cpu-small.svg").read_text()
    assert "budget_curve-cpu-small.svg" in (tmp_path / "budget_curve.md").read_text()


def test_recomputing_pointwise_operators_alone_runs_no_product_twice() -> None:
    model, args = budget_curve.stack(SMALL)
    graph = remat.capture(model, *args)
    plan = budget_curve._plan(graph, budget_curve.OnlyPointwise())
    again = [graph.index[name] for name in plan.recomputed]
    assert again
    assert not graph.compute_bound[again].any()


def test_the_curve_goes_from_budget_to_budget_whatever_was_measured_first(tmp_path: Path) -> None:
    def row(tenth: int) -> TableRow:
        figures = {f"{who}_{name}": 1.0 + tenth for who in budget_curve.WHO for name in ("saved_mib", "step_ms")}
        figures |= {f"{who}_recompute_ms": 10.0 - tenth for who in budget_curve.WHO}
        return TableRow(f"budget {tenth / 10:.1f}", "cpu", "small", figures)

    def drawn(tenths: Iterable[int], name: str) -> str:
        budget_curve.picture(map(row, tenths), "here", tmp_path / name)
        return re.sub('<dc:date>.*|(id|href|clip-path)="[^"]*"', "", (tmp_path / name).read_text())

    assert drawn((5, 0, 10), "resumed.svg") == drawn((0, 5, 10), "at_once.svg")
