"""`nbmf compare`: which of several models ranks best what was held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nbmf.cli.evaluate import check_test, fit_named, interval_in_words
from nbmf.cli.options import (
    COMPARED,
    JUDGED,
    check_concentration,
    data_argument,
    data_options,
    fit_options,
    json_option,
    read_data,
    split_data,
    split_options,
)
from nbmf.cli.terminal import end_interrupted, sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions
    from nbmf.evaluation import Comparison, Evaluation
    from nbmf.experiments.contest import Contest, Standing, Tidings


class Typed(NamedTuple):
    """The settings of our factor models as they were typed."""

    components: int
    concentration: float | None
    max_iter: int
    tol: float

    def by_model(self) -> dict[str, dict[str, Any]]:
        """Return them by the names of the estimators."""
        factors: dict[str, Any] = {"n_components": self.components, "max_iter": self.max_iter, "tol": self.tol}
        nbmf = {**factors, "concentration": 1.0 if self.concentration is None else self.concentration}
        return {"nbmf": nbmf, "averaged": nbmf, "poisson": factors, "binary": factors}


def _several(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    """Names of models with commas between them."""
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in COMPARED:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(COMPARED)}")
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is there twice")
    return names


@click.command(short_help="Compare how models rank held-out counts.")
@data_argument
@click.option(
    "--models",
    metavar="NAME,…",
    callback=_several,
    default=",".join(JUDGED),
    show_default=True,
    help="Which, with commas between them. There are also averaged (five starts of nbmf), nbslim and ease (weights "
    "between items), kl-nmf (of scikit-learn), and, with the extra bench, knn, als, bpr (of implicit) and hpf (of "
    "hpfrec).",
)
@click.option(
    "--tune",
    metavar="TRIALS",
    show_default="none: each model has its defaults",
    type=click.IntRange(1),
    help="Try that many settings of each model on a fifth of the training counts, and compare the best ones.",
)
@click.option(
    "--starts",
    metavar="N",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Random starts of each model; their results are averaged.",
)
@click.option(
    "--metric", metavar="NAME", default="ndcg_counts", show_default=True, help="Any that `nbmf evaluate` lists."
)
@click.option(
    "--baseline", type=click.Choice(COMPARED), show_default="the best", help="To which model the others are compared."
)
@click.option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    show_default="nothing is kept",
    help="Keep every finished fit there: the same command goes on from them, and models, trials and starts can be "
    "added.",
)
@fit_options
@split_options
@data_options
@json_option
def compare(
    data: str,
    user: str | None,
    item: str | None,
    count: str | None,
    min_users: int,
    min_items: int,
    models: tuple[str, ...],
    components: int,
    concentration: float | None,
    seed: int,
    max_iter: int,
    tol: float,
    split: str,
    test_fraction: float,
    time: str | None,
    tune: int | None,
    starts: int,
    metric: str,
    baseline: str | None,
    folder: str | None,
    as_json: bool,
) -> None:
    """Fit several models to the same part of DATA and compare how they rank the other part.

    Differences are user by user, over the same 1,000 draws of users: an interval without 0 tells two models apart. With
    several starts a model is the mean of them, and its seconds are their median. The options -k, --concentration,
    --max-iter and --tol are of nbmf, averaged, poisson and binary; with --tune they are what is tried first.
    """
    check_concentration(models, concentration)
    if baseline is not None and baseline not in models:
        raise click.UsageError(f"--baseline {baseline} is not among --models {','.join(models)}")
    with sentences():
        import nbmf  # noqa: PLC0415
        from nbmf.experiments.rivals import Popularity, check_installed  # noqa: PLC0415

        for name in models:
            check_installed(name)
        found = read_data(data, user, item, count, min_users, min_items, time)
        train, held_out = split_data(found, split, test_fraction, seed)
        check_test(train, held_out)
        # what needs no fit is judged first: it names an unknown metric before anything is fitted
        nbmf.evaluate(Popularity(train), train, held_out, n_boot=1)[metric]
        typed = Typed(components, concentration, max_iter, tol)
        chosen: Mapping[str, Mapping[str, Any] | None] = {}
        if tune is not None or folder is not None:
            ended = _contest(train, held_out, _contest_of(models, tune or 0, starts, seed, metric, typed), folder)
            result, chosen = ended.compare(baseline), ended.settings if tune else {}
            seconds = {name: ended.seconds(name) for name in ended.starts}
        else:
            results, seconds = _judged(train, held_out, models, starts, seed, typed)
            result = nbmf.compare(results, metric, baseline=baseline)
        if as_json:
            show_json({"metric": metric, "users": result.n_users, "models": _rows(result, seconds, chosen)})
        else:
            _show_comparison(result, seconds)
            _show_settings(result, chosen)


def _judged(
    train: Interactions,
    test: Interactions,
    models: Sequence[str],
    starts: int,
    seed: int,
    typed: Typed,
) -> tuple[dict[str, Evaluation | Sequence[Evaluation]], dict[str, float]]:
    """Fit the models here, one after another; return what was found of each, and the median of its seconds."""
    from statistics import median  # noqa: PLC0415

    import nbmf  # noqa: PLC0415
    from nbmf.experiments.rivals import RIVALS  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415

    results: dict[str, Evaluation | Sequence[Evaluation]] = {}
    seconds: dict[str, float] = {}
    for name in models:
        evaluations, taken = [], []
        for start in range(seed, seed + (starts if RIVALS[name].random else 1)):
            watch = Stopwatch()
            model = _fit(name, train, start, typed)
            taken.append(watch.seconds)
            evaluations.append(nbmf.evaluate(model, train, test))
        results[name], seconds[name] = evaluations, median(taken)
    return results, seconds


def _fit(name: str, train: Interactions, seed: int, typed: Typed) -> Any:
    """Return a fitted model; those of `nbmf fit` show their progress, of the others a line is said."""
    if name in JUDGED:
        return fit_named(name, train, typed.components, typed.concentration, seed, typed.max_iter, typed.tol)
    from nbmf.experiments.rivals import RIVALS  # noqa: PLC0415
    from nbmf.experiments.runs import available_cores  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch, in_words  # noqa: PLC0415

    watch, rival = Stopwatch(), RIVALS[name]
    model = rival.fit(train, seed, available_cores(), **{**rival.defaults, **typed.by_model().get(name, {})})
    if any(member.ending_ == "interrupted" for member in getattr(model, "members_", ())):
        end_interrupted("nothing was judged")
    click.echo(f"{rival.label}: fitted in {in_words(watch.seconds)}", err=True)
    return model


def _contest_of(models: tuple[str, ...], n_trials: int, starts: int, seed: int, metric: str, typed: Typed) -> Contest:
    from nbmf.experiments.contest import Contest  # noqa: PLC0415

    return Contest(models, n_trials, starts, seed, limit_s=None, goal=metric, defaults=typed.by_model())


def _contest(train: Interactions, test: Interactions, contest: Contest, folder: str | None) -> Standing:
    """Tune and judge in processes of their own; the rows go to the folder."""
    from nbmf.experiments.contest import run_contest  # noqa: PLC0415
    from nbmf.inference.progress import RunsProgress  # noqa: PLC0415

    with TemporaryDirectory() as passing, RunsProgress("compare", what="fits") as progress:

        def report(tidings: Tidings) -> None:
            progress.report(tidings.n_done, tidings.n_fits, tidings.n_done / tidings.n_fits, str(tidings.row or ""))

        try:
            ended = run_contest(train, test, contest, folder or Path(passing, "fits"), report=report)
        except KeyboardInterrupt:
            if folder is None:
                raise
            end_interrupted(f"finished fits are kept in {folder}, and the same command goes on from there")
    for name, problem in ended.problems().items():
        click.echo(f"note: {name} failed: {problem}", err=True)
    return ended


def _rows(
    result: Comparison, seconds: Mapping[str, float], chosen: Mapping[str, Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    """Return the comparison for JSON, with seconds and, after tuning, settings."""
    rows = [{**row, "seconds": seconds[row["name"]]} for row in result.rows()]
    return [{**row, "settings": chosen[row["name"]]} if chosen else row for row in rows]


def _show_comparison(result: Comparison, seconds: Mapping[str, float]) -> None:
    rows, several = [], any(contender.n_starts > 1 for contender in result)
    for row in result.rows():
        is_other = row["name"] != row["reference"]
        difference = f"{row['difference']:+.4f}" if is_other else ""
        apart = interval_in_words(row["difference_low"], row["difference_high"], "+.4f") if is_other else ""
        spread = [f"{row['spread']:.4f}" if row["n_starts"] > 1 else ""] if several else []
        mean, interval = f"{row['mean']:.4f}", interval_in_words(row["low"], row["high"])
        took = f"{seconds[row['name']]:.2f}"
        rows.append([row["name"], mean, interval, difference, apart, took, str(row["n_starts"]), *spread])
    title = f"{result.metric} of {result.n_users:,} users; differences to {result.reference}"
    columns = ["model", "mean", "95 % interval", "difference", "95 % interval", "seconds", "starts"]
    show(title, columns + ["sd of starts"] * several, rows)


def _show_settings(result: Comparison, chosen: Mapping[str, Mapping[str, Any] | None]) -> None:
    if chosen:
        from nbmf.experiments.search import settings_in_words  # noqa: PLC0415

        rows = [[contender.name, settings_in_words(chosen[contender.name] or {})] for contender in result]
        show("What was best on counts set aside from those fitted", ["model", "settings"], rows, left=2)
