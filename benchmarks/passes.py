"""Seconds per pass, compared with the machine's limits and with a plain version of Algorithm 1, in one run.

python benchmarks/passes.py          (NBMF_DATA names the folder with the Taste Profile subset, for the last table)
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from sklearn.base import clone

import nbmf
from measure import seconds
from nbmf.backends import Given
from nbmf.backends.counts import Counts
from nbmf.backends.cpu import kernels
from nbmf.backends.cpu.passes import Cpu
from nbmf.model.factors import Point
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.model.ties import tie_items
from workload import N_CLUSTERS, N_COMPONENTS, plain_algorithm_1, popular_counts


def product_rate(size: int = 4096) -> float:
    """Return the machine's float32 matrix-product rate in floating-point operations per second."""
    a, b = (np.random.default_rng(n).random((size, size), dtype=np.float32) for n in (0, 1))
    return 2 * size**3 / seconds(lambda: a @ b)


def ones(rows: np.ndarray) -> tuple[np.ndarray, None]:
    """α = 1 for every row."""
    return np.ones(len(rows), rows.dtype), None


def exact_pass() -> None:
    """Time both sides of the exact exposures: two products of 2·K operations per cell each."""
    n_users, n_items = 16_384, 8_192
    rng = np.random.default_rng(0)
    W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in (n_users, n_items))
    backend, users_exposed, items_exposed, logs = Cpu(), np.empty_like(W), np.empty_like(H), np.zeros(n_users)
    users = seconds(lambda: backend._expose_unseen(kernels, W, H, H, ones(W), users_exposed, logs))
    items = seconds(lambda: backend._expose_unseen(kernels, H, W, W, ones(H), items_exposed, None))
    rate = 8 * N_COMPONENTS * n_users * n_items / (users + items)
    machine = product_rate()
    print(f"exact exposures, {n_users:,} × {n_items:,}, K = {N_COMPONENTS}:")
    print(f"  users' side, objective included {users / (n_users * n_items) * 1e9:.2f} ns per cell")
    print(f"  items' side                     {items / (n_users * n_items) * 1e9:.2f} ns per cell")
    print(f"  {rate / 1e9:.0f} GFLOP/s of the machine's own {machine / 1e9:.0f}: {rate / machine:.2f}\n")


def sparse_passes() -> None:
    """Time the walks over the non-zeros, and show the bytes they gather."""
    matrix = popular_counts()
    counts = Counts.of(matrix, np.dtype(np.float32))
    rng, backend = np.random.RandomState(0), Cpu()
    W, H = (Point(rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32)) for n in matrix.shape)
    ties = tie_items(H.mean, N_CLUSTERS, rng)
    print(f"walks over {matrix.nnz:,} non-zeros, {matrix.shape[0]:,} × {matrix.shape[1]:,}, K = {N_COMPONENTS}:")
    for law, tied in ((Poisson(), None), (NegativeBinomial(1.0), ties)):
        expectation = backend.expect(counts, Given(W, H, law, tied))
        users = seconds(lambda law=law, tied=tied: backend.expect(counts, Given(W, H, law, tied)))
        items = seconds(lambda expectation=expectation: backend.sum_by_item(counts, expectation, W))
        rows = 1 if tied is None else 2  # factor rows gathered per non-zero and side
        gathered = 2 * rows * matrix.nnz * N_COMPONENTS * 4
        print(
            f"  {type(law).__name__:17} users {users:.3f} s ({users / matrix.nnz * 1e9:.0f} ns per non-zero)  "
            f"items {items:.3f} s ({items / matrix.nnz * 1e9:.0f} ns)  "
            f"{gathered / (users + items) / 1e9:.0f} GB/s gathered"
        )
    print()


def against_plain() -> None:
    """Compare with dense float64 NumPy, from the same start to τ = 1e-5."""
    folder = os.environ.get("NBMF_DATA")
    if not folder:
        print("NBMF_DATA is not set: no Taste Profile subset to compare with the plain version on")
        return
    path = Path(folder) / "data" / "tasteprofile_gouvert" / "interactions.parquet"
    matrix = nbmf.read_interactions(path).split(0.2, seed=1992)[0].matrix
    rng = np.random.RandomState(0)
    W, H = (rng.gamma(1, 1, (n, 50)) for n in matrix.shape)
    objectives: list[float] = []
    plain = seconds(lambda: objectives.extend(plain_algorithm_1(matrix.toarray(), W, H, tol=1e-5)), times=1)
    print("Taste Profile subset, K = 50, α = 1, τ = 1e-5, exact, from one start:")
    print(f"  plain NumPy             {plain:5.2f} s, {len(objectives) // 2} sweeps, objective {objectives[-1]:,.1f}")
    for accelerate in (False, True):
        model = nbmf.NBMF(50, exposure="exact", init=(W, H), tol=1e-5, accelerate=accelerate)
        ours = seconds(lambda model=model: model.fit(matrix))
        near = int(np.argmax(model.objective_ >= objectives[-1] - 1e-3 * abs(objectives[-1]))) + 1
        arrival = seconds(lambda model=model, near=near: clone(model).set_params(max_iter=near).fit(matrix))
        print(
            f"  ours, accelerate={accelerate!s:5}  {ours:5.2f} s, {model.n_iter_} sweeps, "
            f"objective {model.objective_[-1]:,.1f} ({1 - model.objective_[-1] / objectives[-1]:+.1e}): "
            f"{ours / plain:.2f} of the time; within 0.1 % of plain's objective after {near} sweeps, "
            f"{arrival:.2f} s: {arrival / plain:.2f}"
        )


if __name__ == "__main__":
    exact_pass()
    sparse_passes()
    against_plain()
