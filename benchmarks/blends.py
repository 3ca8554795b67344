"""What a blend gains over the best of its members: NDCG on held-out counts, with a paired interval of the gain.

python benchmarks/blends.py [groceries] [tasteprofile_gouvert] [--members nbslim,nbfism]

All pairs by default. K is 10 for the groceries and 50 for other data sets, but for NBFISM, which has its defaults. The
weights are learned on a part of the training counts. The data sets are those of leaderboard.py.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import nbmf
from boards import BOARDS
from nbmf.evaluation.experiments.study import open_study

METRIC = "ndcg_counts"
MEMBERS: dict[str, Callable[[int], Any]] = {
    "nbslim": lambda K: nbmf.NBSLIM(),
    "nbfism": lambda K: nbmf.NBFISM(random_state=0),
    "compound": lambda K: nbmf.CompoundMF(K, random_state=0),
    "nbmf": lambda K: nbmf.NBMF(K, random_state=0),
}
PAIRS = (("nbslim", "nbfism"), ("nbslim", "compound"), ("nbslim", "nbmf"), ("compound", "nbmf"))


def show(source: str, names: tuple[str, ...]) -> None:
    """Fit one blend, and print how it and its members rank the test counts."""
    study = open_study() if source == "groceries" else BOARDS[source].open()
    train, test = study.train, study.test
    K = 10 if source == "groceries" else 50
    blend = nbmf.Blend([MEMBERS[name](K) for name in names], random_state=0).fit(train)
    found = {
        name: nbmf.evaluate(model, train, test, ("counts",), at=())
        for name, model in zip(("blend", *names), (blend, *blend.members_), strict=True)
    }
    best = max(names, key=lambda name: found[name][METRIC].mean)
    gain = nbmf.compare(found, baseline=best)["blend"]
    members = ", ".join(f"{name} {found[name][METRIC].mean:.4f}" for name in names)
    low, high = gain.difference_interval
    weights = ", ".join(f"{weight:.2f}" for weight in blend.weights_)
    print(
        f"{source}: {members}; blend {found['blend'][METRIC].mean:.4f} (weights {weights}), "
        f"{gain.difference:+.4f} ({low:+.4f} to {high:+.4f})",
        flush=True,
    )


def main() -> None:
    """Show every blend on every data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", default=["tasteprofile_gouvert", "groceries"])
    parser.add_argument("--members", type=lambda text: tuple(text.split(",")), help="the members of one blend")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    for source in options.data:
        for names in [options.members] if options.members else PAIRS:
            show(source, names)


if __name__ == "__main__":
    main()
