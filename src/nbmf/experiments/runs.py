"""Run a grid: every fit judged, its row on disk at once; what an earlier run left off is gone on with."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from nbmf.evaluation import evaluate
from nbmf.experiments.grid import Grid, Job
from nbmf.experiments.results import Results
from nbmf.experiments.rows import Folder, Row
from nbmf.experiments.study import Study
from nbmf.experiments.workers import spread
from nbmf.inference.progress import Stopwatch


class Tidings(NamedTuple):
    """What is told after each run.

    row : the run that has just ended; None at the beginning
    n_done, n_runs : finished runs, those of earlier calls included, and runs in all
    share : of the work of this call, by a rough guess of what each run costs
    """

    row: Row | None
    n_done: int
    n_runs: int
    share: float


Report = Callable[[Tidings], None]


class _Shared(NamedTuple):
    """What every run needs."""

    study: Study
    grid: Grid
    folder: Folder
    n_threads: int


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_folder(study: Study, grid: Grid, path: str | os.PathLike[str]) -> Folder:
    """Make the folder of an experiment, or go on in it; ValueError where it holds another one."""
    settings = {"data": study.source.as_dict(), "grid": grid.as_dict(), "made with": {"nbmf": version("nbmf")}}
    return Folder.open(Path(path), settings, grid.metrics)


def run_grid(
    study: Study,
    grid: Grid,
    path: str | os.PathLike[str],
    *,
    n_workers: int | None = None,
    report: Report = lambda tidings: None,
) -> Results:
    """Fit and judge every model of the grid; rows and values go to a folder as they come.

    Parameters
    ----------
    study, grid : what is fitted, and which models
    path : the folder; one that holds part of this experiment is gone on with, one that holds another is refused
    n_workers : processes, each with its share of the cores; None: one a core. It changes nothing but the time
    report : called after each run
    """
    folder = open_folder(study, grid, path)
    jobs, done = grid.jobs(), folder.rows()
    left = [job for job in jobs if job not in done]
    cost = sum(job.cost for job in left)
    report(Tidings(None, len(jobs) - len(left), len(jobs), 0.0 if left else 1.0))
    cores = available_cores()
    n_workers = max(1, min(n_workers or cores, len(left)))
    shared = _Shared(study, grid, folder, max(1, cores // n_workers))
    paid = 0.0
    with closing(spread(_fit_and_judge, shared, left, n_workers)) as rows:  # Ctrl-C ends the processes
        for n, row in enumerate(rows, start=1):
            folder.add(row)
            paid += row.job.cost
            report(Tidings(row, len(jobs) - len(left) + n, len(jobs), paid / cost))
    return Results(study, grid, folder)


def _fit_and_judge(shared: _Shared, job: Job) -> Row:
    """One run: the values are kept here, in the worker; the row is written by the parent alone."""
    study, grid, folder, n_threads = shared
    watch = Stopwatch()
    model = grid.estimator(job, n_threads).fit(study.train)
    seconds = watch.seconds
    result = evaluate(model, study.train, study.test, grid.relevance, at=(), n_boot=1, n_threads=n_threads)
    folder.keep_values(job, {name: result[name].per_user for name in grid.metrics})
    return Row(
        job,
        grid.seed + job.start,
        getattr(model, "exposure_", ""),
        model.n_iter_,
        model.converged_,
        float(model.objective_[-1]),
        seconds,
        {name: result[name].mean for name in grid.metrics},
    )
