"""`nbmf evaluate`: how well a model ranks held-out counts."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.check import in_json, show_findings
from nbmf.cli.options import (
    FITTED,
    Values,
    check_settings,
    data_group,
    file_option,
    fit_whole,
    json_option,
    make_model,
    option,
    read_data,
    run_group,
    split_data,
    split_group,
)
from nbmf.cli.terminal import sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions
    from nbmf.evaluation import Evaluation


@click.command(short_help="Say how well a model ranks held-out counts.")
@option(
    "--model",
    type=click.Choice((*FITTED, "popularity")),
    default="nbmf",
    help="As for `nbmf fit`, or popularity (number of users).",
)
@file_option("--model-file", show_default="a model is fitted", help="Saved model to evaluate; DATA is the test.")
@file_option("--test", show_default="a part of DATA", help="File to test on; all of DATA is fitted.")
@run_group
@split_group
@data_group
@json_option
@sentences()
def evaluate(source: Values, settings: Values, splitting: Values, model: str, as_json: bool, **files: Any) -> None:
    """Fit a model to one part of DATA and evaluate how well it ranks the other part.

    All items are ranked for each user, those of the fit last. NDCG is over the full ranking, and its relevance is the
    held-out count, whether the count is at least s, or log2(1 + count), whose gain is the count; metrics at 10 and 20
    look at the first items only. Intervals are over 1,000 resamples of the users. Any misfits to the training counts,
    as `nbmf check` reports them, are listed below. DATA is a file for `nbmf fit`.
    """
    test, model_file = files["test"], files["model_file"]
    if test is not None and model_file is not None:
        raise click.UsageError("with --model-file the test is DATA; leave out --test")
    check_settings([model], settings)
    import nbmf  # noqa: PLC0415

    found, fitted = read_data(**source, time=splitting["time"]), None
    if model_file is not None:
        fitted = nbmf.load(model_file)
        train = nbmf.Interactions(fitted.users_, fitted.items_, fitted.result_.counts)
        held_out = _aligned(found, train, source["data"])
    elif test is not None:
        unfiltered = {**source, "data": test, "min_users": 0, "min_items": 0}
        train, held_out = found, _aligned(read_data(**unfiltered), found, test)
    else:
        train, held_out = split_data(found, splitting["split"], splitting["test_fraction"], settings["seed"])
    check_test(train, held_out)
    fitted = fit_named(model, train, settings) if fitted is None else fitted
    from nbmf.estimators.check import can_check  # noqa: PLC0415 (heavy modules only when the command runs)

    result, name = nbmf.evaluate(fitted, train, held_out), type(fitted).__name__
    checked = fitted.check() if can_check(fitted) else None
    if as_json:
        sizes = {"users": result.n_users, "left_out": result.n_left_out}
        check = None if checked is None else in_json(checked)
        show_json({"model": name, **sizes, "metrics": result.rows(), "check": check})
        return
    _show_evaluation(name, result)
    if checked is not None:
        click.echo("\nDoes it fit the counts it was fitted to?")
        show_findings(name, checked)


def check_test(train: "Interactions", test: "Interactions") -> None:
    """Refuse a test that is empty or was fitted as a whole, and report how much of it was fitted."""
    from nbmf.evaluation.evaluate import fitted_pairs  # noqa: PLC0415 (numba takes a second to import)

    if not test.nnz:
        raise ValueError("there is nothing to test on; a larger --test-fraction or another --split holds out more")
    n_fitted, note = fitted_pairs(train, test)
    if n_fitted == test.nnz:
        remedy = "test on other data, or leave out --model-file and --test to hold out a part of DATA"
        raise ValueError(f"all test counts are in the data that was fitted, so there is nothing to find; {remedy}")
    if n_fitted:
        warnings.warn(note, stacklevel=2)  # which `nbmf.evaluate` repeats, but a command says it once


def fit_named(
    name: str,
    train: "Interactions",
    settings: Values,
    found: Mapping[str, Any] | None = None,
    lost: str = "nothing was evaluated",
) -> Any:
    """Return a fitted model, with the settings of `make_model`; Ctrl-C ends the command and says what is `lost`."""
    if name == "popularity":
        from nbmf.evaluation.experiments.alternatives import Popularity  # noqa: PLC0415 (numba takes a second)

        return Popularity(train)
    return fit_whole(make_model(name, settings, found), train, lost)


def _aligned(test: "Interactions", train: "Interactions", path: str) -> "Interactions":
    """Return the test counts in the rows and columns of train; those of other users and items are left out."""
    from nbmf.data.ids import Lookup, align  # noqa: PLC0415

    ids = Lookup(train.users, "user"), Lookup(train.items, "item")
    for known, theirs in zip(ids, (test.users, test.items), strict=True):
        if not known.find(theirs)[1].any():
            examples = f"{theirs.tolist()[0]!r} and {known.ids.tolist()[0]!r}"
            none = f"none of its {known.what}s is among those that were fitted (such as {examples})"
            raise ValueError(f"{path}: {none}; name their column by --{known.what}")
    found = replace(train, matrix=align(test, *ids, unknown="ignore"), n_repeated=0, events=None)
    if found.nnz < test.nnz:
        what = f"{test.nnz - found.nnz:,} of {test.nnz:,} test counts are of users or items that were not fitted"
        click.echo(f"note: {what}; they are left out", err=True)
    return found


def interval_in_words(low: float, high: float, form: str = ".4f") -> str:
    """Return both ends, or nothing if there is no interval."""
    return f"{low:{form}} to {high:{form}}" if low == low else ""  # noqa: PLR0124 (NaN: there is none)


def _show_evaluation(model: str, result: "Evaluation") -> None:
    rows = []
    for row in result.rows():
        form = ".4f" if abs(row["mean"]) < 1000 else ",.1f"
        users = f"{row['n_users']:,}" if row["n_users"] else ""
        rows.append([row["metric"], f"{row['mean']:{form}}", interval_in_words(row["low"], row["high"], form), users])
    title = f"{model}: {result.n_users:,} users evaluated; {result.n_left_out:,} have nothing to test"
    show(title, ["metric", "mean", "95 % interval", "users"], rows)
