"""How the likelihoods of the family rank held-out counts, with K chosen on counts set aside from the training part.

    python benchmarks/family_ranking.py [tasteprofile] [groceries] [invoices] [units] [--models nbmf,compound]

The Taste Profile and the retailer are read from the folder that NBMF_DATA names; it takes two minutes for the Taste
Profile and about ten for each of the others on two cores. For each model, a tenth of the training counts is set aside,
four times, each with another start: K is chosen by the mean of how the rest ranks it, at the model's default shapes,
and other shapes are tried at K = 50. (With a fifth aside, what is left is so much less than the final fit sees that
smaller K look best.) Then three starts are fitted to all training counts, and five are averaged; only these are
evaluated on the test counts.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

import nbmf
from measure import timed
from nbmf.evaluation.experiments.alternatives import Popularity
from nbmf.evaluation.experiments.study import Study, open_study

SEED = 2027  # a split that no model was developed on
NUMBERS, SHAPES, SHAPED_AT = (10, 20, 50, 100), (0.1, 0.3, 1.0), 50
ASIDE, N_ASIDE = 0.1, 4
N_STARTS, N_AVERAGED = 3, 5
GOAL, SHOWN = "ndcg_counts", ("ndcg_counts", "ndcg_at_least_1", "ndcg_at_least_5")
MODELS: dict[str, Any] = {
    "nbmf": nbmf.NBMF(),
    "compound": nbmf.CompoundMF(),
    "compound-geometric": nbmf.CompoundMF(jumps="geometric"),
    "zero-inflated": nbmf.ZeroInflatedMF(),
    "robust": nbmf.RobustMF(),
    "bernoulli": nbmf.BinaryMF(),
    "poisson": nbmf.PoissonMF(),
    "binary": nbmf.PoissonMF(binarize=True),
}
FILES: dict[str, tuple[str, dict[str, str]]] = {  # below NBMF_DATA, and the columns
    "tasteprofile": ("data/tasteprofile_gouvert/interactions.parquet", {}),
    "units": ("data/online_retail/events.parquet", {"user": "user", "item": "item", "count": "units"}),
}


def opened(name: str) -> Study:
    """Return a data set by its name."""
    if name == "groceries":
        return open_study(seed=SEED)
    folder = Path(os.environ["NBMF_DATA"])
    if name != "invoices":
        path, columns = FILES[name]
        return open_study(folder / path, columns=columns, seed=SEED)
    data = nbmf.read_interactions(folder / FILES["units"][0], user="user", item="item", count=None)
    return Study(name, data, *data.split(0.2, seed=SEED), f"a fifth of the non-zero counts at random, seed {SEED}")


def fitted(model: Any, train: nbmf.Interactions) -> Any:
    """Fit, and keep silent about what a wrong likelihood makes of the data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return model.fit(train)


def ranks(model: Any, train: nbmf.Interactions, aside: nbmf.Interactions) -> float:
    """Return NDCG on counts of a fit to `train`."""
    found = nbmf.evaluate(fitted(model, train), train, aside, ("counts",), at=(), n_boot=1)
    return float(found[GOAL].mean)


def main() -> None:
    """Choose, fit, evaluate and print tables in Markdown."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", nargs="*", default=["tasteprofile", "groceries", "invoices", "units"])
    options.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    given = options.parse_args()
    for name in given.data:
        study = opened(name)
        print(f"\n## {name}: {study.data}; held out: {study.split}", flush=True)
        chosen = {each: choose(each, study.train) for each in given.models}
        judge(study, chosen)


def choose(name: str, train: nbmf.Interactions) -> int:
    """Print NDCG on counts set aside by K and by shape, and return the best K."""
    parts = [(seed, *train.split(ASIDE, seed=seed)) for seed in range(SEED, SEED + N_ASIDE)]

    def found(**own: Any) -> float:
        model = clone(MODELS[name]).set_params(**own)
        return float(np.mean([ranks(model.set_params(random_state=seed), *both) for seed, *both in parts]))

    own_shape = MODELS[name].user_shape
    by_number = {k: found(n_components=k) for k in NUMBERS}
    by_shape = {
        s: by_number[SHAPED_AT] if s == own_shape else found(n_components=SHAPED_AT, user_shape=s, item_shape=s)
        for s in SHAPES
    }
    words = [" ".join(f"{k}: {found:.4f}" for k, found in each.items()) for each in (by_number, by_shape)]
    print(f"{name:20} aside by K {words[0]} | by shape at K = {SHAPED_AT} {words[1]}", flush=True)
    return max(by_number, key=lambda k: by_number[k])


def judge(study: Study, chosen: dict[str, int]) -> None:
    """Evaluate on the test counts: three starts of each model, five averaged, and popularity."""
    parts = study.train, study.test
    results: dict[str, Any] = {"popularity": nbmf.evaluate(Popularity(study.train), *parts)}
    seconds, averaged = {}, {}
    for name, k in chosen.items():
        model = clone(MODELS[name]).set_params(n_components=k)
        taken, starts = [], []
        for seed in range(SEED, SEED + N_STARTS):
            start = clone(model).set_params(random_state=seed)
            took, found = timed(lambda start=start: fitted(start, study.train))
            taken.append(took)
            starts.append(nbmf.evaluate(found, *parts))
        several = fitted(nbmf.Averaged(clone(model), n_runs=N_AVERAGED, random_state=SEED), study.train)
        averaged[name] = nbmf.evaluate(several, *parts)
        results[name], seconds[name] = starts, float(np.median(taken))
        print(f"{name:20} test K = {k}: {starts[0][GOAL].mean:.4f} first start", flush=True)
    baseline = "nbmf" if "nbmf" in results else None
    boards = {metric: nbmf.compare(results, metric, baseline=baseline) for metric in SHOWN}
    print(
        "\n| model | K | "
        + " | ".join(SHOWN)
        + " | difference to nbmf | five averaged | seconds |\n"
        + "|---" * 8
        + "|"
    )
    for c in boards[GOAL]:
        means = " | ".join(f"{boards[metric][c.name].mean:.4f}" for metric in SHOWN)
        apart = (
            "" if c.name == baseline else "{:+.4f} ({:+.4f} to {:+.4f})".format(c.difference, *c.difference_interval)
        )
        of_five = f"{averaged[c.name][GOAL].mean:.4f}" if c.name in averaged else ""
        took = f"{seconds[c.name]:.1f}" if c.name in seconds else ""
        print(f"| {c.name} | {chosen.get(c.name, '')} | {means} | {apart} | {of_five} | {took} |", flush=True)


if __name__ == "__main__":
    main()
