"""Shows the traceback of an error in a user's model with the user's lines only."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from traceback import FrameSummary, StackSummary, extract_tb, format_exception_only

_REMAT = Path(__file__).parents[1]

# The functions (file, name) in which `remat` imports a user's module, calls the factory, and runs the model.
_HANDS_OVER = {("inputs.py", "load_factory"), ("inputs.py", "build"), ("capture.py", "call")}
# The most lines of a message to show.
_LINES = 5


def users_traceback(error: Exception) -> str | None:
    """Formats an error like Python, but with only the user's lines; returns None for an error of `remat` itself.

    It is the user's error if `remat` had called the user's code, and that code had not called `remat` again.
    """
    failed, frames = _traced(error) or (error, extract_tb(error.__traceback__))
    handed_over = [i for i, frame in enumerate(frames) if _hands_over(frame)]
    if not handed_over:
        return None
    theirs = frames[handed_over[-1] + 1 :]
    if any(Path(frame.filename).is_relative_to(_REMAT) for frame in theirs):
        return None
    lines = "".join(format_exception_only(failed)).strip().splitlines()
    rest = [f"... and {len(lines) - _LINES} lines more"] if len(lines) > _LINES else []
    shown = StackSummary.from_list([frame for frame in theirs if not _is_hidden(frame)])
    return "\n".join(
        ["error: the model or its factory failed", *"".join(shown.format()).splitlines(), *lines[:_LINES], *rest]
    )


def _traced(error: Exception) -> tuple[BaseException, StackSummary] | None:
    if "torch" not in sys.modules:
        return None
    from remat.pytorch.seam.compilations import traced_error

    return traced_error(error)


def _hands_over(frame: FrameSummary) -> bool:
    path = Path(frame.filename)
    return path.is_relative_to(_REMAT) and (path.name, frame.name) in _HANDS_OVER


def _is_hidden(frame: FrameSummary) -> bool:
    parts = Path(frame.filename).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return "torch" in parts
    return frame.filename.startswith("<frozen ") or Path(frame.filename).is_relative_to(sysconfig.get_path("stdlib"))
