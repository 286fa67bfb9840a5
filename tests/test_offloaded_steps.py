"""Steps that offload: gradients equal eager's, and the device keeps what the plan says, never more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from depth import deep, deep_except, drawn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import DiceWithHost, SaveOnHost, assert_equal_to_eager, each_case
from test_compile import gradients
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import remat
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from remat import CostModel, Plan
from remat.plugin import PlanFacts
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam import offload_operators

QUICK = (
    *("pointwise chain", "dropout", "symbolic batch", "batch normalization", "attention with dropout"),
    "overwritten buffer, old value read",
)
"""A case of every kind: what the quick half runs. The deep half has all cases, and more plans of those."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """What was copied to the host or back, which on a CPU are other buffers."""
    made: list[Tensor] = []
    place = offload_operators.place_for

    def place_for(tensor: Tensor, device: torch.device) -> Tensor:
        made.append(place(tensor, device))
        return made[-1]

    monkeypatch.setattr(offload_operators, "place_for", place_for)
    yield made
    made.clear()


def assert_random_plan_is_right(case: ModelCase, seed: int, **options: Any) -> None:
    cost_model = DiceWithHost(seed)
    assert_equal_to_eager(case, lambda m: remat.compile(m, cost_model=cost_model, dynamic=case.dynamic, **options))


@each_case(QUICK)
@settings(drawn(3), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_random_plans_without_code_generation(case: ModelCase, seed: int) -> None:
    assert_random_plan_is_right(case, seed, codegen=False)


@pytest.mark.parametrize("name", deep_except(QUICK[:1], QUICK))
def test_random_plans_through_inductor(name: str) -> None:
    """Of all other cases copies are beside the kernels, below, where more may go wrong."""
    assert_random_plan_is_right(CASES[name], 1, options={"fallback_random": True})  # eager's random numbers


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Copies beside the kernels, which write as soon and read as late as they can; what they are of."""
    under_way: dict[int, tuple[Tensor, Tensor]] = {}
    made: list[Tensor] = []

    def begin(copy: Tensor, source: Tensor) -> None:
        assert copy.untyped_storage().data_ptr() not in under_way
        made.append(source)
        copy.fill_(torch.nan if copy.is_floating_point() else 0)  # whoever reads it too soon, or still, reads that
        under_way[copy.untyped_storage().data_ptr()] = copy, source

    def end(copy: Tensor, device: torch.device) -> None:
        del device
        copy, source = under_way.pop(copy.untyped_storage().data_ptr())
        copy.copy_(source)  # by now, others may have written over it: that would be seen

    monkeypatch.setattr(offload_operators, "begin", begin)
    monkeypatch.setattr(offload_operators, "end", end)
    yield made
    assert not under_way
    made.clear()


@each_case(QUICK)
def test_copies_beside_the_kernels_without_code_generation(case: ModelCase, beside: list[Tensor]) -> None:
    assert_random_plan_is_right(case, 1, codegen=False, copy_stream=True)


@each_case(("dropout", "overwritten buffer, old value read"))
def test_copies_beside_the_kernels_through_inductor(case: ModelCase, beside: list[Tensor]) -> None:
    assert_random_plan_is_right(case, 1, options={"fallback_random": True}, copy_stream=True)


def test_the_report_of_a_step_without_calls_to_record_is_printed(beside: list[Tensor]) -> None:
    step = remat.compile(lambda x: x.sin().exp(), cost_model=SaveOnHost(), codegen=False, copy_stream=True)
    step(torch.randn(8, 8, requires_grad=True)).sum().backward()
    assert "exp" in " ".join(step.report().graphs[0].graph.names)
    assert "PyTorch" in str(step.report())


def test_nothing_writes_over_what_is_still_to_be_copied(beside: list[Tensor]) -> None:
    """In a chain of layers of one width, memory is taken again as soon as nobody reads it."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)))
    x = torch.randn(64, 32)
    step = remat.compile(model, cost_model=SaveOnHost(), copy_stream=True)
    torch.testing.assert_close(gradients(step, model, x), gradients(model, model, x))
    assert len(beside) >= 10


class DrawsAgain(nn.Module):
    """What a checkpoint draws again, torch draws by an operator of its own, which the graph does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for draws in (functional.dropout, lambda y: (torch.rand_like(y) * y).sin()):
            x = checkpoint(draws, self.first(x).tanh(), use_reentrant=False)
        return self.last(x).exp()


DRAWS_AGAIN = ModelCase("draws again", DrawsAgain, lambda: (torch.randn(4, 8, requires_grad=True),), tolerance=1e-5)


@pytest.mark.parametrize("copy_stream", [False, True])
@pytest.mark.parametrize("model", [SaveOnHost(), *map(DiceWithHost, range(4))], ids=str)
def test_what_draws_again_reads_copies(model: CostModel, copy_stream: bool, beside: list[Tensor]) -> None:
    options: dict[str, Any] = {"cost_model": model, "codegen": False, "copy_stream": copy_stream}
    assert_equal_to_eager(DRAWS_AGAIN, lambda m: remat.compile(m, **options))


@pytest.mark.parametrize("codegen", [False, True])
def test_what_is_returned_as_it_was_saved_comes_back(codegen: bool) -> None:
    class SavedIsGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            saved = x.sin()
            ctx.save_for_backward(saved)
            return saved.cos()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return ctx.saved_tensors[0]

    x = torch.randn(8, 4, requires_grad=True)
    for copy_stream in (False, True):
        step = remat.compile(SavedIsGradient.apply, cost_model=SaveOnHost(), codegen=codegen, copy_stream=copy_stream)
        x.grad = None
        step(x).sum().backward()
        assert step.report().graphs[0].plan.offloaded
        torch.testing.assert_close(x.grad, x.sin())


def kept(step: Callable[..., Any], model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Any, dict[int, int]]:
    """The result, and the bytes of each storage that autograd keeps and nobody else does, by address."""
    alive = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *batch)}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = step(*batch)
    return result, {address: size for address, size in found.items() if address not in alive}


@pytest.mark.parametrize(
    ("name", "codegen"),
    [
        *(("pointwise chain", True), ("normalizations by hand", False), ("encoder layer", False)),
        *(pytest.param(name, True, marks=deep) for name in ("normalizations by hand", "encoder layer")),
    ],
)
def test_the_device_keeps_what_the_plan_says(name: str, codegen: bool, copies: list[Tensor]) -> None:
    torch.manual_seed(0)
    model, batch = CASES[name].build(), CASES[name].inputs()
    step = remat.compile(model, cost_model=DiceWithHost(3), codegen=codegen)
    with no_cpu_kernels():  # what they compute is not looked at
        step(*batch)
    copies.clear()
    result, found = kept(step, model, batch)
    host = {copy.untyped_storage().data_ptr() for copy in copies}
    (planned,) = step.report().graphs
    assert planned.facts.offloaded
    assert sum(size for at, size in found.items() if at not in host) == planned.facts.saved_bytes
    assert sum(size for at, size in found.items() if at in host) == planned.facts.offloaded_bytes
    torch.nn.functional.mse_loss(result, torch.zeros_like(result)).backward()
    assert len(copies) == 2 * len(planned.plan.offloaded)


def two_tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def three_way(model: nn.Module, x: Tensor) -> tuple[remat.Graph, Plan]:
    """A graph, and a plan that saves both results of tanh, one of them on the host."""
    graph = remat.capture(model, x)
    saved = [name in ("tanh", "tanh_1") or bool(input) for name, input in zip(graph.names, graph.input, strict=True)]
    choice = remat.Choice.from_saved(graph, torch.tensor(saved).numpy())
    return graph, replace(choice.plan(graph), offloaded=("tanh",))


@pytest.mark.parametrize("codegen", deep_except([False], [False, True]))
def test_a_plan_runs_from_its_file(tmp_path: Path, codegen: bool, copies: list[Tensor]) -> None:
    model, x = two_tanh(), torch.randn(4, 8)
    _, plan = three_way(model, x)
    plan.save(tmp_path / "plan.json")
    step = remat.compile(model, plan=tmp_path / "plan.json", codegen=codegen)
    torch.testing.assert_close(gradients(step, model, x), gradients(model, model, x))
    assert [tuple(copy.shape) for copy in copies] == [(4, 32), (4, 32)]


@pytest.mark.parametrize("codegen", [False, True])
def test_results_of_attention_wait_on_the_host(codegen: bool, copies: list[Tensor]) -> None:
    def attention(x: Tensor) -> Tensor:
        q, k, v = (x.sin(), x.cos(), x.tanh())
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).exp()

    x = torch.randn(2, 2, 16, 8, requires_grad=True)
    step = remat.compile(attention, cost_model=SaveOnHost(), codegen=codegen)
    step(x).sum().backward()
    (planned,) = step.report().graphs
    elements = [name for name in planned.plan.offloaded if name.startswith("getitem")]
    assert elements
    assert len(copies) == 2 * len(planned.plan.offloaded)
    ours, x.grad = x.grad, None
    attention(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_a_hook_that_loses_what_is_on_the_host_is_named() -> None:
    model, x = two_tanh(), torch.randn(4, 8)
    _, plan = three_way(model, x)
    step = remat.compile(model, plan=plan, codegen=False)
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        result = step(x)
    with pytest.raises(RuntimeError, match="a hook on saved tensors, such as save_on_cpu, gave back another tensor"):
        result.sum().backward()


def test_the_report_tells_device_and_host_apart() -> None:
    model, x = two_tanh(), torch.randn(4, 8)
    graph, plan = three_way(model, x)
    facts = PlanFacts.of(graph, plan)
    assert (facts.saved_activations, facts.saved_bytes) == (("tanh_1",), 512)
    assert (facts.offloaded, facts.offloaded_bytes) == (("tanh",), 512)
    step = remat.compile(model, plan=plan, codegen=False)
    step(x).sum().backward()
    report = step.report()
    assert report.as_frame()[["saved_bytes", "offloaded_bytes"]].to_numpy().tolist() == [[512, 512]]
    assert [line.bytes for line in report.saved_lines] == [512]
    told = [line.split() for line in str(report).splitlines()]
    heading, row = (next(line for line in told if line[0] == first) for first in ("#", "1"))
    assert heading[:3] == ["#", "saved", "host"]
    assert row[:5] == ["1", "512", "B", "512", "B"]
    assert "saves 512 B and offloads 512 B" in str(report.graphs[0])
    on_device = remat.compile(model, codegen=False)
    on_device(x).sum().backward()
    assert "host" not in str(on_device.report())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("primals_3", "an input's memory"), ("addmm_2", "memory of an output"), ("tanh_1", "but not saved")],
)
def test_an_illegal_plan_is_refused_before_it_runs(name: str, reason: str) -> None:
    model, x = two_tanh(), torch.randn(4, 8)
    _, plan = three_way(model, x)
    saved = tuple(n for n in (*plan.saved, name) if n != "tanh_1")
    step = remat.compile(model, plan=replace(plan, saved=tuple(dict.fromkeys(saved)), offloaded=(name,)), codegen=False)
    with pytest.raises(Exception, match=reason):
        step(x)


def test_on_a_gpu_both_graphs_copy() -> None:
    """As far as the graphs go: no GPU is needed to extract them, and none runs them here."""
    graph, plan = three_way(two_tanh(), torch.randn(4, 8))
    forward, backward = Scheduled(graph, device="h100").split(plan)
    for module, copies in ((forward, "remat.to_host.default"), (backward, "remat.to_device.default")):
        assert [str(node.target) for node in module.graph.nodes].count(copies) == 1
    handed = [node.meta["val"] for node in backward.graph.nodes if node.op == "placeholder"]
    assert [tuple(value.shape) for value in handed if value.device.type == "cpu"] == [(0, 4, 32)]
    (back,) = backward.graph.find_nodes(op="call_function", target=torch.ops.remat.to_device.default)
    assert (back.meta["val"].device.type, tuple(back.meta["val"].shape)) == ("cuda", (4, 32))


def test_a_plan_that_offloads_has_a_cache_key_of_its_own() -> None:
    _, plan = three_way(two_tanh(), torch.randn(4, 8))
    assert Partitioner.of(plan=plan).uuid() != Partitioner.of(plan=replace(plan, offloaded=())).uuid()


def test_nothing_is_offloaded_inside_a_region_that_is_compiled_once() -> None:
    @torch.compiler.nested_compile_region
    def block(x: Tensor) -> Tensor:
        return x.exp().tanh().sin()

    step = remat.compile(lambda x: block(block(x)).sum(), cost_model=DiceWithHost(0), codegen=False)
    with pytest.raises(Exception, match="in the body of a nested_compile_region, where nothing can be offloaded"):
        step(torch.randn(4, requires_grad=True))
