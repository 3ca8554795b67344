"""Where settings are looked for: a range or some values for each, and trials spread evenly over all of them.

Trials are points of a sequence whose shares of every range, and of every pair of ranges, fill up evenly (the additive
recurrence of Kronecker, begun at a random place): a dozen of them leave fewer gaps than a dozen independent draws. The
n-th trial does not depend on how many follow, so a search can be gone on with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Between:
    """A number from `low` to `high`, evenly by its logarithm; `whole`: a whole number."""

    low: float
    high: float
    whole: bool = False

    def at(self, share: float) -> float:
        """Return the number at this share of the way, to three digits: more of them change nothing."""
        value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        return round(value) if self.whole else float(f"{value:.3g}")

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class OneOf:
    """One of some values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """Return the value in whose part of the way this share lies."""
        return self.values[int(share * len(self.values))]

    def __str__(self) -> str:
        """Say it in words."""
        return " or ".join(map(str, self.values))


Space = Mapping[str, Between | OneOf]


def trial_settings(defaults: Mapping[str, Any], space: Space, n_trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the settings of each trial: the defaults first, then points of the space.

    Parameters
    ----------
    defaults : all settings of a model
    space : where to look for some of them; the others keep their defaults
    n_trials : how many; a model with nothing to look for has one

    Examples
    --------
    >>> space = {"penalty": Between(10, 1000), "input": OneOf(("counts", "binary"))}
    >>> first, second = trial_settings({"penalty": 500.0, "input": "binary"}, space, 2, seed=0)
    >>> first["penalty"], 10 <= second["penalty"] <= 1000
    (500.0, True)
    """
    if n_trials < 1:
        raise ValueError(f"the number of trials is {n_trials}; there must be at least 1")
    if not space:
        return [dict(defaults)]
    shares = _spread_evenly(n_trials - 1, len(space), seed)
    drawn = ({name: where.at(share) for (name, where), share in zip(space.items(), row, strict=True)} for row in shares)
    return [dict(defaults), *({**defaults, **settings} for settings in drawn)]


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Return settings as they are typed.

    >>> settings_in_words({"penalty": 500.0, "input": "binary"})
    'penalty=500, input=binary'
    """
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


def _spread_evenly(n_points: int, n_dimensions: int, seed: int) -> Sequence[Sequence[float]]:
    """Return n_points × n_dimensions numbers from 0 to below 1."""
    root = 2.0  # of x^(d+1) = x + 1, whose powers are as hard to approximate by fractions as can be
    for _ in range(60):
        root = (1 + root) ** (1 / (n_dimensions + 1))
    start = np.random.RandomState(seed).random_sample(n_dimensions)
    steps = root ** -np.arange(1.0, n_dimensions + 1)
    found: list[list[float]] = ((start + np.outer(np.arange(n_points), steps)) % 1).tolist()
    return found
