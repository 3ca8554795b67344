"""Coordinate-ascent variational inference: Algorithm 1 of the paper, in its printed order."""

from __future__ import annotations

from dataclasses import dataclass

from nbmf.backends import Backend
from nbmf.interactions import Counts
from nbmf.model import State, observe, with_item_rate


@dataclass(frozen=True)
class CAVI:
    """One sweep: β^H, then W and H from the allocations and exposures of the factors before, then those anew.

    H is updated with the old exposures and the new ⟨w⟩: c and a are computed once a sweep, as printed.
    """

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        ties, log_base = state.ties, state.log_base
        model = with_item_rate(state.model, state.items)  # Eq. (update_hyper)
        users = backend.conditional(model.user_prior, state.inferred.user_sums)  # Eq. (update_w)
        item_sums = backend.sum_by_item(counts, state.inferred, users.mean)
        items = backend.conditional(model.item_prior, item_sums)  # Eq. (update_h)
        del state, item_sums  # if nobody else has them, the new allocations and exposures get their memory
        return observe(model, counts, backend, users, items, ties, log_base)  # Eqs. (update_c), (update_a)
