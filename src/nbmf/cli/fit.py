"""`nbmf fit`: counts in, a model file out."""

from __future__ import annotations

import os
import re
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import (
    MODELS,
    check_concentration,
    check_slim,
    data_argument,
    data_options,
    fit_options,
    json_option,
    make_model,
    make_slim,
    read_data,
)
from nbmf.cli.terminal import end_interrupted, sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _interval(context: click.Context, option: click.Parameter, value: str) -> int | timedelta:
    """A number of sweeps, or a time such as 30s, 5m or 1h."""
    parts = re.fullmatch("([1-9][0-9]{0,8})([smh]?)", value)
    if parts is None:
        raise click.BadParameter(f"{value!r} is neither a number of sweeps nor a time such as 30s, 5m or 1h")
    number, unit = parts.groups()
    return timedelta(seconds=int(number) * _SECONDS[unit]) if unit else int(number)


@click.command()
@data_argument
@click.option("-o", "--output", metavar="FILE", required=True, type=click.Path(), help="Where to write the model.")
@click.option(
    "--model",
    type=click.Choice((*MODELS, "nbslim")),
    default="nbmf",
    show_default=True,
    help="Negative binomial factors, Poisson, Poisson on whether there is a count; or nbslim, weights between items, "
    "which has no components, sweeps to choose, seed or checkpoint.",
)
@fit_options
@data_options
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(),
    show_default="none",
    help="Where to write what the fit can go on from if it is cut short.",
)
@click.option(
    "--checkpoint-every",
    metavar="N|30s|5m|1h",
    default="1m",
    show_default=True,
    callback=_interval,
    help="How often: every N sweeps, or when so much time has passed.",
)
@click.option("--resume", is_flag=True, show_default="start anew", help="Go on from the checkpoint if there is one.")
@json_option
def fit(
    data: str,
    user: str | None,
    item: str | None,
    count: str | None,
    min_users: int,
    min_items: int,
    output: str,
    model: str,
    components: int,
    concentration: float | None,
    seed: int,
    max_iter: int,
    tol: float,
    checkpoint: str | None,
    checkpoint_every: int | timedelta,
    resume: bool,
    as_json: bool,
) -> None:
    """Fit a model to DATA and write it to a file.

    DATA is a csv, tsv, txt (also .gz, .zst) or parquet file with a user, an item and perhaps a count in each row.
    Ctrl-C writes the model of the last finished sweep (of nbslim: nothing).
    """
    if resume and checkpoint is None:
        raise click.UsageError("--resume needs to know where from: give --checkpoint FILE")
    if model == "nbslim":
        check_slim("components", "seed", "max_iter", "tol", "checkpoint", "checkpoint_every", "resume")
    else:
        check_concentration((model,), concentration)
    _check_files({"DATA": data, "--output": output, "--checkpoint": checkpoint})
    with sentences():
        from nbmf.inference.progress import Stopwatch  # noqa: PLC0415
        from nbmf.storage.container import check_place  # noqa: PLC0415 (heavy modules only when the command runs)

        check_place(output)
        found = read_data(data, user, item, count, min_users, min_items, None)
        goes_on = resume and os.path.exists(str(checkpoint))
        if resume and not goes_on:
            click.echo(f"{checkpoint}: no checkpoint yet, so the fit starts anew", err=True)
        warnings.filterwarnings("ignore", "fit interrupted")  # it is told below
        watch = Stopwatch()
        estimator: Any
        if model == "nbslim":
            estimator = make_slim(concentration).fit(found)
        else:
            estimator = make_model(model, components, concentration, seed, max_iter, tol).fit(
                found,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=checkpoint if goes_on else None,
            )
        estimator.save(output)
        _report(estimator, found, output, watch.seconds, as_json)
        if estimator.ending_ == "interrupted":
            further = f"; with --checkpoint {checkpoint} --resume it goes on" if checkpoint else ""
            end_interrupted(f"{output} holds the model of sweep {estimator.n_iter_}{further}")


def _check_files(files: dict[str, str | None]) -> None:
    """Refuse to write over the data, or over the other file."""
    places: dict[str, str] = {}
    for role, path in files.items():
        if path is not None:
            other = places.setdefault(os.path.realpath(path), role)
            if other != role:
                raise click.UsageError(f"{role} {path} is {other} too; name another file, as this one would be lost")


def _report(estimator: Any, data: Interactions, output: str, seconds: float, as_json: bool) -> None:
    facts = {
        "model": type(estimator).__name__,
        "file": output,
        "bytes": os.path.getsize(output),
        "users": data.n_users,
        "items": data.n_items,
        "counts": data.nnz,
        "components": getattr(estimator, "n_components", None),
        "exposure": getattr(estimator, "exposure_", None),
        "sweeps": estimator.n_iter_,
        "ending": estimator.ending_,
        "objective": float(estimator.objective_[-1]),
        "seconds": round(seconds, 3),
    }
    if as_json:
        show_json(facts)
        return
    words = {name: f"{value:,}" if isinstance(value, int | float) else str(value) for name, value in facts.items()}
    words |= {"objective": f"{facts['objective']:,.1f}", "seconds": f"{seconds:,.1f}"}
    rows = [[name, words[name]] for name, value in facts.items() if value is not None]
    show(f"{type(estimator).__name__} of {data.n_users:,} users and {data.n_items:,} items", ["", ""], rows[1:], left=2)
