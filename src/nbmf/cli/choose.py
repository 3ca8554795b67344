"""`nbmf choose`: which model of the family suits the data."""

from math import isnan
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.evaluate import interval_in_words
from nbmf.cli.options import (
    ESTIMATORS,
    Values,
    as_typed,
    data_group,
    grouped,
    json_option,
    number_option,
    option,
    read_data,
    run_options,
    seed_option,
)
from nbmf.cli.terminal import sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.evaluation import Choice

CHOSEN = "poisson", "nbmf", "compound", "compound-geometric", "zero-inflated", "robust", "bernoulli"
NAMES = {name: ESTIMATORS[name] for name in CHOSEN} | {"compound-geometric": "CompoundMF geometric"}
TYPED = ("n_components", "concentration", "user_shape", "item_shape", "penalty")  # settings that were chosen


def _split(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Names separated by commas."""
    names = None if value is None else [part.strip() for part in value.split(",")]
    for name in names or ():
        if name not in NAMES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(NAMES)}")
        if names and names.count(name) > 1:
            raise click.BadParameter(f"give each model once: {name!r} appears twice")
    return names


def _numbers(context: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    """Whole numbers separated by commas."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is neither a whole number from 1 nor several, separated by commas")
    return list(map(int, parts))


@click.command(short_help="Say which model of the family suits the data.")
@option(
    "--models",
    metavar="NAME,…",
    callback=_split,
    show_default="all",
    help=f"The models, the simpler before the less simple: some of {', '.join(NAMES)}.",
)
@option(
    "-k",
    "--components",
    metavar="K,…",
    default="10,30",
    callback=_numbers,
    help="Numbers of components to choose from.",
)
@number_option(
    "--max-counts", default=100_000, help="Sample users at random until they have this many non-zero counts."
)
@grouped("settings", seed_option, run_options)
@data_group
@json_option
@sentences()
def choose(source: Values, settings: Values, as_json: bool, **options: Any) -> None:
    """Fit the models of the family to a part of DATA, and recommend the one that describes the rest best.

    Log-likelihoods are means over cells, zeros included, that the fits know nothing about. The model with the largest
    is recommended, or a simpler one if the difference is within its error. NDCG says which ranks best, as for `nbmf
    compare`. Large data is sampled, so it takes a few minutes at most. DATA is a file for `nbmf fit`.
    """
    import nbmf  # noqa: PLC0415 (heavy modules only when the command runs)

    models = options["models"] and [NAMES[name] for name in options["models"]]
    found = nbmf.choose(
        read_data(**source),
        models,
        n_components=options["components"],
        max_counts=options["max_counts"],
        random_state=settings["seed"],
        n_threads=settings["threads"],
        verbose=not settings["quiet"],
    )
    shell = {python: typed for typed, python in NAMES.items()}
    name = shell[found.recommended]
    settings = found.best.get_params()
    command = as_typed(name, {key: settings[key] for key in TYPED if key in settings})
    if as_json:
        facts = {"recommended": name, "reason": found.reason, "options": command, "ranks_best": shell[found.ranks_best]}
        sizes = {"users": found.n_users, "counts": found.n_counts, "cells": found.n_cells}
        show_json({**facts, **sizes, "models": [{**row, "name": shell[row["name"]]} for row in found.rows()]})
    else:
        _show(found)
        click.echo(f"{found.reason}\nnbmf fit DATA -o MODEL {command}")


def _show(found: "Choice") -> None:
    rows = []
    for row in found.rows():
        likely = ["", "", ""]
        if not isnan(row["log_likelihood"]):
            ends = interval_in_words(row["difference_low"], row["difference_high"], ".5f")
            likely = [f"{row['log_likelihood']:.5f}", f"{row['difference']:.5f}", ends]
        ranks = f"{row['ndcg']:.4f}", interval_in_words(row["ndcg_low"], row["ndcg_high"])
        rows.append([row["name"], *likely, *ranks, str(row["n_components"]), f"{row['seconds']:.1f}", row["note"]])
    title = f"{found.n_users:,} users with {found.n_counts:,} counts; likelihoods of {found.n_cells:,} held-out cells"
    likelihood, ranking = ("log-likelihood", "difference", "95 % interval"), ("NDCG", "95 % interval")
    show(title, ["model", *likelihood, *ranking, "K", "seconds", "note"], rows)
