"""Assembles the `remat` command: its help text, its subcommands, and the exit codes of errors."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import remat
from remat.cli import corpus_commands
from remat.cli.capture_command import capture
from remat.cli.compare_command import compare
from remat.cli.device_command import device
from remat.cli.explain_command import explain
from remat.cli.forecast_command import forecast
from remat.cli.frontier_command import frontier
from remat.cli.kernels_command import kernels
from remat.cli.largest_batch_command import largest_batch
from remat.cli.output import stopped
from remat.cli.plugin_commands import costmodels, estimators, solvers
from remat.cli.pose_command import pose
from remat.cli.refine_command import refine
from remat.cli.report_command import report
from remat.cli.show_command import show
from remat.cli.solve_command import solve
from remat.cli.timeline_command import timeline
from remat.cli.traffic_command import traffic
from remat.cli.traffic_frontier_command import traffic_frontier
from remat.cli.users_code import users_traceback
from remat.cli.wording import spoken
from remat.errors import Infeasible, InvalidOption, LimitReached, RematError, UnknownName

_HELP = """Which activations should a model save, and which should it recompute?

\b
  remat capture my_models:gpt2 -o gpt2.json.gz   a training step's joint graph
  remat forecast my_models:gpt2 --memory 80GB    will training fit?
  remat largest-batch my_models:gpt2 --memory 80GB
  remat solve gpt2.json.gz -o plan.json          the best plan, with its proof
  remat compare gpt2.json.gz -s ortools -s pulp  solvers side by side
  remat pose gpt2.json.gz --format mps -o gpt2.mps  the problem, for other solvers
  remat explain gpt2.json.gz gelu_3              why is this value saved?
  remat frontier gpt2.json.gz -o frontier.svg    memory against time
  remat traffic-frontier gpt2.json.gz            memory against bytes moved
  remat timeline gpt2.json.gz --plan plan.json   what is alive when
  remat traffic gpt2.json.gz --plan plan.json    the kernels, and what they move
  remat kernels gpt2.json.gz --device h100       registers and cubins, without a GPU
  remat refine gpt2.json.gz -o better.json       fewer bytes moved, by local search
  remat show gpt2.json.gz --around gelu_3 -o gelu.svg
  remat report gpt2.json.gz results.json         one page of plots and tables
  remat corpus list                              joint graphs of published models

Every command takes --json: pure JSON on standard output.

\b
Exit codes:
  0  done
  1  an error, explained on standard error
  2  wrong usage of a command or an option, or an unknown name
  3  infeasible: no plan keeps all the rules
  4  a limit was reached before there was any plan
  130  Ctrl-C ended a search: what is printed is the best so far, if anything is
"""


_CODES = {UnknownName: 2, InvalidOption: 2, Infeasible: 3, LimitReached: 4}


class _Group(TyperGroup):
    """Turns warnings into lines, and our errors into messages and exit codes; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        stopped.set(False)
        try:
            with warnings.catch_warnings():  # puts back what shows them
                warnings.showwarning = _warn
                answer = super().invoke(ctx)
            if stopped.get():
                typer.echo("stopped by Ctrl-C: what is printed, if anything, is the best so far", err=True)
                raise typer.Exit(130)
            return answer
        except BrokenPipeError:
            raise  # typer ends quietly
        except typer.BadParameter as error:
            error.message = spoken(error.message)
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
    typer.echo(f"warning: {spoken(str(message))}", err=True)


def _fail(error: RematError | OSError) -> NoReturn:
    message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    typer.echo(f"error: {spoken(message)}", err=True)
    raise typer.Exit(next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1))


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help=_HELP,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Takes the options of `remat` itself; the help text of the program is `_HELP`."""
    del version


_COMMANDS = (
    *(capture, solve, compare, pose, explain, show, forecast, largest_batch, frontier, traffic_frontier),
    *(timeline, traffic, kernels, refine, report, device),
)
for command in (*_COMMANDS, solvers, costmodels, estimators):
    app.command()(command)
app.add_typer(corpus_commands.app, name="corpus")


def main() -> None:
    """Runs the `remat` command on the arguments of the process."""
    app()
