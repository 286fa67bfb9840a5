"""Asks Dynamo about its compilations: how many there were, and what went wrong in one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from traceback import StackSummary
from typing import Any

from torch import autograd, fx

from remat.errors import RematError
from remat.pytorch.seam.internals import internals

DYNAMO_SKIPS = "functions with a graph break inside a loop, and nn.LSTM; TORCH_LOGS=graph_breaks says why"
"""What Dynamo leaves to eager without a word, for one, and where to look."""


def name_of(model_or_fn: Callable[..., Any]) -> str:
    """Returns the name of a function, or of a module's class, for messages."""
    return getattr(model_or_fn, "__name__", type(model_or_fn).__name__)


def graphs_compiled() -> int:
    """Counts the graphs that Dynamo has had compiled in this process, from caches or not."""
    return internals("torch._dynamo.utils").counters["stats"]["unique_graphs"]


def is_whole(graph_module: fx.GraphModule, model_or_fn: Callable[..., Any]) -> bool:
    """Returns whether a graph of Dynamo's is all of a model: no other one comes before or after it in a call.

    If in doubt it is not: where a part of the model runs eagerly, or there is no telling.
    """
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or reason.graph_break or not reason.user_stack:
        return False
    frame = reason.user_stack[0]
    if (
        frame.filename == internals("torch._dynamo.external_utils").__file__
    ):  # what Dynamo puts around a model with hooks
        return True
    function = getattr(model_or_fn, "forward", model_or_fn)
    codes = [getattr(one, "__code__", None) for one in (function, inspect.unwrap(function))]
    return any(
        (frame.filename, frame.name) == (code.co_filename, code.co_name)
        and frame.lineno in {line for *_, line in code.co_lines()}
        for code in codes
        if code is not None
    )


def times_compiled() -> int:
    """Counts how often Dynamo has compiled the same piece of code before, such as for other sizes."""
    now = internals("torch._guards").CompileContext.current_compile_id()
    return (now.frame_compile_id or 0) if now is not None else 0


@contextmanager
def own_errors() -> Generator[None]:
    """Lets errors of this library pass through Dynamo. Dynamo replaces other errors of a backend by its own."""
    try:
        yield
    except RematError as error:
        error.__class__ = _through_dynamo(type(error))
        raise


# Dynamo takes it for an error that it has made.
@cache
def _through_dynamo(kind: type[RematError]) -> type[RematError]:
    dynamos: Any = internals("torch._dynamo.exc").BackendCompilerFailed
    attributes = {"__module__": kind.__module__, "first_useful_frame": None, "inner_exception": property(lambda me: me)}
    return kind if issubclass(kind, dynamos) else type(kind.__name__, (kind, dynamos), attributes)


@contextmanager
def without_log_of_errors() -> Generator[None]:
    """Keeps torch from logging the traceback of an operator that fails on fake tensors: an error follows."""
    logger = logging.getLogger(internals("torch._subclasses.fake_tensor").__name__)
    logger.addFilter(_is_no_error)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_error)


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def traced_error(error: BaseException) -> tuple[BaseException, StackSummary] | None:
    """Finds what failed while Dynamo traced a model, with the lines of the model; None for other errors."""
    dynamos: Any = internals("torch._dynamo.exc")
    if not isinstance(error, dynamos.TorchDynamoException) or isinstance(error, dynamos.BackendCompilerFailed):
        return None
    stack = StackSummary.from_list(getattr(error, "real_stack", None) or [])
    while isinstance(error, dynamos.TorchDynamoException) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error, stack


def in_backward() -> bool:
    """Returns whether this thread runs a backward pass, in which checkpointed parts are computed again."""
    return internals("torch._C")._current_graph_task_id() != -1


def frees_gradients() -> bool:
    """Returns whether compiled backward passes free the gradients that they are handed, once they have read them.

    Torch 2.13 hands them over in a list for that (`boxed_grads_call`); torch 2.11 holds them until the pass ends.
    """
    return hasattr(autograd.Function, "boxed_grads_call")


def saved_values_freed(node: Any) -> bool:
    """Returns whether a backward pass has read what a node of a `torch.autograd.Function` saves, and freed it."""
    try:
        internals("torch._C")._FunctionBase._raw_saved_tensors.__get__(node)  # without unpacking any
    except RuntimeError:
        return True
    return False
