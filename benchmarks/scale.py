"""How the cost of a sweep grows: with users, items, non-zeros, components and clusters, for each backend there is.

    python benchmarks/scale.py [--plot FILE.png] [--quick]

One size is varied at a time (non-zeros with as many users as have 25 each) around 100,000 users × 40,000 items,
2.4 million non-zeros, K = 50, 64 clusters; the exponent is the slope of the seconds in it on logarithmic axes. Seconds
are of the process's own work divided by its threads, so that what else runs on the machine counts little. The last
lines are the case of ten million non-zeros.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import numpy as np

from nbmf.backends import Backend, make_backend
from nbmf.counts import Counts
from nbmf.factors import Point, Prior
from nbmf.inference.cavi import CAVI
from nbmf.likelihood import NegativeBinomial
from nbmf.model import Model, begin
from nbmf.planning import Sizes
from workload import popular_counts

BASE = {"users": 100_000, "items": 40_000, "draws": 2_500_000, "components": 50, "clusters": 64}
VARIED = {
    "users": (50_000, 100_000, 200_000, 400_000),
    "items": (20_000, 40_000, 80_000, 160_000),
    "draws": (1_250_000, 2_500_000, 5_000_000, 10_000_000),
    "components": (25, 50, 100),
    "clusters": (16, 64, 256),
}
COUNTS_PER_USER = 25
SWEEPS = 4


def sweep(backend: Backend, sizes: dict[str, int]) -> tuple[float, float, int]:
    """Return the median seconds of a tied sweep, by the clock and by the processor, and the number of non-zeros."""
    matrix = popular_counts(sizes["users"], sizes["items"], sizes["draws"])
    counts, rng = Counts.of(matrix, np.dtype(np.float32)), np.random.RandomState(0)
    W, H = (rng.gamma(1, 1, (n, sizes["components"])).astype(np.float32) for n in matrix.shape)
    ties = backend.cluster(Point(H), sizes["clusters"], rng)
    state = begin(Model(NegativeBinomial(1.0), Prior(1, 1), Prior(1, 1)), counts, backend, W, H, ties)
    wall, work = [], []
    for _ in range(SWEEPS):
        begun, cpu = time.perf_counter(), time.process_time()
        state = CAVI().step(state, counts, backend)
        wall.append(time.perf_counter() - begun)
        work.append(time.process_time() - cpu)
    return float(np.median(wall[1:])), float(np.median(work[1:])) / (os.cpu_count() or 1), matrix.nnz


def growth(name: str, backend: Backend, n_points: int) -> dict[str, list[tuple[float, float]]]:
    """Print the seconds and the exponent for each size that is varied."""
    found: dict[str, list[tuple[float, float]]] = {}
    for what, values in VARIED.items():
        points = []
        for value in values[:n_points]:
            users = value // COUNTS_PER_USER if what == "draws" else BASE["users"]
            wall, work, nnz = sweep(backend, BASE | {"users": users, what: value})
            points.append((float(nnz if what == "draws" else value), work if name == "cpu" else wall))
            print(f"  {name} {what} {points[-1][0]:,.0f}: {wall:.3f} s by the clock, {work:.3f} s of work", flush=True)
        slope = np.polyfit(*np.log(np.array(points)).T, 1)[0]
        print(f"{name}: seconds ~ {'non-zeros' if what == 'draws' else what}^{slope:.2f}", flush=True)
        found[what] = points
    return found


def draw(found: dict[str, dict[str, list[tuple[float, float]]]], path: str) -> None:
    """Draw seconds against each size."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(VARIED), figsize=(15, 3), layout="constrained")
    for axis, what in zip(axes, VARIED, strict=True):
        for name, of_backend in found.items():
            axis.loglog(*zip(*of_backend[what], strict=True), marker="o", label=name)
        axis.set_xlabel("non-zeros" if what == "draws" else what)
    axes[0].set_ylabel("seconds a sweep")
    axes[0].legend()
    figure.savefig(path)


def ten_million() -> None:
    """The case of the README: 10 million non-zeros, K = 50, tied; time, and memory against what was stated."""
    sizes = {"users": 200_000, "items": 60_000, "draws": 10_650_000, "components": 50, "clusters": 64}
    wall, work, nnz = sweep(make_backend("cpu"), sizes)
    stated = sum(Sizes(200_000, 60_000, nnz, 50).memory().values()) + 8 * nnz
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{nnz:,} non-zeros: {wall:.2f} s by the clock, {work:.2f} s of work; memory stated {stated / 1e9:.2f} GB, "
          f"peak of this process {peak / 1e9:.2f} GB (making the data included)")  # fmt: skip


def main() -> None:
    """Do it for each backend there is."""
    options = argparse.ArgumentParser()
    options.add_argument("--plot", metavar="FILE")
    options.add_argument("--quick", action="store_true", help="two points a size")
    chosen = options.parse_args()
    backends = {"cpu": make_backend("cpu")}
    if type(make_backend("auto", None, work=1e30)).__name__ == "Gpu":
        backends["gpu"] = make_backend("gpu")
    found = {name: growth(name, backend, 2 if chosen.quick else 4) for name, backend in backends.items()}
    ten_million()
    if chosen.plot:
        draw(found, chosen.plot)


if __name__ == "__main__":
    main()
