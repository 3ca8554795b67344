"""How often `nbmf.choose` names the likelihood that the data was drawn from.

    python benchmarks/choose.py [--seeds 5] [--users 400] [--items 200]         (takes three minutes on two cores)
    python benchmarks/choose.py --counts      the same by a protocol that holds out non-zero counts instead of cells

Factors are gamma with shape 0.5 and K = 4, so that intensities vary enough to tell a variance that grows with the mean
from one that grows with its square. Only models that have a likelihood are compared, all with K = 4.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter

import numpy as np
from sklearn.base import clone

import nbmf
from measure import timed
from nbmf.evaluation.choose import FAMILY

N_COMPONENTS = 4
RIGHT = {
    "Poisson": "PoissonMF",
    "negative binomial": "NBMF",
    "logarithmic jumps": "CompoundMF",
    "geometric jumps": "CompoundMF geometric",
    "zero-inflated": "ZeroInflatedMF",
    "binary": "BinaryMF",
}
NAMES = list(RIGHT.values())


def draw(law: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return counts of a likelihood; its parameter is such that it differs from the others."""
    W, H = (rng.gamma(0.5, 2.0, (n, N_COMPONENTS)) for n in shape)
    μ = W @ H.T / N_COMPONENTS  # 1 on average
    if law == "Poisson":
        return rng.poisson(μ)
    if law == "negative binomial":
        return rng.poisson(2 * μ * rng.gamma(0.5, 2.0, shape))  # α = 0.5
    if law == "logarithmic jumps":  # sums of n ~ Poisson(μ/2) jumps with θ = 0.95 are negative binomial
        return rng.poisson(rng.gamma(0.5 * μ / -np.log1p(-0.95)) * 0.95 / 0.05)
    if law == "geometric jumps":
        n = rng.poisson(0.5 * μ)
        return n + rng.poisson(rng.standard_gamma(n) * 0.8 / 0.2)  # p = 0.8
    if law == "zero-inflated":
        return rng.poisson(4 * μ) * (rng.random(shape) < 0.3)  # π = 0.3
    return (rng.poisson(0.5 * μ) > 0).astype(np.int64)


def named_by_counts(counts: np.ndarray, seed: int) -> str:
    """Return the most likely model if a fifth of the non-zero counts is held out, and taken for zeros by the fits."""
    train, test = nbmf.Interactions.from_matrix(counts).split(0.2, seed=seed)
    found = {}
    for name in NAMES if counts.max() == 1 else NAMES[:-1]:
        model = clone(FAMILY[name]).set_params(n_components=N_COMPONENTS, max_iter=100, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.fit(train)
        found[name] = nbmf.evaluation.log_likelihood(model, train, test, n_boot=1).mean
    return max(found, key=lambda name: found[name])


def main() -> None:
    """Draw data sets of each likelihood, and count which model is named."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--users", type=int, default=400)
    options.add_argument("--items", type=int, default=200)
    options.add_argument("--counts", action="store_true")
    given = options.parse_args()
    right = n_all = 0
    for law, expected in RIGHT.items():
        named, seconds = Counter[str](), []
        for seed in range(given.seeds):
            counts = draw(law, (given.users, given.items), np.random.default_rng(seed))
            if given.counts:
                named[named_by_counts(counts, seed)] += 1
                continue
            models = sorted(NAMES, key=lambda name: name != "BinaryMF") if counts.max() == 1 else NAMES
            taken, choice = timed(lambda counts=counts, m=models: nbmf.choose(counts, m, n_components=N_COMPONENTS))
            named[choice.recommended] += 1
            seconds.append(taken)
        right, n_all = right + named[expected], n_all + given.seeds
        words = ", ".join(f"{name} {times}" for name, times in named.most_common())
        took = f"   {np.median(seconds):.1f} s each" if seconds else ""
        print(f"{law:18} {named[expected]} of {given.seeds} right: {words}{took}", flush=True)
    print(f"{'all':18} {right} of {n_all} right")


if __name__ == "__main__":
    main()
