"""How often `check` finds fault with a model that is right: counts drawn from a fit, and fitted by the same model.

    python benchmarks/check.py [--simulations 20] [--threads 2]         (takes about three minutes on two cores)

The first fit of each model is to simulated counts, which it need not describe well; what is drawn from it is its own.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

import nbmf

SETTLED = {"n_components": 5, "max_iter": 300, "tol": 1e-4}
MODELS: dict[str, Any] = {
    "NBMF": nbmf.NBMF(),
    "NBMF, learned α": nbmf.NBMF(concentration="learn"),
    "PoissonMF": nbmf.PoissonMF(),
    "PoissonMF, mm": nbmf.PoissonMF(inference="mm"),
    "CompoundMF": nbmf.CompoundMF(),
    "CompoundMF, geometric": nbmf.CompoundMF(jumps="geometric"),
    "ZeroInflatedMF": nbmf.ZeroInflatedMF(),
    "BinaryMF": nbmf.BinaryMF(),
}


def redrawn(model: Any, seed: int) -> np.ndarray:
    """Return counts drawn from a fitted likelihood at the fitted intensities."""
    intensity = np.asarray(model.user_factors_ @ model.item_factors_.T, np.float64)
    return np.asarray(model.result_.model.likelihood.sample(np.random.RandomState(seed), intensity))


def main() -> None:
    """Count the refits with a finding, model by model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--simulations", type=int, default=20)
    options.add_argument("--threads", type=int, default=2)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    data = nbmf.datasets.simulate(400, 200, n_components=5, mean_count=0.4, seed=7)
    for name, model in MODELS.items():
        model = clone(model).set_params(**SETTLED, n_threads=given.threads)  # noqa: PLW2901
        first = clone(model).set_params(random_state=0).fit(data)
        said = []
        for seed in range(given.simulations):
            again = clone(model).set_params(random_state=seed + 1).fit(redrawn(first, seed))
            said += again.check(seed=seed).findings[:1]
        print(f"{name:22} {len(said)} of {given.simulations} with a finding", *said, sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
