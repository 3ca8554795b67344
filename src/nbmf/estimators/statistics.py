"""Statistics of counts that tell likelihoods apart, each observed beside draws from the model.

With m = E[y | μ] of a cell, over all cells or those of a group:

    mean count          Σ y / n
    share of zeros      of all cells, and of the most and least active users and items, who have a fifth of Σ m each
    share of ones       of the non-zero counts
    variance over mean  Σ (y − c m)² / Σ y,  c = Σ y / Σ m,  in five bins of equal Σ m, from small to large m
    tail                the 99 % quantile of the non-zero counts, and the largest count

The constant c takes out of the variance that posterior means are shrunk: where m is largest, counts are larger still.
Counts above the largest of a typical draw enter the variance as if they were that, or a single one would decide it.
Shares are compared by their odds, the others by their logarithms.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from nbmf.estimators.cells import Cells

Array = NDArray[np.float64]

MEAN, ZEROS, ONES, VARIANCE = "mean count", "share of zeros", "share of ones", "variance over mean"
QUANTILE, LARGEST = "99 % quantile", "largest count"
ALL, NON_ZERO = "all cells", "non-zero counts"
GROUPS = ("least active users", "most active users", "least popular items", "most popular items")
N_BINS, N_TYPICAL = 5, 5  # of the variance; of draws of the typical largest count
LEVEL = 0.05  # probability that a statistic of a model that is right is found to be significantly off: one of all
FEW_CELLS = 20
TOLERANCE = {MEAN: 2.0, ZEROS: 1.5, ONES: 2.25, VARIANCE: 3.0, QUANTILE: 2.5, LARGEST: 10.0}
GROUP_TOLERANCE, TOP_TOLERANCE = 3.0, 4.0  # of zeros in groups, and of the variance where the expected count is largest
SOME = 2.0  # counts that are added to each sum, so that a handful decides nothing
FEW_ZEROS = 0.01  # share that is added to that of zeros: whether 0.2 or 0.4 % are does not matter
LONGEST = 300.0  # largest logarithm of a ratio, so that none overflows


@dataclass(frozen=True, eq=False)
class Statistic:
    """A statistic of some cells: as observed, and of each draw from the model.

    Attributes
    ----------
    name, cells : str
        What is measured, and where.
    observed : float
        Its value in the data.
    drawn : array
        Its value in each draw.
    ratio : float
        Observed over expected; for shares, of the odds.
    most : float
        The largest ratio that is tolerated; the smallest is one over it.
    """

    name: str
    cells: str
    observed: float
    drawn: Array
    ratio: float
    most: float

    @property
    def fits(self) -> bool:
        """Whether the ratio is tolerated."""
        return 1 / self.most <= self.ratio <= self.most

    @property
    def expected(self) -> float:
        """Median of the draws."""
        return float(np.median(self.drawn))

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval that holds 90 % of the draws."""
        low, high = np.quantile(self.drawn, (0.05, 0.95)).tolist()
        return low, high

    @property
    def tolerated(self) -> tuple[float, float]:
        """Ends of the range in which an observation fits."""
        if self.name in (ZEROS, ONES):
            added = FEW_ZEROS if self.name == ZEROS else 0.0
            odds = (self.expected + added) / max(1 - self.expected, 1e-300)
            ends = (times * odds for times in (1 / self.most, self.most))
            low, high = (max((end - added) / (1 + end), 0.0) for end in ends)
            return low, high
        if self.name in (QUANTILE, LARGEST):  # compared by ln(1 + count)
            return max((1 + self.expected) / self.most - 1, 0), (1 + self.expected) * self.most - 1
        return self.expected / self.most, self.expected * self.most

    @property
    def is_too_low(self) -> bool:
        """Whether the model expects less than there is."""
        return not self.fits and self.ratio > 1

    @property
    def is_too_high(self) -> bool:
        """Whether the model expects more than there is."""
        return not self.fits and self.ratio < 1


class Values(NamedTuple):
    """The statistics of one set of counts, and the logarithms by which they are compared."""

    values: Array
    logs: Array


@dataclass(frozen=True, eq=False)
class Measure:
    """What the statistics of any counts of the same cells need: bins, groups, and sums of expected counts."""

    expected: Array
    bins: NDArray[np.intp]
    groups: tuple[NDArray[np.intp], NDArray[np.intp]]  # 1 for the least active, 2 for the most active, 0 for others
    sizes: Array  # numbers of cells of the four groups
    sums: Array  # Σ m of each bin
    squares: Array  # Σ m² of each bin
    n_in_bin: NDArray[np.intp]
    cap: float  # of counts in a variance

    @classmethod
    def of(cls, cells: Cells, rng: np.random.RandomState) -> "Measure":
        """Take the cells apart."""
        m = cells.expected
        cap = float(np.median([cells.likelihood.sample(rng, cells.intensity).max(initial=1) for _ in range(N_TYPICAL)]))
        bins = _equal_sums(m)
        groups = _ends(m, cells.users), _ends(m, cells.items)
        sizes = np.concatenate([np.bincount(group, minlength=3)[1:] for group in groups])
        sums, squares = (np.bincount(bins, values, N_BINS).astype(np.float64) for values in (m, m * m))
        return cls(m, bins, groups, sizes.astype(np.float64), sums, squares, np.bincount(bins, minlength=N_BINS), cap)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Name and cells of each statistic, in the order of the values."""
        means = self.sums / np.maximum(self.n_in_bin, 1)
        return [
            (MEAN, ALL),
            (ZEROS, ALL),
            *((ZEROS, group) for group in GROUPS),
            (ONES, NON_ZERO),
            *((VARIANCE, f"expecting {figure(mean)}") for mean in means.tolist()),
            (QUANTILE, NON_ZERO),
            (LARGEST, NON_ZERO),
        ]

    def __call__(self, counts: NDArray[np.number]) -> Values:
        """Return the statistics; all sums are over the non-zero counts."""
        places = np.flatnonzero(counts)
        y, m, bins = counts[places].astype(np.float64), self.expected[places], self.bins[places]
        n = np.concatenate(([len(counts)], self.sizes))
        taken = [np.bincount(group[places], minlength=3)[1:] for group in self.groups]
        zeros, n_ones = n - np.concatenate(([len(y)], *taken)), np.count_nonzero(y == 1)
        capped = np.minimum(y, self.cap)
        Σy, Σyy, Σym = (np.bincount(bins, values, N_BINS) for values in (capped, capped * capped, capped * m))
        c = Σy / np.maximum(self.sums, np.finfo(np.float64).tiny)
        # without counts it is 1, as for Poisson; rounding may leave a square below 0
        variance = (np.maximum(Σyy - 2 * c * Σym + c * c * self.squares, 0) + SOME) / (Σy + SOME)
        tail = np.array([np.quantile(y, 0.99), y.max()] if len(y) else [0.0, 0.0])
        shares = zeros / np.maximum(n, 1), [n_ones / max(len(y), 1)]
        odds = (zeros + FEW_ZEROS * n + SOME) / (n - zeros + SOME), [(n_ones + SOME) / (len(y) - n_ones + SOME)]
        mean = y.sum() / max(len(counts), 1)
        return Values(
            np.concatenate(([mean], *shares, variance, tail)),
            np.log(np.concatenate(([y.sum() + SOME], *odds, variance, 1 + tail))),
        )


def compare(cells: Cells, n_draws: int, rng: np.random.RandomState) -> tuple[Statistic, ...]:
    """Return the statistics of some cells beside those of draws at the same intensities.

    A statistic is off if it is both: significantly, which is to say by more than the spread of the draws at a level of
    5 % that is shared out among all statistics, and by a factor that matters. Neither is enough. Of 10⁸ cells
    everything is significant; of 100 cells large factors come by chance.
    """
    measure = Measure.of(cells, rng)
    observed = measure(cells.counts)
    drawn = [measure(cells.likelihood.sample(rng, cells.intensity)) for _ in range(n_draws)]
    values, logs = (np.array([each[part] for each in drawn]) for part in (0, 1))
    off, spread = observed.logs - logs.mean(axis=0), logs.std(axis=0, ddof=1) * np.sqrt(1 + 1 / n_draws)
    names = measure.names
    significant = np.exp(np.minimum(t.ppf(1 - LEVEL / (2 * len(names)), n_draws - 1) * spread, LONGEST))
    tolerances = [GROUP_TOLERANCE if where in GROUPS else TOLERANCE[name] for name, where in names]
    tolerances[max(n for n, (name, _) in enumerate(names) if name == VARIANCE)] = TOP_TOLERANCE
    most, ratios = np.maximum(significant, tolerances).tolist(), np.exp(np.clip(off, -LONGEST, LONGEST)).tolist()
    first, n_in_bin = names.index(next(name for name in names if name[0] == VARIANCE)), measure.n_in_bin
    few = {first + n for n in np.flatnonzero(n_in_bin < min(FEW_CELLS, n_in_bin.max()))}  # whose variance says nothing
    return tuple(
        Statistic(*name, float(observed.values[n]), values[:, n], ratios[n], most[n])
        for n, name in enumerate(names)
        if n not in few
    )


def _equal_sums(expected: Array) -> NDArray[np.intp]:
    """Return the fifth of each cell or row: by the size of the expected count, with a fifth of all counts in each.

    >>> _equal_sums(np.array([1.0, 3.0, 1.0, 1.0, 2.0, 2.0]))
    array([0, 4, 0, 1, 2, 3])
    """
    order = np.argsort(expected, kind="stable")
    sums = np.cumsum(expected[order])
    middles = (sums - expected[order] / 2) / max(sums[-1:].sum(), np.finfo(np.float64).tiny)
    bins = np.empty(len(expected), np.intp)
    bins[order] = np.minimum((middles * N_BINS).astype(np.intp), N_BINS - 1)
    return bins


def _ends(expected: Array, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return 1 for cells of the rows with the least expected counts, 2 for those with the most, 0 for the others."""
    fifth = _equal_sums(np.bincount(rows, expected).astype(np.float64))
    return np.asarray((fifth == fifth.min(initial=N_BINS)) + 2 * (fifth == fifth.max(initial=-1)))[rows] % 3


def figure(value: float) -> str:
    """Return a number with two digits, or all of them where it is whole.

    >>> figure(0.01234), figure(5.0), figure(1488.2)
    ('0.012', '5', '1,488')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
