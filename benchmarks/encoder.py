"""What NBFISM costs: a sweep beside one of PoissonMF, a new user's ten best items, and a catalogue of 400,000 items.

python benchmarks/encoder.py [sweep] [answer] [catalogue]

The catalogue is fitted for a few sweeps in this process, whose peak memory is printed.
"""

from __future__ import annotations

import resource
import sys
from time import perf_counter, process_time

import numpy as np

import nbmf
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.encoder import EncoderCounts
from nbmf.estimators.fism import RandomStarts
from nbmf.inference.cavi import CAVI
from nbmf.inference.encoder import EncoderMM
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Prior
from nbmf.model.likelihood import Poisson
from workload import popular_counts

MODEL = Model(Poisson(), Prior(1.0, 1.0), Prior(1.0, 1.0))
SWEEP_COMPONENTS, ROUNDS = 64, 7
ANSWER_COMPONENTS, ANSWER_ITEMS, HELD = 200, 40_000, 30
CATALOGUE = {"n_users": 200_000, "n_items": 400_000, "draws": 10_000_000}


def sweep() -> None:
    """Time sweeps of both in turns, by the clock and by the processor, on the data of peers.py."""
    matrix, K, single = popular_counts(), SWEEP_COMPONENTS, np.dtype(np.float32)
    rng, backend = np.random.RandomState(0), Cpu()
    counts = Counts.of(matrix, single)
    start = (rng.gamma(1, 1, (n, K)).astype(np.float32) for n in matrix.shape)
    poisson = begin(MODEL, counts, backend, *start, None)
    inputs = EncoderCounts.encoded(matrix, (np.log1p, np.log1p), 10.0, single, None)
    encoder = RandomStarts(nbmf.NBFISM(K, n_starts=1), MODEL, inputs).start(backend.encoder, rng, None)
    seconds = np.empty((ROUNDS, 2, 2))
    for taken in seconds:
        begun = perf_counter(), process_time()
        poisson = CAVI().step(poisson, counts, backend)
        between = perf_counter(), process_time()
        encoder = EncoderMM().step(encoder, inputs, backend.encoder)
        taken[:] = np.subtract(between, begun), np.subtract((perf_counter(), process_time()), between)
    clock, processor = np.median(seconds[1:], axis=0).T
    print(f"{matrix.nnz:,} counts, K = {K}: PoissonMF {clock[0]:.3f} s per sweep, NBFISM {clock[1]:.3f} s")
    print(f"ratio {clock[1] / clock[0]:.2f} by the clock, {processor[1] / processor[0]:.2f} by processor time")


def answer() -> None:
    """Time the ten best items of users who were not fitted."""
    matrix = popular_counts(n_users=2_000, n_items=ANSWER_ITEMS, draws=200_000)
    data = nbmf.Interactions.from_matrix(matrix)
    model = nbmf.NBFISM(ANSWER_COMPONENTS, n_starts=1, max_iter=2, tol=0, random_state=0).fit(data)
    rng = np.random.default_rng(0)
    users = [dict.fromkeys(rng.choice(ANSWER_ITEMS, HELD, replace=False).tolist(), 2) for _ in range(200)]
    seconds = []
    for user in users:
        begun = perf_counter()
        model.recommend_for(user, n=10)
        seconds.append(perf_counter() - begun)
    median, late = 1000 * np.quantile(seconds, (0.5, 0.95))
    print(f"ten best of {ANSWER_ITEMS:,} items, K = {ANSWER_COMPONENTS}: {median:.2f} ms, 95 % within {late:.2f} ms")


def catalogue() -> None:
    """Fit a catalogue for which an array of items × items would take 640 GB."""
    matrix = popular_counts(**CATALOGUE)
    print(f"{matrix.shape[0]:,} × {matrix.shape[1]:,}, {matrix.nnz:,} counts", flush=True)
    times = [perf_counter()]
    model = nbmf.NBFISM(200, n_starts=1, max_iter=5, tol=0, random_state=0)
    model.fit(nbmf.Interactions.from_matrix(matrix), callbacks=[lambda snapshot: times.append(perf_counter())])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"NBFISM, K = 200: {np.median(np.diff(times)[1:]):.2f} s per sweep, peak memory {peak:.2f} GB")


if __name__ == "__main__":
    for name in sys.argv[1:] or ("sweep", "answer", "catalogue"):
        {"sweep": sweep, "answer": answer, "catalogue": catalogue}[name]()
