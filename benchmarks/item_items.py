"""Item–item weights: seconds beside EASE's in one run, and the effect of tolerance, longer steps and few neighbours.

python benchmarks/item_items.py             the groceries, and with NBMF_DATA the Taste Profile subset
python benchmarks/item_items.py --large     100,000 × 40,000, 4.8 million non-zeros: seconds and memory
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import nbmf
from measure import on_matrix, timed
from nbmf.evaluation.experiments.baselines import BASELINES
from workload import popular_counts

ROUNDS = 3
EASE = BASELINES["ease"]


def against_ease(train: nbmf.Interactions) -> None:
    """Time both in turns, each with all threads."""
    taken: dict[str, list[float]] = {"NBSLIM": [], "EASE": []}
    for _ in range(ROUNDS + 1):  # the first of each compiles and warms up
        taken["NBSLIM"].append(timed(lambda: nbmf.NBSLIM().fit(train))[0])
        taken["EASE"].append(timed(lambda: EASE.fit(train, 0, os.cpu_count() or 1, **EASE.defaults))[0])
    ours, theirs = (float(np.median(values[1:])) for values in taken.values())
    print(f"  fit: NBSLIM {ours:.2f} s, EASE {theirs:.2f} s, ratio {ours / theirs:.2f} (medians of {ROUNDS} in turns)")


def variants(train: nbmf.Interactions, test: nbmf.Interactions) -> None:
    """Fit with other settings, one at a time."""
    settings: dict[str, dict[str, Any]] = {
        "defaults": {},
        "tol 0.3": {"tol": 0.3},
        "tol 1": {"tol": 1.0},
        "tol 10": {"tol": 10.0},
        "to the end (tol 0.001)": {"tol": 0.001, "max_iter": 1000},
        "the same without longer steps": {"tol": 0.001, "max_iter": 1000, "accelerate": False},
        "penalty 5": {"penalty": 5.0},
        "penalty 80": {"penalty": 80.0},
        "concentration 0.3": {"concentration": 0.3},
        "concentration 30": {"concentration": 30.0},
        "target counts": {"target": "counts"},
        "target binary": {"target": "binary"},
        "input counts": {"input": "counts"},
        "input binary": {"input": "binary"},
        "n_neighbors 50": {"n_neighbors": 50},
        "n_neighbors 100": {"n_neighbors": 100},
        "n_neighbors 200": {"n_neighbors": 200},
    }
    print(f"  {'':30} NDCG counts  y ≥ 1  y ≥ 5   seconds  most sweeps  objective")
    for name, chosen in settings.items():
        taken, model = timed(lambda chosen=chosen: nbmf.NBSLIM(**chosen).fit(train))
        found = nbmf.evaluate(model, train, test, n_boot=1)
        ranked = [found[metric].mean for metric in ("ndcg_counts", "ndcg_at_least_1", "ndcg_at_least_5")]
        print(
            f"  {name:30} {ranked[0]:11.4f} {ranked[1]:6.4f} {ranked[2]:6.4f} {taken:9.2f} {model.n_iter_:12} "
            f"{model.objective_[-1]:12,.1f}"
        )


LARGE = """
import sys, scipy.sparse, nbmf
from measure import memory, timed
nbmf.NBSLIM
imported = memory('VmRSS')
matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(sys.argv[1]))
taken, model = timed(lambda: nbmf.NBSLIM().fit(matrix))
print(f"  {taken:.0f} s, {(memory('VmHWM') - imported) / 1e6:.0f} MB at the peak above the imported package, "
      f"{model.weights_.nnz:,} weights, {model.ending_} after {model.n_iter_} sweeps")
"""


def large() -> None:
    """Fit the benchmark's large matrix in a process of its own."""
    matrix = popular_counts()
    print(f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} non-zeros, 200 neighbours per item:")
    print(on_matrix(LARGE, matrix), end="")


def main() -> None:
    """Run the small data sets, or the large one."""
    if "--large" in sys.argv[1:]:
        large()
        return
    data = {"groceries": nbmf.datasets.groceries().filter(min_users_per_item=50, min_items_per_user=20)}
    folder = os.environ.get("NBMF_DATA")
    if folder:
        path = Path(folder) / "data" / "tasteprofile_gouvert" / "interactions.parquet"
        data["Taste Profile subset"] = nbmf.read_interactions(path)
    for name, counts in data.items():
        train, test = counts.split(0.2, seed=0)
        print(f"{name}: {train.n_users:,} × {train.n_items:,}, {train.nnz:,} counts to fit")
        against_ease(train)
        variants(train, test)


if __name__ == "__main__":
    main()
