"""The manifest of a release: which instances there are, and what each must be, byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.benchmark.instances import Posed
from remat import Corpus
from remat.problem.problem_file import Budget

NAME = "2026.2"
FOLDER = Path(__file__).parent / NAME


def name_stem(name: str) -> str:
    """Returns the letters that the name of an instance begins with, without `hf-`."""
    return re.sub("[^a-z].*", "", name.removeprefix("hf-"))


def split_of(name: str) -> Literal["train", "test"]:
    """Returns the side of an instance for programs that learn, by a digest of the letters that its name begins with."""
    digest = hashlib.sha256(name_stem(name).encode()).hexdigest()
    return "train" if int(digest, 16) % 3 else "test"


@dataclass(frozen=True)
class Manifest:
    """The instances of a release, in the order of their names, and what each must be.

    Attributes:
        path: of the file.
        instances: what the file says of each, by name.
    """

    path: Path
    instances: Mapping[str, Mapping[str, Any]]

    @classmethod
    def open(cls, folder: Path) -> Manifest:
        """Reads the manifest of a folder; one without instances if there is none."""
        path = folder / "MANIFEST.json"
        found = json.loads(path.read_text())["instances"] if path.is_file() else []
        return cls(path, {entry["name"]: entry for entry in found})

    def budgets(self, name: str) -> tuple[Budget, ...]:
        """The budgets of an instance, as they are frozen."""
        return tuple(Budget(**budget) for budget in self.instances[name]["budgets"])

    def posed(self, corpus: Corpus, name: str) -> Posed:
        """An instance, from its graph.

        Raises:
            ValueError: it is not the one that was released.
        """
        posed = Posed.of(corpus, name, self.budgets(name))
        if posed.sha256 != self.instances[name]["sha256"]:
            raise ValueError(
                f"{name}: expected SHA-256 {self.instances[name]['sha256']}, but its graph gives {posed.sha256}. A "
                f"release never changes: restore the graph, or make a release of another name"
            )
        return posed

    def with_instance(self, posed: Posed, family: str) -> Manifest:
        """The same with one more instance."""
        entry = {
            "name": posed.name,
            "family": family,
            "since": NAME,
            "split": split_of(posed.name),
            "values": len(posed.problem),
            "uses": len(posed.problem.producers),
            "nodes": len(posed.graph),
            "json_bytes": len(posed.data),
            "sha256": posed.sha256,
            "benchmark": False,
            "budgets": [asdict(budget) for budget in posed.budgets],
        }
        return Manifest(self.path, dict(sorted({**self.instances, posed.name: entry}.items())))

    def with_subset(self, names: set[str]) -> Manifest:
        """The same with another subset as the *benchmark*."""
        found = {name: {**entry, "benchmark": name in names} for name, entry in self.instances.items()}
        return Manifest(self.path, found)

    def write(self) -> None:
        """Writes the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"format": "remat.benchmark", "version": 1, "name": NAME, "instances": [*self.instances.values()]}
        self.path.write_text(json.dumps(document, indent=1) + "\n")
