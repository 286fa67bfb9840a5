"""What docs/results.md claims follows from the committed rows: the figures that are easiest to state too well."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from experiments.recipes.table import RECIPES
from experiments.rivals.page import summary

from experiments.accuracy.compiled_peaks import CompiledPeak, errors, once
from experiments.bench.budget_kernels import change, is_better
from experiments.recipes.beside import largest_difference
from remat.words import human_bytes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()


def claimed(heading: str, label: str) -> str:
    """The row of a table in a section that begins with a label."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    section = section.partition("\n### ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| {label}"))
    return row


def paper(table: str) -> dict[str, dict[str, Any]]:
    rows = json.loads((RESULTS / "paper" / f"{table}.json").read_text())["rows"]
    return {row["case"]: row["figures"] for row in rows if row["device"] == "cpu"}


def test_how_far_solvers_are_from_the_best_bound_under_a_budget() -> None:
    rows = pd.read_csv(RESULTS / "solvers.csv")
    rows = rows[rows.cost_model.str.startswith("memory-budget")]
    bound = rows.groupby("instance").bound.max()
    for solver in ("cpsat", "pulp", "lagrangian"):
        cost = rows[rows.solver == solver].set_index("instance").objective
        above = cost / bound - 1
        cells = [cell.strip() for cell in claimed("Solvers on the corpus", f"`{solver}`").split("|")]
        assert cells[2] == f"{above.median():.2%}"
        worst = above.max()
        assert cells[3] == f"{worst:.0%} ({above.idxmax()})" if worst > 0.1 else f"{worst:.1%} ({above.idxmax()})"
        assert cells[4] == str(int((above > 0.001).sum()))


def test_how_near_the_default_for_budgets_comes() -> None:
    rows = pd.DataFrame(json.loads((RESULTS / "budget_gap.json").read_text())["rows"])
    assert (rows.default <= rows.lagrangian).all()
    assert (rows.bound <= rows.default).all()
    for share, own in rows.groupby("share"):
        ours, alone = ((own[solver] / own.bound.clip(lower=1) - 1) for solver in ("default", "lagrangian"))
        cells = [cell.strip() for cell in claimed("Solvers on the corpus", str(share)).split("|")]
        assert (len(own), cells[2], cells[3]) == (44, str(int((ours <= 0.001).sum())), str(int((alone <= 0.001).sum())))
        far = {own.instance[i]: f"{ours[i]:.1%}" for i in ours[ours > 0.001].index}
        assert sorted(f"{name} {gap}" for name, gap in far.items()) == sorted(cells[4].split(", "))
        assert cells[5].startswith(f"{alone.max():.0%}")


def test_plans_at_pytorchs_budgets_by_kernels() -> None:
    rows = json.loads((RESULTS / "budget_kernels.json").read_text())["rows"]
    labels = {"saved_bytes": "saved bytes", "traffic_bytes": "bytes moved", "kernels": "kernels"}
    for fact, label in (labels | {"recompute_ns": "recompute time"}).items():
        cells = [cell.strip() for cell in claimed("Budgets beside PyTorch's", f"{label} |").split("|")[2:-1]]
        fastest, ours = (np.array([change(row, who, fact) for row in rows]) for who in ("portfolio", "no_worse"))
        counted = [" / ".join(str(int(n.sum())) for n in (of < 0, of == 0, of > 0)) for of in (fastest, ours)]
        worst = rows[int(fastest.argmax())]
        named = f"{fastest.max():+.1%} ({worst['instance']} at {worst['budget']})" if fastest.max() > 0 else "none"
        assert cells == [counted[0], named, counted[1], f"{np.median(ours):+.1%}", f"{ours.min():+.1%}"]
        assert ours.max() <= 0, "never worse"
    stated = " ".join(PAGE.split())
    assert f"In {sum(map(is_better, rows))} of {len(rows)} rows it has less of something" in stated
    never = {row["instance"] for row in rows} - {row["instance"] for row in rows if is_better(row)}
    assert f"Nothing is won at any budget on {', '.join(f'`{name}`' for name in sorted(never))}." in stated
    assert (
        f"bytes than PyTorch's plan in {sum(change(row, 'portfolio', 'traffic_bytes') > 0 for row in rows)} of"
        in stated
    )


def test_how_often_ours_recomputes_less_than_pytorch() -> None:
    rows = json.loads((RESULTS / "budgets.json").read_text())["rows"]
    legal = [row for row in rows if not row["illegal"]]
    less = sum(row["ours"] < row["pytorch"] for row in legal)
    assert not any(row["ours"] > row["pytorch"] for row in legal)
    assert all(row["ended"] == "optimal" for row in legal)
    alone = [row["lagrangian"] - row["pytorch"] for row in legal]
    fewer, more = sum(change < 0 for change in alone), sum(change > 0 for change in alone)
    equal = len(legal) - fewer - more
    assert f"alone recomputes less than PyTorch in {fewer}, as much in {equal}, and more in {more}" in PAGE
    assert f"Against the other {len(legal)}, ours recomputes less in {less} and as much in {len(legal) - less}" in PAGE


def test_the_times_of_the_sources_tables() -> None:
    evonorm, base, ours = paper("evonorm"), "eager", "ours, minimum cut"
    shapes = ("(128, 32, 128, 128)", "(128, 2048, 8, 8)")
    printed = [evonorm[f"{s}: {base}"]["step_us"] / evonorm[f"{s}: {ours}"]["step_us"] for s in shapes]
    turns = [evonorm[f"{s}: {ours}"]["speedup"] for s in shapes]
    row = claimed("The sources' tables", "EvoNorm")
    assert "{:.1f} and {:.1f} by the printed times".format(*printed) in row
    assert "{:.1f} and {:.1f} in turns".format(*turns) in row

    gelu, mask, qehvi = paper("gelu"), paper("dropout_mask"), paper("acquisition")
    slower = gelu[ours]["fused_ms"] / gelu["nothing recomputed"]["fused_ms"] - 1
    assert f"{slower:.0%} more than nothing recomputed" in claimed("The sources' tables", "GeLU")
    assert f"{-mask[ours]['time_percent']:.0f}% more" in claimed("The sources' tables", "mask")
    fewer = -paper("cosines")[ours]["over_nothing_percent"]
    assert f"{fewer:.0f}% fewer steps a second" in claimed("The sources' tables", "two cosines")
    longer = qehvi["qEHVI, ours"]["step_s"] / qehvi["qEHVI, no-checkpoint"]["step_s"]
    assert f"{longer:.1f} times as long" in claimed("The sources' tables", "acquisition")


def test_predicted_peaks_of_compiled_steps() -> None:
    rows = once([CompiledPeak(**row) for row in json.loads((RESULTS / "compiled_peaks.json").read_text())["rows"]])
    for group, label in (("zoo", "the zoo"), ("case", "small cases"), ("held out", "held out"), ("", "all")):
        of = [row for row in rows if group in row.group]
        figures: list[str] = []
        for kind in ("predicted", "values"):
            off = np.abs(errors(of, kind))
            worst = of[int(off.argmax())]
            spread = f"{np.median(off):.1%} | {np.quantile(off, 0.9):.0%} | {off.max():.0%}"
            figures.append(f"{spread} ({worst.model}, {worst.plan})")
        assert f"| {label} | {len(of)} | {figures[0]} | {figures[1]} |" in PAGE
    near = [int((np.abs(errors(rows)) <= limit).sum()) for limit in (0.03, 0.1)]
    assert f"{near[0]} of the {len(rows)} steps are within 3%, {near[1]} within 10%" in PAGE


def test_a_gpu_beside_what_was_known_without_one() -> None:
    models = json.loads((RESULTS / "gpu_compared.json").read_text())["models"]
    section = PAGE.split("## A GPU, beside what was known without one\n")[1].split("\n## ")[0]
    stated = " ".join(section.split())
    same = [model for model in models if not model["only_with_gpu"] and not model["only_without"]]
    assert f"{len(same)} of {len(models)} joint graphs are the same" in stated
    rows = [row for model in models for row in model["rows"]]
    assert f"those of eager mode in all {len(rows)}" in stated
    assert not any(row["error"] for row in rows)
    equal = [row for model in same for row in model["rows"]]
    assert f"In these {len(equal)} steps" in stated
    for row in equal:
        assert row["same_plan"]
        assert (row["kernels"], row["bytes"]) == (row["scheduled_kernels"], row["scheduled_bytes"])
    assert f"at most {max(abs(row['scheduled_bytes'] / row['bytes'] - 1) for row in rows):.2%}" in stated
    moved = [abs(row["predicted_bytes"] / row["bytes"] - 1) for row in rows]
    within = sum(error <= 0.05 for error in moved)
    assert f"off by {statistics.median(moved):.1%} in the median and within 5% in {within} of {len(rows)}" in stated
    assert f"the worst is EvoNorm, {max(moved):.0%}" in stated
    peaks = [abs(row["predicted_peak_bytes"] / row["peak_bytes"] - 1) for model in models for row in model["rows"][1:]]
    assert f"off by {statistics.median(peaks):.1%} in the median of {len(peaks)} steps" in stated
    within = [sum(error <= limit for error in peaks) for limit in (0.01, 0.1)]
    assert "within 1% in {}, within 10% in {},".format(*within) in stated
    assert f"and by {max(peaks):.0%} at worst" in stated
    timed = [model for model in models if model["group"] == "large"]
    errors = {
        mixed: [
            row["modelled_s"] / row["median_s"] - 1
            for model in timed
            for row in model["rows"]
            if ("AMP" in model["model"]) == mixed
        ]
        for mixed in (True, False)
    }
    sizes = [abs(error) for error in errors[True]]
    assert f"{len(sizes)} steps in mixed precision are off by {statistics.median(sizes):.0%}" in stated
    assert f"{max(sizes):.0%} at worst" in stated
    assert f"{min(errors[False]):.0%} to {max(errors[False]):.0%} too long" in stated
    speed = []
    for model in timed:
        of = {row["plan"]: row["median_s"] for row in model["rows"]}
        speed.append(of["PyTorch"] / of["ours"])
    assert f"({min(speed):.2f} to {max(speed):.2f} times as fast)" in stated


def test_memory_against_traffic_for_a_gpu() -> None:
    models = json.loads((RESULTS / "gpu_plans.json").read_text())["models"]
    rows = [row for model in models for row in model["rows"] if row["budget"] < 1]
    for row in (row for model in models for row in model["rows"]):
        assert row["ours"]["traffic_bytes"] <= row["pytorch"]["traffic_bytes"]
        assert row["ours"]["saved_bytes"] <= row["pytorch"]["saved_bytes"]
    for (
        model
    ) in models:  # the floor holds for plans that make the same calls; on LSTM-16 they do not, and the page says so
        holds = all(row["floor_bytes"] <= row["ours"]["traffic_bytes"] for row in model["rows"])
        assert holds == (model["name"] != "lstm-16")
    gains = [1 - row["ours"]["traffic_bytes"] / row["pytorch"]["traffic_bytes"] for row in rows]
    section = PAGE.split("## Memory against traffic for a GPU\n")[1].split("\n## ")[0]
    stated = " ".join(section.split())
    fewer = sum(gain > 0 for gain in gains)
    assert f"{len(models)} models and {len(rows)} of PyTorch's budgets" in stated
    assert f"fewer bytes at {fewer} of them, and as many at {len(rows) - fewer}" in stated
    assert f"median of {statistics.median(gains):.1%}, at most {max(gains):.1%}" in stated
    for extra, words in ((0.0, "no more bytes"), (0.01, "1% more"), (0.05, "5% more")):
        less = [
            1 - least["saved_bytes"] / model["rows"][-1]["pytorch"]["saved_bytes"]
            for model in models
            for least in model["least"]
            if least["extra_traffic"] == extra
        ]
        assert f"| {words} | {statistics.median(less):.1%} | {min(less):.1%} | {max(less):.1%} |" in section


def test_a_budget_for_the_whole_run() -> None:
    for row in json.loads((RESULTS / "whole_run.json").read_text())["rows"]:
        ours, alone = (max(row[name][1:]) for name in ("held_bytes", "by_itself_bytes"))
        assert ours <= row["budget_bytes"]
        assert f"| {row['case']} | {row['budget_bytes']:,} | {ours:,} | {alone:,} |" in PAGE


def test_recipes() -> None:
    rows = json.loads((RESULTS / "recipes.json").read_text())["rows"]
    assert rows.keys() == RECIPES.keys()
    peaks: dict[str, float] = {}
    for name, row in rows.items():
        theirs, ours = row["TorchInductor"], row["remat"]
        assert largest_difference(row) <= RECIPES[name].tolerance
        sizes = (ours["default_saved_bytes"], ours["saved_bytes"], theirs["peak_bytes"], ours["peak_bytes"])
        cells = [cell.strip() for cell in claimed("Recipes", f"`{name}`").strip("|").split("|")]
        assert cells[1:] == [f"{largest_difference(row):.1e}", *map(human_bytes, sizes)]
        peaks[name] = ours["peak_bytes"] / theirs["peak_bytes"]
    best, worst = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    assert (
        f"best {peaks[best]:.2f} times TorchInductor's (`{best}`), worst {peaks[worst]:.2f} times (`{worst}`)" in PAGE
    )


def test_rivals() -> None:
    rivals = json.loads((RESULTS / "rivals.json").read_text())["rivals"]
    stated = " ".join(PAGE.split("## Rivals\n")[1].split("\n## ")[0].split())
    graphs, found = rivals["price"]["rows"], summary(rivals["price"]["rows"])
    assert f"reaches {found['reached']} of the {found['pairs']} budgets" in stated
    assert f"any number of recomputations {found['reached_by_checkmate']}." in stated
    ours, free = ([graph["lowest"][rules]["percent"] for graph in graphs] for rules in ("ours", "checkmate"))
    assert f"{min(ours)}% to {max(ours)}% of that without recomputation, and {min(free)}% to {max(free)}%" in stated
    assert all(one["proven"] for graph in graphs for one in graph["lowest"].values())
    (name, most), *_ = found["more"].items()
    equal = found["both_proven"] - len(found["more"])
    assert f"in {found['both_proven']} pairs, ours costs as much in {equal}, and more in {len(found['more'])}" in stated
    assert f"by {most:.0%} at most ({name})" in stated
    assert f"a plan in {found['found_by_search']} of the {found['reached']}, and the best one in" in stated
    assert f"the best one in {found['best_by_search']}." in stated

    rows = [row for row in rivals["moccasin"]["rows"] if "ours" in row]
    assert all(row[rules]["proven"] for row in rows for rules in ("ours", "checkmate"))
    both = [row for row in rows if row["ours"]["cost"] is not None]
    same = sum(row["ours"]["cost"] == row["checkmate"]["cost"] for row in both)
    assert f"at {same} of {len(rows)} budgets" in stated
    (more,) = (row for row in both if row["ours"]["cost"] > row["checkmate"]["cost"])
    times = more["ours"]["cost"] / more["checkmate"]["cost"]
    assert f"{times:.1f} times as much at one ({more['graph']} at {more['share']})" in stated
    (none,) = (row for row in rows if row["checkmate"]["cost"] is None)
    assert f"neither has a schedule ({none['graph']} at {none['share']})" in stated

    theirs = rivals["pytorch"]["rows"]
    assert all(row["extra_flops"] == row["bound_flops"] for row in theirs)
    assert f"at all {len(theirs)}" in stated
    rows = rivals["jax"]["rows"]
    less = {row["case"]: 1 - row["ours_flops"] / row["extra_flops"] for row in rows if row["extra_flops"]}
    fewer = sum(share > 0 for share in less.values())
    assert f"Of JAX's {len(rows)} cases, ours computes less again in {fewer}, and as much in" in stated
    assert f"as much in {len(rows) - fewer}: {less['nothing_saveable, blocks']:.0%} less" in stated
    saved = [row["saved_bytes"] for row in (rivals["thunder"]["rows"][1], theirs[0])]
    assert "saves {:,} bytes on a CPU, PyTorch's default {:,}, and".format(*saved) in stated
