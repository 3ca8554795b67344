"""One sweep of every likelihood of the family, in turns: the data of peers.py, K and threads the same.

python benchmarks/family.py [--threads 1]         (takes about two minutes)
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from measure import timed
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.inference.cavi import CAVI
from nbmf.inference.hyperparameters import Learned
from nbmf.inference.run import State, begin, revive
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson
from nbmf.model.ties import tie_items
from workload import N_CLUSTERS, N_COMPONENTS, popular_counts

ROUNDS = 10
CASES: dict[str, tuple[Likelihood, str, bool]] = {  # likelihood, which parameter is learned, whether exposures are tied
    "PoissonMF": (Poisson(), "", False),
    "CompoundMF": (LogarithmicJumps(0.5), "item", False),
    "CompoundMF, one θ": (LogarithmicJumps(0.5), "all", False),
    "CompoundMF, geometric": (GeometricJumps(0.5), "item", False),
    "RobustMF": (RobustPoisson(1.0), "", False),
    "BinaryMF": (BernoulliPoisson(), "", False),
    "NBMF, tied": (NegativeBinomial(1.0), "", True),
    "ZeroInflatedMF, tied": (ZeroInflatedPoisson(0.5), "all", True),
}


class Case:
    """CAVI on the CPU backend, float32, some sweeps after the start."""

    def __init__(self, matrix: sp.csr_array, likelihood: Likelihood, group: str, tied: bool, threads: int) -> None:
        """Start, sweep, and tie the items by the factors reached."""
        rng = np.random.RandomState(0)
        counted = (matrix > 0).astype(np.float32) if isinstance(likelihood, BernoulliPoisson) else matrix
        self.counts, self.backend = Counts.of(sp.csr_array(counted), np.dtype(np.float32)), Cpu(threads)
        self.algorithm = CAVI(Learned(group))
        W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in matrix.shape)
        model = Model(likelihood, Prior(0.3, 0.3), Prior(0.3, 0.3))
        ties = tie_items(H, N_CLUSTERS, rng) if tied else None
        self.state: State = begin(model, self.counts, self.backend, W, H, ties)
        for _ in range(3):
            self.sweep()
        if tied:
            ties = tie_items(self.state.items.mean, N_CLUSTERS, rng)
            self.state = revive(replace(self.state, ties=ties), self.counts, self.backend, sum_users=True)

    def sweep(self) -> float:
        """Return the seconds of one sweep, with its objective and what it learns."""
        taken, self.state = timed(lambda: self.algorithm.step(self.state, self.counts, self.backend))
        return taken


def main() -> None:
    """Sweep in turns and print each likelihood's seconds, and their ratio to Poisson's and to tied NBMF's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    matrix = popular_counts()
    cases = {name: Case(matrix, *settings, threads) for name, settings in CASES.items()}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, case in cases.items():
            taken[name].append(case.sweep())
    print(f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} counts, K = {N_COMPONENTS}, {threads} threads")
    print(f"{'':24} {'median':>8} {'least':>8}  ratio of medians and of least ones")
    for name, seconds in taken.items():
        base = "NBMF, tied" if name.endswith("tied") else "PoissonMF"
        ratios = np.median(seconds) / np.median(taken[base]), min(seconds) / min(taken[base])
        figures = f"{np.median(seconds):7.3f}s {min(seconds):7.3f}s"
        print(f"{name:24} {figures}  {ratios[0]:.2f} {ratios[1]:.2f} of {base}")


if __name__ == "__main__":
    main()
