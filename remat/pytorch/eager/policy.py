"""Defines a selective checkpoint policy: what eager PyTorch keeps between the passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy

from remat.errors import InvalidPlan
from remat.pytorch.eager.hosted import Hosted
from remat.pytorch.eager.recording import every_cast
from remat.pytorch.seam.torch_names import selective_checkpoint_contexts
from remat.words import human_bytes


@dataclass(frozen=True)
class KeptCall:
    """Describes an operator whose results are all kept for the backward pass, on the device or on the host.

    Attributes:
        position: its index among the region's operators.
        op: its name, e.g. "aten.native_layer_norm.default".
        values: the plan's saved values that it computes, or that are views of its results.
        bytes: device memory of its results.
        along_bytes: the part of `bytes` that the plan does not request.
        hosted: which of its results wait on the host.
        host_bytes: host memory of these.
    """

    position: int
    op: str
    values: tuple[str, ...]
    bytes: int
    along_bytes: int
    hosted: tuple[int, ...] = ()
    host_bytes: int = 0

    def __str__(self) -> str:
        host = f", {human_bytes(self.host_bytes)} on the host" if self.hosted else ""
        along = f", {human_bytes(self.along_bytes)} saved along" if self.along_bytes else ""
        return f"{self.op} ({', '.join(self.values)}): {human_bytes(self.bytes)}{host}{along}"


@dataclass(frozen=True)
class SelectivePolicy:
    """Applies a plan under `torch.utils.checkpoint`, operator by operator.

    Attributes:
        operators: the operators (overloads) of the region about which torch calls a policy, in order.
        kept: the operators whose results are kept.
        repeated: positions of the operators that run again in the backward pass: all that are not kept, up to the
            last one that autograd needs.
        left_out: (value, why) for each saved value of the plan that cannot be kept. It is recomputed instead, which is
            always correct.
        idle: operators that run again although no recomputed value of the plan needs them, because checkpointing
            repeats a region from its start.
        writes_again: operators whose effect outlives the region (for example, running statistics of a batch
            normalization) and that run again, as under plain checkpointing.
    """

    operators: tuple[Any, ...]
    kept: tuple[KeptCall, ...]
    repeated: tuple[int, ...]
    left_out: tuple[tuple[str, str], ...]
    idle: tuple[str, ...]
    writes_again: tuple[str, ...]

    @property
    def kept_bytes(self) -> int:
        """Returns the device memory that is kept between the passes, without the region's inputs."""
        return sum(call.bytes for call in self.kept)

    @property
    def host_bytes(self) -> int:
        return sum(call.host_bytes for call in self.kept)

    @property
    def along_bytes(self) -> int:
        """Returns the part of `kept_bytes` that the plan does not request: other results of the kept operators."""
        return sum(call.along_bytes for call in self.kept)

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Makes the argument of `checkpoint(fn, *args, use_reentrant=False, context_fn=policy.contexts)` in eager mode.

        Inside `torch.compile`, use `remat.compile` instead. Sizes may differ from those when the policy was made (the
        last batch of an epoch); the operators may not.

        Raises:
            InvalidPlan: from the checkpointed call, if it runs another operator than when the policy was made.
        """
        kept = frozenset(call.position for call in self.kept if not call.hosted)
        decide = _Decisions(self.operators, kept)
        forward, again = selective_checkpoint_contexts(decide)
        hosted = Hosted({call.position: call.hosted for call in self.kept if call.hosted}, kept)
        return _Pass(forward, decide.start_forward, hosted.forward), _Pass(
            again, decide.start_again, hosted.recomputation
        )

    def report(self) -> str:
        """Describes what is kept, what is kept in addition, and what could not be kept, with reasons."""
        lines = [
            f"keeps {human_bytes(self.kept_bytes)} from {len(self.kept)} of {len(self.operators)} operators"
            + (f", {human_bytes(self.along_bytes)} of it saved along" if self.along_bytes else "")
            + (f", and {human_bytes(self.host_bytes)} on the host" if self.host_bytes else "")
        ]
        lines += [f"  {call}" for call in self.kept]
        lines += _section("left out, so recomputed", (f"{name}: {why}" for name, why in self.left_out))
        lines += _section("run again, though nothing that the plan recomputes needs them", self.idle)
        lines += _section("take effect a second time when they run again", self.writes_again)
        return "\n".join(lines)


# The policy function of one checkpointed call; it counts its calls.
class _Decisions:
    def __init__(self, operators: Sequence[Any], saved: frozenset[int]) -> None:
        self._operators = operators
        self._saved = saved
        self._forward, self._again = count(), count()

    def start_forward(self) -> None:
        self._forward = count()

    def start_again(self) -> None:
        self._again = count()

    def __call__(self, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        del args, kwargs
        # Some versions of torch call the policy again while they recompute, some do not.
        position = next(self._again if ctx.is_recompute else self._forward)
        expected = self._operators[position] if position < len(self._operators) else "its end"
        if op is not expected:
            raise InvalidPlan(
                f"the checkpointed region has changed since the policy was made: operator {position} is now {op}, "
                f"but was {expected}. Checkpoint the very function that selective_policy got, under the same autocast "
                f"and in the same mode (train or eval), and not inside torch.compile; or make a new policy"
            )
        return CheckpointPolicy.MUST_SAVE if position in self._saved else CheckpointPolicy.PREFER_RECOMPUTE


# A context that can be entered several times: with `retain_graph=True`, there are several recomputations.
class _Pass(AbstractContextManager[Any]):
    def __init__(
        self,
        torchs: AbstractContextManager[Any],
        start: Callable[[], None],
        below: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._torchs = torchs
        self._start = start
        self._below = below
        self._open = ExitStack()

    def __enter__(self) -> Any:
        self._start()
        self._open.enter_context(every_cast())
        self._open.enter_context(self._below())
        return self._open.enter_context(self._torchs)

    def __exit__(self, *error: Any) -> Any:
        return self._open.__exit__(*error)


def _section(title: str, entries: Iterable[str]) -> list[str]:
    listed = [f"  {entry}" for entry in entries]
    return [f"{title}:", *listed] if listed else []
