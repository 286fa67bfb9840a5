"""Records what eager PyTorch runs: the operators below autograd, in order, and which memory each reads and writes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import CheckpointPolicy

from remat.errors import CaptureError
from remat.pytorch.seam.restore import put_back
from remat.pytorch.seam.torch_names import (
    TorchDispatchMode,
    argument_of,
    is_overload,
    never_asked_about,
    selective_checkpoint_contexts,
    storage_of,
    tree_leaves,
    tree_map,
    written_arguments,
)

Content: TypeAlias = tuple[int, int]
"""The content of a storage: (number of the storage, how often it was written since its first use)."""


@dataclass(frozen=True)
class Operand:
    """Describes a tensor argument or result of an operator, without its data."""

    content: Content  # views have the same content
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    storage_bytes: int


@dataclass(frozen=True)
class EagerCall:
    """Describes one operator that ran."""

    op: Any  # e.g. `torch.ops.aten.addmm.default`.
    # arguments, with an `Operand` for each tensor.
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    # one entry per leaf of the result; None for a leaf that is not a strided tensor.
    results: tuple[Operand | None, ...]
    written: frozenset[int]  # numbers of the storages that it wrote to, by its schema

    @property
    def operands(self) -> list[Operand]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Operand)]

    @property
    def created(self) -> dict[Content, Operand]:
        """Returns the results of the operator that are in new storages, by content."""
        taken = {operand.content[0] for operand in self.operands}
        return {result.content: result for result in self.results if result and result.content[0] not in taken}

    @property
    def is_view(self) -> bool:
        """Returns whether all results are views of the arguments, and nothing is written."""
        taken = {operand.content[0] for operand in self.operands}
        return not self.written and all(result and result.content[0] in taken for result in self.results)

    @property
    def draws(self) -> bool:
        return draws(self.op, self.args, self.kwargs)

    @property
    def writes_hidden(self) -> bool:
        """Returns whether it updates running statistics, which the schemas of batch normalization do not declare."""
        return "batch_norm" in str(self.op) and bool(self._argument("training") or self._argument("train"))

    def _argument(self, name: str) -> Any:
        return argument_of(self.op, self.args, self.kwargs, name)


def draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call draws random numbers; attention with a dropout of 0 does not.

    The body of a higher-order operator is unknown, so it counts as random.
    """
    if not is_overload(operator):
        return True
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    return argument_of(operator, args, kwargs, "dropout_p") != 0


@dataclass(frozen=True)
class Recording:
    """Lists the operators about which torch calls a policy of selective checkpointing."""

    calls: tuple[EagerCall, ...]
    repeated: int  # how many of them a recomputation runs: it stops when autograd has all its saved tensors


@contextmanager
def every_cast() -> Generator[None]:
    """Makes autocast cast a weight in every use.

    Otherwise autocast would cache the cast weight until its outermost context ends: a second read of the weight, in the
    region or in the backward pass, would run other operators than the first.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
    """Runs `function(*args, **kwargs)` once and records its operators.

    Arguments, parameters, buffers and random number generators are restored.
    """
    recorder = _Recorder()
    saves = [0]

    def pack(tensor: Tensor) -> Tensor:
        saves.append(len(recorder.calls))
        return tensor

    hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
    # Torch's own mode is below the recorder, so that operators that it does not support fail here.
    torchs, _ = selective_checkpoint_contexts(_keep_nothing)
    try:
        with put_back(function, tuple(args), kwargs):
            before = _other_random_states()
            with torch.enable_grad(), hooks, every_cast(), torchs, recorder:
                function(*args, **kwargs)
            _check_draws(recorder.calls, drew_elsewhere=_other_random_states() != before)
    except NotImplementedError as error:
        if "HigherOrderOperator" not in str(error):
            raise
        raise CaptureError(f"torch's selective checkpointing cannot run this model eagerly: {error}") from None
    recording = Recording(tuple(recorder.calls), saves[-1])
    _check_repeatable(recording)
    return recording


def _keep_nothing(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    del args, kwargs
    return CheckpointPolicy.PREFER_RECOMPUTE


def _other_random_states() -> bytes:
    return pickle.dumps((random.getstate(), np.random.get_state()))


# A checkpoint restores only torch's default generators.
def _check_draws(calls: list[EagerCall], drew_elsewhere: bool) -> None:
    for call in calls:
        if any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((call.args, dict(call.kwargs)))):
            raise CaptureError(
                f"{call.op} draws from a torch.Generator of its own, which no checkpoint restores: a recomputation "
                f"would draw other numbers. Draw from the default generator, or outside the checkpointed region"
            )
    if drew_elsewhere:
        raise CaptureError(
            "the model draws random numbers of Python or numpy, which no checkpoint restores: a recomputation would "
            "draw other numbers. Use torch's, or draw outside the checkpointed region"
        )


# A region that reads and writes the same outside memory cannot be recomputed correctly.
def _check_repeatable(recording: Recording) -> None:
    own = {storage for call in recording.calls for storage, _ in call.created}
    writers = {storage: call.op for call in recording.calls for storage in call.written - own}
    for call in recording.calls:
        for storage, _ in (operand.content for operand in call.operands):
            if storage in writers and storage not in call.written and not call.is_view:
                raise CaptureError(
                    f"{writers[storage]} overwrites a buffer or an argument that {call.op} reads: a recomputation "
                    f"would read the new contents. Move the write out of the checkpointed region"
                )


# It sees the same operators as torch's own checkpointing modes: those below autograd.
class _Recorder(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # an argument without a type
        self.calls: list[EagerCall] = []
        self._writes: dict[int, int] = {}
        self._ids: dict[int, int] = {}
        # A weak reference prevents the reuse of a storage's address, but does not keep its data.
        self._references: list[StorageWeakRef] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in never_asked_about:  # torch calls no policy about these
            return func(*args, **kwargs)
        taken, named = tree_map(self._operand, args), tree_map(self._operand, kwargs)
        result = func(*args, **kwargs)
        targets = written_arguments(func, taken, named)
        written = frozenset(operand.content[0] for operand in targets if isinstance(operand, Operand))
        for storage in written:
            self._writes[storage] += 1
        results = tuple(self._operand(leaf) for leaf in tree_leaves(result))
        only_tensors = tuple(result if isinstance(result, Operand) else None for result in results)
        self.calls.append(EagerCall(func, taken, named, only_tensors, written))
        return result

    def _operand(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.layout is not torch.strided:
            return f"a {leaf.layout} tensor"
        storage = leaf.untyped_storage()
        address = storage_of(leaf)
        if address not in self._ids:
            self._references.append(StorageWeakRef(storage))
            self._ids[address] = len(self._ids)
            self._writes[self._ids[address]] = 0
        number = self._ids[address]
        content = (number, self._writes[number])
        return Operand(content, tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, storage.nbytes())
