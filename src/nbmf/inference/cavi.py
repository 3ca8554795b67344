"""Coordinate-ascent variational inference: Algorithm 1 of the paper, in its printed order."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.hyperparameters import NOTHING, Inferred, Learned, observe_learning, row_rates, with_shape
from nbmf.inference.run import State, observe
from nbmf.model import Model
from nbmf.model.factors import Factor, Prior


@dataclass(frozen=True)
class CAVI:
    """One sweep: β^H, then W and H from the allocations and exposures of the previous factors, then those again.

    H is updated with the old exposures and the new ⟨w⟩: c and a are computed once per sweep, as printed.
    """

    begins_with_users: ClassVar[bool] = True
    learned: Learned = NOTHING

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        log_base = state.log_base
        model = with_priors(state.model, state.users, state.items, self.learned)
        users = backend.conditional(model.user_prior, state.inferred.user_sums)  # Eq. (update_w)
        item_sums = backend.sum_by_item(counts, state.inferred, users)
        items = backend.conditional(model.item_prior, item_sums)  # Eq. (update_h)
        if group := self.learned.likelihood:
            found = Inferred(state.inferred, item_sums)
            return observe_learning(model, state, counts, backend, (users, items), group, found)
        ties = state.next_ties(items)
        del state, item_sums  # frees the memory of the old allocations and exposures for the new ones
        return observe(model, counts, backend, users, items, ties, log_base)  # Eqs. (update_c), (update_a)


def with_priors(model: Model, users: Factor, items: Factor, learned: Learned) -> Model:
    """Return the model with the best rates and shapes for these factors."""
    if learned.rates:
        user_prior = replace(model.user_prior, rate=row_rates(model.user_prior.shape, users))
        item_prior = replace(model.item_prior, rate=row_rates(model.item_prior.shape, items))
        model = replace(model, user_prior=user_prior, item_prior=item_prior)
    else:
        model = with_item_rate(model, items)  # Eq. (update_hyper)
    if learned.shapes and users.is_posterior:  # a start is not
        model = replace(
            model, user_prior=with_shape(model.user_prior, users), item_prior=with_shape(model.item_prior, items)
        )
    return model


def with_item_rate(model: Model, items: Factor) -> Model:
    """Return the model with the β^H that maximizes the ELBO, α^H IK / Σ⟨h_ik⟩: Eq. (update_hyper), corrected."""
    shape = model.item_prior.shape
    return replace(model, item_prior=Prior(shape, shape * math.prod(items.dimensions) / items.total))
