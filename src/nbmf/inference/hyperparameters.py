"""What the paper fixes and the data can tell: rates and shapes of the priors, and the parameter of the likelihood.

Each update is the best value for the current factors, or a step that is taken back if the objective falls, so a sweep
with it ascends like one without.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import digamma, polygamma

from nbmf.backends import Backend, Expectation, Sums
from nbmf.backends.counts import Counts
from nbmf.inference.run import State
from nbmf.model import Model
from nbmf.model.factors import Array, Factor, Prior
from nbmf.model.likelihood import Likelihood

NEWTON_STEPS = 50
ROUNDING = 1e-3  # relative; every count has at least one event, but a sum of them is rounded
POOLED = 100.0  # events of average size that are added to each item's own, as few counts say little about its jumps


@dataclass(frozen=True)
class Learned:
    """Which hyper-parameters are learned."""

    likelihood: str = ""  # its parameter: "all" for one, "user" or "item" for one each
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


class Inferred(NamedTuple):
    """What a better parameter of the likelihood is made of: allocations and exposures, and their sums for one side."""

    expectation: Expectation
    sums: Sums


def better_model(
    model: Model, before: State, counts: Counts, backend: Backend, group: str, item_sums: Sums, kind: str
) -> Model | None:
    """Return the model with a better parameter of the likelihood, one for all cells or for each of a `group`."""
    # a start, which is not yet of the kind of factors, has no objective to improve on; that of other ties is no measure
    if before.users.kind != kind or before.retie is not None:
        return None
    found = Inferred(before.inferred, item_sums)
    return replace(model, likelihood=better_likelihood(model.likelihood, counts, backend, group, found))


def better_likelihood(likelihood: Likelihood, counts: Counts, backend: Backend, group: str, q: Inferred) -> Likelihood:
    """Return the likelihood with a better parameter for given allocations and exposures.

    A concentration takes a safeguarded Newton step. With the events and exposures of EM's E-step, the best jumps have
    the mean Σ y/Σ E[n], and the best probability of being exposed is the mean of E[a]. Jumps of single items are drawn
    towards those of all.
    """
    if likelihood.learns_from == "slopes":
        return likelihood.stepped(*backend.slopes(counts, q.expectation, group))
    if likelihood.learns_from == "exposures":
        return likelihood.relearned(backend.mean_exposure(counts, q.expectation, group))
    n_events = np.asarray(q.sums.allocated.sum(1).tolist())  # of each item; those of a GPU are not NumPy's
    n_events = np.maximum(n_events, (1 - ROUNDING) * counts.item_sizes)  # a factor of 0 loses the events of its counts
    overall = counts.total / max(n_events.sum(), np.finfo(np.float64).tiny)
    if group == "all":
        return likelihood.relearned(overall)
    return likelihood.relearned(((counts.item_totals + POOLED * overall) / (n_events + POOLED))[None, :])
