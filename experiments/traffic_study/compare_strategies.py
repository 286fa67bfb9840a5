"""Compares what steps move, as TorchInductor counts it: `python -m experiments.traffic_study.compare_strategies`.

For each model of `experiments.models.workloads.KERNEL_ZOO`, ways to choose what is saved: autograd's, PyTorch's two,
the classic cut (`ByteTraffic`), the cut that counts readers (`MultiRead`), the program with a shared write
(`experiments.traffic_study.shared_write`), and `remat.refine`, which starts from all of these, and saves no more and
makes no more kernels than PyTorch's default. Then Inductor plans the kernels of the step, without writing them: their
bytes are the truth here.

A model that is finished is kept in traffic.json, and skipped in the next run; `--fresh` begins anew.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import nn

import remat
from costmodels import ByteTraffic, MultiRead
from experiments.bench.budgets import illegal
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from experiments.traffic_study.shared_write import SharedWrite
from experiments.traffic_study.traffic_picture import picture
from experiments.traffic_study.traffic_report import DEFAULT, markdown, summary
from remat import Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.improve.refine import Traffic
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import scheduled_kernels
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.measure.step_strategies import NOTHING_RECOMPUTED, usual_strategies
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.seam.restore import put_back

MODES = {"": "conservative", ", aggressive": "aggressive"}
console = Console(width=max(Console().width, 160))


@dataclass(frozen=True)
class StrategyRow:
    """Describes one training step, forward and backward.

    Attributes:
        model, strategy: their names.
        bytes, forward_bytes: that Inductor's kernels move, in the step, and in its forward pass.
        kernels: how many, calls of libraries included.
        saved_bytes: what autograd keeps between the passes, beside parameters, buffers and arguments.
        predicted_bytes: `remat.predict_traffic` of the plan; None where there is no legal plan.
        choosing_s: wall time to choose the plan; None for what PyTorch chooses as it compiles.
        legal: it passes `remat.check_plan`; plans that do not give wrong gradients.
        note: what to know about the plan.
    """

    model: str
    strategy: str
    bytes: int
    forward_bytes: int
    kernels: int
    saved_bytes: int
    predicted_bytes: int | None
    choosing_s: float | None
    legal: bool = True
    note: str = ""


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model; repeatable")] = None,
    fresh: Annotated[bool, typer.Option(help="measure finished models again")] = False,
    time_limit: Annotated[float, typer.Option(help="seconds for each integer program and each refinement")] = 120.0,
    output: Annotated[Path, typer.Option(help="folder for traffic.json, .md and .svg")] = RESULTS,
) -> None:
    """Counts the bytes that steps move, and writes traffic.json, traffic.md and traffic.svg after every model."""
    unknown = [name for name in only or () if name not in KERNEL_ZOO]
    if unknown:
        raise typer.BadParameter(f"no model is named {unknown[0]!r}; there are: {', '.join(KERNEL_ZOO)}")
    path = output / "traffic.json"
    finished: dict[str, Any] = {} if fresh or not path.exists() else json.loads(path.read_text())["models"]
    for name in only or KERNEL_ZOO:
        if name in finished:
            console.print(f"{name}: kept from commit {finished[name]['provenance']['commit']}", markup=False)
            continue
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own deprecations
            subject = StrategySubject.of(name)
            for row in subject.rows(time_limit):
                console.print(_line(row), markup=False, highlight=False)
        finished[name] = {
            "provenance": provenance(gpu=False) | {"seconds": round(time.perf_counter() - start, 1)},
            "values": len(subject.graph),
            "failed": subject.failed,
            "rows": [asdict(row) for row in subject.found],
        }
        finished = {known: finished[known] for known in KERNEL_ZOO if known in finished}
        _write(path, finished)
    _write(path, finished)  # as the page and the picture are made today, where nothing was measured
    console.print(json.dumps(summary(finished), indent=1), markup=False)


def _write(path: Path, models: dict[str, Any]) -> None:
    write_results(path, {"summary": summary(models), "models": models}, markdown(models))
    picture(models, path.with_suffix(".svg"))


def _line(row: StrategyRow) -> str:
    numbers = f"{row.bytes / 1e6:9.2f} MB {row.kernels:4d} kernels {row.saved_bytes / 1e6:8.2f} MB saved"
    took = "" if row.choosing_s is None else f" {row.choosing_s:6.1f} s"
    return f"{row.model:28s} {row.strategy:40s} {numbers}{took} {row.note}"


@dataclass
class StrategySubject:
    """Measures one model under one strategy after the other.

    Attributes:
        graph, torchs: its joint graph, and PyTorch's default plan for it.
        found: the rows so far.
        plans: the legal plans behind some of them, by strategy.
        failed: why a strategy has no row.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    graph: Graph
    torchs: Plan
    found: list[StrategyRow] = field(default_factory=list[StrategyRow])
    plans: dict[str, Plan] = field(default_factory=dict[str, Plan])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, name: str) -> StrategySubject:
        torch.manual_seed(0)
        model, args = KERNEL_ZOO[name]()
        ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0])
        return cls(name, model, args, graph, plans[1.0])

    def rows(self, time_limit_s: float) -> Iterator[StrategyRow]:
        """Measures one strategy after the other; later ones build on earlier ones."""
        strategies = usual_strategies((), dynamic=False)
        aggressive = "PyTorch, aggressive_recomputation=True"
        yield from self.measured("autograd's saves", strategies[NOTHING_RECOMPUTED](self.model), None)
        yield from self.measured(DEFAULT, strategies["PyTorch"](self.model), self.torchs)
        yield from self.measured("PyTorch, aggressive", strategies[aggressive](self.model), self.aggressive())
        for name, choose in self.choices(time_limit_s).items():
            start = time.perf_counter()
            with console.status(f"{self.name}: {name}"):
                try:
                    plan, note = choose()
                    choosing_s = time.perf_counter() - start
                    step = remat.compile(self.model, plan=plan, dynamic=False)
                    yield from self.measured(name, step, plan, choosing_s, note)
                except Exception as error:  # one strategy that fails must not hide the others
                    self.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                    console.print(f"{self.name}: {name}: {self.failed[name]}", markup=False)

    def choices(self, time_limit_s: float) -> dict[str, Callable[[], tuple[Plan, str]]]:
        """Lists our ways to choose, in this order: the refinements start from what the others found."""
        most = PlanFacts.of(self.graph, self.torchs).saved_bytes
        found: dict[str, Callable[[], tuple[Plan, str]]] = {}
        for kind, label in ((ByteTraffic, "classic cut"), (MultiRead, "multi-read cut")):
            found |= {label + suffix: partial(self.cut, kind(mode=mode)) for suffix, mode in MODES.items()}  # type: ignore[arg-type]
        for label, budget in (("shared write", None), ("shared write, saving no more", most)):
            for suffix, mode in MODES.items():
                found[label + suffix] = partial(self.program, mode, budget, time_limit_s)
        for oracle in ("model", "inductor"):
            found[f"refined, by {oracle}"] = partial(self.refined, oracle, time_limit_s)
        return found

    def cut(self, cost_model: remat.CostModel) -> tuple[Plan, str]:
        """Chooses by a minimum cut."""
        plan = remat.solve(cost_model.pose(self.graph)).plan
        assert plan is not None  # solve() raises where there is none
        return plan, ""

    def program(self, mode: Any, budget_bytes: int | None, time_limit_s: float) -> tuple[Plan, str]:
        """Chooses by the integer program of `SharedWrite`."""
        answer = SharedWrite.of(self.graph, mode).solve(time_limit_s=time_limit_s, budget_bytes=budget_bytes)
        return answer.plan, f"gap {answer.gap:.1%}" if answer.gap else ""

    def refined(self, oracle: Any, time_limit_s: float) -> tuple[Plan, str]:
        """Searches from all plans so far, with no more saved bytes and no more kernels than PyTorch's default."""
        kernels = next(row.kernels for row in self.found if row.strategy == DEFAULT)
        found = remat.refine(
            self.graph,
            self.torchs,
            Traffic(most_kernels=kernels),
            oracle=oracle,
            starts=[plan for name, plan in self.plans.items() if name != DEFAULT],
            time_limit_s=time_limit_s,
        )
        limit = f"; stopped by the {found.termination.limit} limit" if found.termination.limit else ""
        return found.plan, f"{found.evaluated} plans evaluated{limit}"

    def aggressive(self) -> Plan:
        """Asks PyTorch what it saves if it is to recompute as much as it can."""
        functorch: Any = import_module("torch._functorch.config")
        with functorch.patch(aggressive_recomputation=True):
            ((_, plans),) = torchs_plans(self.model, *self.args, budgets=[1.0])
        return plans[1.0]

    def measured(
        self, name: str, step: Callable[..., Any], plan: Plan | None, choosing_s: float | None = None, note: str = ""
    ) -> Iterator[StrategyRow]:
        """Has Inductor plan the kernels of a step, whose first call compiles, and runs its forward pass."""
        torch.compiler.reset()  # two strategies with one plan would share what Dynamo compiled
        kernels: list[Any] = []
        with (
            visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))),
            put_back(self.model, self.args, {}),
        ):
            _, saved = saved_activations(step, self.model, *self.args)
        against = "" if plan is None else illegal(self.graph, plan)
        legal = plan if not against else None
        if legal is not None:
            self.plans[name] = legal
        row = StrategyRow(
            model=self.name,
            strategy=name,
            bytes=sum(kernel.bytes for kernel in kernels),
            forward_bytes=sum(kernel.bytes for kernel in kernels if not kernel.backward),
            kernels=len(kernels),
            saved_bytes=saved.bytes,
            predicted_bytes=None if legal is None else remat.predict_traffic(self.graph, legal).bytes,
            choosing_s=None if choosing_s is None else round(choosing_s, 3),
            legal=not against,
            note=f"not legal: {against}" if against else note,
        )
        self.found.append(row)
        yield row


if __name__ == "__main__":
    typer.run(main)
