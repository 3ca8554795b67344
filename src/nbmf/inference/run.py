"""The one loop: sweep, check that the objective did not fall, report, stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import Backend
from nbmf.interactions import Counts
from nbmf.model import State, retie
from nbmf.ties import REFRESHED_AFTER, Ties

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
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Run:
    """The last state, the objective after each sweep, and how it ended."""

    state: State
    objectives: list[float]
    ending: Ending


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
    tie: Callable[[Array], Ties] | None = None,
    report: Callable[[int, float], None] = lambda sweep, objective: None,
) -> Run:
    """Sweep until the objective's relative increase is below `tol` (the paper's τ), or `max_iter` times.

    `tie` makes ties from the items' means: they are refreshed after the sweeps `ties.REFRESHED_AFTER`, and a run that
    would stop before the last of those refreshes once more instead and goes on with what it got. Ctrl-C ends the run
    with the last finished sweep.
    """
    objectives: list[float] = []
    pending: tuple[int, ...] = REFRESHED_AFTER if tie is not None else ()
    total_count = float(counts.by_user.data.sum(dtype=np.float64))
    precision = ROUNDING * float(np.finfo(counts.by_user.dtype).eps)
    last = state
    try:
        while len(objectives) < max_iter:
            # `last` is what Ctrl-C leaves. The step gets the only reference to the allocations and exposures, a third
            # of the memory of a fit, and may let go of them.
            last, handed = replace(state, expectation=None), [state]
            del state
            state = algorithm.step(handed.pop(), counts, backend)
            increase = state.objective - last.objective
            if not increase >= -precision * (abs(last.objective) + total_count):
                raise FallingObjectiveError(
                    f"sweep {len(objectives) + 1}: the objective went from {last.objective!r} to {state.objective!r}; "
                    "counts or factors are out of the range of their precision (dtype='float64' has more)"
                )
            settled = tol > 0 and np.isfinite(increase) and increase <= tol * abs(last.objective)
            last = replace(state, expectation=None)
            objectives.append(state.objective)
            report(len(objectives), state.objective)
            if pending and tie is not None:
                if settled or len(objectives) == pending[0]:
                    handed = [state]
                    del state
                    state = retie(handed.pop(), tie(last.items.mean), counts, backend)
                    pending = () if settled else pending[1:]
            elif settled:
                return Run(last, objectives, Ending.CONVERGED)
    except KeyboardInterrupt:
        if not objectives:
            raise
        return Run(last, objectives, Ending.INTERRUPTED)
    return Run(last, objectives, Ending.MAX_ITER)
