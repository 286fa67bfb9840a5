"""Predicts the memory of a training step, the largest batch that fits, and plans for the stages of a pipeline.

Begin reading in `forecasting`.
"""

from remat.pytorch.ahead.forecasting import forecast, largest_batch
from remat.pytorch.ahead.pipeline import plan_pipeline

__all__ = ["forecast", "largest_batch", "plan_pipeline"]
