"""What a training step really does, measured: bytes moved, kernels, memory kept and held, time."""

from remat.pytorch.measure.training_step import measure

__all__ = ["measure"]
