"""Predict the seconds per sweep of a fit from sweeps on a sample of its users."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from nbmf.backends import Backend, encoder_of
from nbmf.backends.cost import Sizes, continued
from nbmf.backends.counts import Counts
from nbmf.backends.encoder import EncoderCounts
from nbmf.inference.cavi import CAVI
from nbmf.inference.encoder import EncoderMM, joined
from nbmf.inference.progress import Stopwatch
from nbmf.inference.run import Algorithm, State, begin, observe
from nbmf.model import Model
from nbmf.model.factors import Point, Prior
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson
from nbmf.model.ties import Ties

SAMPLED_COUNTS = 2_000_000
SAMPLED_CELLS = 50_000_000  # with exact exposures, whose cost is in the cells
FEWER = 4  # the larger sample has this many times the users of the smaller one
LEAST_SWEEPS, MOST_SWEEPS, TIMED_SECONDS = 4, 40, 3.0


def seconds_per_sweep(
    matrix: sp.csr_array, sizes: Sizes, make: Callable[[], Backend], likelihood: Likelihood | None = None
) -> float:
    """Time sweeps on two samples of the users and extend the line through both to all users.

    Without a likelihood it is the negative binomial one, or Poisson's if the sizes have no exposure.
    """
    likelihood = likelihood or (Poisson() if sizes.exposure is None else NegativeBinomial(1.0))
    n_users, n_items = matrix.shape
    wanted = SAMPLED_CELLS / n_items if sizes.exposure == "exact" else n_users * SAMPLED_COUNTS / matrix.nnz
    step = max(1, int(n_users / wanted))
    sample = matrix[::step]  # spread over all users, as early users may differ from late ones
    if step == 1:
        return _timed([sample], sizes, make, likelihood)[0]
    smaller = sample[::FEWER]
    of_smaller, of_sample = _timed([smaller, sample], sizes, make, likelihood)
    return continued((smaller.shape[0], of_smaller), (sample.shape[0], of_sample), n_users)


def _timed(
    samples: list[sp.csr_array], sizes: Sizes, make: Callable[[], Backend], likelihood: Likelihood
) -> list[float]:
    """Return the seconds of the fastest sweep on each sample, since other work on the machine only adds to them."""
    # a backend each: a device keeps the counts of one
    sweeps = [_sweep(sample, sizes, make(), likelihood) for sample in samples]
    times = [[sweep() for sweep in sweeps]]  # never the fastest: compiles the kernels and lays out the counts
    whole = Stopwatch()
    while len(times) <= LEAST_SWEEPS or (whole.seconds < TIMED_SECONDS and len(times) <= MOST_SWEEPS):
        times.append([sweep() for sweep in sweeps])
    return [min(of_sample) for of_sample in zip(*times, strict=True)]


def _sweep(matrix: sp.csr_array, sizes: Sizes, backend: Backend, likelihood: Likelihood) -> Callable[[], float]:
    """Return a function that does the next sweep on a sample, and returns its seconds."""
    rng, model = np.random.RandomState(0), Model(likelihood, Prior(1, 1), Prior(1, 1))
    labels = rng.randint(sizes.n_clusters, size=sizes.n_items).astype(np.int32)  # all clusterings cost the same
    ties = Ties(labels, sizes.n_clusters) if sizes.exposure == "tied" else None
    if sizes.is_encoder:
        return _steps(EncoderMM(), *_encoder(matrix, sizes, rng, model, ties, encoder_of(backend)))
    counts = Counts.of(matrix, np.dtype(sizes.dtype))
    W, H = (rng.gamma(1, 1, (n, sizes.n_components)).astype(sizes.dtype) for n in matrix.shape)
    return _steps(CAVI(), begin(model, counts, backend, W, H, ties), counts, backend)


def _encoder(
    matrix: sp.csr_array, sizes: Sizes, rng: np.random.RandomState, model: Model, ties: Ties | None, backend: Any
) -> tuple[State, Counts, Backend]:
    """Return random starts of an encoder, with logarithms in and out."""
    n_items, K, dtype = matrix.shape[1], sizes.n_components, np.dtype(sizes.dtype)
    counts = EncoderCounts.encoded(matrix, (np.log1p, np.log1p), 1.0, dtype, None)
    starts: list[Any] = [
        tuple(Point(rng.gamma(1, 1, (n_items, width)).astype(dtype)) for width in (K, K + 1))
        for _ in range(sizes.n_starts or 1)
    ]
    return observe(model, counts, backend, *joined(starts, counts), ties, 0.0), counts, backend


def _steps(algorithm: Algorithm, state: State, counts: Counts, backend: Backend) -> Callable[[], float]:
    states = [state]
    del state  # a sweep lets go of what it is done with

    def sweep() -> float:
        watch = Stopwatch()
        states.append(algorithm.step(states.pop(), counts, backend))
        return watch.seconds

    return sweep
