"""The passes in their shortest correct form, with dense arrays and any likelihood: what all others must agree with.

Sums over cells are computed in double precision and kept in that of the factors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from nbmf.backends import LEAST_INTENSITY, Array, Given, OnHost, Sums, group_means
from nbmf.backends.counts import Counts
from nbmf.model.factors import Factor, Gamma, Prior
from nbmf.model.likelihood import Likelihood, NegativeBinomial
from nbmf.model.ties import Ties


@dataclass(frozen=True)
class DenseExpectation:
    """⟨c_uik⟩ = share_ui exp⟨ln w_uk⟩ exp⟨ln h_ik⟩ and ⟨a_ui⟩ = exposure_ui, both users × items."""

    users: Factor
    items: Factor
    likelihood: Likelihood
    share: Array
    exposure: Array
    log_evidence: float

    @property
    def user_sums(self) -> Sums:
        """The two sums of Eq. (update_w)."""
        allocated = self.users.geometric_mean * _weighed(self.share, self.items.geometric_mean)
        return _kept(allocated, self.exposure @ self.items.mean, self.users)


@dataclass(frozen=True)
class Reference(OnHost):
    """Dense NumPy; for small data and for tests."""

    @property
    def encoder(self) -> Any:
        """The passes of an encoder."""
        from nbmf.backends.encoder import ReferenceEncoder  # noqa: PLC0415 (it builds on this module)

        return ReferenceEncoder()

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> DenseExpectation:
        """Eqs. (update_c) and (update_a)."""
        users, items, likelihood, ties = given
        count = counts.by_user.toarray().astype(np.float64)
        unknown = count < 0  # not part of the data at all
        count[unknown] = 0
        least = LEAST_INTENSITY[users.mean.dtype]
        geometric_intensity = np.maximum(_products(users.geometric_mean, items.geometric_mean), least)
        intensity: Array = _products(users.mean, items.mean)
        if ties is not None:
            intensity = pool_unseen(intensity, (count == 0) & ~unknown, ties)
        events = likelihood.events(count, geometric_intensity)
        share = np.divide(events, geometric_intensity, out=np.zeros_like(count), where=count > 0)
        log_evidence = likelihood.log_events(count, geometric_intensity) + likelihood.log_evidence(count, intensity)
        log_evidence -= likelihood.log_base(count)
        exposure = likelihood.exposure(count, intensity)
        log_evidence[unknown], exposure[unknown] = 0, 0
        return DenseExpectation(users, items, likelihood, share, exposure, float(log_evidence.sum(dtype=np.float64)))

    def sum_by_item(self, counts: Counts, expectation: DenseExpectation, users: Factor) -> Sums:
        """Return the two sums of Eq. (update_h)."""
        share, exposure = expectation.share, expectation.exposure
        allocated = expectation.items.geometric_mean * _weighed(share.T, expectation.users.geometric_mean)
        return _kept(allocated, exposure.T @ users.mean, users)

    def slopes(
        self, counts: Counts, expectation: DenseExpectation, group: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ∂/∂α and ∂²/∂α² of the log-evidence, summed over cells; μ follows from ⟨a⟩ = (α+y)/(α+μ)."""
        law, count = expectation.likelihood, counts.by_user.toarray().astype(np.float64)
        if not isinstance(law, NegativeBinomial):
            raise TypeError(f"{type(law).__name__} has no concentration to learn")
        unknown = count < 0
        count[unknown] = 0
        exposure = np.where(unknown, 1.0, expectation.exposure)
        intensity = np.where(unknown, 0.0, np.maximum((law.concentration + count) / exposure - law.concentration, 0))
        axis = {"all": None, "user": 1, "item": 0}[group]
        slope, curvature = (
            np.asarray(np.sum(values, axis=axis, keepdims=axis is not None, where=~unknown))
            for values in (law.slope(count, intensity), law.curvature(count, intensity))
        )
        return slope, curvature

    def mean_exposure(self, counts: Counts, expectation: DenseExpectation, group: str) -> NDArray[np.float64]:
        """Return the mean of ⟨a⟩ over known cells."""
        axis = 0 if group == "item" else 1
        return group_means(expectation.exposure.sum(axis=axis), counts.n_known(axis), group)

    def conditional(self, prior: Prior, sums: Sums) -> Gamma:
        """Eqs. (update_w) and (update_h), with the moments by scipy.special."""
        shape = prior.shape + sums.allocated
        rate = np.asarray(prior.rate, sums.exposed.dtype) + sums.exposed
        double_shape, log_rate = shape.astype(np.float64), np.log(rate.astype(np.float64))
        mean_log = digamma(double_shape) - log_rate
        entropy = double_shape - log_rate + gammaln(double_shape) + (1 - double_shape) * digamma(double_shape)
        mean, geometric_mean = shape / rate, np.exp(mean_log).astype(shape.dtype)
        rows = (mean.sum(axis=1, dtype=np.float64), mean_log.sum(axis=1), entropy.sum(axis=1))
        return Gamma(mean, geometric_mean, sums.exposed, prior.rate, *rows)


def _products(rows: Array, columns: Array) -> NDArray[np.float64]:
    return rows.astype(np.float64) @ columns.astype(np.float64).T


def _weighed(share: Array, factor: Array) -> Array:
    """Σ y/λ times a factor; what overflows is cut short, as its product with a 0 of the other side is no number."""
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(share @ factor, np.finfo(np.float64).max))


def _kept(allocated: NDArray[np.float64], exposed: NDArray[np.float64], factor: Factor) -> Sums:
    dtype = factor.mean.dtype
    return Sums(allocated.astype(dtype), exposed.astype(dtype))


def pool_unseen(intensity: Array, unseen: NDArray[np.bool_], ties: Ties) -> Array:
    """Replace the intensity of each zero cell by its mean over the zero cells of that user and cluster, m_uc."""
    member = np.eye(ties.n_clusters)[ties.labels]
    n_unseen = unseen @ member
    mean = np.divide((intensity * unseen) @ member, n_unseen, out=np.zeros_like(n_unseen), where=n_unseen > 0)
    return np.where(unseen, mean @ member.T, intensity)
