"""Under torch.distributed all ranks use one plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_two_ranks_that_would_choose_differently_save_the_same() -> None:
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(Path(__file__).with_name("two_ranks.py")),
    ]
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = json.loads(run.stdout.splitlines()[-1])
    assert first["would_save"] != second["would_save"]
    assert first["saved_bytes"] == second["saved_bytes"]
