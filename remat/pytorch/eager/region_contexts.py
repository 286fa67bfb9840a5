"""Keeps what some modules compute when `torch.utils.checkpoint` runs a layer again, and nothing more.

Torch's own selective checkpointing keeps every result of the operators that a policy names. This one keeps a result
only if it is read: by autograd, or by an operator that runs again. It sees both in the forward pass, and needs no
captured graph. In the recomputation, the operators of saved modules do not run: each gives the result that was
kept, or an empty tensor that nobody reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.errors import CaptureError, InvalidPlan
from remat.pytorch.read.operators import is_expensive
from remat.pytorch.seam.torch_names import (
    TorchDispatchMode,
    argument_of,
    detached,
    is_mutable,
    is_overload,
    never_asked_about,
    saved_tensors_hooks_in_force,
    storage_number,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
    updates_statistics,
    writes_to,
    written_arguments,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Running(threading.local):
    """Says for each region that runs in this thread, the innermost last, whether it is saved."""

    def __init__(self) -> None:
        self.saved: list[bool] = []


class RegionPolicy:
    """Knows which region runs at the moment, and makes the contexts of checkpointed calls.

    Args:
        decisions: whether each region, by its path, is saved. `enter` must surround the calls of its module.
        only_expensive: whether only products, convolutions and attention of a saved region are kept from running twice.
    """

    def __init__(self, decisions: Mapping[str, bool], *, only_expensive: bool = False) -> None:
        self._decisions, self._only_expensive = decisions, only_expensive
        self._running = _Running()

    def enter(self, region: str, function: _Function) -> _Function:
        """Wraps a function to run as part of a region, except where it calls a function of another region."""
        is_saved = self._decisions[region]

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            self._running.saved.append(is_saved)
            try:
                return function(*args, **kwargs)
            finally:
                self._running.saved.pop()

        return inside  # type: ignore[return-value]

    def is_saved(self, operator: Any) -> bool:
        """Returns whether the results of an operator that runs now are kept, so that it does not run again."""
        if not self._running.saved or not self._running.saved[-1]:
            return False
        return not self._only_expensive or is_expensive(operator)

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Makes both contexts for `checkpoint(layer, *args, use_reentrant=False, context_fn=policy.contexts)`."""
        calls: list[_Call] = []
        return _Pass(lambda: _Forward(self, calls)), _Pass(lambda: _Recomputation(self, calls))


@dataclass
class _Call:
    """Describes an operator of a saved region.

    Attributes:
        operator: what ran.
        leaves: its results; None if it runs again, because it is a view, or writes to what others made.
        structure: how `leaves` are nested in the result.
    """

    operator: Any
    leaves: list[Any] | None
    structure: Any = None


@dataclass(frozen=True)
class _SavedResult:
    """Holds a result, and how often its memory was written to when the forward pass of the layer ended."""

    tensor: Tensor
    version: int

    def checked(self) -> Tensor:
        if writes_to(self.tensor) != self.version:
            raise CaptureError(
                "what a saved region computed was overwritten after its layer, so a recomputation would read the new "
                "contents: write it without an operator in place, or do not save that region"
            )
        return self.tensor.detach()


@dataclass(frozen=True)
class _Placeholder:
    """Stands for a tensor that nobody reads."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


class _Forward(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, policy: RegionPolicy, calls: list[_Call]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # an argument without a type
        self._policy, self._calls = policy, calls
        self._made: set[int] = set()  # storages that saved regions made; `calls` holds them, so no number is reused
        self._read: set[int] = set()
        self._read_next: set[int] = set()  # by operators that run again if autograd keeps anything after them
        self._own: set[int] = set()  # storages that the layer made
        # Others, such as buffers: what reads them when the layer runs again, and what writes to them.
        self._readers, self._kept_by_autograd = dict[int, Any](), dict[int, Any]()
        self._writers, self._statistics = dict[int, Any](), dict[int, Any]()
        pack, unpack = saved_tensors_hooks_in_force(False)
        self._hooks = saved_tensors_hooks(self._packing(pack), unpack)

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        error = (exc_type, exc_val, exc_tb)
        super().__exit__(*error)  # pyright: ignore[reportUnknownMemberType]  # arguments without a type
        self._hooks.__exit__(*error)
        for call in self._calls:
            call.leaves = None if call.leaves is None else [self._result_or_placeholder(leaf) for leaf in call.leaves]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in never_asked_about:
            return result
        arguments = tree_leaves((args, kwargs))
        taken = _storages(arguments)
        written = _storages(written_arguments(func, args, kwargs))
        leaves, structure = tree_flatten(result)
        own = _storages(leaves)  # nothing for sparse tensors, which have no storage
        is_view = not written and bool(own) and own <= taken and all(isinstance(leaf, Tensor) for leaf in leaves)
        is_saved = self._policy.is_saved(func)
        self._own |= own if func is torch.ops.aten.lift_fresh.default else own - taken  # a literal of the layer
        is_read = written & (self._read | self._read_next)
        if is_saved and not is_view and written <= self._made and not is_read:
            self._made |= own - taken
            kept = [detached(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._calls.append(_Call(func, kept, structure))
            return result
        if is_saved:
            self._calls.append(_Call(func, None))
        if written & self._made:
            raise CaptureError(
                f"{func} overwrites what a saved region has computed, so a recomputation would read the new contents: "
                f"write it without an operator in place, or do not save that region"
            )
        if not is_view:
            self._read_next |= taken & self._made
            if any(isinstance(leaf, torch.Generator) for leaf in arguments):
                raise CaptureError(
                    f"{func} draws from a torch.Generator, and might draw other numbers when its layer runs again: "
                    f"pass no generator, or draw outside of the layer"
                )
            if updates_statistics(func) and argument_of(func, args, kwargs, "training"):
                statistics = _storages([argument_of(func, args, kwargs, f"running_{of}") for of in ("mean", "var")])
                self._statistics |= dict.fromkeys(statistics, func)
                taken -= statistics
            self._readers |= dict.fromkeys(taken - written - self._own, func)
            self._writers |= dict.fromkeys(written - self._own, func)
            self._refuse_unrepeatable()
        return result

    # Autograd also keeps the running statistics of a batch normalization in training, but its backward pass does not
    # read them.
    def _refuse_unrepeatable(self) -> None:
        pairs = (
            (self._readers, self._writers),
            (self._kept_by_autograd, self._writers),
            (self._readers, self._statistics),
        )
        for readers, writers in pairs:  # most layers write to nothing outside, and nothing is compared then
            for storage in readers.keys() & writers.keys():
                raise CaptureError(
                    f"{writers[storage]} overwrites a buffer or an argument of its layer that {readers[storage]} "
                    f"reads, and would read with its new contents when the layer runs again: move the write out of the "
                    f"layer"
                )

    def _packing(self, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def pack_and_note(tensor: Tensor) -> Any:
            # Numbers of other storages are used again once these are gone.
            storages = _storages(tensor)
            self._read |= self._read_next | (storages & self._made)
            self._read_next.clear()
            self._kept_by_autograd |= dict.fromkeys(storages - self._own, "the backward pass")
            self._refuse_unrepeatable()
            return pack(tensor)

        return pack_and_note

    def _result_or_placeholder(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        number = storage_number(leaf)
        if number is None or number in self._read:
            return _SavedResult(leaf, writes_to(leaf))
        return _Placeholder(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)


class _Recomputation(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, policy: RegionPolicy, calls: list[_Call]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # an argument without a type
        self._policy, self._calls = policy, iter(calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in never_asked_about or not self._policy.is_saved(func):
            return func(*args, **kwargs)
        call = next(self._calls, None)
        if call is None or call.operator is not func:
            expected = "no operator" if call is None else call.operator
            raise InvalidPlan(
                f"a recomputation runs {func} in a saved region, where the forward pass ran {expected}: the model must "
                f"do the same each time"
            )
        if call.leaves is None:
            return func(*args, **kwargs)
        if _draws(func, args, kwargs):  # else the generator would not advance, and later operators would draw others
            copied: Any = tree_map(_elsewhere, (args, kwargs)) if is_mutable(func) else (args, kwargs)
            func(*copied[0], **copied[1])
        return tree_unflatten([_restored(leaf) for leaf in call.leaves], call.structure)


# A context that can be entered several times: with `retain_graph=True`, there are several recomputations.
class _Pass(AbstractContextManager[Any]):
    def __init__(self, mode: Callable[[], TorchDispatchMode]) -> None:
        self._mode, self._open = mode, ExitStack()

    def __enter__(self) -> Any:
        self._open.enter_context(_every_cast())
        return self._open.enter_context(self._mode())

    def __exit__(self, *error: Any) -> Any:
        return self._open.__exit__(*error)


# Otherwise autocast would cache the cast weight until its outermost context ends: a second read of the weight, in the
# layer or in the backward pass, would run other operators than the first.
@contextmanager
def _every_cast() -> Generator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


# Attention with a dropout of 0 draws nothing. The body of a higher-order operator is unknown, so it counts as random.
def _draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if not is_overload(operator):
        return True
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    return argument_of(operator, args, kwargs, "dropout_p") != 0


def _elsewhere(leaf: Any) -> Any:
    return torch.empty_like(leaf) if isinstance(leaf, Tensor) else leaf


def _restored(leaf: Any) -> Any:
    if isinstance(leaf, _SavedResult):
        return leaf.checked()
    return leaf.tensor() if isinstance(leaf, _Placeholder) else leaf


def _storages(tree: Any) -> set[int]:
    return {number for leaf in tree_leaves(tree) if (number := storage_number(leaf)) is not None}
