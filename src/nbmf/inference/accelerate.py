"""Momentum for any monotone algorithm, safeguarded: the objective still never falls.

A sweep F is a map on θ, the logarithms of the factors' parameters. Sweeps that gain little tend to keep moving the
same way, so the next one starts further along:

    θ' = F(θ_n) + s (F(θ_n) − F(θ_{n−1}))

The step s is that of Ang & Gillis (2019): it grows as long as the objective rises, up to a limit that grows more
slowly. If the objective at θ' is below that before, θ' is discarded, F(θ_n) is taken, the limit drops to s, and s
shrinks. A sweep is evaluated once, and once more if θ' is discarded.
"""

from dataclasses import dataclass, replace

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.run import Momentum, State, Sweep, conclude

FIRST, LONGEST = 0.5, 1.0
GROWTH, LIMIT_GROWTH, SHRINKING = 1.05, 1.01, 1.5
SHORTEST, LEAST_LIMIT = 0.1, 0.3  # near the end rounding lowers objectives as well, and steps would shrink to nothing


@dataclass(frozen=True)
class Accelerated:
    """An algorithm with momentum."""

    algorithm: Sweep

    @property
    def begins_with_users(self) -> bool:
        """As the algorithm does."""
        return self.algorithm.begins_with_users

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep, whose objective is not below the one before."""
        found, before = self.algorithm.improve(state, counts, backend), state.without_expectation()
        del state  # as in `Sweep.step`
        here = tuple(backend.parameters(side) for side in found.sides)
        past, step, limit, n_sweeps = before.momentum or Momentum((), FIRST, LONGEST, 0)
        n_sweeps = 0 if before.retie is not None else n_sweeps + 1
        if past and before.retie is None:  # the objective of other ties is no safeguard
            users, items = (
                backend.extrapolate(*of_side, step) for of_side in zip(found.sides, here, past, strict=True)
            )
            proposal = replace(found, users=users, items=items)
            del users, items
            after = conclude(proposal, before, counts, backend, sum_users=self.begins_with_users)
            if after.objective >= before.objective:
                longer = min(limit, step * GROWTH), min(LONGEST, limit * LIMIT_GROWTH)
                return replace(after, momentum=Momentum(here, *longer, n_sweeps))
            del after, proposal
            step, limit = max(step / SHRINKING, SHORTEST), max(step, LEAST_LIMIT)
        after = conclude(found, before, counts, backend, sum_users=self.begins_with_users)
        return replace(after, momentum=Momentum(here, step, limit, n_sweeps))
