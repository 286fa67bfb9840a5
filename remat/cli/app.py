"""The command line: parsing and printing. What it does, `import remat` does."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import remat
from remat.answer.plan import Plan
from remat.answer.plan_facts import label
from remat.answer.registry import (
    DEFAULT_COST_MODEL,
)
from remat.cli import corpus_command as cli_corpus
from remat.cli import device_command as cli_device
from remat.cli import frontier_command as cli_frontier
from remat.cli import plugin_commands as cli_plugins
from remat.cli import refine_command as cli_refine
from remat.cli import report_command as cli_report
from remat.cli import tables
from remat.cli import timeline_command as cli_timeline
from remat.cli import traffic_command as cli_traffic
from remat.cli.typed import GraphFile, cost_model_of, load_factory, load_graph, solver_if_named, solver_of
from remat.errors import Infeasible, LimitReached, RematError
from remat.views.compare import warm_up

_HELP = """Which activations should a model save, and which should it recompute?

\b
  remat capture my_models:gpt2 -o gpt2.json.gz   a training step's joint graph
  remat solve gpt2.json.gz -o plan.json          the best plan, with its proof
  remat compare gpt2.json.gz -s ortools -s pulp  solvers side by side
  remat explain gpt2.json.gz gelu_3              why is this value saved?
  remat frontier gpt2.json.gz -o frontier.svg    memory against time
  remat timeline gpt2.json.gz --plan plan.json   what is alive when
  remat traffic gpt2.json.gz --plan plan.json    the kernels, and what they move
  remat refine gpt2.json.gz -o better.json       fewer bytes moved, by local search
  remat show gpt2.json.gz --around gelu_3 -o gelu.svg
  remat report gpt2.json.gz results.json         one page of plots and tables
  remat corpus list                              joint graphs of published models

Every command takes --json: pure JSON on standard output.

\b
Exit codes:
  0  done
  1  an error, explained on standard error
  2  wrong usage of a command or an option
  3  infeasible: no plan keeps all the rules
  4  a limit was reached before there was any plan
"""


class _Group(TyperGroup):
    """Turns our errors into messages and exit codes; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # typer ends quietly
        except (RematError, OSError) as error:
            _fail(error)


def _fail(error: RematError | OSError) -> NoReturn:
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(3 if isinstance(error, Infeasible) else 4 if isinstance(error, LimitReached) else 1)


app = typer.Typer(cls=_Group, no_args_is_help=True, help=_HELP, pretty_exceptions_show_locals=False)

_CostModel = Annotated[
    str, typer.Option("--cost-model", "-m", metavar="NAME[:KEY=VALUE,...]", help="See `remat costmodels`.")
]
_Solver = Annotated[
    str | None,
    typer.Option(
        "--solver",
        "-s",
        metavar="NAME[:KEY=VALUE,...]",
        help="See `remat solvers`; ortools, or lagrangian under a budget, when left out.",
    ),
]
_ModelOptions = Annotated[
    list[str] | None,
    typer.Option("-O", metavar="KEY=VALUE", help="Option of the cost model; JSON or text. Repeatable."),
]
_SolverOptions = Annotated[
    list[str] | None, typer.Option("-S", metavar="KEY=VALUE", help="Option of the solver. Repeatable.")
]
_TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="S", min=1e-9, help="Seconds, for solvers that take a limit.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"remat {remat.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `remat` itself; the help text of the program is `_HELP`."""
    del version


@app.command()
def capture(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="Returns (model, args[, kwargs]).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Graph file to write; gzipped if it ends in .gz.")],
    as_json: _Json = False,
) -> None:
    """Capture the joint graph of a model's training step.

    FACTORY is called without arguments; the current directory is importable.

    \b
      # my_models.py
      def gpt2():
          return GPT2(layers=12), (torch.randint(50257, (8, 1024)),)
    \b
      remat capture my_models:gpt2 -o gpt2.json.gz
    """
    model, args, kwargs = load_factory(factory)
    graph = remat.capture(model, *args, **kwargs)
    graph.save(output)
    facts = {"graph": str(output), "values": len(graph), "uses": len(graph.producers), "meta": dict(graph.meta)}
    _print(facts, as_json, f"{graph!r}\nwritten to {output}")


@app.command()
def solve(
    graph: GraphFile,
    cost_model: _CostModel = DEFAULT_COST_MODEL,
    solver: _Solver = None,
    model_options: _ModelOptions = None,
    solver_options: _SolverOptions = None,
    time_limit: _TimeLimit = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plan file to write.")] = None,
    top: Annotated[int, typer.Option(min=0, help="How many saved activations to list, the largest first.")] = 10,
    as_json: _Json = False,
) -> None:
    """Find the best plan of a graph, and prove it.

    \b
      remat solve gpt2.json.gz -o plan.json
      remat solve gpt2.json.gz -O mode=aggressive -O 'rules={"used_far_apart": false}'
      remat solve gpt2.json.gz -s pulp --time-limit 60
      remat solve gpt2.json.gz -s networkx -S flow_func=dinitz
      remat solve gpt2.json.gz -m memory-budget -O budget=8GB -O estimator=roofline:device=h200
      remat solve gpt2.json.gz -m memory-budget:budget=0.5,of=peak
    """
    model, chosen = cost_model_of(cost_model, model_options or ()), solver_if_named(solver, solver_options or ())
    values = load_graph(graph)
    warm_up(chosen)
    start = time.perf_counter()
    problem = model.pose_without_peak(values)
    pose_time_s = time.perf_counter() - start
    if model.limits_peak:
        solution = remat.choose(values, model, chosen, time_limit_s=time_limit)
    else:
        solution = remat.solve(problem, chosen, time_limit_s=time_limit)
    assert solution.plan is not None  # both raise where there is none
    solver = label(chosen) if chosen else solution.solver
    if output is not None:
        solution.plan.made_for(values).save(output)
    if not as_json:
        heading = f"{graph.name}: {len(values):,} values, {label(model)}, {solver}"
        tables.print_solution(values, problem, solution, heading, model.unit, pose_time_s, top)
        return
    document = tables.solution_document(values, model, solver, solution, pose_time_s)
    _print({"graph": str(graph)} | document, as_json)


@app.command()
def compare(
    graphs: Annotated[list[Path], typer.Argument(metavar="GRAPH...", help="Graph files.")],
    cost_models: Annotated[
        list[str] | None,
        typer.Option("--cost-model", "-m", metavar="NAME[:KEY=VALUE,...]", help="Repeatable; the default is one."),
    ] = None,
    solvers: Annotated[
        list[str] | None,
        typer.Option("--solver", "-s", metavar="NAME[:KEY=VALUE,...]", help="Repeatable; the default is all."),
    ] = None,
    time_limit: _TimeLimit = None,
    as_json: _Json = False,
) -> None:
    """Compare graphs, cost models and solvers: a row for each combination.

    \b
      remat compare gpt2.json.gz
      remat compare *.json.gz -m byte-traffic -m byte-traffic:mode=aggressive -s ortools -s networkx
    """
    frame = remat.compare(
        {str(path): load_graph(path) for path in graphs},
        [cost_model_of(text) for text in cost_models or [DEFAULT_COST_MODEL]],
        [solver_of(text) for text in solvers] if solvers else None,
        time_limit_s=time_limit,
    )
    if as_json:
        _print(frame.records(), as_json)
    else:
        tables.print_comparison(frame)


@app.command()
def explain(
    graph: GraphFile,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Name of a value of the graph.")],
    cost_model: _CostModel = DEFAULT_COST_MODEL,
    solver: _Solver = None,
    model_options: _ModelOptions = None,
    solver_options: _SolverOptions = None,
    as_json: _Json = False,
) -> None:
    """Explain why a value is saved or recomputed, and what deciding otherwise would cost.

    \b
      remat explain gpt2.json.gz gelu_3
    """
    model, chosen = cost_model_of(cost_model, model_options or ()), solver_if_named(solver, solver_options or ())
    why = remat.explain(load_graph(graph), value, model, chosen)
    _print(asdict(why), as_json, str(why))


@app.command()
def show(
    graph: GraphFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write: .svg, .png or .pdf.")],
    plan: Annotated[
        str | None, typer.Option(metavar="FILE|solved", help="Colour by a plan file, or `solved` to solve now.")
    ] = None,
    cost_model: _CostModel = DEFAULT_COST_MODEL,
    solver: _Solver = None,
    model_options: _ModelOptions = None,
    solver_options: _SolverOptions = None,
    around: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="Draw the neighbourhood of this value only. Repeatable.")
    ] = None,
    hops: Annotated[int, typer.Option(min=0, help="Size of the neighbourhood, in uses.")] = 2,
    as_json: _Json = False,
) -> None:
    """Draw a graph of up to 300 values, or a part of a larger one.

    \b
      remat show small.json -o small.svg --plan solved
      remat show gpt2.json.gz -o gelu.svg --plan plan.json --around gelu_3 --hops 3
    """
    values, drawn = load_graph(graph), None
    if plan == "solved":
        model, chosen = cost_model_of(cost_model, model_options or ()), solver_if_named(solver, solver_options or ())
        drawn = remat.choose(values, model, chosen).plan
    elif plan is not None:
        drawn = Plan.load(plan)
    remat.show(values, drawn, output, around=around, hops=hops)
    _print({"picture": str(output), "plan": drawn and drawn.digest}, as_json, f"written to {output}")


app.command()(cli_frontier.frontier)
app.command()(cli_timeline.timeline)
app.command()(cli_traffic.traffic)
app.command()(cli_refine.refine)
app.command()(cli_report.report)
app.command()(cli_device.device)
app.command()(cli_plugins.solvers)
app.command()(cli_plugins.costmodels)
app.command()(cli_plugins.estimators)
app.add_typer(cli_corpus.app, name="corpus")


def _print(document: Any, as_json: bool, text: str = "") -> None:
    typer.echo(json.dumps(document, indent=1, default=_plain) if as_json else text)


def _plain(value: object) -> object:
    """What JSON does not know: enums by name, mappings and the rest as best they can."""
    return value.name.lower() if isinstance(value, Enum) else str(value)


def main() -> None:
    """The entry point of the `remat` command."""
    app()


if __name__ == "__main__":
    main()
