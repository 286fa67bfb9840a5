"""Estimates of recompute time: by hand on small graphs, and as properties on random and captured ones."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from depth import deeper, examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import flat, small_gpt
from test_calls import conv_net

import remat
from remat import Graph, GraphBuilder, InvalidOption
from remat.answer import registry
from remat.errors import InvalidGraph, NotInstalled, UnknownName
from remat.plugin import Estimator, Region
from remat.predict.time import DeviceProfile, Flops, Profile, Roofline
from remat.predict.time.known_devices import find_device
from remat.predict.time.work import Work
from remat.pytorch.measure.timing import Stopwatch, device_label, device_name
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.testing import check_estimator, graphs

TOY = DeviceProfile(
    "toy", {"float32": 1e9, "bfloat16": 4e9, "float64": 0.5e9}, bytes_per_s=1e9, launch_ns=100, source="this test"
)
"""A float32 operation takes 1 ns, and so does a byte."""


def price(g: GraphBuilder, value: str, device: DeviceProfile = TOY) -> int:
    graph = g.build()
    return int(Roofline(device).recompute_cost(graph)[graph.index[value]])


@pytest.fixture
def g() -> GraphBuilder:
    """x (400 B) @ w (100 B), 200 B, 10 operations; and its relu, which fuses with what follows."""
    g = GraphBuilder()
    g.input("x", bytes=400)
    g.input("w", bytes=100, parameter=True)
    g.op("mm", "x", "w", bytes=200, compute_bound=True, flops=10)
    g.op("relu", "mm")
    g.output("relu")
    return g


def test_a_kernel_of_its_own_reads_writes_and_is_launched(g: GraphBuilder) -> None:
    assert price(g, "mm") == 400 + 100 + 200 + 100
    g.op("sum", "relu", bytes=8, fusible=False)
    assert price(g, "sum") == 200 + 8 + 100, "its argument fuses with nothing here, so it is read"


def test_arithmetic_counts_where_it_takes_longer(g: GraphBuilder) -> None:
    g.op("mm", "x", "w", bytes=200, compute_bound=True, flops=5000, name="large")
    assert price(g, "large") == 5000 + 100
    g.op("erf", "relu", flops=70)
    assert price(g, "erf") == 70, "fuses, reads nothing"


def test_what_fuses_pays_for_what_it_reads_from_memory(g: GraphBuilder) -> None:
    g.op("exp", "relu")
    g.op("add", "exp", "x")
    g.op("add", "mm", "x", name="both")
    assert price(g, "relu") == 200, "mm does not fuse"
    assert price(g, "exp") == 0, "relu does"
    assert price(g, "add") == 400, "an input is in memory"
    assert price(g, "both") == 200 + 400


def test_views_are_free_and_looked_through(g: GraphBuilder) -> None:
    g.op("view", "mm", view=True)
    g.op("view", "view", view=True, name="again")
    g.op("neg", "again")
    g.op("view", "relu", view=True, name="fused")
    g.op("neg", "fused", name="fused_neg")
    assert [price(g, name) for name in ("view", "again", "fused")] == [0, 0, 0]
    assert price(g, "neg") == 200, "mm, through two views"
    assert price(g, "fused_neg") == 0, "relu, in the same kernel"


def test_a_storage_is_read_once_and_only_as_far_as_it_is_looked_at(g: GraphBuilder) -> None:
    for name in "abc":
        g.op("slice", "mm", view=True, bytes=80, name=name)
    g.op("neg", "a", bytes=80)
    g.op("add", "a", "b", bytes=80)
    g.op("sum", "a", "b", "c", bytes=8, fusible=False)
    g.op("expand", "mm", view=True, bytes=10_000)
    g.op("mul", "expand", bytes=10_000)
    assert price(g, "neg") == 80
    assert price(g, "add") == 160
    assert price(g, "sum") == 200 + 8 + 100, "three slices of 80 overlap in 200"
    assert price(g, "mul") == 200, "an expanded view reads its base"


def test_a_tuple_costs_what_its_elements_do_and_they_are_free(g: GraphBuilder) -> None:
    g.op("sort", "mm", bytes=0, fusible=False)
    g.op("getitem", "sort", bytes=50, fusible=False, name="first", flops=5)
    g.op("getitem", "sort", bytes=70, fusible=False, name="second", flops=600)
    assert price(g, "sort") == 605 + 100
    assert (price(g, "first"), price(g, "second")) == (0, 0)
    assert price(g, "sort", replace(TOY, flops_per_s={"float32": 1e12})) == 200 + 50 + 70 + 100


def test_constants_are_free_and_random_numbers_are_not(g: GraphBuilder) -> None:
    g.op("full", bytes=40, flops=10)
    g.op("get_attr", bytes=40, fusible=False)
    g.op("rand", bytes=40, random=True, flops=10)
    assert [price(g, name) for name in ("full", "get_attr", "rand")] == [0, 0, 10]


def test_what_picks_rows_reads_no_more_than_it_makes(g: GraphBuilder) -> None:
    g.input("table", bytes=10**6)
    g.input("rows", bytes=16)
    g.op("aten.embedding.default", "table", "rows", bytes=64, fusible=False, name="picked")
    assert price(g, "picked") == 64 + 16 + 64 + 100


@pytest.mark.parametrize(
    ("dtype", "flops", "expected"),
    [("float32", 1000, 1000), ("bfloat16", 4000, 1000), ("float64", 1000, 2000), ("float16", 1000, 1000)],
)
def test_a_product_runs_at_the_rate_of_its_type(dtype: str, flops: int, expected: int) -> None:
    g = GraphBuilder()
    g.input("i", dtype="int64")
    g.input("a", dtype=dtype)
    g.op("mm", "i", "a", bytes=1, compute_bound=True, flops=flops, dtype="float32")
    assert price(g, "mm") == expected + 100, "float16 is not listed, so it goes by float32"


def test_a_symbolic_size_is_no_kernel(g: GraphBuilder) -> None:
    g.op("aten.sym_size.int", "x", bytes=8, dtype="symint", fusible=False, name="size")
    assert price(g, "size") == 0


def test_other_arithmetic_runs_in_float32_unless_it_is_float64() -> None:
    g = GraphBuilder()
    for dtype in ("bfloat16", "float64"):
        g.input(f"x_{dtype}", bytes=1, dtype=dtype)
        g.op("erf", f"x_{dtype}", flops=1000, dtype=dtype, name=dtype)
    assert (price(g, "bfloat16"), price(g, "float64")) == (1000, 2000)


def test_ceilings_are_reached_in_part_and_prices_rounded_up(g: GraphBuilder) -> None:
    half = replace(TOY, bytes_fraction=0.5)
    assert price(g, "mm", half) == 2 * 700 + 100
    assert price(g, "mm", replace(TOY, bytes_per_s=1e15, flops_per_s={"float32": 1e15}, launch_ns=0)) == 1


def test_the_backward_pass_itself_costs_nothing(g: GraphBuilder) -> None:
    g.gradient(g.op("mm", g.tangent("dy", bytes=200), "x", bytes=400, compute_bound=True, flops=999, name="dw"))
    assert (price(g, "dw"), price(g, "dy")) == (0, 0)


def test_flops_are_the_graph_s(g: GraphBuilder) -> None:
    g.op("exp", "relu", flops=50)
    g.op("view", "relu", view=True, flops=50)
    g.gradient(g.op("mul", g.tangent("dy"), "exp", flops=50))
    graph = g.build()
    cost = Flops().recompute_cost(graph)
    assert {graph.names[i]: int(cost[i]) for i in np.flatnonzero(cost)} == {"mm": 10, "exp": 50}


def test_prices_that_could_wrap_are_refused(g: GraphBuilder) -> None:
    g.op("mm", "x", "w", bytes=200, compute_bound=True, flops=2**62, name="huge")
    graphs = {r"must add up to less than 2\*\*62, got about 4\.6": g.build()}
    g.op("sort", "mm", bytes=0, fusible=False)
    g.op("getitem", "sort", bytes=50, fusible=False, name="element", flops=2**62)
    graphs[r"Graph\.flops must add up to less than 2\*\*62, got about 9\.2"] = g.build()
    for message, graph in graphs.items():
        for estimator in (Flops(), Roofline(TOY)):
            with pytest.raises(InvalidGraph, match=message):
                estimator.recompute_cost(graph)


def test_flops_past_what_a_double_holds_stay_exact(g: GraphBuilder) -> None:
    g.op("mm", "x", "w", bytes=200, compute_bound=True, flops=2**53 + 1, name="huge")
    graph = g.build()
    assert Flops().recompute_cost(graph)[graph.index["huge"]] == 2**53 + 1


@st.composite
def with_flops(draw: st.DrawFn) -> Graph:
    graph = draw(graphs())
    return replace(graph, flops=draw(st.lists(st.integers(0, 10**6), min_size=len(graph), max_size=len(graph))))


@given(graph=with_flops(), data=st.data(), extra=st.integers(1, 10**6))
@pytest.mark.parametrize("label", ["flops", "bytes"])
@pytest.mark.parametrize("estimator", [Roofline(TOY), Roofline(), Flops()], ids=["toy", "a100", "flops"])
def test_more_work_never_costs_less(
    estimator: Estimator, label: str, graph: Graph, data: st.DataObject, extra: int
) -> None:
    value = data.draw(st.integers(0, len(graph) - 1))
    more = np.array(getattr(graph, label))
    more[value] += extra
    grown = replace(graph, **{label: more})
    assert (estimator.recompute_cost(grown) >= estimator.recompute_cost(graph)).all()


@deeper
@pytest.mark.parametrize("estimator", [Flops(), Roofline(), Roofline("cpu"), Roofline(TOY)], ids=repr)
def test_every_estimator_conforms(estimator: Estimator) -> None:
    check_estimator(estimator, max_examples=examples(100))


@pytest.mark.filterwarnings("ignore:estimator 'profile'")  # the operators of random graphs are no torch operators
def test_measured_estimates_conform(tmp_path: Path) -> None:
    check_estimator(Profile(device="cpu", cache=tmp_path / "times.json", ceilings=TOY), max_examples=20)


@pytest.mark.usefixtures("no_shrinking")
def test_what_does_not_conform_is_named() -> None:
    class Inputs(Flops):
        def recompute_cost(self, graph: Graph) -> Any:
            return super().recompute_cost(graph) + graph.input

    class Names(Flops):
        def recompute_cost(self, graph: Graph) -> Any:
            free = graph.input | graph.view | (graph.region == Region.TANGENTS)
            return np.where(free, 0, [len(name) for name in graph.names])

    class Elements(Flops):
        def recompute_cost(self, graph: Graph) -> Any:
            return np.where(graph.input | graph.view | (graph.region == Region.TANGENTS), 0, graph.flops)

    class Wraps(Flops):
        def recompute_cost(self, graph: Graph) -> Any:
            return 1000 * super().recompute_cost(graph)

    class NoText(Flops):
        def data(self) -> Any:
            return None

    for broken, message in (
        (Elements, r"must be 0 for inputs, views, elements and .*, but prices \['first', 'second'\]"),
        (Wraps, r"an array of \d+ integers, none negative, got -\d+ among them"),
        (NoText, r"NoText\(\)\.data\(\) must be a text, got None"),
        (Inputs, "must be 0 for inputs, views, elements and the tangents' closure, but prices"),
        (Names, "looks at names or storage ids"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_estimator(broken(), max_examples=30)


@pytest.fixture(scope="module")
def transformer() -> Graph:
    return remat.capture(*flat(small_gpt(layers=2)))


@pytest.fixture(scope="module")
def convolutions() -> Graph:
    return remat.capture(*conv_net())


def test_on_a_transformer_products_are_the_price_of_recomputing(transformer: Graph) -> None:
    cost, product = Roofline().recompute_cost(transformer), transformer.compute_bound
    pointwise = transformer.fusible & (cost > 0)
    assert (cost[product & ~transformer.in_tangents] > 0).all()
    assert cost[product & (cost > 0)].min() > cost[pointwise].max()


def test_a_default_is_the_same_whatever_was_measured(
    transformer: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = remat.plugin.find_estimator(remat.plugin.DEFAULT_ESTIMATOR).recompute_cost(transformer)
    monkeypatch.setattr("remat.predict.time.device.cache_folder", lambda: tmp_path)
    TOY.save(tmp_path / "device-cpu.json")
    after = remat.plugin.find_estimator(remat.plugin.DEFAULT_ESTIMATOR).recompute_cost(transformer)
    assert np.array_equal(before, after)
    assert not np.array_equal(after, Roofline("here").recompute_cost(transformer))


def test_a_profile_written_into_an_option_is_no_name() -> None:
    """Its text is longer than the system lets the name of a file be."""
    with pytest.raises(UnknownName, match=r"no device is named .DeviceProfile"):
        remat.plugin.find_estimator(f"roofline:device={find_device('h200')!r}".replace(",", ";"))


def test_a_source_folder_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_installed", lambda group: {})  # type: ignore[misc]
    monkeypatch.setattr(registry, "_loaded", {})
    with pytest.raises(NotInstalled, match=r"'roofline' is not found, because remat .* run `pip install -e \.`"):
        remat.plugin.find_estimator("roofline")


def test_estimators_go_by_name() -> None:
    assert {"flops", "profile", "roofline"} <= set(remat.plugin.estimator_names())
    assert remat.plugin.find_estimator("roofline") == Roofline()
    chosen = Roofline("h200")
    assert remat.plugin.find_estimator(chosen) is chosen
    with pytest.raises(UnknownName, match="no estimator is named 'rofline'; did you mean 'roofline'"):
        remat.plugin.find_estimator("rofline")
    with pytest.raises(
        InvalidOption, match=r"estimator must be a name or an instance of remat\.Estimator, got .*paren"
    ):
        remat.plugin.find_estimator(Roofline)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("roofline:device=h200", Roofline("h200")),
        ("profile:device=cpu,ceilings=cpu", Profile(device="cpu", ceilings="cpu")),
        ("flops", Flops()),
    ],
)
def test_options_follow_a_name(text: str, expected: Estimator) -> None:
    assert remat.plugin.find_estimator(text) == expected


# Profile: what is timed is counted, so that no test depends on how long anything takes.


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every call that was timed; each is said to take 1001, 1002, ... ns."""
    calls: list[int] = []

    def median_ns(_: Stopwatch, call: Callable[[], object]) -> int:
        call()
        calls.append(1001 + len(calls))
        return calls[-1]

    monkeypatch.setattr(Stopwatch, "median_ns", median_ns)
    return calls


def profile(folder: Path) -> Profile:
    return Profile(device="cpu", cache=folder / "times.json", ceilings="cpu")


def test_each_call_is_timed_once_and_kept(transformer: Graph, timed: list[int], tmp_path: Path) -> None:
    first = profile(tmp_path).recompute_cost(transformer)
    count, kernels = len(timed), int(Work.of(transformer).own_kernel.sum())
    assert 0 < count < kernels, "two equal layers"
    assert np.array_equal(first, profile(tmp_path).recompute_cost(transformer))
    assert len(timed) == count, "the second time nothing is"
    profile(tmp_path).recompute_cost(remat.capture(*flat(small_gpt(layers=1))))
    assert len(timed) == count, "nor for another model of the same layers"
    assert len(json.loads((tmp_path / "times.json").read_text())["ns"]) == count


def test_times_are_those_of_kernels_and_the_rest_goes_by_the_roofline(
    transformer: Graph, timed: list[int], tmp_path: Path
) -> None:
    cost, own = profile(tmp_path).recompute_cost(transformer), Work.of(transformer).own_kernel
    never = transformer.cannot_recompute.mask
    assert set(cost[own & ~never].tolist()) == set(timed)
    assert np.array_equal(cost[~own], Roofline("cpu").recompute_cost(transformer)[~own])


def test_a_saved_graph_can_be_profiled(convolutions: Graph, timed: list[int], tmp_path: Path) -> None:
    convolutions.save(tmp_path / "graph.json.gz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile(tmp_path).recompute_cost(Graph.load(tmp_path / "graph.json.gz"))
    assert len(timed) >= 3


def unknown_operator(op: str, **facts: Any) -> Graph:
    g = GraphBuilder()
    g.input("x", bytes=400, dtype="float32", shape=(100,))
    g.output(g.op(op, "x", bytes=400, dtype="float32", shape=(100,), fusible=False, name="y", **facts))
    return g.build()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("my_library.my_op.default", r"my_library\.my_op\.default \(torch\.ops\.my_library\.my_op\.default does not"),
        ("triton_kernel_wrapper_functional", r"is not an operator of torch\.ops"),
        (
            "aten.mm.default",
            r"could not time 1 call, so the roofline of this device estimates them.*aten\.mm\.default \(",
        ),
        ("aten.bernoulli.p", "The graph has no arguments recorded: capture it again"),
        ("aten.sum.default", r"aten\.sum\.default \(it gives float32\[\] instead of float32\[100\]\)"),
    ],
)
def test_what_cannot_be_timed_falls_back_and_says_so(op: str, message: str, timed: list[int], tmp_path: Path) -> None:
    graph = unknown_operator(op)
    with pytest.warns(UserWarning, match=message):
        cost = profile(tmp_path).recompute_cost(graph)
    assert np.array_equal(cost, Roofline("cpu").recompute_cost(graph))
    assert not timed


def test_one_warning_names_every_operator(tmp_path: Path) -> None:
    g = GraphBuilder()
    g.input("x")
    for k in range(12):
        g.output(g.op(f"gone.op{k:02}.default", "x", fusible=False))
    with pytest.warns(UserWarning, match=r"could not time 12 calls.*op00.*op09.*2 more operators") as caught:
        profile(tmp_path).recompute_cost(g.build())
    assert len(caught) == 1


def test_what_must_not_run_twice_is_not_run_at_all(timed: list[int], tmp_path: Path) -> None:
    graph = unknown_operator("aten.exp_.default", cannot_recompute="mutates its arguments")
    cost = profile(tmp_path).recompute_cost(graph)
    assert not timed
    assert np.array_equal(cost, Roofline("cpu").recompute_cost(graph))


def test_timing_draws_no_random_numbers_of_the_user_s(transformer: Graph, timed: list[int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    profile(tmp_path).recompute_cost(transformer)
    assert timed
    assert torch.equal(torch.rand(3), expected)


def test_while_torch_compiles_real_operators_are_timed_as_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[torch.Tensor] = []

    def median_ns(_: Stopwatch, call: Callable[[], Any]) -> int:
        results.append(call())
        return 1

    monkeypatch.setattr(Stopwatch, "median_ns", median_ns)
    model, x = torch.nn.Linear(8, 4), torch.randn(3, 8)

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        # Where a partitioner chooses; with a cast that the captured float32 call does not have.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            profile(tmp_path).recompute_cost(extract(joint_graph, node_info, num_fwd_outputs))

    visit_joint_graphs(visit, model, x)
    assert [(type(result), result.dtype) for result in results] == [(torch.Tensor, torch.float32)]


def test_times_are_kept_apart_by_how_float32_is_multiplied() -> None:
    products, label = torch.backends.mkldnn.matmul, device_label(torch.device("cpu"))
    assert f"torch {torch.__version__}, float32 ieee/" in label
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        assert device_label(torch.device("cpu")) == label.replace("ieee/", "tf32/")
    finally:
        products.fp32_precision = before


def test_indices_are_valid_and_spread_over_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: list[int]
) -> None:
    seen: list[torch.Tensor] = []

    def spy(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        seen.append(indices)
        return weight[indices]

    monkeypatch.setattr("remat.pytorch.read.sample_call.operator_named", lambda name: spy)
    g = GraphBuilder()
    g.input("table", bytes=4000, dtype="float32", shape=(500, 2))
    g.input("rows", bytes=8000, dtype="int64", shape=(1000,))
    g.output(
        g.op("aten.embedding.default", "table", "rows", bytes=8000, dtype="float32", shape=(1000, 2), fusible=False)
    )
    profile(tmp_path).recompute_cost(g.build())
    assert len(timed) == 1
    assert seen[0].min() >= 0
    assert 250 < seen[0].max() < 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"times\.json: not JSON, or truncated .*delete it to measure anew"),
        ('{"format": "remat.graph"}', "not a file of timings of this version"),
        (
            '{"format": "remat.timings", "version": 1, "device": "abacus", "ns": {}}',
            "got 'abacus'; use another file",
        ),
    ],
)
def test_a_bad_cache_is_one_clear_error(content: str, message: str, timed: list[int], tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(content)
    with pytest.raises(InvalidOption, match=message):
        profile(tmp_path).recompute_cost(unknown_operator("aten.relu.default"))


def test_times_that_make_no_sense_are_refused(timed: list[int], tmp_path: Path) -> None:
    graph, file = unknown_operator("aten.relu.default"), tmp_path / "times.json"
    profile(tmp_path).recompute_cost(graph)
    document = json.loads(file.read_text())
    for wrong in (-5, 10**30, 1.5, True):
        document["ns"] = dict.fromkeys(document["ns"], wrong)
        file.write_text(json.dumps(document))
        with pytest.raises(
            InvalidOption, match=r"aten\.relu\.default\(.*\) must be whole nanoseconds, got " + str(wrong)
        ):
            profile(tmp_path).recompute_cost(graph)


def test_without_options_everything_is_kept_in_the_user_s_folder(
    timed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat.predict.time.device.cache_folder", lambda: tmp_path / "remat")
    monkeypatch.setattr("remat.predict.time.timings.cache_folder", lambda: tmp_path / "remat")
    here = replace(TOY, name=device_name(torch.device("cpu")))
    monkeypatch.setattr("remat.pytorch.measure.ceilings.measure_device", lambda kind: here)
    graph = unknown_operator("aten.relu.default")
    for _ in range(2):
        assert Profile(device="cpu").recompute_cost(graph)[1] == 1001
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "remat").iterdir()) == ["device", "timings"]


def test_the_real_stopwatch_runs_what_it_times() -> None:
    runs: list[int] = []
    ns = Stopwatch(torch.device("cpu")).median_ns(lambda: runs.append(1))
    assert ns >= 1
    assert len(runs) >= 7


def test_options_that_make_no_sense_are_refused_where_they_are_typed(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidOption, match='device must be "cpu", "cuda", or None for CUDA if this machine has it, got'
    ):
        Profile(device="tpu", ceilings="cpu")
    with pytest.raises(InvalidOption, match=r"cache must be a file, or None .*, got 7"):
        Profile(cache=7)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="no device is named 'h300'"):
        Profile(ceilings="h300")
    with pytest.raises(InvalidOption, match="must be a file for the times, got a folder"):
        Profile(device="cpu", cache=tmp_path, ceilings="cpu").recompute_cost(unknown_operator("aten.relu.default"))
    with pytest.raises(UnknownName, match="no device is named 'h300', and there is no such file; did you mean 'h200'"):
        Roofline("h300")
