"""`nbmf warm`: compile every loop ahead of its first use, such as while an image is built."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

import nbmf
from nbmf.cli.options import Values, fit_whole, json_option, option
from nbmf.cli.terminal import sentences, show, show_json
from nbmf.inference.progress import RunsProgress, Stopwatch


@click.command(short_help="Compile everything now, so that later commands start at once.")
@option("--dtype", type=click.Choice(["float32", "float64"]), show_default="both", help="Only for this precision.")
@json_option
@sentences()
def warm(dtype: str | None, as_json: bool) -> None:
    """Compile what fits, answers and the server need, so that later commands find it compiled.

    Meant for the build of an image, or after an installation. The code is kept where NUMBA_CACHE_DIR says, else beside
    the package or in the user's cache folder, and serves processors of the same kind. A second run finds it there.
    """
    watch = Stopwatch()
    models = [model for each in ("float32", "float64") if dtype in (None, each) for model in _models(each)]
    with TemporaryDirectory() as folder, RunsProgress("warm", what="models", pause=2.0) as progress:
        for n, model in enumerate(models, 1):
            _use(model, Path(folder))
            progress.report(n, len(models), n / len(models))
    used = [loop.stats for loop in loops() if loop.signatures]
    compiled = sum(sum(stats.cache_misses.values()) for stats in used)
    found = sum(sum(stats.cache_hits.values()) for stats in used)
    facts = {
        "loops": len(used),
        "versions": compiled + found,  # a loop has one for each combination of types
        "compiled": compiled,
        "found": found,
        "seconds": round(watch.seconds, 1),
        "folders": sorted({str(stats.cache_path) for stats in used if stats.cache_path is not None}),
    }
    if as_json:
        show_json(facts)
    else:
        words = [[name, ", ".join(value) if isinstance(value, list) else f"{value:,}"] for name, value in facts.items()]
        show("Compiled loops", ["", ""], words, left=2)


def _models(dtype: str) -> Iterator[Any]:
    """Return estimators that between them run every loop."""
    few: Values = {"max_iter": 2, "tol": 0.0, "random_state": 0, "dtype": dtype}
    for inference in ("cavi", "mm"):
        yield nbmf.PoissonMF(2, inference=inference, **few)
        for exposure in ("exact", "tied"):
            yield nbmf.NBMF(2, inference=inference, exposure=exposure, n_clusters=2, **few)
    more: tuple[Values, ...] = ({"rates": "per_row"}, {"shapes": "learn"}, {"accelerate": True})
    yield from (nbmf.NBMF(2, **few, **each) for each in more)
    for learned in ("learn", "learn_per_user", "learn_per_item"):
        yield nbmf.NBMF(2, concentration=learned, exposure="exact", **few)
    yield from _family(few)
    yield from (nbmf.NBSLIM(n_neighbors=n, max_iter=2, dtype=dtype) for n in (None, 2))
    yield from (nbmf.NBFISM(2, likelihood=name, **few) for name in ("poisson", "negative_binomial"))


def _family(few: Values) -> Iterator[Any]:
    """Return estimators of the other likelihoods."""
    for inference in ("cavi", "mm"):
        own = {"inference": inference, **few}
        for jumps in ("logarithmic", "geometric"):
            yield from (nbmf.CompoundMF(2, jumps=jumps, jump=jump, **own) for jump in ("learn", "learn_per_item"))
        for exposure in ("exact", "tied"):
            yield nbmf.ZeroInflatedMF(2, exposure=exposure, n_clusters=2, **own)
        yield from (nbmf.RobustMF(2, **own), nbmf.BinaryMF(2, **own))
    for learned in ("learn_per_user", "learn_per_item"):
        yield nbmf.ZeroInflatedMF(2, probability=learned, exposure="exact", **few)


def _use(model: Any, folder: Path) -> None:
    """Fit a model to a few counts, and ask all that can be asked of it once it is loaded from a file."""
    from nbmf.web.views import Views  # noqa: PLC0415 (heavy modules only when the command runs)

    train, test = nbmf.datasets.simulate(40, 20, n_components=2, seed=0).split(0.2, seed=0)
    fit_whole(model, train, "what was compiled is kept").save(folder / "warm.nbmf")
    loaded = nbmf.load(folder / "warm.nbmf")
    Views(loaded, "warm").warm_up()
    nbmf.evaluate(loaded, train, test)
    users, items = train.users[:2].tolist(), train.items[:2].tolist()
    own = dict.fromkeys(users, items)
    loaded.recommend()
    for choice in ({"exclude_seen": False}, {"allow": items}, {"deny": items}, {"allow": own}, {"deny": own}):
        loaded.recommend(users, **choice)
    for choice in ({"exclude_seen": False}, {"allow": items}):
        loaded.recommend_for(dict.fromkeys(items, 1), **choice)
    if hasattr(loaded, "transform"):
        loaded.score(train)
        loaded.transform(train)


def loops() -> list[Any]:
    """Return the compiled loops of all modules that are imported."""
    from numba.core.dispatcher import Dispatcher  # noqa: PLC0415

    ours = [module for name, module in sys.modules.items() if name.startswith("nbmf.")]
    found = {id(value): value for module in ours for value in vars(module).values() if isinstance(value, Dispatcher)}
    return list(found.values())
