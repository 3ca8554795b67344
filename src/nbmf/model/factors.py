"""What is known of one side of the factorization: a gamma posterior for each entry, or a point.

x ~ Gamma(shape, rate):   ⟨x⟩ = shape/rate,   ⟨ln x⟩ = ψ(shape) − ln rate

Both kinds have a `mean` ⟨x⟩ and a `geometric_mean` exp⟨ln x⟩, rows × K, and answer the same questions: sums by row and
in total, the `parameters` that an algorithm updates, the `divergence` from a prior and the part of a mean that comes
from it, draws of some rows (`sampler`), and copies with rows appended or replaced. A backend may keep its own, whose
arrays are fetched when they are asked for; `on_host()` returns one in NumPy's memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Array = NDArray[np.floating[Any]]


def largest(dtype: np.dtype[Any]) -> float:
    """Return the largest value that an entry of a factor may have: sums of products of two of them are finite."""
    return math.exp(0.45 * math.log(np.finfo(dtype).max))


@dataclass(frozen=True)
class Prior:
    """Gamma(shape, rate) on every entry of one side; a rate per row is an array rows × 1."""

    shape: float
    rate: float | Array

    @property
    def per_row(self) -> bool:
        """Whether each row has a rate of its own."""
        return isinstance(self.rate, np.ndarray)

    def extended(self, new: "Factor") -> "Prior":
        """Return the prior with the rates of appended rows, where rows have their own."""
        return Prior(self.shape, np.vstack([self.rate, new.prior_rate])) if self.per_row else self  # type: ignore[list-item]

    def with_rows(self, rows: NDArray[np.intp], new: "Factor") -> "Prior":
        """Return the prior with the rates of some rows replaced, where rows have their own."""
        if not self.per_row:
            return self
        rates = np.array(self.rate)
        rates[rows] = new.prior_rate
        return replace(self, rate=rates)


@dataclass(frozen=True)
class Point:
    """Entries that are plain numbers: maximum likelihood, or a start."""

    kind: ClassVar[str] = "point"
    is_posterior: ClassVar[bool] = False
    value: Array

    @property
    def mean(self) -> Array:
        return self.value

    @property
    def geometric_mean(self) -> Array:
        return self.value

    @property
    def total(self) -> float:
        return float(self.value.sum(dtype=np.float64))

    @property
    def row_means(self) -> NDArray[np.float64]:
        return np.asarray(self.mean.sum(axis=1, dtype=np.float64))

    @property
    def dimensions(self) -> tuple[int, int]:
        n_rows, n_components = self.value.shape
        return n_rows, n_components

    @property
    def prior_rate(self) -> None:
        return

    @property
    def parameters(self) -> tuple[Array, ...]:
        return (self.value,)

    def divergence(self, prior: Prior) -> float:
        return 0.0

    def prior_part(self, prior: Prior, row: int) -> Array:
        return np.zeros(self.dimensions[1])

    def sampler(self, rows: NDArray[np.intp]) -> Callable[[np.random.RandomState], Array]:
        raise ValueError(
            "maximum likelihood and averages of starts have no posterior to draw from; use factors='mean' instead"
        )

    def append(self, new: "Factor") -> "Point":
        return Point(np.concatenate((self.mean, new.mean)))

    def take(self, rows: NDArray[np.intp]) -> "Point":
        return Point(self.mean[rows])

    def replace_rows(self, rows: NDArray[np.intp], new: "Factor") -> "Point":
        values = self.mean.copy()
        values[rows] = new.mean
        return Point(values)

    def beside(self, others: "Sequence[Point]") -> "Point":
        return Point(np.hstack([point.mean for point in (self, *others)]))

    def encoding(self, n_starts: int, inputs: Any) -> "Encoding":
        return Encoding(self.value, n_starts, inputs)

    def on_host(self) -> "Point":
        return self


@dataclass(frozen=True)
class Encoding(Point):
    """Users as functions of what they have, W = X V: `value` is V, items × RK, of R starts side by side.

    `inputs` is X, users × items; without it there is no W. The users' rows of each start end with a 1, which meets the
    intercepts of the items, and are divided by R: the products are the mean over the starts.
    """

    kind: ClassVar[str] = "encoding"
    n_starts: int = 1
    inputs: Any = None

    @cached_property
    def mean(self) -> Array:
        """W, users × R(K+1)."""
        return encoded(self.inputs, self.value, self.n_starts)


def encoded(inputs: Any, value: Array, n_starts: int) -> Array:
    """Return the users' rows that rows of inputs make: [X V | 1] of each start, divided by their number."""
    n_components = value.shape[1] // n_starts
    users = np.ones((inputs.shape[0], n_starts, n_components + 1), value.dtype)
    users[..., :-1] = np.asarray(inputs @ value).reshape(-1, n_starts, n_components)
    return (users / value.dtype.type(n_starts)).reshape(len(users), -1)


@dataclass(frozen=True)
class Gamma:
    """Independent gamma posteriors, known by their moments, which a backend computes (`Backend.conditional`).

    Attributes
    ----------
    mean, geometric_mean : array
        ⟨x⟩ and exp⟨ln x⟩, rows × K.
    exposed : array
        Rows × K, or 1 × K where all rows share it. The rate is `prior_rate` + `exposed`.
    prior_rate : float or array
        Rate of the prior; rows × 1 where rows have their own.
    row_means, row_logs, row_entropies : array
        Σ_k ⟨x⟩, Σ_k ⟨ln x⟩ and Σ_k entropy, one double per row.
    """

    kind: ClassVar[str] = "gamma"
    is_posterior: ClassVar[bool] = True
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
        return float(self.row_means.sum())

    @property
    def dimensions(self) -> tuple[int, int]:
        n_rows, n_components = self.mean.shape
        return n_rows, n_components

    @property
    def parameters(self) -> tuple[Array, ...]:
        return self.shape, self.exposed

    def divergence(self, prior: Prior) -> float:
        """KL(q‖prior) = −entropy − ⟨ln prior⟩, summed over all entries; below 0 is rounding of what cancels."""
        n_rows, n_components = self.dimensions
        rate = np.broadcast_to(np.asarray(prior.rate, np.float64).ravel(), n_rows)
        log_normalizer = n_components * (prior.shape * np.log(rate) - gammaln(prior.shape))
        expected_log_prior = log_normalizer + (prior.shape - 1) * self.row_logs - rate * self.row_means
        return max(float(-self.row_entropies.sum() - expected_log_prior.sum()), 0.0)

    def prior_part(self, prior: Prior, row: int) -> Array:
        """Return α^W/rate, the part of ⟨w⟩ = (α^W + allocated)/rate that no count contributes."""
        rate = np.broadcast_to(self.rate, self.mean.shape)[row].astype(np.float64)
        return np.asarray(np.minimum(prior.shape / rate, self.mean[row]))

    def sampler(self, rows: NDArray[np.intp]) -> Callable[[np.random.RandomState], Array]:
        rate = np.broadcast_to(self.rate, self.mean.shape)[rows].astype(np.float64)
        shape = self.mean[rows] * rate
        return lambda rng: np.asarray(rng.standard_gamma(shape) / rate)

    def append(self, new: Any) -> "Gamma":
        parts = {}
        for name, first, second in zip(_fields(), self._by_row(), new._by_row(), strict=True):
            parts[name] = np.concatenate((first, second)) if np.ndim(first) else first
        return Gamma(**parts)

    def replace_rows(self, rows: NDArray[np.intp], new: Any) -> "Gamma":
        parts = {}
        for name, old, values in zip(_fields(), self._by_row(), new._by_row(), strict=True):
            parts[name] = np.array(old) if np.ndim(old) else old
            if np.ndim(old):
                parts[name][rows] = values
        return Gamma(**parts)

    def on_host(self) -> "Gamma":
        return self

    def _by_row(self) -> list[Any]:
        """The fields in their order, with `exposed` spread over all rows."""
        values = {name: getattr(self, name) for name in _fields()}
        return list((values | {"exposed": np.broadcast_to(self.exposed, self.mean.shape)}).values())


Factor = Gamma | Point


def _fields() -> list[str]:
    return [field.name for field in fields(Gamma)]
