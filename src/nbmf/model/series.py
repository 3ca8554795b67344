"""Numerics of the likelihoods: differences of log-gamma and digamma functions, and averages over a Poisson number."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

from nbmf.model.likelihood import Array

STIRLING = 12.0  # above this, differences of log-gammas come from Stirling's series, because subtracting would cancel
NODES = np.arange(-32.0, 33.0)  # where a sum over events is sampled: eight standard deviations to either side
MOST_EVENTS = 4096  # mean number up to which an average takes every number of events
AVERAGED_AT_A_TIME = 512  # cells


def log_gamma_rise(start: NDArray[Any], rise: NDArray[Any]) -> NDArray[Any]:
    """Return lnΓ(start + rise) − lnΓ(start); large ones would cancel, so they are taken from Stirling's series."""
    large = np.maximum(start, STIRLING)
    end = large + rise
    a, b = 1 / end, 1 / large
    series = (a - b) / 12 - (a**3 - b**3) / 360 + (a**5 - b**5) / 1260 - (a**7 - b**7) / 1680 + (a**9 - b**9) / 1188
    by_series = (large - 0.5) * np.log1p(rise / large) + rise * np.log(end) - rise + series
    return np.asarray(np.where(start < STIRLING, gammaln(start + rise) - gammaln(start), by_series))


def digamma_rise(y: NDArray[Any], r: NDArray[Any]) -> NDArray[Any]:
    """Return r(ψ(y+r) − ψ(r)) for large r, term by term of ψ(x) = ln x − 1/(2x) − 1/(12x²) + 1/(120x⁴) − 1/(252x⁶)."""
    a, b = 1 / r, 1 / (r + y)
    series = (a - b) / 2 + (a**2 - b**2) / 12 - (a**4 - b**4) / 120 + (a**6 - b**6) / 252 - (a**8 - b**8) / 240
    return np.asarray(r * (np.log1p(y / r) + series))


def poisson_average(function: Callable[..., NDArray[Any]], mean: ArrayLike, *others: ArrayLike) -> Array:
    """Return Σ_n Poisson(n | mean) function(n, *others) for each cell.

    Where the mean is large, 65 numbers evenly spaced around it give the same average as all of them.

    >>> poisson_average(lambda n: n**2, [2.0, 1e6]) / [6.0, 1e12 + 1e6]
    array([1., 1.])
    """
    cells = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (mean, *others)))
    μ, *rest = (each.ravel() for each in cells)
    order, found = np.argsort(μ, kind="stable"), np.empty(len(μ))  # so that cells with few events are averaged together
    n_few = int(np.searchsorted(μ[order], MOST_EVENTS, side="right"))
    starts = [*range(0, n_few, AVERAGED_AT_A_TIME), *range(n_few, len(μ), AVERAGED_AT_A_TIME)]
    for start, stop in pairwise([*starts, len(μ)]):
        some = order[start:stop]
        m = μ[some, None]
        n = np.rint(m) + 1.5 * NODES * np.rint(np.sqrt(m) / 4)
        if start < n_few:
            n = np.arange(m[-1, 0] + 12 * np.sqrt(m[-1, 0]) + 30)[None, :]
        weights = np.exp(xlogy(n, m) - gammaln(n + 1) - m)
        found[some] = (weights * function(n, *(each[some, None] for each in rest))).sum(axis=1) / weights.sum(axis=1)
    return found.reshape(cells[0].shape)
