"""The benchmark's checker trusts nobody: it says what `check_plan` and the simulator say, and needs nothing of ours."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import numpy as np
import pytest
from depth import deep_except, drawn
from hypothesis import given
from hypothesis import strategies as st

from costmodels import RecomputeTime
from experiments.benchmark import check
from remat import Choice, Corpus, Graph, InvalidPlan, Problem, Simulator, check_plan
from remat.predict.memory.memory_export import stated_memory
from remat.problem.problem_file import Budget, problem_document
from remat.testing import graphs, problems

FOLDER = Path(check.__file__).parent
CORPUS = Corpus.open()


def schema(kind: str) -> jsonschema.Draft202012Validator:
    document = json.loads((FOLDER / f"{kind}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


INSTANCE, SOLUTION = schema("instance"), schema("solution")


def distinct(part: Any) -> Any:
    """A document with each value of a column once, for a schema that would say the same thing of each of 10^5 zeros.

    Only names must differ, which the checker looks at, too.
    """
    if isinstance(part, dict):
        return {key: distinct(value) for key, value in part.items()}
    return list({(type(one), str(one)): one for one in part}.values()) if isinstance(part, list) else part


def assert_agree(problem: Problem, instance: check.Instance, choice: Choice, budget: str = "saved") -> None:
    """The checker and `check_plan` say the same of a plan that is written out."""
    answer = {
        "budget": budget if problem.budget_bytes is not None else "none",
        "saved": np.flatnonzero(choice.saved).tolist(),
        "recomputed": np.flatnonzero(choice.recomputed).tolist(),
    }
    verdict = check.check(instance, answer)
    assert verdict.saved_bytes == choice.saved_bytes(problem)
    if not verdict.complaints:
        assert check_plan(problem, choice.plan(problem)) == verdict.objective
        return
    assert any(line.startswith("rule") for line in verdict.complaints)
    with pytest.raises(InvalidPlan) as refused:
        check_plan(problem, choice.plan(problem))
    assert str(refused.value).count("\n  ") == len(verdict.complaints)  # as many broken rules


@drawn(600)
@given(data=st.data(), problem=problems(feasible=None) | problems(feasible=None, budget=True))
def test_it_agrees_with_check_plan_on_any_plan(data: st.DataObject, problem: Problem) -> None:
    instance = check.Instance(problem_document(problem), "")
    flags = st.lists(st.booleans(), min_size=len(problem), max_size=len(problem)).map(np.array)
    saved, recomputed = data.draw(flags), data.draw(flags)
    assert_agree(problem, instance, Choice(saved, recomputed))
    follows = Choice.from_saved(problem, saved)
    assert_agree(problem, instance, follows)
    verdict = check.check(instance, {"budget": "none", "saved": np.flatnonzero(follows.saved).tolist()})
    assert verdict.objective == follows.cost(problem)  # what is recomputed may be left out


@drawn(600)
@given(data=st.data(), graph=graphs())
def test_it_agrees_with_the_simulator_on_any_graph(data: st.DataObject, graph: Graph) -> None:
    problem = RecomputeTime().pose(graph)
    instance = check.Instance(problem_document(problem, memory=stated_memory(graph)), "")
    simulator = Simulator(graph)
    for _ in range(3):
        saved = np.array(data.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem))), np.bool_)
        verdict = check.check(instance, {"budget": "none", "saved": np.flatnonzero(saved).tolist()})
        assert verdict.peak == simulator.peak(graph.for_all_values(saved))


FEW = ["small-dropout-mlp", "qei-8", "qehvi-8", "vgg16", "small-lstm-cells", "small-gpt-fused-attention"]


@pytest.mark.parametrize("name", deep_except(FEW, [entry.name for entry in CORPUS.entries]))
def test_schema_and_peak_of_every_instance(name: str) -> None:
    """Real graphs have what drawn ones lack; of random plans, and of corrupted ones, there are more above."""
    graph = CORPUS.graph(name)
    problem = RecomputeTime().pose(graph)
    budgets = [Budget("saved", "saved", int(problem.save_bytes.sum()) // 3), Budget("peak-0.5", "peak", 0)]
    document = problem_document(problem, name=name, unit="ns", budgets=budgets, memory=stated_memory(graph))
    document = json.loads(json.dumps(document))
    INSTANCE.validate(distinct(document))
    instance, simulator = check.Instance(document, ""), Simulator(graph)
    random = np.random.default_rng(len(problem))
    for share in (0.02, 0.3):
        wanted = (random.random(len(problem)) < share) & ~problem.cannot_save.mask | problem.cannot_recompute.mask
        choice = Choice.from_saved(problem, wanted)
        assert_agree(problem, instance, choice)
        found = check.check(instance, {"budget": "none", "saved": np.flatnonzero(choice.saved).tolist()})
        assert found.peak == simulator.peak(graph.for_all_values(choice.saved))


def write(folder: Path, name: str, document: dict[str, Any]) -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


def solved(folder: Path, **changed: Any) -> tuple[Path, Path]:
    """An instance of three values with a right answer to it, changed."""
    problem = Problem.of(
        [4, 2, 9], edges=[(0, 1), (1, 2)], needed=[2], cannot_recompute={0: "an input"}, budget_bytes=5
    )
    instance = write(folder, "chain.json", problem_document(problem, name="chain", unit="ns"))
    answer = {"budget": "saved", "saved": [1], "recomputed": [2], "objective": 2, "bound": 2, "status": "optimal"}
    answer = {key: value for key, value in {**answer, **changed}.items() if value is not None}
    digest = check.read(instance, "remat.problem")[1]
    solution = {"format": "remat.solution", "version": 1, "instance": "chain", "sha256": digest, "answers": [answer]}
    return instance, write(folder, "solution.json", solution)


def run(*arguments: object, script: Path = FOLDER / "check.py") -> tuple[int, str]:
    """The script by itself: no package can be imported that does not come with Python."""
    command = [sys.executable, "-I", "-S", str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_it_runs_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_bytes((FOLDER / "check.py").read_bytes())
    code, said = run(*solved(tmp_path), script=script)
    assert (code, said) == (0, "chain saved: feasible, objective 2 ns, saves 2 bytes\n")
    tree = ast.parse(script.read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= sys.stdlib_module_names
    annotated = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    assert not annotated  # Python 3.8 would evaluate them


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"saved": [1, 1]}, "rule 1: listed twice: 1 v1"),
        ({"saved": [1, 2]}, "rule 2: both saved and recomputed: 2 v2"),
        ({"recomputed": []}, "rule 3: needed, but neither saved nor recomputed: 2 v2"),
        ({"saved": []}, "rule 4: recomputed from a value that is neither saved nor recomputed: 2 v2"),
        ({"saved": [], "recomputed": [0, 1, 2]}, "rule 6: cannot be recomputed (an input), but is: 0 v0"),
        ({"saved": [2], "recomputed": []}, "rule 7: saves 9 bytes, but the budget is 5"),
        ({"objective": 3}, "claim 1: costs 2, but claims 3"),
        ({"bound": 3}, "claim 2: costs 2, less than the bound 3 that it claims"),
        ({"bound": 1}, 'claim 3: "optimal", but the bound that it claims is 1, and it costs 2'),
    ],
)
def test_a_broken_rule_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    code, said = run(*solved(tmp_path, **changed))
    assert code == 1
    assert f"  {message}\n" in said
    assert ("NOT FEASIBLE" in said) == message.startswith("rule")


def test_what_may_be_left_out(tmp_path: Path) -> None:
    left_out = dict.fromkeys(("recomputed", "objective", "bound", "status"))
    assert run(*solved(tmp_path, **left_out))[0] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": "saved-0.5"}, "chain has no budget 'saved-0.5'; it has saved"),
        ({"saved": [3]}, '"saved" must hold whole numbers from 0 to 2, got 3'),
        ({"saved": [True]}, "got True"),
        ({"saved": [1.0]}, "all numbers are whole, got 1.0"),
        ({"status": "best"}, '"status" must be "optimal" or "feasible"'),
        ({"saved": None}, 'an answer needs "saved"'),
        ({"recomputd": [2]}, "an answer has no 'recomputd'; it has budget, saved, recomputed"),
        ({"seconds": "long"}, "\"seconds\" must hold whole numbers from 0 to 4611686018427387903, got 'long'"),
        ({"date": "soon"}, '"date" must be such as "2026-01-31", got \'soon\''),
        ({"date": "2026-02-30"}, "got '2026-02-30'"),
        ({"solver": 7}, '"solver" must be a line of text, got 7'),
        ({"solver": "a\nchain saved: feasible"}, '"solver" must be a line of text, got'),
        ({"date": "2026-1-31"}, '"date" must be such as "2026-01-31"'),
        ({"date": "\u0662\u0660\u0662\u0666-01-31"}, '"date" must be such as "2026-01-31"'),
        ({"bound": 10**80}, "got " + "1" + 59 * "0" + "...\n"),
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    instance, solution = solved(tmp_path, **changed)
    code, said = run(instance, solution)
    assert code == 2
    assert message in said
    # Of these the schema knows too little.
    if changed.keys() != {"budget"} and changed not in ({"saved": [3]}, {"date": "2026-02-30"}):
        assert not SOLUTION.is_valid(json.loads(solution.read_text())) or changed == {"saved": [1.0]}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: {**d, "answers": []}, 'a list of "answers", of one at least'),
        (lambda d: {**d, "answers": 2 * d["answers"]}, 'one answer to a budget, but two to "saved"'),
        (lambda d: {**d, "version": True}, '"version": 1'),
        (lambda d: {**d, "more": 1}, "a solution has no 'more'; it has format, version, instance"),
        (lambda d: {**d, "answers": [{**d["answers"][0], "status": None}]}, '"status" must be'),
    ],
)
def test_what_is_no_solution_is_refused(tmp_path: Path, damage: Any, message: str) -> None:
    instance, solution = solved(tmp_path)
    document = damage(json.loads(solution.read_text()))
    solution.write_text(json.dumps(document))
    code, said = run(instance, solution)
    assert code == 2
    assert message in said
    assert not SOLUTION.is_valid(document) or "two to" in message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"\xef\xbb\xbf" + data, "Unexpected UTF-8 BOM"),
        (lambda data: data.decode().encode("utf-16"), "can't decode byte"),
        (lambda data: data.replace(b'"saved": [1]', b'"saved": [1], "saved": [1]'), "the field 'saved' twice"),
        (lambda data: gzip.compress(data)[:-9], "Compressed file ended"),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "CRC check failed"),
        (lambda data: data[:-1], "Expecting"),
        (lambda data: 10**5 * b"[", "recursion"),
        (lambda data: data.replace(b'"objective": 2', b'"objective": NaN'), "all numbers are whole, got NaN"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Any, message: str) -> None:
    instance, solution = solved(tmp_path)
    solution.write_bytes(damage(solution.read_bytes()))
    code, said = run(instance, solution)
    assert code == 2
    assert message in said
    assert said.startswith(f"error: {solution}: ")
    assert said.count("\n") == 1


def test_what_is_printed_is_a_line(tmp_path: Path) -> None:
    """A name may be any text; one with a line of its own would speak for the checker."""
    instance, solution = solved(tmp_path)
    name = "\ud800\nchain saved: feasible"
    write(tmp_path, "chain.json", json.loads(instance.read_text()) | {"name": name})
    digest = check.read(instance, "remat.problem")[1]
    write(tmp_path, "solution.json", json.loads(solution.read_text()) | {"instance": name, "sha256": digest})
    code, said = run(instance, solution)
    assert (code, said.count("\n")) == (0, 1)
    assert said.startswith(r"\ud800\nchain saved: feasible saved: feasible")


def test_a_solution_of_another_instance_is_refused(tmp_path: Path) -> None:
    instance, solution = solved(tmp_path)
    instance.write_text(instance.read_text().replace('"unit": "ns"', '"unit": "us"'))
    code, said = run(instance, solution)
    assert code == 2
    assert "the solution is for 'chain' with SHA-256" in said


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d | {"version": 2}, 'needs "format": "remat.problem" and "version": 1'),
        (
            lambda d: d | {"uses": {"producer": [1], "consumer": [1]}},
            "must go from earlier to later values, got 1 -> 1",
        ),
        (lambda d: d | {"values": d["values"] | {"needed": [0, 1]}}, '"needed" must be a list of 3'),
        (
            lambda d: d | {"values": d["values"] | {"save_cost": [-1, 0, 0]}},
            '"save_cost" must hold whole numbers from 0',
        ),
        (lambda d: d | {"budgets": [{"name": "p", "of": "peak", "bytes": 1}]}, 'a budget of the peak needs "memory"'),
        (lambda d: d | {"budgets": ["saved"]}, '"budgets" must be a list of objects'),
        (lambda d: d | {"budgets": None}, '"budgets" must be a list of objects'),
        (lambda d: d | {"budgets": [{"name": "none", "of": "saved", "bytes": 1}]}, "not a budget"),
        (
            lambda d: d | {"budgets": [{"name": "p", "of": "saved", "bytes": 2**62}]},
            '"p" must hold whole numbers from 0',
        ),
        (lambda d: d | {"values": d["values"] | {"name": ["a", "a", "b"]}}, "names a value twice"),
        (lambda d: d | {"values": d["values"] | {"save_cost": 3 * [2**61]}}, '"save_cost" must add up to'),
        (
            lambda d: d | {"values": d["values"] | {"cost": [1, 2, 3]}},
            "\"values\" has no 'cost'; it has name, save_cost",
        ),
        (lambda d: d | {"budgets": 2 * d["budgets"]}, 'two budgets have the name "saved"'),
        (lambda d: {key: d[key] for key in d if key != "about"}, 'an instance needs "about"'),
        (lambda d: d | {"about": {"model": 1}}, '"about" must be an object of texts'),
    ],
)
def test_a_damaged_instance_is_refused(tmp_path: Path, damage: Any, message: str) -> None:
    instance, solution = solved(tmp_path)
    instance.write_text(json.dumps(damage(json.loads(instance.read_text()))))
    code, said = run(instance, solution)
    assert code == 2
    assert message in said


@pytest.mark.parametrize(("key", "value"), [("owner", 1), ("maker", 1), ("parent", 0)])
def test_memory_out_of_order_is_refused(key: str, value: int) -> None:
    """Else where a node lives would depend on who is asked first."""
    graph = CORPUS.graph("qei-8")
    document = problem_document(RecomputeTime().pose(graph), memory=stated_memory(graph))
    document["memory"]["nodes"][key][0] = value
    with pytest.raises(check.Unreadable, match=f"node 0 has .*{key} {value}"):
        check.Instance(document, "")


def test_the_schemas_refuse_what_is_no_instance_and_no_solution(tmp_path: Path) -> None:
    instance, solution = (json.loads(path.read_text()) for path in solved(tmp_path))
    INSTANCE.validate(instance)
    SOLUTION.validate(solution)
    for document, kind in ((instance, INSTANCE), (solution, SOLUTION)):
        for key in document:
            if key != "name":
                assert not kind.is_valid({name: value for name, value in document.items() if name != key}), key
        assert not kind.is_valid(document | {"more": 1})
    assert not INSTANCE.is_valid(instance | {"budgets": [{"name": "none", "of": "saved", "bytes": 1}]})


@drawn(50)
@given(problem=problems(feasible=None, offload=True))
def test_the_schema_knows_the_third_choice_and_the_checker_refuses_it(problem: Problem) -> None:
    document = problem_document(problem)
    INSTANCE.validate(document)
    assert not INSTANCE.is_valid(document | {"version": 1})
    assert not INSTANCE.is_valid({key: value for key, value in document.items() if key != "host_budgets"})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        problem.save(path)
        with pytest.raises(check.Unreadable, match='and "version": 1'):
            check.read(path, "remat.problem")


def test_a_budget_of_the_peak_is_kept_to_the_byte() -> None:
    graph = CORPUS.graph("qehvi-8")
    problem = RecomputeTime().pose(graph)
    saved = ~problem.cannot_save.mask
    peak = Simulator(graph).peak(graph.for_all_values(saved))
    answer = {"budget": "peak-0.5", "saved": np.flatnonzero(saved).tolist()}
    for most in (peak, peak - 1):
        document = problem_document(problem, budgets=[Budget("peak-0.5", "peak", most)], memory=stated_memory(graph))
        complaints = check.check(check.Instance(document, ""), answer).complaints
        assert (f"rule 8: the peak is {peak} bytes, but the budget is {most}" in complaints) == (most < peak)
