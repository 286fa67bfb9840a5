"""A release: which instances are the *benchmark*, sums of every file, and what says that they are still the same."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments.benchmark.answers import Answers, difficulty
from experiments.benchmark.instances import Posed
from experiments.benchmark.manifest import Manifest
from experiments.benchmark.page import answer_rows, as_csv
from remat import Corpus
from remat.errors import InvalidGraph

_SUBSET, _FEWEST, _MOST = 12, 200, 8000

_SUMS = "SHA256SUMS"


def chosen_subset(manifest: Manifest, answers: Answers) -> set[str]:
    """The *benchmark* within the *collection*: twelve instances of 200 to 8,000 values, by turns of each family.

    Of a family come first those with most rows that are not easy, and of these the smaller ones. Chosen once, it stays:
    better answers change no release.
    """
    if frozen := {name for name, entry in manifest.instances.items() if entry["benchmark"]}:
        return frozen

    def rank(name: str) -> tuple[int, int]:
        known, entry = answers.of(name), manifest.instances[name]
        easy = sum(difficulty(known.get(budget["name"])) == "easy" for budget in entry["budgets"])
        return easy, entry["values"]

    families: dict[str, list[str]] = {}
    for name, entry in manifest.instances.items():
        if _FEWEST <= entry["values"] <= _MOST:
            families.setdefault(entry["family"], []).append(name)
    queues = [sorted(names, key=rank) for _, names in sorted(families.items())]
    turns = [queue[turn] for turn in range(max(map(len, queues), default=0)) for queue in queues if turn < len(queue)]
    return set(turns[:_SUBSET])


def write_release(folder: Path, corpus: Corpus) -> None:
    """Chooses the benchmark, writes its instances, and the sums of all instances, answers and other files."""
    answers = Answers(folder / "answers")
    manifest = Manifest.open(folder)
    manifest = manifest.with_subset(chosen_subset(manifest, answers))
    manifest.write()
    (folder / "instances").mkdir(exist_ok=True)
    for old in (folder / "instances").glob("*.json.gz"):
        old.unlink()
    for name, entry in manifest.instances.items():
        if entry["benchmark"]:
            data = manifest.posed(corpus, name).data
            (folder / "instances" / f"{name}.json.gz").write_bytes(gzip.compress(data, mtime=0))
    sums = {f"instances/{name}.json": entry["sha256"] for name, entry in manifest.instances.items()}
    for path in sorted((folder / "answers").glob("*.json.gz")):
        sums[f"answers/{path.stem}"] = _sha256(path)
    (folder / "answers.csv").write_text(as_csv(answer_rows(folder)))
    for name in ("LICENSE", "MANIFEST.json", "answers.csv"):
        sums[name] = _sha256(folder / name)
    (folder / _SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def wrong_files(folder: Path, corpus: Corpus | None) -> Iterator[str]:
    """Says of each file that is not what SHA256SUMS lists: expected, and found; or that it is not listed.

    Args:
        folder: of the release.
        corpus: instances that do not lie in the folder are made from its graphs; None leaves these out.
    """
    sums, missing = _sums(folder), dict(_sums(folder))
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / _SUMS):
        file = path.relative_to(folder).as_posix()
        name = file.removesuffix(".gz")
        if name not in sums:
            yield f"{file}: SHA256SUMS does not list it"
        elif (found := _found(path)) != sums[name]:
            yield f"{name}: expected SHA-256 {sums[name]}, found {found}"
        missing.pop(name, None)
    is_manifest = _found(folder / "MANIFEST.json") == sums.get("MANIFEST.json")
    for name, expected in missing.items():
        if not name.startswith("instances/"):
            yield f"{name}: expected SHA-256 {expected}, but there is no such file"
        elif corpus is not None and is_manifest and (found := _made(folder, corpus, name)) != expected:
            yield f"{name}: expected SHA-256 {expected}, found {found}"


def _sums(folder: Path) -> dict[str, str]:
    """The sum of each file. A line that is no sum and name is taken for the name of a file, which there is not."""
    path = folder / _SUMS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return {name or digest: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _made(folder: Path, corpus: Corpus, name: str) -> str:
    """The sum of an instance that is made from its graph, or why there is none."""
    manifest, instance = Manifest.open(folder), name.removeprefix("instances/").removesuffix(".json")
    if instance not in manifest.instances:
        return "no such instance in MANIFEST.json"
    try:
        return Posed.of(corpus, instance, manifest.budgets(instance)).sha256
    except InvalidGraph as error:
        return f"no graph to make it from ({error})"


def _found(path: Path) -> str:
    try:
        return _sha256(path)
    except (OSError, EOFError, zlib.error) as damage:
        return f"damaged gzip data ({damage})"


def _sha256(path: Path) -> str:
    """Of a file; of what is compressed in it, if it is gzipped: other versions of gzip write other bytes."""
    data = path.read_bytes()
    return hashlib.sha256(gzip.decompress(data) if path.suffix == ".gz" else data).hexdigest()
