"""Seconds and memory of evaluating and recommending, compared with a bare matrix product and np.argpartition.

python benchmarks/evaluation.py      (takes about a minute; the bare product is timed on a tenth of the users)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import nbmf
from measure import on_matrix, timed
from nbmf.estimators.ranking import top
from nbmf.estimators.scores import FactorScores
from nbmf.evaluation import log_likelihood
from workload import N_COMPONENTS, popular_counts

BLOCK, LONGEST = 128, 20  # users of a product; items of a list: the longest that evaluate makes by default


def factors(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return random gamma factors, which rank test items anywhere: the most expensive case."""
    rng = np.random.default_rng(0)
    W, H = (rng.gamma(1, 1, (n, N_COMPONENTS)).astype(np.float32) for n in shape)
    return W, H


def bare(W: np.ndarray, H: np.ndarray, threads: int, *, partition: bool) -> None:
    """Score blocks of users, one BLAS thread each, and find each user's best items, unsorted and with seen items."""
    transposed = np.ascontiguousarray(H.T)

    def work(first: int) -> None:
        score = np.empty((BLOCK, len(H)), np.float32)
        for start in range(first * BLOCK, len(W), threads * BLOCK):
            users = W[start : start + BLOCK]
            np.matmul(users, transposed, out=score[: len(users)])
            if partition:
                np.argpartition(score[: len(users)], len(H) - LONGEST, axis=1)[:, -LONGEST:].copy()

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


MEMORY = """
import sys, scipy.sparse, nbmf, nbmf.evaluation
from evaluation import factors
from measure import memory
imported = memory('VmRSS')
data = nbmf.Interactions.from_matrix(scipy.sparse.load_npz(sys.argv[1]))
train, test = data.split(0.2, seed=0)
del data
model, before = factors(train.matrix.shape), memory('VmHWM')
nbmf.evaluate(model, train, test)
print(memory('VmHWM'), memory('VmHWM') - imported, before)
"""


def peak_memory(matrix: sp.csr_array) -> list[int]:
    """Return the peak bytes of a fresh process: in all, above the imported package, and before evaluate."""
    return list(map(int, on_matrix(MEMORY, matrix).split()))


def main() -> None:
    """Time everything in one run."""
    threads, matrix = numba.get_num_threads(), popular_counts()
    train, test = nbmf.Interactions.from_matrix(matrix).split(0.2, seed=0)
    W, H = factors(matrix.shape)
    few = nbmf.Interactions.from_matrix(train.matrix[:300]), nbmf.Interactions.from_matrix(test.matrix[:300])
    nbmf.evaluate((W[:300], H), *few)  # compile
    log_likelihood((W[:300], H), *few, concentration=1.0)
    tenth = len(W) // 10
    print(f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {test.nnz:,} test items, K = {N_COMPONENTS}, {threads} threads")
    product = 10 * timed(lambda: bare(W[:tenth], H, threads, partition=False))[0]
    partition = 10 * timed(lambda: bare(W[:tenth], H, threads, partition=True))[0]
    jobs = {
        "evaluate, all metrics and intervals": lambda: nbmf.evaluate((W, H), train, test),
        "evaluate without cut-offs": lambda: nbmf.evaluate((W, H), train, test, at=()),
        "top 10 of everybody, seen items left out": lambda: top(FactorScores(W, H), 10, exclude=train.matrix),
        "log_likelihood": lambda: log_likelihood((W, H), train, test, concentration=1.0),
    }
    ours = {name: timed(job)[0] for name, job in jobs.items()}
    print(f"  {'bare product (from a tenth of the users)':42} {product:7.2f} s")
    print(f"  {'with np.argpartition, ' + str(LONGEST) + ' best (from a tenth)':42} {partition:7.2f} s")
    for name, value in ours.items():
        print(f"  {name:42} {value:7.2f} s   {value / product:5.2f} of the product, {value / partition:5.2f} of both")
    peak, above, before = peak_memory(matrix)
    print(f"  peak memory of a process that splits and evaluates: {peak / 1e6:.0f} MB; {above / 1e6:.0f} MB above the")
    print(f"  imported package; {before / 1e6:.0f} MB at the peak of splitting, before evaluate")


if __name__ == "__main__":
    main()
