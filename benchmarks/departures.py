"""What the package's departures from the paper cost and gain: the tables of docs/paper.md.

python benchmarks/departures.py      (NBMF_DATA names the folder with the Taste Profile subset; else groceries alone)
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import nbmf
from nbmf.backends.cpu import Cpu
from nbmf.counts import Counts
from nbmf.factors import Prior
from nbmf.likelihood import NegativeBinomial
from nbmf.model import Model, begin, observe, with_item_rate

SWEEPS, K = 150, 50


def exact_objective(model: nbmf.NBMF, data: nbmf.Interactions) -> float:
    """Return the exact ELBO of a model's posteriors, however they were found."""
    counts, backend = Counts.of(data.matrix, np.dtype(np.float32)), Cpu()
    law = Model(NegativeBinomial(model.concentration), Prior(1.0, 1.0), Prior(1.0, 1.0))
    users, items = model.user_posterior_, model.item_posterior_
    base = begin(law, counts, backend, users.mean, items.mean, None).log_base
    return observe(with_item_rate(law, items), counts, backend, users, items, None, base).objective


def tied(name: str, data: nbmf.Interactions) -> None:
    """Compare the exact ELBO reached by exact and by tied exposures, from one start."""
    settings = {"random_state": 0, "max_iter": SWEEPS, "tol": 0}
    exact = nbmf.NBMF(K, exposure="exact", **settings).fit(data)
    best = exact_objective(exact, data)
    print(f"{name}: {data.n_users:,} × {data.n_items:,}, K = {K}, α = 1, {SWEEPS} sweeps; exact ELBO {best:,.0f}")
    for n_clusters in (16, 64, 256):
        model = nbmf.NBMF(K, exposure="tied", n_clusters=n_clusters, **settings).fit(data)
        reached = exact_objective(model, data)
        change = (reached - best) / abs(best)
        print(f"  tied, C = {n_clusters:3}: exact ELBO of what it found {reached:,.0f} ({change:+.2%})")


def accelerated(name: str, data: nbmf.Interactions) -> None:
    """Count the sweeps that extrapolation needs to get where plain sweeps get."""
    for inference in ("cavi", "mm"):
        settings = {"random_state": 0, "max_iter": 800, "tol": 0, "inference": inference, "exposure": "exact"}
        plain = nbmf.NBMF(20, **settings).fit(data).objective_
        fast = nbmf.NBMF(20, accelerate=True, **settings).fit(data).objective_
        print(f"{name}, {inference}, K = 20, α = 1: sweeps with accelerate=True to reach the objective of")
        for sweeps in (100, 200, 400, 800):
            reached = np.flatnonzero(fast >= plain[sweeps - 1])
            print(f"  {sweeps} plain sweeps ({plain[sweeps - 1]:,.0f}): {reached[0] + 1 if len(reached) else 'never'}")
        print(f"  after 800 accelerated: {fast[-1]:,.0f}")


if __name__ == "__main__":
    groceries = nbmf.datasets.groceries().filter().split(0.2, seed=0)[0]
    folder = os.environ.get("NBMF_DATA")
    if folder:
        path = Path(folder) / "data" / "tasteprofile_gouvert" / "interactions.parquet"
        taste = nbmf.read_interactions(path).split(0.2, seed=1992)[0]
        tied("Taste Profile subset", taste)
        accelerated("Taste Profile subset", taste)
    tied("groceries", groceries)
