"""Says where results come from: what was run, at which commit, on what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remat.views.report.section import Provenance, Row

_FIRST = ("run", "model", "commit", "date", "command", "device", "torch")
"""What is shown before the rest."""

_DIRTY = "-dirty"
_NO_GPU = "no GPU"


def separated(runs: Sequence[Provenance]) -> tuple[dict[str, str], tuple[Row, ...]]:
    """Separates what all runs have in common from what differs.

    Returns:
        facts by name; and a row for each run, none if there is one run, or all are alike.
    """
    facts = [_ordered(run) for run in runs]
    keys = list(dict.fromkeys(key for run in facts for key in run))
    common = {key: facts[0][key] for key in keys if len({run.get(key) for run in facts}) == 1}
    differing = [{key: run.get(key) for key in keys if key not in common} for run in facts]
    return common, tuple(differing) if len(common) < len(keys) else ()


def strings(document: Mapping[str, Any]) -> Provenance:
    """Makes a provenance of what a file says: its plain values as text."""
    return {str(key): str(value) for key, value in document.items() if value not in (None, "")}


def device(run: Provenance) -> str:
    """Says what a run used: "CPU", the name of a GPU, or "" where that is not known.

    A machine is written as "x86_64, 2 cores, NVIDIA H200"; without a GPU, or where none was looked for, less follows.
    """
    machine = run.get("machine", "")
    if run.get("device", "").lower() == "cpu":
        return "CPU"
    if run.get("device") or not machine:
        return run.get("device", "")
    parts = machine.split(", ", 2)
    return "CPU" if len(parts) < 3 or parts[2] == _NO_GPU else parts[2]


def devices(runs: Iterable[Provenance]) -> str:
    """Names the devices of all runs, each once."""
    return ", ".join(dict.fromkeys(found for run in runs if (found := device(run))))


def is_dirty(runs: Iterable[Provenance]) -> bool:
    """Says whether a run used code that no commit holds."""
    return any(run.get("commit", "").endswith(_DIRTY) for run in runs)


def _ordered(run: Provenance) -> dict[str, str]:
    facts = dict(run)
    if found := device(run):
        facts["device"] = found
    if facts.get("commit", "").endswith(_DIRTY):
        facts["commit"] += " (uncommitted changes)"
    first = {key: facts[key] for key in _FIRST if key in facts}
    return first | facts
