"""`nbmf compare`: which of several models ranks held-out counts best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.evaluate import check_test, fit_named, interval_in_words, number_option, option, reading_options
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
    from nbmf.experiments.engine import Event
    from nbmf.experiments.tuned import Result, TunedComparison

Settings = Mapping[str, Any]


def _model_names(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    """Names of models separated by commas."""
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in COMPARED:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(COMPARED)}")
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is there twice")
    return names


@click.command(short_help="Compare how models rank held-out counts.")
@data_argument
@option(
    "--models",
    metavar="NAME,…",
    callback=_model_names,
    default=",".join(JUDGED),
    help="The models, separated by commas. There are also averaged (nbmf from five starts), nbslim and ease (weights "
    "between items), kl-nmf (scikit-learn) and, with the extra bench, knn, als, bpr (implicit) and hpf (hpfrec).",
)
@number_option(
    "--tune",
    "n_trials",
    metavar="TRIALS",
    show_default="each model has its defaults",
    help="Try this many settings of each model on a fifth of the training counts, and compare the best ones.",
)
@number_option("--starts", default=1, help="Random starts per model; their results are averaged.")
@option("--metric", metavar="NAME", default="ndcg_counts", help="Any metric of `nbmf evaluate`.")
@option("--baseline", type=click.Choice(COMPARED), show_default="the best", help="Model to compare the others to.")
@option(
    "--folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    show_default="nothing is kept",
    help="Keep every finished fit here: the same command resumes, and models, trials and starts can be added.",
)
@fit_options
@split_options
@data_options
@json_option
def compare(data: str, models: tuple[str, ...], baseline: str | None, as_json: bool, **options: Any) -> None:
    """Fit several models to one part of DATA and compare how they rank the other part.

    Differences are taken user by user over the same 1,000 resamples of the users: an interval without 0 tells two
    models apart. With several starts a model is their mean, and its seconds their median. The options -k,
    --concentration, --max-iter and --tol apply to nbmf, averaged, poisson and binary; with --tune they are tried first.
    """
    check_concentration(models, options["concentration"])
    if baseline is not None and baseline not in models:
        raise click.UsageError(f"--baseline {baseline} is not among --models {','.join(models)}")
    with sentences():
        import nbmf  # noqa: PLC0415
        from nbmf.experiments.baselines import Popularity, check_installed  # noqa: PLC0415

        for name in models:
            check_installed(name)
        found = read_data(data, **reading_options(options))
        train, held_out = split_data(found, options["split"], options["test_fraction"], options["seed"])
        check_test(train, held_out)
        # the model that needs no fit is evaluated first: it names an unknown metric before anything is fitted
        metric = options["metric"]
        nbmf.evaluate(Popularity(train), train, held_out, n_boot=1)[metric]
        settings: Mapping[str, Settings | None] = {}
        if options["n_trials"] is not None or options["folder"] is not None:
            tuned, result = _tuned(train, held_out, _plan(models, options), options["folder"], baseline)
            settings = tuned.settings if options["n_trials"] else {}
            seconds = {name: tuned.seconds(name) for name in tuned.rows}
        else:
            results, seconds = _evaluated(train, held_out, models, options)
            result = nbmf.compare(results, metric, baseline=baseline)
        if as_json:
            show_json({"metric": metric, "users": result.n_users, "models": _rows(result, seconds, settings)})
        else:
            _show_comparison(result, seconds)
            _show_settings(result, settings)


def _typed(options: Settings) -> dict[str, dict[str, Any]]:
    """Return the typed settings of our factor models under the names of the estimators."""
    factors = {"n_components": options["components"], "max_iter": options["max_iter"], "tol": options["tol"]}
    α = options["concentration"]
    nbmf = {**factors, "concentration": 1.0 if α is None else α}
    return {"nbmf": nbmf, "averaged": nbmf, "poisson": factors, "binary": factors}


def _evaluated(
    train: Interactions, test: Interactions, models: Sequence[str], options: Settings
) -> tuple[dict[str, Evaluation | Sequence[Evaluation]], dict[str, float]]:
    """Fit the models one after another in this process; return their evaluations and median seconds."""
    from statistics import median  # noqa: PLC0415

    import nbmf  # noqa: PLC0415
    from nbmf.experiments.baselines import BASELINES  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415

    results: dict[str, Evaluation | Sequence[Evaluation]] = {}
    seconds: dict[str, float] = {}
    for name in models:
        evaluations, times = [], []
        for start in range(options["starts"] if BASELINES[name].random else 1):
            watch = Stopwatch()
            model = _fit(name, train, {**options, "seed": options["seed"] + start})
            times.append(watch.seconds)
            evaluations.append(nbmf.evaluate(model, train, test))
        results[name], seconds[name] = evaluations, median(times)
    return results, seconds


def _fit(name: str, train: Interactions, options: Settings) -> Any:
    """Return a fitted model; the models of `nbmf fit` show their progress, the others end with a line."""
    if name in JUDGED:
        return fit_named(name, train, options)
    from nbmf.experiments.baselines import BASELINES  # noqa: PLC0415
    from nbmf.experiments.pool import available_cores  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch, in_words  # noqa: PLC0415

    watch, baseline = Stopwatch(), BASELINES[name]
    settings = {**baseline.defaults, **_typed(options).get(name, {})}
    model: Any = baseline.fit(train, options["seed"], available_cores(), **settings)
    if any(member.ending_ == "interrupted" for member in getattr(model, "members_", ())):
        end_interrupted("nothing was evaluated")
    click.echo(f"{baseline.label}: fitted in {in_words(watch.seconds)}", err=True)
    return model


def _plan(models: tuple[str, ...], options: Settings) -> TunedComparison:
    from nbmf.experiments.tuned import TunedComparison  # noqa: PLC0415

    budget = (options["n_trials"] or 0, options["starts"], options["seed"])
    return TunedComparison(models, *budget, limit_s=None, goal=options["metric"], defaults=_typed(options))


def _tuned(
    train: Interactions, test: Interactions, plan: TunedComparison, folder: str | None, baseline: str | None
) -> tuple[Result, Comparison]:
    """Tune and compare in worker processes."""
    from nbmf.experiments.tuned import compare_tuned, row_in_words  # noqa: PLC0415
    from nbmf.inference.progress import RunsProgress  # noqa: PLC0415

    with TemporaryDirectory() as passing, RunsProgress("compare", what="fits") as progress:

        def report(event: Event) -> None:
            progress.report(event.n_done, event.n_jobs, event.share, row_in_words(event.row) if event.row else "")

        try:
            result = compare_tuned(train, test, plan, folder or Path(passing, "fits"), report=report)
        except KeyboardInterrupt:
            if folder is None:
                raise
            end_interrupted(f"finished fits are kept in {folder}, and the same command resumes there")
        board = result.board(baseline)  # reads the folder, which may be a temporary one
    for name, problem in result.problems().items():
        click.echo(f"note: {name} failed: {problem}", err=True)
    return result, board


def _rows(
    result: Comparison, seconds: Mapping[str, float], settings: Mapping[str, Settings | None]
) -> list[dict[str, Any]]:
    """Return the comparison for JSON, with seconds and, after tuning, settings."""
    rows = [{**row, "seconds": seconds[row["name"]]} for row in result.rows()]
    return [{**row, "settings": settings[row["name"]]} if settings else row for row in rows]


def _show_comparison(result: Comparison, seconds: Mapping[str, float]) -> None:
    rows, several = [], any(contender.n_starts > 1 for contender in result)
    for row in result.rows():
        is_other = row["name"] != row["reference"]
        difference = f"{row['difference']:+.4f}" if is_other else ""
        apart = interval_in_words(row["difference_low"], row["difference_high"], "+.4f") if is_other else ""
        spread = [f"{row['spread']:.4f}" if row["n_starts"] > 1 else ""] if several else []
        mean, interval = f"{row['mean']:.4f}", interval_in_words(row["low"], row["high"])
        time = f"{seconds[row['name']]:.2f}"
        rows.append([row["name"], mean, interval, difference, apart, time, str(row["n_starts"]), *spread])
    title = f"{result.metric} of {result.n_users:,} users; differences to {result.reference}"
    columns = ["model", "mean", "95 % interval", "difference", "95 % interval", "seconds", "starts"]
    show(title, columns + ["sd of starts"] * several, rows)


def _show_settings(result: Comparison, settings: Mapping[str, Settings | None]) -> None:
    if settings:
        from nbmf.experiments.tuned import settings_in_words  # noqa: PLC0415

        rows = [[contender.name, settings_in_words(settings[contender.name] or {})] for contender in result]
        show("The best settings on the counts set aside", ["model", "settings"], rows, left=2)
