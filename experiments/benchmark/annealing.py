"""Runs `anneal.c`, which looks for cheaper plans within a budget of the peak, and knows nothing of ours but numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.benchmark.check import Instance

SOURCE = Path(__file__).with_name("anneal.c")

VISITS = 300_000_000
"""Steps times nodes, if nobody says how many steps: some ten seconds of one core for each budget."""

_NODES = (
    *("bytes", "owner", "maker", "parent"),
    *("computed", "register", "call", "forward", "backward", "output", "gradient"),
)


class Annealer:
    """The compiled program.

    Raises:
        FileNotFoundError: there is no C compiler, or none of the name that the variable CC has.
    """

    def __init__(self) -> None:
        compiler = os.environ.get("CC", "cc")
        if shutil.which(compiler) is None:
            raise FileNotFoundError(f"needs a C compiler, but there is no {compiler!r}; name one by CC=...")
        self._folder = TemporaryDirectory()
        self._program = Path(self._folder.name) / "anneal"
        command = [compiler, "-O2", "-std=c11", str(SOURCE), "-o", str(self._program), "-lm"]
        subprocess.run(command, check=True)

    def improved(
        self, instance: Instance, limit_bytes: int, saved: Iterable[int], steps: int, seed: int = 1
    ) -> tuple[int, int, list[int]]:
        """Looks for a plan that costs less than a given one, with a peak within the limit.

        Args:
            instance: with its "memory".
            limit_bytes: of the peak.
            saved: positions of what the first plan saves.
            steps: how many plans to look at; none: only the first.
            seed: of the chances; the same steps and seed find the same plan.

        Returns:
            the cost of the best plan, its peak in bytes, and the positions of what it saves.

        Raises:
            subprocess.CalledProcessError: the first plan saves, or recomputes, what it may not.
        """
        numbers = " ".join(map(str, _numbers(instance, limit_bytes, set(saved), steps, seed)))
        done = subprocess.run([self._program], input=numbers, capture_output=True, text=True, check=True)
        cost, peak, *found = map(int, done.stdout.split())
        return cost, peak, found


def _numbers(instance: Instance, limit_bytes: int, saved: set[int], steps: int, seed: int) -> Iterable[int]:
    """What `anneal.c` reads, in its order."""
    memory: Any = instance.memory
    yield from (limit_bytes, steps, seed)
    yield from (instance.n, memory.size, len(instance.uses), len(memory.uses), memory.turn)
    columns = (instance.save_cost, instance.recompute_cost, instance.needed, instance.cannot_save)
    for v, row in enumerate(zip(*columns, instance.cannot_recompute, memory.node, strict=True)):
        yield from (*row, int(v in saved))
    for use in instance.uses:
        yield from use
    for row in zip(*(getattr(memory, key) for key in _NODES), strict=True):
        yield from row
    barred = set(memory.barred)
    for use in memory.uses:
        yield from (*use, int(use not in barred))
