"""What Dynamo tells of its compilations: how many there were, and what went wrong in one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from remat.pytorch.seam.internals import internals

DYNAMO_SKIPS = "functions with a graph break inside a loop, and nn.LSTM; TORCH_LOGS=graph_breaks says why"
"""What Dynamo leaves to eager without a word, for one, and where to look."""


def name_of(model_or_fn: Callable[..., Any]) -> str:
    """Finds the name by which messages call a model: of a function its own, of a module its class's."""
    return getattr(model_or_fn, "__name__", type(model_or_fn).__name__)


def graphs_compiled() -> int:
    """Counts the graphs that Dynamo has had compiled in this process, from caches or not."""
    return internals("torch._dynamo.utils").counters["stats"]["unique_graphs"]


@contextmanager
def own_errors() -> Generator[None]:
    """Raises an error of a backend as it was, without Dynamo's wrapping."""
    wrapped: type[Exception] = internals("torch._dynamo.exc").BackendCompilerFailed
    try:
        yield
    except wrapped as error:
        raise getattr(error, "inner_exception", error) from None
