"""Calls `torch.compile` with the plans of this library."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from torch import fx

from remat.answer.plan import Plan
from remat.answer.registry import find_costmodel, find_solver
from remat.answer.solver import Solver, check_time_limit
from remat.errors import InvalidOption, RematError
from remat.facts.argument_checks import checked_flag
from remat.problem.costmodel import CostModel
from remat.pytorch.run.budget_backend import compile_within
from remat.pytorch.run.cached_plans import collecting_plans
from remat.pytorch.run.eager_warning import warn_if_skipped
from remat.pytorch.run.on_device import check_device
from remat.pytorch.run.partitioner import OnError, Partitioner, checked_on_error
from remat.pytorch.run.plan_log import CompiledStep, with_report
from remat.pytorch.run.replay import Plans, has_symbols, plans_of
from remat.pytorch.run.shared_budget import SharedBudget
from remat.pytorch.seam.compilations import own_errors
from remat.pytorch.seam.inductor_lowering import all_options, compile_fx, mode_options, run_uncompiled
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_partitioner import region_budgets
from remat.words import near, near_of

# Options that torch.compile takes for itself.
_TORCHS = ("guard_filter_fn", "use_aoti")


@overload
def compile(model: Callable[..., Any], **options: Any) -> CompiledStep: ...


@overload
def compile(model: None = None, **options: Any) -> Callable[[Callable[..., Any]], CompiledStep]: ...


def compile(
    model: Callable[..., Any] | None = None,
    *,
    cost_model: str | CostModel | SharedBudget | None = None,
    solver: str | Solver | None = None,
    plan: Plans | None = None,
    recompute_parameter_copies: bool = False,
    on_error: OnError | None = None,
    time_limit_s: float | None = None,
    copy_stream: bool = False,
    codegen: bool = True,
    **torch_compile_kwargs: Any,
) -> CompiledStep | Callable[[Callable[..., Any]], CompiledStep]:
    """Compiles a model like `torch.compile`, but a cost model and a solver choose what is saved for the backward pass.

    Args:
        model: a module or function; without one, as in `@remat.compile(cost_model=...)`, a decorator is returned.
        cost_model: a registered name or an instance. Its budget holds for the whole run: for all graphs of the
            model and all sizes (see `remat.pytorch.run.shared_budget`). A `remat.SharedBudget` is one budget of several
            models, such as blocks that are compiled one by one. The default is PyTorch's own prices, solved exactly
            (`costmodels.ByteTraffic(prices="pytorch")`); or, where PyTorch has a memory budget of its own for
            a graph (`torch._functorch.config.activation_memory_budget`, or
            `torch.autograd.graph.region_activation_memory_budget`), `MemoryBudget` of that fraction. With a cost
            model, such a setting is ignored, with a warning. A call that gives neither `cost_model`, `solver`, `plan`
            nor `on_error` takes what the environment says (see `remat.pytorch.backend`) before these defaults.
        solver: a registered name or an instance; when left out, that of `remat.solve`.
        plan: a plan to replay instead of solving, or its file; or several, one for each graph and size. A graph for
            which none was made is refused, and the error tells the difference. Dynamo then makes a graph for each size
            (`dynamic=False`), unless `dynamic` is given, or a plan is for a graph of all sizes.
        recompute_parameter_copies: save no copy of a parameter, such as those that autocast makes (see
            `remat.recompute_parameter_copies`).
        on_error: "raise" (the default), or "fallback" to PyTorch's own partitioner with a warning, if there is
            no plan that passes the checks.
        time_limit_s: wall time in seconds for the search for each plan within a budget, which then ends with its best
            plan so far. The check of that plan takes additional time. None makes a short search if the peak is limited,
            seconds for a model of thousands of values; a limit of minutes may find a faster step.
        copy_stream: if True, offloaded values are copied in a stream of their own, while kernels run: they stay on the
            device a little longer, and come back a little earlier. Plans within a budget are then chosen for copies
            that kernels hide. If False, kernels wait for each copy.
        codegen: if False, the two graphs run operator by operator and draw eager's random numbers. An error that
            remains does not come from Inductor's kernels.
        torch_compile_kwargs: passed on to `torch.compile`; `backend` is ours.

    Returns:
        the compiled model; `step.report()` says what was chosen for each of its graphs. Choosing happens when torch
        compiles, at the first call; what goes wrong then is raised there. What Dynamo cannot trace runs eagerly,
        without a plan, as under torch.compile: for example a graph break inside a loop, or nn.LSTM unless
        `torch._dynamo.config.allow_rnn` is True. If nothing of the model was traced, the first call that needs
        gradients warns (see `remat.pytorch.run.eager_warning`).
    """
    if model is None:
        options = {name: value for name, value in locals().items() if name not in ("model", "torch_compile_kwargs")}
        return functools.partial(compile, **options, **torch_compile_kwargs)
    if not callable(model):  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidOption(f"model must be a module or a function, got {model!r}")
    checked_flag("codegen", codegen)
    if cost_model is None and solver is None and plan is None and on_error is None:
        asked = _from_environment()
        cost_model, solver, plan = asked.get("cost_model"), asked.get("solver"), asked.get("plan")
        on_error = asked.get("on_error")
        time_limit_s = asked.get("time_limit_s") if time_limit_s is None else time_limit_s
    if "backend" in torch_compile_kwargs or "custom_partitioner_fn" in (torch_compile_kwargs.get("options") or {}):
        raise InvalidOption("remat.compile sets backend= and custom_partitioner_fn itself: leave them out")
    shared = cost_model if isinstance(cost_model, SharedBudget) else None
    prices = cost_model.cost_model if isinstance(cost_model, SharedBudget) else cost_model
    partitioner = Partitioner.of(
        prices,
        solver,
        plan=plan,
        recompute_parameter_copies=recompute_parameter_copies,
        on_error="raise" if on_error is None else on_error,
        time_limit_s=time_limit_s,
        copy_stream=copy_stream,
        codegen=codegen,
    )
    if partitioner.plans and not any(has_symbols(one.graph) for one in partitioner.plans):
        torch_compile_kwargs.setdefault("dynamic", False)
    if shared is None and not partitioner.plans and partitioner.cost_model.limits_memory:
        shared = SharedBudget(partitioner.cost_model)
        shared.is_alone = True
    if shared is not None:
        check_device(shared.cost_model, is_alone=shared.is_alone)
        options = _inductor_options(torch_compile_kwargs.pop("mode", None), torch_compile_kwargs.pop("options", None))
        step = compile_within(shared, model, partitioner, options, codegen=codegen, **torch_compile_kwargs)
    elif not codegen:
        uncompiled = functools.partial(run_uncompiled, partitioner=partitioner, options={"fallback_random": True})
        step = torch_compile(model, backend=uncompiled, **torch_compile_kwargs)
    else:
        options = _inductor_options(torch_compile_kwargs.pop("mode", None), torch_compile_kwargs.pop("options", None))
        step = torch_compile(model, backend=InductorBackend(partitioner), options=options, **torch_compile_kwargs)
    step = warn_if_skipped(step, model, partitioner.log.note)
    return with_report(step, model, partitioner.log, None if shared is None else shared.most_held)


@dataclass(frozen=True)
class InductorBackend:
    """Compiles the graphs of Dynamo by TorchInductor, with our partitioner."""

    __name__ = "remat"  # the registered name: torch treats backends that it knows by name as its own
    partitioner: Partitioner

    def __call__(
        self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """Compiles a graph. If torch finds it in its cache on disk, the report has the plan of an earlier run."""
        with collecting_plans(graph_module) as graph:
            marks = [(node.name, budget) for node, budget in region_budgets(graph_module).items()]
            noted = (*(module for module, _ in graph.places), *marks)
            patches = {**(options or {}), "custom_partitioner_fn": replace(self.partitioner, noted=noted)}
            compiled = compile_fx(graph_module, example_inputs, patches)
            # Inside the block: outside of it, a plan that is read counts as one of another backend.
            from_cache = [] if graph.planned else graph.load_from(compiled)
        for planned in from_cache:
            self.partitioner.log.add(planned)
        return compiled


@own_errors()
def backend(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph for `torch.compile(model, backend="remat")`.

    Use it where you cannot call `remat.compile`. Give a cost model as
    `options={"remat.cost_model": "memory-budget:budget=8GB"}`, or in the environment variable REMAT_COST_MODEL. There
    are also REMAT_SOLVER, REMAT_ON_ERROR, REMAT_TIME_LIMIT_S, and REMAT_PLAN: a file, or several with ":" between them
    (";" on Windows). Without any of these, plans are chosen as by `remat.compile(model)`. A budget holds for each
    graph, not for the whole run.

    Args:
        graph_module: Dynamo's forward graph.
        example_inputs: the inputs of that graph.
        mode: as for `torch.compile` with its default backend.
        options: as for `torch.compile`; and, of `remat.compile`, `remat.cost_model`, `remat.solver`, `remat.on_error`,
            `remat.time_limit_s`, and `remat.plan`, plans or files. They come before what the environment says.

    Raises:
        InvalidOption: there is no such option, or it has no such value.
    """
    own = {name: value for name, value in (options or {}).items() if name.startswith("remat.") or name in _OPTIONS}
    others = {name: value for name, value in (options or {}).items() if name not in own}
    return InductorBackend(_partitioner_of(own))(graph_module, example_inputs, options=_inductor_options(mode, others))


def _plans_in(text: str) -> tuple[Plan, ...]:
    files = text.split(os.pathsep)
    if "" in files:
        raise InvalidOption(f"a file must be named before and after each {os.pathsep!r}, got {text!r}")
    return plans_of(files)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidOption(f"time_limit_s must be a positive number of seconds, got {text!r}") from None
    check_time_limit(seconds)
    return seconds


# What the backend takes as "remat.cost_model" and so on, and what reads REMAT_COST_MODEL in the environment.
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "cost_model": find_costmodel,
    "solver": find_solver,
    "on_error": checked_on_error,
    "time_limit_s": _seconds,
    "plan": _plans_in,
}


def _partitioner_of(options: Mapping[str, Any]) -> Partitioner:
    allowed = [f"remat.{name}" for name in _OPTIONS]
    for name in sorted(options.keys() - set(allowed)):
        raise InvalidOption(f"options must name one of {', '.join(allowed)}, got {name!r}{near(name, allowed)}")
    values = {name.removeprefix("remat."): value for name, value in options.items()}
    return Partitioner.of(**_from_environment(_OPTIONS.keys() - values), **values)


def _from_environment(options: Collection[str] = _OPTIONS) -> dict[str, Any]:
    variables = {name: f"REMAT_{name.upper()}" for name in _OPTIONS}
    _check_environment({*variables.values(), "REMAT_LOG"})
    asked: dict[str, Any] = {}
    for name, read in _OPTIONS.items():
        if name in options and (text := os.environ.get(variables[name])):
            try:
                asked[name] = read(text)
            except (RematError, OSError) as error:
                raise InvalidOption(f"the environment variable {variables[name]}: {error}") from error
    return asked


def _check_environment(allowed: Collection[str]) -> None:
    for name in sorted(os.environ):
        if name.startswith("REMAT_") and name not in allowed:
            told = f"remat ignores the unknown environment variable {name}{near_of(name, sorted(allowed))}"
            warnings.warn(told, stacklevel=2)


# As torch.compile joins its `mode` and `options`.
def _inductor_options(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    from_mode = {} if mode is None or mode == "default" else mode_options(mode)
    allowed = {*all_options(), *_TORCHS}
    for name in options or {}:
        if (own := name.removeprefix("remat.")) in _OPTIONS:
            raise InvalidOption(
                f"remat.compile takes {own}= itself: remat.compile(model, {own}=...), not among the options, "
                f"got {name!r}; "
                f'they are for torch.compile(model, backend="remat", options={{"remat.{own}": ...}})'
            )
        if name.replace("-", "_") not in allowed:
            raise InvalidOption(
                f"options must name settings of TorchInductor, got {name!r}{near(name, allowed)}; "
                f"torch._inductor.list_options() lists them"
            )
    return {**from_mode, **{name.replace("-", "_"): value for name, value in (options or {}).items()}}
