"""The PyTorch side: the only place that imports torch."""

from remat.pytorch.capture import capture, capture_all
from remat.pytorch.compile import backend, compile
from remat.pytorch.partitioner import Partitioner

__all__ = ["Partitioner", "backend", "capture", "capture_all", "compile"]
