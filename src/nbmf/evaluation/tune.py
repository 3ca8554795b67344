"""Choose hyper-parameters by how well held-out counts are ranked: `tune`, with optuna (extra `tune`)."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmf.data import how_to_install
from nbmf.data.interactions import Interactions
from nbmf.estimators.metrics import check_whole
from nbmf.estimators.nbmf import NBMF
from nbmf.estimators.table import RowTable, Shown, first_rows
from nbmf.evaluation.evaluate import fingerprint
from nbmf.evaluation.stopping import EarlyStopping
from nbmf.inference.progress import RunsProgress

COLOR, BEST_COLOR = "#0072B2", "#D55E00"
COMPONENTS, PENALTIES = {"NBFISM": (50, 400)}, {"RobustMF": (3.0, 300.0), "NBFISM": (1.0, 100.0)}
MOST_COMPONENTS, MOST_PENALTIES = (5, 200), (3.0, 100.0)
"""Where to search for the number of components and the penalty of these estimators, and of all others."""


@dataclass(frozen=True, repr=False)
class Tuning(RowTable):
    """The trials of a search, and the best of them.

    Attributes
    ----------
    best, value : dict, float
        Settings of the best trial for `estimator(**best)`, and its metric. With factors they include the best sweep as
        max_iter, and tol 0: a fit with them stops after as many sweeps as ranked best, often 15 or 20. Set both anew
        for a fit that runs to its end.
    trials : list of dict
        One dictionary per finished trial, in order: number, value, sweeps and the settings.
    metric, estimator : str, type
        What was maximized, and the class that was tuned.
    """

    best: dict[str, Any]
    value: float
    trials: list[dict[str, Any]]
    metric: str
    estimator: type

    def rows(self) -> list[dict[str, Any]]:
        """Return the finished trials."""
        return self.trials

    def shown(self) -> Shown:
        """Return title, heads and rows: the best settings."""
        title = f"Tuning of {self.estimator.__name__}: best {self.metric} {self.value:.4f} of {len(self.trials)} trials"
        head, rows = first_rows({"setting": list(self.best), "best": list(self.best.values())})
        return title, head, rows

    def plot(self, path: str | Path) -> None:
        """Draw the metric against the trials and against each setting (extra `plots`), in the format of the suffix."""
        import matplotlib  # noqa: PLC0415 (slow to import, and an extra)
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import LogLocator, MaxNLocator  # noqa: PLC0415

        fixed = ("max_iter", "tol", "random_state")
        names = [name for name in self.best if name not in fixed and len({trial[name] for trial in self.trials}) > 1]
        values = [trial["value"] for trial in self.trials]
        with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
            figure = Figure(figsize=(2.6 * (1 + len(names)), 2.6), layout="constrained")
            first, *others = figure.subplots(1, 1 + len(names), sharey=True, squeeze=False)[0]
            numbers = range(1, len(values) + 1)
            first.plot(numbers, [max(values[:n]) for n in numbers], BEST_COLOR, drawstyle="steps-post")
            first.plot(numbers, values, "o", color=COLOR, markersize=4)
            first.set(xlabel="trial (line: best so far)", ylabel=self.metric.replace("_", " "))
            first.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            for axes, name in zip(others, names, strict=True):
                axes.plot([trial[name] for trial in self.trials], values, "o", color=COLOR, markersize=4)
                axes.axvline(self.best[name], color=BEST_COLOR, linestyle="--", linewidth=1)
                axes.set(xscale="log", xlabel=name.replace("_", " "))
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter("")
            figure.savefig(path, dpi=200)


@dataclass(frozen=True)
class Search:
    """Where `tune` searches: the ends of each range, the seed of everything random, and whether it shows progress."""

    components: tuple[int, int] | None = None
    concentrations: tuple[float, float] = (0.1, 10.0)
    shapes: tuple[float, float] = (0.1, 3.0)
    penalties: tuple[float, float] | None = None
    test_fraction: float = 0.2
    seed: int = 0
    verbose: bool = False

    def __post_init__(self) -> None:
        for name in ("components", "concentrations", "shapes", "penalties"):
            least, most = getattr(self, name) or (1, 1)
            if not 0 < least <= most:
                raise ValueError(f"{name} is {(least, most)}; give a positive least value and one not below it")

    def suggest(self, trial: Any, names: set[str], estimator: str) -> dict[str, Any]:
        """Return the settings of a trial of the estimator of this name: those of `names` that can be searched."""
        found: dict[str, Any] = {}
        if "n_components" in names:
            ends = self.components or COMPONENTS.get(estimator, MOST_COMPONENTS)
            found["n_components"] = trial.suggest_int("n_components", *ends, log=True)
        ranges = {"concentration": self.concentrations, "user_shape": self.shapes, "item_shape": self.shapes}
        ranges["penalty"] = self.penalties or PENALTIES.get(estimator, MOST_PENALTIES)
        return found | {n: trial.suggest_float(n, *ends, log=True) for n, ends in ranges.items() if n in names}


def tune(
    data: Interactions,
    *,
    estimator: type = NBMF,
    n_trials: int = 30,
    metric: str = "ndcg_counts",
    settings: Mapping[str, Any] | None = None,
    study: str | Path | None = None,
    report: Callable[[int, int, dict[str, Any]], None] | None = None,
    **search: Any,
) -> Tuning:
    """Search for the number of components, concentration and shapes, or the penalty, that rank held-out counts best.

    Parameters
    ----------
    data : Interactions
        Counts to fit. A part of the non-zeros is held out, so give the training part if you evaluate later.
    estimator : type
        NBMF, PoissonMF (which has no concentration), CompoundMF, ZeroInflatedMF, BinaryMF (the number of components and
        the shapes), RobustMF (also the penalty), NBSLIM (concentration and penalty) or NBFISM (the number of components
        and the penalty; the concentration if settings say likelihood="negative_binomial").
    n_trials : int
        Number of trials, including those of earlier calls with the same study.
    metric : str
        What is maximized, as for `EarlyStopping`, which ends each trial of a model with factors: a metric of
        `nbmf.evaluate`, or "log_likelihood", which looks for the model that describes the counts best.
    settings : mapping, optional
        Other settings of the estimator, the same for each trial; max_iter and tol apply to the search, not to `best`.
    study : path, optional
        File of the trials; an interrupted search resumes from it.
    report : callable, optional
        Called after each trial with its number, n_trials and its row.
    components, concentrations, shapes, penalties : tuple, optional
        Smallest and largest value of each, by default (5, 200), (0.1, 10), (0.1, 3) and (3, 100). Penalties of RobustMF
        are from (3, 300), those of NBFISM from (1, 100), and its numbers of components from (50, 400). Equal values fix
        a setting.
    test_fraction, seed : float, int, optional
        Share of the non-zeros that is held out, by default 0.2, and the seed of everything random, by default 0.
    verbose : bool, optional
        Whether to show on standard error how many trials are done and the best so far.

    Examples
    --------
    >>> import nbmf
    >>> data = nbmf.datasets.simulate(60, 40, n_components=3, seed=0)
    >>> found = nbmf.tune(data, n_trials=2, components=(2, 6))
    >>> model = nbmf.NBMF(**found.best).fit(data)
    >>> found.value == max(trial["value"] for trial in found.trials)
    True
    """
    check_whole("n_trials", n_trials)
    where = Search(**search)
    if not isinstance(data, Interactions):
        raise TypeError(f"data is a {type(data).__name__}; tune takes Interactions, as nbmf.read_interactions returns")
    if not isinstance(estimator, type):
        name = type(estimator).__name__
        raise TypeError(f"estimator is an instance; give the class, estimator={name}, and its settings as settings=…")
    known = set(estimator().get_params(deep=False))
    if not known & {"n_components", "penalty"}:
        raise TypeError(f"{estimator.__name__} has neither n_components nor a penalty to tune")
    given = dict(settings or {})
    likelihood = getattr(estimator(), "_likelihood", None)
    if metric == "log_likelihood" and likelihood is not None and not likelihood().is_normalized:
        raise ValueError(f"the probabilities of {estimator.__name__} do not sum to 1; tune it by another metric")
    train, valid = data.split(where.test_fraction, seed=where.seed)
    EarlyStopping(train, valid, metric=metric)  # raises for an unknown metric before the search
    what = f"{fingerprint(train, valid)} {metric} {estimator.__name__} {sorted(given.items())!r}"
    trials = _study(study, what, where.seed)

    has_factors, searched = "n_components" in known, known - set(given)
    if "likelihood" in known and given.get("likelihood", "poisson") == "poisson":
        searched -= {"concentration"}  # which NBFISM has for its other likelihood
    seeded = {"random_state": where.seed} if "random_state" in known else {}

    def run(trial: Any) -> float:
        tried = where.suggest(trial, searched, estimator.__name__)
        model = estimator(**{**seeded, **tried, **given})
        stopping = EarlyStopping(train, valid, metric=metric, patience=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a trial may well fit badly; the best is fitted again
            model.fit(train, **({"stopping": stopping} if has_factors else {}))
        if model.ending_ == "interrupted":
            raise KeyboardInterrupt  # Ctrl-C ends the search, not only this trial
        trial.set_user_attr("sweeps", model.n_iter_)
        return max(value for _, value in stopping.history) if has_factors else stopping.value_of(model)

    with RunsProgress(f"tune {estimator.__name__}", compiles=True, what="trials", quiet=not where.verbose) as progress:
        while len(finished := _rows(trials)) < n_trials:
            trials.optimize(run, n_trials=1)
            rows = _rows(trials)
            value = max(row["value"] for row in rows)
            progress.report(len(rows), n_trials, len(rows) / n_trials, f"best {metric} so far {value:.4f}")
            if report is not None:
                report(len(rows), n_trials, rows[-1])
    best = max(finished, key=lambda row: row["value"])
    chosen = {name: value for name, value in best.items() if name not in ("number", "value", "sweeps")}
    stop = {"max_iter": best["sweeps"], "tol": 0.0} if has_factors else {}
    return Tuning({**seeded, **chosen, **given, **stop}, best["value"], finished, metric, estimator)


def _study(path: str | Path | None, what: str, seed: int) -> Any:
    """Open or create optuna's study of the trials, and check that it belongs to the same data."""
    try:
        import optuna  # noqa: PLC0415 (an extra)
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tune needs the package optuna; {how_to_install('tune')}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a warning would show the traceback of Ctrl-C
    storage = None
    if path is not None:
        lock = JournalFileOpenLock(str(path))  # the other lock makes links, which some file systems forbid
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(
        storage=storage, sampler=sampler, study_name="nbmf", direction="maximize", load_if_exists=True
    )
    if "what" not in study.user_attrs:
        study.set_user_attr("what", what)
    elif study.user_attrs["what"] != what:
        raise ValueError(f"{path} holds a search on other data or with other settings; give another path")
    return study


def _rows(study: Any) -> list[dict[str, Any]]:
    """Return the finished trials."""
    return [
        {"number": n, "value": trial.value, "sweeps": trial.user_attrs["sweeps"], **trial.params}
        for n, trial in enumerate(trial for trial in study.trials if trial.value is not None)
    ]
