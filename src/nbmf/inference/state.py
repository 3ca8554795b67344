"""Where inference stands: the factors and what follows from them.

The objective is the ELBO of §4.2 for gamma factors and the log-likelihood of §3 for points. One walk over the data at
given factors yields both the objective and the allocations and exposures that the next sweep starts from.
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
from nbmf.model.factors import Factor, Point, Prior
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class State:
    """Factors, and what follows from them: all that the next sweep needs.

    Attributes
    ----------
    expectation : Expectation or None
        Allocations and exposures at these factors. None in a state that is only kept and never swept on from.
    objective : float
        ELBO, or log-likelihood for points; higher is better.
    log_base : float
        The part of the objective that does not depend on the factors, Σ Likelihood.log_base.
    trail : tuple
        Parameters of earlier states, for algorithms that extrapolate.
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
            raise ValueError("this state was kept without its allocations and exposures; observe() computes them again")
        return self.expectation


def begin(model: Model, counts: Counts, backend: Backend, users: Array, items: Array, ties: Ties | None) -> State:
    """Return the state at a start, whose values serve as both arithmetic and geometric means.

    A start is not a posterior and has no ELBO. Its objective is −∞, so the first sweep cannot fall below it.
    """
    log_base = total_log_base(model.likelihood, counts)
    state = observe(model, counts, backend, Point(users), Point(items), ties, log_base)
    return replace(state, objective=-math.inf)


def total_log_base(likelihood: Likelihood, counts: Counts) -> float:
    """Return the part of the objective that does not depend on the factors."""
    if not likelihood.varies:
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
    """Confront factors with the data: one walk yields the latent variables and the objective (§4.2).

        ELBO = Σ_ui [log_events(y, λ) + log_evidence(y, μ)] − KL(q(W)‖p) − KL(q(H)‖p)

    Points have no KL, and λ = μ makes the rest the log-likelihood.
    """
    expectation = backend.expect(counts, users, items, model.likelihood, ties, sum_users=sum_users)
    objective = log_base + expectation.log_evidence
    for factor, prior in ((users, model.user_prior), (items, model.item_prior)):
        objective -= factor.divergence(prior)
    return State(model, users, items, ties, expectation, objective, log_base)


def retie(state: State, ties: Ties | None, counts: Counts, backend: Backend, *, sum_users: bool) -> State:
    """Change the ties: the same factors under another bound, whose value is the new objective."""
    model, users, items, log_base = state.model, state.users, state.items, state.log_base
    del state  # as in CAVI.step
    return observe(model, counts, backend, users, items, ties, log_base, sum_users=sum_users)


def revive(state: State, counts: Counts, backend: Backend, *, sum_users: bool) -> State:
    """Return a kept state with its allocations and exposures computed again."""
    return replace(retie(state, state.ties, counts, backend, sum_users=sum_users), trail=state.trail)


def with_item_rate(model: Model, items: Factor) -> Model:
    """Return the model with the β^H that maximizes the ELBO, α^H IK / Σ⟨h_ik⟩: Eq. (update_hyper), corrected."""
    shape = model.item_prior.shape
    return replace(model, item_prior=Prior(shape, shape * math.prod(items.dimensions) / items.total))
