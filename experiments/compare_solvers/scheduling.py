"""Runs cases with joblib: threads here, or the workers of a cluster. Rows are handed over as they arrive."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import joblib

from experiments.compare_solvers.case import SolverCase
from experiments.compare_solvers.rows import SolverRow
from experiments.compare_solvers.supervision import ROOT, rows_of
from remat.errors import InvalidOption, NotInstalled, RematError

BACKENDS = ("threading", "loky", "multiprocessing", "dask", "ray")

_AT_ONCE = 4
"""A worker gets this many cases in one round, where a backend of joblib returns nothing before all is done."""


@contextmanager
def workers(backend: str = "threading", scheduler: str | None = None, jobs: int | None = None) -> Iterator[None]:
    """Lets `run` use these workers within the context.

    Args:
        backend: one of `BACKENDS`. As every case has a process of its own, threads are enough to supervise them.
        scheduler: address of a Dask scheduler, or of a Ray cluster; None starts a local one.
        jobs: cases at a time; None for one, or for all the workers of a cluster.

    Raises:
        InvalidOption: no such backend, a scheduler for a backend that has none, or not a number of jobs.
        NotInstalled: the package of the cluster is missing.
        RematError: the scheduler does not answer; or, later, the cluster is lost.
    """
    if backend not in BACKENDS:
        raise InvalidOption(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if scheduler is not None and backend not in ("dask", "ray"):
        raise InvalidOption(f"--scheduler is for --backend dask or ray, got {backend!r}; leave it out")
    if jobs is not None and jobs != -1 and jobs < 1:
        raise InvalidOption(f"--jobs must be a positive number, or -1 for all processors, got {jobs}")
    count: dict[str, Any] = {} if jobs is None else {"n_jobs": jobs}
    if backend == "dask":
        with _dask_client(scheduler, jobs), joblib.parallel_config(backend="dask"), _losses_explained():
            yield
        return
    if backend == "ray":
        _start_ray(scheduler)
        count = {"n_jobs": -1 if jobs is None else jobs}
    with joblib.parallel_config(backend=backend, **count):
        yield


@contextmanager
def _dask_client(scheduler: str | None, jobs: int | None) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise NotInstalled(f"--backend dask needs distributed: pip install distributed ({error})") from None
    if scheduler is None:
        with Client(n_workers=jobs, threads_per_worker=1, dashboard_address=":0"):
            yield
        return
    if jobs is not None:
        raise InvalidOption("--jobs: a Dask cluster runs as many as it has threads; leave it out with --scheduler")
    try:
        client = Client(scheduler)
    except (OSError, ValueError) as error:
        raise RematError(f"--scheduler: no Dask scheduler answers at {scheduler!r} ({error})") from None
    with client:
        check_code(client)
        yield


@contextmanager
def _losses_explained() -> Iterator[None]:
    from distributed import KilledWorker

    try:
        yield
    except (CancelledError, KilledWorker, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        raise RematError(
            f"the Dask cluster has no workers, or was lost ({type(error).__name__}: {reason}); finished rows are "
            f"kept: start workers, and go on without --again"
        ) from None


def check_code(client: Any) -> None:
    """Raises `RematError` where a cluster cannot import this code: joblib would wait for its answers for ever."""
    for who, call in {"scheduler": client.run_on_scheduler, "workers": client.run}.items():
        try:
            call(_imported)
        except Exception as error:  # whatever the other side raises
            raise RematError(
                f"--scheduler: the {who} of the Dask cluster cannot import this code ({type(error).__name__}: "
                f"{error}); start them with the environment variable PYTHONPATH={ROOT}"
            ) from None


def _imported() -> None:
    """Does nothing: a cluster that finds this function has imported the code."""


def _start_ray(address: str | None) -> None:
    try:
        import ray  # type: ignore[import-not-found]
        from ray.util.joblib import register_ray  # type: ignore[import-not-found]
    except ImportError as error:
        raise NotInstalled(f"--backend ray needs ray: pip install ray ({error})") from None
    try:
        ray.init(address=address)
    except ConnectionError as error:
        raise RematError(f"--scheduler: no Ray cluster answers at {address!r} ({error})") from None
    register_ray()


def run(cases: Sequence[SolverCase], keep: Callable[[list[SolverRow]], None]) -> None:
    """Hands the rows of each case to `keep`, in this process, as soon as the case has ended.

    What `keep` raises ends the run, and so does Ctrl-C.
    """
    tasks = (joblib.delayed(rows_of)(case) for case in cases)
    try:
        # One case a task: joblib would bundle quick ones, and a bundle is lost if it is interrupted.
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
    except ValueError:  # this backend cannot, as those made of multiprocessing: Ray's
        _run_in_rounds(tasks, keep)
        return
    with warnings.catch_warnings():
        # That joblib throws away what was not kept is what whoever interrupts wants.
        warnings.filterwarnings("ignore", message=r".*\btasks\b", category=UserWarning, module="joblib")
        with closing(parallel(tasks)) as answers:
            for rows in answers:
                keep(rows)


def _run_in_rounds(tasks: Iterator[Any], keep: Callable[[list[SolverRow]], None]) -> None:
    with joblib.Parallel(batch_size=1) as parallel:
        while some := list(islice(tasks, _AT_ONCE * joblib.effective_n_jobs(None))):
            for rows in parallel(some):
                keep(rows)
