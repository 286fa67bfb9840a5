"""Lists small models, each for one thing that models do: what a partitioner must get right."""

from __future__ import annotations

from experiments.models.function_cases import FUNCTION_CASES
from experiments.models.model_case import ModelCase
from experiments.models.module_cases import MODULE_CASES

CASES: dict[str, ModelCase] = FUNCTION_CASES | MODULE_CASES
