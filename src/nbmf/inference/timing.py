"""Predict the seconds per sweep of a fit from sweeps on a sample of its users."""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from nbmf.backends import Backend
from nbmf.backends.cost import Sizes, continued
from nbmf.backends.counts import Counts
from nbmf.inference.cavi import CAVI
from nbmf.inference.progress import Stopwatch
from nbmf.inference.run import begin
from nbmf.model import Model
from nbmf.model.factors import Prior
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
    rng, counts = np.random.RandomState(0), Counts.of(matrix, np.dtype(sizes.dtype))
    W, H = (rng.gamma(1, 1, (n, sizes.n_components)).astype(sizes.dtype) for n in matrix.shape)
    labels = rng.randint(sizes.n_clusters, size=sizes.n_items).astype(np.int32)  # all clusterings cost the same
    ties = Ties(labels, sizes.n_clusters) if sizes.exposure == "tied" else None
    model = Model(likelihood, Prior(1, 1), Prior(1, 1))
    states = [begin(model, counts, backend, W, H, ties)]

    def sweep() -> float:
        watch = Stopwatch()
        states.append(CAVI().step(states.pop(), counts, backend))
        return watch.seconds

    return sweep
