"""The one loop: sweep, check that the objective did not fall, report, stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.state import State, retie
from nbmf.model.factors import Factor
from nbmf.model.ties import REFRESHED_AFTER, Ties

Array = NDArray[np.floating[Any]]

ROUNDING = 32  # allowed fall in units of the last place of |objective| + total count, the size of what is summed


class Algorithm(Protocol):
    """Frozen settings and a step."""

    @property
    def begins_with_users(self) -> bool:
        """Whether a sweep starts from the users' sums, so that the walk before it must compute them."""

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""


class Ending(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Snapshot:
    """A run after a sweep: what a callback sees, and all that is needed to continue from there.

    Attributes
    ----------
    state : State
        Without its allocations and exposures, which follow from the rest.
    before : float
        The objective before the last sweep.
    objectives : tuple of float
        The objective after each sweep.
    pending : tuple of int
        Sweeps after which the ties are still to be refreshed.
    """

    state: State
    before: float
    objectives: tuple[float, ...]
    pending: tuple[int, ...]

    @property
    def sweep(self) -> int:
        """Number of sweeps done."""
        return len(self.objectives)

    @property
    def objective(self) -> float:
        """The objective after the last sweep; higher is better."""
        return self.state.objective

    @property
    def user_factors(self) -> Array:
        """⟨W⟩, users × K."""
        return self.state.users.mean

    @property
    def item_factors(self) -> Array:
        """⟨H⟩, items × K."""
        return self.state.items.mean

    def settled(self, tol: float) -> bool:
        """Whether the last sweep raised the objective by less than `tol`, relatively; never for 0 or a fall."""
        increase = self.objective - self.before
        return bool(tol > 0 and np.isfinite(increase) and 0 <= increase <= tol * abs(self.before))


@dataclass(frozen=True)
class Run:
    """Where a run ended, and how."""

    last: Snapshot
    ending: Ending

    @property
    def state(self) -> State:
        """The state after the last sweep."""
        return self.last.state

    @property
    def objectives(self) -> tuple[float, ...]:
        """The objective after each sweep."""
        return self.last.objectives


class Stopping(Protocol):
    """Decides when to end a run and which of its snapshots to keep."""

    def __call__(self, snapshot: Snapshot) -> bool:
        """Look at a sweep and return True to end the run."""

    def choose(self, last: Snapshot) -> Snapshot:
        """Return the snapshot to keep of a run that ended with this one."""


class FallingObjectiveError(ArithmeticError):
    """The objective fell by more than rounding: a bug, or numbers beyond the range of their precision."""


class Until(NamedTuple):
    """When to stop: after `max_iter` sweeps, or when the objective rises by less than `tol` (the paper's τ)."""

    max_iter: int
    tol: float


def run(
    algorithm: Algorithm,
    state: State,
    counts: Counts,
    backend: Backend,
    until: Until,
    *,
    tie: Callable[[Factor], Ties] | None = None,
    resume: Snapshot | None = None,
    watch: Callable[[Snapshot], bool | None] = lambda snapshot: None,
) -> Run:
    """Sweep until the objective has converged, the sweeps are used up, or somebody says stop.

    Parameters
    ----------
    state : State
        Where to start, with its allocations and exposures.
    tie : callable, optional
        Makes ties from the items. They are refreshed after the sweeps `ties.REFRESHED_AFTER`. A run that would stop
        before the last of those refreshes them once more and continues.
    resume : Snapshot, optional
        What to continue from; `state` is its state.
    watch : callable
        Called with a snapshot after each sweep; True ends the run. Ctrl-C ends it with the last finished sweep.
    """
    total_count = counts.total
    precision = ROUNDING * float(np.finfo(counts.by_user.dtype).eps)
    last = resume or Snapshot(_kept(state), -math.inf, (), REFRESHED_AFTER if tie is not None else ())
    try:
        while True:
            settled, pending = last.settled(until.tol), last.pending
            if settled and not pending:
                return Run(last, Ending.CONVERGED)
            if last.sweep >= until.max_iter:
                return Run(last, Ending.MAX_ITER)
            # The next step gets the only reference to the allocations and exposures, a third of the memory of a fit,
            # and may let go of them.
            handed = [state]
            del state
            if tie is not None and pending and (settled or last.sweep == pending[0]):
                ties, sum_users = tie(last.state.items), algorithm.begins_with_users
                handed.append(retie(handed.pop(), ties, counts, backend, sum_users=sum_users))
                pending = () if settled else pending[1:]
            before = handed[0].objective
            state = algorithm.step(handed.pop(), counts, backend)
            if not state.objective - before >= -precision * (abs(before) + total_count):
                raise FallingObjectiveError(
                    f"sweep {last.sweep + 1}: the objective went from {before!r} to {state.objective!r}; "
                    "counts or factors are out of the range of their precision (dtype='float64' has more)"
                )
            last = Snapshot(_kept(state), before, (*last.objectives, state.objective), pending)
            if watch(last):
                return Run(last, Ending.STOPPED)
    except KeyboardInterrupt:
        if not last.sweep:
            raise
        return Run(last, Ending.INTERRUPTED)


def _kept(state: State) -> State:
    return replace(state, expectation=None)
