"""What Dynamo tells of its compilations: how many there were, and what went wrong in one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from remat.pytorch.seam.internals import internals


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
