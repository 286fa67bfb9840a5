"""The mode of `docs/kernels.md` that writes products as multiplications computes the same, and its steps move less."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import remat
from costmodels import StepTime
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from experiments.models.save_everything import plan_of
from tests.results_pages import ROOT, section


@pytest.fixture(scope="module")
def mode() -> type[AbstractContextManager[Any]]:
    text = section("Products over a small dimension", (ROOT / "docs" / "kernels.md").read_text())
    names: dict[str, Any] = {"remat": remat, "torch": torch}
    with no_cpu_kernels():
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            exec(block, names)
    return names["SmallProducts"]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_and_their_gradients_are_those_of_prod(
    mode: type[AbstractContextManager[Any]], dim: int, zeros: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    x.movedim(dim, 0)[:zeros, 1] = 0
    weights = torch.randn(x.sum(dim).shape, dtype=torch.float64)
    results: list[tuple[Tensor, Tensor]] = []
    for within in (nullcontext(), mode()):
        leaf = x.clone().requires_grad_()
        with within:
            products = leaf.prod(dim)
            assert torch.equal(products, torch.prod(leaf, dim=dim))
        (products * weights).sum().backward()
        assert leaf.grad is not None
        results.append((products.detach(), leaf.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (torch.randint(1, 5, (3, 4), dtype=torch.int32), {"dim": 0}),  # the product is of int64
        (torch.randn(3, 4), {"dim": 0, "keepdim": True}),
        (torch.randn(3, 4), {"dim": 0, "dtype": torch.float64}),
        (torch.randn(3, 4), {}),
        (torch.randn(3, 9), {"dim": 1}),
        (torch.randn(3, 0), {"dim": 1}),
    ],
)
def test_other_products_are_left_alone(
    mode: type[AbstractContextManager[Any]], x: Tensor, options: dict[str, Any]
) -> None:
    with mode():
        product = x.prod(**options)
    expected = x.prod(**options)
    assert product.dtype == expected.dtype
    assert torch.equal(product, expected)


def test_a_step_moves_fewer_bytes_only_where_the_mode_is_on(mode: type[AbstractContextManager[Any]]) -> None:
    x = torch.rand(64, 256, 4, requires_grad=True)

    def plain(x: Tensor) -> Tensor:
        return (x - 0.1).relu().prod(-1).sum()

    def within(x: Tensor) -> Tensor:
        with mode():
            return plain(x)

    moved: list[int] = []
    for function in (plain, within):
        graph = remat.capture(function, x)
        assert any("cumprod" in op for op in graph.ops) == (function is plain)
        moved.append(remat.predict_traffic(graph, plan_of(graph, StepTime())).bytes)
    assert moved[1] < 0.6 * moved[0]
