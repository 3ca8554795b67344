"""The engine of all experiments: jobs → worker processes → rows in a `Store` → `Starts` to compare.

Each row is stored as soon as its fit has been evaluated, and a job that has a row is not run again: an interrupted
experiment resumes where it stopped. Jobs run side by side with one thread each: on the Taste Profile subset and two
cores that takes as long as one after another with all threads (27.4 s and 27.9 s for 48 fits), and small fits cannot
use many cores.
"""

import math
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pebble import ProcessExpired, ProcessPool

from nbmf.data.datasets import simulate
from nbmf.data.interactions import Interactions
from nbmf.evaluation import Comparison, Evaluation, Metric, compare, evaluate
from nbmf.evaluation.evaluate import Judged, fingerprint
from nbmf.evaluation.experiments.baselines import BASELINES
from nbmf.evaluation.experiments.store import Job, Row, Store, packed
from nbmf.evaluation.predictive import counts_likelihood
from nbmf.inference.progress import RunsProgress, Stopwatch

REPEATS, REPEATS_WITHIN = 5, 5.0  # a short fit is timed up to 5 times, within 5 seconds
_SHARED: dict[str, Any] = {}  # in a worker process: what all its jobs need


class Event(NamedTuple):
    """Progress of an experiment."""

    row: Row | None  # of the job that has just ended; None when jobs were skipped
    n_done: int  # including jobs of earlier runs
    n_jobs: int
    share: float  # of this run's work that is done, estimated from the jobs' costs


Report = Callable[[Event], None]
Fit = Callable[[Interactions], Judged]


def shown_by(progress: RunsProgress, in_words: Callable[[Row], str]) -> Report:
    """Return a report to a progress bar, with a line for each row."""
    return lambda event: progress.report(*event[1:], in_words(event.row) if event.row else "")


@dataclass(frozen=True)
class Task:
    """What all jobs of a batch have in common."""

    train: Interactions
    test: Interactions
    relevance: tuple[str | int, ...]
    cutoffs: tuple[int, ...]
    measure: Callable[[Fit, Interactions], tuple[Judged, float, float]]  # `timed` or `measured`
    keeps_values: bool = True  # whether the metrics are also stored for each user
    n_threads: int = 1  # per job
    is_likely: bool = False  # whether log-likelihoods are computed, where models have one


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Engine:
    """Runs batches of jobs, stores their rows and reports progress."""

    store: Store  # jobs that have a row here are skipped
    n_jobs: int  # of all batches
    cost: float  # of all batches' jobs
    report: Report  # called before the first job and after each
    limit_s: float | None = None  # time limit per job
    keeps_failures: bool = False  # store a failed job as a row that says why, instead of raising its error
    n_done: int = 0
    paid: float = 0.0  # cost of the jobs run so far

    def run(self, task: Task, jobs: Sequence[Job], n_workers: int) -> None:
        """Run the jobs that have no row yet, `n_workers` at a time."""
        left = self._skip_done(jobs)
        n_workers = max(1, min(n_workers, len(left)))
        self._attempt(replace(task, n_threads=max(1, available_cores() // n_workers)), left, n_workers)

    def run_alone(self, task: Task, jobs: Sequence[Job]) -> None:
        """Run each job that has no row yet in a fresh process with all cores, where its costs can be measured."""
        for job in self._skip_done(jobs):
            self._attempt(replace(task, n_threads=available_cores()), [job], 1)

    def skip(self, jobs: Sequence[Job]) -> None:
        """Count jobs as done that are not run."""
        self.n_done += len(jobs)
        self.cost -= sum(job.cost for job in jobs)
        if jobs or not self.n_done:
            self._tell(None)

    def _skip_done(self, jobs: Sequence[Job]) -> list[Job]:
        left = self.store.missing(jobs)
        self.skip([job for job in jobs if job not in left])
        return left

    def _attempt(self, task: Task, jobs: Sequence[Job], n_workers: int) -> None:
        with closing(attempt(run_job, task, jobs, n_workers, limit_s=self.limit_s)) as outcomes:
            for job, result, error in outcomes:
                if error is not None and not self.keeps_failures:
                    raise error
                problem = " ".join(f"{type(error).__name__}: {error}".split())
                row, per_user = result if error is None else (Row(job, problem=problem), None)
                self.store.add(row, per_user)
                self.n_done += 1
                self.paid += job.cost
                self._tell(row)

    def _tell(self, row: Row | None) -> None:
        self.report(Event(row, self.n_done, self.n_jobs, min(1.0, self.paid / self.cost) if self.cost > 0 else 1.0))


def run_job(task: Task, job: Job) -> tuple[Row, bytes | None]:
    """Fit and evaluate one model; return its row and its packed per-user values."""
    n_threads, data = task.n_threads, (task.train, task.test)
    fit = partial(BASELINES[job.model].fit, seed=job.seed, n_threads=n_threads, **job.settings)
    model, seconds, megabytes = task.measure(fit, task.train)
    found = evaluate(model, *data, task.relevance, at=task.cutoffs, n_boot=1, n_threads=n_threads)
    means = {name: metric.mean for name, metric in found.items()}
    of_users = {name: metric.per_user for name, metric in found.items() if not name.startswith("coverage")}
    per_user = packed(of_users) if task.keeps_values else None
    likely = counts_likelihood(model, *data, n_threads=n_threads) if task.is_likely else math.nan
    return Row(job, seconds, megabytes, "", _convergence(model), means, likely), per_user


def _convergence(model: Any) -> dict[str, Any]:
    if not hasattr(model, "converged_"):
        return {}
    ended = {"sweeps": int(model.n_iter_), "converged": bool(model.converged_)}
    objective = float(model.objective_[-1]) if len(model.objective_) else None  # a blend has none
    return {**ended, "objective": objective, "exposure": getattr(model, "exposure_", "")}


def timed(fit: Fit, train: Interactions) -> tuple[Judged, float, float]:
    """Return the fitted model, its seconds, and nan for its memory."""
    watch = Stopwatch()
    return fit(train), watch.seconds, math.nan


def measured(fit: Fit, train: Interactions) -> tuple[Judged, float, float]:
    """Return the fitted model, its seconds (of a short fit the median of several) and its megabytes."""
    with suppress(Exception):  # an error that is not due to the tiny data is raised below
        fit(simulate(60, 50, n_components=3, mean_count=0.5, seed=0))  # imports and compilation are not part of a fit
    before = peak_memory(reset=True)
    model, *seconds = timed(fit, train)[:2]
    megabytes = peak_memory() - before
    while len(seconds) < REPEATS and sum(seconds) < REPEATS_WITHIN:
        seconds.append(timed(fit, train)[1])
    return model, float(np.median(seconds)), megabytes


def peak_memory(*, reset: bool = False) -> float:
    """Return this process's peak memory in megabytes; `reset` sets the peak to the memory now in use."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return math.nan
    name = "VmRSS:" if reset else "VmHWM:"
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def check_each_once(what: str, values: Collection[Any]) -> None:
    """Raise ValueError unless there is a value, and each is there once."""
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{what} is {list(values)}; give at least one, each once")


class Level(NamedTuple):
    """Mean of a metric over random starts, and its standard deviation between them (nan for a single start)."""

    mean: float
    sd: float


class Starts:
    """The stored fits of several models, each from one or more random starts: `rows` by model, any key with a name."""

    def __init__(self, store: Store, rows: Mapping[Any, list[Row]], train: Interactions, test: Interactions) -> None:
        self.store, self.rows, self.test, self.mark = store, rows, test, fingerprint(train, test)
        self._evaluations: dict[Any, list[Evaluation]] = {}

    def level(self, key: Any, metric: str = "ndcg_counts") -> Level:
        """Return the mean over the starts of a model, and how much they differ."""
        values = [row.means[metric] for row in self.rows[key]]
        return Level(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan)

    def seconds(self, key: Any) -> float:
        """Return the median time of a fit."""
        return float(np.median([row.seconds for row in self.rows[key]]))

    def log_likelihood(self, key: Any) -> float:
        """Return the mean log-likelihood of a model's starts, nan if it cannot be compared."""
        return float(np.mean([row.log_likelihood for row in self.rows[key]]))

    def compare(self, keys: Sequence[Any], metric: str, baseline: Any = None) -> Comparison:
        """Compare models user by user, each averaged over its starts."""
        for key in set(keys) - set(self._evaluations):
            self._evaluations[key] = [self._evaluation(row) for row in self.rows[key]]
        found = {str(key): self._evaluations[key] for key in keys}
        return compare(found, metric, baseline=None if baseline is None else str(baseline))

    def _evaluation(self, row: Row) -> Evaluation:
        """Return what `nbmf.evaluate` found, without intervals."""
        metrics = {
            name: Metric(row.means[name], (math.nan, math.nan), values, int(np.count_nonzero(~np.isnan(values))))
            for name, values in self.store.per_user(row.job.name).items()
        }
        n_tested = int(np.count_nonzero(np.diff(self.test.matrix.indptr)))
        return Evaluation(metrics, self.test.users, n_tested, self.test.n_users - n_tested, self.mark)


# worker processes -----------------------------------------------------------------------------------------------------


class LostWorkerError(RuntimeError):
    """A worker process died while it ran a job."""


class OvertimeError(RuntimeError):
    """A job took longer than its time limit."""


class Outcome(NamedTuple):
    """How a job ended: with a result or with an error."""

    job: Any
    result: Any
    error: Exception | None


def attempt(
    work: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any], n_workers: int, *, limit_s: float | None = None
) -> Generator[Outcome]:
    """Yield the outcome of `work(shared, job)` for every job as it ends; the jobs are started in their order.

    `work` is a function of a module, which the processes import by its name; `shared` is sent to each process once. The
    processes end with the iterator, however it ends. A job that takes longer than `limit_s` ends with `OvertimeError`.
    """
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads may hold
    pool: Any = ProcessPool(n_workers, initializer=_share, initargs=(work, shared), context=context)
    resource_tracker.ensure_running()  # where it is started, it unblocks Ctrl-C: not among the processes below
    try:
        # no Ctrl-C is raised in a thread, so there is no process that the pool does not know
        with ThreadPoolExecutor(1, initializer=_block_interrupts) as starter:
            futures: dict[Future[Any], Any] = starter.submit(_schedule, pool, jobs, limit_s).result()
        for future in as_completed(futures):
            job, error = futures.pop(future), future.exception()  # a result that has been yielded is not kept
            failed = None if error is None else _named(error, job, limit_s)
            yield Outcome(job, None if failed else future.result(), failed)
    finally:
        pool.stop()
        pool.join()


def _schedule(pool: Any, jobs: Sequence[Any], limit_s: float | None) -> dict[Future[Any], Any]:
    return {pool.schedule(_work, (job,), timeout=limit_s): job for job in jobs}


def _share(work: Callable[[Any, Any], Any], shared: Any) -> None:
    warnings.simplefilter("ignore", UserWarning)  # a row says whether its fit converged
    _SHARED.update(work=work, shared=shared)


def _work(job: Any) -> Any:
    return _SHARED["work"](_SHARED["shared"], job)


def _named(error: BaseException, job: Any, limit_s: float | None) -> Exception:
    name = getattr(job, "name", job)
    if isinstance(error, TimeoutError) and error.args == ("Task timeout", limit_s):
        return OvertimeError(f"took longer than {limit_s:g} s")
    if isinstance(error, ProcessExpired | BrokenExecutor) or not isinstance(error, Exception):
        return LostWorkerError(f"the process of {name} died; if it ran out of memory, use fewer processes at a time")
    error.add_note(f"in the process of {name}")
    return error


def _block_interrupts() -> None:
    """Block Ctrl-C in this thread and in what it starts; the process ends them itself."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
