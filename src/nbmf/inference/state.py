"""Where inference stands: the factors and what follows from them.

    y_ui ~ Poisson(a_ui μ_ui),  a_ui ~ p(a),  μ = W Hᵀ,  w_uk ~ Gamma(α^W, β^W),  h_ik ~ Gamma(α^H, β^H)

Factors that are points ignore the priors: the maximum-likelihood form of §3. Gamma factors are the Bayesian one of §4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend, Expectation
from nbmf.backends.counts import Counts
from nbmf.model import Model
from nbmf.model.factors import Factor, Gamma, Point, Prior
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class State:
    """Factors, and what follows from them: all that the next sweep needs.

    expectation : allocations and exposures at these factors; None in a state that is only kept, not swept on from
    objective : ELBO, or log-likelihood for points, at these factors; higher is better
    log_base : the part of the objective that no factor enters, Σ Likelihood.log_base
    trail : parameters of earlier states, for algorithms that extrapolate
    """

    model: Model
    users: Factor
    items: Factor
    ties: Ties | None
    expectation: Expectation | None
    objective: float
    log_base: float
    trail: tuple[tuple[Array, ...], ...] = ()

    @property
    def inferred(self) -> Expectation:
        """The allocations and exposures, which must be there."""
        if self.expectation is None:
            raise ValueError("this state was kept without its allocations and exposures; observe() makes them anew")
        return self.expectation


def begin(model: Model, counts: Counts, backend: Backend, users: Array, items: Array, ties: Ties | None) -> State:
    """Return the state at a given start, which serves as arithmetic and as geometric means.

    A start is no posterior, so it has no ELBO: its objective is −∞, and the first sweep cannot fall below it.
    """
    log_base = total_log_base(model.likelihood, counts)
    state = observe(model, counts, backend, Point(users), Point(items), ties, log_base)
    return replace(state, objective=-math.inf)


def total_log_base(likelihood: Likelihood, counts: Counts) -> float:
    """Return the part of the objective that no factor enters."""
    if not isinstance(likelihood.concentration, np.ndarray):
        values, times = counts.values
        return float(likelihood.log_base(values) @ times)
    rows, columns, known = counts.cells
    return float(likelihood.at(rows, columns).log_base(known).sum())


def observe(
    model: Model,
    counts: Counts,
    backend: Backend,
    users: Factor,
    items: Factor,
    ties: Ties | None,
    log_base: float,
    *,
    sum_users: bool = True,
) -> State:
    """Confront factors with the data: the one walk gives the latent variables and the objective (math of §4.2).

        ELBO = Σ_ui [y ln λ + log_evidence(y, μ)] − KL(q(W)‖p) − KL(q(H)‖p)

    Points have no KL, and λ = μ makes the rest the log-likelihood.
    """
    expectation = backend.expect(counts, users, items, model.likelihood, ties, sum_users=sum_users)
    objective = log_base + expectation.log_evidence
    for factor, prior in ((users, model.user_prior), (items, model.item_prior)):
        if isinstance(factor, Gamma):
            objective -= factor.divergence(prior)
    return State(model, users, items, ties, expectation, objective, log_base)


def retie(state: State, ties: Ties | None, counts: Counts, backend: Backend) -> State:
    """Tie other items together: the same factors under another bound, whose value is the new objective."""
    model, users, items, log_base = state.model, state.users, state.items, state.log_base
    del state  # as in CAVI.step
    bayesian = isinstance(users, Gamma)  # MM starts with the items' sums
    return observe(model, counts, backend, users, items, ties, log_base, sum_users=bayesian)


def revive(state: State, counts: Counts, backend: Backend) -> State:
    """Return a kept state, one that a sweep has made, with its allocations and exposures."""
    return replace(retie(state, state.ties, counts, backend), trail=state.trail)


def with_item_rate(model: Model, items: Factor) -> Model:
    """Return the model with the β^H that maximizes the ELBO, α^H IK / Σ⟨h_ik⟩: Eq. (update_hyper), corrected."""
    shape = model.item_prior.shape
    return replace(model, item_prior=Prior(shape, shape * math.prod(items.dimensions) / items.total))
