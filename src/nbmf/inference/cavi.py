"""Coordinate-ascent variational inference: Algorithm 1 of the paper, in its printed order."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.hyperparameters import NOTHING, Learned, better_model, row_rates, with_shape
from nbmf.inference.run import Proposal, State, Sweep
from nbmf.model import Model
from nbmf.model.factors import Factor, Prior


@dataclass(frozen=True)
class CAVI(Sweep):
    """One sweep: β^H, then W and H from the allocations and exposures of the previous factors, then those again.

    H is updated with the old exposures and the new ⟨w⟩: c and a are computed once per sweep, as printed.
    """

    begins_with_users: ClassVar[bool] = True
    learned: Learned = NOTHING

    def improve(self, state: State, counts: Counts, backend: Backend) -> Proposal:
        """Return what the allocations and exposures of a state lead to."""
        model = with_priors(state.model, state.users, state.items, self.learned)
        users = backend.conditional(model.user_prior, state.inferred.user_sums)  # Eq. (update_w)
        item_sums = backend.sum_by_item(counts, state.inferred, users)
        items = backend.conditional(model.item_prior, item_sums)  # Eq. (update_h)
        better = None
        if group := self.learned.likelihood:
            better = better_model(model, state, counts, backend, group, item_sums, users.kind)
        return Proposal(model, users, items, better)


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
