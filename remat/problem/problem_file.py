"""The file format of `Problem`: one JSON object of plain numbers, so that a solver needs nothing of ours to read it.

    {"format": "remat.problem", "version": 1, "name": "...", "about": {...}, "unit": "ns",
     "reasons": ["an input of the graph", ...],
     "values": {"name": [...], "save_cost": [...], "recompute_cost": [...], "save_bytes": [...],
                "needed": [0, 1, ...], "cannot_save": [0, 2, ...], "cannot_recompute": [1, 0, ...]},
     "uses": {"producer": [...], "consumer": [...]},
     "budgets": [{"name": "saved-0.5", "of": "saved", "bytes": 1048576}, ...]}

docs/benchmark.md says what each field means. A ban is 0 for none, or the number of its reason, counted from 1. The
instances of the benchmark have "memory", too (`remat.predict.memory.stated`), and budgets of the peak.

Where values can be offloaded, the version is 2. Then "values" has "offload_cost" and "cannot_offload", too, and there
is an empty object "host_budgets".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from remat.errors import InvalidOption, InvalidProblem, UnsupportedProblem
from remat.facts.bans import Bans
from remat.facts.columns import int_column
from remat.facts.json_file import read_document
from remat.problem.offload import Offload
from remat.words import near

if TYPE_CHECKING:
    from remat.problem.problem import Problem

FORMAT = "remat.problem"
VERSION = 1
VERSION_WITH_HOST = 2

_NUMBERS = ("save_cost", "recompute_cost", "save_bytes", "needed")
_BANS = ("cannot_save", "cannot_recompute")


@dataclass(frozen=True)
class Budget:
    """A limit on memory that a file names.

    Attributes:
        name: "saved-0.5": what a solution says that it keeps.
        of: "saved": the sum of `save_bytes` over what is saved; "peak": the most bytes alive at once.
        bytes: the most there may be.
    """

    name: str
    of: str
    bytes: int


def problem_document(
    problem: Problem,
    *,
    name: str = "",
    unit: str = "",
    remarks: Mapping[str, str] | None = None,
    budgets: Iterable[Budget] | None = None,
    memory: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Puts a problem into the form of its file. Its signature and its places are left out: no answer depends on them.

    Args:
        problem: what to write.
        name: of the instance.
        unit: of the prices.
        about: where the problem comes from.
        budgets: limits to choose from; the one of the problem, if any, when left out.
        memory: what a simulation of the peak needs (`remat.predict.memory.stated`).
    """
    offload = problem.offload
    if budgets is None:
        budgets = [] if problem.budget_bytes is None else [Budget("saved", "saved", problem.budget_bytes)]
    bans = {label: cast(Bans, getattr(problem, label)) for label in _BANS}
    host: dict[str, Any] = {}
    if offload is not None:
        bans["cannot_offload"] = offload.banned
        host = {"host_budgets": {}}
    reasons = list(dict.fromkeys(reason for ban in bans.values() for reason, _ in ban.by_reason(ban.mask)))
    codes = {
        label: [0, *(reasons.index(r) + 1 if r in reasons else 0 for r in ban.reasons)] for label, ban in bans.items()
    }
    values: dict[str, Any] = {
        "name": list(problem.names),
        **{label: getattr(problem, label).astype(int).tolist() for label in _NUMBERS},
        **{label: np.array(codes[label])[ban.codes].tolist() for label, ban in bans.items()},
        **({} if offload is None else {"offload_cost": offload.cost.tolist()}),
    }
    return {
        "format": FORMAT,
        "version": VERSION if offload is None else VERSION_WITH_HOST,
        "name": name,
        "about": dict(remarks or {}),
        "unit": unit,
        "reasons": reasons,
        "values": values,
        "uses": {"producer": problem.producers.tolist(), "consumer": problem.consumers.tolist()},
        "budgets": [asdict(budget) for budget in budgets],
        **host,
        **({} if memory is None else {"memory": memory}),
    }


def read_columns(path: Path, budget: str | None) -> dict[str, Any]:
    """Reads the columns of a problem, by the names of its attributes. What they hold is checked by `remat.Problem`.

    Args:
        path: the file, gzipped or not.
        budget: the name of a budget, or "none"; may be left out where the file has one at most.

    Raises:
        InvalidProblem: it is no problem file, or a column is missing.
        InvalidOption: the file has no such budget, or several and none was named.
        UnsupportedProblem: it is a budget of the peak.
    """
    document = read_document(path, FORMAT, InvalidProblem)
    try:
        return _columns(document) | {"budget_bytes": _budget_bytes(document, budget)}
    except (InvalidProblem, InvalidOption, UnsupportedProblem) as error:
        raise type(error)(f"{path}: {error}") from None


def _columns(document: Mapping[str, Any]) -> dict[str, Any]:
    version = document.get("version")
    if version not in (VERSION, VERSION_WITH_HOST):
        raise InvalidProblem(
            f"version {version!r}, but this remat reads {VERSION} and {VERSION_WITH_HOST}; upgrade remat"
        )
    values, uses = _table(document, "values"), _table(document, "uses")
    reasons = tuple(_column(document, "reasons"))
    return {
        "offload": _offload(document, values, reasons) if version == VERSION_WITH_HOST else None,
        "names": tuple(_column(values, "name", "values")),
        **{label: _column(values, label, "values") for label in _NUMBERS},
        "producers": _column(uses, "producer", "uses"),
        "consumers": _column(uses, "consumer", "uses"),
        **{label: _bans(values, label, reasons) for label in _BANS},
    }


def _offload(document: Mapping[str, Any], values: Mapping[str, Any], reasons: tuple[str, ...]) -> Offload:
    if budgets := _table(document, "host_budgets"):
        raise InvalidProblem(f'"host_budgets" must be empty: no solver limits what is offloaded, got {budgets!r}')
    banned = _bans(values, "cannot_offload", reasons)
    costs = int_column("values.offload_cost", _column(values, "offload_cost", "values"), len(banned), InvalidProblem)
    return Offload(costs, banned)


def _bans(values: Mapping[str, Any], label: str, reasons: tuple[str, ...]) -> Bans:
    return Bans(cast(Any, _column(values, label, "values")), reasons)


def _budget_bytes(document: Mapping[str, Any], name: str | None) -> int | None:
    budgets = _column(document, "budgets")
    if not all(isinstance(one, dict) and {"name", "of", "bytes"} <= one.keys() for one in budgets):
        raise InvalidProblem('"budgets" must hold objects with "name", "of" and "bytes"')
    known = {str(one["name"]): one for one in budgets}
    if name == "none" or (name is None and not known):
        return None
    if name is None and len(known) > 1:
        raise InvalidOption(f'there are several budgets: name one of {", ".join(known)}, or "none"')
    chosen = next(iter(known)) if name is None else name
    if chosen not in known:
        raise InvalidOption(
            f"no budget is named {chosen!r}{near(chosen, known)}; there are: {', '.join(known) or 'none'}"
        )
    if known[chosen]["of"] != "saved":
        raise UnsupportedProblem(
            f"budget {chosen!r} limits the peak, which is no sum over saved values, so that no Problem can state it"
        )
    return known[chosen]["bytes"]


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = document.get(key)
    if not isinstance(table, dict):
        raise InvalidProblem(f'"{key}" must be an object, got {type(table).__name__}')
    return cast(dict[str, Any], table)


def _column(table: Mapping[str, Any], key: str, where: str = "") -> list[Any]:
    column = table.get(key)
    if not isinstance(column, list):
        label = f"{where}.{key}" if where else key
        raise InvalidProblem(f'"{label}" must be a list, got {type(column).__name__}')
    return cast(list[Any], column)
