"""A file is written whole or not at all; and whatever is in a file that is read, only errors of ours come out."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run
from depth import deeper, examples
from examples import chain, cosines, linear_dropout

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import Corpus, Graph, InvalidPlan, Plan, Problem, RematError
from remat.answer.dimacs_file import write_dimacs
from remat.errors import InvalidGraph
from remat.facts import files
from remat.facts.files import write_file
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.timings import read_timings, write_timings
from remat.problem.mps_file import write_mps
from remat.views.report_page import Page

GRAPH = linear_dropout()
PROBLEM = ByteTraffic().pose(GRAPH)
PLAN = remat.choose(GRAPH).plan
INSTANCE = Corpus.open().path("small-layernorm-gelu-mlp")

LONGEST = 2000


WRITERS: dict[str, Callable[[Path], object]] = {
    "graph.json": GRAPH.save,
    "graph.json.gz": GRAPH.save,
    "problem.json": PROBLEM.save,
    "plan.json": PLAN.save,
    "device.json": find_device("h100").save,
    "timings.json": lambda path: write_timings(path, "a device", {"aten.mm": 3}),
    "problem.mps": lambda path: write_mps(PROBLEM, path),
    "problem.max": lambda path: write_dimacs(PROBLEM, path),
    "picture.svg": lambda path: remat.show(GRAPH, None, path),
    "picture.png": lambda path: remat.frontier(GRAPH).plot(path),
    "page.html": lambda path: Page.of([INSTANCE], refine=0).save(path),
    "instance.json.gz": lambda path: run("corpus", "get", "small-resnet", "-o", path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    name: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write_bytes = tmp_path / name, Path.write_bytes
    WRITERS[name](path)
    path.write_text("old")
    there = sorted(tmp_path.iterdir())

    def half(part: Path, data: bytes) -> int:
        write_bytes(part, data[: len(data) // 2])
        raise error

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises((OSError, KeyboardInterrupt, AssertionError)) as raised:
        WRITERS[name](path)
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == there
    if isinstance(raised.value, OSError):
        assert raised.value.filename == str(path)
        assert str(raised.value).endswith(repr(str(path)))


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link, fresh = tmp_path / "file", tmp_path / "link", tmp_path / "fresh"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_file(link, b"new")
    assert link.is_symlink()
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"new", 0o640)
    before = os.umask(0o027)
    try:
        write_file(fresh, b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640


def test_what_is_no_file_is_written_in_place(tmp_path: Path) -> None:
    write_file(Path("/dev/null"), b"new")
    assert not Path("/dev/null").is_file()
    with pytest.raises(FileNotFoundError) as raised:
        write_file(tmp_path / "missing" / "file", b"new")
    assert raised.value.filename == str(tmp_path / "missing" / "file")


def test_no_more_is_unpacked_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"format": "remat.plan", "version": 1, "saved": [' + b" " * 2**20 + b"]}"))
    monkeypatch.setattr(files, "LARGEST", 2**18)
    for load in (Plan.load, Graph.load, Problem.load, DeviceProfile.load, lambda path: Page.of([path])):
        with pytest.raises(RematError, match="at most 262,144 bytes when it is unpacked"):
            load(bomb)


def test_the_largest_graph_of_the_corpus_is_far_below_the_limit() -> None:
    largest = max(Corpus.open().entries, key=lambda entry: entry.values)
    data = gzip.decompress(Corpus.open().path(largest.name).read_bytes())
    assert len(data) * 20 < files.LARGEST


def test_half_a_character_is_refused_and_a_whole_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    cosines().save(path)
    text = path.read_text()
    path.write_text(text.replace('"cos1"', '"\\ud83d\\ude00"'))
    assert "\U0001f600" in Graph.load(path).names
    path.write_text(text.replace('"cos1"', '"\\uD800"'))
    with pytest.raises(InvalidGraph, match="surrogates not allowed"):
        Graph.load(path)
    run("inspect", "picture", path, "-o", tmp_path / "graph.svg", code=1)


def test_a_position_of_5000_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    GRAPH.save(path)
    document = json.loads(path.read_text())
    document["cannot_save"]["9" * 5000] = "too far"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidGraph, match=r'"cannot_save" names value .*there are only'):
        Graph.load(path)
    assert "cannot_save" in run("solve", path, code=1).stderr


def test_messages_stay_short(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan) as raised:
        Plan((), "b " * 50_000)  # type: ignore[arg-type]
    assert len(str(raised.value)) <= LONGEST
    assert "characters are left out" in str(raised.value)
    for line in (
        ["solve", "x" * 100_000],
        ["solve", tmp_path, "-m", "y" * 100_000],
        ["frontier", "--refine", "9" * 5000],
    ):
        failed = run(*line, code=2 if "-m" in line or "--refine" in line else 1)
        assert len(failed.stderr) <= LONGEST, line


JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 2**62, 2**63, 2**64, 10**300, 0.5, float("nan"), float("inf"), 1e308),
    *("", "x", "9" * 5000, "\ud800", "\x00", [], [[]], [1, [2]], [[1], [2, 3]], {}, {"9" * 5000: 1}, {"0": []}),
    [[[[[[]]]]]],
]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all parts of a document."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [path, *(way for key in keys for way in places(document[key], (*path, key)))]


def mutated(document: Any, draw: random.Random) -> Any:
    """The document with one to three parts changed, dropped, doubled or swapped for another part."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        *way, key = draw.choice([way for way in places(document) if way] or [(None,)])
        holder = document
        for step in way:
            holder = holder[step]
        if key is None:
            return copy.deepcopy(draw.choice(JUNK))
        kind = draw.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 2 and type(holder[key]) is int:
            holder[key] += draw.choice([-1, 1, 2**31])
        elif kind == 3:
            holder[draw.choice(["new", "9" * 5000]) if isinstance(holder, dict) else key] = copy.deepcopy(
                draw.choice(JUNK)
            )
        else:
            holder[key] = copy.deepcopy(draw.choice(JUNK))
    return document


def torn(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some flipped, cut off or doubled."""
    at, kind = draw.randrange(len(data)), draw.randrange(3)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    return data[:at] + data[draw.randrange(len(data)) :]


def complaint(load: Callable[[Path], object], path: Path) -> str | None:
    """The message of our error, if it is refused; any other error propagates."""
    try:
        repr(load(path))
    except RematError as error:
        return str(error)
    return None


def timings(path: Path) -> object:
    return read_timings(path, "a device")


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "graph": (GRAPH.save, Graph.load),
    "graph with places": (Graph.load(INSTANCE).save, Graph.load),
    "problem": (PROBLEM.save, Problem.load),
    # With budgets and a host: its file has every field there is.
    "problem with a host": (MemoryBudget(0.5, offload="h100").pose(cosines()).save, Problem.load),
    "plan": (PLAN.save, Plan.load),
    "device": (find_device("h100").save, DeviceProfile.load),
    "timings": (lambda path: write_timings(path, "a device", {"aten.mm": 3, "aten.add": 5}), timings),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe\x00"])
def test_what_is_no_file_of_ours_is_refused_with_its_path(kind: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    assert re.match(rf"{path}: (not JSON, or truncated|not a )", str(complaint(READERS[kind][1], path)))


@deeper
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_only_errors_of_ours_come_out_of_a_damaged_file(kind: str, suffix: str, tmp_path: Path) -> None:
    save, load = READERS[kind]
    path, draw = tmp_path / f"file{suffix}", random.Random(f"{kind}{suffix}")
    save(path)
    whole = path.read_bytes()
    document = json.loads(gzip.decompress(whole) if suffix.endswith(".gz") else whole)
    refused = 0
    count = examples(1000 if len(whole) < 20_000 else 300)
    for number in range(count):
        data = torn(whole, draw) if number % 4 == 0 else json.dumps(mutated(document, draw)).encode()
        path.write_bytes(data)
        message = complaint(load, path)
        refused += message is not None
        assert len((message or "").encode()) <= LONGEST  # and a terminal takes it
    assert refused > count // 3


@deeper
def test_only_errors_of_ours_come_out_of_a_damaged_index(tmp_path: Path) -> None:
    chain(2).save(tmp_path / "one.json.gz")
    index = json.loads((Path(files.__file__).parent / "instances" / "index.json").read_text())
    index["instances"] = index["instances"][:2]
    draw = random.Random(0)
    for _ in range(examples(300)):
        (tmp_path / "index.json").write_text(json.dumps(mutated(index, draw)))
        assert len(complaint(Corpus.open, tmp_path) or "") <= LONGEST
