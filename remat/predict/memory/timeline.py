"""Defines the timeline of a plan, which a simulation of live bytes returns."""

# pandas ships partial types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from remat.errors import RematError
from remat.facts.columns import BoolArray, IntArray
from remat.words import cut, human_bytes, placed, wrapped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Why: TypeAlias = Literal["output", "saved", "gradient", "offloaded", "transient"]
"""Why a storage is alive. Of several reasons, the first one in this list counts: saving an output is free."""

WHYS: tuple[Why, ...] = get_args(Why)

_SHOWN = 8

# Characters of a line that is indented by two; a longer line with the place of a value becomes two.
_WIDTH = 78


@dataclass(frozen=True)
class LiveTensor:
    """Represents a storage that is alive at some step.

    Attributes:
        name: the value that owns it; its views are alive with it.
        why: "output": the caller holds it; "saved": kept for the backward pass; "gradient": returned by the backward
            pass; "offloaded": not yet on the host, or back from it; "transient": a later step of the same pass reads
            it.
        backward: whether it was allocated in the backward pass.
        place: the line of the model that computes the value (`remat.Graph.places`).
    """

    name: str
    bytes: int
    why: Why
    backward: bool
    place: str = ""

    def __str__(self) -> str:
        line = f"{human_bytes(self.bytes):>10}  {self.why:<9}  "
        whole = line + placed(self.name, self.place)
        return whole if len(whole) <= _WIDTH else f"{line}{self.name}\n{'':8}{cut(self.place, _WIDTH - 8)}"


def listed_tensors(tensors: Sequence[LiveTensor], most: int) -> list[str]:
    """Returns a line for each of the first `most` tensors, and one line for all others."""
    lines = [f"  {tensor}" for tensor in tensors[:most]]
    if rest := tensors[most:]:
        lines.append(f"  {human_bytes(sum(tensor.bytes for tensor in rest)):>10}  in {len(rest)} more")
    return lines


@dataclass(frozen=True, eq=False)
class Timeline:
    """Holds live bytes over the T steps of a training step under one plan: see `remat.predict.memory` for the model.

    A step computes one value or, of compiled code, is one launch; those of the forward pass come first.

    Attributes:
        names, ops: the value that each step computes, and its operator. For a step that copies: the copied value, and
            "copied to the host" or "copied back"; with a copy stream, which of these "begins" or "ends".
        backward: (T,) whether the step belongs to the backward pass.
        during_bytes: (T,) live bytes while the step runs, with its operands and results.
        after_bytes: (T,) live bytes after the step, when all dead storages are freed.
        by_why: `during_bytes` split by the reasons of `WHYS`, each (T,).
        saved_bytes: bytes of the storages that the forward pass saves for the backward pass.
        at_forward_end: live bytes between the passes: saved values, and outputs that the caller holds.
        peak_step: the first step with the most live bytes; -1 if there are no steps.
        peak_tensors: the storages that are alive during it, the largest first.
        peak_place: the line of the model that computes the value of that step (`remat.Graph.places`).
    """

    names: tuple[str, ...]
    ops: tuple[str, ...]
    backward: BoolArray
    during_bytes: IntArray
    after_bytes: IntArray
    by_why: Mapping[Why, IntArray]
    saved_bytes: int
    at_forward_end: int
    peak_step: int
    peak_tensors: tuple[LiveTensor, ...]
    peak_place: str = ""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def peak_bytes(self) -> int:
        """Returns the most bytes that are alive at once."""
        return int(self.during_bytes.max(initial=0))

    @property
    def forward_peak_bytes(self) -> int:
        """Returns the most bytes that are alive at once during the forward pass."""
        return int(self.during_bytes[~self.backward].max(initial=0))

    @property
    def backward_peak_bytes(self) -> int:
        """Returns the most bytes that are alive at once during the backward pass."""
        return int(self.during_bytes[self.backward].max(initial=0))

    @property
    def forward_steps(self) -> int:
        """Returns the number of steps of the forward pass."""
        return int((~self.backward).sum())

    def __repr__(self) -> str:
        steps = f"{self.forward_steps} forward + {len(self) - self.forward_steps} backward steps"
        return f"<Timeline: {steps}, peak {human_bytes(self.peak_bytes)}, {human_bytes(self.saved_bytes)} saved>"

    def __str__(self) -> str:
        lines = [
            f"forward pass: {self.forward_steps} steps, peak {human_bytes(self.forward_peak_bytes)}, "
            f"{human_bytes(self.at_forward_end)} at its end, {human_bytes(self.saved_bytes)} of them saved",
            f"backward pass: {len(self) - self.forward_steps} steps, peak {human_bytes(self.backward_peak_bytes)}",
        ]
        if self.peak_step < 0:
            return "\n".join(lines)
        where = "backward" if self.backward[self.peak_step] else "forward"
        what = placed(self.names[self.peak_step], self.ops[self.peak_step])
        peak = f"peak: {human_bytes(self.peak_bytes)} at step {self.peak_step},"
        lines += wrapped(peak, f"{what} of the {where} pass,", between=" ")
        lines += [f"  {cut(self.peak_place, _WIDTH)},"] if self.peak_place else []
        lines.append(f"  where {len(self.peak_tensors)} storages are alive:")
        return "\n".join([*lines, *listed_tensors(self.peak_tensors, _SHOWN)])

    def as_frame(self) -> pd.DataFrame:
        """Returns one row per step: name, op, backward, during_bytes, after_bytes, and the bytes by reason (`WHYS`)."""
        import pandas as pd

        columns = {"name": self.names, "op": self.ops, "backward": self.backward}
        bytes_ = {"during_bytes": self.during_bytes, "after_bytes": self.after_bytes}
        return pd.DataFrame({**columns, **bytes_, **{f"{why}_bytes": self.by_why[why] for why in WHYS}})

    def show(self, path: str | Path | None = None) -> Figure:
        """Draws the live bytes of each step, stacked by reason; marks the peak and the start of the backward pass.

        Args:
            path: a file to write, in the format of its suffix: .svg, .png, .pdf.

        Returns:
            the figure; notebooks display it.

        Raises:
            NotInstalled: matplotlib is missing.
            InvalidOption: matplotlib has no format of that suffix.
            RematError: the timeline has no steps.
        """
        from remat.predict.memory.memory_picture import draw

        if not len(self):
            raise RematError("a timeline without steps cannot be drawn: neither pass computes anything")
        return draw(self.names, {why: self.by_why[why] for why in WHYS}, self.forward_steps, self.peak_step, path)
