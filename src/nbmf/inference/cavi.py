"""Coordinate-ascent variational inference: Algorithm 1 of the paper, in its printed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.hyperparameters import NOTHING, Learned, observe_learning, with_priors
from nbmf.inference.state import State, observe


@dataclass(frozen=True)
class CAVI:
    """One sweep: β^H, then W and H from the allocations and exposures of the previous factors, then those again.

    H is updated with the old exposures and the new ⟨w⟩: c and a are computed once per sweep, as printed.
    """

    begins_with_users: ClassVar[bool] = True
    learned: Learned = NOTHING

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        ties, log_base = state.ties, state.log_base
        model = with_priors(state.model, state.users, state.items, self.learned)
        users = backend.conditional(model.user_prior, state.inferred.user_sums)  # Eq. (update_w)
        item_sums = backend.sum_by_item(counts, state.inferred, users)
        items = backend.conditional(model.item_prior, item_sums)  # Eq. (update_h)
        if self.learned.concentration:
            return observe_learning(model, state, counts, backend, users, items, self.learned)
        del state, item_sums  # frees the memory of the old allocations and exposures for the new ones
        return observe(model, counts, backend, users, items, ties, log_base)  # Eqs. (update_c), (update_a)
