"""`nbmf compare`: which of several models ranks held-out counts best."""

from collections.abc import Mapping
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.evaluate import check_test, fit_named, interval_in_words
from nbmf.cli.options import (
    COMPARED,
    FITTED,
    JUDGED,
    MODELS,
    Values,
    as_typed,
    check_files,
    check_settings,
    compare_group,
    data_group,
    file_option,
    json_option,
    number_option,
    option,
    read_data,
    settings_of,
    split_data,
    split_group,
)
from nbmf.cli.terminal import end_interrupted, say, sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions
    from nbmf.evaluation import Comparison

    Settings = Mapping[str, Mapping[str, Any] | None]  # of each model, after tuning
    # with the seconds and the log-likelihood of each model
    Compared = tuple[Comparison, dict[str, float], dict[str, float], Settings]


def _model_names(context: click.Context, option: click.Parameter, value: str) -> tuple[str, ...]:
    """Names of models separated by commas, or all that are installed."""
    if value == "all":
        return _installed()
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in COMPARED:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(COMPARED)}")
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is there twice")
    return names


def _installed() -> tuple[str, ...]:
    from nbmf.evaluation.experiments.baselines import check_installed  # noqa: PLC0415 (heavy)

    found = []
    for name in COMPARED:
        try:
            check_installed(name)
            found.append(name)
        except ModuleNotFoundError as error:
            click.echo(f"note: {error}", err=True)
    return tuple(found)


@click.command(short_help="Compare how models rank held-out counts.")
@option(
    "--models",
    metavar="NAME,…|all",
    callback=_model_names,
    default=",".join(JUDGED),
    help="The models, separated by commas, or all. There are also nbfism, compound, compound-geometric, zero-inflated, "
    "robust and bernoulli (see `nbmf fit`), averaged (nbmf from five starts), blend (nbslim and nbfism), ease and "
    "edlae (weights between items), kl-nmf (scikit-learn) and, with the extra bench, knn, als, bpr (implicit), "
    "rp3beta, ials (irspack), slim (fastslim) and hpf (hpfrec).",
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
@file_option(
    "-o",
    "--output",
    show_default="no model is kept",
    help="Where to write the best model: of those that `nbmf fit` has, the first in the table, fitted to the training "
    "counts with the settings that were found.",
)
@compare_group
@split_group
@data_group
@json_option
@sentences()
def compare(source: Values, settings: Values, splitting: Values, as_json: bool, **options: Any) -> None:
    """Fit several models to one part of DATA and compare how they rank the other part.

    Differences are taken user by user over the same 1,000 resamples of the users: an interval without 0 tells two
    models apart. With several starts a model is their mean, and its seconds their median. Settings such as -k apply to
    those models of `nbmf fit` that have them; with --tune they are tried first, and the settings found are printed as
    options of `nbmf fit`. --max-iter and --tol mean something else for nbslim, so it keeps its own unless it is the
    only model that has them. Log-likelihoods are means over the cells that are not in the training part. The fits took
    the held-out counts among them for zeros, so they do not say which likelihood is right; `nbmf choose` does. DATA is
    a file for `nbmf fit`.
    """
    models, baseline, metric = options["models"], options["baseline"], options["metric"]
    check_settings(models, settings)
    if baseline is not None and baseline not in models:
        raise click.UsageError(f"--baseline {baseline} is not among --models {','.join(models)}")
    if options["output"] is not None and not set(models) & set(FITTED):
        raise click.UsageError(f"-o needs one of {', '.join(FITTED)} among --models {','.join(models)}")
    import nbmf  # noqa: PLC0415
    from nbmf.evaluation.experiments.alternatives import Popularity  # noqa: PLC0415
    from nbmf.evaluation.experiments.baselines import check_installed  # noqa: PLC0415
    from nbmf.storage.container import check_writable  # noqa: PLC0415

    for name in models:
        check_installed(name)
    if options["output"] is not None:
        check_writable(options["output"])
        check_files({"DATA": source["data"], "--output": options["output"]})
    found = read_data(**source, time=splitting["time"])
    parts = split_data(found, splitting["split"], splitting["test_fraction"], settings["seed"])
    check_test(*parts)
    # the model that needs no fit is evaluated first: it names an unknown metric before anything is fitted
    nbmf.evaluate(Popularity(parts[0]), *parts, n_boot=1)[metric]
    in_processes = options["n_trials"] is not None or options["folder"] is not None
    result, seconds, likely, chosen = (_tuned if in_processes else _evaluated)(*parts, settings, options)
    if as_json:
        rows = [
            {**row, "seconds": seconds[row["name"]], "log_likelihood": likely[row["name"]]} for row in result.rows()
        ]
        rows = [{**row, "settings": chosen[row["name"]]} for row in rows] if chosen else rows
        show_json({"metric": metric, "users": result.n_users, "models": rows})
    else:
        _show(result, seconds, likely, chosen)
    if options["output"] is not None:
        _write_best(result, chosen, parts[0], settings, options["output"])


def _write_best(result: "Comparison", chosen: "Settings", train: "Interactions", settings: Values, output: str) -> None:
    """Fit the best of the models that can be saved once more, with all cores, and write it."""
    name = next((c.name for c in result if c.name in FITTED), None)
    if name is None:
        raise ValueError(f"{output}: nothing was written, because no model that can be written could be fitted")
    own = _for_model(name, settings)
    fit_named(name, train, own, chosen.get(name), lost=f"{output} was not written").save(output)
    say(f"{output}: written, {name} fitted to the training counts")


def _for_model(name: str, settings: Values) -> Values:
    """Return the settings that apply to a model: sweeps and gains of the others are not those of nbslim."""
    is_alone = set(click.get_current_context().params["models"]) & set(FITTED) == {"nbslim"}
    return {**settings, "max_iter": None, "tol": None} if name == "nbslim" and not is_alone else settings


def _typed(settings: Values) -> dict[str, Values]:
    """Return the settings of our models as typed; the seed is that of each start."""
    own = {name: settings_of(name, _for_model(name, settings)) for name in FITTED}
    return {name: {key: value for key, value in typed.items() if key != "random_state"} for name, typed in own.items()}


def _evaluated(train: "Interactions", test: "Interactions", settings: Values, options: Values) -> "Compared":
    """Fit the models one after another in this process."""
    from statistics import mean, median  # noqa: PLC0415

    import nbmf  # noqa: PLC0415
    from nbmf.evaluation.experiments.baselines import BASELINES  # noqa: PLC0415
    from nbmf.evaluation.predictive import counts_likelihood  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415

    results, seconds, likely = {}, {}, {}
    for name in options["models"]:
        evaluations, times, logs = [], [], []
        for start in range(options["starts"] if BASELINES[name].random else 1):
            watch = Stopwatch()
            model = _fit(name, train, {**settings, "seed": settings["seed"] + start})
            times.append(watch.seconds)
            evaluations.append(nbmf.evaluate(model, train, test))
            logs.append(counts_likelihood(model, train, test))
        results[name], seconds[name], likely[name] = evaluations, median(times), mean(logs)
    return nbmf.compare(results, options["metric"], baseline=options["baseline"]), seconds, likely, {}


def _fit(name: str, train: "Interactions", settings: Values) -> Any:
    """Return a fitted model; the models of `nbmf fit` show their progress, the others begin and end with a line."""
    if name in (*MODELS, "popularity"):
        return fit_named(name, train, _for_model(name, settings))
    from nbmf.evaluation.experiments.baselines import BASELINES  # noqa: PLC0415
    from nbmf.evaluation.experiments.engine import available_cores  # noqa: PLC0415
    from nbmf.inference.progress import Stopwatch, in_words  # noqa: PLC0415

    watch, baseline = Stopwatch(), BASELINES[name]
    say(f"{baseline.label}: fitting …")
    own = {**baseline.defaults, **_typed(settings).get(name, {})}
    model: Any = baseline.fit(train, settings["seed"], available_cores(), **own)
    if any(member.ending_ == "interrupted" for member in getattr(model, "members_", ())):
        end_interrupted("nothing was evaluated")
    say(f"{baseline.label}: fitted in {in_words(watch.seconds)}")
    return model


def _tuned(train: "Interactions", test: "Interactions", settings: Values, options: Values) -> "Compared":
    """Tune and compare in worker processes."""
    from nbmf.evaluation.experiments.engine import shown_by  # noqa: PLC0415
    from nbmf.evaluation.experiments.tuned import TunedComparison, compare_tuned, row_in_words  # noqa: PLC0415
    from nbmf.inference.progress import RunsProgress  # noqa: PLC0415

    budget, folder = (options["n_trials"] or 0, options["starts"], settings["seed"], None), options["folder"]
    plan = TunedComparison(options["models"], *budget, goal=options["metric"], defaults=_typed(settings))
    with TemporaryDirectory() as passing, RunsProgress("compare", what="fits", quiet=settings["quiet"]) as progress:
        place, report = folder or Path(passing, "fits"), shown_by(progress, partial(row_in_words, goal=plan.goal))
        try:
            tuned = compare_tuned(train, test, plan, place, report=report)
        except KeyboardInterrupt as error:
            if folder is None:
                raise
            kept = f"finished fits are kept in {folder}, and the same command resumes there"
            raise KeyboardInterrupt(kept) from error
        board = tuned.board(options["baseline"])  # reads the folder, which may be a temporary one
    for name, problem in tuned.problems().items():
        click.echo(f"note: {name} failed: {problem}", err=True)
    seconds = {name: tuned.seconds(name) for name in tuned.rows}
    likely = {name: tuned.log_likelihood(name) for name in tuned.rows}
    return board, seconds, likely, tuned.settings if options["n_trials"] else {}


def _show(
    result: "Comparison", seconds: Mapping[str, float], likely: Mapping[str, float], settings: "Settings"
) -> None:
    rows, several = [], any(c.n_starts > 1 for c in result)
    for c in result:
        apart = f"{c.difference:+.4f}", interval_in_words(*c.difference_interval, "+.4f")
        differences = ("", "") if c.name == result.reference else apart
        spread = [f"{c.spread:.4f}" if c.n_starts > 1 else ""] if several else []
        means, costs = (f"{c.mean:.4f}", interval_in_words(*c.interval)), (f"{seconds[c.name]:.2f}", str(c.n_starts))
        log_likelihood = "" if isnan(likely[c.name]) else f"{likely[c.name]:.4f}"
        rows.append([c.name, *means, *differences, log_likelihood, *costs, *spread])
    title = f"{result.metric} of {result.n_users:,} users; differences to {result.reference}"
    columns = ["model", "mean", "95 % interval", "difference", "95 % interval", "log-likelihood", "seconds", "starts"]
    show(title, columns + ["sd of starts"] * several, rows)
    if settings:
        from nbmf.evaluation.experiments.tuned import settings_in_words  # noqa: PLC0415

        found = {c.name: settings[c.name] or {} for c in result}
        words = [as_typed(name, own) if name in FITTED else settings_in_words(own) for name, own in found.items()]
        rows = [list(row) for row in zip(found, words, strict=True)]
        show("The best settings on the counts set aside", ["model", "options of `nbmf fit`, or settings"], rows, left=2)
