"""Reads and writes the file format of `Problem`: one JSON object of plain numbers, which any solver can read.

    {"format": "remat.problem", "version": 1, "name": "...", "about": {...}, "unit": "ns",
     "reasons": ["an input of the graph", ...],
     "values": {"name": [...], "save_cost": [...], "recompute_cost": [...], "save_bytes": [...],
                "needed": [0, 1, ...], "cannot_save": [0, 2, ...], "cannot_recompute": [1, 0, ...]},
     "uses": {"producer": [...], "consumer": [...]},
     "budgets": [{"name": "saved-0.5", "of": "saved", "bytes": 1048576}, ...]}

docs/benchmark.md defines each field. A ban is 0 for none, or the number of its reason, counted from 1. Instances of the
benchmark also have "memory" (`remat.predict.memory.memory_export`) and budgets of the peak. If values can be offloaded,
the version is 2, "values" also has "offload_cost" and "cannot_offload", and there is an empty object "host_budgets". If
some values have budgets of their own, the version is 3, and each is an object in "rows": its "name", its "values" as 0
and 1, and its "bytes".
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
from remat.facts.json_file import column_in, read_document, table_in
from remat.problem.budget_row import BudgetRow
from remat.problem.offload import Offload
from remat.words import near_of

if TYPE_CHECKING:
    from remat.problem.problem import Problem

FORMAT = "remat.problem"
VERSION = 1
VERSION_WITH_HOST = 2
VERSION_WITH_ROWS = 3

_NUMBERS = ("save_cost", "recompute_cost", "save_bytes", "needed")
_BANS = ("cannot_save", "cannot_recompute")


@dataclass(frozen=True)
class Budget:
    """Describes a named memory limit in the file of a problem.

    Attributes:
        name: such as "saved-0.5"; a solution file refers to its budget by this name.
        of: "saved" limits the sum of `save_bytes` over the saved values; "peak" limits the live bytes.
        bytes: the limit.
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
    """Returns a problem as the JSON object of its file, without signature and places, which only messages use.

    Args:
        remarks: the origin of the problem, by keywords.
        budgets: the limits to choose from; by default the problem's, if it has one.
        memory: what a simulation of the peak needs (`remat.predict.memory.memory_export`).
    """
    offload = problem.offload
    if budgets is None:
        budgets = [] if problem.budget_bytes is None else [Budget("saved", "saved", problem.budget_bytes)]
    bans = {label: cast(Bans, getattr(problem, label)) for label in _BANS}
    host: dict[str, Any] = {}
    rows = [{"name": row.name, "values": row.values.astype(int).tolist(), "bytes": row.bytes} for row in problem.rows]
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
        "version": VERSION_WITH_ROWS if rows else VERSION if offload is None else VERSION_WITH_HOST,
        "name": name,
        "about": dict(remarks or {}),
        "unit": unit,
        "reasons": reasons,
        "values": values,
        "uses": {"producer": problem.producers.tolist(), "consumer": problem.consumers.tolist()},
        "budgets": [asdict(budget) for budget in budgets],
        **host,
        **({"rows": rows} if rows else {}),
        **({} if memory is None else {"memory": memory}),
    }


def read_columns(path: Path, budget: str | None) -> dict[str, Any]:
    """Reads the columns of a problem, by the names of its attributes; errors are those of `Problem.load`.

    The constructor of `remat.Problem` checks the contents of the columns.
    """
    document = read_document(path, FORMAT, InvalidProblem)
    try:
        return _columns(document) | {"budget_bytes": _budget_bytes(document, budget)}
    except (InvalidProblem, InvalidOption, UnsupportedProblem) as error:
        raise type(error)(f"{path}: {error}") from None


def _columns(document: Mapping[str, Any]) -> dict[str, Any]:
    version = document.get("version")
    if version not in (VERSION, VERSION_WITH_HOST, VERSION_WITH_ROWS):
        raise InvalidProblem(f"version {version!r}, but this remat reads 1 to {VERSION_WITH_ROWS}; upgrade remat")
    values, uses = (table_in(document, key, InvalidProblem) for key in ("values", "uses"))
    reasons = tuple(column_in(document, "reasons", InvalidProblem))
    if "rows" in document and version != VERSION_WITH_ROWS:
        raise InvalidProblem(f'"rows" need version {VERSION_WITH_ROWS}, got version {version}')
    rows = column_in(document, "rows", InvalidProblem) if version == VERSION_WITH_ROWS else []
    if not all(isinstance(row, dict) and row.keys() == {"name", "values", "bytes"} for row in rows):
        raise InvalidProblem('"rows" must hold objects with "name", "values" and "bytes"')
    has_host = version == VERSION_WITH_HOST or (version == VERSION_WITH_ROWS and "host_budgets" in document)
    return {
        "offload": _offload(document, values, reasons) if has_host else None,
        "rows": tuple(BudgetRow(**row) for row in rows),
        "names": tuple(column_in(values, "name", InvalidProblem, "values")),
        **{label: column_in(values, label, InvalidProblem, "values") for label in _NUMBERS},
        "producers": column_in(uses, "producer", InvalidProblem, "uses"),
        "consumers": column_in(uses, "consumer", InvalidProblem, "uses"),
        **{label: _bans(values, label, reasons) for label in _BANS},
    }


def _offload(document: Mapping[str, Any], values: Mapping[str, Any], reasons: tuple[str, ...]) -> Offload:
    if budgets := table_in(document, "host_budgets", InvalidProblem):
        raise InvalidProblem(f'"host_budgets" must be empty: no solver limits what is offloaded, got {budgets!r}')
    banned = _bans(values, "cannot_offload", reasons)
    costs = int_column(
        "values.offload_cost", column_in(values, "offload_cost", InvalidProblem, "values"), len(banned), InvalidProblem
    )
    return Offload(costs, banned)


def _bans(values: Mapping[str, Any], label: str, reasons: tuple[str, ...]) -> Bans:
    return Bans(cast(Any, column_in(values, label, InvalidProblem, "values")), reasons)


def _budget_bytes(document: Mapping[str, Any], name: str | None) -> int | None:
    budgets = column_in(document, "budgets", InvalidProblem)
    if not all(isinstance(budget, dict) and {"name", "of", "bytes"} <= budget.keys() for budget in budgets):
        raise InvalidProblem('"budgets" must hold objects with "name", "of" and "bytes"')
    by_name = {str(budget["name"]): budget for budget in budgets}
    if name == "none" or (name is None and not by_name):
        return None
    if name is None and len(by_name) > 1:
        raise InvalidOption(f'there are several budgets: name one of {", ".join(by_name)}, or "none"')
    label = next(iter(by_name)) if name is None else name
    if label not in by_name:
        raise InvalidOption(f"no budget is named {label!r}{near_of(label, by_name)}")
    if by_name[label]["of"] != "saved":
        raise UnsupportedProblem(f"a Problem cannot hold budget {label!r}: it limits the peak, not saved bytes")
    return by_name[label]["bytes"]
