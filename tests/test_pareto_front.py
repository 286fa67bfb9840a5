"""The Pareto front has exactly the items that no other one beats."""

from hypothesis import given
from hypothesis import strategies as st

from remat.improve.pareto_front import pareto_front

COSTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def _beats(costs: tuple[int, int], others: tuple[int, int]) -> bool:
    return costs != others and costs[0] <= others[0] and costs[1] <= others[1]


@given(COSTS)
def test_the_front_has_the_costs_that_no_other_ones_beat(costs: list[tuple[int, int]]) -> None:
    unbeaten = sorted({one for one in costs if not any(_beats(other, one) for other in costs)})
    assert pareto_front(costs, key=lambda one: one) == unbeaten


@given(COSTS)
def test_of_equal_items_the_first_stays(costs: list[tuple[int, int]]) -> None:
    front = pareto_front(enumerate(costs), key=lambda item: item[1])
    assert all(costs.index(pair) == place for place, pair in front)
