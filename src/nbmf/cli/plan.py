"""`nbmf plan`: what a fit will take, before it is begun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import data_argument, data_options, json_option, read_data
from nbmf.cli.terminal import sentences, show, show_json

if TYPE_CHECKING:
    import scipy.sparse as sp

    from nbmf.backends import Backend
    from nbmf.backends.cost import Sizes
    from nbmf.data.interactions import Ids, Interactions

SAMPLE = 2_000_000  # counts of the users on whom a sweep is timed
LEAST_MACHINE = 10**8  # bytes; less is a slip
SAMPLED_CELLS = 50_000_000  # the same where every cell counts
FEWER = 4  # the smaller sample is so many times smaller
LEAST_SWEEPS, MOST_SWEEPS, TIMED_SECONDS = 4, 40, 3.0
LAWS = {"tied": "tied", "exact": "exact", "Poisson": None}


def _size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """A number of bytes such as 16GB."""
    from nbmf.storage.counts import as_bytes  # noqa: PLC0415 (heavy modules only when the command runs)

    try:
        size = None if value is None else as_bytes("--memory", value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if size is not None and size < LEAST_MACHINE:
        raise click.BadParameter(f"--memory is {value!r}, which is {size:,} bytes; say 16GB for gigabytes")
    return size


@click.command()
@data_argument
@data_options
@click.option(
    "-k",
    "--components",
    metavar="K",
    default=50,
    show_default=True,
    type=click.IntRange(1),
    help="Number of components.",
)
@click.option(
    "--clusters",
    metavar="C",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Number of clusters of items, where exposures are tied.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=_size,
    show_default="that of this machine",
    help="Memory of one machine, such as 16GB: says how many of them a fit needs.",
)
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
    memory: int | None,
    as_json: bool,
) -> None:
    """Say what a fit of DATA will take: memory from the sizes, seconds a sweep from those of some of the users.

    DATA is what `nbmf fit` takes, or a file that `nbmf.store_counts` has written. Each way to expose cells has its
    line: tied by clusters of items, exact, and Poisson, which has none. Memory is that of the process at its peak, the
    counts as they were read included; reading a text file may take more (`nbmf.store_counts` keeps to a limit).
    """
    with sentences():
        from nbmf.backends.cost import Sizes  # noqa: PLC0415

        found = read_data(data, user, item, count, min_users, min_items, None)
        machine = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        plans = [
            _plan(found, name, Sizes(found.n_users, found.n_items, found.nnz, components, exposure, clusters), machine)
            for name, exposure in LAWS.items()
        ]
        if as_json:
            sizes = {"users": found.n_users, "items": found.n_items, "counts": found.nnz, "components": components}
            show_json({**sizes, "memory of a machine": machine, "plans": plans})
            return
        title = f"{found.n_users:,} users × {found.n_items:,} items, {found.nnz:,} counts, K = {components}"
        columns = ["exposure", "backend", "a sweep here", "memory", "of a GPU", f"machines of {machine / 1e9:.3g} GB"]
        show(title, columns, [_row(each) for each in plans], left=2)


def _plan(found: Interactions, name: str, sizes: Sizes, machine: int) -> dict[str, Any]:
    """What a fit takes, by the names that programs read."""
    from nbmf.backends import make_backend  # noqa: PLC0415

    make = partial(make_backend, "auto", None, sizes.products)
    given = _bytes(found)
    parts, machines = sizes.memory(), sizes.machines(machine, given)
    return {
        "exposure": name,
        "backend": type(make()).__name__.lower(),
        "seconds a sweep": _predicted(found.matrix, sizes, make),
        "memory": sum(parts.values()) + given,
        "memory by use": parts | {"data as they were read": given},
        "memory of a GPU": sum(sizes.memory("gpu").values()),
        "machines": machines,
        "memory of the driver": None if machines == 1 else sizes.memory_of_driver() + given,
    }


def _row(each: dict[str, Any]) -> list[str]:
    gigabytes = (f"{each[name] / 1e9:.2f} GB" for name in ("memory", "memory of a GPU"))
    machines = "no number of them" if each["machines"] is None else f"{each['machines']:,}"
    if each["memory of the driver"] is not None:
        machines += f", and {each['memory of the driver'] / 1e9:.3g} GB for their driver"
    return [each["exposure"], each["backend"], f"{each['seconds a sweep']:.3g} s", *gigabytes, machines]


def _predicted(matrix: sp.csr_array, sizes: Sizes, make: Callable[[], Backend]) -> float:
    """Time sweeps on some users and on fewer, and go on to all of them on the line through both."""
    from nbmf.backends.cost import continued  # noqa: PLC0415

    n_users, n_items = matrix.shape
    wanted = SAMPLED_CELLS / n_items if sizes.exposure == "exact" else n_users * SAMPLE / matrix.nnz
    step = max(1, int(n_users / wanted))
    some = matrix[::step]  # users here and there: those who came first may be of another kind
    if step == 1:
        return _timed([some], sizes, make)[0]
    fewer = some[::FEWER]
    n_fewer, n_some = fewer.shape[0], some.shape[0]
    of_fewer, of_some = _timed([fewer, some], sizes, make)
    return continued((n_fewer, of_fewer), (n_some, of_some), n_users)


def _timed(samples: list[sp.csr_array], sizes: Sizes, make: Callable[[], Backend]) -> list[float]:
    """Return the seconds of a sweep of each, the fastest of many: what else runs on the machine only adds to them."""
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415

    # a backend for each: a device keeps the counts of one
    sweeps = [_sweep(sample, sizes, make()) for sample in samples]
    for sweep in sweeps:
        sweep()  # compiles, and lays out
    times: list[list[float]] = [[] for _ in samples]
    whole = Stopwatch()
    while len(times[0]) < LEAST_SWEEPS or (whole.seconds < TIMED_SECONDS and len(times[0]) < MOST_SWEEPS):
        for sweep, of_sample in zip(sweeps, times, strict=True):
            watch = Stopwatch()
            sweep()
            of_sample.append(watch.seconds)
    return [min(of_sample) for of_sample in times]


def _sweep(matrix: sp.csr_array, sizes: Sizes, backend: Backend) -> Callable[[], None]:
    """Return what does the next sweep on a sample of the users."""
    import numpy as np  # noqa: PLC0415

    from nbmf.backends.counts import Counts  # noqa: PLC0415
    from nbmf.inference.cavi import CAVI  # noqa: PLC0415
    from nbmf.inference.state import begin  # noqa: PLC0415
    from nbmf.model import Model  # noqa: PLC0415
    from nbmf.model.factors import Prior  # noqa: PLC0415
    from nbmf.model.likelihood import NegativeBinomial, Poisson  # noqa: PLC0415
    from nbmf.model.ties import Ties  # noqa: PLC0415

    rng, counts = np.random.RandomState(0), Counts.of(matrix, np.dtype(sizes.dtype))
    W, H = (rng.gamma(1, 1, (n, sizes.n_components)).astype(sizes.dtype) for n in matrix.shape)
    # any clusters cost the same
    labels = rng.randint(sizes.n_clusters, size=sizes.n_items).astype(np.int32)
    ties = Ties(labels, sizes.n_clusters) if sizes.exposure == "tied" else None
    model = Model(Poisson() if sizes.exposure is None else NegativeBinomial(1.0), Prior(1, 1), Prior(1, 1))
    states = [begin(model, counts, backend, W, H, ties)]

    def sweep() -> None:
        states.append(CAVI().step(states.pop(), counts, backend))

    return sweep


def _bytes(found: Interactions) -> int:
    """What the counts and the ids take as they were read."""
    matrix = found.matrix
    positions = matrix.indices.nbytes + matrix.indptr.nbytes
    if matrix.indices.itemsize == 8:  # `Counts` has them in half the bytes
        positions += positions // 2
    return int(matrix.data.nbytes + positions) + sum(map(_bytes_of_ids, (found.users, found.items)))


def _bytes_of_ids(ids: Ids) -> int:
    texts = sum(map(sys.getsizeof, ids)) if ids.dtype == object else 0
    return int(ids.nbytes) + texts
