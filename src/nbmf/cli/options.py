"""Options that several commands share, and what they mean: which data, which part of it to test on, which model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nbmf.data.interactions import Interactions
    from nbmf.estimators.nbmf import NBMF, PoissonMF
    from nbmf.estimators.slim import NBSLIM

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

MODELS = ("nbmf", "poisson", "binary")
JUDGED = (*MODELS, "popularity")
COMPARED = (*JUDGED, "averaged", "nbslim", "ease", "knn", "als", "bpr", "hpf", "kl-nmf")
"""The names of `nbmf.experiments.baselines.BASELINES`, which would take a second to import."""


def together(*decorators: Decorator) -> Decorator:
    """Return one decorator that does what these do, the first outermost."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


data_argument = click.argument("data", type=click.Path())

data_options = together(
    click.option("--user", metavar="COLUMN", show_default="recognised by its name or place", help="The users' column."),
    click.option("--item", metavar="COLUMN", show_default="recognised by its name or place", help="The items' column."),
    click.option(
        "--count",
        metavar="COLUMN",
        show_default="recognised by its name or place",
        help="The counts' column. In a file without one each row counts 1.",
    ),
    click.option(
        "--min-users",
        metavar="N",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Keep items with at least N users.",
    ),
    click.option(
        "--min-items",
        metavar="N",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Then keep users with at least N items.",
    ),
)

split_options = together(
    click.option(
        "--split",
        type=click.Choice(["random", "per-user", "last", "date"]),
        default="random",
        show_default=True,
        help="What to test on: a fraction of all counts at random (the paper's way), a fraction of each user's, each "
        "user's last item, or the last fraction in time. The last two need --time.",
    ),
    click.option(
        "--test-fraction",
        metavar="SHARE",
        default=0.2,
        show_default=True,
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="How much to test on.",
    ),
    click.option("--time", metavar="COLUMN", show_default="not read", help="The times' column."),
)

fit_options = together(
    click.option(
        "-k",
        "--components",
        metavar="K",
        default=50,
        show_default=True,
        type=click.IntRange(1),
        help="Number of components.",
    ),
    click.option(
        "--concentration",
        metavar="α",
        show_default="1; of nbslim 3",
        type=click.FloatRange(0, min_open=True),
        help="Of the models nbmf and nbslim: small forgives bursts, large is close to Poisson.",
    ),
    click.option(
        "--seed",
        metavar="N",
        default=0,
        show_default=True,
        type=click.IntRange(0, 2**32 - 1),
        help="Seed of all that is random.",
    ),
    click.option(
        "--max-iter", metavar="N", default=500, show_default=True, type=click.IntRange(1), help="Most sweeps."
    ),
    click.option(
        "--tol",
        metavar="SHARE",
        default=1e-5,
        show_default=True,
        type=click.FloatRange(0),
        help="Stop when a sweep raises the objective by less than this share of it.",
    ),
)

json_option = click.option(
    "--json", "as_json", is_flag=True, show_default="a table", help="Write JSON, for programs, to standard output."
)


def read_data(
    data: str, user: str | None, item: str | None, count: str | None, min_users: int, min_items: int, time: str | None
) -> Interactions:
    """Read a file and filter it, once and items first, as the paper does."""
    import nbmf  # noqa: PLC0415

    if is_compact(data):
        _refuse_columns(data, {"--user": user, "--item": item, "--count": count, "--time": time})
        found = nbmf.open_counts(data)
    else:
        found = nbmf.read_interactions(data, user=user, item=item, count=count, time=time)
    click.echo(f"{data}: {found}", err=True)
    if min_users or min_items:
        found = found.filter(min_users, min_items)
        click.echo(f"kept: {found}", err=True)
        if not found.nnz:
            raise ValueError(f"nothing is left with --min-users {min_users} and --min-items {min_items}; ask for less")
    if not found.nnz:
        raise ValueError(f"{data}: no count is above 0, so there is nothing to learn from")
    return found


def _refuse_columns(data: str, given: dict[str, str | None]) -> None:
    """Refuse to choose columns of a file that has none."""
    options = [f"{option} {column}" for option, column in given.items() if column is not None]
    if options:
        raise ValueError(
            f"{data}: is a file that nbmf has written and has no columns to choose, so {' and '.join(options)} means "
            "nothing; leave it out, or give the file from which it was made"
        )


def is_compact(path: str) -> bool:
    """Whether a file is one that nbmf has written, as `nbmf.store_counts` does."""
    from nbmf.storage.counts import is_counts_file  # noqa: PLC0415

    return is_counts_file(path)


def split_data(found: Interactions, split: str, test_fraction: float, seed: int) -> tuple[Interactions, Interactions]:
    """Return what to fit and what to test on."""
    match split:
        case "random":
            parts = found.split(test_fraction, seed=seed)
        case "per-user":
            parts = found.split_per_user(test_fraction, seed=seed)
        case "last":
            parts = found.leave_last_out(seed=seed)
        case _:
            parts = found.split_by_date(test_fraction=test_fraction)
    click.echo(f"test: {parts.test.nnz:,} counts; {len(parts.untested):,} users have nothing to test", err=True)
    return parts


def make_model(
    name: str, components: int, concentration: float | None, seed: int, max_iter: int, tol: float
) -> NBMF | PoissonMF:
    """Return the estimator of that name, which shows its progress."""
    import nbmf  # noqa: PLC0415

    common: dict[str, Any] = {"random_state": seed, "max_iter": max_iter, "tol": tol, "verbose": True}
    if name == "nbmf":
        return nbmf.NBMF(components, concentration=1.0 if concentration is None else concentration, **common)
    return nbmf.PoissonMF(components, binarize=name == "binary", **common)


def make_slim(concentration: float | None) -> NBSLIM:
    """Return the estimator of weights between items, which shows its progress."""
    import nbmf  # noqa: PLC0415

    own: dict[str, Any] = {} if concentration is None else {"concentration": concentration}
    return nbmf.NBSLIM(verbose=True, **own)


def check_slim(*names: str) -> None:
    """Refuse settings that weights between items have not, if they were given; `names` are those of the command."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} is not a setting of the model nbslim; leave it out")


def check_concentration(models: tuple[str, ...], concentration: float | None) -> None:
    """Refuse a concentration that no model would use."""
    if concentration is not None and not {"nbmf", "averaged"} & set(models):
        raise click.UsageError("--concentration is a setting of the model nbmf, which was not asked for")
