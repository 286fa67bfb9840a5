"""Queries Dynamo about its compilations, and autograd about its passes."""

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
from remat.pytorch.seam.thread_patch import callers_of

DYNAMO_SKIPS = (
    "functions with a graph break inside a loop, and nn.LSTM unless torch._dynamo.config.allow_rnn is True; "
    "TORCH_LOGS=graph_breaks says why"
)
"""Examples of code that Dynamo silently runs eagerly, and where to find the reason."""


def name_of(model_or_fn: Callable[..., Any]) -> str:
    return getattr(model_or_fn, "__name__", type(model_or_fn).__name__)


def graphs_compiled() -> int:
    """Returns the number of graphs that Dynamo has compiled in this process, with those from caches."""
    return internals("torch._dynamo.utils").counters["stats"]["unique_graphs"]


def covers_whole_call(graph_module: fx.GraphModule, model_or_fn: Callable[..., Any]) -> bool:
    """Returns whether a graph of Dynamo's is the only graph that a call of the model runs.

    It returns False in doubt, for example if a part of the model runs eagerly.
    """
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or reason.graph_break or not reason.user_stack:
        return False
    frame = reason.user_stack[0]
    if frame.filename == internals("torch._dynamo.external_utils").__file__:  # Dynamo's wrapper of a model with hooks
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
    """Returns how often Dynamo has compiled the same code before, for example for other sizes."""
    now = internals("torch._guards").CompileContext.current_compile_id()
    return (now.frame_compile_id or 0) if now is not None else 0


@contextmanager
def own_errors() -> Generator[None]:
    """Lets errors of this library pass through Dynamo, which replaces other errors of a backend by its own."""
    try:
        yield
    except RematError as error:
        error.__class__ = _through_dynamo(type(error))
        raise


# Makes a subclass that Dynamo treats as its own error.
@cache
def _through_dynamo(kind: type[RematError]) -> type[RematError]:
    dynamos: Any = internals("torch._dynamo.exc").BackendCompilerFailed
    attributes = {"__module__": kind.__module__, "first_useful_frame": None, "inner_exception": property(lambda me: me)}
    return kind if issubclass(kind, dynamos) else type(kind.__name__, (kind, dynamos), attributes)


@contextmanager
def without_log_of_errors() -> Generator[None]:
    """Suppresses torch's log of the traceback of an operator that fails on fake tensors: an error follows anyway."""
    logger = logging.getLogger(internals("torch._subclasses.fake_tensor").__name__)
    logger.addFilter(_is_no_error)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_error)


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def traced_error(error: BaseException) -> tuple[BaseException, StackSummary] | None:
    """Returns the error that a model raised while Dynamo traced it, and the model's lines; None for other errors."""
    dynamos: Any = internals("torch._dynamo.exc")
    if not isinstance(error, dynamos.TorchDynamoException) or isinstance(error, dynamos.BackendCompilerFailed):
        return None
    stack = StackSummary.from_list(getattr(error, "real_stack", None) or [])
    while isinstance(error, dynamos.TorchDynamoException) and (cause := error.__cause__ or error.__context__):
        error = cause
    return error, stack


def in_backward() -> bool:
    """Returns whether this thread runs a backward pass, in which checkpointed regions are recomputed."""
    return internals("torch._C")._current_graph_task_id() != -1


def in_pipeline_stage() -> bool:
    """Returns whether the current code runs in a call by a stage of `torch.distributed.pipelining`."""
    names = (frame.f_globals.get("__name__") for frame in callers_of(inspect.currentframe()))
    return "torch.distributed.pipelining.stage" in names


def frees_gradients() -> bool:
    """Returns whether compiled backward passes free incoming gradients after their last reader.

    Torch 2.13 passes gradients in a list for that (`boxed_grads_call`); torch 2.11 holds them until the pass ends.
    """
    return hasattr(autograd.Function, "boxed_grads_call")


def saved_values_freed(node: Any) -> bool:
    """Returns whether a backward pass has read and freed the saved tensors of a node of a `torch.autograd.Function`."""
    return _saved(node) is None


def function_that_saves(node: Any) -> str:
    """Returns the name of the `torch.autograd.Function` of a node of autograd that holds saved tensors; else ""."""
    function: Any = autograd.function
    saves = isinstance(node, function.BackwardCFunction) and bool(_saved(node))
    return node.name().removesuffix("Backward") if saves else ""


# The saved tensors of a node, none of them unpacked; None if a backward pass has freed them.
def _saved(node: Any) -> Any:
    try:
        return internals("torch._C")._FunctionBase._raw_saved_tensors.__get__(node)
    except RuntimeError:
        return None
