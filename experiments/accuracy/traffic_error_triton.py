"""Measures how far predicted memory traffic for GPUs is from TorchInductor's Triton schedule, without a device.

`python -m experiments.accuracy.traffic_error_triton` does for an H100 what `experiments.accuracy.traffic_error` does
for CPUs. The parts are: our ten small models (`zoo`), captured on a CPU, and again for the GPU (`captured`), where
attention has another name and saves less; graphs of the corpus, captured on a CPU at the sizes at which people train;
larger ones, under two plans each, since a count takes a minute; and, captured on a CPU, models for which no rule for
Triton was written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import remat
from experiments.accuracy.traffic_error import TITLE, Part, table_of
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO, Sample
from remat.facts.corpus import Corpus

GPU, STORED = "h100", Corpus.open()
_CORPUS = ("resnet18", "vgg16", "unet", "lstm-16", "qehvi-8")
_LARGE = (
    *("resnet50", "mobilenet-v2", "efficientnet-b0", "evonorm-resnet50", "hf-convnext-tiny", "hf-vit-base"),
    *("gpt2-small", "gpt2-small-fused", "gpt2-small-bf16", "hf-gpt2-sdpa", "hf-bert-base", "hf-albert-base"),
    "hf-mamba-130m",
)


def _captured(make: Callable[[], Sample]) -> remat.Graph:
    module, args = make()
    return remat.capture(module, *args, device=GPU)


PARTS = {
    "zoo": Part(KERNEL_ZOO),
    "captured": Part({name: partial(_captured, make) for name, make in KERNEL_ZOO.items()}, 6, 2),
    "corpus": Part({name: partial(STORED.graph, name) for name in _CORPUS}, 6, 6),
    "large": Part({name: partial(STORED.graph, name) for name in _LARGE}, 2, 0, (1.0,)),
    "held-out": Part(HELD_OUT, 2, 0, (1.0,)),
}
TABLE = table_of("experiments.accuracy.traffic_error_triton", f"{TITLE} Triton schedule", __doc__ or "", PARTS, GPU)

if __name__ == "__main__":
    TABLE.command()
