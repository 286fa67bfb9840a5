"""Implements `remat.choose_regions`: which modules of a model to save, and ways to run a model with such decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, is_grad_enabled, nn

from remat.answer.solver import Solver
from remat.errors import CaptureError, InvalidOption, InvalidPlan, NotInstalled, UnsupportedProblem
from remat.facts.argument_checks import checked_path
from remat.facts.graph import Graph
from remat.facts.json_file import column_in, read_document, write_document
from remat.improve.region_choice import RegionBudget, RegionChoice, choose_graph_regions
from remat.improve.region_problem import Keep
from remat.pytorch.eager.region_contexts import RegionPolicy
from remat.pytorch.read.capture import capture
from remat.pytorch.seam.torch_names import checkpoint, tree_leaves
from remat.words import pip_install

_FORMAT = "remat.regions"


@dataclass(frozen=True)
class Regions:
    """Holds decisions about the modules of a model. Print it for a table of the decisions and their effects.

    Attributes:
        layers: the paths of the modules that run again in the backward pass.
        save_regions: the paths of the modules of which nothing runs again.
        recompute_regions: the paths of the other modules about which a decision was made.
        keep: what is kept of a saved region: "all" results that are read, or only those of "expensive" operators.
        choice: the figures, the bound, the predicted step and the plan; None after `load`.
    """

    layers: tuple[str, ...]
    save_regions: tuple[str, ...]
    recompute_regions: tuple[str, ...]
    keep: Keep = "all"
    choice: RegionChoice | None = field(default=None, compare=False)

    @property
    def checkpointed_layers(self) -> tuple[str, ...]:
        """Returns the layers that run again: all but those that are saved as a whole."""
        return tuple(layer for layer in self.layers if not self._is_whole(layer))

    def __str__(self) -> str:
        if self.choice is not None:
            return str(self.choice)
        return "\n".join(f"  {region}: save" for region in self.save_regions)

    def save(self, path: str | Path) -> None:
        """Writes the lists as JSON, which every reader of YAML reads, too."""
        lists = {name: list(getattr(self, name)) for name in ("layers", "save_regions", "recompute_regions")}
        write_document({"format": _FORMAT, "keep": self.keep, **lists}, checked_path(path), indent=2)

    @classmethod
    def load(cls, path: str | Path) -> Regions:
        """Reads a file that `save` wrote.

        Raises:
            InvalidPlan: the file is truncated, not JSON, or lacks an entry.
        """
        document = read_document(checked_path(path), _FORMAT, InvalidPlan)
        names = ("layers", "save_regions", "recompute_regions")
        if document.get("keep") not in get_args(Keep):
            raise InvalidPlan(f'"keep" must be "all" or "expensive", got {document.get("keep")!r}')
        layers, saved, recomputed = (tuple(column_in(document, name, InvalidPlan)) for name in names)
        return cls(layers, saved, recomputed, document["keep"])

    def policy(self, model: nn.Module) -> AppliedRegions:
        """Makes modules of a model run as regions; `contexts` of the result is a `context_fn` for checkpoints.

        Use it in code that calls `torch.utils.checkpoint` itself. `apply` also checkpoints the layers.

        Raises:
            InvalidOption: the model lacks one of the modules.
        """
        applied = AppliedRegions(self)
        for path in (*self.save_regions, *self.recompute_regions, *self.layers):
            _module(model, path)  # an error leaves the model as it is
        for region in (*self.save_regions, *self.recompute_regions):
            applied.replace(_module(model, region), lambda forward, region=region: applied.enter(region, forward))
        return applied

    def apply(self, model: nn.Module) -> AppliedRegions:
        """Checkpoints the layers of a model, and saves the regions inside, without a change of its source.

        Args:
            model: the model, or an equal one, in eager mode. Its modules get other `forward` methods.

        Returns:
            a context that undoes this when it ends; `remove` does so, too.

        Raises:
            InvalidOption: the model lacks one of the modules.
        """
        applied = self.policy(model)
        for layer in self.checkpointed_layers:
            is_plain = not any(_is_in(region, layer) for region in self.save_regions)
            options: dict[str, Any] = {} if is_plain else {"context_fn": applied.contexts}
            applied.replace(_module(model, layer), lambda forward, options=options: _checkpointed(forward, options))
        return applied

    def apply_torch_remat(self, model: nn.Module) -> AppliedRegions:
        """Applies the decisions as regions of Meta's `torch_remat`.

        `torch_remat` runs a layer again to its end, so it also keeps what a saved region returns if only the last
        operators of the layer read that. Arguments, result and errors are otherwise those of `apply`.

        Raises:
            NotInstalled: `torch_remat` is missing.
            UnsupportedProblem: a saved region contains one that is recomputed, or keeps expensive operators only.
        """
        outermost = [region for region in self.save_regions if not self._is_inside(region, self.save_regions)]
        split = [region for region in self.recompute_regions if self._is_inside(region, outermost)]
        if split or (self.keep != "all" and self.save_regions):
            what = f"{split[0]!r} is recomputed inside of a saved region" if split else f"keep={self.keep!r}"
            raise UnsupportedProblem(
                f"torch_remat saves regions as a whole: {what}; choose other regions, or use apply"
            )
        if find_spec("torch_remat") is None:
            raise NotInstalled(f"apply_torch_remat needs torch_remat: {pip_install('torch-remat')}")
        applied = AppliedRegions(self)
        for region in outermost:
            applied.replace(_module(model, region), partial(_saved_by_torch_remat, region))
        for layer in self.checkpointed_layers:
            applied.replace(_module(model, layer), partial(_repeated_by_torch_remat, layer))
        return applied

    def _is_inside(self, region: str, others: Iterable[str]) -> bool:
        return any(region != other and _is_in(region, other) for other in others)

    def _is_whole(self, layer: str) -> bool:
        has_more = any(_is_in(region, layer) for region in self.recompute_regions)
        return self.keep == "all" and layer in self.save_regions and not has_more


class AppliedRegions(RegionPolicy, AbstractContextManager["AppliedRegions"]):
    """Undoes what `Regions.apply` or `Regions.policy` did to a model, at the end of a block or by `remove`."""

    def __init__(self, regions: Regions) -> None:
        decisions = dict.fromkeys(regions.recompute_regions, False) | dict.fromkeys(regions.save_regions, True)
        super().__init__(decisions, only_expensive=regions.keep == "expensive")
        self._replaced: list[tuple[nn.Module, Any, Any]] = []

    def replace(self, module: nn.Module, wrap: Callable[[Any], Any]) -> None:
        """Replaces the `forward` method of a module by what `wrap` makes of it."""
        before, after = module.__dict__.get("forward"), wrap(module.forward)
        module.forward = after
        self._replaced.append((module, before, after))

    def remove(self) -> None:
        """Gives all modules the `forward` methods that they had before.

        Raises:
            InvalidOption: a module got another `forward` method since then.
        """
        last = {module: after for module, _, after in self._replaced}
        if any(module.__dict__.get("forward") is not after for module, after in last.items()):
            raise InvalidOption("other regions were applied to the model since then: undo these first")
        for module, before, _ in reversed(self._replaced):
            if before is None:
                del module.forward
            else:
                module.forward = before
        self._replaced.clear()

    def __exit__(self, *error: object) -> None:
        self.remove()


def choose_regions(
    model_or_graph: Callable[..., Any] | Graph,
    /,
    *args: Any,
    budget: float | int | str,
    of: RegionBudget = "saved",
    regions: str | Iterable[str] | None = None,
    tied: bool = False,
    keep: Keep = "all",
    device: str | None = None,
    solver: str | Solver | None = None,
    time_limit_s: float | None = 20.0,
    **kwargs: Any,
) -> Regions:
    """Decides which modules of a model save what they compute, and which recompute it, in the least recompute time.

    `remat.improve.region_problem` defines layers, regions, and both decisions. Within a budget of saved bytes, the
    answer is exact: all decisions of each layer are compared, or an integer program is solved, with a bound. Within a
    limit of the peak, the optima for several numbers of saved bytes are predicted, and the fastest within the limit is
    taken; that has no proof.

    Args:
        model_or_graph: a model, which is captured with its arguments; or a graph of one.
        args, kwargs: the arguments of the model.
        budget: bytes, a size ("8GB"), or a share (0.5, "50%"): of what PyTorch's default plan saves, or of its
            predicted peak. A share below what is possible counts as the least possible.
        of: what the budget limits, "saved" bytes or the "peak" of the step.
        regions: paths or patterns ("model.layers.*.mlp.*"); "layers" for whole layers, which are checkpointed or not;
            None for all modules in layers that themselves compute a product, a convolution or attention.
        tied: whether modules of one name have one decision in all layers.
        keep: "all": nothing of a saved region is computed twice. "expensive": no product, convolution or attention is,
            which takes less memory where a region computes other things, too.
        device: the device whose times and kernels are predicted, such as "h100"; None for that of the graph.
        solver: a solver that takes tied values ("cpsat", "pulp"); None compares all decisions of each layer, and takes
            an integer program only for layers with more than ten decisions.
        time_limit_s: seconds for the integer programs.

    Raises:
        InvalidOption: no module has this name, the graph lacks paths of modules, or an argument is not as described.
        Infeasible: no decisions keep the budget.
        LimitReached: the solver found no decisions in time.
        CaptureError: as for `remat.capture`.

    >>> import remat, torch
    >>> from torch import nn
    >>> block = lambda: nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8), nn.Tanh())
    >>> model, x = nn.Sequential(nn.Sequential(block(), block()), nn.Linear(8, 1)), torch.ones(4, 8)
    >>> chosen = remat.choose_regions(model, x, budget="1.2 KiB")
    >>> chosen.save_regions
    ('0.1.0',)
    >>> with chosen.apply(model):
    ...     model(x).sum().backward()
    """
    is_graph = isinstance(model_or_graph, Graph)
    if is_graph and (args or kwargs):
        raise InvalidOption("a graph takes no arguments: they belong to a model")
    graph = model_or_graph if is_graph else capture(model_or_graph, *args, **kwargs)
    choice = choose_graph_regions(
        graph,
        budget,
        of=of,
        regions=regions,
        tied=tied,
        keep=keep,
        device=device,
        solver=solver,
        time_limit_s=time_limit_s,
    )
    by_decision = {
        flag: tuple(name for name, saved in choice.decisions.items() if saved is flag) for flag in (True, False)
    }
    return Regions(choice.regions.layers, by_decision[True], by_decision[False], keep, choice)


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise InvalidOption(f"the model has no module {path!r}: apply regions to a model like the chosen one") from None


def _is_in(region: str, layer: str) -> bool:
    return region == layer or region.startswith(f"{layer}.")


def _checkpointed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled():  # otherwise, nothing runs again
            _refuse_cache((*args, *kwargs.values()))
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    return run


# Transformers drops the cache if its own checkpointing is on. Filled twice, it has twice as many keys: some attention
# masks then have the wrong shape, and others hide the second half.
def _refuse_cache(arguments: Iterable[Any]) -> None:
    for argument in arguments:
        if any(base.__module__ == "transformers.cache_utils" for base in type(argument).__mro__):
            raise CaptureError(
                "a layer that runs again would fill its cache of keys and values twice: call the model with "
                "use_cache=False, or set model.config.use_cache = False"
            )


def _saved_by_torch_remat(name: str, forward: Any) -> Any:
    torch_remat: Any = import_module("torch_remat")

    def run(*args: Any, **kwargs: Any) -> Any:
        result = torch_remat.region(forward, name, recompute=False)(*args, **kwargs)
        # The code around the module reads the result, and torch_remat cannot see that.
        torch_remat.recompute_needs_tensor(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)))
        return result

    return run


def _repeated_by_torch_remat(name: str, forward: Any) -> Any:
    torch_remat: Any = import_module("torch_remat")
    checkpoint = torch_remat.checkpoint(region_name=name, recompute_state_hooks=(_Generators(),))

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward)(*args, **kwargs)

    return run


class _Generators:
    """Restores torch's default generators, so that a recomputed dropout draws the same numbers."""

    def snapshot(self) -> tuple[Tensor, list[Tensor]]:
        on_gpus: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return torch.get_rng_state(), on_gpus

    def restore(self, state: tuple[Tensor, list[Tensor]]) -> None:
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])
