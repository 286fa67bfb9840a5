"""Makes Ctrl-C end the `remat` command with one line during its imports, which take up to a second.

`remat` imports this module first. It does nothing if another program imports `remat`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


# During the imports of `python -m remat`, argv[0] is "-m".
def _is_the_command() -> bool:
    program, words = sys.argv[:1], sys.orig_argv
    if program == ["-m"]:
        return words[words.index("-m") + 1 :][:1] == ["remat"]
    return bool(program) and Path(program[0]).stem == "remat"


def _leave(*_: object) -> None:
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(130)  # an exception would look like a failed import


def leave_ctrl_c_to_commands() -> None:
    """Restores Python's handler of Ctrl-C, once the command can handle it."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)
