"""What docs/results/ claims follows from the committed rows: the figures that are easiest to state too well."""

from __future__ import annotations

import re
import statistics
from itertools import pairwise

import numpy as np
import pandas as pd

from experiments.accuracy.compiled_peaks import LABELS, errors
from experiments.bench import simple_searches
from experiments.bench.rivals import ratio, summary, won
from experiments.bench.users_table import our_overhead_at
from experiments.benchmark.answers import Answers
from experiments.benchmark.manifest import FOLDER
from experiments.recipes.beside import largest_difference
from experiments.recipes.recipe_losses import RECIPES
from remat.words import human_bytes
from tests.results_pages import ALL_PAGES, ROOT, rows_of, section, sentences

STATED = sentences(ALL_PAGES)


def claimed(heading: str, label: str) -> str:
    """The row of a table in a section that begins with a label."""
    (row,) = (line for line in section(heading).splitlines() if line.startswith(f"| {label}"))
    return row


def test_how_far_solvers_are_from_the_best_bound_under_a_budget() -> None:
    rows = pd.DataFrame(rows_of("compare_solvers"))
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


def test_predicted_peaks_of_compiled_steps() -> None:
    rows = rows_of("compiled_peaks")
    for group, label in (LABELS | {"": "all"}).items():
        of = [row for row in rows if group in row["group"]]
        figures: list[str] = []
        for kind in ("predicted", "values"):
            off = np.abs(errors(of, kind))
            worst = of[int(off.argmax())]
            spread = f"{np.median(off):.1%} | {np.quantile(off, 0.9):.0%} | {off.max():.0%}"
            figures.append(f"{spread} ({worst['model']}, {worst['plan']})")
        assert f"| {label} | {len(of)} | {figures[0]} | {figures[1]} |" in STATED
    near = [int((np.abs(errors(rows)) <= limit).sum()) for limit in (0.03, 0.1)]
    assert f"{near[0]} of the {len(rows)} steps are within 3%, {near[1]} within 10%" in STATED


def test_a_gpu_beside_what_was_known_without_one() -> None:
    rows = rows_of("gpu_compared")
    models = [[row for row in rows if row["case"] == case] for case in dict.fromkeys(row["case"] for row in rows)]
    stated = sentences(section("A GPU, beside what was known without one"))
    same = [own for own in models if not own[0]["only_with_gpu"] and not own[0]["only_without"]]
    assert f"{len(same)} of {len(models)} joint graphs are the same" in stated
    assert f"those of eager mode in all {len(rows)}" in stated
    assert not any(row["error"] for row in rows)
    equal = [row for own in same for row in own]
    assert f"In these {len(equal)} steps" in stated
    for row in equal:
        assert row["same_plan"]
        assert (row["kernels"], row["bytes"]) == (row["scheduled_kernels"], row["scheduled_bytes"])
    assert f"at most {max(abs(row['scheduled_bytes'] / row['bytes'] - 1) for row in rows):.2%}" in stated
    moved = [abs(row["predicted_bytes"] / row["bytes"] - 1) for row in rows]
    within = sum(error <= 0.05 for error in moved)
    assert f"off by {statistics.median(moved):.1%} in the median and within 5% in {within} of {len(rows)}" in stated
    assert f"the worst is EvoNorm, {max(moved):.0%}" in stated
    peaks = [abs(row["predicted_peak_bytes"] / row["peak_bytes"] - 1) for own in models for row in own[1:]]
    assert f"off by {statistics.median(peaks):.1%} in the median of {len(peaks)} steps" in stated
    within = [sum(error <= limit for error in peaks) for limit in (0.01, 0.1)]
    assert "within 1% in {}, within 10% in {},".format(*within) in stated
    assert f"and by {max(peaks):.0%} at worst" in stated
    timed = [own for own in models if own[0]["group"] == "large"]
    mixed = [row for own in timed for row in own if "AMP" in row["case"]]
    sizes = [abs(row["modelled_s"] / row["median_s"] - 1) for row in mixed]
    assert f"{len(sizes)} steps in mixed precision are off by {statistics.median(sizes):.0%}" in stated
    assert f"{max(sizes):.0%} at worst" in stated
    of = [{row["plan"]: row["median_s"] for row in own} for own in timed]
    speed = [seconds["PyTorch"] / seconds["ours"] for seconds in of]
    assert f"({min(speed):.2f} to {max(speed):.2f} times as fast)" in stated


def test_training_on_a_gpu() -> None:
    rows = rows_of("gpu_training")
    assert {row["verdict"] for row in rows} == {"equal"}
    assert f"{len(rows)} steps equal eager mode" in STATED


def test_recipes() -> None:
    rows = {row["case"]: row for row in rows_of("recipe_losses")}
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
        f"best {peaks[best]:.2f} times TorchInductor's (`{best}`), worst {peaks[worst]:.2f} times (`{worst}`)" in STATED
    )


def test_the_methods_of_other_papers_on_the_benchmark() -> None:
    rows, text = rows_of("rivals"), section("Methods of other papers, on the benchmark")
    stated = sentences(text)
    assert [line for line in text.splitlines() if line.startswith("| ")] == [
        line for line in summary(rows)[0].splitlines() if line.startswith("| ")
    ]
    found = won(rows)
    first, share = found[0]
    assert {row["method"] for row, _ in found} == {"checkmate, rounded"}
    assert f"In {len(found)} budgets of the peak, its answers are cheaper" in stated
    assert f"by {1 - share:.1%} at best ({first['instance']} at {first['budget'].removeprefix('peak-')})" in stated
    low, high = (
        [
            statistics.median(
                one for row in rows if row["method"] == way and row["budget"] == at and (one := ratio(row))
            )
            for way in ("rotor", "chen, any place", "chen, products kept")
        ]
        for at in ("saved-0.1", "saved-0.7")
    )
    assert f"{low[0]:.1f} times the best at 0.1 of the bytes that PyTorch saves, {high[0]:.1f} times at 0.7" in stated
    assert f"{low[1]:.1f} times at 0.1, where nearly everything must go, but {high[1]:.1f} times at 0.7" in stated
    assert f"With products kept, it is {high[2]:.1f} times at 0.7" in stated
    answers = sentences((ROOT / "docs" / "benchmark" / "answers.md").read_text())
    assert f"Later, {len(found)} became cheaper by [Checkmate's relaxation]" in answers
    assert "all on graphs of 2,700 values or more" in stated
    assert min(row["values"] for row, _ in found) >= 2700
    for row, _ in found:
        assert Answers(FOLDER / "answers").of(row["instance"])[row["budget"]]["objective"] <= row["objective"]


def test_the_simple_searches_that_test_the_best_known_answers() -> None:
    rows, stated = rows_of("simple_searches"), sentences((ROOT / "docs" / "benchmark" / "answers.md").read_text())
    ratios = {
        search: [ratio(row) or 1 for row in rows if row["method"] == search] for search in simple_searches.SEARCHES
    }
    counts = {search: (sum(one < 1 for one in of), len(of), min(of)) for search, of in ratios.items()}
    beaten, asked, best = counts["tabu over layers"]
    by_a_percent = sum(one < 0.99 for one in ratios["tabu over layers"])
    assert (
        f"beat {beaten} of {asked} answers, {by_a_percent} of them by more than 1%, by {1 - best:.0%} at most" in stated
    )
    beaten, asked, best = counts["random restarts"]
    assert f"random restarts beat {beaten} of {asked}, by {1 - best:.2%} at most" in stated
    assert counts["perturbed multipliers"][:2] == (0, 8)
    assert "and perturbed multipliers none of 8" in stated
    beaten, asked, best = counts["tabu over layers, again"]
    assert f"a second minute of tabu search for each row beat {beaten} of {asked}, by {1 - best:.2%} at most" in stated
    assert len(ratios["tabu over layers"]) == asked
    assert {case[1:] for case in simple_searches.cases()} <= {(row["instance"], row["budget"]) for row in rows}
    for row in won(rows):
        assert Answers(FOLDER / "answers").of(row[0]["instance"])[row[0]["budget"]]["objective"] <= row[0]["objective"]


def test_measured_steps_on_a_cpu() -> None:
    rows = {(row["case"], row["way"]): row for row in rows_of("measured_steps") if row["case"].endswith("(cpu)")}
    stated = sentences(section("The same, measured"))
    ours = {key: row for key, row in rows.items() if key[1].startswith("ours at the peak of ")}
    pairs = [(row, rows[case, way.removeprefix("ours at the peak of ")]) for (case, way), row in ours.items()]
    ran = [(row, theirs) for row, theirs in pairs if not row["error"]]
    assert len(ran) == len(pairs) == 20
    assert all(row["peak_bytes"] <= theirs["peak_bytes"] for row, theirs in ran)
    assert "On the CPU no peak was above that of PyTorch's way, and no limit was called unreachable" in stated
    defaults = [row["step_s"] / theirs["step_s"] - 1 for row, theirs in ran if theirs["way"] == "PyTorch's default"]
    assert f"{defaults[0]:+.1%}, {defaults[1]:+.1%}, {defaults[2]:+.1%} and {defaults[3]:+.1%}" in stated
    steps = [row["step_s"] / theirs["step_s"] - 1 for row, theirs in ran]
    figures = f"{statistics.median(steps):+.1%} in the median, {min(steps):+.1%} at best, {max(steps):+.1%} at worst"
    assert (
        f"Step times beside PyTorch's: {figures}; {sum(step > 0.02 for step in steps)} of {len(steps)} are slower"
        in stated
    )


def test_the_page_states_how_our_steps_compare_with_pytorchs_one_liners() -> None:
    page, rows = sentences(section("What PyTorch gives in one line, for an H100")), rows_of("users_table")
    assert all(row["our_overhead"] <= row["rival_overhead"] + 1e-3 for row in rows)
    assert all(row["our_peak_bytes"] <= row["peak_bytes"] for row in rows)
    assert (
        f"At all {len(rows)} points, our plan is not slower than PyTorch's plan, and does not exceed its peak" in page
    )
    slow = [row for row in rows if row["rival_overhead"] > 0.005]
    less = [1 - row["our_overhead"] / row["rival_overhead"] for row in slow]
    assert f"is {statistics.median(less):.0%} lower in the median of the {len(slow)} points" in page
    layers = [part for row, part in zip(slow, less, strict=True) if row["rival"].startswith("every layer checkpointed")]
    assert f"the overhead is {statistics.median(layers):.0%} lower in the median" in page
    assert f"{max(layers):.0%} at best, {min(layers):.0%} at worst" in page
    pairs = [(one, two) for one, two in pairwise(rows) if one["case"] == two["case"]]
    slower = [two["our_overhead"] - one["our_overhead"] for one, two in pairs]
    assert (
        f"At {sum(each > 1e-3 for each in slower)} of the {len(rows)} points, our step is more than 0.1% slower" in page
    )
    assert f"at a smaller peak ({max(slower):.1%}, " in page
    seconds = [row["search_s"] for row in rows]
    assert f"A search takes {min(seconds):.0f} to {max(seconds):.0f} s of processor time" in page


def test_the_page_states_how_much_less_overhead_is_possible() -> None:
    page = sentences(section("What PyTorch gives in one line, for an H100"))
    layers = [row for row in rows_of("least_overhead") if row["rival"].startswith("every layer checkpointed")]
    most = [1 - row["least_overhead"] / row["rival_overhead"] for row in layers]
    ours = [1 - our_overhead_at(row) / row["rival_overhead"] for row in layers]
    assert all(one <= other for one, other in zip(ours, most, strict=True)), "no plan is better than the bound"
    assert f"at most {statistics.median(most):.0%} less overhead is possible in the median" in page
    assert f"At {sum(row['least_overhead'] > 0 for row in layers)} of these {len(layers)} peaks, every plan" in page
    low = [row["case"] for row, share in zip(layers, most, strict=True) if share < 0.4]
    assert low == ["hf-vit-base", "hf-llama3-8b-h100"]
    of = {
        row["case"]: shares
        for row, *shares in zip(layers, most, ours, strict=True)
        if row["rival"] == "every layer checkpointed" or row["case"] == "hf-llama3-8b-h100"
    }
    for told, case in (
        ("{:.0%} at most (ours: {:.0%})", "hf-vit-base"),
        ("ours has {1:.0%} less of at most {0:.0%}", "hf-bert-large-sdpa"),
        ("for Llama 3 8B, {1:.0%} of at most {0:.0%}", "hf-llama3-8b-h100"),
    ):
        assert told.format(*of[case]) in page


def test_the_acquisition_function_kernel_by_kernel() -> None:
    rows, stated = rows_of("acquisition"), section("The acquisition function, kernel by kernel")
    counted = {row["case"]: row for row in rows if "ms" in row}
    cells = [line.replace("`", "") for line in stated.splitlines()]
    for case, row in counted.items():
        sizes = [f"{row[fact] / 1e9:.2f}" for fact in ("saved_bytes", "peak_bytes", "moved_bytes")]
        times = [f"{row[fact]:.1f}" for fact in ("ms", "ms_without_arithmetic")]
        line = [*case.split(": ", 1), *sizes, str(row["kernels"]), *times]
        assert f"| {' | '.join(line)} |" in cells
    none, words = counted["botorch: no checkpoint"], sentences(stated)
    shares = [
        [counted[f"{function}: step-time"][fact] / none[fact] for fact in ("moved_bytes", "peak_bytes", "ms")]
        for function in ("factors", "factors, limits off")
    ]
    assert f"moves {shares[0][0]:.3f} of the bytes" in words
    assert f"with {shares[0][1]:.3f} of the peak" in words
    assert f"with the limits off, {shares[1][0]:.3f} and {shares[1][1]:.3f}" in words
    assert f"{shares[1][2]:.2f} of it instead of 0.14" in words
    assert shares[0][0] < 1 / 7, "the page calls the goals for bytes and peak reached"
    assert shares[0][1] < 1 / 5
    moves = sentences(section("What moves so much"))
    cut = counted["botorch: byte-traffic"]
    less = [1 - cut[fact] / none[fact] for fact in ("saved_bytes", "moved_bytes")]
    assert f"saves {less[0]:.0%} less and moves only {less[1]:.0%} less" in moves
    wrong = [row["predicted_bytes"] / row["moved_bytes"] for case, row in counted.items() if "botorch" in case]
    assert f"predicts {min(wrong) - 1:.0%} to {max(wrong) - 1:.0%} too many bytes" in moves
    budget, ours = (counted[f"botorch: {plan}"] for plan in ("memory-budget", "step-time"))
    for fact in ("saved_bytes", "moved_bytes", "kernels", "ms"):
        assert budget[fact] == ours[fact], "the page says that it is the same plan"
    factors_bytes = 512 * 16 * 36 * 255 * 4 * 8
    floor = f"That is 2 F, {2 * factors_bytes / 1e9:.2f} GB, {2 * factors_bytes / none['moved_bytes']:.0%} of the bytes"
    assert floor in moves
    assert all(row["moved_bytes"] >= 2 * factors_bytes for case, row in counted.items() if case.startswith("botorch"))


def test_the_acquisition_function_on_a_cpu() -> None:
    rows = {row["strategy"]: row for row in rows_of("acquisition") if "cpu_ms" in row}
    lines = section("Measured on a CPU").replace("`", "").splitlines()
    for strategy, row in rows.items():
        function, plan = strategy.split(": ")
        share = row["cpu_ms"] / rows["botorch: eager"]["cpu_ms"]
        assert f"| {function} | {plan} | {row['cpu_ms']:.0f} | {share:.2f} |" in lines
    assert max(row["gradient_off"] for row in rows.values()) < 1e-9
    ours = rows["factors: step-time"]["cpu_ms"] / rows["botorch: PyTorch's default"]["cpu_ms"]
    assert f"takes {ours:.0%} of the time of PyTorch's default" in section("Measured on a CPU")


def test_the_acquisition_function_on_a_gpu() -> None:
    rows = {row["strategy"]: row for row in rows_of("acquisition") if "gpu_ms" in row}
    lines = (words := section("An acquisition function")).splitlines()
    for strategy, row in rows.items():
        function, plan = strategy.split(": ")
        assert f"| {function} | {plan} | {row['peak_bytes'] / 1e9:.3f} GB | {row['gpu_ms']:.1f} ms |" in lines
    assert len({row["gradient_norm"] for row in rows.values()}) == 1
    none, ours = (rows[f"botorch: {plan}"] for plan in ("no checkpoint", "step-time"))
    time_share, peak_share = ours["gpu_ms"] / none["gpu_ms"], ours["peak_bytes"] / none["peak_bytes"]
    assert f"takes {time_share:.2f} of the time of no checkpoint and {peak_share:.2f} of its peak" in sentences(words)
    modelled = {row["case"]: row["ms"] for row in rows_of("acquisition") if "ms" in row}
    own, default = (modelled[f"factors: {plan}"] for plan in ("step-time", "PyTorch's default"))
    assert f"{own:.1f} ms were modelled for `step-time` and {default:.1f} ms for the default" in sentences(words)


def test_a_step_that_offloads() -> None:
    rows, words = {row["way"]: row for row in rows_of("measured_copies")}, section("Measured on an H200")
    for way, name in (("recomputed alone", "recomputed alone"), ("copies in their own stream", "copies beside")):
        row, added = rows[way], rows[way]["step_s"] / rows["PyTorch's default"]["step_s"] - 1
        figures = f"{row['peak_bytes'] / 1e9:.3f} GB | {1e3 * row['step_s']:.1f} ms | {added:+.1%} |"
        assert any(line.startswith(f"| {name}") and line.endswith(figures) for line in words.splitlines())
    beside = rows["copies in their own stream"]
    assert f"{beside['host_bytes'] / 1e9:.2f} GB wait on the host" in words
    assert f"The link carries {beside['link_bytes_per_s'] / 1e9:.0f} GB/s" in words
    assert f"Kernels hide {beside['hidden_s'] / beside['copied_s']:.0%} of the copies' time" in words
    assert f"a step of {1e3 * beside['modelled_s']:.0f} ms" in words
    assert rows["copies in the kernels' stream"]["host_bytes"] == 0, "the page says so"


def test_measured_peaks_of_table_2() -> None:
    errors = [abs(row["error"]) for row in rows_of("measured_batches")]
    said = f"{statistics.median(errors):.1%} higher than predicted in the median, with workspace, and {max(errors):.1%}"
    assert said in sentences(section("If saved values are held"))
    assert len(errors) == 9


def test_the_largest_batch() -> None:
    rows, lines = rows_of("largest_batches"), section("The largest batch").splitlines()
    models: dict[str, dict[str, str]] = {}
    for row in rows:
        beside = "" if row["published"] is None else f" / {row['published']:,} ({row['error']:+.0%})"
        models.setdefault(row["case"], {})[row["method"]] = f"{row['batch']:,}{beside}"
    for name, cells in models.items():
        row = " | ".join(cells.get(method, "-") for method in ("full", "min-cut", "none", "ours"))
        assert f"| {name} | {row} |" in lines
    off = [abs(row["error"]) for row in rows if row["published"]]
    words = sentences(section("The largest batch"))
    assert f"the median error of {len(off)} figures is {statistics.median(off):.0%}" in words
    assert f"{sum(error <= 0.15 for error in off)} of them are within 15%" in words
    by = {
        method: statistics.median(abs(row["error"]) for row in rows if row["method"] == method)
        for method in ("full", "min-cut", "none")
    }
    assert "{full:.0%} for full, {min-cut:.0%} for min-cut and {none:.0%} for none".format(**by) in words


def figures(cell: str) -> list[str]:
    return re.findall(r"[-+]?\d[\d.,]*\d%?|\d%?", cell)


def figures_that_a_section_lacks(text: str, where: str) -> set[str]:
    """Figures of a text that do not stand in the section "path#anchor", where other tests compare it with the rows."""
    path, _, anchor = where.partition("#")
    page = (ROOT / path).read_text()
    headings = re.findall(r"^##+ (.+)$", page, re.MULTILINE)
    (heading,) = (one for one in headings if re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") == anchor)
    return {*figures(text)} - {*figures(section(heading, page))}


def test_the_summary_has_figures_of_the_sections_that_it_names() -> None:
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    rows = [line for line in lines if re.search(r"\(.*#.*\) \|$", line)]
    assert len(rows) == 8
    for row in rows:
        *cells, where = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4, "a question, and what is typical, best and worst"
        (target,) = re.findall(r"\((.*?)\)", where)
        assert not figures_that_a_section_lacks(" ".join(cells[1:]), f"docs/{target}")


def test_the_readme_has_three_figures_of_the_sections_that_it_names() -> None:
    readme = (ROOT / "README.md").read_text()
    bullets = re.findall(r"^- (\*\*(?:Predicted|Measured).*?)(?=^- |^$)", readme, re.MULTILINE | re.DOTALL)
    assert len(bullets) == 3
    for bullet in bullets:
        assert "at worst" in bullet.lower()
        (target,) = re.findall(r"\((docs/.*?)\)", bullet)
        told = re.sub(r"\[.*?\]\(.*?\)", "", bullet, flags=re.DOTALL)
        assert not figures_that_a_section_lacks(re.sub(r"H\d+", "", told), target)
