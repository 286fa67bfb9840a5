"""Changes settings of torch's compiler within a block, and reads those that predictions do not know.

Since torch 2.13, the settings belong to the thread that changes them; before, to the process.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

from remat.pytorch.seam.internals import internals

_UNPREDICTED = (
    # TorchInductor then leaves out fusions that raise the peak (torch 2.15).
    "fusion_memory_timeline_peak_memory_increase_gb",
    "fusion_memory_timeline_peak_memory_pct_threshold",
    # Which loops share a kernel.
    "max_fusion_size",
    "cpp.max_horizontal_fusion_size",
    "score_fusion_memory_threshold",
    "max_fusion_buffer_group_pairwise_attempts",
    "loop_ordering_after_fusion",
    "combo_kernels",
    # Which expressions are stored.
    "realize_reads_threshold",
    "realize_opcount_threshold",
    "realize_acc_reads_threshold",
    "unroll_reductions_threshold",
    # Which buffers share memory.
    "inplace_buffers",
    "allow_buffer_reuse",
    "memory_planning",
)
"""Settings of TorchInductor that change kernels or peaks; predictions assume their defaults."""


def unpredicted_settings() -> list[str]:
    """Returns the settings in force that predictions do not know."""
    config = internals("torch._inductor.config")
    defaults = {name: config._config[name].default for name in _UNPREDICTED if name in config._config}
    return [name for name, default in defaults.items() if attrgetter(name)(config) != default]


def fresh_compilation() -> AbstractContextManager[None]:
    """Makes Dynamo trace as if for the first time, whatever was traced before."""
    return internals("torch._dynamo.config").patch(
        # After eight compilations of one piece of code Dynamo runs it eagerly.
        recompile_limit=10**6,
        accumulated_recompile_limit=10**6,
        # Otherwise a size that differed in an earlier trace, even of another model, would become symbolic.
        automatic_dynamic_shapes=False,
    )


def partitioner_settings(**settings: Any) -> AbstractContextManager[None]:
    """Changes settings of torch's own partitioner, by their names in `torch._functorch.config`."""
    return internals("torch._functorch.config").patch(**settings)


def nothing_donated() -> AbstractContextManager[None]:
    """Makes AOTAutograd compile backward passes that do not overwrite saved tensors.

    A partitioner that saves a value together with a view of it needs this. Torch's default one does so: both are
    donated, and one may be overwritten before the other is read (torch 2.13). Our plans never save both
    (`remat.answer.handover`).
    """
    return internals("torch._functorch.config").patch(donated_buffer=False)


def every_joint_graph_partitioned() -> AbstractContextManager[None]:
    """Makes AOTAutograd partition each joint graph instead of reading the two halves from its cache.

    Inductor's own cache of compiled graphs stays on.
    """
    return internals("torch._functorch.config").patch(enable_autograd_cache=False, enable_remote_autograd_cache=False)


@contextmanager
def nothing_cached() -> Generator[None]:
    """Turns torch's caches of compiled graphs off: every graph is compiled, and none is stored.

    Compiled kernels are still reused. With torch's own `force_disable_caches`, each graph would begin in an empty
    folder, where a C++ compiler first makes precompiled headers: 10 s of CPU time per graph.
    """
    inductor = internals("torch._inductor.config")
    with inductor.patch(fx_graph_cache=False, fx_graph_remote_cache=False), every_joint_graph_partitioned():
        yield
