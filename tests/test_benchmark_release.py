"""The release of the benchmark is what its sums say, its answers hold, and only a better one replaces one of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from depth import deep_except, drawn
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.benchmark import check, searching
from experiments.benchmark.__main__ import app
from experiments.benchmark.answers import Answer, Answers, Refused, difficulty, merged, spread
from experiments.benchmark.instances import Posed
from experiments.benchmark.manifest import FOLDER, Manifest, name_stem
from experiments.benchmark.page import answer_rows, as_csv, markdown
from experiments.benchmark.release import wrong_files
from remat import Corpus
from remat.problem.problem_file import Budget

CORPUS = Corpus.open()
RELEASED = Manifest.open(FOLDER)
SMALL = sorted(RELEASED.instances, key=lambda name: RELEASED.instances[name]["values"])[:9]


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def known(folder: Path) -> dict[str, Answer]:
    """The best known answers of a release to qehvi-4."""
    return Answers(folder / "answers").of("qehvi-4")


@contextmanager
def edited(folder: Path) -> Iterator[dict[str, Any]]:
    """The file of these answers, to be changed."""
    path = Answers(folder / "answers").path("qehvi-4")
    document = json.loads(gzip.decompress(path.read_bytes()))
    yield document
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of two instances, made from nothing."""
    folder = tmp_path_factory.mktemp("made") / "2000.1"
    folder.mkdir()
    shutil.copy(FOLDER / "LICENSE", folder)
    names = ["--only", "small-dropout-mlp", "--only", "qehvi-4"]
    code, said = run("run", *names, "--time-limit", 5, "--folder", folder, "--results", folder.parent)
    assert code == 0, said
    return folder


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "2000.1"))


def test_one_command_makes_it_all(made: Path) -> None:
    rows = answer_rows(made)
    assert len(rows) == 20
    assert {row["difficulty"] for row in rows if row["budget"].startswith("saved")} == {"easy"}
    assert not list(wrong_files(made, CORPUS))
    assert run("verify", "--folder", made)[0] == 0
    assert (made.parent / "benchmark.md").read_text() == markdown(made)
    written = [path.name for path in (made / "instances").iterdir()]
    assert written == ["qehvi-4.json.gz"]  # the other has fewer than 200 values


def test_the_search_that_found_the_answers_finds_them_again(made: Path) -> None:
    code, said = run("peaks", "--only", "small-dropout-mlp", "--folder", made)
    assert code == 0, said
    assert said.splitlines()[-1] == "1 budgets: median 1.0000, mean 1.0000, worst 1.0000"


def test_what_is_done_stays_done(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is proven, or was tried for as long, is not solved again; one that is missing is."""
    asked: list[str] = []
    before = known(release)

    def recorded(posed: Posed, budget: Budget, time_limit_s: float) -> Answer:
        asked.append(f"{posed.name} {budget.name}")
        return before[budget.name]

    monkeypatch.setattr(searching, "saved_answer", recorded)
    assert run("solve", "--time-limit", 1, "--folder", release)[0] == 0
    assert asked == []
    with edited(release) as document:
        document["answers"] = [one for one in document["answers"] if one["budget"] != "saved-0.3"]
    assert run("solve", "--time-limit", 1, "--folder", release, "--only", "qehvi-4")[0] == 0
    assert asked == ["qehvi-4 saved-0.3"]
    assert known(release)["saved-0.3"] == before["saved-0.3"]


def test_a_longer_search_goes_on_where_the_last_one_ended(release: Path) -> None:
    """From a poor plan without a bound to the optimum; what CP-SAT proves so is hard, not easy."""
    best = known(release)["saved-0.5"]
    assert worsened(release)["saved-0.5"]["objective"] > best["objective"]
    arguments = ["--time-limit", 20, "--folder", release, "--only", "qehvi-4", "--budget", "saved-0.5"]
    assert run("solve", *arguments)[0] == 0
    now = known(release)["saved-0.5"]
    assert (now["objective"], now["bound"], now["status"]) == (best["objective"], best["objective"], "optimal")
    assert (difficulty(best), difficulty(now)) == ("easy", "hard")
    assert now["solver"] in now["proof"]


@pytest.mark.parametrize(
    "name", ["LICENSE", "MANIFEST.json", "answers.csv", "answers/qehvi-4.json.gz", "instances/qehvi-4.json.gz"]
)
@pytest.mark.parametrize("how", ["a letter", "a byte", "no file"])
def test_what_was_altered_is_named(release: Path, name: str, how: str) -> None:
    path = release / name
    data = path.read_bytes()
    if how == "no file":
        path.unlink()
        if name.startswith("instances/"):
            assert run("verify", "--folder", release)[0] == 0  # it is made from its graph
            return
    elif how == "a byte":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])  # of a gzipped file: its checksum
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(gzip.decompress(data).replace(b'"qehvi-4"', b'"qehvi-5"')))
    else:
        path.write_bytes(data.replace(b"qehvi-4", b"qehvi-5").replace(b"CC BY", b"CC NO"))
    code, said = run("verify", "--folder", release)
    assert code == 1
    sums = dict(line.split("  ")[::-1] for line in (release / "SHA256SUMS").read_text().splitlines())
    listed = name.removesuffix(".gz")
    lines = said.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{listed}: expected SHA-256 {sums[listed]}, ")
    assert ("but there is no such file" in said) == (how == "no file")


def test_an_answer_that_does_not_hold_is_named(release: Path) -> None:
    """The sums may be written anew; `check.py` is asked, too."""
    with edited(release) as document:
        document["answers"][0]["saved"] = []
    run("release", "--folder", release, "--results", release.parent)
    code, said = run("verify", "--folder", release)
    assert code == 1
    assert "qehvi-4 saved-0.1: rule " in said


def test_a_file_that_is_not_listed_is_named(release: Path) -> None:
    """One that is not compressed would hide what lies beside it."""
    path = Answers(release / "answers").path("qehvi-4")
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(b"{}"))
    (release / "instances" / "old.json.gz").write_bytes(b"")
    lines = run("verify", "--quick", "--folder", release)[1].splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("answers/qehvi-4.json: expected SHA-256 ")
    assert lines[1] == "instances/old.json.gz: SHA256SUMS does not list it"


def test_the_sums_are_those_of_the_usual_tool(release: Path) -> None:
    """As the page says: what is gzipped is unpacked first."""
    page = (FOLDER.parents[2] / "docs" / "benchmark.md").read_text()
    (command,) = [line for line in page.splitlines() if "sha256sum -c" in line]
    for damaged in (False, True):
        if damaged:
            path = Answers(release / "answers").path("qehvi-4")
            path.write_bytes(gzip.compress(b"{}"))
        done = subprocess.run(["bash", "-c", command], cwd=release, capture_output=True, text=True, check=False)
        assert (done.returncode != 0, "answers/qehvi-4.json: FAILED" in done.stdout) == (damaged, damaged), done


def test_an_instance_that_its_graph_does_not_give_is_named(release: Path) -> None:
    """Even if manifest and sums were written anew."""
    path = release / "MANIFEST.json"
    document = json.loads(path.read_text())
    (entry,) = [entry for entry in document["instances"] if entry["name"] == "small-dropout-mlp"]
    sums = (release / "SHA256SUMS").read_text().replace(entry["sha256"], "0" * 64)
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    entry["sha256"] = "0" * 64
    path.write_text(json.dumps(document))
    (release / "SHA256SUMS").write_text(sums.replace(old, hashlib.sha256(path.read_bytes()).hexdigest()))
    code, said = run("verify", "--folder", release)
    assert code == 1
    assert f"small-dropout-mlp.json: expected SHA-256 {'0' * 64}, found " in said


def test_a_release_never_changes(release: Path) -> None:
    """Other budgets would be another instance of the same name."""
    path = release / "MANIFEST.json"
    document = json.loads(path.read_text())
    document["instances"][0]["budgets"][0]["bytes"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="A release never changes: restore the graph"):
        Manifest.open(release).posed(CORPUS, document["instances"][0]["name"])


def test_a_later_release_keeps_the_instances_of_earlier_ones() -> None:
    """So that old answers still count. The digest is that of the sums of all 58 instances, when 2026.1 was released."""
    old = [entry for entry in RELEASED.instances.values() if entry["since"] == "2026.1"]
    sums = "\n".join(sorted(f"{entry['sha256']}  instances/{entry['name']}.json" for entry in old))
    assert len(old) == 58
    digest = hashlib.sha256(sums.encode()).hexdigest()
    assert digest == "d270253ded0f5087c6142d2420858bb532e45d32707c0ee97a78c172a3ad79bf"
    assert {entry["since"] for entry in RELEASED.instances.values()} == {"2026.1", RELEASED.path.parent.name}


def test_all_instances_of_a_family_are_on_one_side() -> None:
    """As the page says; a later release moves none."""
    for name, entry in RELEASED.instances.items():
        digest = int(hashlib.sha256(name_stem(name).encode()).hexdigest(), 16)
        assert entry["split"] == ("test" if digest % 3 == 0 else "train")
    page = (FOLDER.parents[2] / "docs" / "benchmark.md").read_text()
    of_test = sum(e["split"] == "test" for e in RELEASED.instances.values())
    assert f"divisible by 3 ({of_test} of the {len(RELEASED.instances)})" in page
    assert {name_stem(name) for name in ("hf-gpt2-sdpa", "gpt3-175b", "gpt2-xl")} == {"gpt"}
    assert {entry["split"] for entry in RELEASED.instances.values()} == {"train", "test"}


def submission(folder: Path, **changed: Any) -> Path:
    """Somebody's answer to qehvi-4: the best known one, changed."""
    manifest = Manifest.open(folder)
    answer = known(folder)["saved-0.5"] | {"solver": "theirs", "date": "2030-01-01"} | changed
    document = {
        "format": "remat.solution",
        "version": 1,
        "instance": "qehvi-4",
        "sha256": manifest.instances["qehvi-4"]["sha256"],
        "answers": [{key: value for key, value in answer.items() if value is not None}],
    }
    (folder / "theirs.json").write_text(json.dumps(document))
    return folder / "theirs.json"


def worsened(folder: Path) -> dict[str, Answer]:
    """Best known answers that cost more than they must: the one to a tenth fits each budget. No bound is known."""
    before = known(folder)
    low = {key: value for key, value in before["saved-0.1"].items() if key != "proof"}
    poor = [low | {"budget": name, "bound": 0, "status": "feasible"} for name in before if name.startswith("saved")]
    with edited(folder) as document:
        document["answers"] = [*poor, *(answer for name, answer in before.items() if name.startswith("peak"))]
    return known(folder)


def test_a_better_answer_replaces_a_row_and_its_bound_does_not(release: Path) -> None:
    best = submission(release)
    poor = worsened(release)
    code, said = run("submit", best, "--folder", release)
    now = known(release)
    costs, was = now["saved-0.5"]["objective"], poor["saved-0.5"]["objective"]
    done = "is the best known now; `release` writes the sums and the page"
    assert (code, said) == (0, f"qehvi-4 saved-0.5: costs {costs}, {done}; before: {was}\n")
    assert now["saved-0.5"]["objective"] < poor["saved-0.5"]["objective"]
    assert (now["saved-0.5"]["solver"], now["saved-0.5"]["bound"]) == ("theirs", 0)
    assert now["saved-0.7"]["saved"] == now["saved-0.5"]["saved"]  # it fits the larger budget, too
    assert now["saved-0.3"] == poor["saved-0.3"]
    assert difficulty(now["saved-0.5"]) == "open"
    again = f"qehvi-4 saved-0.5: costs {costs}, is no better; the best known: {costs}\n"
    assert run("submit", best, "--folder", release)[1] == again


def test_a_folder_is_one_submission(release: Path) -> None:
    """A file that is refused does not keep the others out."""
    folder = release / "mine"
    folder.mkdir()
    code, said = run("submit", folder, "--folder", release)
    assert (code, "holds no file that ends in .json" in " ".join(said.split())) == (2, True)
    submission(release).rename(folder / "b.json")
    submission(release, saved=[]).rename(folder / "a.json")
    worsened(release)
    code, said = run("submit", folder, "--folder", release)
    assert (code, said.startswith("refused: a.json: ")) == (1, True)
    assert known(release)["saved-0.5"]["solver"] == "theirs"


def test_if_one_answer_is_refused_none_is_taken(release: Path) -> None:
    path, before = submission(release), worsened(release)
    document = json.loads(path.read_text())
    document["answers"].append({**document["answers"][0], "budget": "saved-0.1"})
    path.write_text(json.dumps(document))
    code, said = run("submit", path, "--folder", release)
    assert (code, "qehvi-4 saved-0.1: rule 7" in said) == (1, True)
    assert known(release) == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"saved": []}, "rule "),
        ({"objective": 1}, "claim 1"),
        ({"solver": None}, 'say in "solver" and "date" who found it'),
        ({"budget": "saved-0.6"}, "qehvi-4 has no budget 'saved-0.6'"),
        ({"budget": "none"}, "qehvi-4 none: the release has no row for it"),
    ],
)
def test_what_does_not_hold_is_refused(release: Path, changed: dict[str, Any], message: str) -> None:
    path, before = submission(release, **changed), worsened(release)
    code, said = run("submit", path, "--folder", release)
    assert (code, message in said) == (1, True)
    assert known(release) == before


@pytest.mark.parametrize(("fits", "solver"), [("peak-0.1", "theirs"), ("peak-0.7", "peak-search")])
def test_a_budget_of_the_peak_is_proven_from_what_is_known(release: Path, fits: str, solver: str) -> None:
    """What CP-SAT proves is hard, not easy, whoever found it; and what is proven is not looked at again."""
    answers, before = Answers(release / "answers"), known(release)
    answers.path("qehvi-4").unlink()
    posed = Manifest.open(release).posed(Corpus.open(), "qehvi-4")
    (roomy,) = [budget for budget in posed.budgets if budget.name == "peak-0.7"]
    answer = {"budget": roomy.name, "saved": before[fits]["saved"], "bound": 0, "solver": solver, "seconds": 1}
    answers.offer(posed, answer)
    code, output = run("prove", "--only", "qehvi-4", "--folder", release)
    now = known(release)[roomy.name]
    assert (code, now["objective"], now["bound"], now["status"]) == (0, 624, 624, "optimal")
    assert now["proof"].endswith("bound claimed by CP-SAT, of memory at some moments")
    assert difficulty(now) == "hard"
    assert output == "qehvi-4 peak-0.7: 624, optimal, none below 624\n"
    assert run("prove", "--only", "qehvi-4", "--folder", release) == (0, "")


def test_an_answer_below_a_proven_bound_stops_everything(release: Path) -> None:
    """Either `check.py` or the bound is wrong, and nobody may go on."""
    posed, best = Manifest.open(release).posed(CORPUS, "qehvi-4"), known(release)["saved-0.5"]
    with edited(release) as document:
        (answer,) = (one for one in document["answers"] if one["budget"] == "saved-0.5")
        answer.update(bound=best["objective"] + 1, objective=best["objective"] + 1)
    with pytest.raises(Refused, match="which is less than the bound"):
        Answers(release / "answers").offer(posed, best)


claims = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 90)).map(
    lambda drawn: {"objective": max(drawn[:2]), "bound": min(drawn[:2]), "seconds": drawn[2]}
)


def row(budget: str, claim: dict[str, int], optimum: int) -> Answer:
    """An answer that does not contradict an optimum."""
    objective, bound = max(claim["objective"], optimum), min(claim["bound"], optimum)
    status = "optimal" if objective == bound else "feasible"
    about = {"budget": budget, "saved": [objective], "solver": "portfolio", "proof": f"p{bound}", "status": status}
    return {**claim, "objective": objective, "bound": bound, **about}


@drawn(200)
@given(old=claims, new=claims, optimum=st.integers(0, 9))
def test_of_two_answers_the_better_plan_and_the_better_bound_stay(
    old: dict[str, int], new: dict[str, int], optimum: int
) -> None:
    both = row("saved-0.5", old, optimum), row("saved-0.5", new, optimum)
    best = merged(*both)
    assert best["objective"] == best["saved"][0] == min(one["objective"] for one in both)
    assert best["bound"] == max(one["bound"] for one in both)
    assert best["proof"] == f"p{best['bound']}"
    assert best["status"] == ("optimal" if best["objective"] == best["bound"] else "feasible")
    assert best["seconds"] in (old["seconds"], new["seconds"])
    assert merged(None, both[0]) == both[0]
    assert merged(both[0], both[0]) == both[0]


@drawn(200)
@given(drawn_claims=st.lists(claims, min_size=5, max_size=5), sizes=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_what_follows_for_other_budgets_is_kept(drawn_claims: list[dict[str, int]], sizes: list[int]) -> None:
    """More memory never costs more, nor has a higher bound."""
    budgets = [Budget(f"saved-{i}", "saved", size) for i, size in enumerate(sizes)]
    optimum = {budget.name: 9 - 3 * budget.bytes for budget in budgets}
    answers = {b.name: row(b.name, claim, optimum[b.name]) for b, claim in zip(budgets, drawn_claims, strict=True)}
    best = spread(budgets, answers)
    for one in budgets:
        for other in budgets:
            if one.bytes <= other.bytes:
                assert best[one.name]["objective"] >= best[other.name]["objective"]
                assert best[one.name]["bound"] >= best[other.name]["bound"]
        assert best[one.name]["bound"] <= optimum[one.name] <= best[one.name]["objective"]
        assert best[one.name]["objective"] <= answers[one.name]["objective"]
        assert best[one.name]["budget"] == one.name
    assert spread(budgets, best) == best


@pytest.mark.parametrize("name", deep_except(SMALL, RELEASED.instances))
def test_the_released_instances_and_answers_hold(name: str) -> None:
    """The graph gives the released instance byte for byte, and the checker agrees with every answer."""
    posed = RELEASED.posed(CORPUS, name)
    answers = Answers(FOLDER / "answers").of(name)
    for answer in answers.values():
        verdict = check.check(posed.checked, answer)
        assert not verdict.complaints
        assert verdict.objective == answer["objective"]
    assert spread(posed.budgets, answers) == answers


def test_what_is_committed_is_what_was_released() -> None:
    assert not list(wrong_files(FOLDER, None))
    assert (FOLDER / "answers.csv").read_text() == as_csv(answer_rows(FOLDER))
    assert {name for name, entry in RELEASED.instances.items() if entry["benchmark"]} == {
        path.name.removesuffix(".json.gz") for path in (FOLDER / "instances").iterdir()
    }


def test_the_page_says_how_hard_the_new_instances_are() -> None:
    """Budgets that are equal in bytes count once."""
    new = {name for name, entry in RELEASED.instances.items() if entry["since"] == "2026.2"}
    rows = {(row["instance"], row["budget"][:4], row["bytes"]): row for row in answer_rows(FOLDER)}
    of = {kind: [row for key, row in rows.items() if key[0] in new and key[1] == kind] for kind in ("save", "peak")}
    gaps = {kind: [1 - row["bound"] / max(row["objective"], 1) for row in mine] for kind, mine in of.items()}
    proven = {kind: sum(row["status"] == "optimal" for row in mine) for kind, mine in of.items()}
    text = " ".join((FOLDER.parents[2] / "docs" / "benchmark" / "answers.md").read_text().split())
    assert f"Of their {len(of['save'])} budgets of saved bytes, {proven['save']} are proven" in text
    assert f"the largest gap of the others is {max(gaps['save']):.1%}" in text
    assert f"of {len(of['peak'])} budgets of the peak, {proven['peak']}" in text
    assert f"the median gap is {statistics.median(gaps['peak']):.2%}" in text


def test_the_page_states_how_many_peaks_are_proven_by_size() -> None:
    rows = {(row["instance"], row["bytes"]): row for row in answer_rows(FOLDER) if row["budget"].startswith("peak")}
    sizes = [(RELEASED.instances[name]["values"], row) for (name, _), row in rows.items()]
    gap = {key: 1 - row["bound"] / max(row["objective"], 1) for key, row in rows.items()}
    text = " ".join((FOLDER.parents[2] / "docs" / "benchmark" / "answers.md").read_text().split())
    proven = sum(row["status"] == "optimal" for row in rows.values())
    within = sum(one <= 0.01 for one in gap.values())
    assert f"Now {proven} of all {len(rows)} are proven, and {within} are within 1% of their bound" in text
    for word, low, high in (
        ("up to 600", 0, 600),
        ("to 1,300", 600, 1300),
        ("to 2,300", 1300, 2300),
        ("more", 2300, 1e9),
    ):
        of = [row for size, row in sizes if low < size <= high]
        optimal = sum(row["status"] == "optimal" for row in of)
        middle = statistics.median(gap[row["instance"], row["bytes"]] for row in of)
        assert f"| {word} | {len(of)} | {optimal} | {f'{middle:.0%}' if middle else '0'} |" in text


def test_the_example_of_the_page_is_a_run(tmp_path: Path) -> None:
    """A stranger types it first."""
    page = (FOLDER.parents[2] / "docs" / "benchmark.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    typed, printed = page.split("```console\n")[1].split("```")[0].splitlines()
    (tmp_path / "solution.json").write_text(example)
    name = json.loads(example)["instance"]
    (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(RELEASED.posed(CORPUS, name).data))
    script, *files = typed.removeprefix("$ python ").split()
    command = [sys.executable, FOLDER.parent / script, *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == printed + "\n"
