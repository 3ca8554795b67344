"""`nbmf evaluate`: how well a model ranks what was held out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import (
    JUDGED,
    check_concentration,
    check_slim,
    data_argument,
    data_options,
    fit_options,
    json_option,
    make_model,
    make_slim,
    read_data,
    split_data,
    split_options,
)
from nbmf.cli.terminal import end_interrupted, sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions
    from nbmf.evaluation import Evaluation


@click.command(short_help="Say how well a model ranks held-out counts.")
@data_argument
@click.option(
    "--model",
    type=click.Choice((*JUDGED, "nbslim")),
    default="nbmf",
    show_default=True,
    help="Negative binomial, Poisson, Poisson on whether there is a count, each item's number of users, or weights "
    "between items.",
)
@click.option(
    "--model-file",
    metavar="FILE",
    type=click.Path(),
    show_default="one is fitted",
    help="A model to judge, all of DATA being the test.",
)
@click.option(
    "--test",
    metavar="FILE",
    type=click.Path(),
    show_default="a part of DATA",
    help="What to test on; then all of DATA is fitted.",
)
@fit_options
@split_options
@data_options
@json_option
def evaluate(
    data: str,
    user: str | None,
    item: str | None,
    count: str | None,
    min_users: int,
    min_items: int,
    model: str,
    components: int,
    concentration: float | None,
    seed: int,
    max_iter: int,
    tol: float,
    split: str,
    test_fraction: float,
    time: str | None,
    test: str | None,
    model_file: str | None,
    as_json: bool,
) -> None:
    """Fit a model to a part of DATA and see how well it ranks the other part.

    All items are ranked for each user, those fitted last. NDCG is over the full ranking, its relevance the held-out
    count or whether that is at least s; the others look at the first 10 or 20. Intervals are of 1,000 draws of users.
    """
    if test is not None and model_file is not None:
        raise click.UsageError("with --model-file the test is DATA; leave out --test")
    if model == "nbslim":
        check_slim("components", "max_iter", "tol")
    else:
        check_concentration((model,), concentration)
    with sentences():
        import nbmf  # noqa: PLC0415

        found = read_data(data, user, item, count, min_users, min_items, time)
        judged: Any = None
        if model_file is not None:
            judged = nbmf.load(model_file)
            train = nbmf.Interactions(judged.users_, judged.items_, judged.result_.counts)
            held_out = _aligned(found, train, data)
        elif test is not None:
            train, held_out = found, _aligned(read_data(test, user, item, count, 0, 0, None), found, test)
        else:
            train, held_out = split_data(found, split, test_fraction, seed)
        check_test(train, held_out)
        if judged is None:
            judged = fit_named(model, train, components, concentration, seed, max_iter, tol)
        result = nbmf.evaluate(judged, train, held_out)
        if as_json:
            name = type(judged).__name__
            show_json({"model": name, "users": result.n_users, "left_out": result.n_left_out, "metrics": result.rows()})
        else:
            _show_evaluation(type(judged).__name__, result)


def check_test(train: Interactions, test: Interactions) -> None:
    """Refuse a test of nothing, or of nothing but what was fitted, and say how much of it was."""
    if not test.nnz:
        raise ValueError("there is nothing to test on; a larger --test-fraction, or another --split, holds out more")
    n_fitted = int(((test.matrix != 0) * (train.matrix != 0)).nnz)
    if n_fitted == test.nnz:
        raise ValueError(
            "all test counts are in the data that was fitted, so there is nothing to find; test on other data, or "
            "leave out --model-file and --test: then a part of DATA is held out"
        )
    if n_fitted:
        what = f"{n_fitted:,} of {test.nnz:,} test counts are of pairs that were fitted"
        click.echo(f"note: {what}; they are ranked last, as everything fitted is", err=True)


def fit_named(
    name: str,
    train: Interactions,
    components: int,
    concentration: float | None,
    seed: int,
    max_iter: int,
    tol: float,
) -> Any:
    """Return a fitted model; Ctrl-C ends the command."""
    if name == "nbslim":
        return make_slim(concentration).fit(train)
    if name == "popularity":
        from nbmf.experiments.rivals import Popularity  # noqa: PLC0415 (numba takes a second to import)

        return Popularity(train)
    warnings.filterwarnings("ignore", "fit interrupted")  # it is told below
    model = make_model(name, components, concentration, seed, max_iter, tol).fit(train)
    if model.ending_ == "interrupted":
        end_interrupted("nothing was judged")
    return model


def _aligned(test: Interactions, train: Interactions, path: str) -> Interactions:
    """The test counts in the rows and columns of train; those of others are counted and left out."""
    import numpy as np  # noqa: PLC0415
    import scipy.sparse as sp  # noqa: PLC0415

    places = []
    for what, theirs, ours in (("users", test.users, train.users), ("items", test.items, train.items)):
        number = {identity: n for n, identity in enumerate(ours.tolist())}
        places.append(np.array([number.get(identity, -1) for identity in theirs.tolist()], np.intp))
        if not (places[-1] >= 0).any():
            raise ValueError(
                f"{path}: none of its {what} is among those that were fitted (such as {theirs.tolist()[0]!r} and "
                f"{ours.tolist()[0]!r}); name their column by --{what[:-1]}"
            )
    cells = test.matrix.tocoo()
    rows, columns = places[0][cells.coords[0]], places[1][cells.coords[1]]
    known = (rows >= 0) & (columns >= 0)
    if not known.all():
        n_left = int((~known).sum())
        what = f"{n_left:,} of {len(known):,} test counts are of users or items that were not fitted"
        click.echo(f"note: {what}; they are left out", err=True)
    matrix = sp.csr_array((cells.data[known], (rows[known], columns[known])), shape=train.matrix.shape)
    return type(train).from_matrix(matrix, users=train.users, items=train.items)


def interval_in_words(low: float, high: float, form: str = ".4f") -> str:
    """Return both ends, or nothing where there is no interval."""
    return f"{low:{form}} to {high:{form}}" if low == low else ""  # noqa: PLR0124 (NaN: there is none)


def _show_evaluation(model: str, result: Evaluation) -> None:
    def cells() -> Iterator[list[str]]:
        for row in result.rows():
            form = ".4f" if abs(row["mean"]) < 1000 else ",.1f"
            users = f"{row['n_users']:,}" if row["n_users"] else ""
            yield [row["metric"], f"{row['mean']:{form}}", interval_in_words(row["low"], row["high"], form), users]

    title = f"{model}: {result.n_users:,} users judged; {result.n_left_out:,} have nothing to test"
    show(title, ["metric", "mean", "95 % interval", "users"], list(cells()))
