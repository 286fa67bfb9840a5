"""What the sources print of small functions, counted at a small size: the table of `experiments.sources`."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.sources import EVERYTHING, NOTHING, NUMBERS, OURS, PYTORCH, SOURCES, counted
from tests.results_pages import rows_of, section, sentences

SIZE = 2**12


def by_strategy(rows: Any) -> dict[str, dict[str, Any]]:
    return {row["strategy"]: row for row in rows}


@pytest.mark.parametrize("device", [None, "a100-40gb"])
@pytest.mark.parametrize(
    ("name", "accesses", "saved"),
    [
        ("GeLU", {NOTHING: 13, EVERYTHING: 5, PYTORCH: 5, OURS: 5}, {NOTHING: 4, EVERYTHING: 0, OURS: 0}),
        ("cosines", {NOTHING: 11, EVERYTHING: 11, PYTORCH: 9, OURS: 9}, {NOTHING: 2, EVERYTHING: 0, OURS: 1}),
    ],
)
def test_kernels_read_and_write_as_often_as_the_paper_says(
    name: str, accesses: dict[str, int], saved: dict[str, int], device: str | None
) -> None:
    rows = by_strategy(counted(SOURCES[name], SIZE, device))
    for strategy, count in accesses.items():
        assert rows[strategy]["accesses"] == rows[strategy]["predicted_accesses"] == count
        assert rows[strategy]["published"].get("accesses", count) == count
    assert {strategy: rows[strategy]["saved"] for strategy in saved} == saved


def test_the_mask_takes_a_byte_an_element_where_the_random_numbers_take_four() -> None:
    rows = by_strategy(counted(SOURCES["mask"], SIZE, None))
    assert rows[NUMBERS]["saved"] == pytest.approx(1, abs=0.01)
    assert rows[OURS]["saved"] == pytest.approx(0.25, abs=0.01)


def test_what_the_results_say_of_the_sources() -> None:
    of = {(row["case"], row["strategy"]): row for row in rows_of("sources")}
    page = sentences(section("The sources' tables"))
    gelu, cosines, mask = (f"{name}, counted" for name in ("GeLU", "cosines", "mask"))
    assert (of[gelu, NOTHING]["accesses"], of[gelu, EVERYTHING]["accesses"]) == (13, 5)
    assert (
        "| 13 and 5 accesses, 1.33 and 0.50 ms | 13 and 5, {:.2f} and {:.2f} ms |".format(
            of[gelu, NOTHING]["modelled_ms"], of[gelu, EVERYTHING]["modelled_ms"]
        )
        in page
    )
    faster = of[cosines, NOTHING]["modelled_ms"] / of[cosines, OURS]["modelled_ms"] - 1
    assert f"| 21.6% faster | {faster:.1%} |" in page
    memory, time = (1 - of[mask, OURS][key] / of[mask, NUMBERS][key] for key in ("held", "modelled_ms"))
    assert f"| 25% less memory and time | {memory:.0%} and {time:.1%} |" in page
    for name, base in (("GeLU", NOTHING), ("mask", NUMBERS)):
        slower = of[f"{name}, timed", OURS]["ms"] / of[f"{name}, timed", base]["ms"] - 1
        assert f"{slower:.0%} more" in page
