"""`nbmf tune`: the settings of a model that rank held-out counts best."""

from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.evaluate import fit_named
from nbmf.cli.options import (
    ESTIMATORS,
    FIXED,
    MODELS,
    Values,
    as_typed,
    check_files,
    check_settings,
    data_group,
    file_option,
    json_option,
    number_option,
    option,
    read_data,
    run_group,
    settings_of,
)
from nbmf.cli.terminal import end_interrupted, say, sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.evaluation.tune import Tuning

SHOWN = 10  # trials in the table


@click.command(short_help="Search for the settings that rank best.")
@option("--model", type=click.Choice(MODELS), default="nbmf", help="Model to tune.")
@number_option("--trials", "n_trials", default=30, help="Number of settings to try.")
@option("--metric", metavar="NAME", default="ndcg_counts", help="A metric of `nbmf evaluate`, or log_likelihood.")
@option(
    "--test-fraction",
    metavar="FRACTION",
    default=0.2,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Fraction of the counts to hold out.",
)
@file_option("--study", show_default="nothing is kept", help="Keep the trials here: the same command resumes.")
@file_option(
    "-o",
    "--output",
    show_default="no model is kept",
    help="Fit the model to all of DATA with the best settings, and write it here.",
)
@run_group
@data_group
@json_option
@sentences()
def tune(source: Values, settings: Values, model: str, as_json: bool, **options: Any) -> None:
    """Search for the settings of a model that rank held-out counts of DATA best.

    The search is over the number of components, the concentration, the shapes and, for robust, the penalty; for nbslim
    over the concentration and the penalty, for nbfism over the number of components and the penalty. An option that you
    give is fixed. A trial ends when the held-out counts are no longer ranked better, so the best number of sweeps is
    found as well. DATA is a file for `nbmf fit`. The extra `tune` is needed.
    """
    check_settings([model], settings)
    check_files({"DATA": source["data"], "--study": options["study"], "--output": options["output"]})
    import nbmf  # noqa: PLC0415
    from nbmf.storage.container import check_writable  # noqa: PLC0415

    if options["output"] is not None:
        check_writable(options["output"])
    data, given = read_data(**source), settings_of(model, {**settings, "seed": None}) | FIXED.get(model, {})
    search: Values = {name: options[name] for name in ("n_trials", "metric", "study", "test_fraction")}
    search |= {"estimator": getattr(nbmf, ESTIMATORS[model]), "seed": settings["seed"], "settings": given}
    try:
        found = nbmf.tune(data, verbose=not settings["quiet"], **search)
    except KeyboardInterrupt:
        if options["study"] is None:
            raise
        end_interrupted(f"finished trials are kept in {options['study']}, and the same command resumes there")
    if as_json:
        own = {"model": model, "metric": found.metric, "value": found.value}
        show_json({**own, "settings": found.best, "trials": found.trials, "file": options["output"]})
    else:
        _show(found, model)
    if options["output"] is not None:
        lost = f"{options['output']} was not written"
        fit_named(model, data, settings, found.best, lost).save(options["output"])
        say(f"{options['output']}: written, {model} fitted to all of the data")


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show(found: "Tuning", model: str) -> None:
    best = sorted(found.trials, key=lambda trial: -trial["value"])[:SHOWN]
    title = f"The best of {len(found.trials)} trials by {found.metric}"
    columns = [name.replace("_", " ") for name in best[0]]
    show(title, columns, [list(map(_figure, trial.values())) for trial in best], left=0)
    click.echo(f"nbmf fit DATA -o MODEL {as_typed(model, found.best)}")
