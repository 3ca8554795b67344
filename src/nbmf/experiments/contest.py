"""Models tuned alike, then judged on what none of them has seen.

A fifth of the training counts is set aside. Every model is tried on the rest with the same number of settings, and the
setting that ranks the fifth best is fitted to all training counts, from several starts, and judged on the test counts,
which no trial is ever given. Trials run side by side, a thread each; the final fits run one after another, each in a
process of its own with all threads, as their seconds and memory are told.

Rows go to a folder as they come, and what is in the folder is not done again: more models, trials or starts can be
asked for later. A fit that fails, or takes too long, is a row that says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nbmf.data.datasets import simulate
from nbmf.data.interactions import Interactions
from nbmf.evaluation import Comparison, Evaluation, compare, evaluate
from nbmf.evaluation.judged import Judged, fingerprint
from nbmf.experiments.grid import at_least
from nbmf.experiments.results import kept_evaluation
from nbmf.experiments.rivals import RIVALS, check_installed
from nbmf.experiments.rows import RunsFolder
from nbmf.experiments.runs import available_cores
from nbmf.experiments.search import settings_in_words, trial_settings
from nbmf.experiments.workers import Outcome, attempt
from nbmf.inference.progress import Stopwatch

VALIDATION_FRACTION = 0.2
THRESHOLDS, CUTOFFS = (1, 2, 5, 10), (10, 20)
GOAL = "ndcg_counts"
_AT_CUTOFFS = ("ndcg_counts", "recall", "precision", "map", "popularity_rank")
METRICS = (GOAL, *(at_least(s) for s in THRESHOLDS), *(f"{name}_at_{k}" for k in CUTOFFS for name in _AT_CUTOFFS))
"""All of `nbmf.evaluate` that have a value for each user."""
TRIAL, START = "trial", "start"
REPEATS, REPEATS_WITHIN = 5, 5.0  # how often a final fit is timed, in how many seconds


class NothingFoundError(ValueError):
    """No model came to an end."""


@dataclass(frozen=True)
class Contest:
    """Who takes part, and the budget that all share.

    models : names of RIVALS
    n_trials : settings tried of each model; 0: none, each has its defaults
    n_starts : final fits of each model whose seed matters, with the seeds `seed`, `seed` + 1, …
    limit_s : seconds after which a fit is given up; None: never
    goal : the metric by which a trial is best
    defaults : other first settings than those of RIVALS, by model
    """

    models: tuple[str, ...] = tuple(RIVALS)
    n_trials: int = 12
    n_starts: int = 5
    seed: int = 0
    limit_s: float | None = 300.0
    goal: str = GOAL
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name in self.models:
            if name not in RIVALS:
                raise ValueError(f"there is no model {name!r}; there are {', '.join(RIVALS)}")
            check_installed(name)
        if not self.models or len(set(self.models)) != len(self.models):
            raise ValueError(f"models is {list(self.models)}; give at least one, each once")
        if self.goal not in METRICS:
            raise ValueError(f"the goal is {self.goal!r}; it must be one of {', '.join(METRICS)}")
        if self.n_trials < 0 or self.n_starts < 1:
            raise ValueError(f"{self.n_trials} trials and {self.n_starts} starts: at least 0 and 1 are needed")

    def trials_of(self, model: str) -> list[dict[str, Any]]:
        """Return the settings of a model's trials."""
        rival = RIVALS[model]
        return trial_settings(self._first(model), rival.space, max(1, self.n_trials), self.seed)

    def starts_of(self, model: str) -> int:
        """Return how many final fits a model needs: one where nothing is random."""
        return self.n_starts if RIVALS[model].random else 1

    def _first(self, model: str) -> dict[str, Any]:
        return {**RIVALS[model].defaults, **self.defaults.get(model, {})}


@dataclass(frozen=True, order=True)
class Fit:
    """One fit: a model's n-th trial or n-th start."""

    model: str
    stage: str
    number: int

    def __str__(self) -> str:
        """Name it in a word that can be a file's name."""
        return f"{self.model}-{self.stage}-{self.number}"


@dataclass(frozen=True)
class FitRow:
    """How a fit ended.

    settings : of the model
    seconds : of the fit, of a short one the median of several; nan where it failed
    megabytes : by which the fit's process grew at its peak; nan of a trial, and where the system does not tell
    problem : why it failed, or ""
    means : the metrics, on the fifth set aside (trial) or on the test counts (start); nan where it failed
    """

    COLUMNS: ClassVar = ("model", "stage", "number", "seed", "settings", "seconds", "megabytes", "problem")

    job: Fit
    seed: int
    settings: Mapping[str, Any]
    seconds: float
    megabytes: float
    problem: str
    means: Mapping[str, float]

    def __str__(self) -> str:
        """Say in a line how it ended."""
        ending = self.problem or f"NDCG {self.means[GOAL]:.4f} in {self.seconds:.1f} s"
        return f"{self.job.model} {self.job.stage} {self.job.number} ({settings_in_words(self.settings)}): {ending}"

    @property
    def is_sound(self) -> bool:
        """Whether it ended with a result."""
        return not self.problem

    @property
    def has_values(self) -> bool:
        """Whether there are values user by user: nobody asks for those of trials."""
        return self.is_sound and self.job.stage == START

    def cells(self) -> list[Any]:
        """Return what the row of the table says."""
        settings = json.dumps(self.settings, ensure_ascii=False)
        fit = (self.seed, settings, f"{self.seconds:.4f}", f"{self.megabytes:.1f}", self.problem)
        return [self.job.model, self.job.stage, self.job.number, *fit, *map(repr, self.means.values())]

    @classmethod
    def of(cls, cells: Mapping[str, str]) -> FitRow:
        """Take a row of the table."""
        return cls(
            Fit(cells["model"], cells["stage"], int(cells["number"])),
            int(cells["seed"]),
            json.loads(cells["settings"]),
            float(cells["seconds"]),
            float(cells["megabytes"]),
            cells["problem"],
            {name: float(value) for name, value in cells.items() if name not in cls.COLUMNS},
        )


class FitsFolder(RunsFolder[FitRow]):
    """The fits of a contest."""

    kind = FitRow


class Task(NamedTuple):
    """A fit to be made."""

    job: Fit
    seed: int
    settings: Mapping[str, Any]

    def is_done_by(self, row: FitRow | None) -> bool:
        """Tell whether a row is of this very fit: another trial may have become the best one since."""
        return row is not None and (row.seed, row.settings) == (self.seed, self.settings)

    def failed(self, error: Exception) -> FitRow:
        """Return the row that says why there is no result."""
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return FitRow(*self, math.nan, math.nan, problem, dict.fromkeys(METRICS, math.nan))


class Tidings(NamedTuple):
    """What is told after each fit: its row (None at the beginning), how many are done, and how many there are."""

    row: FitRow | None
    n_done: int
    n_fits: int


class _Shared(NamedTuple):
    """What every fit needs."""

    train: Interactions
    test: Interactions
    folder: FitsFolder
    n_threads: int
    measured: bool


def run_contest(
    train: Interactions,
    test: Interactions,
    contest: Contest,
    path: str | Path,
    *,
    n_workers: int | None = None,
    report: Callable[[Tidings], None] = lambda tidings: None,
) -> Standing:
    """Tune every model on the training counts and judge what was best on the test counts.

    Parameters
    ----------
    train, test : with the same users and items; the trials are given nothing of `test`
    path : the folder of the rows; one that holds part of this contest is gone on with, one of other data is refused
    n_workers : trials at a time, from 1; None: one a core
    report : called after each fit
    """
    folder = FitsFolder.open(Path(path), _what(train, test, contest), METRICS)
    n_fits = sum(map(contest.starts_of, contest.models))
    n_fits += sum(len(contest.trials_of(model)) for model in contest.models) if contest.n_trials else 0
    n_done = 0

    def go_on(rows: Iterator[FitRow | None]) -> None:
        nonlocal n_done
        for row in rows:
            n_done += 1
            report(Tidings(row, n_done, n_fits))

    report(Tidings(None, 0, n_fits))
    if contest.n_trials:
        go_on(_trials(train, contest, folder, n_workers or available_cores()))
    go_on(_starts(train, test, contest, folder))
    return Standing(train, test, contest, folder)


def _what(train: Interactions, test: Interactions, contest: Contest) -> dict[str, Any]:
    """Return what the rows of a folder have in common; models, trials and starts can be added to it."""
    data = {"n_users": train.n_users, "n_items": train.n_items, "nnz": train.nnz, "n_test": test.nnz}
    return {
        "data": {**data, "fingerprint": fingerprint(train, test)},
        "contest": {"seed": contest.seed, "limit_s": contest.limit_s},
        "made with": {"nbmf": version("nbmf")},
    }


def _trials(train: Interactions, contest: Contest, folder: FitsFolder, n_workers: int) -> Iterator[FitRow | None]:
    """Make the trials that are missing; None stands for each that is there already."""
    tasks = [
        Task(Fit(model, TRIAL, n), contest.seed, settings)
        for model in contest.models
        for n, settings in enumerate(contest.trials_of(model))
    ]
    left = _left(tasks, folder)
    yield from [None] * (len(tasks) - len(left))
    known, aside = train.split(VALIDATION_FRACTION, seed=contest.seed)
    shared = _Shared(known, aside, folder, max(1, available_cores() // n_workers), measured=False)
    with closing(attempt(_fit_and_judge, shared, left, n_workers, limit_s=contest.limit_s)) as outcomes:
        yield from (_kept(outcome, folder) for outcome in outcomes)


def _starts(train: Interactions, test: Interactions, contest: Contest, folder: FitsFolder) -> Iterator[FitRow | None]:
    """Make the final fits that are missing, of the models that have a setting that works."""
    shared = _Shared(train, test, folder, available_cores(), measured=True)
    for model in contest.models:
        settings = chosen_settings(folder, contest, model)
        tasks = [Task(Fit(model, START, n), contest.seed + n, settings or {}) for n in range(contest.starts_of(model))]
        left = _left(tasks, folder) if settings is not None else []
        yield from [None] * (len(tasks) - len(left))
        for task in left:  # each in a process of its own, whose memory is the fit's
            with closing(attempt(_fit_and_judge, shared, [task], 1, limit_s=contest.limit_s)) as outcomes:
                yield from (_kept(outcome, folder) for outcome in outcomes)


def _left(tasks: Sequence[Task], folder: FitsFolder) -> list[Task]:
    rows = folder.rows()
    return [task for task in tasks if not task.is_done_by(rows.get(task.job))]


def _kept(outcome: Outcome, folder: FitsFolder) -> FitRow:
    row: FitRow = outcome.result if outcome.error is None else outcome.task.failed(outcome.error)
    folder.add(row)
    return row


def chosen_settings(folder: FitsFolder, contest: Contest, model: str) -> Mapping[str, Any] | None:
    """Return the settings of a model's best trial; without trials its defaults; None where all trials failed."""
    if not contest.n_trials:
        return contest.trials_of(model)[0]
    rows = folder.rows()
    found = [rows[Fit(model, TRIAL, n)] for n in range(len(contest.trials_of(model)))]
    ended = [row for row in found if row.is_sound]
    return max(ended, key=lambda row: row.means[contest.goal]).settings if ended else None


def _fit_and_judge(shared: _Shared, task: Task) -> FitRow:
    """One fit: the values are kept here, in its process; the row is written by the parent alone."""
    fit = partial(RIVALS[task.job.model].fit, seed=task.seed, n_threads=shared.n_threads, **task.settings)
    model, seconds, megabytes = _measured(fit, shared.train) if shared.measured else _timed(fit, shared.train)
    relevance = ("counts", *THRESHOLDS)
    found = evaluate(model, shared.train, shared.test, relevance, at=CUTOFFS, n_boot=1, n_threads=shared.n_threads)
    if shared.measured:
        shared.folder.keep_values(task.job, {name: found[name].per_user for name in METRICS})
    return FitRow(*task, seconds, megabytes, "", {name: found[name].mean for name in METRICS})


def _timed(fit: Callable[[Interactions], Judged], train: Interactions) -> tuple[Judged, float, float]:
    watch = Stopwatch()
    return fit(train), watch.seconds, math.nan


def _measured(fit: Callable[[Interactions], Judged], train: Interactions) -> tuple[Judged, float, float]:
    """Return a fitted model, its seconds and its megabytes; a short fit is made again, as others use the machine."""
    with suppress(Exception):  # a fault that is not of the small data alone is told below
        fit(simulate(60, 50, n_components=3, mean_count=0.5, seed=0))  # imports and compiled loops are no part of a fit
    before = _memory(reset=True)
    model, *seconds = _timed(fit, train)[:2]
    megabytes = _memory() - before
    while len(seconds) < REPEATS and sum(seconds) < REPEATS_WITHIN:
        seconds.append(_timed(fit, train)[1])
    return model, float(np.median(seconds)), megabytes


def _memory(*, reset: bool = False) -> float:
    """Return the peak of this process's memory in megabytes; `reset`: as it is now, from where a new peak counts."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return math.nan
    name = "VmRSS:" if reset else "VmHWM:"
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


class Standing:
    """How a contest ended, read from its folder."""

    def __init__(self, train: Interactions, test: Interactions, contest: Contest, folder: FitsFolder) -> None:
        """Read the rows."""
        self.train, self.test, self.contest, self.folder = train, test, contest, folder
        self.rows = folder.rows()
        self.settings = {model: chosen_settings(folder, contest, model) for model in contest.models}
        self.starts: dict[str, list[FitRow]] = {}
        for model in contest.models:
            rows = [self.rows.get(Fit(model, START, n)) for n in range(contest.starts_of(model))]
            if all(row is not None and row.is_sound for row in rows):
                self.starts[model] = [row for row in rows if row is not None]
        if not self.starts:
            raise NothingFoundError(f"no model came to an end; {folder.table} says why")
        mark = fingerprint(train, test)
        self.evaluations: dict[str, Evaluation | Sequence[Evaluation]] = {
            model: [kept_evaluation(folder.values(row.job), row.means, test, mark) for row in rows]
            for model, rows in self.starts.items()
        }

    def problems(self) -> dict[str, str]:
        """Return why each model failed that did, by what its last failing fit said."""
        failed = (row for row in self.rows.values() if row.problem and row.job.model not in self.starts)
        return {row.job.model: row.problem for row in failed if row.job.model in self.contest.models}

    def trials(self, model: str) -> list[FitRow]:
        """Return the rows of a model's trials."""
        n_trials = len(self.contest.trials_of(model)) if self.contest.n_trials else 0
        return [self.rows[Fit(model, TRIAL, n)] for n in range(n_trials)]

    def compare(self, baseline: str | None = None) -> Comparison:
        """Compare the models by the goal, user by user, each averaged over its starts."""
        return compare(self.evaluations, self.contest.goal, baseline=baseline)

    def mean(self, model: str, what: str) -> float:
        """Return the mean over the starts of a metric."""
        return float(np.mean([row.means[what] for row in self.starts[model]]))

    def seconds(self, model: str) -> float:
        """Return the median over the starts."""
        return float(np.median([row.seconds for row in self.starts[model]]))

    def megabytes(self, model: str) -> float:
        """Return the most of the starts."""
        return max(row.megabytes for row in self.starts[model])
