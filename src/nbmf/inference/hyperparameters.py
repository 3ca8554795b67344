"""What the paper fixes and the data can tell: rates and shapes of the priors, and the concentration.

Each update is the best value for the factors as they are, or a step that is taken back if the objective falls, so a
sweep with them ascends like one without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.state import State, observe, total_log_base, with_item_rate
from nbmf.model import Model
from nbmf.model.factors import Factor, Gamma, Prior
from nbmf.model.likelihood import NegativeBinomial

Array = NDArray[np.floating[Any]]

LONGEST_STEP = 0.7  # of ln α in a sweep: while the factors are far from home, so is the best α for them
LEAST, MOST = 1e-3, 1e4  # of a learned α: rows that are no more dispersed than Poisson's have no largest likelihood
NEWTON_STEPS = 50


@dataclass(frozen=True)
class Learned:
    """Which hyper-parameters follow the data.

    concentration : "" for none, "all" for one α, "user" or "item" for one each
    rates : every user and item has its own rate, β^W_u = α^W K/Σ_k⟨w_uk⟩ and β^H_i alike; else β^H is one, β^W fixed
    shapes : α^W and α^H
    """

    concentration: str = ""
    rates: bool = False
    shapes: bool = False


NOTHING = Learned()


def with_priors(model: Model, users: Factor, items: Factor, learned: Learned) -> Model:
    """Return the model with the rates and shapes that are best for these factors."""
    if learned.rates:
        user_prior = replace(model.user_prior, rate=_row_rates(model.user_prior.shape, users))
        item_prior = replace(model.item_prior, rate=_row_rates(model.item_prior.shape, items))
        model = replace(model, user_prior=user_prior, item_prior=item_prior)
    else:
        model = with_item_rate(model, items)  # Eq. (update_hyper)
    if learned.shapes and isinstance(users, Gamma) and isinstance(items, Gamma):  # a start is no posterior
        model = replace(
            model, user_prior=_with_shape(model.user_prior, users), item_prior=_with_shape(model.item_prior, items)
        )
    return model


def _row_rates(shape: float, factor: Factor) -> Array:
    """β = shape K/Σ_k⟨x⟩ for each row: where the ELBO's prior terms are largest; rows × 1."""
    sums = factor.row_means if isinstance(factor, Gamma) else factor.mean.sum(axis=1, dtype=np.float64)
    return np.asarray(shape * factor.dimensions[1] / np.maximum(sums, np.finfo(np.float32).tiny))[:, None]


def _with_shape(prior: Prior, factor: Gamma) -> Prior:
    """Solve ψ(shape) = mean of ln β + ⟨ln x⟩, where the ELBO's prior terms are largest, by Newton's method."""
    target = float(np.mean(np.log(prior.rate))) + float(factor.row_logs.sum()) / math.prod(factor.dimensions)
    # ψ(s) is about ln(s − ½) for large s and −1/s for small
    shape = np.exp(target) + 0.5 if target > -2.2 else 1 / (digamma(1) - target)
    for _ in range(NEWTON_STEPS):
        step = (digamma(shape) - target) / polygamma(1, shape)
        shape = max(shape - step, shape / 2)
        if abs(step) <= 1e-12 * shape:
            break
    return replace(prior, shape=float(shape))


def observe_learning(
    model: Model, before: State, counts: Counts, backend: Backend, users: Factor, items: Factor, learned: Learned
) -> State:
    """Confront new factors with the data under a better concentration, or under the old one if that is no better.

    One safeguarded Newton step on ln α by the slope and curvature of the objective at the state before.
    """
    plain = (counts, backend, users, items, before.ties)
    law, same_kind = model.likelihood, isinstance(before.users, Gamma) == isinstance(users, Gamma)
    if learned.concentration and isinstance(law, NegativeBinomial) and same_kind:
        better = replace(model, likelihood=_newton(law, before, counts, backend, learned.concentration))
        log_base = total_log_base(better.likelihood, counts)
        after = observe(better, *plain, log_base)
        if after.objective >= before.objective:
            return after
        del after
    return observe(model, *plain, before.log_base)


def _newton(law: NegativeBinomial, state: State, counts: Counts, backend: Backend, group: str) -> NegativeBinomial:
    slope, curvature = backend.slopes(counts, state.inferred, group)
    α = np.asarray(law.concentration, np.float64)
    g, h = α * slope, α * α * curvature + α * slope
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(h < 0, -g / h, np.sign(g) * LONGEST_STEP)
    better = np.clip(α * np.exp(np.clip(step, -LONGEST_STEP, LONGEST_STEP)), LEAST, MOST)
    return NegativeBinomial(float(better) if group == "all" else better)
