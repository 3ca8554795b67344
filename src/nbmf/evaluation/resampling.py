"""Intervals of means over users: the percentile bootstrap, with users drawn with replacement."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]

BLOCK_CELLS = 4_000_000  # resamples × users in memory at a time
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Metric:
    """A number that describes a model, with its interval.

    Attributes
    ----------
    mean : float
        Mean over the users who have a value, or for a likelihood over the cells.
    interval : tuple of float
        Ends of the middle 95 % of the means of resampled users.
    per_user : array
        The value of each user; nan for users without one.
    n_users : int
        Number of users with a value.
    """

    mean: float
    interval: tuple[float, float]
    per_user: Array = field(repr=False)
    n_users: int


def resampled_ratios(numerators: Array, denominators: Array, n_boot: int, seed: int) -> Array:
    """Return Σ numerators / Σ denominators, both users × metrics, over users drawn with replacement, n_boot times.

    The draws depend only on the seed and the number of users, so that the draws of two calls can be paired. They come
    from NumPy's legacy generator, whose stream is frozen.
    """
    n_users, n_metrics = numerators.shape
    both = np.concatenate((numerators, denominators), axis=1)
    sums, rng = np.empty((n_boot, 2 * n_metrics)), np.random.RandomState(seed)
    step = max(1, min(n_boot, BLOCK_CELLS // max(n_users, 1)))
    times = np.empty((step, n_users))  # how often each user was drawn
    with threadpool_limits(1, user_api="blas"):  # the sums must not depend on the number of threads
        for start in range(0, n_boot, step):
            block = times[: min(step, n_boot - start)]
            for row in block:
                row[:] = np.bincount(rng.randint(n_users, size=n_users), minlength=n_users)
            np.matmul(block, both, out=sums[start : start + len(block)])
    with np.errstate(invalid="ignore"):  # 0/0 is nan: no user of the draw has the metric
        return np.asarray(sums[:, :n_metrics] / sums[:, n_metrics:])


def resampled_means(values: Array, n_boot: int, seed: int) -> Array:
    """Return the means of resampled users, n_boot × metrics; nans among the values (users × metrics) are left out."""
    present = ~np.isnan(values)
    return resampled_ratios(np.where(present, values, 0.0), present.astype(np.float64), n_boot, seed)


def intervals(means: Array) -> list[tuple[float, float]]:
    """Return the middle 95 % of each column; (nan, nan) for a column of nans."""
    ends = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    known = [column[~np.isnan(column)] for column in means.T]
    return [tuple(np.quantile(column, ends).tolist()) if len(column) else (np.nan, np.nan) for column in known]


def summaries(
    values: Mapping[str, Array], rows: NDArray[np.intp], n_users: int, n_boot: int, seed: int
) -> dict[str, Metric]:
    """Return each metric's mean and interval; `rows` are the positions of its values among n_users users."""
    if not values:
        return {}
    found = {}
    bounds = intervals(resampled_means(np.stack(list(values.values()), axis=1), n_boot, seed))
    for (name, column), interval in zip(values.items(), bounds, strict=True):
        known = ~np.isnan(column)
        per_user = np.full(n_users, np.nan)
        per_user[rows] = column
        mean = float(column[known].mean()) if known.any() else float("nan")
        found[name] = Metric(mean, interval, per_user, int(known.sum()))
    return found
