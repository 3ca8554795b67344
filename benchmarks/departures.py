"""What the package's departures from the paper cost and gain: the tables of docs/paper.md.

python benchmarks/departures.py      (NBMF_DATA names the folder with the Taste Profile subset; else groceries alone)
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.cluster import KMeans

import nbmf
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.inference.cavi import with_item_rate
from nbmf.inference.run import begin, observe
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import NegativeBinomial
from nbmf.model.ties import Ties

SWEEPS, K, STARTS = 150, 50, 3


class KMeansTies(Cpu):
    """The CPU's passes with centres that k-means has moved ten times."""

    def cluster(self, items, n_clusters, rng):
        """Tie the items of a cluster of k-means."""
        found = KMeans(n_clusters, n_init=1, max_iter=10, tol=0, random_state=rng).fit(items.mean)
        return Ties(found.labels_.astype(np.int32), n_clusters)


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
    for n_clusters, backend in ((16, None), (64, None), (256, None), (64, KMeansTies())):
        model = nbmf.NBMF(K, exposure="tied", n_clusters=n_clusters, **settings).fit(data, backend=backend)
        reached = exact_objective(model, data)
        change, how = (reached - best) / abs(best), "" if backend is None else ", by k-means"
        print(f"  tied, C = {n_clusters:3}{how}: exact ELBO of what it found {reached:,.0f} ({change:+.2%})")


def accelerated(name: str, data: nbmf.Interactions) -> None:
    """Count the sweeps that extrapolation needs to reach the objective of plain sweeps."""
    for inference in ("cavi", "mm"):
        settings = {"random_state": 0, "max_iter": 800, "tol": 0, "inference": inference, "exposure": "exact"}
        plain = nbmf.NBMF(20, **settings).fit(data).objective_
        fast = nbmf.NBMF(20, accelerate=True, **settings).fit(data).objective_
        print(f"{name}, {inference}, K = 20, α = 1: sweeps with accelerate=True to reach the objective of")
        for sweeps in (100, 200, 400, 800):
            reached = np.flatnonzero(fast >= plain[sweeps - 1])
            print(f"  {sweeps} plain sweeps ({plain[sweeps - 1]:,.0f}): {reached[0] + 1 if len(reached) else 'never'}")
        print(f"  after 800 accelerated: {fast[-1]:,.0f}")


def learned(name: str, train: nbmf.Interactions, test: nbmf.Interactions) -> None:
    """Evaluate learned hyper-parameters, and the average of several starts, on held-out ranking."""
    base = nbmf.NBMF(K)
    models = {
        "α = 1, as in the paper": base,
        "concentration='learn'": clone(base).set_params(concentration="learn"),
        "concentration='learn_per_user'": clone(base).set_params(concentration="learn_per_user"),
        "concentration='learn_per_item'": clone(base).set_params(concentration="learn_per_item", exposure="exact"),
        "rates='per_row'": clone(base).set_params(rates="per_row"),
        "shapes='learn'": clone(base).set_params(shapes="learn"),
        "Averaged, n_runs=5": nbmf.Averaged(base, n_runs=5),
    }
    print(f"{name}, K = {K}, {STARTS} starts: NDCG on counts, and on count ≥ 5; mean (standard deviation)")
    for title, model in models.items():
        fits = [clone(model).set_params(random_state=seed).fit(train) for seed in range(STARTS)]
        results = [nbmf.evaluate(fit, train, test, ("counts", 5), at=(), n_boot=1) for fit in fits]
        columns = [[result[metric].mean for result in results] for metric in results[0]]
        figures = "  ".join(f"{np.mean(values):.4f} ({np.std(values, ddof=1):.4f})" for values in columns)
        α = np.median([np.median(fit.concentration_) for fit in fits])
        print(f"  {title:32} {figures}   median α {α:.2f}")


if __name__ == "__main__":
    groceries = nbmf.datasets.groceries().filter().split(0.2, seed=0).train
    folder = os.environ.get("NBMF_DATA")
    if folder:
        path = Path(folder) / "data" / "tasteprofile_gouvert" / "interactions.parquet"
        taste, taste_held_out = nbmf.read_interactions(path).split(0.2, seed=1992)
        learned("Taste Profile subset", taste, taste_held_out)
        tied("Taste Profile subset", taste)
        accelerated("Taste Profile subset", taste)
    tied("groceries", groceries)
