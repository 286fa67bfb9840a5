"""Measures section 4.4, how long choosing takes: `python -m experiments.paper.solver_time`.

Joint graphs of the corpus with over 5,000 values, and those of the models that the sources name: posed, solved and
certified by every maximum-flow solver. PyTorch's own choice needs the live graph of a model: there it is measured
beside ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import typer

import remat
from costmodels import ByteTraffic
from experiments.models import zoo
from experiments.paper.measure_table import command
from experiments.paper.table import Figures, PaperTable, Setting, TableCase, Unavailable
from remat import UnsupportedProblem
from remat.answer.registry import find_solver, solver_names
from remat.facts.corpus import Corpus
from remat.plugin import FlowSolver, Solver
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.torch_partitioner import torchs_choice
from solvers import NetworkX
from solvers.networkx_cut import FLOW_FUNCS

LARGE = 5000
"""Graphs with more values are large; the paper's of hf_GPT2 has "over 5000 nodes", the post's ViT about as many."""

SLOW_S = 2.0
"""A step that takes more seconds is timed three times only."""

ONCE_S = 20.0
"""A solver that takes more seconds is not run again: some of NetworkX's algorithms need minutes."""

TOO_LARGE = "refused"
"""A solver that counts to 2^30 takes no graph whose prices add up to more."""

PREFLOW = "networkx_s"
"""The push-relabel algorithm of NetworkX: what the sources used."""


def solvers() -> Mapping[str, Solver]:
    """Lists every registered solver by maximum flow, NetworkX with each algorithm, by the name of its figure."""
    flow = {f"{name}_s": solver for name in solver_names() if isinstance(solver := find_solver(name), FlowSolver)}
    return flow | {f"networkx_{name}_s": NetworkX(flow_func=name) for name in FLOW_FUNCS[1:]}


def chosen(graph: remat.Graph, solver: Solver) -> remat.Solution:
    """Poses, solves and certifies the problem of a graph.

    Raises:
        AssertionError: the plan is not proven optimal.
    """
    solution = remat.solve(ByteTraffic().pose(graph), solver)
    assert solution.is_proven
    return solution


def stored(name: str, setting: Setting) -> Figures:
    """Measures times on a graph of the corpus."""
    _only_on_the_cpu(setting)
    return by_solver(Corpus.open().graph(name), setting)


def live(layers: int, setting: Setting) -> Figures:
    """Measures times on the joint graph of a transformer, at the moment where torch would choose."""
    _only_on_the_cpu(setting)
    model, args = zoo.gpt2(layers=layers, width=32, heads=2, vocabulary=64, context=16, batch=2)
    figures: dict[str, float | int | str | None] = {}

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        reading = partial(extract, joint_graph, node_info, num_fwd_outputs)
        figures.update(by_solver(reading(), setting))
        figures["facts_s"] = _median_s(reading, setting.repeats)
        figures["pytorch_s"] = _median_s(partial(torchs_choice, joint_graph, node_info), setting.repeats)

    visit_joint_graphs(visit, model, *args)
    return figures


def by_solver(graph: remat.Graph, setting: Setting) -> dict[str, float | int | str | None]:
    """Times every solver on a graph; all must agree on the optimum.

    Raises:
        AssertionError: they do not.
    """
    objectives: dict[str, int | None] = {}
    figures: dict[str, float | int | str | None] = {"values": len(graph)}
    for figure, solver in solvers().items():
        start = time.perf_counter()
        try:
            objectives[figure] = chosen(graph, solver).objective  # imports what the solver needs
        except UnsupportedProblem:
            figures[figure] = TOO_LARGE
        else:
            once_s = time.perf_counter() - start
            is_slow = once_s > ONCE_S
            figures[figure] = once_s if is_slow else _median_s(partial(chosen, graph, solver), setting.repeats)
    assert len(set(objectives.values())) == 1, objectives
    return figures


def _only_on_the_cpu(setting: Setting) -> None:
    if setting.device != "cpu":
        raise Unavailable("graphs are solved on the CPU: --device cpu")


def _median_s(call: Callable[[], object], repeats: int) -> float:
    taken_s: list[float] = []
    while len(taken_s) < repeats and (len(taken_s) < 3 or sum(taken_s) < SLOW_S):
        start = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - start)
    return statistics.median(taken_s)


_NAMED: dict[str, Figures] = {
    "hf-gpt2": {"values": "over 5,000", PREFLOW: 0.48},
    "hf-vit-base": {"values": "about 5,000", PREFLOW: "under 0.4"},
}


def _cases() -> list[TableCase]:
    entries = Corpus.open().entries
    named = [TableCase(name, partial(stored, name), published) for name, published in _NAMED.items()]
    large = [TableCase(entry.name, partial(stored, entry.name)) for entry in entries if entry.values > LARGE]
    deep = [TableCase(f"GPT-2 style, {layers} layers, live", partial(live, layers)) for layers in (6, 26)]
    return [*named, *large, *deep]


NOTES = """
- Published: PyTorch's partitioner of 2022 with NetworkX, of the whole partition (paper: hf_GPT2 on the host of an
  A100; post: "a fairly large ViT model"). Ours: posing the problem under `byte-traffic`, solving it, and certifying the
  plan, from a graph in memory; medians, or one run where it takes over 20 s. All solvers agree on the optimum in each
  row. SciPy's counts to 2^30 and refuses what adds up to more.
- Today's joint graph of GPT-2 small has about half as many values as in 2022 (that of ViT-B likewise): so there are
  also all graphs of the corpus with over 5,000 values.
- The graphs are those of published sizes at either `--size`; solving needs neither the model nor a GPU.
- "live" rows: captured transformers of small width, whose graphs are as large as those of wide ones. Facts are what
  remat reads of the FX graph first. PyTorch's choice is `choose_saved_values_set`, from the same FX graph to the list
  of saved nodes, without a proof.
"""

_HEADINGS = {"ortools_s": "OR-Tools, s", "scipy_s": "SciPy, s", PREFLOW: "NetworkX, push-relabel, s"}


def _heading(figure: str) -> str:
    words = figure.removesuffix("_s").replace("networkx_", "NetworkX, ").replace("_", " ")
    return _HEADINGS.get(figure, f"{words}, s")


TABLE = PaperTable(
    name="solver_time",
    title="How long choosing takes (section 4.4)",
    source="paper, section 4.4, and the post; CPU of an AWS p4d.24xlarge in the paper",
    figures={
        "values": "values",
        "pytorch_s": "PyTorch's own choice, s",
        "facts_s": "facts from the FX graph, s",
        **{name: _heading(name) for name in solvers()},
    },
    cases=_cases(),
    notes=NOTES,
)

if __name__ == "__main__":
    typer.run(command(TABLE))
