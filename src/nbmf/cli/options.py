"""Options that several commands share, and the data and models they describe."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce, wraps
from typing import Any, NoReturn

import click

import nbmf
from nbmf.cli.terminal import say

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Values = dict[str, Any]  # of a group of options, by the options' names
Column = str | None

ESTIMATORS = {
    "nbmf": "NBMF",
    "poisson": "PoissonMF",
    "binary": "PoissonMF",
    "nbslim": "NBSLIM",
    "compound": "CompoundMF",
    "compound-geometric": "CompoundMF",
    "zero-inflated": "ZeroInflatedMF",
    "robust": "RobustMF",
    "bernoulli": "BinaryMF",
    "nbfism": "NBFISM",
    "averaged": "NBMF",
    "blend": "NBFISM",  # whose settings can be typed
}
FIXED: dict[str, Values] = {"binary": {"binarize": True}, "compound-geometric": {"jumps": "geometric"}}
"""What makes a model of its estimator."""
FITTED, COMPOSED = tuple(ESTIMATORS), ("averaged", "blend")
MODELS = tuple(name for name in FITTED if name not in COMPOSED)
JUDGED = (*MODELS[:4], "popularity")  # nbfism would take three times as long as all of these
COMPARED = (
    *(*MODELS, *COMPOSED),
    *("popularity", "ease", "edlae", "slim", "rp3beta", "knn", "als", "ials", "bpr", "hpf", "kl-nmf"),
)
"""The names of `nbmf.evaluation.experiments.baselines.BASELINES`, which would take a second to import."""
IN_PYTHON = {"components": "n_components", "joint_starts": "n_starts", "seed": "random_state", "threads": "n_threads"}
"""Names in Python, where they differ."""


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
likelihood_option = option(
    "--likelihood",
    type=click.Choice(("poisson", "negative_binomial")),
    show_default="poisson",
    help="Of nbfism: the negative binomial has exposures, takes about three times as long and ranks alike.",
)
joint_starts_option = number_option(
    "--joint-starts",
    show_default="4",
    help="Of nbfism: random starts that are fitted together, as one model whose scores are the mean of theirs.",
)
seed_option = number_option("--seed", default=0, type=click.IntRange(0, 2**32 - 1), help="Random seed.")
positive = click.FloatRange(0, min_open=True)
share = click.FloatRange(0, 1, min_open=True, max_open=True)


class NumberOrWord(click.ParamType):  # type: ignore[type-arg]
    """A number of a range, or one of some words: how to learn it."""

    name = "number or word"

    def __init__(self, numbers: click.FloatRange, *words: str) -> None:
        self.numbers, self.words = numbers, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return the word, or the number."""
        if value in self.words:
            return str(value)
        try:
            return float(self.numbers.convert(value, param, ctx))
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}; or give {', '.join(self.words)}", param, ctx)


fit_options = together(  # all but the seed are None, the model's own default, unless they are given
    number_option(
        "-k",
        "--components",
        metavar="K",
        show_default="50, or 200 for nbfism",
        help="Number of components; nbslim has none.",
    ),
    joint_starts_option,
    likelihood_option,
    option(
        "--concentration",
        metavar="α",
        show_default="1, or 3 for nbslim and nbfism",
        type=NumberOrWord(positive, "learn", "learn_per_user", "learn_per_item"),
        help="Of nbmf, nbslim and, with --likelihood negative_binomial, nbfism: a small α tolerates bursts of counts, "
        "a large one is close to Poisson; for nbmf also learn, learn_per_user or learn_per_item.",
    ),
    option(
        "--jumps",
        type=click.Choice(("logarithmic", "geometric")),
        show_default="logarithmic",
        help="Of compound: the distribution of how much there is at a time.",
    ),
    option(
        "--jump",
        metavar="θ",
        type=NumberOrWord(share, "learn", "learn_per_item"),
        show_default="learn_per_item",
        help="Of compound: the parameter of the jumps, learn or learn_per_item.",
    ),
    option(
        "--probability",
        metavar="π",
        type=NumberOrWord(share, "learn", "learn_per_user", "learn_per_item"),
        show_default="learn",
        help="Of zero-inflated: the probability of being exposed, learn, learn_per_user or learn_per_item.",
    ),
    option(
        "--exposure",
        type=click.Choice(("auto", "exact", "tied")),
        show_default="auto",
        help="Of nbmf and zero-inflated: an exposure for each cell, or one for the zeros of a user in each cluster of "
        "items, which takes no longer than the non-zeros do.",
    ),
    option(
        "--input",
        type=click.Choice(("counts", "log1p", "binary")),
        show_default="counts, or log1p for nbslim and nbfism",
        help="What the model sees of a count: the count, ln(1 + count), or whether there is one. Where counts are in "
        "the hundreds, try log1p.",
    ),
    option(
        "--user-shape",
        metavar="SHAPE",
        type=positive,
        show_default="0.3 for compound and bernoulli, else 1",
        help="Shape of the users' prior; below 1 favours sparse factors.",
    ),
    option(
        "--item-shape",
        metavar="SHAPE",
        type=positive,
        show_default="0.3 for compound and bernoulli, else 1",
        help="Shape of the items' prior; below 1 favours sparse factors.",
    ),
    option(
        "--rates",
        type=click.Choice(("shared", "per_row")),
        show_default="shared, or per_row for compound",
        help="One prior rate for all users and one for all items, or one for each user and each item.",
    ),
    option(
        "--inference",
        type=click.Choice(("cavi", "mm")),
        show_default="cavi",
        help="Variational Bayes, or maximum likelihood, which ignores shapes and rates.",
    ),
    option(
        "--penalty",
        metavar="ρ",
        type=click.FloatRange(0),
        show_default="20 for nbslim, 10 for nbfism, 30 for robust",
        help="Of nbslim and nbfism: the larger, the fewer and smaller the weights between items. Of robust: a count "
        "above 1+ρ times its intensity is an outlier.",
    ),
    option(
        "--target",
        type=click.Choice(("counts", "log1p", "binary")),
        show_default="log1p",
        help="Of nbslim and nbfism: what they predict, in the forms of --input.",
    ),
    seed_option,
    number_option("--max-iter", show_default="500, 100 for nbslim, 200 for nbfism", help="Maximum number of sweeps."),
    option(
        "--tol",
        metavar="GAIN",
        show_default="1e-5, 5 for nbslim, 2e-4 for nbfism",
        type=click.FloatRange(0),
        help="Stop when a sweep raises the objective by less than this fraction of it; nbslim stops an item when a "
        "sweep adds less than this to its log-likelihood.",
    ),
    option(
        "--accelerate/--no-accelerate",
        default=None,
        show_default="only for nbslim",
        help="Take longer steps where they are safe: fewer sweeps to the same objective.",
    ),
)
quiet_option = option(
    "--quiet", is_flag=True, show_default="progress is shown", help="Show no progress; warnings still appear."
)
run_options = together(
    number_option(
        "--threads", show_default="all cores", help="Number of threads. Results are the same for any number."
    ),
    quiet_option,
)

data_group = grouped("source", data_argument, data_options)
split_group = grouped("splitting", split_options)
fit_group = grouped("settings", fit_options)
compare_group = grouped("settings", fit_options, quiet_option)
run_group = grouped("settings", fit_options, run_options)


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
    say(f"{name}: {found}")
    if found.reading:
        say(f"columns: {found.reading}")
    if min_users or min_items:
        found = found.filter(min_users, min_items)
        say(f"kept: {found}")
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
    say(f"held out: {parts.test.nnz:,} counts; users without any: {len(parts.untested):,}")
    return parts


def make_model(name: str, settings: Values, found: Mapping[str, Any] | None = None) -> Any:
    """Return the estimator of this name with the settings as typed or, in their place, as a search has found them."""
    own = {**settings_of(name, settings), **(found or {}), **FIXED.get(name, {}), "verbose": not settings.get("quiet")}
    if name not in COMPOSED:
        return getattr(nbmf, ESTIMATORS[name])(**own)
    seed = own.pop("random_state")
    if name == "averaged":
        return nbmf.Averaged(nbmf.NBMF(**own), random_state=seed)
    shared = {key: own[key] for key in ("n_threads", "verbose") if key in own}
    return nbmf.Blend([nbmf.NBSLIM(**shared), nbmf.NBFISM(**own, random_state=seed)], random_state=seed)


def fit_whole(model: Any, data: "nbmf.Interactions", kept: str, **control: Any) -> Any:
    """Fit a model and return it. Ctrl-C, with which a fit returns early, ends the command and says what is `kept`."""
    warnings.filterwarnings("ignore", "fit interrupted")  # reported below
    model.fit(data, **control)
    if model.ending_ == "interrupted":
        raise KeyboardInterrupt(kept)  # what was temporary goes on the way out
    return model


def settings_of(name: str, settings: Values) -> Values:
    """Return those of the settings that a model has, by their names in Python; a model that is not ours has none."""
    if name not in ESTIMATORS:
        return {}
    known = getattr(nbmf, ESTIMATORS[name])().get_params(deep=False).keys() - FIXED.get(name, {}).keys()
    given = {IN_PYTHON.get(key, key): value for key, value in settings.items() if value is not None}
    return {key: value for key, value in given.items() if key in known}


def as_typed(name: str, found: Mapping[str, Any]) -> str:
    """Return the settings of a model as options of `nbmf fit`.

    >>> as_typed("nbmf", {"n_components": 20, "user_shape": 0.3})
    '--model nbmf --components 20 --user-shape 0.3'
    """
    in_the_shell = {python: key for key, python in IN_PYTHON.items()}
    found = {key: value for key, value in found.items() if key not in FIXED.get(name, {})}
    words = {in_the_shell.get(key, key).replace("_", "-"): value for key, value in found.items()}
    flags = (f"--{'' if value else 'no-'}{key}" for key, value in words.items() if isinstance(value, bool))
    pairs = (f"--{key} {value}" for key, value in words.items() if not isinstance(value, bool))
    return " ".join((f"--model {name}", *pairs, *flags))


def check_settings(models: Sequence[str], settings: Values) -> None:
    """Refuse a setting that none of the models has, or a value that one refuses; the seed is also that of the split."""
    having = {key for name in models for key in settings_of(name, settings)}
    for key, value in settings.items():
        if value is not None and key not in ("seed", "quiet") and IN_PYTHON.get(key, key) not in having:
            refuse(key, models)
    is_poisson = settings.get("likelihood") != "negative_binomial" and set(models) <= {"nbfism", "blend", "popularity"}
    if settings.get("concentration") is not None and is_poisson:
        raise click.UsageError("--concentration is of a negative binomial; give --likelihood negative_binomial too")
    for name in ESTIMATORS.keys() & set(models):
        make_model(name, settings)._check_settings()


def is_typed(key: str) -> bool:
    """Return whether the command was given this parameter."""
    return click.get_current_context().get_parameter_source(key) is not click.core.ParameterSource.DEFAULT


def check_absent(name: str, *others: str) -> None:
    """Refuse further options of a command that a model has no use for; `others` are the command's parameters."""
    for key in filter(is_typed, others):
        refuse(key, [name])


def refuse(key: str, models: Sequence[str]) -> NoReturn:
    """Raise a usage error for an option that these models do not have."""
    whose = f"the model {models[0]}" if len(models) == 1 else f"any of the models {', '.join(models)}"
    raise click.UsageError(f"--{key.replace('_', '-')} is not a setting of {whose}; leave it out")


def check_files(files: Mapping[str, str | None]) -> None:
    """Refuse to write over the data, or one output over another."""
    places: dict[str, str] = {}
    for role, path in files.items():
        if path is not None and (other := places.setdefault(os.path.realpath(path), role)) != role:
            raise click.UsageError(f"{role} {path} is also {other}; name another file, as this one would be lost")
