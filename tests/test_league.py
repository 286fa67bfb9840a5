"""The league table counts what the rows say, and instances as arrays are those that the library reads."""

from __future__ import annotations

import math
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from experiments.benchmark.arrays import COLUMNS, load_arrays
from experiments.benchmark.league import standings
from experiments.benchmark.manifest import FOLDER
from remat import Problem

INSTANCE = FOLDER / "instances" / "qehvi-8.json.gz"


def test_methods_are_compared_on_the_rows_that_they_share() -> None:
    """A row without a plan counts; a row that one method lacks does not, and a method of few rows stands apart."""
    costs: dict[str, list[int | None]] = {"half": [10, None], "all": [10, 20, 999, 999], "most": [20, 20, 20]}
    rows = [
        {"method": method, "instance": "i", "budget": str(b), "s": float(b), **({"objective": cost} if cost else {})}
        for method, own in costs.items()
        for b, cost in enumerate(own)
    ]
    count, lines, few = standings(rows, "method", lambda _: 10, "s")
    assert count == "3 rows:"
    time = f"{6 ** (1 / 3) - 1:.2f}"
    thirds = [f"{math.prod(gaps) ** (1 / 3) - 0.01:.2%}" for gaps in ((0.01, 0.51, 1 - 10 / 999 + 0.01), (0.51,) * 3)]
    assert [line.split(" | ") for line in lines.splitlines()[2:]] == [
        ["| all", "3", "1", thirds[0], f"{time} |"],
        ["| most", "3", "0", thirds[1], f"{time} |"],
    ]
    gaps = [f"{math.prod(one) ** 0.5 - 0.01:.2%}" for one in ((0.01, 1.01), (0.01, 0.51), (0.51, 0.51))]
    assert few == (
        f"`half` has 2 of these rows, with a gap of {gaps[0]}, beside {gaps[1]} of `all`, {gaps[2]} of `most`."
    )


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
