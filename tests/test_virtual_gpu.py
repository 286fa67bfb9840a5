"""A GPU that is not there: what is compiled for it, and that nothing of it stays behind."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from strategies import each_case
from torch import Tensor, nn
from torch.nn import functional as F

import remat
from costmodels import ByteTraffic
from experiments.models.model_case import ModelCase
from remat.errors import CaptureError, InvalidOption, NotInstalled, UnknownName, UnsupportedTorch
from remat.pytorch import capture_all, virtual_gpu
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.seam import virtual_gpu as seam
from remat.pytorch.seam.autograd_walk import grad
from remat.pytorch.seam.fused_attention import attention_of
from remat.pytorch.seam.gpu_sheets import SHEETS
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.reachable import on_fake_device
from remat.pytorch.seam.thread_patch import thread_local_patch

QUICK = ("pointwise chain", "graph break", "batch normalization", "buffers written in both passes")


def model() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.BatchNorm1d(32), nn.Linear(32, 8)), torch.ones(4, 8)


def facts(graph: remat.Graph) -> list[tuple[Any, ...]]:
    return [
        (*row, tuple(graph.operands[i]))
        for i, row in enumerate(zip(graph.names, graph.ops, graph.arguments, graph.shapes, graph.dtypes, strict=True))
    ]


@each_case(QUICK)
def test_the_walk_traces_the_joint_graphs_of_autograds_engine(case: ModelCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where both run: names, operators, arguments, shapes, element types.

    But for the numbers in names of one case: under nested `vmap` and `grad`, a view more is made and dropped.
    """
    found: list[list[list[tuple[Any, ...]]]] = []
    for engine in (torch.autograd.grad, grad):
        torch.compiler.reset()
        torch.manual_seed(0)
        monkeypatch.setattr(torch.autograd, "grad", engine)
        found.append([facts(graph) for graph in capture_all(case.build(), *case.inputs())])
    if case.name == "vmap and grad inside":
        found = [[[row[1:] for row in graph] for graph in graphs] for graphs in found]
    assert found[0] == found[1]


class Odd(nn.Module):
    """Promotions, broadcasts, a function of its own, a view written in place, two outputs, a value without gradient."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
            ctx.save_for_backward(x, w)
            return x * w, x + 1

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            (x, w), (g, h) = ctx.saved_tensors, gradients
            return g * w + h, (g * x).sum(0)

    def __init__(self) -> None:
        super().__init__()
        self.w, self.s = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        a, b = self.Own.apply(x * self.s, self.w)
        y = a.clone()
        y[:, 1:3].mul_(b[:, :2])
        z = torch.where(y > 0, y.to(torch.float64), 1.0) + self.w
        u, places = torch.max(z, 1)
        return z.float() * u[:, None], places, torch.linalg.solve(y[:8] @ y[:8].T + torch.eye(8), y[:8])


def test_the_walk_does_what_the_engine_does_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(16, 8, requires_grad=True)
    by_engine = facts(remat.capture(Odd(), x))
    monkeypatch.setattr(torch.autograd, "grad", grad)
    assert facts(remat.capture(Odd(), x)) == by_engine


def test_gradients_of_the_walk_are_the_engines() -> None:
    w, x, unused = (torch.arange(1.0, 4.0).mul(k).requires_grad_() for k in (1, 2, 3))
    y = (w * x).sin() + w.sum() * x.double()
    both = [call(y.sum(), (w, x, unused), allow_unused=True) for call in (grad, functools.partial(torch.autograd.grad))]
    for ours, theirs in zip(*both, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
    for options in ({}, {"allow_unused": True, "is_grads_batched": True}):
        with pytest.raises(CaptureError, match=r"torch.autograd.grad within a model is not traced"):
            grad((w * x).sum(), (w,), **options)


def places() -> dict[str, Any]:
    """All that a virtual GPU exchanges, as it is now."""
    interfaces, driver = internals("torch._dynamo.device_interface"), internals("triton.runtime.driver").driver
    interfaces.get_registered_device_interfaces()  # of the machine itself, when they are first asked for
    config = internals("torch._inductor.config")
    folder = internals("torch._inductor.fx_passes.joint_graph").UniformValueConstantFolder
    fakes: Any = internals("torch._subclasses.fake_tensor").FakeTensorMode
    return {
        **{f"torch.cuda.{name}": found for name, found in vars(torch.cuda).items() if callable(found)},
        "torch.autograd.grad": torch.autograd.grad,
        "guard": seam._registry()[seam._CUDA],
        "devices": dict(interfaces.device_interfaces),
        "driver": driver._active,
        "backends": dict(internals("triton.backends").backends),
        "settings": config.get_config_copy(),
        "folder": vars(folder)["_deduce_value"],
        "fakes": fakes.__dict__["avoid_device_init"],
        "attention": torch._C._dispatch_dump_table("aten::scaled_dot_product_attention"),
    }


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back(fails: bool) -> None:
    before, sheet = places(), SHEETS["h100"]
    try:
        with virtual_gpu("h100"), thread_local_patch(torch.autograd, "grad", grad), attention_of(sheet):
            inside = places()
            assert (torch.cuda.get_device_name(), torch.cuda.get_device_capability()) == (sheet.name, (9, 0))
            if fails:
                raise Interrupted
    except Interrupted:
        pass
    after = places()
    assert after == before
    same = {name for name in before if inside[name] == before[name]}
    exchanged = {name for name in before if name not in same}
    # torch with CUDA and without a GPU registers the same guard itself, for good, when a fake tensor is first made.
    assert torch.version.cuda is not None or "guard" in exchanged
    assert {"devices", "driver", "backends", "settings", "folder", "fakes", "attention"} <= exchanged
    assert {"torch.cuda.is_available", "torch.autograd.grad"} <= exchanged


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_leaves_nothing_behind(fails: bool) -> None:

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.beside = model()[0], torch.ones(8)

        def forward(self, x: Tensor) -> Tensor:
            if fails:
                x = x + torch.ones(8, device="cpu")
            return self.inner(x) * self.beside

    module, x = Fails(), torch.ones(4, 8)
    before, state = (
        places(),
        {name: (tensor, tensor.clone()) for name, tensor in module.state_dict(keep_vars=True).items()},
    )
    beside = module.beside
    if fails:
        with pytest.raises(CaptureError, match=r"Fails cannot be captured for device='a100'.*device"):
            remat.capture(module, x, device="a100")
    else:
        remat.capture(module, x, device="a100")
    assert places() == before
    assert module.beside is beside
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert tensor is state[name][0]
        assert torch.equal(tensor, state[name][1])
    module.inner(x).sum().backward()


def test_fake_models_are_moved_too() -> None:
    with internals("torch._subclasses.fake_tensor").FakeTensorMode():
        module, x = model()
    graph = remat.capture(module, x, device="h200")
    assert (graph.meta["gpu"], graph.shapes[0]) == (SHEETS["h200"].name, (32, 8))


def test_other_threads_see_no_gpu() -> None:
    seen: list[bool] = []
    with virtual_gpu("a100"):
        assert torch.cuda.is_available()
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.is_available()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_cpu_graph_is_scheduled_for_a_gpu_and_then_for_the_cpu_again() -> None:
    module, x = model()
    graph = remat.capture(module, x)
    plan = remat.solve(ByteTraffic().pose(graph)).plan
    before = Scheduled(graph).kernels(plan)
    assert len(Scheduled(graph, device="a100").kernels(plan)) > 0
    assert Scheduled(graph).kernels(plan) == before


def test_a_gpu_of_this_very_name_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: SHEETS["h100"].name)
    before = places()
    with virtual_gpu("h100"):
        assert places() == before
    with virtual_gpu("a100"):
        assert torch.cuda.get_device_capability() == (8, 0)


ATTENTION: list[tuple[str, dict[str, Any], str, str]] = [
    # What is asked, and what torch's sdp_utils.cpp takes on compute capability 8.0 and 9.0.
    ("bfloat16", {}, "flash", "cudnn"),
    ("float16", {}, "flash", "cudnn"),
    ("float32", {}, "efficient", "efficient"),
    ("float64", {}, "math", "math"),
    ("bfloat16", {"is_causal": True}, "flash", "cudnn"),
    ("bfloat16", {"is_causal": True, "keys": 32}, "efficient", "cudnn"),
    ("bfloat16", {"keys": 1}, "flash", "flash"),
    ("bfloat16", {"dropout_p": 0.125}, "flash", "cudnn"),
    ("bfloat16", {"dropout_p": 0.1}, "flash", "flash"),
    ("float32", {"dropout_p": 0.1}, "efficient", "efficient"),
    ("bfloat16", {"mask": (16, 16)}, "efficient", "cudnn"),
    ("bfloat16", {"mask": (2, 1, 1, 16)}, "efficient", "cudnn"),
    ("bfloat16", {"mask": (16,)}, "efficient", "efficient"),
    ("float32", {"mask": (16, 16)}, "efficient", "efficient"),
    ("bfloat16", {"size": 12}, "flash", "flash"),
    ("bfloat16", {"size": 256, "cudnn": False}, "flash", "flash"),
    ("bfloat16", {"size": 264, "cudnn": False}, "efficient", "efficient"),
    ("float16", {"size": 100, "mask": (16, 16)}, "math", "math"),
    ("float32", {"size": 6}, "math", "math"),
    ("float32", {"size": 4}, "efficient", "efficient"),
    ("bfloat16", {"values": 16}, "efficient", "cudnn"),
    ("bfloat16", {"groups": 2}, "flash", "cudnn"),
    ("bfloat16", {"flash": False}, "efficient", "cudnn"),
    ("bfloat16", {"flash": False, "cudnn": False, "efficient": False}, "math", "math"),
]


class Attention(nn.Module):
    def __init__(self, mask: tuple[int, ...] | None, **options: Any) -> None:
        super().__init__()
        self.mask = None if mask is None else torch.ones(mask, dtype=torch.bool)
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, self.mask, **self.options)


OPERATORS = {
    "cudnn": "aten._scaled_dot_product_cudnn_attention.default",
    "flash": "aten._scaled_dot_product_flash_attention.default",
    "efficient": "aten._scaled_dot_product_efficient_attention.default",
}


SETTINGS = {"cudnn": "cudnn", "flash": "flash", "efficient": "mem_efficient"}


def forbidden(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(kernel for kernel in SETTINGS if not options.get(kernel, True))


def attention(
    dtype: str,
    *,
    size: int = 32,
    keys: int = 16,
    values: int | None = None,
    groups: int = 1,
    mask: tuple[int, ...] | None = None,
    **options: Any,
) -> tuple[Attention, list[Tensor]]:
    heads, wide = 4 // groups, values or size
    shapes = (2, 4, 16, size), (2, heads, keys, size), (2, heads, keys, wide)
    given = [torch.ones(shape, dtype=getattr(torch, dtype), requires_grad=True) for shape in shapes]
    own = {name: value for name, value in options.items() if name not in SETTINGS}
    return Attention(mask, enable_gqa=groups > 1, **own), given


class Attentions(nn.Module):
    """Attentions beside each other: in a graph, each is known by its module."""

    def __init__(self, *parts: Attention) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: list[Tensor]) -> list[Tensor]:
        return [part(*given) for part, given in zip(self.parts, inputs, strict=True)]


@pytest.mark.parametrize(
    "without", sorted({forbidden(options) for _, options, *_ in ATTENTION}), ids="without {}".format
)
def test_attention_is_the_kernel_that_torch_would_take(
    without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernel, name in SETTINGS.items():
        monkeypatch.setattr(torch.backends.cuda, f"{name}_sdp_enabled", lambda allowed=kernel not in without: allowed)
    asked = [row for row in ATTENTION if forbidden(row[1]) == without]
    parts, inputs = zip(*(attention(dtype, **options) for dtype, options, *_ in asked), strict=True)
    taken = {"a100": [ampere for _, _, ampere, _ in asked], "h100": [hopper for _, _, _, hopper in asked]}
    for gpu, kernels in taken.items():
        graph = remat.capture(Attentions(*parts), *inputs, device=gpu)
        found = [
            (module, op)
            for module, op in zip(graph.modules, graph.ops, strict=True)
            if "scaled_dot_product" in op and "backward" not in op
        ]
        assert found == [(f"parts.{i}", OPERATORS[kernel]) for i, kernel in enumerate(kernels) if kernel in OPERATORS]


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ((2, 4, 16, 256, torch.bfloat16), {}, "depends on the versions of both"),
        ((2, 4, 16, 32, torch.float32), {"enable_gqa": True}, "grouped queries"),
    ],
)
def test_attention_on_which_releases_differ_is_refused(
    query: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    *shape, dtype = query
    q = torch.ones(*shape, dtype=dtype, requires_grad=True)
    k = q[:, :2] if options else q
    with pytest.raises(CaptureError, match=message):
        remat.capture(Attention(None, **options), q, k, k, device="h100")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: virtual_gpu("h10").__enter__(), UnknownName, "no device is named 'h10'.*h100"),
        (lambda: virtual_gpu(3).__enter__(), InvalidOption, "its name or a GpuSheet, got 3"),
        (lambda: remat.capture(*model(), device="v100"), UnknownName, "no device is named 'v100'"),
        (lambda: remat.capture(*model(), device="cuda"), NotInstalled, "needs a GPU in this machine.*'a100'"),
        (lambda: remat.capture(*model(), device=7), InvalidOption, "got 7"),
        (
            lambda: remat.capture(torch.sin, torch.eye(8).to_sparse().requires_grad_(), device="a100"),
            CaptureError,
            "sparse",
        ),
    ],
)
def test_devices_that_are_none(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_fake_tensors_on_a_gpu_that_is_not_there_need_its_name() -> None:
    """libtorch would end the process otherwise."""
    module, x = model()
    mode = internals("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    with on_fake_device(module, (x,), {}, torch.device("cuda", 0), mode) as (args, _):
        with pytest.raises(CaptureError, match=r"there is no GPU in this machine.*device='a100'"):
            remat.capture(module, *args)
        assert len(remat.capture(module, *args, device="a100")) > 0


@pytest.mark.parametrize("found", [None, "3.2.0"])
def test_triton_must_be_there_and_fit(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if found is None:
            raise seam.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(seam, "version", version)
    error, message = (
        (NotInstalled, r"needs Triton: pip install '.\[gpu\]'")
        if found is None
        else (UnsupportedTorch, "needs Triton 3.*pip install 'triton==3")
    )
    for call in (lambda: virtual_gpu("a100").__enter__(), lambda: remat.capture(*model(), device="a100")):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("setting", ["max_autotune", "coordinate_descent_tuning"])
def test_what_is_decided_by_timing_is_refused(setting: str) -> None:
    module, x = model()
    graph = remat.capture(module, x)
    with (
        internals("torch._inductor.config").patch(**{setting: True}),
        pytest.raises(InvalidOption, match=f"{setting} has Inductor choose kernels by timing"),
    ):
        Scheduled(graph, device="a100")


def hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2)
    return y.exp()


def penalty(x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    return slope.sin()


def branching(x: Tensor) -> Tensor:
    return x.sin() if x.sum() > 0 else x.cos()


def apologetic(x: Tensor) -> Tensor:
    try:
        import no_such_module  # noqa: F401  # pyright: ignore
    except ImportError:
        raise ValueError("install it first") from None
    return x


def test_a_hook_within_a_model_is_refused_by_name_where_torch_traces_none() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    if torch.__version__ < "2.13":  # torch makes it an operator
        assert remat.capture(hooked, x, device="a100").ops == remat.capture(hooked, x).ops
    else:
        refused = r"a hook on the gradient of a tensor within a model is not traced.*capture without device="
        with pytest.raises(CaptureError, match=refused):
            remat.capture(hooked, x, device="a100")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (penalty, r"torch.autograd.grad within a model is not traced"),
        (lambda x: torch.func.vjp(torch.sin, x)[1](x)[0].exp() * x.sin(), r"a gradient of a gradient"),
        (branching, r"branching.*reads the contents of a tensor.*capture it without device="),
        (apologetic, r"ValueError: install it first"),
        (lambda x: x * torch.ones(8), r"a tensor of it stays on the CPU: make tensors with device="),
    ],
)
def test_what_is_not_covered_is_refused_by_name(function: Callable[..., Any], message: str) -> None:
    x = torch.ones(4, 8, requires_grad=True)
    before = places()
    with pytest.raises(CaptureError, match=message):
        remat.capture(function, x, device="a100")
    assert places() == before


GLOBAL, _ = model()
SHIFT = torch.ones(8)


def step(x: Tensor) -> Tensor:
    return (GLOBAL(x) + SHIFT).sum()


class Gathering(nn.Module):
    """Holds modules in a list, and keeps what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.listed, self.history, self.seen = [nn.Linear(8, 8)], [], {}

    def forward(self, x: Tensor, inner: nn.Module | None = None) -> Tensor:
        self.history.append(x)
        self.seen["x"] = x
        x = self.listed[0](x)
        return x if inner is None else inner(x)


class Loss:
    def __init__(self) -> None:
        self.net = nn.Linear(8, 8)

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x).sum()


def test_modules_and_tensors_are_found_wherever_code_holds_them() -> None:
    x, other = torch.ones(4, 8), nn.Linear(8, 8)
    held, weight = {"net": nn.Linear(8, 8)}, torch.ones(8, requires_grad=True)

    def loss(x: Tensor, scale: float) -> Tensor:
        return (other(x) * weight * scale).sum()

    calls: list[tuple[Any, ...]] = [
        (step, x),
        (Gathering(), x, other),
        (Loss(), x),
        (functools.partial(lambda inner, x: inner(x), other), x),
        (lambda x, inner=other: inner(x), x),
        (lambda x: held["net"](x) + 1, x),
        (loss, x, 2.0),
        (functools.partial(loss), x, 2.0),
        (other.forward, x),
    ]
    shift, weights = SHIFT, dict(GLOBAL.named_parameters())
    for function, *args in calls:
        graph = remat.capture(function, *args, device="a100")
        assert graph.meta["device"] == "cuda"
        assert graph.parameter.any()
    assert SHIFT is shift
    assert all(weights[name] is parameter for name, parameter in GLOBAL.named_parameters())
    assert all(type(tensor) in (Tensor, nn.Parameter) for tensor in (weight, *weights.values(), *other.parameters()))
    step(x).backward()
    loss(x, 1.0).backward()


def test_what_a_model_keeps_is_gone_with_the_fake_tensors() -> None:
    module, x = Gathering(), torch.ones(4, 8)
    remat.capture(module, x, device="a100")
    assert (module.history, module.seen) == ([], {})


def test_a_graph_is_scheduled_for_the_gpu_that_it_was_captured_for() -> None:
    module, x = model()
    graph = remat.capture(module, x, device="a100")
    plan = remat.solve(ByteTraffic().pose(graph)).plan
    assert Scheduled(graph).kernels(plan) == Scheduled(graph, device="A100").kernels(plan)
    contradictions: list[dict[str, Any]] = [{"backend": "cpu", "device": "h100"}, {"device": 3}]
    for given in contradictions:
        with pytest.raises(InvalidOption, match="device"):
            remat.predict_traffic(graph, plan, **given)
    with pytest.raises(InvalidOption, match="device must name a device of torch, got 'cpu:banana'"):
        remat.capture(module, x, device="cpu:banana")
