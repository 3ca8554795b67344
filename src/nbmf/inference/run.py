"""Where inference stands, and the one loop: sweep, check that the objective did not fall, report, stop.

The objective is the ELBO of §4.2 for gamma factors and the log-likelihood of §3 for points. One walk over the data at
given factors yields both the objective and the allocations and exposures that the next sweep starts from.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from nbmf.backends import Backend, Expectation, Given
from nbmf.backends.counts import Counts
from nbmf.model import Model
from nbmf.model.factors import Array, Factor, Point
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import RETIED_IN, Ties

Tie = Callable[[Factor], Ties]

ROUNDING = 32  # allowed fall, in units of the last place of what is summed up in an objective
PATIENCE = 10  # sweeps that must have gained nothing before a fall within rounding means that a fit stands still
STEADY = 20  # sweeps with momentum whose mean gain counts
ENTROPY = 16  # size of the terms whose sum is the entropy of a gamma


@dataclass(frozen=True)
class State:
    """Factors, and what follows from them: all that the next sweep needs."""

    model: Model
    users: Factor
    items: Factor
    ties: Ties | None
    expectation: Expectation | None  # None in a state that is only kept and never swept on from
    objective: float  # ELBO, or log-likelihood for points; higher is better
    log_base: float  # the part of the objective that does not depend on the factors
    momentum: "Momentum | None" = None  # of an accelerated algorithm
    retie: Tie | None = None  # makes new ties at the end of this sweep; None keeps these

    def without_expectation(self) -> "State":
        """Return the state as it is kept, without its allocations and exposures, a third of the memory of a fit."""
        return replace(self, expectation=None)

    def next_ties(self, items: Factor) -> Ties | None:
        """Return the ties of the next state, whose items these are."""
        return self.ties if self.retie is None else self.retie(items)

    @property
    def inferred(self) -> Expectation:
        """The allocations and exposures, which must be there."""
        if self.expectation is None:
            raise ValueError("this state was kept without its allocations and exposures; observe() computes them again")
        return self.expectation


class Momentum(NamedTuple):
    """Where the last sweep led to, and how far the next one steps beyond it; see accelerate.py."""

    past: tuple[tuple[Any, ...], ...]  # parameters of the users and of the items
    step: float
    limit: float
    n_sweeps: int  # since the ties have changed


@dataclass(frozen=True)
class Proposal:
    """What a sweep leads to, before it is confronted with the data."""

    model: Model
    users: Factor
    items: Factor
    better: Model | None = None  # with a likelihood that is better for the allocations and exposures before

    @property
    def sides(self) -> tuple[Factor, Factor]:
        """Users and items."""
        return self.users, self.items


def begin(model: Model, counts: Counts, backend: Backend, users: Array, items: Array, ties: Ties | None) -> State:
    """Return the state at a start, whose values serve as both arithmetic and geometric means.

    A start is not a posterior and has no ELBO. Its objective is −∞, so the first sweep cannot fall below it.
    """
    log_base = total_log_base(model.likelihood, counts)
    state = observe(model, counts, backend, Point(users), Point(items), ties, log_base)
    return replace(state, objective=-math.inf)


def total_log_base(likelihood: Likelihood, counts: Counts) -> float:
    """Return the part of the objective that does not depend on the factors."""
    if not likelihood.varies:
        values, times = counts.values
        return float(likelihood.log_base(values) @ times)
    by_item = all(len(np.atleast_2d(value)) == 1 for value in likelihood.parameters.values())
    if likelihood.has_linear_base and by_item:
        return float(likelihood.log_base(counts.item_totals).sum())
    rows, columns, known = counts.cells
    return float(likelihood.at(rows, columns).log_base(known).sum())


def observe(
    model: Model,
    counts: Counts,
    backend: Backend,
    users: Factor,
    items: Factor,
    ties: Ties | None,
    log_base: float,
    *,
    sum_users: bool = True,
) -> State:
    """Confront factors with the data: one walk yields the latent variables and the objective (§4.2).

        ELBO = Σ_ui [log_events(y, λ) + log_evidence(y, μ)] − KL(q(W)‖p) − KL(q(H)‖p)

    Points have no KL, and λ = μ makes the rest the log-likelihood.
    """
    expectation = backend.expect(counts, Given(users, items, model.likelihood, ties), sum_users=sum_users)
    divergences = [side.divergence(of) for side, of in ((users, model.user_prior), (items, model.item_prior))]
    objective = log_base + expectation.log_evidence  # read last, when a device has the whole sweep queued
    for divergence in divergences:
        objective -= divergence
    return State(model, users, items, ties, expectation, objective, log_base)


def revive(state: State, counts: Counts, backend: Backend, *, sum_users: bool) -> State:
    """Return a kept state with its allocations and exposures computed again."""
    here = state.users, state.items, state.ties, state.log_base
    return replace(observe(state.model, counts, backend, *here, sum_users=sum_users), momentum=state.momentum)


def conclude(found: Proposal, before: State, counts: Counts, backend: Backend, *, sum_users: bool) -> State:
    """Confront a proposal with the data: under the better likelihood, or under the old one if that is no better."""
    sides = counts, backend, *found.sides, before.next_ties(found.items)
    if found.better is not None:
        after = observe(found.better, *sides, total_log_base(found.better.likelihood, counts), sum_users=sum_users)
        if after.objective >= before.objective:
            return after
        del after
    return observe(found.model, *sides, before.log_base, sum_users=sum_users)


class Algorithm(Protocol):
    """Frozen settings and a step."""

    @property
    def begins_with_users(self) -> bool:
        """Whether a sweep starts from the users' sums, so that the walk before it must compute them."""

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""


class Sweep(ABC):
    """Base class of algorithms whose sweep leads to factors and a model, which are then confronted with the data."""

    begins_with_users: ClassVar[bool]

    @abstractmethod
    def improve(self, state: State, counts: Counts, backend: Backend) -> Proposal:
        """Return what the allocations and exposures of a state lead to."""

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep."""
        found, before = self.improve(state, counts, backend), state.without_expectation()
        del state  # frees the memory of the old allocations and exposures for the new ones
        if found.better is not None:
            return conclude(found, before, counts, backend, sum_users=self.begins_with_users)
        sides = *found.sides, before.next_ties(found.items)
        return observe(found.model, counts, backend, *sides, before.log_base, sum_users=self.begins_with_users)


class Ending(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Snapshot:
    """A run after a sweep: what a callback sees, and all that is needed to continue from there."""

    state: State  # without its allocations and exposures, which follow from the rest
    before: float  # the objective before the last sweep
    objectives: tuple[float, ...]
    pending: tuple[int, ...]  # sweeps that are still to end with new ties

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
        """Whether the last sweep raised the objective by less than `tol`, relatively.

        With momentum the mean gain of the last STEADY sweeps counts, because one after a discarded step gains little.
        Only rounding can seem to lower the objective; then the fit stands still if earlier sweeps gained nothing.
        """
        increase, past = self.objective - self.before, self.before
        if (momentum := self.state.momentum) is not None:
            if momentum.n_sweeps <= STEADY:
                return False
            past = self.objectives[-STEADY - 1]
            return bool(tol > 0 and self.objective - past <= STEADY * tol * abs(past))
        if increase < 0 and len(self.objectives) > PATIENCE:
            past = self.objectives[-PATIENCE - 1]
            increase = max(self.objective - past, 0.0)
        return bool(tol > 0 and np.isfinite(increase) and 0 <= increase <= tol * abs(past))


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
    tie: Tie | None = None,
    resume: Snapshot | None = None,
    watch: Callable[[Snapshot], bool | None] = lambda snapshot: None,
) -> Run:
    """Sweep until the objective has converged, the sweeps are used up, or a callback ends the run.

    Parameters
    ----------
    state : State
        Where to start, with its allocations and exposures.
    tie : callable, optional
        Makes ties from the items. The sweeps `ties.RETIED_IN` end with new ones, so their objectives are those
        of another bound. A run that would stop before the last of those refreshes ties once more and continues.
    resume : Snapshot, optional
        What to continue from; `state` is its state.
    watch : callable
        Called with a snapshot after each sweep; True ends the run. Ctrl-C ends it with the last finished sweep.
    """
    last = resume or Snapshot(state.without_expectation(), -math.inf, (), RETIED_IN if tie is not None else ())
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
            before, allowed = handed[0].objective, rounding(handed[0], counts)
            if tie is not None and pending and (settled or last.sweep + 1 >= pending[0]):
                handed.append(replace(handed.pop(), retie=tie))
                before, pending = -math.inf, () if settled else tuple(n for n in pending if n > last.sweep + 1)
            state = algorithm.step(handed.pop(), counts, backend)
            if not state.objective - before >= -allowed:
                raise FallingObjectiveError(
                    f"sweep {last.sweep + 1}: the objective went from {before!r} to {state.objective!r}; "
                    "counts or factors are out of the range of their precision (dtype='float64' has more)"
                )
            last = Snapshot(state.without_expectation(), before, (*last.objectives, state.objective), pending)
            if watch(last):
                return Run(last, Ending.STOPPED)
    except KeyboardInterrupt:
        if not last.sweep:
            raise
        return Run(last, Ending.INTERRUPTED)


def rounding(state: State, counts: Counts) -> float:
    """Return by how much an objective may seem to fall: so many units in the last place of what is summed up in it.

    In the precision of the fit those are counts times logarithms of intensities and of α, unknown cells, which are
    taken off again, and the shapes of posteriors, whose moments are rounded. Entropies are summed in double precision.
    """
    α, eps = np.asarray(state.model.likelihood.concentration), np.finfo(counts.by_user.dtype).eps
    logarithm = float(np.max(np.abs(np.log(α, where=np.isfinite(α), out=np.zeros(α.shape)))))
    size, n_entries = abs(state.log_base) + counts.size + counts.total * logarithm + counts.n_unknown, 0
    if math.isfinite(state.objective):
        size += abs(state.objective)
    for factor, prior in ((state.users, state.model.user_prior), (state.items, state.model.item_prior)):
        if factor.is_posterior:
            n_entries += math.prod(factor.dimensions)
            size += math.prod(factor.dimensions) * prior.shape
    return ROUNDING * float(eps * size + np.finfo(np.float64).eps * ENTROPY * n_entries)
