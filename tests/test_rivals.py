"""The rivals: products are counted in programs of XLA, foreign graphs are read, and what is missing has a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from experiments.pages import RESULTS
from experiments.rivals import __main__ as command
from experiments.rivals.checkmate.instance import replay
from experiments.rivals.checkmate.published import read, rows
from experiments.rivals.environments import run_in
from experiments.rivals.hlo_dots import dot_flops
from experiments.rivals.page import markdown, summary
from experiments.rivals.same_gpt import Products, beside
from remat import GraphBuilder

COMPILED = """\
HloModule jit__lambda, entry_computation_layout={(f32[2,3,5]{2,1,0}, f32[2,5,7]{2,1,0}, f32[7,4]{1,0})->f32[2,3,4]}

%twice.1 (a.1: f32[6,6]) -> f32[6,6] {
  %a.1 = f32[6,6]{1,0} parameter(0)
  ROOT %dot.9 = f32[6,6]{1,0} dot(%a.1, %a.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main.2 (a.1: f32[2,3,5], b.1: f32[2,5,7], c.1: f32[7,4]) -> f32[2,3,4] /*index=5*/ {
  %a.1 = f32[2,3,5]{2,1,0} parameter(0), metadata={op_name="a"}
  %b.1 = f32[2,5,7]{2,1,0} parameter(1), metadata={op_name="b"}
  %c.1 = f32[7,4]{1,0} parameter(2), metadata={op_name="c"}
  %dot_general.2 = f32[2,3,7]{2,1,0} dot(%a.1, %b.1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}
  %fusion = f32[6,7]{1,0} fusion(%dot_general.2), kind=kLoop, calls=%twice.1, metadata={op_name="jit(dot)/dot_general"}
  %call = f32[6,7]{1,0} call(%fusion), to_apply=%twice.1
  %dot = f32[6,4]{1,0} dot(f32[6,7]{1,0} %fusion, f32[7,4]{1,0} %c.1), lhs_contracting_dims={1}
  ROOT %bitcast.1 = f32[2,3,4]{2,1,0} bitcast(%dot)
}
"""
"""What XLA 0.10 prints for a batched product, a relu and a product, with a computation that is called twice."""


def test_products_of_a_compiled_program_are_counted() -> None:
    assert dot_flops(COMPILED) == 2 * 2 * 3 * 5 * 7 + 2 * 6 * 7 * 4 + 2 * (2 * 6 * 6 * 6)
    assert dot_flops(COMPILED.replace("%", "")) == dot_flops(COMPILED)


@pytest.mark.parametrize(
    "line",
    [
        "  %w = (f32[2]) while(%t), condition=%c, body=%twice.1",
        '  %m = f32[2] custom-call(%a), custom_call_target="__onednn$matmul"',
    ],
)
def test_what_cannot_be_counted_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="cannot be counted"):
        dot_flops(COMPILED + line)


def test_ours_within_the_bytes_of_a_rival() -> None:
    g = GraphBuilder()
    y = g.op("mm", g.input("x", bytes=8), name="y", bytes=8, flops=100, compute_bound=True)
    g.output(z := g.op("exp", y, name="z", bytes=8, flops=7))
    g.gradient(g.op("mm", g.tangent("d"), y, z, bytes=8, flops=100, compute_bound=True))
    found = beside(g.build(), [{"saved_bytes": saved} for saved in (16, 8, 0)], 1.0)
    assert [(row["ours_flops"], row["bound_flops"]) for row in found] == [(0, 0), (0, 0), (100, 100)]
    assert Products().recompute_cost(g.build()).tolist() == [0, 100, 0, 0, 0]


def test_an_environment_that_does_not_come_about_has_a_reason(tmp_path: Path) -> None:
    missing = run_in("none", ["./no-such-package"], "json", folder=tmp_path)
    assert "pip does not install ./no-such-package" in missing["skipped"]
    (tmp_path / "none" / "installed.json").write_text("[]")
    failing = run_in("none", [], "experiments.rivals.no_such_module", folder=tmp_path)
    assert "No module named experiments.rivals.no_such_module" in failing["skipped"]
    (tmp_path / "none" / "prints.py").write_text(
        "import sys; print('text'); print('{\"rows\": [' + sys.argv[1] + ']}')"
    )
    assert run_in("none", [], "runpy", str(tmp_path / "none" / "prints.py"), folder=tmp_path).keys() == {"skipped"}


def chain(backward: bool, keys: tuple[str, str], cost: str, ram: str) -> str:
    """A value that is read at once and at the end; its backward pass, if it has one, begins with the third node."""
    nodes = [{"name": i, "id": i, cost: 10 + i, ram: 8 if i == 0 else 2} for i in range(5)]
    for i, node in enumerate(nodes):
        node["backward"] = backward and i >= 2
    links = [dict(zip(keys, ends, strict=True)) for ends in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))]
    return json.dumps({"nodes": nodes, "links": links, "graph": {"name": "chain"}})


def test_published_graphs_are_read_and_solved(tmp_path: Path) -> None:
    (tmp_path / "a (MLSys)_1_train_nx.json").write_text(chain(True, ("source", "target"), "cost_cpu", "cost_ram"))
    (tmp_path / "a (MLSys)_1_test_nx.json").write_text("not read")
    (tmp_path / "random_layered_n5_w0.2.json").write_text(chain(False, ("0", "1"), "duration", "out_cost"))
    instance = read(tmp_path / "a (MLSys)_1_train_nx.json")
    assert (instance.turn, instance.costs, instance.sizes) == (1, (10, 11, 12, 13, 14), (8, 2, 2, 2, 2))
    assert replay(instance, range(5)).peak_bytes == 12
    found = [*rows(tmp_path, 10.0)]
    assert [(row["graph"], row["share"], row["budget_bytes"]) for row in found] == [
        ("a", 0.9, 11),
        ("a", 0.8, 10),
        ("random_layered_n5", 0.9, 11),
        ("random_layered_n5", 0.8, 10),
    ]
    assert [row["checkmate"]["cost"] for row in found] == [None, None, None, None]
    assert all(row["checkmate"]["proven"] for row in found)
    assert ["ours" in row for row in found] == [True, True, False, False]


def test_what_was_measured_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [{"rows": [{"graph": "a"}]}, {"skipped": "no folder was given (--moccasin)"}]
    monkeypatch.setattr(command, "measures", lambda *_: {"moccasin": lambda: found.pop(0)})
    monkeypatch.setattr(command, "markdown", lambda _: "")
    for _ in range(2):
        command.main(only=None, moccasin=None, time_limit=1.0, output=tmp_path)
        rows = json.loads((tmp_path / "rivals.json").read_text())["rivals"]["moccasin"]["rows"]
        assert rows == [{"graph": "a"}]
    with pytest.raises(typer.BadParameter, match="'mocassin'; there are: moccasin"):
        command.main(only=["mocassin"], moccasin=None, time_limit=1.0, output=tmp_path)


def test_what_was_not_measured_is_said() -> None:
    text = markdown({"rivals": {"jax": {"skipped": "no wheel"}}})
    assert "Not measured: no wheel." in text
    assert text.count("Not measured: it was not run.") == 4


def test_our_model_never_costs_less_than_any_number_of_times() -> None:
    """In the committed result: a bound that is above a cost would be a wrong proof, of one or of the other."""
    graphs = json.loads((RESULTS / "rivals.json").read_text())["rivals"]["price"]["rows"]
    found = summary(graphs)
    assert found["reached"] <= found["reached_by_checkmate"] <= found["pairs"] == 50
    for graph in graphs:
        assert graph["lowest"]["checkmate"]["percent"] <= graph["lowest"]["ours"]["percent"]
        for row in graph["budgets"]:
            free, twice, ours = (row[model] for model in ("checkmate", "twice", "ours"))
            for less, more in ((free, twice), (twice, ours), (free, ours), (ours, {"cost": row["search"]})):
                if more["cost"] is not None:
                    assert less["bound"] <= more["cost"]
