"""The tables' column without a device: what is scheduled, what is priced, and what is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import remat
from experiments.paper import batch_schedule, gelu, largest_batch
from experiments.paper.batch_schedule import ScheduledBatch, largest_scheduled
from experiments.paper.measure_table import measure
from experiments.paper.methods import FULL, MIN_CUT, NO
from experiments.paper.row_file import Rows, TableRow
from experiments.paper.steps import EVERYTHING, NOTHING
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase
from experiments.paper.ten_models import MODELS, Whole
from experiments.paper.without_device import UnlaunchedStep, scheduled
from remat.predict.time.modelled_step import KernelTime, ModelledTime

WITHOUT_DEVICE = Setting(VIRTUAL, "published", 1)


def nothing(setting: Setting) -> Figures:
    return {"kernels": 2 if setting.is_virtual else 3}


@pytest.mark.parametrize("called", ["published", "full"])
def test_the_column_says_whose_schedule_it_is_and_that_there_was_no_device(called: str, tmp_path: Path) -> None:
    table = PaperTable(
        "example", "An example", "a source", {"kernels": "kernels"}, [TableCase("one", nothing)], full_size=called
    )
    measure(table, Setting("cpu", "small", 1), tmp_path)
    assert "no device" not in (tmp_path / "example.md").read_text()
    measure(table, WITHOUT_DEVICE, tmp_path)
    lines = (tmp_path / "example.md").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("| case"))
    columns = [cell.strip() for cell in lines[at].split("|")]
    assert f"Triton schedule, {called} size, no device" in columns
    assert lines[at + 2].split("|")[columns.index(f"Triton schedule, {called} size, no device")].strip() == "2"


def test_the_small_size_is_not_scheduled_without_a_device() -> None:
    import typer

    from experiments.paper.measure_table import command  # a command line needs its own app

    app = typer.Typer()
    app.command()(command(gelu.TABLE))
    result = CliRunner().invoke(app, ["--device", VIRTUAL, "--size", "small"])
    assert result.exit_code == 2
    assert "expected published" in result.output


@pytest.mark.parametrize(
    ("strategy", "accesses", "acts_mb", "ms"), [(NOTHING, 13, 671, 1.33), (EVERYTHING, 5, 134, 0.5)]
)
def test_gelu_at_the_published_size_has_table_1s_accesses_and_nearly_its_times(
    strategy: str, accesses: int, acts_mb: int, ms: float
) -> None:
    figures = gelu.measure(strategy, WITHOUT_DEVICE)
    assert figures["fused_accesses"] == figures["predicted_accesses"] == accesses
    assert figures["kernels"] == 2
    assert round(float(figures["acts_mb"] or 0)) == acts_mb
    assert figures["modelled_ms"] == pytest.approx(ms, rel=0.07)


def test_each_product_of_a_pass_is_priced_once() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
    graph = remat.capture(model, torch.randn(32, 64), device=VIRTUAL)
    step = scheduled(graph, remat.choose(graph).plan or pytest.fail("no plan"))
    priced = [v for kernel in step.kernels for v in kernel.values if graph.compute_bound[v]]
    assert sorted(priced) == np.flatnonzero(graph.compute_bound).tolist()
    assert sum(not kernel.generated for kernel in step.kernels) == len(priced)


def straight(whole: Whole, method: str, batch: int) -> ScheduledBatch:
    """Holds 1 GiB, and 1/64 GiB a sample; takes 1 ms a sample, and a launch."""
    del whole, method
    kernel = KernelTime(backward=False, memory_ns=1e6 * batch, compute_ns=0, launch_ns=4000)
    step = UnlaunchedStep((), 0, batch * 2**24, ModelledTime("a toy", (kernel,)))
    return ScheduledBatch(batch, 2**30, step)


@pytest.mark.parametrize(("trials", "scheduled"), [(1, (48,)), (2, (48, 2432))])
def test_the_largest_batch_lies_on_the_line(
    monkeypatch: pytest.MonkeyPatch, trials: int, scheduled: tuple[int, ...]
) -> None:
    monkeypatch.setattr(batch_schedule, "scheduled_batch", straight)
    monkeypatch.setattr(batch_schedule, "_weight_bytes", lambda whole: 2**29)
    (albert,) = (whole for whole in MODELS if whole.name == "hf_Albert")
    found = largest_scheduled(albert, NO, 39 * 2**30, trials)
    assert found.batch == 2432, "38 x 64 samples, in steps of 128"
    assert found.held_bytes == 39 * 2**30
    assert found.samples_per_s == pytest.approx(1000, rel=1e-5)
    assert found.scheduled == scheduled


def test_the_page_says_how_far_each_batch_is_from_the_published_one(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "largest_batch.json", "largest_batch")
    for method, batch in ((FULL, 2048), (MIN_CUT, 1024), (NO, 256)):
        rows.add(TableRow(f"vgg16, {method}", VIRTUAL, "published", {"estimated_batch": batch}))
    (block,) = [text for text in largest_batch.summary(rows, tmp_path) if "over the published" in text]
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in block.splitlines()[2:]
    }
    assert cells["vgg16"] == cells["geometric mean"] == ["0.5", "2", "0.5"]
    assert cells["resnet18"] == ["", "", ""]
