"""Collects models that the rules of `remat.predict.kernels` were not written for, to show how wrong these are there.

They were written down before any of them was compared.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.models.held_out import images, others, sequences, transformers
from experiments.models.workloads import Sample

HELD_OUT: dict[str, Callable[[], Sample]] = images.MODELS | sequences.MODELS | others.MODELS | transformers.MODELS
"""Makers of models and their inputs, by name; set a seed before the call."""
