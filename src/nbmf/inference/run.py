"""The one loop: sweep, check that the objective did not fall, report, stop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend
from nbmf.backends.counts import Counts
from nbmf.inference.state import State, retie
from nbmf.model.factors import Factor
from nbmf.model.ties import REFRESHED_AFTER, Ties

Array = NDArray[np.floating[Any]]

ROUNDING = 32  # in units of the last place of (|objective| + total count), the size of the terms that are summed


class Algorithm(Protocol):
    """Frozen settings and a step."""

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
    """A run after a sweep: what a callback sees, and all that going on from there needs.

    state : without its allocations and exposures, which follow from the rest of it
    before : the objective from which the last sweep rose
    objectives : after each sweep
    pending : the sweeps after which the ties are still to be refreshed
    """

    state: State
    before: float
    objectives: tuple[float, ...]
    pending: tuple[int, ...]

    @property
    def sweep(self) -> int:
        """How many sweeps are done."""
        return len(self.objectives)

    @property
    def objective(self) -> float:
        """After the last sweep; higher is better."""
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
        """Whether the relative increase of the last sweep was below `tol`; 0 never is, nor a fall by rounding."""
        increase = self.objective - self.before
        return bool(tol > 0 and np.isfinite(increase) and 0 <= increase <= tol * abs(self.before))


@dataclass(frozen=True)
class Run:
    """Where a run ended, and how."""

    last: Snapshot
    ending: Ending

    @property
    def state(self) -> State:
        """After the last sweep."""
        return self.last.state

    @property
    def objectives(self) -> tuple[float, ...]:
        """After each sweep."""
        return self.last.objectives


class Stopping(Protocol):
    """Decides when a run has gone far enough, and which of its snapshots is kept."""

    def __call__(self, snapshot: Snapshot) -> bool:
        """Look at a sweep; True ends the run."""

    def choose(self, last: Snapshot) -> Snapshot:
        """Return what to keep of a run that ended with this snapshot."""


class FallingObjectiveError(ArithmeticError):
    """The objective fell by more than rounding: never by the mathematics, so the program is wrong or out of range."""


def run(
    algorithm: Algorithm,
    state: State,
    counts: Counts,
    backend: Backend,
    *,
    max_iter: int,
    tol: float,
    tie: Callable[[Factor], Ties] | None = None,
    resume: Snapshot | None = None,
    watch: Callable[[Snapshot], bool | None] = lambda snapshot: None,
) -> Run:
    """Sweep until the objective's relative increase is below `tol` (the paper's τ), or `max_iter` times.

    `tie` makes ties from the items: they are refreshed after the sweeps `ties.REFRESHED_AFTER`, and a run that
    would stop before the last of those refreshes once more instead and goes on with what it got. With `resume` the run
    goes on from there, `state` being its state with allocations and exposures. `watch` is called after each sweep;
    True ends the run. Ctrl-C ends it with the last finished sweep.
    """
    total_count = counts.total
    precision = ROUNDING * float(np.finfo(counts.by_user.dtype).eps)
    # what Ctrl-C leaves
    last = resume or Snapshot(_kept(state), -math.inf, (), REFRESHED_AFTER if tie is not None else ())
    try:
        while True:
            settled, pending = last.settled(tol), last.pending
            if settled and not pending:
                return Run(last, Ending.CONVERGED)
            if last.sweep >= max_iter:
                return Run(last, Ending.MAX_ITER)
            # The next step gets the only reference to the allocations and exposures, a third of the memory of a fit,
            # and may let go of them.
            handed = [state]
            del state
            if tie is not None and pending and (settled or last.sweep == pending[0]):
                handed.append(retie(handed.pop(), tie(last.state.items), counts, backend))
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
