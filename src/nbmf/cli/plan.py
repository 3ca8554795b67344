"""`nbmf plan`: the memory and time of a fit, before it is started."""

import os
import sys
from functools import partial
from typing import Any

import click

import nbmf
from nbmf.cli.options import (
    MODELS,
    Values,
    check_settings,
    data_group,
    joint_starts_option,
    json_option,
    likelihood_option,
    make_model,
    number_option,
    option,
    read_data,
)
from nbmf.cli.terminal import sentences, show, show_json

LEAST_MACHINE = 10**8  # bytes; a smaller --memory is a slip
EXPOSURES = {"tied": "tied", "exact": "exact", "Poisson": None, "none": None}
PLANNED = tuple(name for name in MODELS if name != "nbslim")


@click.command()
@option("--model", type=click.Choice(PLANNED), default="nbmf", help="Model, as for `nbmf fit`.")
@number_option("-k", "--components", metavar="K", show_default="50, or 200 for nbfism", help="Number of components.")
@joint_starts_option
@likelihood_option
@number_option("--clusters", metavar="C", default=64, help="Number of item clusters for tied exposures.")
@option(
    "--memory",
    metavar="SIZE",
    show_default="that of this machine",
    help="Memory of one machine, such as 16GB, to say how many machines a fit needs.",
)
@data_group
@json_option
@sentences()
def plan(source: Values, model: str, clusters: int, memory: str | None, as_json: bool, **options: Any) -> None:
    """Estimate the memory and time that a fit of DATA takes.

    DATA is a file for `nbmf fit`, or one written by `nbmf.store_counts`. There is a line for each kind of exposure that
    the model has, tied by clusters of items and exact, or none; beside those of nbmf there is one of Poisson. Memory is
    the peak of the process, including the counts as read, and follows from the sizes; reading a text file may take more
    (`nbmf.store_counts` keeps within a limit). Time is extrapolated from sweeps on a sample of the users. A fit of
    nbfism needs one machine. There is no plan for nbslim, whose items each stop at a sweep of their own, nor for blend,
    which fits its models twice.
    """
    from nbmf.storage.counts import as_bytes  # noqa: PLC0415 (heavy modules only when the command runs)

    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = here if memory is None else as_bytes("--memory", memory)
    if machine < LEAST_MACHINE:
        raise ValueError(f"--memory is {memory!r}, which is {machine:,} bytes; write 16GB for 16 gigabytes")
    check_settings([model], options)
    found = read_data(**source)
    estimator = make_model(model, options)
    kinds = ["tied", "exact", "Poisson"][: 3 if model == "nbmf" else 2]
    kinds = kinds if estimator._likelihood().has_exposure else ["none"]
    plans = [_plan(found, estimator, kind, clusters, machine) for kind in kinds]
    components = estimator.n_components
    if as_json:
        sizes = {"model": model, "users": found.n_users, "items": found.n_items, "counts": found.nnz}
        n_starts = getattr(estimator, "n_starts", None)
        show_json({**sizes, "components": components, "starts": n_starts, "machine_memory": machine, "plans": plans})
        return
    title = f"{found.n_users:,} users × {found.n_items:,} items, {found.nnz:,} counts, K = {components}"
    title += f", {estimator.n_starts} starts" if hasattr(estimator, "n_starts") else ""
    columns = ["exposure", "backend", "time per sweep", "memory", "GPU memory", f"machines of {machine / 1e9:.3g} GB"]
    show(title, columns, [_row(each) for each in plans], left=2)


def _plan(found: "nbmf.Interactions", estimator: Any, name: str, clusters: int, machine: int) -> dict[str, Any]:
    from nbmf.backends import make_backend  # noqa: PLC0415
    from nbmf.backends.cost import Sizes  # noqa: PLC0415
    from nbmf.data.interactions import formed  # noqa: PLC0415
    from nbmf.inference.timing import seconds_per_sweep  # noqa: PLC0415

    shape, n_starts = (found.n_users, found.n_items, found.nnz), getattr(estimator, "n_starts", None)
    sizes = Sizes(*shape, estimator.n_components, EXPOSURES[name], clusters, n_starts=n_starts)
    make, given = partial(make_backend, "auto", None, sizes.products), _bytes_as_read(found)
    machines, likelihood = sizes.machines(machine, given), None if name == "Poisson" else estimator._likelihood()
    parts = {use.lower().replace(" ", "_"): size for use, size in sizes.memory().items()} | {"data_as_read": given}
    return {
        "exposure": name,
        "backend": type(make()).__name__.lower(),
        "seconds_per_sweep": seconds_per_sweep(formed(found.matrix, estimator._input()), sizes, make, likelihood),
        "memory": sum(parts.values()),
        "memory_by_use": parts,
        "gpu_memory": None if sizes.is_encoder else sum(sizes.memory("gpu").values()),
        "machines": machines,
        "driver_memory": None if machines == 1 or sizes.is_encoder else sizes.memory_of_driver() + given,
    }


def _row(each: dict[str, Any]) -> list[str]:
    sizes = (each[name] for name in ("memory", "gpu_memory"))
    gigabytes = ("not estimated" if size is None else f"{size / 1e9:.2f} GB" for size in sizes)
    machines = "no number suffices" if each["machines"] is None else f"{each['machines']:,}"
    if each["machines"] not in (1, None):
        machines += f", plus {each['driver_memory'] / 1e9:.3g} GB for the driver"
    return [each["exposure"], each["backend"], f"{each['seconds_per_sweep']:.3g} s", *gigabytes, machines]


def _bytes_as_read(found: "nbmf.Interactions") -> int:
    matrix = found.matrix
    positions = matrix.indices.nbytes + matrix.indptr.nbytes
    if matrix.indices.itemsize == 8:  # `Counts` copies them in half the bytes
        positions += positions // 2
    texts = sum(sys.getsizeof(text) for ids in (found.users, found.items) if ids.dtype == object for text in ids)
    return int(matrix.data.nbytes + positions + found.users.nbytes + found.items.nbytes) + texts
