"""Maximum likelihood by majorization-minimization: the multiplicative updates of the paper's §3.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend, Sums
from nbmf.counts import Counts
from nbmf.factors import Point
from nbmf.inference.hyperparameters import NOTHING, Learned, observe_learning
from nbmf.model import State, observe

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class MM:
    """One sweep: H from WHᵀ, then W from the new WHᵀ."""

    learned: Learned = NOTHING

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        model, ties = state.model, state.ties
        item_sums = backend.sum_by_item(counts, state.inferred, state.users.mean)
        items = multiply(state.items.mean, item_sums)  # Eq. (nmfH)
        between = backend.expect(counts, state.users, items, model.likelihood, ties)
        users = multiply(state.users.mean, between.user_sums)  # Eq. (nmfW)
        if self.learned.concentration:
            return observe_learning(model, state, counts, backend, users, items, self.learned)
        return observe(model, counts, backend, users, items, ties, state.log_base, sum_users=False)


def multiply(value: Array, sums: Sums) -> Point:
    """Return allocated / exposed, which is the old value times the ratio of sums that the paper prints.

    Where nothing is exposed (the other side's column is 0) no value changes the likelihood: the old one stays.
    """
    exposed = np.broadcast_to(sums.exposed, value.shape)
    return Point(np.divide(sums.allocated, exposed, out=value.copy(), where=exposed > 0))
