"""Times a newcomer's way: from an empty environment to the first report of memory saved on their own model.

`python -m experiments.bench.newcomer` builds the wheel, makes an environment outside the clone, installs the wheel with
what it needs to plan, prove and run, and runs a script of ten lines there, with nothing compiled before. Network and
machine decide how long it takes, so this is a measurement and no test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.report.markdown import cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import write_results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"

SCRIPT = """\
import torch
from torch import nn

import remat
from costmodels import MemoryBudget

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, batch_first=True), 4)
step = remat.compile(model, cost_model=MemoryBudget(0.5))
step(torch.randn(8, 128, 256)).square().mean().backward()
print(step.report())
"""


def main() -> None:
    """Times each part, and writes `newcomer.json` and `.md` into the folder of results."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        script = place / "mine.py"
        script.write_text(SCRIPT)
        _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)])
        (wheel,) = place.glob("remat-*.whl")
        python = str(place / "env" / "bin" / "python")
        install = [python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{wheel}[all]"]
        seconds: dict[str, float] = {}
        _, seconds["an empty environment"] = _timed(lambda: _run([sys.executable, "-m", "venv", str(place / "env")]))
        _, seconds["pip install of the wheel"] = _timed(lambda: _run(install))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / "cache")  # nothing is compiled yet
        report, seconds["the script, to its report"] = _timed(lambda: _run([python, str(script)], place))
    lines = len([line for line in SCRIPT.splitlines() if line])
    document = {"provenance": provenance(gpu=False), "seconds": seconds, "lines": lines, "report": report}
    write_results(RESULTS / "newcomer.json", document, text := markdown(document))
    print(text)


def _timed(call: Callable[[], str]) -> tuple[str, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def _run(command: list[str], folder: Path | None = None) -> str:
    """Runs a command that does not see this clone; returns what it prints."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=clean, check=True, stdout=subprocess.PIPE, text=True).stdout


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: seconds of each part, the script and what it printed."""
    seconds: dict[str, float] = document["seconds"]
    rows = [*seconds.items(), ("in all", sum(seconds.values()))]
    return page(
        "A newcomer's first report",
        "From an empty environment, outside the clone, to the first report of memory saved, "
        f"in {document['lines']} lines of Python.",
        f"{cited(document['provenance'], 'experiments.bench.newcomer')}.",
        table(("part", "seconds"), [(what, f"{taken:.0f}") for what, taken in rows]),
        section("The script", f"```python\n{SCRIPT}```"),
        section("What it printed", f"```text\n{document['report']}```"),
    )


if __name__ == "__main__":
    main()
