"""Exports a plan to eager PyTorch, as a selective checkpoint policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from remat.answer.plan import Plan, checked_plan
from remat.errors import CaptureError, InvalidOption
from remat.facts.graph import Graph
from remat.proof.validate import legal_choice
from remat.pytorch.eager.correspondence import Correspondence
from remat.pytorch.eager.expansion import expand
from remat.pytorch.eager.policy import KeptCall, SelectivePolicy
from remat.pytorch.eager.recording import Recording, record
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract


def selective_policy(model_or_fn: Callable[..., Any], plan: Plan, /, *args: Any, **kwargs: Any) -> SelectivePolicy:
    """Exports a plan to eager PyTorch, without `torch.compile`, as a selective checkpoint policy.

    The model is captured again and run once eagerly; then the plan's values are looked up among the eager results (see
    `remat.pytorch.eager.correspondence`). Eager keeps whole results of whole operators, but no views and nothing that
    is written in place: values that cannot be kept are in `left_out`, and are recomputed. Offloaded values are copied
    to the host when they are computed, and back where they would be recomputed. The model, its arguments and random
    number generators are restored.

    Args:
        model_or_fn: the function that will be checkpointed, in one region.
        plan: a plan for `remat.capture(model_or_fn, *args, **kwargs)`.
        args, kwargs: its arguments.

    Raises:
        InvalidOption: `model_or_fn` cannot be called, or `plan` is no plan.
        InvalidPlan: the plan was made for another graph, or is not legal for this one.
        CaptureError: as `remat.capture`; or no checkpoint of this model is correct, because it overwrites a buffer or
            an argument that it reads, or draws random numbers from other generators than torch's default ones; or torch
            cannot checkpoint one of its operators.

    >>> import remat, torch
    >>> from remat.answer.registry import find_costmodel
    >>> from torch.utils.checkpoint import checkpoint
    >>> from torch.nn import GELU, Linear, Sequential
    >>> model, x = Sequential(Linear(8, 32), GELU(), Linear(32, 8)), torch.ones(4, 8)
    >>> graph = remat.capture(model, x)
    >>> plan = remat.solve(find_costmodel("byte-traffic").pose(graph)).plan
    >>> policy = remat.selective_policy(model, plan, x)
    >>> print(policy.report())
    keeps 1.0 KiB from 2 of 5 operators
      aten.addmm.default (addmm): 512 B
      aten.gelu.default (mul_2): 512 B
    >>> checkpoint(model, x, use_reentrant=False, context_fn=policy.contexts).sum().backward()
    """
    if not callable(model_or_fn):
        raise InvalidOption(f"the first argument must be a model, or a function, got {type(model_or_fn).__name__}")
    checked_plan(plan)
    return Observed.of(model_or_fn, *args, **kwargs).policy(plan)


@dataclass(frozen=True)
class Observed:
    """Holds a model's joint graph and its recorded eager run, which together turn a plan into a policy."""

    graph: Graph
    recording: Recording
    correspondence: Correspondence

    @classmethod
    def of(cls, model_or_fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Observed:
        """Runs a model eagerly and captures it; the errors are those of `selective_policy`."""
        observed: list[Observed] = []
        recording = record(model_or_fn, args, kwargs)
        expansions = expand(recording.calls)

        def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
            correspondence = Correspondence.of(joint_graph, node_info, recording.calls, expansions)
            observed.append(cls(extract(joint_graph, node_info, num_fwd_outputs), recording, correspondence))

        visit_joint_graphs(visit, model_or_fn, *args, **kwargs)
        if len(observed) > 1:
            raise CaptureError(
                f"a policy is for one joint graph, but the model has {len(observed)}, because of graph breaks "
                f"(TORCH_LOGS=graph_breaks names them): checkpoint the parts between them, each with a plan of its own"
            )
        return observed[0]

    def policy(self, plan: Plan) -> SelectivePolicy:
        legal_choice(self.graph, plan)
        return _Export(self.graph, plan, self.recording, self.correspondence).policy()


class _Export:
    def __init__(self, graph: Graph, plan: Plan, recording: Recording, correspondence: Correspondence) -> None:
        self.graph = graph
        self.plan = plan
        self.calls = recording.calls
        self.repeated = recording.repeated
        self.correspondence = correspondence
        self.left_out: dict[str, str] = {}
        self.last_write = {storage: i for i, call in enumerate(self.calls) for storage in call.written}

    def policy(self) -> SelectivePolicy:
        chosen: dict[int, list[str]] = {}
        for name in self.plan.saved:
            if self.graph.input[self.graph.index[self._base(name)]]:
                continue  # always in memory: an argument of the region, or a tensor of its modules
            why = self._why_not(self._base(name))
            if why:
                self.left_out[name] = why
                continue
            for position, _ in self.correspondence.returned[self._base(name)]:
                chosen.setdefault(position, []).append(name)
        self._draw_again(chosen)
        recomputed = [i for i in range(self.repeated) if i not in chosen]
        return SelectivePolicy(
            operators=tuple(call.op for call in self.calls),
            kept=tuple(self._kept_call(position, chosen[position]) for position in sorted(chosen)),
            repeated=tuple(recomputed),
            left_out=tuple((name, self.left_out[name]) for name in self.plan.saved if name in self.left_out),
            idle=self._idle(recomputed),
            writes_again=self._writes_again(recomputed),
        )

    def _base(self, name: str) -> str:
        return self.graph.names[int(self.graph.base[self.graph.index[name]])]

    def _why_not(self, base: str) -> str | None:
        for position, content in self.correspondence.returned.get(base, []):
            call = self.calls[position]
            if content not in call.created:
                return f"{call.op} computes it in place"
            writes = [self.last_write.get(storage, position) for storage, _ in call.created]
            if max(writes) > position:
                return f"results of {call.op} are overwritten by {self.calls[max(writes)].op}"
        if base in self.correspondence.returned:
            return None
        if base in self.correspondence.inside:
            return (
                f"computed inside {self.calls[self.correspondence.inside[base]].op}, which eager runs as one operator"
            )
        if "seed" in self.graph.ops[self.graph.index[base]]:
            return "a seed of the compiler's; a checkpoint puts the random number generator back instead"
        return "no operator of the eager forward pass returns it"

    # A kept operator does not run again, so it does not advance the random number generator, and every later random
    # operator would silently draw other numbers than in the forward pass.
    def _draw_again(self, chosen: dict[int, list[str]]) -> None:
        draws = [i for i, call in enumerate(self.calls) if call.draws]
        # Up to the end of the region, because a recomputation may not stop early (`set_checkpoint_early_stop`).
        last = max((i for i in draws if i not in chosen), default=-1)
        for position in [i for i in draws if i in chosen and i < last]:
            why = f"{self.calls[last].op}, later on, draws again, and would draw other numbers if this did not"
            self.left_out.update(dict.fromkeys(chosen.pop(position), why))

    def _kept_call(self, position: int, values: list[str]) -> KeptCall:
        call = self.calls[position]
        sizes = {content[0]: result.storage_bytes for content, result in call.created.items()}
        # The plan requests the memory of only one of several equal calls.
        first = [self.correspondence.returned[self._base(name)][0] for name in values]
        asked = {content[0] for at, content in first if at == position}
        away_of = [self.correspondence.returned[name] for name in values if name in self.plan.offloaded]
        away = {content[0] for places in away_of for _, content in places}
        along = sum(size for storage, size in sizes.items() if storage not in asked | away)
        hosted = tuple(i for i, result in enumerate(call.results) if result and result.content[0] in away)
        host = sum(size for storage, size in sizes.items() if storage in away)
        return KeptCall(position, str(call.op), tuple(values), sum(sizes.values()) - host, along, hosted, host)

    def _idle(self, recomputed: Iterable[int]) -> tuple[str, ...]:
        computes: dict[int, set[str]] = {}
        for name, places in self.correspondence.returned.items():
            for position, _ in places:
                computes.setdefault(position, set()).add(name)
        for name, position in self.correspondence.inside.items():
            computes.setdefault(position, set()).add(name)
        needed = {self._base(name) for name in (*self.plan.recomputed, *self.left_out)}
        idle = [i for i in recomputed if i in computes and not computes[i] & needed]
        return tuple(f"{self.calls[i].op} ({', '.join(sorted(computes[i]))})" for i in idle)

    def _writes_again(self, recomputed: Iterable[int]) -> tuple[str, ...]:
        own = {storage for call in self.calls for storage, _ in call.created}
        calls = [self.calls[i] for i in recomputed]
        return tuple(str(call.op) for call in calls if call.written - own or call.writes_hidden)
