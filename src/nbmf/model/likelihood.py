"""The law of a count given its intensity, told through the exposure a that multiplies it.

    y ~ Poisson(a μ),   a ~ p(a)

Inference needs two functions of p(a): what the exposure is thought to be once the count is known, and how probable
the count is with the exposure integrated out,

    exposure(y, μ)     = E[a | y, μ] = −∂ log_evidence(y, μ)/∂μ
    log_evidence(y, μ) = ln ∫ aʸ e^(−aμ) p(a) da − ln y!

so that ln p(y | μ) = y ln μ + log_evidence(y, μ). Factorials are Γ functions: y may be any real number from 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, digamma, gammaln, polygamma, xlogy

Array = NDArray[np.floating[Any]]
Concentration = float | Array
"""One number for all cells, or an array users × 1 or 1 × items."""


class Likelihood(Protocol):
    """What inference asks of the law of the counts."""

    @property
    def concentration(self) -> Concentration:
        """α: large is close to Poisson, infinity is Poisson."""

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> Likelihood:
        """Return the law of the cells in these rows and columns, one after another."""

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Mean of a given the count, E[a | y, μ]."""

    def log_base(self, count: ArrayLike) -> Array:
        """The part of `log_evidence` that the intensity does not enter."""

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Evaluate ln ∫ aʸ e^(−aμ) p(a) da − ln y!."""


@dataclass(frozen=True)
class Poisson:
    """Exposure 1 for everybody: y ~ Poisson(μ)."""

    @property
    def concentration(self) -> float:
        """Infinite: no over-dispersion."""
        return math.inf

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> Poisson:
        """Return itself: it is the same in every cell."""
        return self

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return 1, whatever the count."""
        return np.ones(np.broadcast(count, intensity).shape)

    def log_base(self, count: ArrayLike) -> Array:
        """Return −ln y!."""
        return np.asarray(-gammaln(np.asarray(count) + 1.0))

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return −μ − ln y!."""
        return np.asarray(self.log_base(count) - np.asarray(intensity))


@dataclass(frozen=True)
class NegativeBinomial:
    """Exposure a ~ Gamma(α, α), so y ~ NB(α, μ/(μ+α)): mean μ, variance μ(1 + μ/α). Eq. (NB).

    Examples
    --------
    >>> law = NegativeBinomial(concentration=1.0)
    >>> law.exposure(count=[0, 2, 20], intensity=2.0).round(2)  # under-exposed, as expected, over-exposed
    array([0.33, 1.  , 7.  ])
    """

    concentration: Concentration = 1.0

    def __post_init__(self) -> None:
        """Refuse an α for which there is no gamma law."""
        α = self.concentration
        if not isinstance(α, Real | np.ndarray) or not np.all((np.asarray(α) > 1e-30) & (np.asarray(α) < 1e30)):
            raise ValueError(
                f"concentration is {self.concentration!r}; it must be a positive number (large is close to Poisson)"
            )

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> NegativeBinomial:
        """Return the law of the cells in these rows and columns, one after another."""
        α = self.concentration
        if not isinstance(α, np.ndarray):
            return self
        return NegativeBinomial(α[rows if len(α) > 1 else 0, columns if α.shape[1] > 1 else 0])

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return (α + y)/(α + μ), the mean of q(a) in Eq. (update_a)."""
        return np.asarray((self.concentration + np.asarray(count)) / (self.concentration + np.asarray(intensity)))

    def log_base(self, count: ArrayLike) -> Array:
        """Return lnΓ(α+y) − lnΓ(α) − ln y!; through the beta function, as the difference cancels for large y."""
        zero = np.asarray(count) == 0
        positive = np.where(zero, 1.0, count)
        return np.where(zero, 0.0, -np.log(positive) - betaln(self.concentration, positive))

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return lnΓ(α+y) − lnΓ(α) − ln y! − y ln(α+μ) − α ln(1 + μ/α)."""
        α, μ = self.concentration, np.asarray(intensity)
        return np.asarray(self.log_base(count) - xlogy(count, α + μ) - α * np.log1p(μ / α))

    def slope(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ∂/∂α of `log_evidence`: ψ(α+y) − ψ(α) − ln(1 + μ/α) + (μ−y)/(α+μ)."""
        α, y, μ = self.concentration, np.asarray(count), np.asarray(intensity)
        return np.asarray(digamma(α + y) - digamma(α) - np.log1p(μ / α) + (μ - y) / (α + μ))

    def curvature(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ∂²/∂α² of `log_evidence`: ψ'(α+y) − ψ'(α) + μ/(α(α+μ)) − (μ−y)/(α+μ)²."""
        α, y, μ = self.concentration, np.asarray(count), np.asarray(intensity)
        of_counts = polygamma(1, α + y) - polygamma(1, α)
        return np.asarray(of_counts + μ / (α * (α + μ)) - (μ - y) / (α + μ) ** 2)


def log_probability(likelihood: Likelihood, count: ArrayLike, intensity: ArrayLike) -> Array:
    """Return ln p(y | μ), cell by cell."""
    return np.asarray(xlogy(count, intensity) + likelihood.log_evidence(count, intensity))


def divergence(concentration: float, count: ArrayLike, intensity: ArrayLike) -> Array:
    """Return d_α(y|μ) of the paper's §3.1: −ln p(y | μ) less its smallest value over μ; d_∞ is Kullback-Leibler's.

    >>> float(divergence(1.0, 3.0, 3.0)), float(divergence(1.0, 0.0, 1.0)) > 0
    (0.0, True)
    """
    y, μ = np.asarray(count, float), np.asarray(intensity, float)
    if concentration == math.inf:
        return np.asarray(xlogy(y, y / μ) - y + μ)
    # (α+y) ln((α+y)/(α+μ)) keeps its small differences from 0 as log1p
    return np.asarray(xlogy(y, y / μ) - (concentration + y) * np.log1p((y - μ) / (concentration + μ)))
