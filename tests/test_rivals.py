"""Methods of other papers: each beside an independent reading of its rule, or beside all answers to small problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from depth import drawn
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import feasible, training_steps

from costmodels import RecomputeTime
from experiments.bench.rivals import METHODS, answered, run_method
from experiments.benchmark.answers import Answers
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.rivals import checkmate_rounding, chen, hiremate
from experiments.rivals.best_plans import Best
from experiments.rivals.dtr import Forward
from experiments.rivals.moccasin import Retention, Schedule, Setting
from experiments.rivals.rotor import Chain
from experiments.rivals.tensor_instance import TensorInstance
from remat import Corpus, Graph, GraphBuilder
from remat.facts.columns import BoolArray, IntArray
from remat.problem.problem_file import Budget


def asked(graph: Graph, costs: list[int]) -> TensorInstance:
    """A graph whose values take these times, by turns, to compute again."""
    problem = RecomputeTime("flops").pose(graph)
    times = np.resize(np.array(costs, np.int64), len(problem)) * ~graph.leaf[graph.plannable]
    return TensorInstance.of(graph, replace(problem, recompute_cost=times))


def chain(*tensors: tuple[int, int]) -> TensorInstance:
    """A chain of tensors, by bytes and time; the backward pass reads all of them, the last one first."""
    g = GraphBuilder()
    names = [g.input("x", bytes=1)]
    for size, _ in tensors:
        names.append(g.op("op", names[-1], bytes=size, compute_bound=True))
    g.output(names[-1])
    late = g.tangent("dy", bytes=1)
    for name in reversed(names[1:]):
        late = g.op("mul", late, name, bytes=1)
    g.gradient(late)
    return asked(g.build(), [0, *(time for _, time in tensors)])


@st.composite
def questions(draw: st.DrawFn) -> TensorInstance:
    graph = draw(training_steps(most=6))
    assume(feasible(graph))
    return asked(graph, draw(st.lists(st.integers(0, 20), min_size=3, max_size=9)))


def every_mask(count: int) -> list[BoolArray]:
    return [np.array(flags, np.bool_) for flags in product((False, True), repeat=count)]


@pytest.mark.parametrize("length", [16, 49, 100])
def test_chen_on_equal_layers_needs_twice_the_square_root(length: int) -> None:
    """Saved layers and the longest run between them, together, as section 4.1 of the paper says."""
    instance = chain(*[(8, 1)] * length)
    for plans in (chen.at_articulation_points, chen.at_any_place, chen.in_a_line):
        takes = list[int]()
        for saved in plans(instance):
            ends = [-1, *np.flatnonzero(saved).tolist(), length]
            takes.append(int(saved.sum()) + max(end - start - 1 for start, end in pairwise(ends)))
        assert 2 * length**0.5 - 2 <= min(takes) <= 2 * length**0.5 + 2


def test_dtr_evicts_by_cost_bytes_and_staleness() -> None:
    """By hand. `a` takes 10, `b` 4, `c` 30, `d` and `e` 1: with room for three, `d` and `e` have to evict.

    Before `d`, the clock is at 44, and `c` is being read. `a` was last read at 14, `b` at 44: h is 10 / 31 and 4 / 1,
    so the dearer `a` goes. Before `e`, at 45, `d` is being read; `b` was read at 44, `c` at 45. Beside `b`, `a` was
    evicted: h is (4 + 10) / 2 and 30 / 1, so `b` goes. Were `b` of 20 bytes, 4 / 20 would be less than 10 / 31.
    """
    a, b, c, d, e = ((1, time) for time in (10, 4, 30, 1, 1))
    assert Forward(chain(a, b, c, d), 3).run().tolist() == [False, True, True, True]
    assert Forward(chain(a, b, c, d, e), 3).run().tolist() == [False, False, True, True, True]
    assert Forward(chain(a, (20, 4), c, d), 22).run().tolist() == [True, False, True, True]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    length = draw(st.integers(1, 5))
    numbers = st.lists(st.integers(0, 6), min_size=length, max_size=length)
    hands_on = np.zeros((length + 1, length + 1), np.int64)
    for i, j in combinations(range(length + 1), 2):
        hands_on[i, j] = draw(st.integers(0, 6)) if j < length else 0
    all_bytes, costs = (np.array(draw(numbers), np.int64) for _ in range(2))
    return Chain(all_bytes, hands_on, costs)


def least_cost(chain: Chain, room: int, *, fits_again: bool) -> float:
    """The least time of all ways to cut a chain into runs, each kept or computed again."""

    def from_stage(i: int, room: int) -> float:
        if i == len(chain.costs):
            return 0
        found = [np.inf]
        if chain.all_bytes[i] <= room:
            found.append(from_stage(i + 1, room - int(chain.all_bytes[i])))
        for j in range(i + 1, len(chain.costs) + 1):
            again = int(chain.all_bytes[i:j].sum()) if fits_again else 0
            if max(again, chain.hands_on[i, j]) <= room:
                found.append(int(chain.costs[i:j].sum()) + from_stage(j, room - int(chain.hands_on[i, j])))
        return min(found)

    return from_stage(0, room)


@given(chains(), st.booleans())
def test_rotors_program_finds_the_best_of_all_runs(chain: Chain, fits_again: bool) -> None:
    slots = int(chain.all_bytes.sum())
    least, ends = chain.table(1, slots, fits_again=fits_again)
    for room in range(slots + 1):
        best = least_cost(chain, room, fits_again=fits_again)
        assert least[0, room] == best
        runs = chain.runs(ends, room, 1)
        assert (runs is None) == np.isinf(best)
        if runs is not None:
            assert sum(int(chain.costs[i:j].sum()) for i, j in runs) == best


@given(questions(), st.floats(0, 1))
def test_the_relaxation_is_a_bound_and_its_rounding_is_a_plan(instance: TensorInstance, share: float) -> None:
    assume(len(instance) <= 8)
    problem = instance.problem
    limit = int(share * problem.save_bytes.sum())
    plans = [instance.plan(saved) for saved in every_mask(len(instance))]
    fits = [plan.cost(problem) for plan in plans if plan.keeps_bans(problem) and plan.saved_bytes(problem) <= limit]
    rows = np.stack([problem.save_bytes.astype(float), np.zeros(len(problem))])[None]
    solved = checkmate_rounding.relaxation(problem, rows, np.array([float(limit)]), 10)
    assert solved is not None or not fits
    if solved is not None and fits:
        bound, saved = solved
        assert bound <= min(fits) + 1e-6 * (1 + min(fits))
        best = Best(instance, [Budget("saved-1", "saved", limit)])
        checkmate_rounding.within(instance, Budget("saved-1", "saved", limit), best.offer)
        for _, choice in best.found.values():
            assert choice.keeps_bans(problem)
            assert choice.saved_bytes(problem) <= limit
        whole = instance.plan(saved[instance.value] >= 0.5)
        if np.isin(np.round(saved, 9), (0, 1)).all() and whole.saved_bytes(problem) <= limit:
            assert abs(whole.cost(problem) - min(fits)) <= 1e-6 * (1 + min(fits)), "whole numbers are the optimum"


@drawn(30)  # each takes two integer programs for a part
@given(questions(), st.floats(0, 1))
def test_the_hierarchys_lowest_program_is_exact_and_higher_ones_do_not_promise_too_much(
    instance: TensorInstance, share: float
) -> None:
    assume(len(instance) <= 8)
    free = instance.forward & ~instance.fixed
    limit = int(share * instance.bytes[free].sum())

    def takes(saved: BoolArray) -> tuple[int, int]:
        choice = instance.plan(saved)
        saves, again = (mask[instance.value] & free for mask in (choice.saved, choice.recomputed))
        return int(instance.bytes[saves].sum()), int(instance.cost[again].sum())

    kind = hiremate.Kind(hiremate.NOTHING, asks=True)
    least = min(cost for size, cost in (takes(saved & free) for saved in every_mask(len(instance))) if size <= limit)
    with pytest.MonkeyPatch.context() as patch:
        for tensors in (8, 2):  # one part, or several levels
            patch.setattr(hiremate, "TENSORS", tensors)
            patch.setattr(hiremate, "PARTS", 2)
            planner = hiremate.Planner(instance, np.inf, of_peak=False)
            parts = planner.highest_parts()
            option = planner.chosen(parts, np.full(len(parts), float(limit)), kind)
            program = planner.program(0, len(instance))
            exact = program.within(limit, kind)
            assert exact is not None
            assert exact.cost == least
            if option is not None:
                saved = np.zeros(len(instance), np.bool_)
                saved[list(option.saved)] = True
                size, cost = takes(saved)
                assert size <= option.saved_bytes <= limit + 1e-6 * (1 + limit)
                assert least <= cost <= option.cost


def reads_late() -> TensorInstance:
    """The backward pass reads `a`, `c`, and `b`, which is made of `a`.

    To save `b` takes 7 bytes, beside the two tensors of 3 in the forward pass. Computed again beside `a`, before `c`,
    it would take no more than 6 bytes; where it is asked for, it needs `a` beside `c`.
    """
    g = GraphBuilder()
    x = g.input("x", bytes=1)
    a, c = (g.op(name, x, bytes=4, compute_bound=True) for name in "ac")
    b = last = g.op("b", a, bytes=1, compute_bound=True)
    for size in (3, 3, 1):
        last = g.op("op", last, bytes=size, compute_bound=True)
    g.output(last)
    late = g.tangent("dy", bytes=1)
    for name in (a, c, b):
        late = g.op("mul", late, name, bytes=1)
    g.gradient(late)
    return asked(g.build(), [1])


@given(questions(), st.integers(0, 127), st.integers(0, 1))
@example(reads_late(), 0, 1)
def test_retention_intervals_find_the_best_plan_of_their_model(
    instance: TensorInstance, at: int, too_little: int
) -> None:
    assume(0 < len(instance) <= 7)
    setting = Setting.of(instance)
    schedules = [Schedule.of(instance, setting.times, saved) for saved in every_mask(len(instance))]
    peaks = sorted({setting.peak(one) for one in schedules})
    limit = max(peaks[at % len(peaks)] - too_little, 0)  # at other limits, the same plans fit
    fits = [one for one in schedules if setting.peak(one) <= limit]
    saved = Retention(setting, limit).solve()
    assert (saved is None) == (not fits)
    if saved is not None:
        found = Schedule.of(instance, setting.times, saved)
        assert setting.peak(found) <= limit
        assert cost_of(instance, found.recomputed) == min(cost_of(instance, one.recomputed) for one in fits)


def test_without_tensors_there_is_nothing_to_retain() -> None:
    saved = Retention(Setting.of(chain()), 1).solve()
    assert saved is not None
    assert not len(saved)


def cost_of(instance: TensorInstance, recomputed: BoolArray | IntArray) -> int:
    return int(instance.cost[recomputed].sum())


def computes_late() -> TensorInstance:
    """Computes its only tensor in the backward pass."""
    g = GraphBuilder()
    x = g.input("x", bytes=1)
    g.output(g.op("out", x, bytes=1, view=True))
    g.gradient(g.op("mul", g.tangent("dy", bytes=1), g.op("op", x, bytes=2, compute_bound=True), bytes=1))
    return asked(g.build(), [1])


@drawn(20)  # each is answered by all methods
@given(questions(), st.sampled_from(("saved", "peak")), st.integers(0, 127))
@example(computes_late(), "saved", 0)
def test_no_method_fails_or_is_better_than_all_plans(instance: TensorInstance, of: str, at: int) -> None:
    assume(len(instance) <= 6)
    problem, every = instance.problem, Best(instance, [])
    plans = [(instance.plan(saved), every.offer(saved)) for saved in every_mask(len(instance))]
    sizes = sorted({score.of(Budget("", of, 0)) for _, score in plans})
    budget = Budget("budget", of, sizes[at % len(sizes)])
    fits = [score.cost for plan, score in plans if score.of(budget) <= budget.bytes and plan.keeps_bans(problem)]
    for method in METHODS:
        if method == "moccasin" and of == "saved":
            continue
        best = Best(instance, [budget])
        run_method(method, instance, budget, best)
        for cost, _ in best.found.values():
            assert cost >= min(fits, default=np.inf), method


@pytest.mark.parametrize("method", METHODS)
def test_answers_to_an_instance_are_no_better_than_its_bound(method: str) -> None:
    posed = Manifest.open(FOLDER).posed(Corpus.open(), "small-dropout-mlp")
    known = Answers(FOLDER / "answers").of(posed.name)
    budgets = [budget for budget in posed.budgets if budget.name in ("saved-0.3", "peak-0.7")]
    rows = list(answered(replace(posed, budgets=tuple(budgets)), method, known))
    assert rows
    for row in rows:
        assert row.get("objective", row["bound"]) >= row["bound"]
        assert ("objective" in row) == (not row["why"])
        assert ("saved" in row) == (row.get("objective", row["known"]) < row["known"])
