"""Maximum likelihood by majorization-minimization: the multiplicative updates of the paper's §3.2."""

from dataclasses import dataclass
from typing import ClassVar

from nbmf.backends import Backend, Given
from nbmf.backends.counts import Counts
from nbmf.inference.hyperparameters import NOTHING, Inferred, Learned, observe_learning
from nbmf.inference.run import State, observe


@dataclass(frozen=True)
class MM:
    """One sweep: H from WHᵀ, then W from the new WHᵀ."""

    begins_with_users: ClassVar[bool] = False
    learned: Learned = NOTHING

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        model = state.model
        item_sums = backend.sum_by_item(counts, state.inferred, state.users)
        items = backend.quotient(state.items, item_sums)  # Eq. (nmfH)
        between = backend.expect(counts, Given(state.users, items, model.likelihood, state.ties))
        users = backend.quotient(state.users, between.user_sums)  # Eq. (nmfW)
        if group := self.learned.likelihood:
            found = Inferred(state.inferred, item_sums)
            return observe_learning(model, state, counts, backend, (users, items), group, found)
        return observe(model, counts, backend, users, items, state.next_ties(items), state.log_base, sum_users=False)
