"""Defines a predicted kernel: what it computes and how many bytes it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """Describes one launch: a generated kernel, or the call of a library or of an eager operator.

    Attributes:
        generated: whether the compiler writes it; otherwise it is a call, such as a matrix product.
        values: sorted positions in the graph of the values that it computes. Every kernel that reads an inlined value
            computes it; only its own call computes a product. A copy into another layout computes none.
        reads, writes: positions of the storages (their base values) that it reads from and writes to memory, each once.
        read_bytes, written_bytes: bytes of `reads` and `writes`. A buffer that is both read and written is in `writes`.
    """

    backward: bool
    generated: bool
    values: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    read_bytes: int
    written_bytes: int

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes
