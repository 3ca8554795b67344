"""What the paper fixes and the data can tell: rates and shapes of the priors, and the concentration.

Each update is the best value for the current factors, or a step that is taken back if the objective falls, so a sweep
with it ascends like one without.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import digamma, polygamma

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.run import State, observe, total_log_base
from nbmf.model import Model
from nbmf.model.factors import Array, Factor, Prior

NEWTON_STEPS = 50


@dataclass(frozen=True)
class Learned:
    """Which hyper-parameters are learned."""

    concentration: str = ""  # "all" for one α, "user" or "item" for one each
    rates: bool = False  # one per row, β^W_u = α^W K/Σ_k⟨w_uk⟩ and likewise β^H_i; otherwise one β^H, and β^W is fixed
    shapes: bool = False  # α^W and α^H


NOTHING = Learned()


def row_rates(shape: float, factor: Factor) -> Array:
    """Return β = shape K/Σ_k⟨x⟩ of each row, where the ELBO's prior terms are largest; rows × 1."""
    sums = np.maximum(factor.row_means, np.finfo(np.float32).tiny)
    return np.asarray(shape * factor.dimensions[1] / sums)[:, None]


def with_shape(prior: Prior, factor: Any) -> Prior:
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

    The better one is a safeguarded Newton step by the slope and curvature of the objective at the state before.
    """
    fixed = (counts, backend, users, items, before.ties)
    if before.users.kind == users.kind:  # a start has no objective to improve on
        slopes = backend.slopes(counts, before.inferred, learned.concentration)
        better = replace(model, likelihood=model.likelihood.stepped(*slopes))
        after = observe(better, *fixed, total_log_base(better.likelihood, counts))
        if after.objective >= before.objective:
            return after
        del after
    return observe(model, *fixed, before.log_base)
