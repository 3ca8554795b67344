"""What is known of one side of the factorization: a gamma posterior for each entry, or a point.

x ~ Gamma(shape, rate):   ⟨x⟩ = shape/rate,   ⟨ln x⟩ = ψ(shape) − ln rate
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Array = NDArray[np.floating[Any]]


class Factor(Protocol):
    """Rows × K entries, as the passes over the data see them."""

    @property
    def mean(self) -> Array:
        """⟨x⟩."""

    @property
    def geometric_mean(self) -> Array:
        """exp⟨ln x⟩."""

    @property
    def total(self) -> float:
        """Σ⟨x⟩ over all entries."""

    @property
    def dimensions(self) -> tuple[int, int]:
        """Rows and K."""

    def on_host(self) -> Factor:
        """Return the same with arrays in NumPy's memory: itself, unless a backend keeps its own."""


@dataclass(frozen=True)
class Point:
    """Entries known as numbers: maximum likelihood, or a start."""

    value: Array

    @property
    def mean(self) -> Array:
        """The value itself."""
        return self.value

    @property
    def geometric_mean(self) -> Array:
        """The value itself."""
        return self.value

    @property
    def total(self) -> float:
        """Σ of the values, in double precision."""
        return float(self.value.sum(dtype=np.float64))

    @property
    def dimensions(self) -> tuple[int, int]:
        """Rows and K."""
        n_rows, n_components = self.value.shape
        return n_rows, n_components

    def on_host(self) -> Point:
        """Return itself."""
        return self


@dataclass(frozen=True)
class Prior:
    """Gamma(shape, rate), the same for every entry of one side; or with a rate for each row, an array rows × 1."""

    shape: float
    rate: float | Array


@dataclass(frozen=True)
class Gamma:
    """Independent gamma posteriors, known by their moments, which a backend computes (`Backend.conditional`).

    Attributes
    ----------
    mean, geometric_mean : arrays rows × K
    exposed : array rows × K, or 1 × K where all rows share it; the rate is `prior_rate` + `exposed`
    row_means, row_logs, row_entropies : arrays of one double a row: Σ_k ⟨x⟩, Σ_k ⟨ln x⟩, Σ_k entropy
    """

    mean: Array
    geometric_mean: Array
    exposed: Array
    prior_rate: float | Array
    row_means: NDArray[np.float64]
    row_logs: NDArray[np.float64]
    row_entropies: NDArray[np.float64]

    @property
    def rate(self) -> Array:
        """Rates, rows × K or 1 × K."""
        return self.exposed + np.asarray(self.prior_rate, self.exposed.dtype)

    @property
    def shape(self) -> Array:
        """Shapes, rows × K."""
        return self.mean * self.rate

    @property
    def total(self) -> float:
        """Σ⟨x⟩ over all entries."""
        return float(self.row_means.sum())

    @property
    def dimensions(self) -> tuple[int, int]:
        """Rows and K."""
        n_rows, n_components = self.mean.shape
        return n_rows, n_components

    def on_host(self) -> Gamma:
        """Return itself."""
        return self

    def divergence(self, prior: Prior) -> float:
        """KL(q‖prior) = −entropy − ⟨ln prior⟩, summed over all entries."""
        n_rows, n_components = self.dimensions
        rate = np.broadcast_to(np.asarray(prior.rate, np.float64).ravel(), n_rows)
        log_normalizer = n_components * (prior.shape * np.log(rate) - gammaln(prior.shape))
        expected_log_prior = log_normalizer + (prior.shape - 1) * self.row_logs - rate * self.row_means
        return float(-self.row_entropies.sum() - expected_log_prior.sum())
