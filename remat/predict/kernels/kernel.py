"""Describes a kernel by what it computes and by the memory traffic that it causes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """Describes one launch: a generated kernel, or the call of a library or of an eager operator.

    Attributes:
        generated: whether the compiler writes it; otherwise it is a call, such as a matrix product.
        values: positions in the graph of what it computes, in order. A value that is inlined is computed
            by every kernel that reads it, but a product by its call alone. A copy into another layout computes none.
        reads, writes: positions of what it reads from and writes to memory, each once: the base of a storage.
        read_bytes, written_bytes: the bytes of these. A buffer that is both read and written counts as written.
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
        """Returns the bytes that it reads and writes."""
        return self.read_bytes + self.written_bytes
