"""Makes and keeps the benchmark: `python -m experiments.benchmark run`, or one step of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.benchmark import check, searching
from experiments.benchmark.annealing import VISITS, Annealer
from experiments.benchmark.answers import RESUMED, Answer, Answers, Refused
from experiments.benchmark.instances import Posed, different_budgets, found_budgets, peak_plans
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.benchmark.page import markdown
from experiments.benchmark.release import write_release, wrong_files
from remat import Corpus
from remat.errors import InvalidGraph
from remat.problem.problem_file import Budget
from remat.words import near

app = typer.Typer(no_args_is_help=True, help="Makes, answers, freezes and verifies the benchmark.")
console = Console(soft_wrap=True)

_Only = Annotated[list[str] | None, typer.Option(help="An instance; repeatable. All when left out.")]
RESULTS = Path(__file__).parents[1] / "results"

_Results = Annotated[Path, typer.Option(help="Folder for the page.")]
_Folder = Annotated[Path, typer.Option(help="Of the release.")]


@app.command()
def pose(only: _Only = None, folder: _Folder = FOLDER) -> None:
    """Freezes the budgets of instances that are new in the corpus, with the answers of the search for the peak."""
    corpus, answers = Corpus.open(), Answers(folder / "answers")
    entries = {entry.name: entry for entry in sorted(corpus.entries, key=lambda entry: entry.values)}
    for name in _named(only, entries):
        manifest = Manifest.open(folder)
        if name in manifest.instances:
            manifest.posed(corpus, name)
            continue
        start = time.perf_counter()
        plain = Posed.of(corpus, name, ())
        most, plans = peak_plans(plain.graph, plain.problem)
        budgets = found_budgets(plain.graph, plain.problem, most, plans[0].peak_bytes)
        posed, seconds = replace(plain, budgets=budgets), time.perf_counter() - start
        for found in searching.peak_answers(posed, plans, "peak-search", seconds):
            answers.offer(posed, found)
        Manifest.open(folder).with_instance(posed, entries[name].family).write()  # another run may have written since
        console.print(f"{name}: {len(posed.problem)} values, {seconds:.0f} s")


@app.command()
def solve(
    only: _Only = None,
    budget: Annotated[list[str] | None, typer.Option(help="The name of a budget; repeatable.")] = None,
    time_limit: Annotated[float, typer.Option(min=1e-9, help="Seconds for each row.")] = 60,
    folder: _Folder = FOLDER,
) -> None:
    """Answers each row that is not proven yet and was not tried for as long: so a run that is stopped goes on."""
    corpus, answers, manifest = Corpus.open(), Answers(folder / "answers"), Manifest.open(folder)
    for name in _by_size(only, manifest):
        due = [b for b in manifest.budgets(name) if not budget or b.name in budget]
        due = [b for b in due if _is_due(answers.of(name).get(b.name), time_limit)]
        if due:
            _answer(manifest.posed(corpus, name), due, answers, time_limit)


def _is_due(known: Answer | None, time_limit: float, search: str = "") -> bool:
    """Whether a row is not proven, and its bound is not one of a search that took as long; of any, if left out."""
    if known is None:
        return True
    is_tried = "proof" in known and known["proof"].startswith(search) and known["seconds"] >= time_limit
    return known["status"] != "optimal" and not is_tried


def _answer(posed: Posed, budgets: Sequence[Budget], answers: Answers, time_limit: float) -> None:
    for budget in budgets:
        known = answers.of(posed.name).get(budget.name)
        if not _is_due(known, time_limit):
            continue  # another budget has answered it since
        if known is None:
            if budget.of == "peak":
                continue  # `pose` found none
            found = searching.saved_answer(posed, budget, time_limit)
        else:
            search = searching.resumed_answer if budget.of == "saved" else searching.peak_bound
            found = search(posed, budget, known, time_limit)
        answers.offer(posed, found)
        best = answers.of(posed.name)[budget.name]
        gap = (best["objective"] - best["bound"]) / max(best["objective"], 1)
        console.print(f"{posed.name} {budget.name}: {best['objective']}, {best['status']}, gap {gap:.2%}")


@app.command()
def anneal(
    only: _Only = None,
    steps: Annotated[
        int | None, typer.Option(min=0, help="Plans to look at for each row; fewer for larger graphs when left out.")
    ] = None,
    seed: Annotated[int, typer.Option(min=1, help="Of the chances: the same seed and steps find the same plans.")] = 1,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Begin at plans by Checkmate's relaxation, not at the best known ones.")
    ] = False,
    folder: _Folder = FOLDER,
) -> None:
    """Looks for better answers to budgets of the peak by a program of its own, in C, from the best known ones."""
    try:
        annealer = Annealer()
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    corpus, answers, manifest = Corpus.open(), Answers(folder / "answers"), Manifest.open(folder)
    for name in _by_size(only, manifest):
        posed = manifest.posed(corpus, name)
        count = VISITS // len(posed.graph) if steps is None else steps
        for found in searching.annealed_answers(posed, answers, annealer, count, seed, relaxed=relaxed):
            console.print(f"{name} {found['budget']}: {found['objective']}")


@app.command()
def prove(
    only: _Only = None,
    time_limit: Annotated[float, typer.Option(min=1e-9, help="Seconds for each row.")] = 60,
    folder: _Folder = FOLDER,
) -> None:
    """Looks for cheaper answers within budgets of the peak that are open, until none is left, by CP-SAT.

    What it has tried for as long is left out.
    """
    corpus, answers, manifest = Corpus.open(), Answers(folder / "answers"), Manifest.open(folder)
    for name in _by_size(only, manifest):
        posed = manifest.posed(corpus, name)
        for budget in sorted({b.bytes: b for b in posed.budgets if b.of == "peak"}.values(), key=lambda b: b.bytes):
            known = answers.of(name).get(budget.name)
            if known is None or not _is_due(known, time_limit, RESUMED):
                continue
            found = searching.peak_proof(posed, budget, known, time_limit)
            if found is not None and answers.offer(posed, found):
                best = answers.of(name)[budget.name]
                console.print(
                    f"{name} {budget.name}: {best['objective']}, {best['status']}, none below {best['bound']}"
                )


@app.command()
def peaks(
    only: _Only = None,
    proven: Annotated[bool, typer.Option("--proven", help="Only rows whose best known answer is proven.")] = False,
    folder: _Folder = FOLDER,
) -> None:
    """Says what the library's plans for budgets of the peak cost, over the best known answers; it changes none."""
    corpus, answers, manifest = Corpus.open(), Answers(folder / "answers"), Manifest.open(folder)
    ratios: list[float] = []
    for name in _by_size(only, manifest):
        posed, known, start = manifest.posed(corpus, name), answers.of(name), time.perf_counter()
        rows = [b for b in different_budgets(posed.budgets) if b.of == "peak" and b.name in known]
        rows = [b for b in rows if not proven or known[b.name]["status"] == "optimal"]
        if rows:
            found = [searching.peak_ratio(posed, b, known[b.name]) for b in rows]
            ratios += found
            words = ", ".join(f"{b.name} {ratio:.4f}" for b, ratio in zip(rows, found, strict=True))
            console.print(f"{name}: {time.perf_counter() - start:.1f} s, {words}")
    if ratios:
        middle, mean, worst = statistics.median(ratios), statistics.fmean(ratios), max(ratios)
        console.print(f"{len(ratios)} budgets: median {middle:.4f}, mean {mean:.4f}, worst {worst:.4f}")


@app.command()
def submit(solution: Path, folder: _Folder = FOLDER) -> None:
    """Takes the answers of solution files that cost less than the best known ones; their bounds are not taken.

    SOLUTION is a file, or a folder of them. If one answer of a file is refused, none of that file is taken, but those
    of the other files are.
    """
    paths = sorted(solution.glob("*.json")) if solution.is_dir() else [solution]
    if not paths:
        raise typer.BadParameter(f"{solution} holds no file that ends in .json")
    taken = [_submit(path, Manifest.open(folder), Answers(folder / "answers")) for path in paths]
    if not all(taken):
        raise typer.Exit(1)


def _submit(path: Path, manifest: Manifest, answers: Answers) -> bool:
    try:
        document, _ = check.read(path, "remat.solution")
    except check.Unreadable as error:
        raise typer.BadParameter(str(error)) from None
    name = str(document.get("instance"))
    _named([name], manifest.instances)
    posed = manifest.posed(Corpus.open(), name)
    try:
        verdicts = check.check_solution(posed.checked, document)
        for answer, verdict in zip(document["answers"], verdicts, strict=True):
            if "solver" not in answer or "date" not in answer:
                raise Refused(f'{answer["budget"]}: say in "solver" and "date" who found it, and when')
            answers.require(posed, verdict)
        for answer, verdict in zip(document["answers"], verdicts, strict=True):
            old = answers.of(name).get(verdict.budget)
            own = {key: value for key, value in answer.items() if key not in ("bound", "proof", "status")}
            # One that costs as much is no better, however long it says that it took.
            better = old is None or verdict.objective < old["objective"]
            taken = better and answers.offer(posed, own | {"bound": 0})
            word = "is the best known now; `release` writes the sums and the page" if taken else "is no better"
            was = "" if old is None else f"; {'before' if taken else 'the best known'}: {old['objective']}"
            console.print(f"{name} {verdict.budget}: costs {verdict.objective}, {word}{was}")
    except (check.Unreadable, Refused) as error:
        console.print(f"refused: {path.name}: {error}")
        return False
    return True


@app.command()
def release(folder: _Folder = FOLDER, results: _Results = RESULTS) -> None:
    """Chooses the benchmark within the collection, and writes its instances, all rows, SHA256SUMS and the page."""
    write_release(folder, Corpus.open())
    (results / "benchmark.md").write_text(markdown(folder))
    console.print(f"written to {folder}")


@app.command()
def run(
    only: _Only = None,
    time_limit: Annotated[float, typer.Option(min=1e-9, help="Seconds for each row.")] = 60,
    with_anneal: Annotated[bool, typer.Option("--anneal", help="Run `anneal`, too: it takes a C compiler.")] = False,
    folder: _Folder = FOLDER,
    results: _Results = RESULTS,
) -> None:
    """All of it: poses what is new, answers what is not proven, and writes the release. What is done stays done."""
    pose(only, folder)
    solve(only, None, time_limit, folder)
    if with_anneal:
        anneal(only, None, 1, False, folder)
    prove(only, time_limit, folder)
    release(folder, results)


@app.command()
def verify(
    folder: _Folder = FOLDER,
    quick: Annotated[bool, typer.Option("--quick", help="Only files that are there: no instance is made.")] = False,
) -> None:
    """Names each file that is not the one of the release, and each answer that `check.py` does not agree with."""
    wrong = list(wrong_files(folder, None if quick else Corpus.open()))
    for line in wrong:
        console.print(line, style="red")
    if wrong:
        raise typer.Exit(1)
    manifest, answers = Manifest.open(folder), Answers(folder / "answers")
    for name in [] if quick else manifest.instances:
        try:
            posed = manifest.posed(Corpus.open(), name)
        except (ValueError, InvalidGraph) as error:
            console.print(str(error), style="red")
            wrong.append(name)
            continue
        for answer in answers.of(name).values():
            for complaint in check.check(posed.checked, answer).complaints:
                console.print(f"{name} {answer['budget']}: {complaint}", style="red")
                wrong.append(complaint)
    if wrong:
        raise typer.Exit(1)
    what = "files" if quick else f"{len(manifest.instances)} instances and their answers"
    console.print(f"{folder.name}: the {what} are as released")


@app.command()
def write(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the instances, as JSON.")],
    only: _Only = None,
    folder: _Folder = FOLDER,
) -> None:
    """Writes instances of the collection, byte for byte as released."""
    manifest = Manifest.open(folder)
    output.mkdir(parents=True, exist_ok=True)
    for name in _named(only, manifest.instances):
        (output / f"{name}.json").write_bytes(manifest.posed(Corpus.open(), name).data)


def _by_size(only: Sequence[str] | None, manifest: Manifest) -> list[str]:
    return _named(only, sorted(manifest.instances, key=lambda name: manifest.instances[name]["values"]))


def _named(only: Sequence[str] | None, known: Sequence[str] | dict[str, object]) -> list[str]:
    for name in only or ():
        if name not in known:
            raise typer.BadParameter(f"no instance is named {name!r}{near(name, known)}")
    return list(only or known)


if __name__ == "__main__":
    app()
