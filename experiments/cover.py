"""Draws the picture of docs/theory/minimum-cut.md: the paper's first function, and what the classic cut saves of it.

`python -m experiments.cover`
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import remat

PATH = Path(__file__).parent / "results" / "cos-cos.svg"


def cosines(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Computes the function `f1` of the paper, section 2.3."""
    x = a + b + c + d
    return x.cos().cos()


def draw(path: Path = PATH, elements: int = 2**22) -> None:
    """Captures the function, chooses under byte-traffic, and draws both."""
    a, b, c, d = (torch.randn(elements, requires_grad=name == "a") for name in "abcd")
    graph = remat.capture(cosines, a, b, c, d)
    remat.show(graph, remat.choose(graph).plan, path)


if __name__ == "__main__":
    draw()
