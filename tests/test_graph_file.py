"""What is saved is what is loaded; what is damaged is refused with one clear error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from depth import drawn
from hypothesis import given
from hypothesis import strategies as st
from test_graph import GRAPH

from remat import Graph, InvalidPlan, Plan, Problem, solve
from remat.errors import InvalidGraph
from remat.facts.tensors import ELEMENT_BYTES
from remat.testing import graphs, problems

FEW = drawn(50)


@FEW
@given(graph=graphs())
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_graph_round_trip(graph: Graph, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("graphs") / f"graph{suffix}"
    graph.save(path)
    assert Graph.load(path) == graph


@FEW
@given(
    graph=graphs(),
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from(sorted(ELEMENT_BYTES)),
    wrong=st.integers(-3, 3),
)
def test_bytes_are_those_of_the_elements(graph: Graph, shape: list[int], dtype: str, wrong: int) -> None:
    size = math.prod(shape) * ELEMENT_BYTES[dtype]
    columns: dict[str, Any] = {
        "dtypes": (dtype, *graph.dtypes[1:]),
        "shapes": (tuple(shape), *graph.shapes[1:]),
        "bytes": [max(0, size + wrong), *graph.bytes.tolist()[1:]],
    }
    if columns["bytes"][0] == size:
        assert replace(graph, **columns).bytes[0] == size
    else:
        with pytest.raises(InvalidGraph, match=f"must be {size}, as"):
            replace(graph, **columns)


def test_every_type_of_torch_is_known_with_its_size() -> None:
    torch = pytest.importorskip("torch")
    types = {str(one).removeprefix("torch."): one.itemsize for one in vars(torch).values() if type(one) is torch.dtype}
    assert {name: ELEMENT_BYTES.get(name) for name in types} == types


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_same_graph_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    GRAPH.save(first)
    Graph.load(first).save(second)
    assert first.read_bytes() == second.read_bytes()


def test_the_name_of_a_file_does_not_matter_for_reading(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json.gz")
    (tmp_path / "graph.json.gz").rename(tmp_path / "graph")
    assert Graph.load(str(tmp_path / "graph")) == GRAPH


def saved(folder: Path) -> dict[str, Any]:
    GRAPH.save(folder / "good.json")
    return json.loads((folder / "good.json").read_text())


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets document[key][key]... to a value."""

    def corrupt(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return corrupt


def tensor(dtype: str, shape: list[int], size: int) -> Callable[[dict[str, Any]], None]:
    """Says that the first value is such a tensor."""

    def corrupt(document: dict[str, Any]) -> None:
        for column, entry in (("dtype", dtype), ("shape", shape), ("bytes", size)):
            document["values"][column][0] = entry

    return corrupt


def drop(table: str, key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[table].pop(key)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (put("format", value="other"), "remat.graph.*Graph.save"),
        (put("version", value=99), "version 99.*1 to 2.*upgrade"),
        (put("version", value=None), "version None.*1 to 2"),
        (put("values", value=[]), '"values".*object.*list'),
        (drop("values", "name"), '"values.name".*list.*NoneType'),
        (drop("values", "bytes"), '"values.bytes".*list.*NoneType'),
        (drop("values", "view"), '"values.view".*list.*NoneType'),
        (drop("uses", "consumer"), '"uses.consumer".*list.*NoneType'),
        (put("uses", "producer", value=[0, 1, 17]), "Graph use 2.*17.*3.* 4"),
        (put("values", "bytes", value=[4, None, 4, 4]), "Graph.bytes.*2..62.*object"),
        (put("values", "bytes", value=["4"] * 4), "Graph.bytes.*2..62.*<U1"),
        (put("values", "shape", value=[1, 2, 3, 4]), '"values.shape".*lists of integers.* 1'),
        (put("values", "shape", value=[[2], ["2"], [], []]), '"values.shape".*lists of integers.*'),
        (put("values", "shape", value=[[2], [-2, 3], [], []]), r"Graph.shapes\['y'\].*negative.*-2, 3"),
        (put("values", "dtype", value=["float33", "", "", ""]), r"Graph.dtypes\['x'\].*'float32'.*'float33'"),
        (tensor("float32", [3], 16), r"Graph.bytes\['x'\] must be 12, as float32\[3\] has, got 16"),
        (tensor("float32", [2**50], 2**52), r"Graph.bytes\['x'\].*2\*\*50.*got 4503599627370496"),
        (put("values", "storage", value=[0, -5, 2, 3]), r"Graph.storage\['y'\].*negative.*-5"),
        (put("values", "view", value=[0, 1, 0, 0]), r"Graph.storage\['y'\].*that 'y' uses.*view.*got 1"),
        (put("cannot_save", value={"9": "why"}), "\"cannot_save\".*'9'.*4 values"),
        (put("cannot_save", value={"x": "why"}), "\"cannot_save\".*'x'.*4 values"),
        (put("cannot_recompute", value=None), '"cannot_recompute".*object.*NoneType'),
    ],
)
def test_each_corruption_is_one_clear_error(
    corrupt: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    """What a graph itself checks, from a file or not, is in `test_graph.py`: here a use of nothing stands for it."""
    document = saved(tmp_path)
    corrupt(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidGraph, match=f"bad.json: .*{message}"):
        Graph.load(path)


@FEW
@given(problem=problems())
def test_plan_round_trip(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> None:
    plan = solve(problem).plan
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    assert (Plan.load(path), Plan.load(path).digest) == (plan, plan.digest)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (put("saved", value=["a"]), "the digest does not match the content; the file was altered"),
        (put("recomputed", value=["c", "d"]), "the digest does not match the content"),
        (put("digest", value=None), "the digest does not match the content"),
        (put("saved", value="ab"), "\"saved\" must be a list of names, got 'ab'"),
        (lambda document: document.pop("recomputed"), '"recomputed" must be a list of names, got None'),
        (put("version", value=3), "version 3, but this remat reads 1 and 2"),
        (
            put("format", value="remat.graph"),
            'not a plan file \\(no "format": "remat.plan"\\); write one with Plan.save',
        ),
    ],
)
def test_a_tampered_plan_is_refused(corrupt: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan(("a", "b"), ("c",)).save(path)
    document = json.loads(path.read_text())
    corrupt(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidPlan, match=f"plan.json: {message}"):
        Plan.load(path)
