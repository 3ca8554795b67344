"""Squared extrapolation of any monotone algorithm, safeguarded: the objective still never falls.

A sweep F is a map on θ, the logarithms of the factors' parameters. From θ₀, θ₁ = F(θ₀), θ₂ = F(θ₁) let r = θ₁ − θ₀ and
v = θ₂ − θ₁ − r; SQUAREM (Varadhan & Roland 2008) continues from

    θ' = θ₀ + 2 s r + s² v,   s = ‖r‖/‖v‖     (s = 1 is θ₂ itself)

and sweeps once more. A θ' whose objective is below that of θ₂ is discarded and s is halved towards 1; if no try
succeeds, θ₂ is taken. Each try costs the one walk that evaluates it.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from nbmf.backends import Backend, Sums
from nbmf.backends.counts import Counts
from nbmf.inference.run import Algorithm, State, observe
from nbmf.model.factors import Array, Factor, Point, Prior, largest

TRIES = 3
LONGEST_STEP = 1000.0  # its square times a difference of logarithms is still finite


@dataclass(frozen=True)
class Accelerated:
    """An algorithm whose every third sweep starts from an extrapolated state."""

    algorithm: Algorithm

    @property
    def begins_with_users(self) -> bool:
        """As the algorithm does."""
        return self.algorithm.begins_with_users

    def step(self, state: State, counts: Counts, backend: Backend) -> State:
        """Return the state after one sweep, whose objective is not below the one before."""
        here = _log_parameters(state)
        if len(state.trail) < 2:
            after = self.algorithm.step(state, counts, backend)
            same_kind = after.users.kind == state.users.kind  # a start is a point; what follows it may not be
            return replace(after, trail=(*state.trail, here) if same_kind else ())
        first, second = state.trail
        length = _step_length(first, second, here)
        for _ in range(TRIES):
            if length <= 1 or state.retie is not None:  # the objective of other ties is no safeguard
                break
            users, items = _factors_at(_extrapolate(first, second, here, length), state, backend)
            arguments = counts, backend, users, items, state.ties, state.log_base
            start = observe(state.model, *arguments, sum_users=self.begins_with_users)
            if start.objective >= state.objective:
                return self.algorithm.step(start, counts, backend)
            length = (length + 1) / 2
        return self.algorithm.step(state, counts, backend)


def _log_parameters(state: State) -> tuple[Array, ...]:
    return tuple(
        np.log(np.maximum(values, np.finfo(values.dtype).tiny))  # a factor may have underflowed to 0
        for values in (*state.users.parameters, *state.items.parameters)
    )


def _step_length(first: tuple[Array, ...], second: tuple[Array, ...], third: tuple[Array, ...]) -> float:
    r = sum(float(np.sum((b - a) ** 2, dtype=np.float64)) for a, b in zip(first, second, strict=True))
    v = sum(float(np.sum((c - 2 * b + a) ** 2, dtype=np.float64)) for a, b, c in zip(first, second, third, strict=True))
    return min(float(np.sqrt(r / v)), LONGEST_STEP) if v > 0 else 1.0


def _extrapolate(
    first: tuple[Array, ...], second: tuple[Array, ...], third: tuple[Array, ...], length: float
) -> list[Array]:
    extrapolated = []
    for a, b, c in zip(first, second, third, strict=True):
        limit = math.log(largest(a.dtype))  # a long step may overflow
        extrapolated.append(np.exp(np.clip(a + 2 * length * (b - a) + length**2 * (c - 2 * b + a), -limit, limit)))
    return extrapolated


def _factors_at(parameters: list[Array], state: State, backend: Backend) -> tuple[Factor, Factor]:
    if not state.users.is_posterior:
        users, items = parameters
        return Point(users), Point(items)
    nothing, most = Prior(shape=0.0, rate=0.0), largest(parameters[0].dtype)
    with np.errstate(over="ignore"):  # a long step may also make a mean, shape/rate, too large
        sides = [Sums(np.minimum(shape, rate * most), rate) for shape, rate in (parameters[:2], parameters[2:])]
    return backend.conditional(nothing, sides[0]), backend.conditional(nothing, sides[1])
