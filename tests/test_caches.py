"""torch's caches: the same settings hit in another process, other settings never do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
import torch
import remat
from costmodels import ByteTraffic
from remat.pytorch import Partitioner
from torch._dynamo.utils import counters

torch.manual_seed(0)
# Products alone: no kernel has to be compiled.
model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
called = []
original = Partitioner._plan
Partitioner._plan = lambda self, *given: called.append(1) or original(self, *given)
found = []
for settings in sys.argv[1:]:
    mode, solver = settings.split()
    torch.compiler.reset()
    counters.clear()
    called.clear()
    remat.compile(model, cost_model=ByteTraffic(mode=mode), solver=solver)(torch.randn(4, 8)).sum().backward()
    hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    found.append({"hits": hits, "plans": len(called)})
print(json.dumps(found))
"""


def run(cache: Path, *settings: str) -> list[dict[str, int]]:
    """What a process of its own finds with some settings, one after the other."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", PROGRAM, *settings]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def test_the_same_settings_hit_and_others_never_do(tmp_path: Path) -> None:
    assert run(tmp_path, "conservative ortools") == [{"hits": 0, "plans": 1}]
    again, *others = run(tmp_path, "conservative ortools", "aggressive ortools", "conservative scipy")
    assert again["hits"] >= 1
    assert again["plans"] == 0, "answered from the cache, without solving"
    assert [other["plans"] for other in others] == [1, 1]
