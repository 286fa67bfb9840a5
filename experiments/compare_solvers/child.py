"""Solves a case in a process that can be killed: `python -m experiments.compare_solvers.child`.

It reads a pickled `SolverCase` from standard input and writes a line of JSON after each step (`solving.steps`).
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading

from experiments.compare_solvers.solving import steps


def main() -> None:
    """Reads a case from standard input, solves it, and prints a line for each step."""
    # What a solver prints, from C++ too, must not come between our lines.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    case = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for message in steps(case):
        print(json.dumps(message), file=lines, flush=True)


def _end_with_parent() -> None:
    """Waits until standard input ends, as it does when whoever started this dies; then kills this and CBC with it."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
