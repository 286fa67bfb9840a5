"""Runs a module in an environment of its own, which is made on the first call and kept; says why where that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"


def run_in(name: str, requirements: list[str], module: str, *arguments: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Runs `python -m module arguments` of this repository in the environment `name`.

    Args:
        name: of the environment; a folder under `folder`.
        requirements: what pip installs there.
        module: prints JSON, an object, as its last line.
        arguments: of the module.
        folder: where the environments are.

    Returns:
        what the module prints; or {"skipped": the reason} if it cannot be installed or does not run.
    """
    python = folder / name / "bin" / "python"
    done = folder / name / "installed.json"
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder / name)],
        [str(python), "-m", "pip", "install", "--quiet", *requirements],
    ]
    if done.exists() and json.loads(done.read_text()) == requirements:
        steps = []
    for step in steps:
        if reason := _failure(_run(step)):
            return {"skipped": f"pip does not install {', '.join(requirements)}: {reason}"}
    if steps:
        done.write_text(json.dumps(requirements))
    ran = _run([str(python), "-m", module, *arguments])
    return {"skipped": f"{module} fails: {reason}"} if (reason := _failure(ran)) else json.loads(_last(ran.stdout))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _failure(ran: subprocess.CompletedProcess[str]) -> str:
    return (_last(ran.stderr) or f"exit status {ran.returncode}") if ran.returncode else ""


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
