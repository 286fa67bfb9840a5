"""`remat.capture`: the sources' examples from live PyTorch, and what a model may be made of."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from strategies import flat
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.models import zoo
from remat import CaptureError, Graph
from remat.plugin import Region
from remat.pytorch import capture_all
from remat.pytorch.read.values import Values
from remat.pytorch.seam.reachable import put_back

N = 512
B = N * N * 4


def tensor(*, grad: bool = True) -> Tensor:
    return torch.randn(N, N, requires_grad=grad)


def where(graph: Graph, op: str) -> list[int]:
    return [i for i, name in enumerate(graph.ops) if name == op]


def test_facts_of_a_captured_graph() -> None:
    graph = remat.capture(lambda x, w: (x @ w).relu(), tensor(), tensor())
    (mm, *_), (relu,) = where(graph, "aten.mm.default"), where(graph, "aten.relu.default")
    assert graph.compute_bound[mm]
    assert not graph.fusible[mm]
    assert graph.flops[mm] == 2 * N**3
    assert graph.materialized[mm]
    assert graph.output[relu]
    assert graph.shapes[relu] == (N, N)
    assert graph.dtypes[relu] == "float32"
    assert graph.bytes[relu] == B
    assert graph.region[relu] == Region.FORWARD
    assert int(graph.input.sum()) == 2
    assert int(graph.gradient.sum()) == 2
    assert graph.meta["torch"] == torch.__version__


def test_views_share_the_storage_of_their_base() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        left, right = (x @ w).split(N // 2, dim=1)
        return left.t() @ right.expand(N, N // 2)

    graph = remat.capture(f, tensor(), tensor())
    mm = where(graph, "aten.mm.default")[0]
    viewed = {graph.ops[i] for i in range(len(graph)) if graph.view[i] and graph.base[i] == mm}
    assert {"getitem", "aten.permute.default"} <= viewed


def test_no_op_expands_are_views_of_their_base() -> None:
    """Inductor's passes give their fake tensors a storage of their own; their schema says otherwise."""
    graph = remat.capture(*flat(zoo.gpt2(layers=1)))
    for i in where(graph, "aten.expand.default"):
        assert graph.view[i]


def test_what_an_operator_returns_shares_no_memory_with_what_it_does_not_use() -> None:
    """The fake results are views, and those of the tuple are not views of the tuple; the schema has no aliases."""

    @torch.library.custom_op("remat_tests::halves", mutates_args=())
    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[: N // 2].clone(), x[N // 2 :].clone()

    halves.register_fake(lambda x: (x[: N // 2], x[N // 2 :]))
    halves.register_autograd(lambda _, upper, lower: torch.cat([upper, lower]))

    def f(x: Tensor) -> Tensor:
        upper, lower = halves(x.sin())
        return upper.exp() * lower.exp()

    graph = remat.capture(f, tensor())
    for i in where(graph, "getitem"):
        assert graph.base[i] == i


def test_modules_functions_and_keyword_arguments() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, *, scale: float, shift: Tensor | None = None) -> Tensor:
            y = self.linear(x) * scale
            return y if shift is None else y + shift

    x = torch.randn(4, 8)
    plain, shifted = remat.capture(Scaled(), x, scale=2.0), remat.capture(Scaled(), x, scale=2.0, shift=x)
    assert plain.meta["model"] == "Scaled"
    assert int(plain.parameter.sum()) == 2
    assert not where(plain, "aten.add.Tensor")
    assert where(shifted, "aten.add.Tensor")


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"no joint graph to capture.*requires_grad_"):
        remat.capture(torch.sin, tensor(grad=False))


def breaks_once(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos() * x


def test_graph_breaks_are_refused_by_capture_and_taken_by_capture_all() -> None:
    with pytest.raises(CaptureError, match=r"breaks_once has 2 joint graphs .*capture_all"):
        remat.capture(breaks_once, tensor())
    first, second = capture_all(breaks_once, tensor())
    assert where(first, "aten.sin.default")
    assert where(second, "aten.mul.Tensor")


def test_capturing_leaves_buffers_arguments_and_random_numbers_as_they_were() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor, counter: Tensor) -> Tensor:
            counter.add_(1)
            return F.dropout(self.norm(x), 0.5) * counter

    model, x, counter = Noisy(), torch.randn(4, 8), torch.zeros(1)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    remat.capture(model, x, counter)
    assert torch.equal(torch.get_rng_state(), state)
    assert counter.item() == 0
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


def test_a_function_can_be_captured_any_number_of_times() -> None:
    """Dynamo gives up on a function after eight compilations; a capture must not."""
    x = torch.randn(4, 4, requires_grad=True)
    graphs = [remat.capture(torch.tanh, x) for _ in range(9)]
    assert all(graph == graphs[0] for graph in graphs)


def test_sizes_that_differ_between_captures_stay_numbers() -> None:
    for rows in (4, 6, 8):
        graph = remat.capture(lambda x: x.tanh().sum(0), torch.randn(rows, 4, requires_grad=True))
        assert "symint" not in graph.dtypes
        assert graph.shapes[where(graph, "aten.tanh.default")[0]] == (rows, 4)


def test_captures_do_not_turn_off_compilation() -> None:
    """All built-in modules share the code that Dynamo counts compilations of."""
    for width in range(1, 10):
        remat.capture(nn.Sequential(nn.Linear(4, width), nn.Tanh()), torch.randn(2, 4))
    calls: list[int] = []

    def backend(graph_module: torch.fx.GraphModule, _: object) -> object:
        calls.append(len(graph_module.graph.nodes))
        return graph_module.forward

    torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend=backend)(torch.randn(2, 4))
    assert len(calls) == 1


def breaks_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        x = x.sin()
        torch._dynamo.graph_break()
    return x


def test_what_dynamo_skips_is_told_from_what_needs_no_gradient() -> None:
    with pytest.raises(CaptureError, match="Dynamo traced nothing of breaks_in_a_loop"):
        remat.capture(breaks_in_a_loop, tensor())
    with torch.inference_mode(), pytest.raises(CaptureError, match=r"leave torch\.inference_mode"):
        remat.capture(torch.sin, tensor())
    with pytest.raises(CaptureError, match="takes a module or a function, got 3"):
        remat.capture(3)  # type: ignore[arg-type]


def test_a_forward_that_fails_leaves_nothing_changed() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            torch._dynamo.graph_break()
            raise ValueError(str(y.sum()))

    model = Fails()
    with pytest.raises(ValueError, match="tensor"):
        remat.capture(model, torch.randn(4, 8))
    assert model.norm.num_batches_tracked == 0


def test_symbolic_sizes_are_priced_by_their_hints() -> None:
    x, w = torch.randn(48, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    graph = remat.capture(lambda x, w: (x @ w).tanh().sum(0), x, w)
    assert graph.dtypes.count("symint") >= 1
    tanh = where(graph, "aten.tanh.default")[0]
    assert graph.shapes[tanh] == (48, 16)
    assert graph.bytes[tanh] == 48 * 16 * 4


def test_what_must_not_run_twice_says_why() -> None:
    def f(x: Tensor, counter: Tensor) -> Tensor:
        counter.add_(1)
        return x * torch.rand_like(x)

    graph = remat.capture(f, tensor(), torch.zeros(1))
    reasons = {graph.ops[i]: reason for i, reason in graph.cannot_recompute.as_dict().items()}
    assert reasons["prims.inductor_seeds.default"] == "draws from the random number generator, which moves on"
    assert "the forward pass overwrites its memory" in reasons["placeholder"]


def test_attention_is_compute_bound_and_its_tuple_cannot_be_saved() -> None:
    q, k, v = (torch.randn(1, 2, 16, 8, requires_grad=True) for _ in range(3))
    graph = remat.capture(F.scaled_dot_product_attention, q, k, v)
    (attention,) = [i for i, op in enumerate(graph.ops) if "attention" in op and "backward" not in op]
    assert graph.compute_bound[attention]
    assert not graph.random[attention], "no dropout"
    assert graph.cannot_save.reason(attention) == "a tuple: its elements can be saved"


def keep_products(_: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.MUST_RECOMPUTE


def test_selective_checkpoint_policies_become_facts() -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False, context_fn=contexts).sum()

    graph = remat.capture(f, tensor(), tensor())
    assert graph.must_save[where(graph, "aten.mm.default")[0]]
    assert graph.must_recompute[where(graph, "aten.sin.default")[0]]
    assert not graph.must_recompute[where(graph, "aten.mm.default")[0]]


def test_a_plain_checkpoint_prefers_recomputation() -> None:
    graph = remat.capture(lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum(), tensor())
    assert graph.prefer_recompute[where(graph, "aten.sin.default")[0]]
    plan = remat.solve(ByteTraffic().pose(graph)).plan
    assert "aten.exp.default" not in [graph.ops[graph.index[name]] for name in plan.saved]


def test_a_custom_operator_is_taken_for_expensive() -> None:
    @torch.library.custom_op("remat_tests::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    double.register_autograd(lambda context, grad: grad * 2)
    graph = remat.capture(lambda x: double(x.sin()).cos(), tensor())
    (custom,) = where(graph, "remat_tests.double.default")
    assert graph.compute_bound[custom]
    assert not graph.fusible[custom]


def test_flops_of_matrix_products_are_those_that_torch_counts() -> None:
    def forward(x: Tensor, bias: Tensor, batch: Tensor) -> Tensor:
        plain = torch.addmm(bias, (x.sin() @ x[:, :5]).tanh(), x[:5])
        return torch.baddbmm(plain[:4, None, :3], batch.mT.cos(), torch.bmm(batch, batch.mT).exp() @ batch)

    args = tensor(), torch.randn(N, requires_grad=True), torch.randn(4, 7, 3, requires_grad=True)
    graph = remat.capture(forward, *args)
    with FlopCounterMode(display=False) as counted:
        forward(*args).sum().backward()
    products = graph.compute_bound
    assert {graph.ops[v].split(".")[1] for v in np.flatnonzero(products)} == {"mm", "addmm", "bmm", "baddbmm"}
    assert int(graph.flops[products].sum()) == counted.get_total_flops()


def test_products_by_groups_are_products() -> None:
    """As in a mixture of experts: each row meets the matrix of its own group, and torch has no formula for them."""
    rows, experts, narrow, wide = 64, 4, 16, 32
    tokens = torch.randn(rows, narrow, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(experts, narrow, wide, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([8, 24, 40, 64], dtype=torch.int32)
    graph = remat.capture(lambda x, w: F.grouped_mm(x.sin(), w, offs=ends), tokens, weights)
    products = where(graph, "aten._grouped_mm.default")
    assert len(products) == 3, "one forward, and a gradient of each factor"
    assert graph.compute_bound[products].all()
    assert graph.flops[products].tolist() == [2 * rows * narrow * wide] * 3


def test_flops_depend_on_keyword_arguments() -> None:
    @torch.library.custom_op("remat_tests::repeated", mutates_args=())
    def repeated(x: Tensor, *, times: int) -> Tensor:
        return x * times

    repeated.register_fake(lambda x, **_: torch.empty_like(x))
    repeated.register_autograd(lambda context, grad: grad)

    @register_flop_formula(torch.ops.remat_tests.repeated)
    def flops(x_shape: tuple[int, ...], *args: object, times: int, out_shape: object = None, **kwargs: object) -> int:
        return times

    graph = remat.capture(lambda x: repeated(repeated(x.sin(), times=2), times=7).cos(), tensor())
    assert graph.flops[where(graph, "remat_tests.repeated.default")].tolist() == [2, 7]


def test_calls_of_a_nested_region_share_no_memory() -> None:
    """torch gives their results the same fake tensors."""

    @torch.compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return F.dropout(x.sin().exp(), 0.5).tanh()

    *_, outer = capture_all(lambda x: region(region(x)), tensor())
    elements = where(outer, "getitem")
    assert len(elements) > 2
    assert len(set(outer.base[elements].tolist())) == len(elements)
    for of in ("saved", "peak"):
        remat.choose(outer, MemoryBudget(0.5, of=of))  # type: ignore[arg-type]  # there is a plan


def test_a_capture_that_found_nothing_spoils_no_later_one() -> None:
    """Dynamo remembers code in which it found nothing, and never looks there again."""
    with pytest.raises(CaptureError, match="Dynamo traced nothing of LSTM"):
        remat.capture(nn.LSTM(8, 8), torch.ones(3, 2, 8))
    assert "aten.addmm.default" in remat.capture(nn.Linear(8, 8), torch.ones(4, 8)).ops


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_tensor_does_not_lie_in_memory_in_another_order() -> None:
    """Of a compressed one, torch raises when it is asked; of the other it says no."""
    eye = torch.eye(2)
    values = Values.of([eye, eye.to_sparse(), eye.to_sparse_csr(), eye[:, :1].expand(2, 2)])
    assert values.noncontiguous.tolist() == [False, False, False, True]


def test_jagged_and_sparse_arguments_are_put_back() -> None:
    """torch compares neither as it compares others."""
    weight = torch.randn(4, 4, requires_grad=True)
    jagged = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged)
    sparse = torch.eye(4).to_sparse()

    def writes(jagged: Tensor) -> Tensor:
        jagged.mul_(2)
        return (jagged.values() @ weight).sin().sum()

    assert "aten.sin.default" in remat.capture(writes, jagged).ops
    with put_back(writes, (jagged, sparse), {}):
        sparse.mul_(2)
    assert jagged.values().eq(1).all()
    assert sparse.to_dense().equal(torch.eye(4))
