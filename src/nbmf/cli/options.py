"""Options that several commands share, and the data and models they describe."""

from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any

import click

import nbmf

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Values = dict[str, Any]  # of a group of options, by the options' names
Column = str | None

MODELS = ("nbmf", "poisson", "binary")
JUDGED = (*MODELS, "popularity")
COMPARED = (*JUDGED, "averaged", "nbslim", "ease", "knn", "als", "bpr", "hpf", "kl-nmf")
"""The names of `nbmf.evaluation.experiments.baselines.BASELINES`, which would take a second to import."""


def together(*decorators: Decorator) -> Decorator:
    """Combine decorators into one; the first is the outermost."""
    return lambda command: reduce(lambda made, decorator: decorator(made), reversed(decorators), command)


def grouped(name: str, *options: Decorator) -> Decorator:
    """Add options to a command, which receives their values as one dictionary under this name."""
    members = [option.name for option in click.command()(together(*options)(lambda: None)).params]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(**values: Any) -> Any:
            return command(**{name: {member: values.pop(str(member)) for member in members}}, **values)

        return together(*options)(run)

    return decorate


option = partial(click.option, show_default=True)
number_option = partial(option, metavar="N", type=click.IntRange(1))
file_option = partial(option, metavar="FILE", type=click.Path())
column_option = partial(option, metavar="COLUMN", show_default="recognised by name or position")

bad_rows_option = option(
    "--bad-rows",
    type=click.Choice(["error", "skip"]),
    default="error",
    help="Whether rows that cannot be used, such as those with a negative count, end the command or are left out.",
)
data_argument = click.argument("data", type=click.Path())
data_options = together(
    column_option("--user", help="Column of user ids."),
    column_option("--item", help="Column of item ids."),
    column_option("--count", help="Column of counts. In a file without one, each row counts 1."),
    bad_rows_option,
    number_option("--min-users", default=0, type=click.IntRange(0), help="Keep only items with at least N users."),
    number_option("--min-items", default=0, type=click.IntRange(0), help="Then keep only users with at least N items."),
)

split_options = together(
    option(
        "--split",
        type=click.Choice(["random", "per-user", "last", "date"]),
        default="random",
        help="What to hold out for the test: a random fraction of all counts (as in the paper), a random fraction of "
        "each user's counts, each user's last item, or the latest fraction of all counts. The last two need --time.",
    ),
    option(
        "--test-fraction",
        metavar="FRACTION",
        default=0.2,
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Fraction of the counts to hold out.",
    ),
    column_option("--time", show_default="times are not read", help="Column of times."),
)

json_option = option("--json", "as_json", is_flag=True, show_default="a table", help="Print JSON to standard output.")
components_option = number_option("-k", "--components", metavar="K", default=50, help="Number of components.")
seed_option = number_option("--seed", default=0, type=click.IntRange(0, 2**32 - 1), help="Random seed.")

fit_options = together(
    components_option,
    option(
        "--concentration",
        metavar="α",
        show_default="1, or 3 for nbslim",
        type=click.FloatRange(0, min_open=True),
        help="Of nbmf and nbslim: a small α tolerates bursts of counts, a large one is close to Poisson.",
    ),
    seed_option,
    number_option("--max-iter", default=500, help="Maximum number of sweeps."),
    option(
        "--tol",
        metavar="FRACTION",
        default=1e-5,
        type=click.FloatRange(0),
        help="Stop when a sweep raises the objective by less than this fraction of it.",
    ),
)

data_group = grouped("source", data_argument, data_options)
split_group = grouped("splitting", split_options)
fit_group = grouped("settings", fit_options)


def read_data(
    data: str,
    user: Column,
    item: Column,
    count: Column,
    bad_rows: str,
    min_users: int,
    min_items: int,
    time: Column = None,
) -> "nbmf.Interactions":
    """Read a file, or standard input for "-", and filter it once, items first, as the paper does."""
    from nbmf.storage.counts import is_counts_file  # noqa: PLC0415 (heavy modules only when a command runs)

    columns = {"user": user, "item": item, "count": count, "time": time}
    given = " and ".join(f"--{name} {column}" for name, column in columns.items() if column is not None)
    if data == "-" or not is_counts_file(data):
        found = nbmf.read_interactions(data, **columns, bad_rows=bad_rows)
    elif given:
        what = "this file was written by nbmf and has no columns to choose"
        raise ValueError(f"{data}: {what}; leave out {given}, or give the file it was made from")
    else:
        found = nbmf.open_counts(data)
    name = "standard input" if data == "-" else data
    click.echo(f"{name}: {found}", err=True)
    if found.reading:
        click.echo(f"columns: {found.reading}", err=True)
    if min_users or min_items:
        found = found.filter(min_users, min_items)
        click.echo(f"kept: {found}", err=True)
        if not found.nnz:
            raise ValueError(f"nothing is left with --min-users {min_users} and --min-items {min_items}; lower them")
    if not found.nnz:
        raise ValueError(f"{name}: no count is above 0, so there is nothing to learn from")
    return found


def check_not_piped(data: str | None) -> None:
    """Refuse standard input where the data is needed again later."""
    if data == "-":
        raise click.UsageError("this command needs DATA again later, so it cannot be standard input; name a file")


def split_data(
    found: "nbmf.Interactions", split: str, test_fraction: float, seed: int
) -> "tuple[nbmf.Interactions, nbmf.Interactions]":
    """Return the counts to fit and those to test on."""
    if split == "last":
        parts = found.leave_last_out(seed=seed)
    elif split == "date":
        parts = found.split_by_date(test_fraction=test_fraction)
    else:
        parts = (found.split if split == "random" else found.split_per_user)(test_fraction, seed=seed)
    click.echo(f"held out: {parts.test.nnz:,} counts; users without any: {len(parts.untested):,}", err=True)
    return parts


def make_model(name: str, components: int, concentration: float | None, seed: int, max_iter: int, tol: float) -> Any:
    """Return the estimator of this name, with progress shown; nbslim has none of the other settings."""
    if name == "nbslim":
        return make_slim(concentration)
    common: Values = {"random_state": seed, "max_iter": max_iter, "tol": tol, "verbose": True}
    if name == "nbmf":
        return nbmf.NBMF(components, concentration=1.0 if concentration is None else concentration, **common)
    return nbmf.PoissonMF(components, binarize=name == "binary", **common)


def make_slim(concentration: float | None) -> "nbmf.NBSLIM":
    """Return the estimator nbslim, with progress shown."""
    own: Values = {} if concentration is None else {"concentration": concentration}
    return nbmf.NBSLIM(verbose=True, **own)


def check_model(name: str, concentration: float | None, *factor_options: str) -> None:
    """Refuse options that the model does not have; `factor_options` names the parameters that nbslim lacks."""
    if name == "nbslim":
        check_slim(*factor_options)
    else:
        check_concentration((name,), concentration)


def check_slim(*names: str) -> None:
    """Refuse options that nbslim does not have; `names` are parameters of the command."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} is not a setting of the model nbslim; leave it out")


def check_concentration(models: tuple[str, ...], concentration: float | None) -> None:
    """Refuse a concentration that none of the models uses."""
    if concentration is not None and not {"nbmf", "averaged"} & set(models):
        raise click.UsageError(f"--concentration is a setting of nbmf, not of {' or '.join(models)}; leave it out")
