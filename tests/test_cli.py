"""The command line: what it prints, the JSON, the exit codes, and errors without tracebacks."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from commands import answer, once, run
from examples import chain, cosines, impossible
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import remat
from remat import CostModel, Graph, Plan, Problem, Solution, TerminationReason
from remat.answer.registry import costmodel_names, solver_names, usable_solvers
from remat.cli.app import app
from remat.cli.output import quiet, waiting
from remat.plugin import Feature, Solver, Termination, Terms

MIB = 2**20


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    cosines().save(tmp_path / "paper.json.gz")
    return tmp_path / "paper.json.gz"


@pytest.fixture
def conflict(tmp_path: Path) -> Path:
    impossible().save(tmp_path / "impossible.json")
    return tmp_path / "impossible.json"


@dataclass(frozen=True)
class GivesUp(Solver):
    name: ClassVar[str] = "gives-up"
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.TIME_LIMIT})

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        return Solution(None, None, Termination(TerminationReason.LIMIT, limit="time"), None, self.name)


@dataclass(frozen=True)
class Weighed(CostModel):
    """Has an option without a default."""

    name: ClassVar[str] = "weighed"
    unit: ClassVar[str] = "bytes"
    weight: int

    def terms(self, graph: Graph) -> Terms:
        return Terms.nothing(graph)


@pytest.fixture
def plugins() -> Any:
    remat.plugin.register(GivesUp)
    remat.plugin.register(Weighed)
    yield
    remat.plugin.unregister("gives-up")
    remat.plugin.unregister("weighed")


def test_solve_prints_objective_proof_and_the_largest_saved_values(paper: Path) -> None:
    text = run("solve", paper).stdout
    for words in ("8.0 MiB", "proven optimal (flow = cut, verified)", "1 activation, 4.0 MiB", "1 operator", "add3"):
        assert words in text


def test_solve_writes_a_plan_that_loads(paper: Path, tmp_path: Path) -> None:
    document = answer("solve", paper, "-o", tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.saved == ("add3",)
    assert plan.digest == document["digest"]
    assert {key: document[key] for key in ("objective", "bound", "proven", "saved_bytes", "saved_activations")} == {
        "objective": 8 * MIB,
        "bound": 8 * MIB,
        "proven": True,
        "saved_bytes": 4 * MIB,
        "saved_activations": ["add3"],
    }


@pytest.mark.parametrize(
    ("arguments", "of", "label"),
    [
        (["-O", "mode=aggressive"], "cost_model", "ByteTraffic(mode='aggressive')"),
        (["-O", 'rules={"used_far_apart": false}'], "cost_model", "ByteTraffic(rules={'used_far_apart': False})"),
        (["-m", "byte-traffic:mode=aggressive"], "cost_model", "ByteTraffic(mode='aggressive')"),
        (
            ["-m", 'byte-traffic:rules={"random": true, "not_fusible": false},free_parameters=true'],
            "cost_model",
            "ByteTraffic(rules={'random': True, 'not_fusible': False}, free_parameters=True)",
        ),
        (["-s", "networkx", "-S", "flow_func=dinitz"], "solver", "NetworkX(flow_func='dinitz')"),
    ],
)
def test_options_are_json_or_text(paper: Path, arguments: list[str], of: str, label: str) -> None:
    assert answer("solve", paper, *arguments)[of] == label


WRONG_OPTIONS_OF_SOLVE: list[tuple[list[str], str]] = [
    (["-O", "mod=aggressive"], "no option 'mod'; did you mean 'mode'? There are: mode, rules, free_parameters"),
    (["-s", "ortools", "-S", "threads=4"], "ortools has no option 'threads'; there are: none"),
    (["-O", "mode=fast"], "must be one of conservative, aggressive, got 'fast'"),
    (["-O", "free_parameters=yes"], "must be true or false, got 'yes'"),
    (["-O", "rules=none"], "error: -O rules=none: byte-traffic: rules must be a JSON object"),
    (
        ["-m", "memory-budget", "-O", "budget=much"],
        "error: -O budget=much: MemoryBudget.budget must be a fraction from",
    ),
    (["-m", "memory-budget:budget=much"], "error: memory-budget:budget=much: MemoryBudget.budget must be"),
    (["-m", "memory-budget:budget=0.5,offload=maybe"], "no device is named 'maybe'"),
    (["-m", "memory-budget:budget=0.5,of=device"], 'size such as "80GB" where of="device", got 0.5'),
    (["-s", "portfolio", "-S", "seconds=-1"], "error: -S seconds=-1: Portfolio.seconds must be a number from 0 on"),
    (["-m", "memory-budget", "-O", f"budget={10_000 * '9'}"], f"got '{59 * '9'}... (10,002 characters)"),
    (["-s", "cpsat", "-S", f"workers={400 * '9'}"], f"1 to 10,000 threads, got {60 * '9'}"),
    (["-O", "mode"], "expected KEY=VALUE, got 'mode'"),
    (["-m", "weighed"], "weighed needs a value for weight: weight=VALUE"),
    (["--time-limit", "0"], "--time-limit"),
]
TWO_MODELS = ("-m", "byte-traffic", "-m", "multi-read")
ONE_MEMORY = "--largest-batch needs --memory, such as --memory 80GB, and at most one -m"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((["solve", "PAPER", *options], message) for options, message in WRONG_OPTIONS_OF_SOLVE),
        (["compare", "PAPER", *TWO_MODELS, "-O", "mode=aggressive"], "NAME:KEY=VALUE for"),
        (["capture", "factories", "-o", "g.json"], "expected MODULE:FACTORY"),
        (["capture", 10_000 * "x", "-o", "g.json"], "xxx... (10,002 characters)"),
        (
            ["frontier", "PAPER", "--against", "step", "-s", "cpsat", "-e", "flops"],
            "--estimator, --solver have no meaning against step",
        ),
        (["frontier", "PAPER", "--device", "h100"], "--device has no meaning against time"),
        (["frontier", "PAPER", "--title", "page"], "--title has no meaning without --html"),
        (["frontier", "PAPER", "--html", "page.html", "--device", "h100"], "--device has no meaning for a page"),
        (
            ["frontier", "PAPER", "--html", "page.html", "--plans", "folder"],
            "leave out --html, or --against step, --plans, --offload and --output",
        ),
        (["frontier", "PAPER", "PAPER"], "name only one GRAPH"),
        (["forecast", "json:loads", "--largest-batch"], ONE_MEMORY),
        (["forecast", "json:loads", "--largest-batch", "--memory", "1MB", *TWO_MODELS], ONE_MEMORY),
        (["inspect", "traffic", "PAPER", "--plan", "p.json", "-m", "byte-traffic"], "leave them out"),
        (["inspect", "timeline", "PAPER", "--plan", "p.json", "-m", "byte-traffic"], "leave them out"),
        (["device", "--device", "tpu"], 'device must be "cpu", "cuda", or None'),
    ],
)
def test_wrong_usage_is_explained_and_ends_with_2(
    paper: Path, plugins: None, arguments: list[str], message: str
) -> None:
    result = run(*(str(paper) if argument == "PAPER" else argument for argument in arguments), code=2)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "missing.json"], "missing.json: No such file"),
        (["solve", "."], ".: Is a directory"),
        (["solve", "PAPER", "-s", "ortools", "--time-limit", "3"], "does not support a time limit"),
        (["solve", "PAPER", "-o", "no/such/folder/plan.json"], "no/such/folder/plan.json: No such file"),
        (["compare", "missing.json"], "missing.json: No such file"),
        (["inspect", "picture", "PAPER", "-o", "p.svg", "--plan", "missing.json"], "missing.json: No such file"),
        (["capture", "no_such_module:f", "-o", "g.json"], "cannot import 'no_such_module'"),
        (["capture", "os:path", "-o", "g.json"], "os:path must be a function that returns (model, args[, kwargs])"),
        (
            ["capture", "json:dump", "-o", "g.json"],
            "json:dump must be a function that can be called with no arguments: missing a required",
        ),
        (["solve", "DIGITS"], "not JSON, or truncated (Exceeds the limit"),
    ],
)
def test_errors_are_one_message_on_stderr_and_end_with_1(paper: Path, arguments: list[str], message: str) -> None:
    digits = paper.with_name("digits.json")
    digits.write_text(10_000 * "9")
    files = {"PAPER": str(paper), "DIGITS": str(digits)}
    result = run(*(files.get(argument, argument) for argument in arguments), code=1)
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert (result.stdout, "Traceback" in result.stderr) == ("", False)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["solve", "PAPER", "-m", "byte-trafic"], "byte-traffic"),
        (["solve", "PAPER", "-s", "ortool"], "ortools"),
        (["compare", "PAPER", "-s", "ortool"], "ortools"),
        (["frontier", "PAPER", "-e", "rofline"], "roofline"),
        (["inspect", "traffic", "PAPER", "--device", "h1000"], "h100"),
        (["forecast", "json:loads", "--optimizer", "adamx"], "adamax"),
        (["corpus", "get", "resnet5", "-o", "g.json"], "resnet50"),
        (["corpus", "list", "--family", "transformers"], "transformer"),
        (["explain", "PAPER", "add33"], "add3"),
        (["inspect", "picture", "PAPER", "-o", "p.svg", "--around", "add33"], "add3"),
        (["capture", "json:dump_", "-o", "g.json"], "dump"),
    ],
)
def test_wrong_names_end_alike_with_the_nearest_one(paper: Path, arguments: list[str], meant: str) -> None:
    result = run(*(str(paper) if argument == "PAPER" else argument for argument in arguments), code=2)
    assert result.stderr.startswith("error: ")
    assert re.search(rf"; did you mean {meant!r}\?( There are: .*)?\n$", result.stderr)
    assert result.stdout == ""


def test_a_name_like_no_graph_of_the_corpus_is_told_where_they_are_listed() -> None:
    told = run("solve", "nothing-like-it", code=2).stderr
    assert "no graph of the corpus has this name; `remat corpus list` names all" in told


def test_infeasible_ends_with_3_and_the_conflict_and_a_limit_without_a_plan_with_4(
    conflict: Path, paper: Path, plugins: None
) -> None:
    assert "cannot be saved (a tuple)" in run("solve", conflict, code=3).stderr
    assert run("explain", conflict, "seed", code=3).stdout == ""
    assert "found no plan within its time limit" in run("solve", paper, "-s", "gives-up", code=4).stderr


def test_compare_has_a_row_for_each_combination(paper: Path, tmp_path: Path) -> None:
    chain(3).save(tmp_path / "chain.json")
    models = ["-m", "byte-traffic", "-m", "byte-traffic:mode=aggressive"]
    rows = answer("compare", paper, tmp_path / "chain.json", *models, "-s", "ortools", "-s", "networkx")
    assert len(rows) == 8
    assert {row["objective"] for row in rows if row["graph"] == str(paper)} == {8 * MIB}
    assert "flow = cut, verified" in run("compare", paper, "-s", "ortools").stdout


def test_compare_fits_80_columns_with_every_solver_and_objective(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.cli.output.console", lambda: Console(width=80))
    monkeypatch.chdir(paper.parent)
    lines = run("compare", paper.name, "-m", "byte-traffic", "-O", "mode=aggressive").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "paper.json.gz: byte-traffic:mode=aggressive"
    starts = [" ".join(line.split()[:2]) for line in lines]
    assert {f"{name} 8.0" for name in usable_solvers()} <= set(starts)


def every_command() -> Iterator[tuple[str, Any]]:
    """All commands with their names, and those of groups: ("inspect timeline", ...)."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        yield from ((f"{name} {one}", part) for one, part in inner.items())
        if not inner:
            yield name, command


def test_whoever_takes_a_cost_model_takes_its_options() -> None:
    options = {name: {text for option in command.params for text in option.opts} for name, command in every_command()}
    takers = {name for name, texts in options.items() if "-m" in texts}
    assert {"inspect traffic", "inspect timeline", "inspect kernels", "forecast", "compare"} <= takers
    assert takers == {name for name, texts in options.items() if "-O" in texts}


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[tuple[bool, bool], str] = {}
    for terminal in (True, False):
        for as_json in (True, False):
            err = Console(file=io.StringIO(), force_terminal=terminal, width=80)
            monkeypatch.setattr("remat.cli.output.Console", lambda stderr, err=err: err)
            token = quiet.set(as_json)
            with waiting("solving") as say:
                say("1 of 2")
            quiet.reset(token)
            shown[terminal, as_json] = err.file.getvalue()
    assert "solving: 1 of 2" in shown.pop((True, False))
    assert set(shown.values()) == {""}


def test_explain_says_what_the_library_says(paper: Path) -> None:
    assert run("explain", paper, "add3").stdout == f"{remat.explain(cosines(), 'add3')}\n"
    document = answer("explain", paper, "add3")
    assert (document["decision"], document["alternative"]["extra_cost"]) == ("saved", 4 * MIB)


@pytest.mark.parametrize("plan", [[], ["--plan", "solved"], ["--plan", "FILE"]])
def test_show_writes_a_picture(paper: Path, tmp_path: Path, plan: list[str]) -> None:
    saved = Plan(("add3",), ("cos1", "sin2", "sin1"))
    saved.save(tmp_path / "plan.json")
    arguments = [str(tmp_path / "plan.json") if argument == "FILE" else argument for argument in plan]
    document = answer("inspect", "picture", paper, "-o", tmp_path / "picture.svg", *arguments)
    assert document == {"picture": str(tmp_path / "picture.svg"), "plan": saved.digest if plan else None}
    assert "<svg" in (tmp_path / "picture.svg").read_text()


BROKEN = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(9, 2)

    def forward(self, x):
        return self.second(self.first(x))

def shapes(): return Model(), (torch.randn(2, 4),)
def raises(): return helper()
def helper(): raise KeyError("no such head")
def lines(): raise ValueError("\\n".join("abcdefgh"))
"""


@pytest.mark.parametrize(
    ("factory", "shown"),
    [
        ("shapes", ["in forward", "return self.second(self.first(x))", "RuntimeError: "]),
        ("raises", ["in raises", "in helper", "KeyError: 'no such head'"]),
        ("lines", ["in lines", "ValueError: a\nb\nc\nd\ne\n... and 3 lines more"]),
    ],
)
def test_an_error_of_the_model_s_shows_the_user_s_lines_and_no_others(
    factory: str, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"broken_{factory}.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    said = run("capture", f"broken_{factory}:{factory}", "-o", "g.json", code=1).stderr
    assert said.startswith("error: the model or its factory failed\n")
    assert [text for text in shown if text not in said] == []
    assert {line.split('"')[1] for line in said.splitlines() if line.startswith("  File")} == {
        str(tmp_path / f"broken_{factory}.py")
    }
    assert len(said.splitlines()) < 12


def test_an_error_of_remat_keeps_its_traceback(
    factories: list[Any], monkeypatch: pytest.MonkeyPatch, paper: Path
) -> None:
    def fails(*_: object, **__: object) -> Graph:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(vars(remat), "capture", fails)
    for call in (["capture", "factories_of_this_test:good", "-o", "graph.json"], ["solve", str(paper)]):
        monkeypatch.setattr("remat.cli.solve_command.warm_up", fails)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            CliRunner().invoke(app, call, catch_exceptions=False)


FACTORIES = """
def good(): return "model", (1, 2)
def with_kwargs(): return "model", [1], {"scale": 2}
def bad(): return "model"
def half(): return "model", 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module of factories in the current directory; what `remat.capture` was called with."""
    calls: list[Any] = []

    def capture(model: object, *args: object, **kwargs: object) -> Graph:
        calls.append((model, args, kwargs))
        return cosines()

    (tmp_path / "factories_of_this_test.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(vars(remat), "capture", capture)
    yield calls
    sys.modules.pop("factories_of_this_test", None)


def test_capture_calls_the_factory_and_writes_the_graph(factories: list[Any], tmp_path: Path) -> None:
    run("capture", "factories_of_this_test:good", "-o", "graph.json.gz")
    document = answer("capture", "factories_of_this_test:with_kwargs", "-o", "graph.json.gz")
    assert factories == [("model", (1, 2), {"device": None}), ("model", (1,), {"device": None, "scale": 2})]
    assert Graph.load(tmp_path / "graph.json.gz") == cosines()
    assert (document["graph"], document["values"]) == ("graph.json.gz", 14)


@pytest.mark.parametrize(("factory", "got"), [("bad", r"(str)"), ("half", "(str, int)")])
def test_capture_refuses_what_is_no_model_with_arguments(factories: list[Any], factory: str, got: str) -> None:
    result = run("capture", f"factories_of_this_test:{factory}", "-o", "graph.json", code=1)
    assert f"must return (model, tuple of args) or (model, tuple of args, dict of kwargs), got {got}" in result.stderr
    assert factories == []


def test_solvers_lists_what_is_registered() -> None:
    listed = {one["name"]: one for one in answer("plugins", "solvers")}
    assert sorted(listed) == solver_names()
    assert listed["pulp"]["features"] == ["budget", "offload", "rows", "tied", "time_limit"]
    assert listed["scipy"]["options"]["method"]["choices"] == "dinic|edmonds_karp"
    assert "budget, offload, rows, tied, time limit" in run("plugins", "solvers").stdout


def test_costmodels_lists_options_and_rules_with_their_sources(plugins: None) -> None:
    listed = {one["name"]: one for one in answer("plugins", "costmodels")}
    assert sorted(listed) == costmodel_names()
    assert {"name": "compute_bound", "reason": "compute-bound", "source": "paper 3.1 (3); post"} in listed[
        "byte-traffic"
    ]["rules"]
    assert listed["weighed"]["options"]["weight"]["required"]
    text = run("plugins", "costmodels").stdout
    for words in ("mode=conservative|aggressive", "Lemma 3.1", "weight="):
        assert words in text


def test_an_option_reads_the_same_in_every_command() -> None:
    said: dict[tuple[str, ...], set[str | None]] = {}
    for _, command in every_command():
        for option in command.params:
            said.setdefault(tuple(option.opts), set()).add(getattr(option, "help", None))
    differ = {options[0] for options, texts in said.items() if len(texts) > 1}
    # Another kind; one, or several; to measure; of a batch size; for traffic alone; for each solve, not for all.
    another = {"--output", "--cost-model", "--solver", "--device", "factory", "--time-limit"}
    assert differ == another
    assert len(said["--json",]) == 1


def test_help_fits_80_columns_and_breaks_no_line() -> None:
    for name, command in [("", get_command(app)), *every_command()]:
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout.splitlines()
        assert max(map(len, shown)) <= 80, name
        _, _, after_the_first = (command.help or "").partition("\n\n")
        for line in after_the_first.replace("\b", "").splitlines():
            assert line.strip() in [one.strip() for one in shown], (name, line)


def test_a_command_of_earlier_versions_answers_with_its_new_spelling() -> None:
    names = {name for name, _ in every_command()}
    earlier = "pose show traffic-frontier timeline traffic kernels report largest-batch refine"
    for name in (*earlier.split(), "solvers", "costmodels", "estimators"):
        (line,) = run(name, "graph.json", "--json", code=2).stderr.splitlines()
        _, old, _, new, _ = line.split("`")
        assert (old, line.startswith("error: ")) == (f"remat {name}", True)
        assert any(f"{new} ".startswith(f"remat {one} ") for one in names), line
    assert len(get_command(app).commands) == 10  # type: ignore[attr-defined]


def test_plans_of_a_frontier_against_time_are_written(paper: Path, tmp_path: Path) -> None:
    document = answer("frontier", paper, "--plans", tmp_path / "plans")
    points = document["points"]
    assert document["references"] == document["landmarks"] != []  # the old name stays until 0.4
    digests = {Plan.load(tmp_path / "plans" / f"{point['saved_bytes']}.json").digest for point in points}
    assert digests == {point["plan"] for point in points}


def test_all_plugins_are_the_three_lists() -> None:
    kinds = ("solvers", "costmodels", "estimators")
    assert answer("plugins") == {kind: answer("plugins", kind) for kind in kinds}
    text = run("plugins").stdout
    assert all(kind.upper() in text for kind in kinds)


def test_version() -> None:
    assert run("--version").stdout == f"remat {remat.__version__}\n"


def test_python_m_remat_is_the_command_and_a_real_process_survives_a_closed_pipe(paper: Path) -> None:
    command = [sys.executable, "-m", "remat"]
    solved = subprocess.run([*command, "solve", paper, "--json"], check=True, capture_output=True, text=True)
    assert json.loads(solved.stdout)["objective"] == 8 * MIB
    assert solved.stderr == ""
    with subprocess.Popen([*command, "plugins"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as closed:
        closed.stdout.close()
        assert b"Traceback" not in closed.stderr.read()


def test_traffic_lists_every_kernel_with_what_it_moves(paper: Path, tmp_path: Path) -> None:
    Plan(("add3",), ("cos1", "sin2", "sin1")).save(tmp_path / "plan.json")
    call = "inspect", "traffic", paper, "--plan", tmp_path / "plan.json"
    assert "2 kernels for CPUs (1 forward, 1 backward)" in run(*call).stdout
    found = answer(*call)
    assert (found["reads"], found["writes"]) == (6, 3)
    assert sum(kernel["read_bytes"] + kernel["written_bytes"] for kernel in found["kernels"]) == found["bytes"]
    assert len(answer(*call, "--no-fused")["kernels"]) > 2
    assert answer(*call)["backend"] == "cpu"
    assert answer(*call, "--device", "h100")["backend"] == "triton"


def test_traffic_of_a_device_has_a_modelled_time(paper: Path) -> None:
    line = run("inspect", "traffic", paper, "--device", "h100").stdout.splitlines()[-1]
    assert line.startswith("modelled for NVIDIA H100 SXM, not measured: ")
    found = answer("inspect", "traffic", paper, "--device", "h100")["modelled"]
    assert found["device"] == "NVIDIA H100 SXM"
    assert found["forward_ns"] > 4000 < found["backward_ns"]  # a launch is in both


def test_a_frontier_against_step_prints_its_points_and_writes_their_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "frontier", "small-dropout-mlp", "--against", "step", "--budgets", 3, "--device", "h100"
    monkeypatch.setitem(vars(remat), "step_frontier", once(remat.step_frontier))
    found = answer(*line, "--plans", tmp_path / "plans", "-o", tmp_path / "steps.svg")
    assert "activation_memory_budget" in (tmp_path / "steps.svg").read_text()
    graph = remat.Corpus.open().graph("small-dropout-mlp")
    for point in found["points"]:
        plan = Plan.load(tmp_path / "plans" / f"{point['peak_bytes']}.json")
        assert plan.digest == point["plan"]
        assert remat.timeline(graph, plan, device="h100").peak_bytes == point["peak_bytes"]
    assert "the folder must be new" in run(*line, "--plans", tmp_path / "plans", code=2).output
    assert "PyTorch's default" in run(*line).output


def test_a_file_comes_before_a_name_of_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cosines().save("vgg16")
    assert answer("solve", "vgg16")["values"] == len(cosines())
    assert "did you mean 'vgg19'" in run("solve", "vgg199", code=2).stderr
    assert "did you mean 'vgg19'" in run("solve", "VGG19", code=2).stderr
    for missing in ("vgg19.json.gz", "folder/vgg19.json"):
        hint = run("solve", missing, code=2).stderr
        assert f"error: {missing}: no such file, but the corpus has this graph: name it 'vgg19'" in hint
        assert f"remat corpus get vgg19 -o {missing}" in hint


def test_a_module_may_be_named_by_its_file(factories: list[Any], tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    for file in ("nets/inner.py", "outer_net.py"):
        (tmp_path / file).write_text(f"def net(): return {file!r}, (1, 2)\n")
    elsewhere = tmp_path.parent / "elsewhere_net.py"
    elsewhere.write_text((tmp_path / "outer_net.py").read_text())
    files = (
        "outer_net.py",
        f"{tmp_path}/outer_net.py",
        "nets/inner.py",
        "nets/../nets/inner.py",
        "../elsewhere_net.py",
    )
    for named in (*(f"{file}:net" for file in files), f"{elsewhere}:net", "nets.inner:net"):
        assert "written to" in run("capture", named, "-o", "net.json").stdout
        assert factories.pop()[0] == ("nets/inner.py" if "inner" in named else "outer_net.py")
    assert "No module named 'nowhere_net'" in run("capture", "nowhere_net.py:net", "-o", "net.json", code=1).stderr


def test_h_is_help_of_each_command_and_the_exit_codes_are_told() -> None:
    text = run("-h").stdout
    assert text == run("--help").stdout
    for words in ("Exit codes", "0    done", "3    infeasible", "4    a limit", "capture", "plugins"):
        assert words in text
    for name, _ in every_command():
        assert "--help" in run(*name.split(), "-h").stdout


def test_estimators_are_listed_with_every_device() -> None:
    listed = run("plugins", "estimators").stdout
    for device in ("h100", "h200", "a100", "a100-40gb", "a100-80gb", "rtx-4090", "cpu", "here"):
        assert f"{device}," in listed or f" {device} (" in listed


def test_a_price_is_listed_only_where_saving_has_one(paper: Path) -> None:
    assert "price" in run("solve", paper).stdout
    free = run("solve", paper, "-m", "recompute-time").stdout
    assert "saved activation" in free
    assert "price" not in free
