"""Assembles the `remat` command: its help text, its subcommands, and the exit codes of errors."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import remat
from remat.answer.registry import DEFAULT_BUDGET_MODEL
from remat.cli import corpus_commands, inspect_commands
from remat.cli.capture_command import capture
from remat.cli.compare_command import compare
from remat.cli.device_command import device
from remat.cli.explain_command import explain
from remat.cli.forecast_command import forecast
from remat.cli.frontier_command import frontier
from remat.cli.options import command
from remat.cli.output import stopped
from remat.cli.plugin_commands import plugins
from remat.cli.solve_command import solve
from remat.cli.tracebacks import users_traceback
from remat.errors import Infeasible, InvalidOption, LimitReached, RematError, UnknownName, without_endless_words
from remat.startup import leave_ctrl_c_to_commands

_HELP = """Which activations should a model save, and which should it recompute?

\b
  remat capture my_models:gpt2 -o gpt2.json   the graph of a training step
  remat solve gpt2.json -o plan.json          the best plan, with its proof
  remat compare gpt2.json -s ortools -s pulp  solvers side by side
  remat explain gpt2.json gelu_3              why is this value saved?
  remat frontier gpt2.json -o frontier.svg    memory against recompute time
  remat frontier gpt2.json --against step     the peak against step time
  remat inspect timeline gpt2.json            what is in memory, and when
  remat inspect traffic gpt2.json             the kernels, what they move
  remat inspect kernels gpt2.json             their registers, without a GPU
  remat inspect picture gpt2.json -o p.svg    the graph in colours
  remat forecast my_models:gpt2               what will training hold?
  remat plugins                               solvers and cost models
  remat corpus list                           graphs of known models
  remat device                                how fast is this machine?

GRAPH is a file of `remat capture`, or a name from `remat corpus list`.
Every command takes --json and then prints JSON and nothing else.

\b
Exit codes:
  0    done
  1    an error; standard error explains it
  2    wrong usage of a command or an option, or an unknown name
  3    infeasible: no plan obeys all the rules
  4    a limit was reached before there was any plan
  130  Ctrl-C; what is printed, if anything, is the best so far
"""

_CODES = {UnknownName: 2, InvalidOption: 2, Infeasible: 3, LimitReached: 4}

# Commands of earlier versions -> what to type now.
_MOVED = {
    "pose": "solve GRAPH --problem FILE",
    "traffic-frontier": "frontier GRAPH --against step",
    "refine": f"solve GRAPH -m {DEFAULT_BUDGET_MODEL} -O of=peak -O budget=SIZE",
    "report": "frontier GRAPH... --html FILE",
    "largest-batch": "forecast MODULE:FACTORY --memory SIZE --largest-batch",
    "show": "inspect picture GRAPH -o FILE",
    **{name: f"inspect {name} GRAPH" for name in ("timeline", "traffic", "kernels")},
    **{name: f"plugins {name}" for name in ("solvers", "costmodels", "estimators")},
}


# Prints warnings as lines, and our errors as messages with exit codes; a bug keeps its traceback.
class _Group(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _MOVED:
            raise UnknownName(f"`remat {args[0]}` is no command any more: type `remat {_MOVED[args[0]]}`")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        stopped.set(False)
        try:
            leave_ctrl_c_to_commands()
            with warnings.catch_warnings():  # puts back what shows them
                warnings.showwarning = _warn
                answer = super().invoke(ctx)
            if stopped.get():
                typer.echo("stopped by Ctrl-C: what is printed, if anything, is the best so far", err=True)
                raise typer.Exit(130)
            return answer
        except BrokenPipeError:
            raise  # typer ends quietly
        except KeyboardInterrupt:
            typer.echo("stopped by Ctrl-C", err=True)
            raise typer.Exit(130) from None
        except typer.BadParameter as error:
            error.message = without_endless_words(error.message)
            raise
        except (RematError, OSError) as error:
            _fail(error)
        except Exception as error:
            shown = users_traceback(error)
            if shown is None:
                raise
            typer.echo(shown, err=True)
            raise typer.Exit(1) from None


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {without_endless_words(str(message))}", err=True)


def _fail(error: RematError | OSError) -> NoReturn:
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    typer.echo(f"error: {without_endless_words(message)}", err=True)
    raise typer.Exit(next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1))


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help=_HELP,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"remat {remat.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handles the options of `remat` itself; the help text of the program is `_HELP`."""
    del version


for answer in (capture, solve, compare, explain, frontier):
    app.command()(command(answer))
app.add_typer(inspect_commands.app, name="inspect")
for answer in (forecast, plugins, device):
    app.command()(command(answer))
app.add_typer(corpus_commands.app, name="corpus")


def main() -> None:
    app()
