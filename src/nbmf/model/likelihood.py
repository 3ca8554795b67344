"""The likelihood of a count given its intensity: two functions and their two derivatives.

A count is made of n events, and an exposure a multiplies the intensity of the events:

    n ~ Poisson(a μ),   a ~ p(a),   y ~ p(y | n)

With λ the geometric intensity and μ the intensity, inference needs only

    log_events(y, λ)   = ln Σ_n p(y | n) λⁿ/n!       events(y, λ)   = λ ∂/∂λ log_events   = E[n | y]
    log_evidence(y, μ) = ln ∫ aʸ e^(−aμ) p(a) da     exposure(y, μ) = −∂/∂μ log_evidence  = E[a | y]

and a cell adds log_events(y, λ) + log_evidence(y, μ) to the objective, which is ln p(y | μ) where λ = μ. Constants such
as −ln y! belong to `log_evidence`. The two parts separate if every event is one count (n = y, as for the Poisson and
the negative binomial likelihood: events = y and log_events = y ln λ) or if a is always 1; a count of 0 has no events.
Factorials are Γ functions, so y may be any real number from 0.

A new likelihood is one subclass of `Likelihood`. The `reference` backend takes it as it is; a fast backend needs a
kernel for its `kind`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, betaln, digamma, gammainc, gammaincc, gammaln, polygamma, xlogy

Array = NDArray[np.floating[Any]]
Parameter = float | Array
"""One number for all cells, or an array users × 1 or 1 × items."""

KINDS: "dict[str, type[Likelihood]]" = {}
"""Every likelihood by the name that files give it."""

LONGEST_STEP = 0.7  # largest change of ln α in one sweep; early factors are poor, so the α that fits them is too
LEAST, MOST = 1e-3, 1e4  # bounds of a learned α: counts no more dispersed than Poisson's would send it to infinity


@dataclass(frozen=True)
class Likelihood:
    """Base class of all likelihoods: a frozen dataclass whose fields are parameters.

    As it stands, every event is one count and every exposure is 1.
    """

    kind: ClassVar[str]  # name in files and in the fast backends
    has_exposure: ClassVar[bool] = False  # whether a varies; otherwise only the non-zeros cost anything
    is_normalized: ClassVar[bool] = True  # whether probabilities sum to 1, so that those of several can be compared
    has_linear_mean: ClassVar[bool] = True  # whether E[y] is `unit_mean` times μ, so that scores are expected counts
    has_linear_base: ClassVar[bool] = False  # whether `log_base` is a multiple of the count
    learns_from: ClassVar[str] = ""  # "slopes" in its learned parameter, or the mean of "jumps" or "exposures"
    has_draws: ClassVar[bool] = False  # whether `sample` is defined
    most: ClassVar[float] = math.inf  # largest possible count; larger ones are treated as this

    def __init_subclass__(cls) -> None:
        if "kind" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} needs a `kind` of its own, the name that files give it")
        KINDS[cls.kind] = cls
        cls.has_exposure = cls.exposure is not Likelihood.exposure
        cls.has_draws = cls.sample is not Likelihood.sample

    @property
    def concentration(self) -> Parameter:
        """α where exposures follow Gamma(α, α), infinite where they are 1; NaN for other likelihoods."""
        return math.nan if self.has_exposure else math.inf

    @property
    def exposure_parameter(self) -> Parameter:
        """The parameter of p(a) by which fast backends compute exposures."""
        return self.concentration

    @property
    def events_scale(self) -> Parameter:
        """What λ is multiplied by before it enters `events` and `log_events`, which then depend on y and that alone."""
        return 1.0

    @property
    def unit_mean(self) -> Parameter:
        """E[y]/μ where that is the same for every μ; scores are this times μ."""
        return 1.0

    def events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return E[n | y], the number of events behind a positive count."""
        return np.asarray(count)

    def log_events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return ln Σ_n p(y | n) λⁿ/n!, whose slope in ln λ is `events`."""
        return np.asarray(xlogy(count, geometric_intensity))

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return E[a | y, μ], the mean of the exposure given the count."""
        return np.ones(np.broadcast(count, intensity).shape)

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ln ∫ aʸ e^(−aμ) p(a) da and the constants, whose slope in −μ is `exposure`."""
        return np.asarray(self.log_base(count) - np.asarray(intensity))

    def log_base(self, count: ArrayLike) -> Array:
        """Return the part of `log_evidence` that does not depend on the intensity; it is summed once per fit."""
        return np.zeros(np.shape(count))

    def exposure_sd(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return the standard deviation of the exposure given the count; NaN where it is not known in closed form."""
        return np.full(np.broadcast(count, intensity).shape, np.nan if self.has_exposure else 0.0)

    def mean(self, intensity: Array) -> Array:
        """Return E[y | μ]."""
        scale = self.unit_mean
        return intensity if isinstance(scale, float) and scale == 1 else np.asarray(scale * intensity)

    def variance(self, intensity: Array) -> Array:
        """Return the variance of y given μ."""
        raise self._lacks("variance")

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ)."""
        raise self._lacks("tail")

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ), exact where it is small, unlike 1 − `above`."""
        raise self._lacks("tail")

    def stepped(self, slope: NDArray[np.float64], curvature: NDArray[np.float64]) -> Self:
        """Return this likelihood after one safeguarded Newton step on its learned parameter."""
        raise self._lacks("learned parameter")

    def relearned(self, mean: ArrayLike) -> Self:
        """Return this likelihood with the learned parameter that the mean jump, or the mean exposure, implies."""
        raise self._lacks("learned parameter")

    def _lacks(self, what: str) -> ValueError:
        return ValueError(f"the likelihood {self.kind!r} does not define its {what}, which this method needs")

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Values of the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def varies(self) -> bool:
        """Whether cells differ in a parameter."""
        return any(isinstance(value, np.ndarray) for value in self.parameters.values())

    def at(self, rows: NDArray[Any], columns: NDArray[Any]) -> Self:
        """Return the likelihood of single cells, given by their rows and columns."""
        return self._changed(lambda value: value[rows if len(value) > 1 else 0, columns if value.shape[1] > 1 else 0])

    def of_rows(self, rows: NDArray[Any] | slice) -> Self:
        """Return the likelihood of some rows."""
        return self._changed(lambda value: value[rows] if len(value) > 1 else value)

    def transposed(self) -> Self:
        """Return the likelihood of the transposed counts."""
        return self._changed(lambda value: value.T)

    def of_new_rows(self) -> Self:
        """Return the likelihood of rows that were not fitted: a parameter per row becomes the typical one."""
        return self._changed(lambda value: typical(value) if len(value) > 1 else value)

    def of_some_rows(self, rows: NDArray[np.intp], known: NDArray[np.bool_]) -> Self:
        """Return the likelihood of rows of which only some were fitted; the others get the typical parameter."""
        return self._changed(
            lambda value: np.where(known[:, None], value[rows], typical(value)) if len(value) > 1 else value
        )

    def extended(self, n_new: int, axis: int) -> Self:
        """Return the likelihood with more rows (axis 0) or columns (axis 1), which get the typical parameter."""

        def longer(value: Array) -> Array:
            if value.shape[axis] == 1:
                return value
            shape = (n_new, 1) if axis == 0 else (1, n_new)
            return np.concatenate((value, np.full(shape, typical(value))), axis=axis)

        return self._changed(longer)

    def averaged(self, others: "Sequence[Likelihood]") -> Self:
        """Return this likelihood with the mean parameters of several of its kind.

        Where some have a parameter per row or column, one number of another is that of all of them: a fit that learns
        them keeps the number it starts from while no step raises its objective.
        """
        every = {name: np.broadcast_arrays(*(other.parameters[name] for other in others)) for name in self.parameters}
        values = {name: np.mean(each, axis=0) for name, each in every.items()}
        return replace(self, **{name: value[()] for name, value in values.items()}) if values else self

    def _changed(self, change: Callable[[Array], Parameter]) -> Self:
        """Apply a change to the parameters that are arrays."""
        arrays = {name: change(value) for name, value in self.parameters.items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays) if arrays else self

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return one draw of y given μ for each cell."""
        raise self._lacks("draws")


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Every exposure is 1: y ~ Poisson(μ)."""

    kind = "poisson"

    def log_base(self, count: ArrayLike) -> Array:
        """Return −ln y!."""
        return np.asarray(-gammaln(np.asarray(count) + 1.0))

    def variance(self, intensity: Array) -> Array:
        """Return μ."""
        return intensity

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ), an incomplete gamma function."""
        return np.asarray(gammainc(np.asarray(count) + 1, intensity))

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        return np.asarray(gammaincc(np.asarray(count) + 1, intensity))

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return draws from Poisson(μ)."""
        return np.asarray(rng.poisson(intensity))


@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """Exposure a ~ Gamma(α, α), so y ~ NB(α, μ/(μ+α)) with mean μ and variance μ(1 + μ/α): Eq. (NB).

    Parameters
    ----------
    concentration : float or array
        α: one number, an array users × 1 or an array 1 × items. Large α is close to Poisson.

    Examples
    --------
    >>> likelihood = NegativeBinomial(concentration=1.0)
    >>> likelihood.exposure(count=[0, 2, 20], intensity=2.0).round(2)  # under-exposed, as expected, over-exposed
    array([0.33, 1.  , 7.  ])
    """

    kind = "negative_binomial"
    learns_from = "slopes"
    concentration: Parameter = 1.0

    def __post_init__(self) -> None:
        α = self.concentration
        is_number = isinstance(α, Real | np.ndarray) and not isinstance(α, bool)
        if not is_number or not np.all((np.asarray(α) > 1e-30) & (np.asarray(α) < 1e30)):
            raise ValueError(
                f"concentration is {self.concentration!r}; it must be a positive number (large is close to Poisson)"
            )

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return (α + y)/(α + μ), the mean of q(a) in Eq. (update_a)."""
        return np.asarray((self.concentration + np.asarray(count)) / (self.concentration + np.asarray(intensity)))

    def exposure_sd(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return √(α + y)/(α + μ), the standard deviation of q(a) = Gamma(α + y, α + μ)."""
        return np.asarray(self.exposure(count, intensity) / np.sqrt(self.concentration + np.asarray(count)))

    def log_base(self, count: ArrayLike) -> Array:
        """Return lnΓ(α+y) − lnΓ(α) − ln y!, by the beta function because the difference cancels for large y."""
        zero = np.asarray(count) == 0
        positive = np.where(zero, 1.0, count)
        return np.where(zero, 0.0, -np.log(positive) - betaln(self.concentration, positive))

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return lnΓ(α+y) − lnΓ(α) − ln y! − y ln(α+μ) − α ln(1 + μ/α)."""
        α, μ = self.concentration, np.asarray(intensity)
        return np.asarray(self.log_base(count) - xlogy(count, α + μ) - α * np.log1p(μ / α))

    def variance(self, intensity: Array) -> Array:
        """Return μ + μ²/α."""
        return np.asarray(intensity + intensity**2 / self.concentration)

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ), an incomplete beta function."""
        α = self.concentration
        return np.asarray(betaincc(α, np.asarray(count) + 1, α / (α + np.asarray(intensity))))

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        α = self.concentration
        return np.asarray(betainc(α, np.asarray(count) + 1, α / (α + np.asarray(intensity))))

    def slope(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ∂/∂α of `log_evidence`: ψ(α+y) − ψ(α) − ln(1 + μ/α) + (μ−y)/(α+μ)."""
        α, y, μ = self.concentration, np.asarray(count), np.asarray(intensity)
        return np.asarray(digamma(α + y) - digamma(α) - np.log1p(μ / α) + (μ - y) / (α + μ))

    def curvature(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ∂²/∂α² of `log_evidence`: ψ'(α+y) − ψ'(α) + μ/(α(α+μ)) − (μ−y)/(α+μ)²."""
        α, y, μ = self.concentration, np.asarray(count), np.asarray(intensity)
        of_counts = polygamma(1, α + y) - polygamma(1, α)
        return np.asarray(of_counts + μ / (α * (α + μ)) - (μ - y) / (α + μ) ** 2)

    def stepped(self, slope: NDArray[np.float64], curvature: NDArray[np.float64]) -> "NegativeBinomial":
        """Return the likelihood after one Newton step on ln α, given the objective's slope and curvature in α."""
        α = np.asarray(self.concentration, np.float64)
        g, h = α * slope, α * α * curvature + α * slope
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(h < 0, -g / h, np.sign(g) * LONGEST_STEP)
        step = np.where(np.isfinite(step), step, 0.0)  # sums that overflowed say nothing
        better = np.clip(α * np.exp(np.clip(step, -LONGEST_STEP, LONGEST_STEP)), LEAST, MOST)
        return NegativeBinomial(better if better.ndim else float(better))

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return draws from Poisson(aμ), a ~ Gamma(α, α)."""
        α = self.concentration
        return np.asarray(rng.poisson(rng.standard_gamma(α, np.broadcast(α, intensity).shape) / α * intensity))


def typical(values: NDArray[Any]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def log_probability(likelihood: Likelihood, count: ArrayLike, intensity: ArrayLike) -> Array:
    """Return ln p(y | μ), cell by cell."""
    return np.asarray(likelihood.log_events(count, intensity) + likelihood.log_evidence(count, intensity))


def divergence(concentration: float, count: ArrayLike, intensity: ArrayLike) -> Array:
    """Return d_α(y|μ) of the paper's §3.1, −ln p(y | μ) less its smallest value over μ; d_∞ is Kullback-Leibler's.

    >>> float(divergence(1.0, 3.0, 3.0)), float(divergence(1.0, 0.0, 1.0)) > 0
    (0.0, True)
    """
    y, μ = np.asarray(count, float), np.asarray(intensity, float)
    if concentration == math.inf:
        return np.asarray(xlogy(y, y / μ) - y + μ)
    # log1p keeps small differences of (α+y) ln((α+y)/(α+μ)) from 0
    return np.asarray(xlogy(y, y / μ) - (concentration + y) * np.log1p((y - μ) / (concentration + μ)))
