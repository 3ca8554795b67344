"""The likelihoods of comparison models, on the seam of likelihood.py: y ~ Poisson(aμ) with two other laws of a.

    random graph         a ~ Bernoulli(π_ui),  π_ui = min(1, 2 d_u d_i / n)       Paquet and Koenigstein (2013)
    Poisson exposures    a ~ Poisson(Λ_ui)                                        Basbug and Engelhardt (2017)

d_u and d_i are the degrees of a user and an item, the numbers of their counts, and n is the number of all counts. In a
random bipartite graph with these degrees the two are linked with probability d_u d_i / n; twice that says that half of
what users come across they do not consume.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainc, gammaincc, gammaln, wrightomega

from nbmf.model.family import BernoulliExposure, where_seen
from nbmf.model.likelihood import Array, Likelihood, Parameter
from nbmf.model.series import poisson_average

SUMMED_AT_A_TIME = 8192  # cells whose exposures are summed together
WIDE = 8.0  # standard deviation of a from which not every a is summed
REACH = 10.0  # standard deviations to either side that a sum covers


@dataclass(frozen=True)
class RandomGraphPoisson(BernoulliExposure, Likelihood):
    """Zero-inflated Poisson counts whose exposures are the links of a random graph with the degrees of the data.

    The degrees enter by their product, so a transposed likelihood is one with the two arrays transposed.

    Parameters
    ----------
    user_degree : float or array
        d_u, users × 1, at least 1. New users have the typical degree, the geometric mean.
    item_degree : float or array
        d_i, 1 × items, at least 1.
    n_links : float
        n, the number of counts.

    Examples
    --------
    >>> likelihood = RandomGraphPoisson.of(sp.csr_array([[3, 1, 0, 0], [0, 2, 0, 1], [0, 0, 0, 5]]))
    >>> likelihood.probability  # 2 d_u d_i / 5
    array([[0.8, 1. , 0.8, 1. ],
           [0.8, 1. , 0.8, 1. ],
           [0.4, 0.8, 0.4, 0.8]])
    """

    kind = "random_graph_poisson"
    has_linear_mean = False
    user_degree: Parameter = 1.0
    item_degree: Parameter = 1.0
    n_links: float = 4.0

    def __post_init__(self) -> None:
        _check_positive(self)

    @classmethod
    def of(cls, counts: sp.csr_array) -> "RandomGraphPoisson":
        """Return the likelihood with the degrees of the counts; a user or item without counts is given degree 1."""
        users, items = np.diff(counts.indptr), np.bincount(counts.indices, minlength=counts.shape[1])
        degrees = [np.maximum(found, 1).astype(np.float64) for found in (users, items)]
        return cls(degrees[0][:, None], degrees[1][None, :], float(max(counts.nnz, 1)))

    @property
    def probability(self) -> Any:
        """π of being exposed, from 0 to 1 inclusive."""
        return np.minimum(2 * np.asarray(self.user_degree) * self.item_degree / self.n_links, 1.0)


@dataclass(frozen=True)
class PoissonExposure(Likelihood):
    """Exposures that are whole numbers: a ~ Poisson(Λ), y ~ Poisson(aμ), so y follows Neyman's law of type A.

    With z = Λe^(−μ), p(y) = e^(−Λ) μʸ/y! Σ_a zᵃ aʸ/a!, which is e^(z−Λ) if y is 0.

    Parameters
    ----------
    mean_exposure : float or array
        Λ: one number, or an array that broadcasts with the counts.

    Examples
    --------
    >>> PoissonExposure(2.0).exposure(count=[0, 1, 30], intensity=1.0).round(2)
    array([ 0.74,  1.74, 11.17])
    """

    kind = "poisson_exposure"
    mean_exposure: Parameter = 1.0

    def __post_init__(self) -> None:
        _check_positive(self)

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return z for a zero and Σ_a a zᵃaʸ/a! / Σ_a zᵃaʸ/a! for a positive count."""
        y, log_z = self._terms(count, intensity)
        found, seen = np.array(np.exp(log_z)), y > 0
        found[seen] = sum_exposures(y[seen], log_z[seen])[1]
        return found

    def exposure_sd(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return √(E[a² | y] − E[a | y]²); E[a² | y] is E[a | y] E[a | y+1], as y+1 weighs each a once more."""
        here, next_one = (self.exposure(np.asarray(count) + n, intensity) for n in (0, 1))
        return np.asarray(np.sqrt(np.maximum(here * (next_one - here), 0.0)))

    def log_base(self, count: ArrayLike) -> Array:
        """Return −ln y!."""
        y = np.asarray(count, np.float64)
        return where_seen(y, lambda seen: -gammaln(y[seen] + 1.0))

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return −Λ − ln y! + ln Σ_a zᵃaʸ/a!, which is z − Λ = Λ(e^(−μ) − 1) for a zero."""
        y, log_z = self._terms(count, intensity)
        Λ, seen = np.broadcast_to(np.asarray(self.mean_exposure), y.shape), y > 0
        found = np.array(Λ * np.expm1(-np.asarray(intensity)))
        found[seen] = sum_exposures(y[seen], log_z[seen])[0] - Λ[seen]
        return np.asarray(self.log_base(y) + found)

    def _terms(self, count: ArrayLike, intensity: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return y and ln z, broadcast."""
        log_z = np.log(self.mean_exposure) - np.asarray(intensity, np.float64)
        y, log_z = np.broadcast_arrays(np.asarray(count, np.float64), log_z)
        return y, log_z

    def mean(self, intensity: Array) -> Array:
        """Return Λμ."""
        return np.asarray(self.mean_exposure * intensity)

    def variance(self, intensity: Array) -> Array:
        """Return Λμ(1 + μ)."""
        return np.asarray(self.mean(intensity) * (1 + intensity))

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ)."""
        return self._tail(count, intensity, gammainc)

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        return self._tail(count, intensity, gammaincc)

    def _tail(self, count: ArrayLike, intensity: ArrayLike, function: Callable[..., Any]) -> Array:
        """Average a tail of Poisson(aμ), an incomplete gamma function, over a ~ Poisson(Λ)."""
        return poisson_average(lambda a, c, μ: function(c + 1, a * μ), self.mean_exposure, count, intensity)


def _check_positive(likelihood: Likelihood) -> None:
    for name, value in likelihood.parameters.items():
        if isinstance(value, bool) or not np.all((np.asarray(value) > 0) & np.isfinite(value)):
            raise ValueError(f"{name} is {value!r}; it must be positive and finite")


def sum_exposures(count: NDArray[Any], log_z: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ln Σ_a zᵃaʸ/a! over a ≥ 1 and the mean of a under its terms, for positive counts, entry by entry.

    The terms are largest near a = y/x with x + ln x = ln(y/z), and fall off like a normal density of deviation
    a/√(a + y) or faster. Where that is large, terms some steps apart sum up to what all of them do.
    """
    mode = count / np.asarray(wrightomega(np.log(count) - log_z))
    deviation = mode / np.sqrt(mode + count)
    centre, step = np.maximum(np.rint(mode), 1.0), np.maximum(deviation / WIDE, 1.0)
    log_sum, mean = np.empty(len(count)), np.empty(len(count))
    order = np.argsort(deviation, kind="stable")  # so that cells with few terms are summed together
    for start in range(0, len(order), SUMMED_AT_A_TIME):
        some = order[start : start + SUMMED_AT_A_TIME]
        reach = int(REACH * min(deviation[some[-1]], WIDE)) + 8
        below = min(reach, int(centre[some].max() - 1))  # there is no a below 1
        a = centre[some, None] + np.arange(-below, reach + 1) * step[some, None]
        there = a >= 1
        a = np.where(there, a, 1.0)
        # relative to the term at the centre, so that large counts do not cancel
        log_term = (a - centre[some, None]) * log_z[some, None] - (gammaln(a + 1) - gammaln(centre[some, None] + 1))
        log_term = np.where(there, log_term + count[some, None] * np.log(a / centre[some, None]), -np.inf)
        largest = log_term.max(axis=1)
        weights = np.exp(log_term - largest[:, None])
        total = weights.sum(axis=1)
        mean[some] = (weights * a).sum(axis=1) / total
        at_centre = centre[some] * log_z[some] - gammaln(centre[some] + 1) + count[some] * np.log(centre[some])
        log_sum[some] = at_centre + largest + np.log(step[some] * total)
    return log_sum, mean
