"""Predicts the memory of a training step, and the largest batch that fits. Begin reading in `forecasting`."""

from remat.pytorch.ahead.fitting import largest_batch
from remat.pytorch.ahead.forecasting import forecast

__all__ = ["forecast", "largest_batch"]
