"""The PyTorch side: the only place that imports torch."""

from remat.pytorch.read.capture import capture, capture_all
from remat.pytorch.run.compile import backend, compile
from remat.pytorch.run.partitioner import Partitioner

__all__ = ["Partitioner", "backend", "capture", "capture_all", "compile"]
