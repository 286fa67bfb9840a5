"""Runs one first compilation for `experiments.bench.speed_compile`, in a process of its own: nothing is warm.

`python -m experiments.bench.speed_compile_case {torch,remat} step LAYERS` compiles a training step of a deep
transformer, `... graphs LAYERS` does so without generating code, and `... choose MODEL` stops once it is known what is
saved. A fourth argument, 0 unless given, says how deep on the stack (`experiments.bench.stack`). Each prints a JSON
row.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomPartitionerFn

import remat
from experiments.bench.stack import at_depth
from experiments.models import zoo
from experiments.models.cases import CASES
from experiments.models.training import train
from remat.pytorch.read import split
from remat.pytorch.read.interpreter import run_uncompiled
from remat.pytorch.seam.torch_partitioner import partition
from remat.pytorch.seam.torch_settings import fresh_compilation

WHO = ("torch", "remat")


class _Chosen(BaseException):
    """Ends a compilation once its choice is timed; no handler of ordinary errors stops it."""


def deep_transformer(layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Makes a deep and narrow transformer: 200 values a layer, and little to compute."""
    return zoo.gpt2(layers=layers, width=32, heads=2, vocabulary=64, context=16, batch=2)


@contextmanager
def timed_choices(seconds: list[float], then: Callable[[], None] = lambda: None) -> Generator[None]:
    """Notes how long each choice of saved values takes, torch's own or ours, inside torch's partitioner.

    Args:
        seconds: gets an entry a joint graph.
        then: called after each.
    """
    from torch._functorch import partitioners

    own = partitioners.choose_saved_values_set

    def timed(choose: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(choose)  # torch's signature is checked before it is called
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            chosen = choose(*args, **kwargs)
            seconds.append(time.perf_counter() - start)
            then()
            return chosen

        return run

    def ours(module: Any, inputs: Any, chooser: Any, **kwargs: Any) -> Any:
        return partition(module, inputs, timed(chooser), **kwargs)

    with patch.object(partitioners, "choose_saved_values_set", timed(own)), patch.object(split, "partition", ours):
        yield


class _TorchsOwn(CustomPartitionerFn):
    """Runs PyTorch's partitioner where a custom one is asked for."""

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> str:
        return "experiments: PyTorch's own"


def compiled(who: str, model: nn.Module, *, codegen: bool = True, **options: Any) -> Callable[..., Any]:
    """Compiles with `torch.compile`, or with `remat.compile`, the classic cut and OR-Tools."""
    if who == "remat":
        return remat.compile(model, cost_model="byte-traffic", solver="ortools", codegen=codegen, **options)
    uncompiled: Any = functools.partial(run_uncompiled, partitioner=_TorchsOwn(), options={"fallback_random": True})
    return torch.compile(model, **options) if codegen else torch.compile(model, backend=uncompiled, **options)


def first_step(who: str, layers: int, *, codegen: bool) -> dict[str, Any]:
    """Times the first training step of a compiled transformer."""
    model, args = deep_transformer(layers)
    choices: list[float] = []
    used, start = cpu_seconds(), time.perf_counter()
    with timed_choices(choices), fresh_compilation():
        compiled(who, model, codegen=codegen)(*args).backward()
    return {
        "total_s": time.perf_counter() - start,
        "cpu_s": cpu_seconds() - used,
        "choose_s": sum(choices),
        "choices": len(choices),
    }


def first_choice(who: str, name: str) -> dict[str, Any]:
    """Times the first choice of a process, with all that is imported for it."""
    choices: list[float] = []

    def stop() -> None:
        raise _Chosen

    try:
        with timed_choices(choices, stop), fresh_compilation():
            train(CASES[name], functools.partial(compiled, who, dynamic=CASES[name].dynamic))
    except _Chosen:
        pass
    return {"choose_s": choices[0]}


def cpu_seconds() -> float:
    """Sums the processor time of this process and of the compilers that it called, without waiting."""
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main(who: str, what: str, which: str, depth: str = "0") -> None:
    """Runs one case and prints its row."""

    def case() -> dict[str, Any]:
        return first_choice(who, which) if what == "choose" else first_step(who, int(which), codegen=what == "step")

    print(json.dumps(at_depth(int(depth), case)))


if __name__ == "__main__":
    main(*sys.argv[1:])
