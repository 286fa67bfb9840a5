"""Runs a model whose graphs share a budget of memory, and compiles the model again when its graphs get new plans."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx, nn

from remat.errors import InvalidOption
from remat.improve.peak_search import measuring_with
from remat.improve.progress import ending_within
from remat.pytorch.run.calls import counting_call, sharing_budget, with_counted_calls
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.run.shared_budget import SharedBudget
from remat.pytorch.seam.compilations import in_backward, own_errors
from remat.pytorch.seam.inductor_lowering import compile_fx, run_uncompiled
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import every_joint_graph_partitioned


@dataclass(frozen=True)
class BudgetedBackend:
    """Compiles the graphs of Dynamo. Dynamo reuses what one backend has compiled for a second backend that is equal."""

    __name__: ClassVar[str] = "remat"  # in torch's messages; else they hold all options

    partitioner: Partitioner
    options: Mapping[str, Any]
    codegen: bool  # if False, the graphs run operator by operator
    # which plans the graphs have: the `id` of their budget, and how often the budget made new plans; zeros before any.
    plans: tuple[int, int]

    @own_errors()
    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        with sharing_budget(graph_module, example_inputs) as compilation, every_joint_graph_partitioned():
            if compilation is None and torch.is_grad_enabled():
                raise InvalidOption(
                    "a copy of a compiled model has no budget: copy the model before it is compiled, and call "
                    "remat.compile on the copy"
                )
            if self.codegen:
                options = {**self.options, "custom_partitioner_fn": self.partitioner}
                compiled = compile_fx(graph_module, example_inputs, options)
            else:
                compiled = run_uncompiled(graph_module, example_inputs, self.partitioner, {"fallback_random": True})
        compiled_graph = None if compilation is None else compilation.compiled_graph
        return compiled if compiled_graph is None else with_counted_calls(compiled, compiled_graph)


def compile_within(
    budget: SharedBudget,
    model: Callable[..., Any],
    partitioner: Partitioner,
    options: Mapping[str, Any],
    *,
    codegen: bool,
    **torch_compile_kwargs: Any,
) -> Callable[..., Any]:
    """Compiles a model whose graphs share a budget; passes other arguments on to `torch.compile`."""

    def compiled_anew() -> Callable[..., Any]:
        # Equal blocks, each with a budget of its own, use the same compiled graph until one of them gets other plans.
        own = () if budget.is_alone and not budget.generation else (id(budget), budget.generation)
        backend = BudgetedBackend(partitioner, options, codegen, own or (0, 0))
        return torch_compile(model, backend=backend, **torch_compile_kwargs)

    compiled, generation = compiled_anew(), budget.generation
    if compiled is model:  # torch's switch for "do not compile" is set
        return compiled
    run: Callable[..., Any] = _function_of(compiled)

    @functools.wraps(run)
    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal run, generation
        if torch.compiler.is_dynamo_compiling():
            return run(*args, **kwargs)
        if torch.is_grad_enabled() and not in_backward():
            try:
                with measuring_with(partitioner.check), ending_within(partitioner.time_limit_s):
                    budget.begin_step()
            except Exception as error:
                if partitioner.on_error == "raise":
                    raise
                budget.keep_plans()
                warnings.warn(f"remat keeps the plans that it has: {error}", stacklevel=2)
        if generation != budget.generation:
            run, generation = _function_of(compiled_anew()), budget.generation
        partitioner.log.judge(budget.plans, partitioner.check.with_check)
        with counting_call(budget, model, (args, kwargs)):
            return run(*args, **kwargs)

    if not isinstance(compiled, nn.Module):
        return step
    compiled.forward = step
    return compiled


def _function_of(compiled: Callable[..., Any]) -> Callable[..., Any]:
    return compiled.forward if isinstance(compiled, nn.Module) else compiled
