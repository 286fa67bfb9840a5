"""Records where a result comes from; the record is committed beside every figure."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("remat", "torch", "triton", "numpy", "networkx", "ortools", "scipy", "pulp")


def provenance() -> dict[str, str]:
    """Collects commit, date, command, machine and versions of this run."""
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {_cores()} cores, {_device()}",
        "python": platform.python_version(),
        **{package: version_of(package) for package in _PACKAGES},
    }


_RESULTS = (":(top,exclude)experiments/results", ":(top,exclude)experiments/instances")
"""Experiments write these files: that they changed says nothing about the code that wrote them."""


def _commit() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", *_RESULTS)
    return f"{commit}-dirty" if commit and changed else commit or "unknown"


def _git(*command: str) -> str:
    here = Path(__file__).parent  # a worker of a cluster may run anywhere
    return subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=False).stdout.strip()


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec is not None else sys.argv[0]


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def version_of(package: str) -> str:
    """Says which version of a package is installed, if any is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
