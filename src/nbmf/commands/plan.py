"""`nbmf plan`: what a fit will take, before it is begun."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from nbmf.commands.options import data_argument, data_options, json_option, read_data
from nbmf.commands.terminal import sentences, show, show_json

if TYPE_CHECKING:
    from nbmf.interactions import Interactions
    from nbmf.planning import Sizes

SAMPLE = 400_000  # counts of the users on whom a sweep is timed
SAMPLED_CELLS = 50_000_000  # the same where every cell counts
SWEEPS = 3


@click.command()
@data_argument
@data_options
@click.option("-k", "--components", metavar="K", default=50, show_default=True, type=click.IntRange(1))
@click.option("--clusters", metavar="C", default=64, show_default=True, type=click.IntRange(1))
@json_option
def plan(
    data: str,
    user: str | None,
    item: str | None,
    count: str | None,
    min_users: int,
    min_items: int,
    components: int,
    clusters: int,
    as_json: bool,
) -> None:
    """Say what a fit of DATA will take: memory from the sizes, seconds a sweep from one on some of the users.

    DATA is what `nbmf fit` takes, or a file that `nbmf.store_counts` has written.
    """
    with sentences():
        from nbmf.planning import Sizes  # noqa: PLC0415 (heavy modules only when the command runs)

        found = read_data(data, user, item, count, min_users, min_items, None)
        plans: list[dict[str, Any]] = []
        for name, exposure in (("tied", "tied"), ("exact", "exact"), ("Poisson", None)):
            sizes = Sizes(found.n_users, found.n_items, found.nnz, components, exposure, clusters)
            memory = sum(sizes.memory().values()) + _bytes(found)
            plans.append({
                "model": name,
                "seconds a sweep": _predicted(found, sizes),
                "memory": memory,
                "memory of a GPU": sum(sizes.memory("gpu").values()),
            })  # fmt: skip
        if as_json:
            show_json({"users": found.n_users, "items": found.n_items, "counts": found.nnz, "plans": plans})
            return
        title = f"{found.n_users:,} users × {found.n_items:,} items, {found.nnz:,} counts, K = {components}"
        rows = [
            [
                each["model"],
                f"{each['seconds a sweep']:.3g} s",
                *(f"{each[name] / 1e9:.2f} GB" for name in ("memory", "memory of a GPU")),
            ]
            for each in plans
        ]
        show(title, ["exposure", "a sweep here", "memory", "of a GPU"], rows)


def _predicted(found: Interactions, sizes: Sizes) -> float:
    """Time sweeps on some users, and go from their cost to that of all."""
    import nbmf  # noqa: PLC0415
    from nbmf.progress import Stopwatch  # noqa: PLC0415

    wanted = found.n_users * SAMPLE / found.nnz if sizes.exposure != "exact" else SAMPLED_CELLS / found.n_items
    n_users = max(1, min(found.n_users, int(wanted)))
    sample = found.matrix[:n_users]
    settings: dict[str, Any] = {"n_components": sizes.n_components, "random_state": 0, "tol": 0, "backend": "cpu"}
    if sizes.exposure is None:
        model: Any = nbmf.PoissonMF(**settings)
    else:
        model = nbmf.NBMF(exposure=sizes.exposure, n_clusters=sizes.n_clusters, **settings)
    times: list[float] = []
    watch = Stopwatch()
    model.set_params(max_iter=SWEEPS).fit(sample, callbacks=[lambda snapshot: times.append(watch.seconds)])
    seconds = min((after - before for before, after in pairwise(times)), default=times[0])
    small = replace(sizes, n_users=n_users, nnz=int(sample.nnz))
    return seconds * sizes.cost / small.cost


def _bytes(found: Interactions) -> int:
    """What the counts take as they were read."""
    return int(found.matrix.data.nbytes + found.matrix.indices.nbytes + found.matrix.indptr.nbytes)
