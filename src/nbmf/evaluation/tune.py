"""Choosing hyper-parameters by how well held-out counts are ranked: `tune`, by optuna (extra `tune`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmf.data.interactions import Interactions
from nbmf.estimators.nbmf import NBMF
from nbmf.evaluation.judged import fingerprint
from nbmf.evaluation.stopping import EarlyStopping

if TYPE_CHECKING:
    import optuna

COLOR, BEST_COLOR = "#0072B2", "#D55E00"
Range = tuple[float, float]


@dataclass(frozen=True)
class Tuning:
    """What was tried, and what ranked held-out counts best.

    Attributes
    ----------
    best : settings of the best trial, ready for `estimator(**best)`; max_iter is where it was best, and tol 0
    value : its held-out metric
    trials : one dictionary a finished trial, in order: number, value, sweeps and the settings
    metric, estimator : what was maximized, and the class that was tuned
    """

    best: dict[str, Any]
    value: float
    trials: list[dict[str, Any]]
    metric: str
    estimator: type

    def plot(self, path: str | Path) -> None:
        """Draw the metric against the trials and against each setting (extra `plots`); the ending tells the format."""
        import matplotlib  # noqa: PLC0415 (slow to import, and an extra)
        from matplotlib.figure import Figure  # noqa: PLC0415

        names = [name for name in self.best if name not in ("max_iter", "tol", "random_state")]
        names = [name for name in names if len({trial[name] for trial in self.trials}) > 1]
        values = [trial["value"] for trial in self.trials]
        with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
            figure = Figure(figsize=(2.6 * (1 + len(names)), 2.6), layout="constrained")
            axes = figure.subplots(1, 1 + len(names), sharey=True, squeeze=False)[0]
            numbers = [trial["number"] + 1 for trial in self.trials]
            best_so_far = [max(values[: n + 1]) for n in range(len(values))]
            axes[0].plot(numbers, best_so_far, color=BEST_COLOR, drawstyle="steps-post", label="best so far")
            axes[0].plot(numbers, values, "o", color=COLOR, markersize=4, label="trial")
            axes[0].set(xlabel="trial", ylabel=self.metric.replace("_", " "))
            axes[0].legend(frameon=False)
            for axis, name in zip(axes[1:], names, strict=True):
                axis.plot([trial[name] for trial in self.trials], values, "o", color=COLOR, markersize=4)
                axis.axvline(self.best[name], color=BEST_COLOR, linestyle="--", linewidth=1)
                axis.set(xscale="log", xlabel=name.replace("_", " "))
            figure.savefig(path, dpi=200)


def tune(
    data: Interactions,
    *,
    estimator: type = NBMF,
    n_trials: int = 30,
    metric: str = "ndcg_counts",
    test_fraction: float = 0.2,
    components: tuple[int, int] = (5, 200),
    concentrations: Range = (0.1, 10.0),
    shapes: Range = (0.1, 3.0),
    settings: Mapping[str, Any] | None = None,
    study: str | Path | None = None,
    seed: int = 0,
    report: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> Tuning:
    """Search for the number of components, concentration and shapes that rank held-out counts best.

    Parameters
    ----------
    data : counts to fit; a fraction of the non-zeros is held out, so give the training part if you judge later
    estimator : NBMF or PoissonMF (which has no concentration)
    n_trials : in all, those of earlier calls with the same study included
    metric : what is maximized, as for `EarlyStopping`, which ends each trial
    components, concentrations, shapes : least and largest value of each; equal ones fix it
    settings : others of the estimator, the same for each trial; max_iter and tol hold while searching, not in `best`
    study : path of a journal of the trials; a search that was cut short goes on from there
    seed : of the held-out part, the starts and the search
    report : called after each trial with its number, n_trials and its row

    Returns
    -------
    Tuning : `best`, `value`, `trials`, and `plot(path)`

    Examples
    --------
    >>> import nbmf
    >>> data = nbmf.datasets.simulate(60, 40, n_components=3, seed=0)
    >>> found = nbmf.tune(data, n_trials=2, components=(2, 6))
    >>> model = nbmf.NBMF(**found.best).fit(data)
    >>> found.value == max(trial["value"] for trial in found.trials)
    True
    """
    _check(n_trials, {"components": components, "concentrations": concentrations, "shapes": shapes})
    if not isinstance(data, Interactions):
        raise TypeError(
            f"data is a {type(data).__name__}; tune takes Interactions, as nbmf.read_interactions makes them"
        )
    if "n_components" not in estimator().get_params(deep=False):
        raise TypeError(f"tune looks for components, which {estimator.__name__} has not; nbmf compare --tune tunes it")
    given = dict(settings or {})
    train, valid = data.split(test_fraction, seed=seed)
    EarlyStopping(train, valid, metric=metric)  # names a wrong metric before the search
    search = _study(study, f"{fingerprint(train, valid)} {metric} {estimator.__name__} {sorted(given.items())!r}", seed)

    def trial(number: optuna.trial.Trial) -> float:
        chosen: dict[str, Any] = {}
        if "n_components" not in given:
            chosen["n_components"] = number.suggest_int("n_components", *components, log=True)
        for name, limits in (("concentration", concentrations), ("user_shape", shapes), ("item_shape", shapes)):
            if name in estimator().get_params() and name not in given:
                chosen[name] = number.suggest_float(name, *limits, log=True)
        stopping = EarlyStopping(train, valid, metric=metric, patience=4)
        model = estimator(**{"random_state": seed, **chosen, **given}).fit(train, stopping=stopping)
        number.set_user_attr("sweeps", model.n_iter_)
        return max(value for _, value in stopping.history)

    while len(finished := _rows(search)) < n_trials:
        search.optimize(trial, n_trials=1)
        if report is not None:
            report(len(finished) + 1, n_trials, _rows(search)[-1])
    best = max(finished, key=lambda row: row["value"])
    chosen = {name: value for name, value in best.items() if name not in ("number", "value", "sweeps")}
    chosen = {"random_state": seed, **chosen, **given, "max_iter": best["sweeps"], "tol": 0.0}
    return Tuning(chosen, best["value"], finished, metric, estimator)


def _check(n_trials: int, ranges: dict[str, tuple[float, float]]) -> None:
    if not isinstance(n_trials, int) or n_trials < 1:
        raise ValueError(f"n_trials is {n_trials!r}; it must be a whole number from 1")
    for name, (least, most) in ranges.items():
        if not 0 < least <= most:
            raise ValueError(f"{name} is {(least, most)}; give a positive least value and one not below it")


def _study(path: str | Path | None, what: str, seed: int) -> optuna.Study:
    """Open the journal, or start one, and see that it is about the same data."""
    try:
        import optuna  # noqa: PLC0415 (an extra)
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tune needs the package optuna: pip install 'nbmf[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if path is not None:
        lock = JournalFileOpenLock(str(path))  # links, which its other lock makes, are not allowed everywhere
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    study = optuna.create_study(
        storage=storage,
        sampler=optuna.samplers.TPESampler(seed=seed),
        study_name="nbmf",
        direction="maximize",
        load_if_exists=True,
    )
    known = study.user_attrs.get("what")
    if known is None:
        study.set_user_attr("what", what)
    elif known != what:
        raise ValueError(f"{path} holds a search on other data or with other settings; give another path")
    return study


def _rows(study: optuna.Study) -> list[dict[str, Any]]:
    """Return the finished trials."""
    return [
        {"number": n, "value": trial.value, "sweeps": trial.user_attrs["sweeps"], **trial.params}
        for n, trial in enumerate(trial for trial in study.trials if trial.value is not None)
    ]
