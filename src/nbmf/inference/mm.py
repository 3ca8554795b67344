"""Maximum likelihood by majorization-minimization: the multiplicative updates of the paper's §3.2."""

from dataclasses import dataclass
from typing import ClassVar

from nbmf.backends import Backend, Given
from nbmf.backends.counts import Counts
from nbmf.inference.hyperparameters import NOTHING, Learned, better_model
from nbmf.inference.run import Proposal, State, Sweep


@dataclass(frozen=True)
class MM(Sweep):
    """One sweep: H from WHᵀ, then W from the new WHᵀ."""

    begins_with_users: ClassVar[bool] = False
    learned: Learned = NOTHING

    def improve(self, state: State, counts: Counts, backend: Backend) -> Proposal:
        """Return what the allocations and exposures of a state lead to."""
        model = state.model
        item_sums = backend.sum_by_item(counts, state.inferred, state.users)
        items = backend.quotient(state.items, item_sums)  # Eq. (nmfH)
        between = backend.expect(counts, Given(state.users, items, model.likelihood, state.ties))
        users = backend.quotient(state.users, between.user_sums)  # Eq. (nmfW)
        better = None
        if group := self.learned.likelihood:
            better = better_model(model, state, counts, backend, group, item_sums, users.kind)
        return Proposal(model, users, items, better)
