"""Makes one instance of the corpus: a model of published sizes, of tensors without contents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

import remat
from remat import Graph
from remat.pytorch import read_step

Inputs = tuple[Callable[[], Tensor], ...]
Sample = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Recipe:
    """Describes a model and its inputs.

    Attributes:
        name: of the instance, and of its file.
        family: what kind of model it is.
        model: what it is.
        sizes: layers, widths, batch: what is not said by `model`.
        make: the model and its inputs; only their sizes matter, so they may be on the meta device.
        cite: where the model was published; "" for small ones of our own.
        package: whose code the model is; "" for our own.
        dtype: of the parameters.
        device: to capture the step for, as in `remat.capture`; "" for the CPU.
        within: what must hold while it is made and captured.
        whole: whether forward pass, loss and backward pass are traced as one graph, by `make_fx`.
    """

    name: str
    family: str
    model: str
    sizes: str
    make: Callable[[], Sample]
    cite: str = ""
    package: str = ""
    dtype: torch.dtype = torch.float32
    device: str = ""
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    whole: bool = False

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, such as "float32"."""
        return str(self.dtype).removeprefix("torch.")


def on_meta(model: Callable[[], nn.Module], inputs: Inputs, dtype: torch.dtype = torch.float32) -> Sample:
    """Makes a model and inputs that take no memory."""
    with torch.device("meta"):
        return model().to(dtype), tuple(make() for make in inputs)


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    """Describes an input of numbers."""
    return partial(torch.empty, shape, dtype=dtype)


def tokens(*shape: int) -> Callable[[], Tensor]:
    """Describes an input of integers: words, or labels."""
    return partial(torch.zeros, shape, dtype=torch.long)


def images(batch: int, size: int = 224) -> Inputs:
    """Describes inputs of pictures of three channels, and a label for each."""
    return floats(batch, 3, size, size), tokens(batch)


def capture(recipe: Recipe) -> Graph:
    """Captures the joint graph of a recipe."""
    torch.manual_seed(0)
    with recipe.within():
        model, args = fake(*recipe.make())
        return whole_step(model, args) if recipe.whole else remat.capture(model, *args, device=recipe.device or None)


def whole_step(model: nn.Module, args: tuple[Tensor, ...]) -> Graph:
    """Traces a step as graph-based trainers do: a function of parameters and inputs that returns loss and gradients."""
    weights = dict(model.named_parameters())

    def step(given: list[Tensor], *args: Tensor) -> tuple[Tensor, ...]:
        loss = functional_call(model, dict(zip(weights, given, strict=True)), args)
        return loss, *torch.autograd.grad(loss, given)

    table = select_decomp_table()
    kept = {op: formula for op, formula in table.items() if op is not torch.ops.aten.ones_like.default}
    traced = make_fx(step, kept, tracing_mode="fake")(list(weights.values()), *args)
    return read_step(traced, len(weights), type(model).__name__)


def fake(model: nn.Module, args: tuple[Tensor, ...]) -> Sample:
    """Exchanges the tensors of a model, in place, and of its arguments for fake ones on the CPU."""
    mode = FakeTensorMode()
    seen: dict[int, tuple[Tensor, Tensor]] = {}  # holds the old ones, too: an id is unique while its tensor lives

    def exchanged(tensor: Tensor) -> Tensor:
        if id(tensor) not in seen:  # tied weights stay tied
            with mode:
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                empty = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
                seen[id(tensor)] = tensor, empty.requires_grad_(tensor.requires_grad)
        return seen[id(tensor)][1]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            table.update({name: exchanged(tensor) for name, tensor in table.items() if tensor is not None})
    return model, tree_map(exchanged, args)
