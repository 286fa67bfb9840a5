"""Peaks of steps on GPUs: fused attention with a mask, what it takes while it runs, and figures of real GPUs."""

from __future__ import annotations

import re
import statistics
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import remat
from experiments.accuracy.gpu_compared import plans_of
from experiments.models.measured_models import thin_llama
from experiments.models.save_everything import SaveEverything, plan_of
from experiments.models.workloads import KERNEL_ZOO
from remat.errors import UnknownName
from remat.predict.buffers.workspaces import gpu_call_bytes
from remat.predict.kernels.ir import Buffer
from remat.predict.memory import simulate
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import flops_per_s, masked_attention
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.measure.torch_budgets import legal_plans, torchs_plans
from tests.depth import deep, deep_except
from tests.results_pages import ROOT, rows_of, section, sentences

EVIDENCE = (ROOT / "docs" / "gpu_evidence.md").read_text()


class Masked(nn.Module):
    """Two layers of attention that read one mask, which is computed of positions and documents, or of padding."""

    def __init__(self, heads: int = 4, width: int = 32, *, padded: bool = False, boolean: bool = False) -> None:
        super().__init__()
        self.heads, self.padded, self.boolean = heads, padded, boolean
        self.layers = nn.ModuleList(nn.Linear(heads * width, 3 * heads * width) for _ in range(2))

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        batch, length, _ = x.shape
        first = torch.arange(length, device=x.device)
        same = documents[:, None, :] > 0 if self.padded else documents[:, :, None] == documents[:, None, :]
        mask = ((first[:, None] >= first) & same)[:, None]
        if not self.boolean:
            mask = torch.where(mask, 0.0, -torch.inf).expand(-1, self.heads, -1, -1)
        for layer in self.layers:
            q, k, v = layer(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(x.shape)
        return x.square().sum()


def predicted_and_written(graph: remat.Graph, plan: remat.Plan) -> tuple[int, int]:
    """The predicted peak of a plan, and that of the code that Inductor writes for a CPU, or an H200."""
    with virtual_gpu("h200") if graph.meta.get("gpu") else nullcontext():
        return remat.timeline(graph, plan).peak_bytes, rehearsed_peak(graph, plan)


@pytest.mark.parametrize("budget", deep_except([1.0], [1.0, 0.5]))
@pytest.mark.parametrize(
    ("device", "padded", "length"),
    [
        *((None, False, 256), ("h200", False, 256), ("h200", True, 251)),
        pytest.param("h200", True, 256, marks=deep),
    ],
)
def test_a_mask_that_the_backward_pass_computes_is_copied_for_every_head(
    device: str | None, padded: bool, length: int, budget: float
) -> None:
    """For a GPU, only before the first of the calls, if the mask is in memory: if its expression has several reads.

    Rows that are no multiple of eight are padded, and then it is in memory, too. For a CPU, the mask is an argument by
    keyword.
    """
    with FakeTensorMode():
        step, x = Masked(padded=padded), torch.randn(2, length, 128, requires_grad=True)
        documents = torch.zeros(2, length, dtype=torch.int64)
        ((graph, plans),) = torchs_plans(step, x, documents, budgets=(budget, 0.0), device=device)
    for plan in legal_plans(graph, plans).values():
        predicted, written = predicted_and_written(graph, plan)
        assert predicted == written
    assert remat.timeline(graph, plans[0.0]).during_bytes.max() > 2 * 4 * length * length * 4


def test_a_loss_over_many_classes_is_overwritten_or_written_twice_as_inductors_code_does() -> None:
    """With 4,096 classes a kernel runs several loops over a row.

    Under the plan that saves little, the gradient overwrites the logits. Both are accessed by loops that Inductor joins
    after it has fused them. Under the plan that saves everything, a later loop reads what an earlier one has written.
    """
    head = nn.Linear(64, 4096, bias=False, dtype=torch.bfloat16)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float().flatten(0, 1), labels.flatten())

    with FakeTensorMode():
        x = torch.randn(4, 256, 64, dtype=torch.bfloat16, requires_grad=True)
        ((graph, plans),) = torchs_plans(step, x, torch.zeros(4, 256, dtype=torch.int64), budgets=(0.0,), device="h200")
    for plan in (plans[0.0], plan_of(graph, SaveEverything())):
        predicted, written = predicted_and_written(graph, plan)
        assert predicted == written


@pytest.mark.parametrize("device", [None, "h200"])
def test_each_call_of_attention_stores_a_mask_that_is_not_in_memory(device: str | None) -> None:
    """A mask of booleans, as that of transformers, becomes numbers: an expression with one read."""
    with FakeTensorMode():
        step, x = Masked(padded=True, boolean=True), torch.randn(2, 256, 128, requires_grad=True)
        documents = torch.zeros(2, 256, dtype=torch.int64)
        ((graph, plans),) = torchs_plans(step, x, documents, budgets=(0.5, 0.0), device=device)
    for plan in legal_plans(graph, plans).values():
        predicted, written = predicted_and_written(graph, plan)
        assert predicted == written


class Checkpointed(nn.Module):
    """Computes attention again in the backward pass; its state of random numbers is handed over."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(128, 3 * 128)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x).view(2, 64, 3, 2, 64).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.attend, x, use_reentrant=False).sum()


def test_checkpointed_attention_is_captured_for_a_gpu_without_one() -> None:
    model, x = Checkpointed().to(torch.bfloat16), torch.randn(2, 64, 128, dtype=torch.bfloat16, requires_grad=True)
    ((graph, plans),) = torchs_plans(model, x, budgets=(1.0,), device="h200")
    assert any("attention_backward" in op for op in graph.ops)
    assert any("attention" in graph.ops[graph.index[name]] for name in plans[1.0].recomputed)


@deep
def test_peaks_of_a_llama_are_those_of_inductors_code() -> None:
    with FakeTensorMode():
        model, args = thin_llama((2, 1024), layers=3)
        ((graph, plans),) = torchs_plans(model.train(), *args, budgets=(1.0, 0.5, 0.3, 0.05), device="h200")
    for budget, plan in legal_plans(graph, plans).items():
        predicted, written = predicted_and_written(graph, plan)
        # At the default, the peak is that of a call of attention, before which Inductor puts a product that it may
        # delay.
        assert written <= predicted <= (1.01 if budget == 1 else 1) * written, budget


def test_peaks_on_real_gpus_are_predicted_within_seven_thousandths() -> None:
    rows = rows_of("gpu_peaks")
    assert len(rows) == 9
    for row in rows:
        for real in (row[gpu] for gpu in ("gtx_1650_bytes", "h200_bytes") if gpu in row):
            assert row["predicted_bytes"] == pytest.approx(real, rel=0.007)
            assert row["allocated_bytes"] == pytest.approx(real, rel=0.003)


def test_saving_products_instead_of_attention_is_predicted_to_take_as_much_longer_as_it_does() -> None:
    none, *rows = [row for row in rows_of("gpu_peaks") if "forced" in row]
    assert [row["forced"] for row in rows] == [8, 16, 24]
    for row in rows:
        real, modelled = (row[step] - none[step] for step in ("gtx_1650_ms", "modelled_ms"))
        assert modelled == pytest.approx(real, rel=0.12)


def test_the_page_of_gpus_states_what_was_measured() -> None:
    page = section("Peaks of a Llama on a GTX 1650 and an H200")
    for row in (row for row in rows_of("gpu_peaks") if "forced" not in row):
        real, ours = (row["gtx_1650_bytes"], row["h200_bytes"]), (row["predicted_bytes"], row["allocated_bytes"])
        cells = [row["budget"], *(f"{size:,}" for size in real), f"{row['before_bytes'] / 1e6:.1f} MB"]
        assert " | ".join(map(str, [*cells, *(f"{size:,}" for size in ours)])) in page


def test_the_page_of_gpus_states_the_plans_that_must_save_products() -> None:
    page = section("Peaks of a Llama on a GTX 1650 and an H200")
    none, *rows = [row for row in rows_of("gpu_peaks") if "forced" in row]
    for row in (none, *rows):
        peaks = (f"{row[what]:,}" for what in ("gtx_1650_bytes", "predicted_bytes", "allocated_bytes"))
        longer = [row[step] - none[step] for step in ("gtx_1650_ms", "modelled_ms")] if row in rows else []
        cells = [*peaks, f"{row['gtx_1650_ms']} ms", *(f"{each:.1f} ms" for each in longer)]
        assert f"| {row['forced']} | {' | '.join(cells)} |" in page
    assert f"modelled {1 - none['modelled_ms'] / none['gtx_1650_ms']:.0%} too short" in sentences(page)


def test_the_table_of_comparisons_states_the_peaks_of_the_rows() -> None:
    lines = section("All comparisons", EVIDENCE).splitlines()

    def require(start: str, *groups: list[float]) -> None:
        errors = [[abs(error) for error in group] for group in groups]
        typical, worst = ("; ".join(f"{pick(group):.1%}" for group in errors) for pick in (statistics.median, max))
        (line,) = (line for line in lines if start in line)
        assert line.endswith(f"| {typical} | {worst} |")

    peaks, measured = rows_of("gpu_peaks"), rows_of("measured_steps")
    five, four = [row for row in peaks if "h200_bytes" in row], [row for row in peaks if "forced" in row]
    for start, gpu in (("[peaks of a Llama at five budgets]", "gtx_1650"), ("the same five peaks", "h200")):
        before, now = (
            [row[f"{what}_bytes"] / row[f"{gpu}_bytes"] - 1 for row in five] for what in ("before", "predicted")
        )
        require(start, before, now)
    require("three more plans", [row["predicted_bytes"] / row["gtx_1650_bytes"] - 1 for row in four[1:]])
    for start, model in {
        "a GPT-2": "GPT-2 medium, 12",
        "a DiT": "DiT",
        "Llama 2": "Llama 2",
        "Llama 3": "Llama 3",
    }.items():
        rows = [row for row in measured if row["case"].startswith(model)]
        require(f"steps of {start}", [row["predicted_peak_bytes"] / row["peak_bytes"] - 1 for row in rows])


def test_the_page_of_the_h200_states_what_was_measured() -> None:
    page = sentences((ROOT / "docs" / "results" / "h200.md").read_text())
    rows = rows_of("measured_steps")
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    avoided: list[float] = []
    for model in ("Llama 3 8B", "Llama 2 7B", "GPT-2 medium, 12", "DiT-XL/2"):
        steps = {row["way"]: row for row in rows if row["case"].startswith(model)}
        pairs += [(row, steps[f"ours at the peak of {way}"]) for way, row in steps.items() if "ours" not in way]
        default = steps["PyTorch's default"]["step_s"]
        rivals = [pair for pair in pairs[-len(steps) // 2 :] if pair[0]["way"] != "PyTorch's default"]
        shares = [1 - (ours["step_s"] - default) / (theirs["step_s"] - default) for theirs, ours in rivals]
        assert re.search(f"{shares[-1]:.0%} (of|for) ", page) or shares[-1] < 0  # every layer checkpointed
        avoided += shares
    assert f"In the median of the {len(avoided)} points" in page
    assert f"our plans avoid {statistics.median(avoided):.0%}" in page
    assert len(pairs) == 15
    for theirs, ours in pairs:
        cells = [f"{row['peak_bytes'] / 1e9:.3f} GB | {1e3 * row['step_s']:.1f} ms" for row in (theirs, ours)]
        assert f"{' | '.join(cells)} | {ours['step_s'] / theirs['step_s'] - 1:+.1%} |" in page
    exceeded = [ours["peak_bytes"] / theirs["peak_bytes"] - 1 for theirs, ours in pairs]
    assert [f"{one:.4%}" for one in sorted(exceeded) if one > 0] == ["0.0008%", "0.0208%"]
    longer = [ours["step_s"] / theirs["step_s"] - 1 for theirs, ours in pairs]
    assert max(longer) < 0.01
    assert f"In the median ours are {-statistics.median(longer):.0%} shorter" in page


@pytest.mark.parametrize(
    ("kernel", "dtype", "rate"), [("cudnn", torch.bfloat16, 989.5e12), ("efficient", torch.float32, 67e12)]
)
def test_attention_with_a_mask_runs_at_half_the_rate_of_products(kernel: str, dtype: torch.dtype, rate: float) -> None:
    q, mask = torch.randn(2, 4, 64, 32, dtype=dtype, requires_grad=True), torch.zeros(64, 64, dtype=dtype)
    rates: list[dict[str, float]] = []
    for masks in ([mask], []):
        graph = remat.capture(F.scaled_dot_product_attention, q, q, q, *masks, device="h200")
        calls = {op.partition("_attention")[2]: i for i, op in enumerate(graph.ops) if f"{kernel}_attention" in op}
        assert len(calls) == 2
        ceilings = flops_per_s(graph, find_device("h200"))
        as_fast = replace(find_device("h200"), masked_attention_fraction=1)
        assert {flops_per_s(graph, as_fast)[i] for i in calls.values()} == {0.7 * rate}
        rates.append({op: float(ceilings[i]) for op, i in calls.items()})
    masked, unmasked = rates
    assert unmasked == dict.fromkeys(masked, 0.7 * rate)
    assert masked == dict.fromkeys(masked, 0.7 * rate / 2)


def test_a_call_of_attention_that_lacks_arguments_has_no_mask() -> None:
    """A graph that somebody wrote by hand may have such a call."""
    q = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16, requires_grad=True)
    graph = remat.capture(F.scaled_dot_product_attention, q, q, q, device="h200")
    short = ["[]" if "cudnn_attention" in op else text for op, text in zip(graph.ops, graph.arguments, strict=True)]
    assert not masked_attention(replace(graph, arguments=tuple(short))).any()


def test_modelled_steps_on_the_h200_are_nearer_to_the_measured_ones_and_in_the_same_order() -> None:
    page = sentences(section("How fast attention with a mask is", EVIDENCE))
    for model, ways in {"GPT-2": 4, "Llama 3": 3, "Llama 2": 4}.items():
        rows = [row for row in rows_of("attention_rate") if row["case"].startswith(model)]
        assert len(rows) == ways
        attention, rest, now, real = (
            np.array([row[key] for row in rows]) for key in ("attention_s", "rest_s", "now_s", "measured_s")
        )
        before = attention + rest
        assert (before < now).all()
        assert np.argsort(before).tolist() == np.argsort(now).tolist()
        for times in (before, now):
            short = 1 - times / real
            assert min(short) > 0
            assert f"{min(short):.0%} to {max(short):.0%}" in page
        factors = np.linalg.lstsq(np.stack([attention, rest], 1) / real[:, None], np.ones(ways), rcond=None)[0]
        assert model == "GPT-2" or all(f"{factor:.2f}" in page for factor in factors)


def test_what_attention_took_on_a_real_gpu_is_predicted() -> None:
    rows = rows_of("attention_workspaces")
    assert len(rows) == 2 * 51
    for row in rows:
        missed = row["taken bytes"] - row["predicted bytes"]
        # The allocator gives whole segments of 2 MiB where 1 MiB or less would be left of one.
        assert 0 <= missed <= (2**20 if row["taken bytes"] > 10 * 2**20 and "cudnn" in row["case"] else 512)


def test_what_fused_attention_takes_on_a_gpu() -> None:
    """As the source of torch says: queries' gradients in single precision, and one number a row."""

    def buffers(heads: int, of_keys: int, width: int = 64, *, heads_inside: bool = True) -> list[Buffer]:
        queries, keys = (2, heads, 1000, width), (2, of_keys, 1000, width)
        inside = (1000 * heads * width, width, heads * width, 1) if heads_inside else None
        shapes = [(queries, inside), (queries, None), (keys, None), (keys, None), (queries, inside)]
        return [Buffer(v, shape, 2, strides) for v, (shape, strides) in enumerate(shapes)]

    flash = "aten._scaled_dot_product_flash_attention_backward.default"
    rows, one = 2 * 8 * 1024, 2 * 8 * 1000 * 64 * 2
    assert gpu_call_bytes(flash, buffers(8, 8)) == 4 * rows * 64 + 4 * rows
    assert gpu_call_bytes(flash, buffers(8, 8, heads_inside=False)) == 4 * rows * 64 + 4 * rows + 2 * one
    assert gpu_call_bytes(flash, buffers(8, 2)) == 4 * rows * 64 + 4 * rows + 2 * one  # gradients for every head
    cudnn = "aten._scaled_dot_product_cudnn_attention_backward.default"
    assert gpu_call_bytes(cudnn, buffers(8, 8)) == 2 * 8 * 1000 * 65 * 4
    efficient = "aten._scaled_dot_product_efficient_attention_backward.default"
    assert gpu_call_bytes(efficient, buffers(8, 8)) == 2 * 8 * 16 * (64 * 64 * 4 + 16) + 2 * 8 * 1000 * 4
    assert (
        gpu_call_bytes(efficient, buffers(8, 8, heads_inside=False)) == gpu_call_bytes(efficient, buffers(8, 8)) + one
    )
    assert gpu_call_bytes(efficient, buffers(8, 8, 128)) == 2 * 8 * 8 * (128 * 128 * 4 + 16) + 2 * 8 * 1000 * 4
    assert gpu_call_bytes("aten.mm.default", buffers(8, 8)) == 0


@pytest.mark.parametrize(
    "model",
    ["GPT, attention written out", pytest.param("MLP-Mixer", marks=deep), pytest.param("LSTM cells", marks=deep)],
)
def test_the_peak_is_the_one_that_a_gpu_had(model: str) -> None:
    """An H100, with torch 2.11; the first of the plans is left out, as cuBLAS allocated what it keeps in its step."""
    compared = [row for row in rows_of("gpu_compared") if row["case"] == f"zoo: {model}"]
    rows = {row["plan"]: row for row in compared[1:]}
    torch.manual_seed(0)
    module, args = KERNEL_ZOO[model]()
    graph = remat.capture(module, *args, device="h100")
    peaks = {
        name: remat.timeline(graph, plan, device="h100").peak_bytes / rows[name]["peak_bytes"]
        for name, plan in plans_of(graph, "h100").items()
        if name in rows
    }
    assert sorted(peaks) == sorted(rows)
    exact = [name for name, ratio in peaks.items() if abs(ratio - 1) < 0.01]
    assert len(exact) >= 3, peaks


def test_a_step_is_a_kernel_and_what_is_saved_the_same() -> None:
    graph = remat.Corpus.open().graph("small-resnet")
    plan = remat.choose(graph).plan
    by_value, by_kernel = simulate(graph, plan), remat.timeline(graph, plan, device="h100")
    traffic = remat.predict_traffic(graph, plan, device="h100")
    assert traffic.backend == "triton"
    assert len(by_kernel) == len(traffic.kernels) < len(by_value)
    assert by_kernel.saved_bytes == by_value.saved_bytes
    assert by_kernel.at_forward_end == by_value.at_forward_end
    assert len(remat.timeline(graph, plan, device="cpu")) < len(by_kernel)  # kernels between calls are one function
    with pytest.raises(UnknownName, match=r"no device is named 'h10'.*did you mean 'h100'"):
        remat.timeline(graph, plan, device="h10")
