"""Instances as arrays are those that the library reads."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from experiments.benchmark.arrays import COLUMNS, load_arrays
from experiments.benchmark.manifest import FOLDER
from remat import Problem

INSTANCE = FOLDER / "instances" / "qehvi-8.json.gz"


def test_the_arrays_of_the_page_are_those_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", (FOLDER.parents[2] / "docs/benchmark/instance.md").read_text(), re.DOTALL)
    module = ModuleType("torch_geometric.data")
    vars(module)["Data"] = SimpleNamespace
    monkeypatch.setitem(sys.modules, "torch_geometric.data", module)
    monkeypatch.chdir(INSTANCE.parent)
    names: dict[str, object] = {}
    exec(code, names)
    arrays, problem = load_arrays(INSTANCE), Problem.load(INSTANCE, "none")
    banned = problem.cannot_save.mask, problem.cannot_recompute.mask
    columns = [*(getattr(problem, name) for name in COLUMNS[:4]), *banned]
    assert np.array_equal(arrays.x.T, columns)
    assert np.array_equal(arrays.edge_index, [problem.producers, problem.consumers])
    data = cast(Any, names["data"])
    assert np.allclose(data.x.numpy(), np.log1p(arrays.x))
    assert np.array_equal(data.edge_index.numpy(), arrays.edge_index)
