"""A model whose kernels are run in Triton's interpreter, plan by plan: how far off its outputs and gradients are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

import remat
from costmodels import ByteTraffic
from experiments.accuracy.interpreted_kernels import run
from experiments.accuracy.joint_reference import SEED, Reference
from experiments.accuracy.kernel_truth import Dice
from experiments.accuracy.peak_error import SaveEverything
from experiments.models.tiny_workloads import TINY_ZOO
from remat import Graph, Plan
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.inductor.triton_code import PassCode, triton_code

DEVICE = "h100"

UNIT_ROUNDOFF = 2.0**-8
"""Of bfloat16: the most by which rounding changes a number, of it."""

_COST_MODELS: dict[str, remat.CostModel] = {
    "default cut": ByteTraffic(),
    "aggressive": ByteTraffic(mode="aggressive"),
    "everything saved": SaveEverything(),
    "random": Dice(0),
}
PLANS = tuple(_COST_MODELS)
"""Names of the plans that are compared. There is "refined", too, the first one refined, which takes longest to find."""


@dataclass(frozen=True)
class InterpretedModel:
    """Holds a tiny model's joint graph, and what goes into it."""

    graph: Graph
    scheduled: Scheduled
    joint: fx.GraphModule
    inputs: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: str, precision: str) -> InterpretedModel:
        """Captures a model of `TINY_ZOO` for a GPU that is not there, in "float32" or "bfloat16"."""
        torch.manual_seed(0)
        module, args = TINY_ZOO[model]()
        dtype = getattr(torch, precision)
        args = tuple(x.to(dtype) if x.is_floating_point() else x for x in args)
        graph = remat.capture(module.to(dtype), *args, device=DEVICE)
        joint = Scheduled(graph, device="cpu").joint()
        return cls(graph, Scheduled(graph, device=DEVICE), joint, _inputs(joint))

    def plan(self, name: str) -> Plan:
        """Makes one of the plans of `PLANS`, or "refined"."""
        if name == "refined":
            return remat.refine(self.graph, self.plan("default cut")).plan
        return remat.choose(self.graph, _COST_MODELS[name]).plan

    def compared(self, plan: str) -> dict[str, Any]:
        """Runs the kernels of a plan, and says how far off they are.

        Returns:
            `to_joint_graph`, how far the kernels' outputs and gradients are from those of the joint graph run by eager
            PyTorch; `kernels_error` and `eager_error`, how far the two are from the joint graph in double precision.
            Each is the largest difference of an entry, over the largest entry of its tensor, at most over tensors.
            `times_eager`: the kernels' error over eager's and a unit roundoff of bfloat16, at most over tensors.
        """
        code = triton_code(self.scheduled, self.plan(plan))
        return {
            "kernels": sum(bool(names) for each in code for names in each.launched),
            "calls": sum(not names for each in code for names in each.launched),
            **self._errors(code),
        }

    def mutated(self) -> Iterator[dict[str, Any]]:
        """Makes each kernel of the default cut wrong in turn, by one operation, and runs the step with it."""
        passes = triton_code(self.scheduled, self.plan("default cut"))
        for position, code in enumerate(passes):
            for name, source in code.sources.items():
                text = code.text.replace(source, _wrong(source))
                assert text != code.text
                changed = (*passes[:position], replace(code, text=text), *passes[position + 1 :])
                yield {"kernel": f"{code.name}: {name}", **self._errors(changed)}

    def _errors(self, code: Sequence[PassCode]) -> dict[str, float]:
        at_once = _drawn_four_at_once(code)
        exact = Reference(self.joint, four_at_once=at_once, double=True).values(self.inputs)
        eager = Reference(self.joint, four_at_once=at_once).values(self.inputs)
        values = {name: tensor.clone() for name, tensor in self.inputs.items()}
        torch.manual_seed(SEED)
        with virtual_gpu(DEVICE):  # as the code looks for one
            for each in code:
                values |= run(each, values)
        kernels_error, eager_error = ({n: _relative(found[n], exact[n]) for n in exact} for found in (values, eager))
        return {
            "to_joint_graph": max(_relative(values[name], eager[name]) for name in exact),
            "kernels_error": max(kernels_error.values()),
            "eager_error": max(eager_error.values()),
            "times_eager": max(kernels_error[name] / (eager_error[name] + UNIT_ROUNDOFF) for name in exact),
        }


def _relative(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of an entry, over the largest entry; infinite where there is no number."""
    found, wanted = found.double(), wanted.double()
    scale = wanted.abs().max()
    error = ((found - wanted).abs().max() / (scale if scale else 1)).item()
    return error if error == error else float("inf")  # noqa: PLR0124  # what is no number is unequal to itself


def _inputs(joint: fx.GraphModule) -> dict[str, Tensor]:
    """Draws parameters, inputs and tangents, such that no layer blows its input up, and indices below 5."""
    torch.manual_seed(1)
    found: dict[str, Tensor] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        like = node.meta["val"]
        if like.dtype == torch.bool:
            drawn = torch.rand(like.shape) < 0.75
            drawn[..., 0] = True  # attention needs something to look at
        elif not like.dtype.is_floating_point:
            drawn = torch.randint(0, 5, like.shape)
        elif "tangents" in str(node.target):
            drawn = torch.randn(like.shape)
        else:
            drawn = torch.randn(like.shape) / like.shape[-1] ** 0.5 if like.ndim > 1 else torch.rand(like.shape) + 0.5
        found[node.name] = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(drawn)
    return found


def _drawn_four_at_once(code: Sequence[PassCode]) -> frozenset[str]:
    """Finds the random values that the first kernel with them draws four at a time.

    Kernels over one index do, others do not, and the numbers differ. Where two kernels of a plan disagree,
    the comparison fails, as it should.
    """
    first: dict[str, bool] = {}
    for each in code:
        for kernel, names in zip(each.kernels, each.launched, strict=True):
            for value in kernel.operators:
                for source in (each.sources[name] for name in names):
                    if value.startswith("inductor_random") and "rand" in source:
                        first.setdefault(value, "rand4x(" in source)
    return frozenset(value for value, four in first.items() if four)


_OPERATION = re.compile(r"(    tmp\d+ = tmp\d+ )([-+*])( tmp\d+\n)")


_STORE = re.compile(r"(    tl\.store\(.*, )(tmp\d+)(, \w+\)\n)")


def _wrong(source: str) -> str:
    """Exchanges the last sum, difference or product of a kernel for another one, or doubles what it stores."""
    found = list(_OPERATION.finditer(source))
    if not found:
        return _STORE.sub(r"\1\2 + \2\3", source)
    last = found[-1]
    return source[: last.start(2)] + {"+": "-", "-": "+", "*": "+"}[last[2]] + source[last.end(2) :]
