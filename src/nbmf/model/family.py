"""The other likelihoods of the family: compound, zero-inflated, robust and binary counts, on the seam of likelihood.py.

A compound count is the sum of n ~ Poisson(μ) jumps of at least 1 each, which keeps apart how often and how much at a
time. Its exposure is always 1, so a fit costs the non-zeros only.

    logarithmic jumps    log_events = lnΓ(y+x) − lnΓ(x) − ln y!,        x = λ/ρ,  ρ = −ln(1−θ)
    geometric jumps      log_events = ln Σ_n C(y−1, n−1) xⁿ/n!,         x = (1−p)λ/p
    Bernoulli–Poisson    log_events = ln(eˣ − 1),                       x = λ,  y is 0 or 1
    robust Poisson       log_events = y ln x, but y ln y − y + x for y > x = (1+ρ)λ
    zero-inflated        log_evidence = ln π − μ − ln y!, but ln(1 − π + πe^(−μ)) if y is 0

All but the last depend on λ by x, a multiple of it (`events_scale`); what depends on y alone (y ln θ, y ln p,
−y ln(1+ρ) − ln y!) is in `log_base`. As θ, p → 0, π → 1 and ρ → ∞ these become Poisson; as θ → 1 a count of any size
becomes one event.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, digamma, gammainc, gammaincc, gammaln, xlogy

from nbmf.model.likelihood import Array, Likelihood, Parameter
from nbmf.model.series import NODES, STIRLING, digamma_rise, log_gamma_rise, poisson_average

NEWTON_STEPS = 60
JUMPS = 1e-9, 1 - 1e-12  # bounds of a learned θ or p
PROBABILITIES = 1e-9, 1 - 1e-9  # bounds of a learned π
MOST_SCALED = 1e150  # x whose square is finite; from there on every event is one count


@dataclass(frozen=True)
class LogarithmicJumps(Likelihood):
    """Compound Poisson with jumps P(j) = θʲ/(ρj), so y ~ NB(μ/ρ, θ) with variance mean/(1−θ).

    Parameters
    ----------
    jump : float or array
        θ, between 0 and 1. Near 0 every jump is 1; near 1 jumps are heavy-tailed.

    Examples
    --------
    >>> LogarithmicJumps(0.9).events(count=[1, 10, 1000], geometric_intensity=0.5).round(2)  # hardly more than one each
    array([1.  , 1.55, 2.56])
    """

    kind = "logarithmic_jumps"
    has_linear_base = True
    learns_from = "jumps"
    jump: Parameter = 0.5

    def __post_init__(self) -> None:
        _check_probability("jump", self.jump)

    @property
    def _rate(self) -> Any:
        return -np.log1p(-np.asarray(self.jump))  # ρ

    @property
    def events_scale(self) -> Parameter:
        """1/ρ."""
        return _plain(1 / self._rate)

    def events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return x(ψ(y+x) − ψ(x)), between 1 and y; r stands for x. A count below 1 also has one event."""
        r, y = np.asarray(geometric_intensity) * self.events_scale, np.maximum(np.asarray(count, np.float64), 1.0)
        # ψ(r) = ψ(1+r) − 1/r, so nothing overflows for small r
        small = np.minimum(r, STIRLING)
        direct = 1 + small * (digamma(y + small) - digamma(1 + small))
        found = np.where(r < STIRLING, direct, digamma_rise(y, np.maximum(r, STIRLING)))
        return np.asarray(np.where(np.asarray(count) > 0, found, 0.0))

    def log_events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return lnΓ(y+x) − lnΓ(x) − ln y!."""
        r, y = np.asarray(geometric_intensity) * self.events_scale, np.maximum(np.asarray(count, np.float64), 1.0)
        positive = np.maximum(r, np.finfo(np.float64).tiny)
        by_count = log_gamma_rise(y + 1, positive - 1) - gammaln(positive)
        by_intensity = log_gamma_rise(positive, y) - gammaln(y + 1)
        return np.asarray(np.where(np.asarray(count) > 0, np.where(positive < y, by_count, by_intensity), 0.0))

    def log_base(self, count: ArrayLike) -> Array:
        """Return y ln θ."""
        return np.asarray(xlogy(count, self.jump))

    @property
    def unit_mean(self) -> Parameter:
        """The mean of a jump, θ/((1−θ)ρ)."""
        return _plain(np.asarray(self.jump) / ((1 - np.asarray(self.jump)) * self._rate))

    def relearned(self, mean: ArrayLike) -> "LogarithmicJumps":
        """Return the likelihood whose mean jump is this: ρ solves (e^ρ − 1)/ρ = mean."""
        target = np.log(np.maximum(np.asarray(mean, np.float64), 1 + 1e-9))
        ρ = 2 * target  # (e^ρ − 1)/ρ is at least e^(ρ/2), so this is no less than the root
        for _ in range(NEWTON_STEPS):
            grown = np.expm1(-ρ)
            step = (ρ + np.log(-grown / ρ) - target) / (-1 / grown - 1 / ρ)
            ρ = np.maximum(ρ - step, ρ / 4)
            if np.all(np.abs(step) <= 1e-12 * ρ + 1e-15):
                break
        return replace(self, jump=_plain(np.clip(-np.expm1(-ρ), *JUMPS)))

    def variance(self, intensity: Array) -> Array:
        """Return the mean over 1−θ."""
        return np.asarray(self.mean(intensity) / (1 - np.asarray(self.jump)))

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ), an incomplete beta function."""
        return np.asarray(
            betaincc(np.asarray(intensity) / self._rate, np.asarray(count) + 1, 1 - np.asarray(self.jump))
        )

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        return np.asarray(betainc(np.asarray(intensity) / self._rate, np.asarray(count) + 1, 1 - np.asarray(self.jump)))

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return draws from NB(μ/ρ, θ), which are Poisson with a gamma intensity."""
        odds = self.jump / (1 - np.asarray(self.jump))
        return np.asarray(rng.poisson(rng.standard_gamma(np.asarray(intensity) / self._rate) * odds))


@dataclass(frozen=True)
class GeometricJumps(Likelihood):
    """Compound Poisson with jumps P(j) = (1−p) p^(j−1): mean μ/(1−p), variance μ(1+p)/(1−p)².

    Parameters
    ----------
    jump : float or array
        p, between 0 and 1: the probability that a jump goes on.
    """

    kind = "geometric_jumps"
    has_linear_base = True
    learns_from = "jumps"
    jump: Parameter = 0.5

    def __post_init__(self) -> None:
        _check_probability("jump", self.jump)

    @property
    def events_scale(self) -> Parameter:
        """(1−p)/p."""
        return _plain((1 - np.asarray(self.jump)) / self.jump)

    def _terms(
        self, count: ArrayLike, geometric_intensity: ArrayLike
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the numbers of events n at which Σ_n C(y−1, n−1) xⁿ/n! is sampled, the terms' logarithms, and a step.

        The terms are largest near n with n² + n(1+x) = yx and fall off like a normal density. Where its deviation is
        above four, 65 evenly spaced ones give the same sum.
        """
        x = np.asarray(geometric_intensity, np.float64) * self.events_scale
        y, z = np.broadcast_arrays(np.asarray(count, np.float64), np.maximum(x, np.finfo(np.float64).tiny))
        y = np.maximum(y, 1.0)  # a count below 1 also has one event
        w = np.minimum(z, MOST_SCALED)
        mode = 2 * y * w / (1 + w + np.sqrt((1 + w) ** 2 + 4 * y * w))
        deviation = 1 / np.sqrt(2 / np.maximum(mode, 1) + 1 / (y - np.minimum(mode, y) + 1))
        step = np.maximum(deviation / 4, 1.0)
        n = np.clip(np.rint(mode), 1, np.floor(y))[..., None] + NODES * step[..., None]
        y, inside = y[..., None], (n >= 1) & (n <= y[..., None])
        n = np.where(inside, n, 1.0)
        chosen = log_gamma_rise(np.maximum(y - n, 0) + 1, n - 1) - gammaln(n)  # C(y−1, n−1)
        logs = n * np.log(z)[..., None] - gammaln(n + 1) + chosen
        return n, np.where(inside, logs, -np.inf), step

    def events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return E[n | y], the mean of n under the terms of the sum; between 1 and y."""
        n, logs, _ = self._terms(count, geometric_intensity)
        weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
        mean = (weights * n).sum(axis=-1) / weights.sum(axis=-1)
        return np.asarray(np.where(np.asarray(count) > 0, mean, 0.0))

    def log_events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return ln Σ_n C(y−1, n−1) xⁿ/n!."""
        _, logs, step = self._terms(count, geometric_intensity)
        largest = logs.max(axis=-1)
        total = largest + np.log(step * np.exp(logs - largest[..., None]).sum(axis=-1))
        return np.asarray(np.where(np.asarray(count) > 0, total, 0.0))

    def log_base(self, count: ArrayLike) -> Array:
        """Return y ln p."""
        return np.asarray(xlogy(count, self.jump))

    @property
    def unit_mean(self) -> Parameter:
        """The mean of a jump, 1/(1−p)."""
        return _plain(1 / (1 - np.asarray(self.jump)))

    def relearned(self, mean: ArrayLike) -> "GeometricJumps":
        """Return the likelihood whose mean jump is this."""
        return replace(self, jump=_plain(np.clip(1 - 1 / np.maximum(mean, 1.0), *JUMPS)))

    def variance(self, intensity: Array) -> Array:
        """Return μ(1+p)/(1−p)²."""
        return np.asarray(intensity * (1 + np.asarray(self.jump)) * np.asarray(self.unit_mean) ** 2)

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ)."""
        return self._tail(count, intensity, betaincc, beyond=1.0)

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        return self._tail(count, intensity, betainc, beyond=0.0)

    def _tail(self, count: ArrayLike, intensity: ArrayLike, function: Any, beyond: float) -> Array:
        """Average a tail of the sum of n jumps, an incomplete beta function, over n ~ Poisson(μ)."""

        def tail(n: NDArray[Any], c: NDArray[Any], p: NDArray[Any]) -> NDArray[Any]:
            some = (n > 0) & (n <= c)
            of_some = function(np.where(some, n, 1.0), np.where(some, c - n, 0.0) + 1, 1 - p)
            return np.where(some, of_some, np.where(n > 0, beyond, 1 - beyond))

        return poisson_average(tail, intensity, count, self.jump)

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return sums of n ~ Poisson(μ) jumps: n, and NB(n, p) for what they are above 1."""
        odds, n = self.jump / (1 - np.asarray(self.jump)), rng.poisson(intensity)
        return np.asarray(n + rng.poisson(rng.standard_gamma(n) * odds))


@dataclass(frozen=True)
class BernoulliPoisson(Likelihood):
    """Whether there was any event: y = 1[n ≥ 1], so P(y = 1) = 1 − e^(−μ). Counts above 1 are taken as 1."""

    kind = "bernoulli_poisson"
    has_linear_mean = False
    most = 1.0

    def events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return λ/(1 − e^(−λ))."""
        λ = np.maximum(np.asarray(geometric_intensity, np.float64), np.finfo(np.float64).tiny)
        return np.asarray(np.where(np.asarray(count) > 0, λ / -np.expm1(-λ), 0.0))

    def log_events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return ln(e^λ − 1)."""
        λ = np.maximum(np.asarray(geometric_intensity, np.float64), np.finfo(np.float64).tiny)
        return np.asarray(np.where(np.asarray(count) > 0, λ + np.log(-np.expm1(-λ)), 0.0))

    def mean(self, intensity: Array) -> Array:
        """Return 1 − e^(−μ)."""
        return np.asarray(-np.expm1(-intensity))

    def variance(self, intensity: Array) -> Array:
        """Return the variance of a Bernoulli variable."""
        return np.asarray(-np.expm1(-intensity) * np.exp(-intensity))

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ)."""
        return np.asarray(np.where(np.asarray(count) < 1, self.mean(np.asarray(intensity)), 0.0))

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        return np.asarray(np.where(np.asarray(count) < 1, np.exp(-np.asarray(intensity)), 1.0))

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return whether a draw from Poisson(μ) is positive."""
        return np.minimum(rng.poisson(intensity), 1)


@dataclass(frozen=True)
class RobustPoisson(Likelihood):
    """Poisson counts on top of which a few are larger than they should be: y ~ Poisson(μ + s), s ≥ 0 with a penalty ρs.

    It is a profile likelihood: s = max(0, y/(1+ρ) − μ) is its optimum, so probabilities do not sum to 1.

    Parameters
    ----------
    penalty : float
        ρ: a count is an outlier where it exceeds (1+ρ) times its intensity.
    """

    kind = "robust_poisson"
    is_normalized = False
    penalty: float = 2.0

    def __post_init__(self) -> None:
        if isinstance(self.penalty, bool) or not 0 < float(self.penalty) < np.inf:
            raise ValueError(f"penalty is {self.penalty!r}; it must be a positive number (large is Poisson)")

    @property
    def events_scale(self) -> Parameter:
        """1 + ρ."""
        return 1.0 + self.penalty

    def events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return min(y, x)."""
        return np.asarray(np.minimum(count, self.events_scale * np.asarray(geometric_intensity)))

    def log_events(self, count: ArrayLike, geometric_intensity: ArrayLike) -> Array:
        """Return y ln x, or its continuation y ln y − y + x for an outlier, y > x."""
        y, x = np.asarray(count, np.float64), self.events_scale * np.asarray(geometric_intensity)
        return np.asarray(xlogy(y, np.maximum(x, y)) + np.minimum(x - y, 0.0))

    def log_base(self, count: ArrayLike) -> Array:
        """Return −y ln(1+ρ) − ln y!."""
        y = np.asarray(count, np.float64)
        return np.asarray(-y * np.log1p(self.penalty) - gammaln(y + 1.0))


class BernoulliExposure:
    """Exposed or not: a ~ Bernoulli(π), y ~ Poisson(aμ), with mean πμ and variance πμ(1 + (1−π)μ); π may be 1."""

    probability: Any

    def exposure(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return 1 for a positive count, πe^(−μ)/(1 − π + πe^(−μ)) for a zero."""
        π, seen = np.asarray(self.probability), np.asarray(count) > 0
        exposed = π * np.exp(-np.asarray(intensity))
        certain = seen | (π == 1)  # where both parts may underflow
        return np.asarray(np.where(certain, 1.0, exposed / np.where(certain, 1.0, 1 - π + exposed)))

    def exposure_sd(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return the standard deviation of a Bernoulli variable."""
        mean = self.exposure(count, intensity)
        return np.asarray(np.sqrt(mean * (1 - mean)))

    def log_base(self, count: ArrayLike) -> Array:
        """Return ln π − ln y! for a positive count."""
        y, π = np.broadcast_arrays(np.asarray(count, np.float64), self.probability)
        return where_seen(y, lambda seen: np.log(π[seen]) - gammaln(y[seen] + 1.0))

    def log_evidence(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return ln π − μ − ln y! for a positive count, ln(1 − π + πe^(−μ)) for a zero."""
        y, μ, π = np.asarray(count), np.asarray(intensity), np.asarray(self.probability)
        certain = (y > 0) | (π == 1)
        return np.asarray(self.log_base(y) + np.where(certain, -μ, np.log1p(np.where(certain, 0, π) * np.expm1(-μ))))

    def mean(self, intensity: Array) -> Array:
        """Return πμ."""
        return np.asarray(self.probability * intensity)

    def variance(self, intensity: Array) -> Array:
        """Return πμ(1 + (1−π)μ)."""
        return np.asarray(self.mean(intensity) * (1 + (1 - np.asarray(self.probability)) * intensity))

    def above(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y > count | μ)."""
        return np.asarray(self.probability * gammainc(np.asarray(count) + 1, intensity))

    def up_to(self, count: ArrayLike, intensity: ArrayLike) -> Array:
        """Return P(y ≤ count | μ)."""
        π = np.asarray(self.probability)
        return np.asarray(1 - π + π * gammaincc(np.asarray(count) + 1, intensity))

    def sample(self, rng: np.random.RandomState, intensity: Array) -> NDArray[np.int64]:
        """Return draws from Poisson(aμ), a ~ Bernoulli(π)."""
        π = self.probability
        return np.asarray(rng.poisson(rng.binomial(1, π, np.broadcast(π, intensity).shape) * intensity))


@dataclass(frozen=True)
class ZeroInflatedPoisson(BernoulliExposure, Likelihood):
    """Exposed or not, each with the probability π.

    Parameters
    ----------
    probability : float or array
        π of being exposed: one number, an array users × 1 or an array 1 × items.
    """

    kind = "zero_inflated_poisson"
    learns_from = "exposures"
    probability: Parameter = 0.5

    def __post_init__(self) -> None:
        _check_probability("probability", self.probability)

    @property
    def exposure_parameter(self) -> Parameter:
        """π."""
        return self.probability

    @property
    def unit_mean(self) -> Parameter:
        """π."""
        return self.probability

    def relearned(self, mean: ArrayLike) -> "ZeroInflatedPoisson":
        """Return the likelihood whose π is the mean exposure."""
        return replace(self, probability=_plain(np.clip(np.asarray(mean, np.float64), *PROBABILITIES)))


def where_seen(count: NDArray[Any], value: Callable[[NDArray[np.bool_]], NDArray[Any]]) -> NDArray[np.float64]:
    """Return the value of positive counts and 0 elsewhere; most counts are 0, and logarithms take long."""
    found, seen = np.zeros(count.shape), count > 0
    found[seen] = value(seen)
    return found


def _plain(value: Any) -> Parameter:
    """Return a number as a float, and an array as it is."""
    return value if np.ndim(value) else float(value)


def _check_probability(name: str, value: Parameter) -> None:
    if isinstance(value, bool) or not np.all((np.asarray(value) > 0) & (np.asarray(value) < 1)):
        raise ValueError(f"{name} is {value!r}; it must be between 0 and 1")
