"""Reads the corpus: joint graphs of published models, as files with an index.

`python -m experiments.corpus` writes it into `experiments/instances` of the repository. `remat/facts/instances` is a
link to that folder; an installed package has the files there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from remat.errors import InvalidGraph, NotInstalled, UnknownName
from remat.facts.argument_checks import checked_path
from remat.facts.graph import Graph
from remat.words import near

INDEX = "index.json"
FORMAT = "remat.corpus"

_FOLDER = Path(__file__).parent / "instances"
_WHERE = (
    "it comes with remat; where its files are left out, take experiments/instances of the source repository, "
    "and name that folder (--folder, or Corpus.open(folder))"
)


@dataclass(frozen=True)
class Entry:
    """Describes one instance of the corpus.

    Attributes:
        name: the name of the instance; its file is `<name>.json.gz`.
        family: "transformer", "convolution", "diffusion", "recurrent", "acquisition" or "small".
        model, sizes: the model in words, and the sizes of the model and its inputs.
        dtype: the element type of the parameters.
        cite: the publication of the model; "" for small models of this project.
        values, uses: the numbers of values (nodes) and uses (edges) of the graph.
        no_recompute_saved_bytes: what the forward pass saves if nothing runs twice.
        file_bytes, sha256: size and hash of the file.
    """

    name: str
    family: str
    model: str
    sizes: str
    dtype: str
    cite: str
    values: int
    uses: int
    no_recompute_saved_bytes: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """Reads the graphs of a folder by name.

    Attributes:
        folder: the folder.
        entries: the entries of its index, in order.
    """

    folder: Path
    entries: tuple[Entry, ...]

    @classmethod
    def open(cls, folder: str | Path | None = None) -> Corpus:
        """Reads the index of a folder; by default, of the corpus that comes with remat.

        Raises:
            NotInstalled: there is no corpus; the message says where to get it.
            InvalidGraph: the index is damaged.
        """
        place = _FOLDER if folder is None else checked_path(folder)
        path = place / INDEX
        if not path.is_file():
            raise NotInstalled(f"no corpus in {place} (there is no {INDEX}): {_WHERE}")
        return cls(place, tuple(_entry(path, row) for row in _rows(path)))

    def entry(self, name: str) -> Entry:
        """Returns the index entry of an instance.

        Raises:
            UnknownName: no instance has this name.
        """
        by_name = {entry.name: entry for entry in self.entries}
        if name not in by_name:
            hint = near(name, by_name) or "; `remat corpus list` names all"
            raise UnknownName(f"the corpus has no {name!r}{hint}")
        return by_name[name]

    def path(self, name: str) -> Path:
        """Returns the path of an instance's file, after a comparison of its hash with the index.

        Raises:
            UnknownName: no instance has this name.
            InvalidGraph: the file is missing, or is not the indexed one.
        """
        entry, path = self.entry(name), self.folder / f"{name}.json.gz"
        if not path.is_file():
            raise InvalidGraph(f"{path}: missing, though {INDEX} lists it; restore the folder from the repository")
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
            raise InvalidGraph(
                f"{path}: not the file that {INDEX} describes; restore it, or `python -m experiments.corpus --only "
                f"{name}` to make both again"
            )
        return path

    def graph(self, name: str) -> Graph:
        """Reads the joint graph of an instance; the errors are those of `path`."""
        return Graph.load(self.path(name))


def _rows(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidGraph(f"{path}: not JSON, or truncated ({error}); restore it from the repository") from None
    index = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    if index.get("format") != FORMAT or index.get("version") != 1 or not isinstance(index.get("instances"), list):
        raise InvalidGraph(f'{path}: not the index of a corpus (needs "format": "{FORMAT}", "version": 1, "instances")')
    return index["instances"]


def _entry(path: Path, row: Any) -> Entry:
    kinds = {field.name: {"int": int, "str": str}[str(field.type)] for field in fields(Entry)}
    table = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    wrong = [key for key, kind in kinds.items() if type(table.get(key)) is not kind]
    if wrong or table.keys() != kinds.keys():
        raise InvalidGraph(
            f"{path}: an instance must have {', '.join(kinds)}, as numbers and text, got {row!r}; make it again with "
            f"`python -m experiments.corpus`"
        )
    return Entry(**table)
