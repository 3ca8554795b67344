"""One sweep of NBMF beside one of the packages people use instead: same data, K and threads, in one run.

python benchmarks/peers.py           (extra `bench`: hpfrec and implicit)
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numba
import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from measure import on_matrix, timed
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.estimators.nbmf import NBMF
from nbmf.inference.cavi import CAVI
from nbmf.inference.run import State, begin, revive
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson
from nbmf.model.ties import Ties, tie_items
from workload import N_CLUSTERS, N_COMPONENTS, popular_counts

ROUNDS, SWEEPS = 4, 8


class Ours:
    """CAVI on the CPU backend, float32, a few sweeps after the start."""

    def __init__(self, matrix: sp.csr_array, likelihood: Likelihood, *, tied: bool) -> None:
        """Start, sweep three times, and tie the items by the factors reached."""
        rng = np.random.RandomState(0)
        self.counts, self.backend = Counts.of(matrix, np.dtype(np.float32)), Cpu()
        W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in matrix.shape)
        model = Model(likelihood, Prior(1.0, 1.0), Prior(1.0, 1.0))
        ties: Ties | None = tie_items(H, N_CLUSTERS, rng) if tied else None
        self.state: State = begin(model, self.counts, self.backend, W, H, ties)
        self.sweep(3)
        if tied:
            self.tying, ties = timed(lambda: tie_items(self.state.items.mean, N_CLUSTERS, rng))
            self.state = revive(replace(self.state, ties=ties), self.counts, self.backend, sum_users=True)

    def sweep(self, times: int) -> list[float]:
        """Return the seconds of each of some sweeps, each with its objective."""
        taken = []
        for _ in range(times):
            sweep, self.state = timed(lambda: CAVI().step(self.state, self.counts, self.backend))
            taken.append(sweep)
        return taken


def hpfrec_sweep(matrix: sp.csr_array, threads: int) -> float:
    """Return the seconds of one iteration: a fit of three minus a fit of one, halved."""
    import hpfrec
    import pandas as pd

    coo = matrix.tocoo()
    table = pd.DataFrame({"UserId": coo.row, "ItemId": coo.col, "Count": coo.data})

    def fit(iterations: int) -> float:
        model = hpfrec.HPF(
            k=N_COMPONENTS, ncores=threads, maxiter=iterations, stop_crit="maxiter", reindex=False, verbose=False,
            random_seed=0, keep_data=False, check_every=iterations, keep_all_objs=False, use_float=True,
        )  # fmt: skip
        own = table.copy()
        return timed(lambda: model.fit(own))[0]

    return (fit(3) - fit(1)) / 2


def implicit_sweep(matrix: sp.csr_array, threads: int) -> float:
    """Return the seconds of one ALS iteration (conjugate gradient): a fit of four minus a fit of one, over three."""
    from implicit.als import AlternatingLeastSquares

    csr = sp.csr_matrix(matrix)

    def fit(iterations: int) -> float:
        model = AlternatingLeastSquares(
            factors=N_COMPONENTS, iterations=iterations, num_threads=threads, use_gpu=False, random_state=0
        )
        with threadpool_limits(1, user_api="blas"):
            return timed(lambda: model.fit(csr, show_progress=False))[0]

    return (fit(4) - fit(1)) / 3


def recommend_seconds(matrix: sp.csr_array, threads: int) -> tuple[float, float]:
    """Return the seconds of everybody's top 10 without seen items, ours and implicit's, from the same factors.

    The best of three of each, in turns, since the machine may be shared.
    """
    from implicit.cpu.als import AlternatingLeastSquares

    rng = np.random.default_rng(0)
    W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in matrix.shape)
    ours = NBMF(N_COMPONENTS, init=(W, H), max_iter=1, exposure="tied", random_state=0, n_threads=threads).fit(matrix)
    peer = AlternatingLeastSquares(factors=N_COMPONENTS, num_threads=threads)
    peer.user_factors, peer.item_factors = ours.user_factors_, ours.item_factors_
    everybody, seen = np.arange(matrix.shape[0]), sp.csr_matrix(matrix)
    found: dict[str, list[float]] = {"ours": [], "implicit's": []}
    for _ in range(3):
        taken, best = timed(lambda: ours.recommend(n=10))
        found["ours"].append(taken)
        with threadpool_limits(1, user_api="blas"):  # its own threads are enough: without this it takes twice as long
            taken, (items, _) = timed(lambda: peer.recommend(everybody, seen, N=10))
            found["implicit's"].append(taken)
    differ = np.mean(np.sort(best.items, axis=1) != np.sort(items, axis=1))
    if differ > 1e-3:  # scores that agree to rounding may change places
        raise ValueError(f"the two recommend different items: {differ:.2%} of them")
    return min(found["ours"]), min(found["implicit's"])


MEMORY = """
import sys, scipy.sparse, nbmf
from measure import memory
nbmf.NBMF
imported = memory('VmRSS')
matrix = scipy.sparse.csr_array(scipy.sparse.load_npz(sys.argv[1]))
nbmf.NBMF(50, exposure='tied', max_iter=5, tol=0, random_state=0).fit(matrix)
print(memory('VmHWM') - imported)
"""


def peak_memory(matrix: sp.csr_array) -> int:
    """Return the bytes above the imported package that reading the matrix and a tied fit take at their peak."""
    return int(on_matrix(MEMORY, matrix))


def main() -> None:
    """Run all packages in turns and compare medians."""
    warnings.simplefilter("ignore")
    threads = numba.get_num_threads()
    matrix = popular_counts()
    print(
        f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} non-zeros, popularity ~ rank^-0.8, "
        f"K = {N_COMPONENTS}, {threads} threads"
    )
    nb, poisson = Ours(matrix, NegativeBinomial(1.0), tied=True), Ours(matrix, Poisson(), tied=False)
    seconds: dict[str, list[float]] = {"NBMF": [], "PoissonMF": [], "implicit ALS": [], "hpfrec": []}
    for _ in range(ROUNDS):
        seconds["NBMF"] += nb.sweep(SWEEPS)  # one after another, as in a fit
        seconds["PoissonMF"] += poisson.sweep(SWEEPS)
        seconds["implicit ALS"].append(implicit_sweep(matrix, threads))
    seconds["hpfrec"].append(hpfrec_sweep(matrix, threads))
    seconds["NBMF"] += nb.sweep(SWEEPS)
    median = {name: float(np.median(values)) for name, values in seconds.items()}
    for name, value in median.items():
        print(f"  {name:13} {value:7.3f} s per sweep   NBMF takes {median['NBMF'] / value:.3f} of it")
    ours, implicits = recommend_seconds(matrix, threads)
    print(
        f"  top 10 of everybody, seen items left out: {ours:.2f} s; implicit {implicits:.2f} s ({ours / implicits:.2f})"
    )
    print(f"  (refreshing the ties, six times per fit, takes {nb.tying:.2f} s)")
    print(f"  peak memory of a tied fit above the imported package: {peak_memory(matrix) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
