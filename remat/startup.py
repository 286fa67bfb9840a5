"""Has Ctrl-C end the `remat` command with one line while its imports run, which take up to a second.

`remat` imports this module before all others. It does nothing where `remat` is imported by another program.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def _is_the_command() -> bool:
    """Says whether this process is `remat`, or `python -m remat`, of which argv[0] is "-m" until it is imported."""
    program, words = sys.argv[:1], sys.orig_argv
    if program == ["-m"]:
        return words[words.index("-m") + 1 :][:1] == ["remat"]
    return bool(program) and Path(program[0]).stem == "remat"


def _leave(*_: object) -> None:
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(130)  # an exception would be shown as the failure of an import


def leave_ctrl_c_to_commands() -> None:
    """Gives Ctrl-C back to Python, once the command can answer it."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)
