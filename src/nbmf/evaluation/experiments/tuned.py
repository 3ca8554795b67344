"""Models tuned with the same budget and compared on counts that none of them has seen.

A fifth of the training counts is set aside. Each model is fitted to the rest with the same number of settings; the
settings that rank the fifth best are fitted to all training counts from several random starts, and these fits are
evaluated on the test counts, which no trial ever sees. Trials run side by side. The final fits run one after another,
each in a process of its own with all cores, because their time and memory are reported. A fit that fails or takes too
long is a row that says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scipy.stats import qmc

from nbmf.data.interactions import Interactions
from nbmf.evaluation import Comparison
from nbmf.evaluation.experiments.baselines import BASELINES, Space, check_installed
from nbmf.evaluation.experiments.engine import (
    Engine,
    Report,
    Starts,
    Task,
    available_cores,
    check_each_once,
    measured,
    timed,
)
from nbmf.evaluation.experiments.store import Job, Row, Store
from nbmf.evaluation.experiments.study import identity

VALIDATION_FRACTION = 0.2
THRESHOLDS, CUTOFFS = (1, 2, 5, 10), (10, 20, 100)
RELEVANCE = ("counts", *THRESHOLDS, "log2")
GOAL = "ndcg_counts"
_AT_K = ("ndcg_counts", "ndcg_binary", "recall", "precision", "map", "popularity_rank")
METRICS = (
    *(GOAL, "ndcg_log2"),
    *(f"ndcg_at_least_{s}" for s in THRESHOLDS),
    *(f"{name}_at_{k}" for k in CUTOFFS for name in _AT_K),
)
"""All metrics that have a value for each user, and so can be compared and tuned for."""


@dataclass(frozen=True)
class TunedComparison:
    """The models to compare, and the budget that each of them has."""

    models: tuple[str, ...] = tuple(BASELINES)
    n_trials: int = 12  # settings to try per model; 0 compares the defaults
    n_starts: int = 5  # final fits of each model whose seed matters, with the seeds `seed`, `seed` + 1, …
    seed: int = 0
    limit_s: float | None = 300.0  # time limit per fit
    goal: str = GOAL  # the metric that decides which trial is best
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by model, in place of those of BASELINES

    def __post_init__(self) -> None:
        check_each_once("models", self.models)
        for name in self.models:
            if name not in BASELINES:
                raise ValueError(f"there is no model {name!r}; there are {', '.join(BASELINES)}")
            check_installed(name)
        if self.goal not in METRICS:
            raise ValueError(f"the goal is {self.goal!r}; it must be one of {', '.join(METRICS)}")
        if self.n_trials < 0 or self.n_starts < 1:
            raise ValueError(f"{self.n_trials} trials and {self.n_starts} starts: at least 0 and 1 are needed")

    def trials_of(self, model: str) -> list[Job]:
        """Return the trials of a model."""
        settings = self.settings_of(model) if self.n_trials else []
        return [Job(f"{model}-trial-{n}", model, self.seed, tried) for n, tried in enumerate(settings)]

    def starts_of(self, model: str, settings: Mapping[str, Any]) -> list[Job]:
        """Return the final fits of a model: a single one if nothing is random."""
        n_starts = self.n_starts if BASELINES[model].random else 1
        return [Job(f"{model}-start-{n}", model, self.seed + n, settings) for n in range(n_starts)]

    def settings_of(self, model: str) -> list[dict[str, Any]]:
        """Return the settings to try, the defaults first."""
        baseline = BASELINES[model]
        first = {**baseline.defaults, **self.defaults.get(model, {})}
        return trial_settings(first, baseline.space, max(1, self.n_trials), self.seed)


def trial_settings(defaults: Mapping[str, Any], space: Space, n_trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the settings of each trial: the defaults, then points of a Halton sequence, which fills the space evenly.

    The n-th trial does not depend on how many follow it, so that trials can be added later. A model with nothing to
    search has a single trial.

    >>> space = {"penalty": (10.0, 1000.0), "input": ("counts", "binary")}
    >>> first, second = trial_settings({"penalty": 500.0, "input": "binary"}, space, 2, seed=0)
    >>> first["penalty"], 10 <= second["penalty"] <= 1000
    (500.0, True)
    """
    if not space:
        return [dict(defaults)]
    points = qmc.Halton(len(space), seed=seed).random(n_trials - 1).tolist()
    drawn = [{name: _value(space[name], share) for name, share in zip(space, point, strict=True)} for point in points]
    return [{**defaults, **settings} for settings in ({}, *drawn)]


def _value(values: tuple[Any, ...], share: float) -> Any:
    """Return the value at this share of a range, to three digits, or of the choices."""
    if isinstance(values[0], str):
        return values[int(share * len(values))]
    low, high = values
    value = low * (high / low) ** share
    return round(value) if isinstance(low, int) else float(f"{value:.3g}")


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Return settings as text.

    >>> settings_in_words({"penalty": 500.0, "input": "binary"})
    'penalty=500, input=binary'
    """
    words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.items()}
    return ", ".join(f"{name}={word}" for name, word in words.items())


def row_in_words(row: Row, goal: str = GOAL) -> str:
    """Return a line that says how a fit ended."""
    ending = row.problem or f"{goal} {row.means[goal]:.4f} in {row.seconds:.1f} s"
    return f"{row.job.name.replace('-', ' ')} ({settings_in_words(row.job.settings)}): {ending}"


def compare_tuned(
    train: Interactions,
    test: Interactions,
    plan: TunedComparison,
    path: str | Path,
    *,
    n_workers: int | None = None,
    report: Report = lambda event: None,
) -> "Result":
    """Tune every model on the training counts, and evaluate the best settings on the test counts.

    `train` and `test` have the same users and items, and the trials see nothing of `test`. Fits that are in the folder
    are not run again, and a folder of other data is refused. `n_workers` trials run at a time, one per core by default.
    """
    # models, trials and starts can be added to a folder
    budget = {"seed": plan.seed, "limit_s": plan.limit_s, "relevance": RELEVANCE, "cutoffs": CUTOFFS}
    about = {"data": identity(train, test, train.nnz), "comparison": budget, "made with": {"nbmf": version("nbmf")}}
    store = Store(Path(path), about)
    trials = [job for model in plan.models for job in plan.trials_of(model)]
    n_jobs = len(trials) + sum(len(plan.starts_of(model, {})) for model in plan.models)
    engine = Engine(store, n_jobs, n_jobs, report, limit_s=plan.limit_s, keeps_failures=True)
    final = Task(train, test, RELEVANCE, CUTOFFS, measured, is_likely=True)
    if trials:
        known, aside = train.split(VALIDATION_FRACTION, seed=plan.seed)
        tried = replace(final, train=known, test=aside, measure=timed, keeps_values=False, is_likely=False)
        engine.run(tried, trials, n_workers or available_cores())
    for model in plan.models:
        settings = chosen_settings(store.rows(), plan, model)
        if settings is None:
            engine.skip(plan.starts_of(model, {}))
        else:
            engine.run_alone(final, plan.starts_of(model, settings))
    return Result(train, test, plan, store)


def chosen_settings(rows: Mapping[str, Row], plan: TunedComparison, model: str) -> Mapping[str, Any] | None:
    """Return the settings of a model's best trial; without trials its defaults; None if all trials failed."""
    if not plan.n_trials:
        return plan.settings_of(model)[0]
    trials = [rows[job.name] for job in plan.trials_of(model)]
    found = [row for row in trials if not row.problem]
    return max(found, key=lambda row: row.means[plan.goal]).job.settings if found else None


class Result(Starts):
    """The result of a tuned comparison, read from its folder; `rows` has the final fits of the models that worked."""

    def __init__(self, train: Interactions, test: Interactions, plan: TunedComparison, store: Store) -> None:
        self.plan, self.stored = plan, store.rows()
        self.settings = {model: chosen_settings(self.stored, plan, model) for model in plan.models}
        sound = {}
        for model, settings in self.settings.items():
            starts = [] if settings is None else [self.stored[job.name] for job in plan.starts_of(model, settings)]
            if starts and not any(row.problem for row in starts):
                sound[model] = starts
        super().__init__(store, sound, train, test)
        if not sound:
            problems = "; ".join(f"{model}: {problem}" for model, problem in self.problems().items())
            raise ValueError(f"no model could be fitted. {problems}")

    def problems(self) -> dict[str, str]:
        """Return why models failed: the problem of their last failed fit."""
        failed = [row for row in self.stored.values() if row.problem and row.job.model not in self.rows]
        return {row.job.model: row.problem for row in failed if row.job.model in self.plan.models}

    def trials(self, model: str) -> list[Row]:
        """Return the rows of a model's trials."""
        return [self.stored[job.name] for job in self.plan.trials_of(model)]

    def board(self, baseline: str | None = None) -> Comparison:
        """Compare all models by the goal, user by user, each averaged over its starts."""
        return self.compare(list(self.rows), self.plan.goal, baseline)
