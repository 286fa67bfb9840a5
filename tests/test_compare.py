"""`remat.compare` has a row for every combination, with numbers that a plan can be held against."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from examples import chain, cosines, impossible, linear_dropout

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import GraphBuilder, InvalidOption, InvalidPlan, Plan
from remat.answer.option_text import label, option_text
from remat.answer.registry import find_costmodel, solver_names
from remat.plugin import Feature, PlanFacts
from remat.predict.time.roofline import Roofline
from remat.views.comparison import Comparison
from remat.words import human_bytes, human_price
from solvers import Exhaustive, NetworkX, ORTools, PuLP

MIB = 2**20


@dataclass(frozen=True)
class Table(ByteTraffic):
    """Has an option that is an array, which equals nothing by one answer."""

    name: ClassVar[str] = "table"

    rows: Any = None


def test_one_row_for_each_graph_cost_model_and_solver_in_order() -> None:
    frame = remat.compare(
        {"small": chain(2), "paper": cosines()},
        ["byte-traffic", ByteTraffic(mode="aggressive")],
        ["networkx", NetworkX(flow_func="dinitz"), "ortools"],
    )
    assert len(frame) == 12
    assert list(frame["graph"]) == ["small"] * 6 + ["paper"] * 6
    assert list(frame["cost_model"])[:6] == ["byte-traffic"] * 3 + ["byte-traffic:mode=aggressive"] * 3
    assert list(frame["solver"])[:3] == ["networkx", "networkx:flow_func=dinitz", "ortools"]


def test_the_paper_s_example_saves_one_tensor_and_recomputes_one_cosine() -> None:
    row = remat.compare(cosines(), solvers="ortools").iloc[0].to_dict()
    assert {key: value for key, value in row.items() if not key.endswith("_s")} == {
        "graph": "graph0",
        "instance": "",
        "values": 14,
        "cost_model": "byte-traffic",
        "unit": "bytes",
        "budget_bytes": None,
        "solver": "ortools",
        "exact": True,
        "objective": 8 * MIB,
        "bound": 8 * MIB,
        "gap": 0.0,
        "termination": "optimal",
        "certified": "flow = cut, verified",
        "proven": True,
        "saved_tensors": 1,
        "saved_bytes": 4 * MIB,
        "recomputed_ops": 1,  # cos1; the sines run once, in the backward pass
        "error": "",
    }
    assert row["pose_time_s"] > 0
    assert row["solve_time_s"] > 0


def test_every_installed_solver_by_default_and_all_agree() -> None:
    frame = remat.compare(cosines())
    assert solver_names() == list(frame["solver"])
    assert {8 * MIB} == set(frame["objective"])
    by_flow = {"knapsack-dp", "knapsack-greedy", "lagrangian", "networkx", "ortools", "portfolio", "scipy"}
    assert by_flow == set(frame["solver"][frame["proven"]])


def test_names_default_to_the_model_and_are_unique() -> None:
    named = replace(chain(2), meta={"model": "GPT"})
    frame = remat.compare([named, chain(2), named], solvers=["ortools"])
    assert list(frame["graph"]) == ["GPT", "graph1", "GPT (2)"]


def test_a_refusal_is_a_row_with_the_reason() -> None:
    frame = remat.compare(chain(30), solvers=[Exhaustive(), ORTools()])
    assert list(frame["termination"]) == ["refused", "optimal"]
    assert "takes up to 16 values" in frame["error"][0]
    assert pd.isna(frame["objective"][0])
    assert not frame["proven"][0]


def test_an_infeasible_problem_is_a_row_with_the_conflict() -> None:
    frame = remat.compare({"ok": cosines(), "impossible": impossible()}, solvers="ortools")
    assert list(frame["termination"]) == ["optimal", "infeasible"]
    assert "cannot be recomputed (random)" in frame["error"][1]


def test_the_time_limit_reaches_only_solvers_that_take_one() -> None:
    assert Feature.TIME_LIMIT not in ORTools.features
    frame = remat.compare(cosines(), solvers=[PuLP(), ORTools()], time_limit_s=60)
    assert list(frame["termination"]) == ["optimal", "optimal"]


def test_large_prices_stay_exact() -> None:
    odd = 2**55 + 1
    wide = GraphBuilder()
    for i in range(20):
        wide.output(wide.op("sin", wide.input(f"x{i}", bytes=4), name=f"sin{i}"))
    frame = remat.compare([cosines(odd), wide.build()], solvers="exhaustive")
    assert pd.isna(frame["objective"][1]), "too many values for exhaustive: its row has no objective"
    assert 2 * odd == frame["objective"][0] == frame.records()[0]["objective"]
    assert odd == frame["saved_bytes"][0]


def test_slices_stay_comparisons_that_can_be_shown() -> None:
    part = remat.compare(cosines(), solvers=["ortools"])[["solver", "objective"]]
    assert isinstance(part, Comparison)
    assert "ortools" in part._repr_html_()


def test_no_graphs_make_an_empty_table() -> None:
    assert len(remat.compare([])) == 0
    assert "<table" in remat.compare([])._repr_html_()


def test_notebooks_see_readable_units_and_the_best_objective_in_bold() -> None:
    frame = remat.compare(cosines(), solvers=["ortools", "pulp"])
    html = frame._repr_html_()
    for text in ("8.0 MiB", "4.0 MiB", "proven", "claimed", "flow = cut, verified", " ms"):
        assert f"{text}<" in html
    assert "error" not in html
    worse = frame.assign(objective=pd.array([8 * MIB, 9 * MIB], "Int64"))
    assert worse.best() == [True, False]
    assert worse._repr_html_().count("font-weight: bold") == 1


def test_html_is_escaped() -> None:
    html = remat.compare({"<b>": cosines()}, solvers="ortools")._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_facts_count_storages_once_and_inputs_not_at_all() -> None:
    graph = linear_dropout()
    facts = PlanFacts.of(graph, Plan(("x", "t", "mm", "mask"), ("philox", "tt")))
    assert facts.saved_activations == ("mm", "mask")
    assert facts.saved_inputs == ("x", "t")  # t is a view of the input w
    assert facts.saved_bytes == 500
    assert facts.recomputed_ops == ("philox",)
    assert facts.recomputed_views == ("tt",)


def test_facts_tell_what_runs_twice_from_what_runs_late() -> None:
    facts = PlanFacts.of(cosines(), Plan(("add3",), ("cos1", "sin1", "sin2")))
    assert facts.recomputed_ops == ("cos1",)
    assert facts.deferred_ops == ("sin2", "sin1")


def test_facts_refuse_the_plan_of_another_graph() -> None:
    with pytest.raises(InvalidPlan, match=r"Plan\.saved names 'cos9', which is not a value of"):
        PlanFacts.of(cosines(), Plan(("cos9",), ()))


@pytest.mark.parametrize(
    ("text", "count"), [("0 B", 0), ("1023 B", 1023), ("1.0 KiB", 1024), ("1.0 MiB", MIB - 1), ("-1.5 GiB", -3 * 2**29)]
)
def test_bytes_read_in_the_largest_unit(text: str, count: int) -> None:
    assert text == human_bytes(count)


def test_prices_read_in_their_own_unit() -> None:
    assert [
        human_price(1024, "bytes"),
        human_price(2500, "ns"),
        human_price(1200, "widgets"),
    ] == ["1.0 KiB", "2.5 µs", "1,200 widgets"]


def test_labels_show_what_differs_from_the_defaults() -> None:
    assert label(ByteTraffic()) == "byte-traffic"
    assert label(Table()) == "table"
    assert label(Table(rows=np.arange(2))) == "Table(rows=array([0, 1]))"
    assert (
        label(ByteTraffic() + ByteTraffic(free_parameters=True)) == "byte-traffic + ByteTraffic(free_parameters=True)"
    )


def test_an_operator_that_a_saved_value_depends_on_runs_twice() -> None:
    """`r` is needed by the backward pass alone, but the forward pass computes it to save `m`."""
    g = GraphBuilder()
    x = g.input("x", bytes=8)
    g.output(g.op("sin", x))
    r = g.op("exp", x, name="r")
    m, k = g.op("sum", r, name="m", bytes=1), g.op("cos", r, name="k")
    t = g.tangent("t", bytes=8)
    g.gradient(g.op("mul", t, m), g.op("mul", t, k))
    facts = PlanFacts.of(g.build(), Plan(("x", "m"), ("r", "k")))
    assert (facts.recomputed_ops, facts.deferred_ops) == (("r",), ("k",))


CORPUS = remat.Corpus.open()
SMALL = ["small-layernorm-gelu-mlp", "qehvi-4"]


def without_times(frame: pd.DataFrame) -> list[dict[str, Any]]:
    plain = pd.DataFrame(frame).drop(columns=["pose_time_s", "solve_time_s"]).astype(object)
    return plain.where(plain.notna(), None).to_dict(orient="records")


def test_the_corpus_id_the_budget_and_the_gap_are_columns() -> None:
    graph = CORPUS.graph(SMALL[0])
    budgets = [MemoryBudget(0.5), MemoryBudget(20_000_000), MemoryBudget(40_000_000, of="peak"), ByteTraffic()]
    frame = remat.compare(graph, budgets, "lagrangian")
    assert set(frame["instance"]) == {SMALL[0]}
    posed = [MemoryBudget(0.5).pose(graph).budget_bytes, 20_000_000, 40_000_000, None]
    assert [None if pd.isna(most) else most for most in frame["budget_bytes"]] == posed
    for row in frame.records():
        if row["objective"]:
            assert row["gap"] == pytest.approx((row["objective"] - row["bound"]) / row["objective"])


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (ByteTraffic(), "byte-traffic"),
        (ByteTraffic(mode="aggressive"), "byte-traffic:mode=aggressive"),
        (
            MemoryBudget(0.25, estimator=Roofline(device="h200")),
            "memory-budget:budget=0.25,estimator=roofline:device=h200",
        ),
        (ByteTraffic(rules={"random": False}), 'byte-traffic:rules={"random": false}'),
    ],
)
def test_a_plug_in_is_spelled_as_it_is_typed(plugin: Any, text: str) -> None:
    assert option_text(plugin) == text
    assert option_text(find_costmodel(text)) == text


def test_several_processes_find_the_same_in_the_same_order() -> None:
    graphs = [CORPUS.graph(name) for name in SMALL]
    asked: dict[str, Any] = {"cost_models": ["byte-traffic", "multi-read"], "solvers": ["ortools", "exhaustive"]}
    done: list[int] = []
    together = remat.compare(graphs, **asked, n_jobs=2, progress=lambda count, _: done.append(count))
    assert without_times(together) == without_times(remat.compare(graphs, **asked))
    assert done == list(range(1, 9))
    for wrong in (0, 1.5, True, "2"):
        with pytest.raises(InvalidOption, match="n_jobs must be a whole number of at least 1"):
            remat.compare(graphs, n_jobs=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_comparison_goes_on_where_it_stopped(n_jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, file = [CORPUS.graph(name) for name in SMALL], tmp_path / "rows.json"

    def stop(count: int, _: tuple[int, ...]) -> None:
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remat.compare(graphs, solvers=["ortools", "scipy"], progress=stop, n_jobs=n_jobs, path=file)
    before, done = file.read_text(), list[int]()
    whole = remat.compare(graphs, solvers=["ortools", "scipy"], progress=lambda count, _: done.append(count), path=file)
    assert done == [3, 4]
    assert without_times(whole) == without_times(remat.compare(graphs, solvers=["ortools", "scipy"]))
    kept = {tuple(row.values()) for row in json.loads(before)["rows"].values()}
    assert kept < {tuple(row.values()) for row in json.loads(file.read_text())["rows"].values()}, (
        "those stay as they are"
    )
    # Another graph of the same name, another option, another limit: each is solved.
    remat.compare({"GPT": chain(2)}, solvers="ortools", path=file)
    count = len(json.loads(file.read_text())["rows"])
    remat.compare({"GPT": chain(3)}, "byte-traffic:mode=aggressive", "ortools", path=file)
    remat.compare({"GPT": chain(3)}, "byte-traffic:mode=aggressive", "ortools", time_limit_s=1, path=file)
    assert len(json.loads(file.read_text())["rows"]) == count + 2
    file.write_text("{}")
    with pytest.raises(InvalidOption, match="not a file of comparisons"):
        remat.compare(graphs, path=file)


def test_a_performance_profile_is_a_method() -> None:
    times = {("a", "x"): 1.0, ("a", "y"): 2.0, ("b", "x"): 4.0, ("b", "y"): 1.0, ("c", "x"): 1.0, ("c", "y"): 1.0}
    rows = [
        {"graph": graph, "cost_model": "m", "solver": solver, "objective": 5, "solve_time_s": taken}
        | {"exact": True, "proven": True, "values": 2}
        for (graph, solver), taken in times.items()
    ]
    rows[-1]["objective"] = 6  # y misses the best plan of c
    steps = Comparison.of(rows).profile()
    assert steps.to_dict(orient="list") == {
        "cost_model": ["m"] * 4,
        "solver": ["x", "x", "y", "y"],
        "factor": [1.0, 4.0, 1.0, 2.0],
        "share": [pytest.approx(2 / 3), 1.0, pytest.approx(1 / 3), pytest.approx(2 / 3)],
    }
