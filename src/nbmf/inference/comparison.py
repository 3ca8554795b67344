"""The algorithms of comparison models, with dense arrays of users × items: for small data.

`Coupled` is coordinate-ascent variational inference for two factorizations, of the exposures' means and of the
intensities: a_ui ~ Poisson(Λ_ui), Λ = U Vᵀ, and y_ui ~ Poisson(a_ui μ_ui), μ = W Hᵀ. `ExposedRidge` is
expectation–maximization for a Gaussian model of whether there is a count, with exposures that are 0 or 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

from nbmf.backends import LEAST_INTENSITY, Backend, Given
from nbmf.backends.counts import Counts
from nbmf.backends.reference import DenseExpectation
from nbmf.inference.cavi import with_item_rate
from nbmf.inference.run import ROUNDING, Ending, FallingObjectiveError, State, Until, total_log_base
from nbmf.model import Model
from nbmf.model.comparison import PoissonExposure
from nbmf.model.factors import Factor
from nbmf.model.likelihood import Poisson

Array = NDArray[np.float64]

BLOCK_CELLS = 2_000_000  # of an array that is needed for some rows at a time


# ---- two coupled factorizations -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A factorization: the priors of its two sides, and what is known of them."""

    model: Model
    users: Factor
    items: Factor

    @property
    def intensity(self) -> Array:
        """Σ_k ⟨x_uk⟩⟨x_ik⟩, users × items."""
        return self.users.mean.astype(np.float64) @ self.items.mean.astype(np.float64).T

    @property
    def geometric_intensity(self) -> Array:
        """Σ_k exp(⟨ln x_uk⟩ + ⟨ln x_ik⟩), users × items, at least what keeps a quotient finite."""
        products = self.users.geometric_mean.astype(np.float64) @ self.items.geometric_mean.astype(np.float64).T
        return np.asarray(np.maximum(products, LEAST_INTENSITY[self.users.mean.dtype]))

    @property
    def divergence(self) -> float:
        """KL(q‖prior) of both sides."""
        return self.users.divergence(self.model.user_prior) + self.items.divergence(self.model.item_prior)


@dataclass(frozen=True)
class CoupledState(State):
    """A state of the intensities' factorization, W and H, with the factorization of the exposures' means, U and V."""

    exposing: Pair = field(kw_only=True)

    @property
    def pairs(self) -> tuple[Pair, Pair]:
        """The factorizations of Λ and of μ."""
        return self.exposing, Pair(self.model, self.users, self.items)


@dataclass(frozen=True)
class CoupledExpectation:
    """E[a], its allocation to the components of Λ, and the counts' allocation to those of μ; users × items."""

    exposing: DenseExpectation  # the counts are E[a] and every exposure is 1
    tasting: DenseExpectation  # the counts are y and the exposures are E[a]

    @property
    def log_evidence(self) -> float:
        """Σ over all cells of −Λ̄ + y ln λ^μ + ln Σ_a (λ^Λ)ᵃ aʸ e^(−aμ̄)/a!, without ln y!."""
        return self.exposing.log_evidence + self.tasting.log_evidence


def expect_coupled(counts: Counts, exposing: Pair, tasting: Pair, backend: Any) -> CoupledExpectation:
    """Infer exposures and allocations: q(a) ∝ (λ^Λ)ᵃ aʸ e^(−aμ̄)/a!, where bars are means and λ geometric means.

    That is the posterior of a under `PoissonExposure(λ^Λ)`, whose constant −λ^Λ stands in place of −Λ̄.
    """
    λ = exposing.geometric_intensity
    found = backend.expect(counts, Given(tasting.users, tasting.items, PoissonExposure(λ), None))
    constant = float(λ.sum() - exposing.intensity.sum())
    ones, share = np.ones_like(λ), found.exposure / λ
    allocated = DenseExpectation(exposing.users, exposing.items, Poisson(), share, ones, constant)
    return CoupledExpectation(allocated, found)


@dataclass(frozen=True)
class Coupled:
    """One sweep: U, V, W and H from the exposures and allocations of the previous factors, then those again."""

    begins_with_users: ClassVar[bool] = True

    def step(self, state: State, counts: Counts, backend: Backend) -> CoupledState:
        """Return the state after one sweep."""
        assert isinstance(state, CoupledState)
        expectation: Any = state.inferred
        exposing, tasting = state.pairs
        exposing = _updated(exposing, expectation.exposing, counts, backend)
        tasting = _updated(tasting, expectation.tasting, counts, backend)
        return observe_coupled(exposing, tasting, counts, backend, state.log_base)


def _updated(pair: Pair, expectation: DenseExpectation, counts: Counts, backend: Backend) -> Pair:
    """Eqs. (update_hyper), (update_w) and (update_h) of one factorization."""
    model = with_item_rate(pair.model, pair.items)
    users = backend.conditional(model.user_prior, expectation.user_sums)
    items = backend.conditional(model.item_prior, backend.sum_by_item(counts, expectation, users))
    return Pair(model, users, items)


def begin_coupled(exposing: Pair, tasting: Pair, counts: Counts, backend: Backend) -> CoupledState:
    """Return the state at a start, which has no ELBO: its objective is −∞, as that of `run.begin`."""
    state = observe_coupled(exposing, tasting, counts, backend, total_log_base(Poisson(), counts))
    return replace(state, objective=-math.inf)


def observe_coupled(exposing: Pair, tasting: Pair, counts: Counts, backend: Backend, log_base: float) -> CoupledState:
    """Confront both factorizations with the data; the ELBO is the evidence of all cells less four divergences."""
    expectation: Any = expect_coupled(counts, exposing, tasting, backend)
    objective = log_base + expectation.log_evidence - exposing.divergence - tasting.divergence
    return CoupledState(
        tasting.model, tasting.users, tasting.items, None, expectation, objective, log_base, exposing=exposing
    )


# ---- a ridge regression of what was exposed -------------------------------------------------------------------------


@dataclass(frozen=True)
class RidgeState:
    """Factors of any sign, the probabilities π_i of being exposed, and the exposures that follow from them."""

    users: Array
    items: Array
    probability: Array  # one per item
    exposure: Array  # E[a | y], users × items
    objective: float


@dataclass(frozen=True)
class ExposedRidge:
    """y_ui is whether there is a count; a_ui ~ Bernoulli(π_i); y_ui ~ N(w_u·h_i, 1/λ) if a_ui = 1, else y_ui = 0.

    Each w has the penalty λ_w‖w‖²/2, each h λ_h‖h‖²/2, and π_i the prior Beta(α, β). The objective is the logarithm of
    the joint density of y, W, H and π, without the constants of their priors. Each step of a sweep raises it.
    """

    precision: float  # λ
    user_penalty: float  # λ_w
    item_penalty: float  # λ_h
    exposed_prior: float  # α, at least 1
    unexposed_prior: float  # β, at least 1

    def observe(self, seen: sp.csr_array, users: Array, items: Array, probability: Array) -> RidgeState:
        """Confront factors and probabilities with the data; `seen` stores a 1 for every count."""
        exposure, log_evidence = self.expect(seen, users, items, probability)
        prior = xlogy(self.exposed_prior - 1, probability) + xlog1py(self.unexposed_prior - 1, -probability)
        penalty = self.user_penalty * np.sum(users**2) + self.item_penalty * np.sum(items**2)
        return RidgeState(users, items, probability, exposure, float(log_evidence + prior.sum() - penalty / 2))

    def step(self, state: RidgeState, seen: sp.csr_array) -> RidgeState:
        """Return the state after one sweep: W, H and π from the exposures of the previous ones, then those again."""
        exposure = state.exposure
        users = self.solve(exposure, seen, state.items, self.user_penalty)
        items = self.solve(exposure.T, sp.csr_array(seen.T), users, self.item_penalty)
        exposed = self.exposed_prior - 1 + exposure.sum(axis=0)
        probability = np.minimum(exposed / (self.exposed_prior + self.unexposed_prior - 2 + len(users)), 1.0)
        return self.observe(seen, users, items, probability)

    def expect(self, seen: sp.csr_array, users: Array, items: Array, probability: Array) -> tuple[Array, float]:
        """Return E[a | y] of all cells, 1 where there is a count, and the log-density of the data.

        E[a | y = 0] = π N(0 | w·h, 1/λ) / (π N(0 | w·h, 1/λ) + 1 − π)
        """
        normalizer, total = 0.5 * math.log(self.precision / (2 * math.pi)), 0.0
        exposure = np.empty(seen.shape)
        with np.errstate(divide="ignore"):
            log_exposed, log_unexposed = np.log(probability), np.log1p(-probability)
        step = max(1, BLOCK_CELLS // max(seen.shape[1], 1))
        for rows in (slice(start, start + step) for start in range(0, seen.shape[0], step)):
            taken, score = seen[rows].toarray() > 0, users[rows] @ items.T
            log_density = normalizer - 0.5 * self.precision * (taken - score) ** 2 + log_exposed
            evidence = np.where(taken, log_density, np.logaddexp(log_density, log_unexposed))
            exposure[rows] = np.exp(log_density - evidence)
            total += float(evidence.sum())
        return exposure, total

    def solve(self, exposure: Array, seen: sp.csr_array, others: Array, penalty: float) -> Array:
        """Return (λ Σ_i E[a] h hᵀ + penalty)⁻¹ λ Σ_i y h for each row, with the other side's factors fixed."""
        targets, found = self.precision * (seen @ others), np.empty((seen.shape[0], others.shape[1]))
        step = max(1, BLOCK_CELLS // others.shape[1] ** 2)
        for rows in (slice(start, start + step) for start in range(0, len(found), step)):
            found[rows] = np.linalg.solve(self.moments(exposure[rows], others, penalty), targets[rows, :, None])[..., 0]
        return found

    def moments(self, exposure: Array, others: Array, penalty: float) -> Array:
        """Return λ Σ_i E[a] h hᵀ + penalty for each row, rows × K × K."""
        n_components = others.shape[1]
        first, second = np.triu_indices(n_components)  # the other half is the same
        half, step = np.zeros((len(exposure), len(first))), max(1, BLOCK_CELLS // len(first))
        for some in (slice(start, start + step) for start in range(0, len(others), step)):
            half += exposure[:, some] @ (others[some, first] * others[some, second])
        moments = np.empty((len(exposure), n_components, n_components))
        moments[:, first, second] = moments[:, second, first] = self.precision * half
        return np.asarray(moments + penalty * np.eye(n_components))

    def fold_in(self, seen: sp.csr_array, items: Array, probability: Array, tol: float, most: int) -> Array:
        """Return the factors of new rows: their own updates, repeated until none of them changes a row by much."""
        users = np.zeros((seen.shape[0], items.shape[1]))
        for _ in range(most):
            before = users
            users = self.solve(self.expect(seen, users, items, probability)[0], seen, items, self.user_penalty)
            change, size = (np.abs(values).sum(axis=1) for values in (users - before, users))
            if np.all(change <= tol * size):
                break
        return users


@dataclass(frozen=True)
class Ascent:
    """Where a run of `ExposedRidge` stands: all that `progress.Progress` shows and a fit keeps."""

    state: RidgeState
    objectives: tuple[float, ...] = ()

    @property
    def sweep(self) -> int:
        """Number of sweeps done."""
        return len(self.objectives)

    @property
    def objective(self) -> float:
        """The objective after the last sweep."""
        return self.state.objective


def ascend(
    algorithm: ExposedRidge, start: RidgeState, seen: sp.csr_array, until: Until, watch: Callable[[Any], Any]
) -> tuple[Ascent, Ending]:
    """Sweep until the objective rises by less than `tol`, relatively; Ctrl-C ends with the last finished sweep."""
    last, rounding = Ascent(start), ROUNDING * float(np.finfo(np.float64).eps)
    try:
        while last.sweep < until.max_iter:
            before = last.objective
            state = algorithm.step(last.state, seen)
            if not state.objective - before >= -rounding * (math.prod(seen.shape) + abs(before)):
                raise FallingObjectiveError(
                    f"sweep {last.sweep + 1}: the objective went from {before!r} to {state.objective!r}; "
                    "precision or penalties are out of the range of double precision"
                )
            last = replace(last, state=state, objectives=(*last.objectives, state.objective))
            watch(last)
            if state.objective - before <= until.tol * abs(before) and until.tol > 0:
                return last, Ending.CONVERGED
    except KeyboardInterrupt:
        if not last.sweep:
            raise
        return last, Ending.INTERRUPTED
    return last, Ending.MAX_ITER
