"""How the cost of a sweep grows: with users, items, non-zeros, components and clusters, for each backend there is.

    PYTHONPATH=src python benchmarks/scale.py [--points FILE.json] [--only ten cpu gpu reference]
    PYTHONPATH=src python benchmarks/scale.py --draw docs/scale.png FILE.json …

First the case of ten million non-zeros on the CPU: seconds, and memory against what is stated. Then one size at a time
is varied around a base (non-zeros with as many users as have 25 each), tied exposures; the exponent is the slope of the
seconds in it on logarithmic axes. Seconds of the CPU are the processor's divided by the threads, so that what else runs
on the machine counts little; those of a GPU are the clock's. Needs NumPy and SciPy; the rest where it is there: numba
for `cpu`, PyTorch, Triton and a device for `gpu`. About three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.optimize import nnls

from measure import memory
from nbmf.backends import Backend, make_backend
from nbmf.backends.cost import Sizes
from nbmf.backends.counts import Counts
from nbmf.inference.cavi import CAVI
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import NegativeBinomial
from nbmf.model.ties import Ties
from workload import popular_counts

COUNTS_PER_USER, SWEEPS = 25, 5
NAMES = ("users", "items", "non-zeros", "components", "clusters")
BASES = {
    "reference": (2_000, 1_000, 50_000, 16, 16),
    "cpu": (100_000, 40_000, 2_500_000, 50, 64),
    "gpu": (400_000, 100_000, 10_000_000, 64, 64),
}
FACTORS = {
    "users": (0.5, 1, 2, 4),
    "items": (0.5, 1, 2, 4),
    "non-zeros": (0.5, 1, 2, 4),
    "components": (0.5, 1, 2),
    "clusters": (0.25, 1, 4),
}
STYLES = {"reference": ("0.45", "s", ":"), "cpu": ("#0072B2", "o", "-"), "gpu": ("#D55E00", "^", "--")}
Points = dict[str, list[dict[str, float]]]


@lru_cache(2)
def data(name: str, n_users: int, n_items: int, n_draws: int) -> sp.csr_array:
    """Make counts, where it is fast, and keep the last ones: components and clusters change nothing in them."""
    if name == "gpu":
        from gpu import simulate

        return simulate(n_users, n_items, n_draws)
    return popular_counts(n_users, n_items, n_draws)


def there(wanted: list[str]) -> dict[str, Backend]:
    """Return those backends that run here."""
    on_host = [name for name in ("reference", "cpu") if name in wanted and find_spec("numba")]  # which either imports
    found = {name: make_backend(name) for name in on_host}
    if "gpu" in wanted and find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found["gpu"] = make_backend("gpu")
    return found


def sweep(name: str, backend: Backend, sizes: dict[str, int]) -> dict[str, float]:
    """Return the sizes with the median seconds of a tied sweep, by the clock and by the processor for each thread."""
    matrix = data(name, sizes["users"], sizes["items"], sizes["non-zeros"])
    counts, rng = Counts.of(matrix, np.dtype(np.float32)), np.random.RandomState(0)
    W, H = (rng.gamma(1, 1, (n, sizes["components"])).astype(np.float32) for n in matrix.shape)
    ties = Ties(rng.randint(sizes["clusters"], size=len(H)).astype(np.int32), sizes["clusters"])
    state = begin(Model(NegativeBinomial(1.0), Prior(1, 1), Prior(1, 1)), counts, backend, W, H, ties)
    clock, work = [], []
    for _ in range(SWEEPS):
        begun = time.perf_counter(), time.process_time()
        state = CAVI().step(state, counts, backend)
        clock.append(time.perf_counter() - begun[0])
        work.append((time.process_time() - begun[1]) / getattr(backend, "_n_threads", 1))
    found = {"clock": float(np.median(clock[1:])), "work": float(np.median(work[1:]))}
    return {**sizes, "non-zeros": matrix.nnz, **found, "seconds": found["clock" if name == "gpu" else "work"]}


def growth(name: str, backend: Backend) -> Points:
    """Vary one size after another; print the seconds, the exponents and the costs that explain them."""
    base, found = dict(zip(NAMES, BASES[name], strict=True)), {}
    for what in NAMES:
        found[what] = []
        for factor in FACTORS[what]:
            sizes = base | {what: round(factor * base[what])}
            if what == "non-zeros":
                sizes["users"] = sizes[what] // COUNTS_PER_USER
            point = sweep(name, backend, sizes)
            found[what].append(point)
            seconds = f"{point['clock']:.4f} s by the clock, {point['work']:.4f} s of work"
            print(f"  {name}, {what} {point[what]:,}: {seconds}", flush=True)
        print(f"{name}: seconds ~ {what}^{exponent(found[what], what):.2f}", flush=True)
    if name != "reference":  # whose exposures are dense, tied or not
        print(f"{name}: {costs(found)}", flush=True)
    return found


def exponent(points: list[dict[str, float]], what: str) -> float:
    """Return the slope of the seconds on logarithmic axes."""
    pairs = np.log([(point[what], point["seconds"]) for point in points])
    return float(np.polyfit(*pairs.T, 1)[0])


def costs(found: Points) -> str:
    """Say what a sweep costs: nonnegative least squares of relative errors over all points."""
    points = [point for of_size in found.values() for point in of_size]
    terms = np.array([
        [nnz * K, users * C * K, (users + items) * K, 1.0]
        for users, items, nnz, K, C in ([point[name] for name in NAMES] for point in points)
    ])  # fmt: skip
    seconds = np.array([point["seconds"] for point in points])
    solved = nnls(terms / seconds[:, None], np.ones(len(seconds)))[0]
    worst = np.abs(terms @ solved / seconds - 1).max()
    walk, cluster, row = 1e9 * solved[:3]
    return (f"{walk:.3f} ns a non-zero and component, {cluster:.4f} a user, cluster and component, {row:.3f} a row and "
            f"component, {1e3 * solved[3]:.2f} ms in any case; worst point off by {worst:.0%}")  # fmt: skip


def ten_million() -> None:
    """Fit 10 million non-zeros, K = 50, tied: the seconds of a sweep, and memory against what was stated."""
    import nbmf

    matrix = popular_counts(200_000, 60_000, 10_450_000)
    positions = (values.astype(np.int32) for values in (matrix.indices, matrix.indptr))
    matrix = sp.csr_array((matrix.data.astype(np.int32), *positions), shape=matrix.shape)
    counted = nbmf.Interactions(np.arange(matrix.shape[0]), np.arange(matrix.shape[1]), matrix)
    given = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    Path("/proc/self/clear_refs").write_text("5")  # from here a new peak counts
    ends: list[tuple[float, float]] = []
    model = nbmf.NBMF(50, exposure="tied", random_state=0, max_iter=8, tol=0, backend="cpu")
    model.fit(counted, callbacks=[lambda snapshot: ends.append((time.perf_counter(), time.process_time()))])
    clock, work = np.median(np.diff(ends, axis=0)[-3:], axis=0)  # the clusters are no longer made anew
    stated = sum(Sizes(*counted.matrix.shape, counted.nnz, 50).memory().values()) + given
    threads = make_backend("cpu")._n_threads
    print(
        f"{counted.nnz:,} non-zeros, K = 50, tied, {threads} threads: {clock:.2f} s by the clock, "
        f"{work / threads:.2f} s of work; memory stated {stated / 1e9:.2f} GB, peak {memory('VmHWM') / 1e9:.2f} GB",
        flush=True,
    )


def draw(path: str, files: list[str]) -> None:
    """Draw the seconds against each size, for each backend of the files."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    found: dict[str, Points] = {}
    for file in files:
        found |= json.loads(Path(file).read_text())
    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(NAMES), figsize=(11, 2.9), sharey=True, layout="constrained")
    for axis, what in zip(axes, NAMES, strict=True):
        for name, points in found.items():
            if what not in points:
                continue
            color, marker, line = STYLES[name]
            x, y = ([point[key] for point in points[what]] for key in (what, "seconds"))
            axis.loglog(x, y, color=color, marker=marker, linestyle=line, markersize=4, label=name)
            axis.annotate(f"$x^{{{exponent(points[what], what):.2f}}}$", (x[-1], y[-1]), xytext=(2, 5),
                          textcoords="offset points", ha="center", color=color)  # fmt: skip
        axis.set_xlabel("non-zeros, 25 a user" if what == "non-zeros" else what)
        axis.margins(x=0.15, y=0.12)
        axis.grid(alpha=0.25, linewidth=0.5)
    axes[0].set_ylabel("seconds a sweep, tied exposures")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(found), frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure, or draw what was measured."""
    options = argparse.ArgumentParser()
    options.add_argument("--only", nargs="+", choices=("ten", *BASES), help="some backends, or the ten million only")
    options.add_argument("--points", metavar="FILE", type=Path, help="where to write what was measured")
    options.add_argument("--draw", nargs="+", metavar="FILE", help="a picture, and the points to draw in it")
    chosen = options.parse_args()
    if chosen.draw:
        draw(chosen.draw[0], chosen.draw[1:])
        return
    wanted = chosen.only or ["ten", *BASES]
    if wanted == ["ten"]:
        ten_million()
    elif "ten" in wanted and find_spec("numba"):  # in a process of its own, whose memory is that of a fit
        subprocess.run([sys.executable, __file__, "--only", "ten"], check=True)
    found = {name: growth(name, backend) for name, backend in there(wanted).items()}
    if chosen.points:
        chosen.points.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
