"""`nbmf fit`: counts in, a model file out."""

import os
import re
import warnings
from datetime import timedelta
from typing import Any

import click

import nbmf
from nbmf.cli import options
from nbmf.cli.options import Values, file_option, grouped, option
from nbmf.cli.terminal import end_interrupted, say, sentences, show, show_json
from nbmf.inference.progress import Stopwatch


def _interval(context: click.Context, parameter: click.Parameter, value: str) -> int | timedelta:
    parts = re.fullmatch("([1-9][0-9]{0,8})([smh]?)", value)
    if parts is None:
        raise click.BadParameter(f"{value!r} is neither a number of sweeps nor a time such as 30s, 5m or 1h")
    number, unit = parts.groups()
    return timedelta(seconds=int(number) * {"s": 1, "m": 60, "h": 3600}[unit]) if unit else int(number)


@click.command()
@file_option("-o", "--output", required=True, help="Where to write the model.")
@option(
    "--model",
    type=click.Choice(options.FITTED),
    default="nbmf",
    help="Negative binomial factorization (nbmf), or the mean of five starts of it (averaged); Poisson factorization, "
    "of counts or of whether there is a count (binary); counts as sums of jumps (compound, compound-geometric), with "
    "zeros of users who were not exposed (zero-inflated), with outliers (robust), or only whether there is one "
    "(bernoulli); nbslim, weights between items, which usually ranks best and has no components, seed or checkpoints; "
    "nbfism, the same weights as products of components, which needs less memory and ranks nearly as well; or blend, "
    "the weighted sum of nbslim and nbfism, to which the settings of nbfism apply. `nbmf choose` compares the family.",
)
@options.run_group
@options.data_group
@grouped(
    "checkpoints",
    file_option("--checkpoint", show_default="none", help="Where to save the fit as it runs, to resume it later."),
    option(
        "--checkpoint-every",
        metavar="N|30s|5m|1h",
        default="1m",
        callback=_interval,
        help="How often to save it: every N sweeps, or whenever this much time has passed.",
    ),
    option("--resume", is_flag=True, show_default="start anew", help="Resume from the checkpoint if there is one."),
)
@options.json_option
@sentences()
def fit(source: Values, output: str, model: str, settings: Values, checkpoints: Values, as_json: bool) -> None:
    """Fit a model to DATA and write it to a file.

    DATA is a csv, tsv, txt (also .gz, .zst) or parquet file whose rows have a user, an item and, optionally, a count,
    or - for standard input. Ctrl-C writes the model after the last finished sweep; with nbslim and blend,
    nothing is written.
    """
    checkpoint = checkpoints["checkpoint"]
    if checkpoints["resume"] and checkpoint is None:
        raise click.UsageError("--resume needs a checkpoint to resume from: give --checkpoint FILE")
    options.check_settings([model], settings)
    absent = {"nbslim": ("seed", *checkpoints), **dict.fromkeys(options.COMPOSED, tuple(checkpoints))}
    options.check_absent(model, *absent.get(model, ()))
    options.check_files({"DATA": source["data"], "--output": output, "--checkpoint": checkpoint})
    from nbmf.storage.container import check_writable  # noqa: PLC0415 (heavy modules only when the command runs)

    check_writable(output)
    found = options.read_data(**source)
    warnings.filterwarnings("ignore", "fit interrupted")  # reported below
    arguments = {} if checkpoint is None else _fit_arguments(**checkpoints)
    watch = Stopwatch()
    estimator = options.make_model(model, settings).fit(found, **arguments)
    estimator.save(output)
    if as_json or not settings["quiet"]:
        _report(estimator, found, output, watch.seconds, as_json)
    if estimator.ending_ == "interrupted":
        further = f"; resume it with --checkpoint {checkpoint} --resume" if checkpoint else ""
        end_interrupted(f"{output} holds the model of sweep {estimator.n_iter_}{further}")


def _fit_arguments(checkpoint: str, checkpoint_every: int | timedelta, resume: bool) -> Values:
    if resume and not os.path.exists(checkpoint):
        say(f"{checkpoint}: no checkpoint yet, so the fit starts anew")
        resume = False
    return {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": checkpoint if resume else None}


def _report(estimator: Any, data: "nbmf.Interactions", output: str, seconds: float, as_json: bool) -> None:
    facts: Values = {
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
        "objective": next(map(float, estimator.objective_[-1:]), None),
        "seconds": round(seconds, 3),
    }
    if hasattr(estimator, "scales_"):  # a blend, whose weights are of models
        weights = zip(estimator.members_, estimator.weights_.tolist(), strict=True)
        facts["weights"] = [{"model": type(one).__name__, "weight": weight} for one, weight in weights]
    if as_json:
        show_json({**facts, "converged": estimator.converged_})
        return
    words = {name: f"{value:,}" if isinstance(value, int | float) else str(value) for name, value in facts.items()}
    words |= {name: f"{facts[name]:,.1f}" for name in ("objective", "seconds") if facts[name] is not None}
    if "weights" in facts:
        words["weights"] = ", ".join(f"{each['model']} {each['weight']:.3g}" for each in facts["weights"])
    rows = [[name, words[name]] for name, value in facts.items() if value is not None]
    show(f"{type(estimator).__name__} of {data.n_users:,} users and {data.n_items:,} items", ["", ""], rows[1:], left=2)
