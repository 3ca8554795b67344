"""Cells that a fit knows nothing about, zeros among them: how probable a model considers what is in them.

A test of likelihoods must hold out cells, not counts. If only non-zero counts are held out, a fit takes them for zeros,
and any data looks zero-inflated: benchmarks/choose.py has the figures.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.random import sample_without_replacement

from nbmf.data.interactions import Interactions, canonical
from nbmf.estimators.factorize import as_number
from nbmf.model.likelihood import log_probability

Array = NDArray[np.float64]

BLOCK = 1 << 16  # cells at a time: a likelihood may need 65 numbers for each
MOST_CELLS = 500_000  # that are held out; each takes as long as a non-zero count
ASIDE = 0.5  # of the held-out cells, by which settings are chosen
LEAST_COUNTS, LEAST_CELLS = 10, 20


@dataclass(frozen=True, eq=False)
class HeldOutCells:
    """Some cells of a users × items matrix, and the counts in them."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    counts: Array
    shape: tuple[int, int]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mask(self) -> sp.csr_array:
        """A 1 in each cell, for `fit(…, unknown=cells.mask)`."""
        return sp.csr_array((np.ones(len(self)), (self.rows, self.columns)), shape=self.shape)

    @property
    def n_nonzero(self) -> int:
        """Number of cells whose count is not 0."""
        return int(np.count_nonzero(self.counts))

    @property
    def per_user(self) -> Array:
        """Number of cells of each user."""
        return np.bincount(self.rows, minlength=self.shape[0]).astype(np.float64)

    def take(self, chosen: NDArray[Any]) -> "HeldOutCells":
        """Return some of the cells."""
        return HeldOutCells(self.rows[chosen], self.columns[chosen], self.counts[chosen], self.shape)

    def log_probabilities(self, fit: Any) -> Array:
        """Return Σ ln p(count) over the cells of each user, under a `FitResult`; −∞ where a count is impossible."""
        logs = np.empty(len(self))
        for start in range(0, len(self), BLOCK):
            part = slice(start, start + BLOCK)
            rows, columns, count = self.rows[part], self.columns[part], self.counts[part]
            μ = fit.intensity_scores().pairs(rows, columns).astype(np.float64)
            there = count > 0  # most are not, and a count of 0 has no events
            logs[part] = fit.likelihood_of(rows, columns).log_evidence(0.0, μ)
            with np.errstate(divide="ignore"):
                of_counts = fit.likelihood_of(rows[there], columns[there])
                logs[part][there] = log_probability(of_counts, count[there], μ[there])
        return np.asarray(np.bincount(self.rows, logs, self.shape[0]), np.float64)


def hold_out_cells(data: Interactions, n_cells: int, rng: np.random.RandomState) -> tuple[Interactions, HeldOutCells]:
    """Draw cells at random, zero or not, and return the data without their counts, and the cells.

    >>> data = Interactions.from_matrix([[3, 0, 1], [0, 2, 0]])
    >>> known, cells = hold_out_cells(data, 4, np.random.RandomState(0))
    >>> len(cells), float(known.matrix.sum() + cells.counts.sum())
    (4, 6.0)
    """
    shape = data.matrix.shape
    drawn = sample_without_replacement(shape[0] * shape[1], n_cells, random_state=rng)
    rows, columns = np.divmod(np.sort(drawn), shape[1])
    counts = np.asarray(sp.csr_matrix(data.matrix)[rows, columns], np.float64).ravel()
    cells = HeldOutCells(rows, columns, counts, shape)
    left = canonical(data.matrix - data.matrix * (cells.mask != 0))
    return replace(data, matrix=left, n_repeated=0, events=None), cells


@dataclass(frozen=True, eq=False)
class Parts:
    """What likelihoods and rankings are compared on."""

    known: Interactions  # without the held-out cells
    aside: HeldOutCells  # by which the settings of a likelihood are chosen
    judged: HeldOutCells  # on which likelihoods are compared
    train: Interactions  # of the ranking
    test: Interactions
    largest: float  # count
    is_binary: bool  # whether all counts are 0 or 1

    @classmethod
    def of(cls, data: Interactions, test_fraction: float, rng: np.random.RandomState) -> "Parts":
        """Hold out a share of the cells, at most MOST_CELLS, and the same share of the non-zero counts."""
        if not 0 < as_number(test_fraction) < 1:
            raise ValueError(f"test_fraction is {test_fraction!r}; it must be a number between 0 and 1")
        every = data.n_users * data.n_items
        n_cells = int(min(MOST_CELLS, test_fraction * every))
        _check_share("cells", test_fraction, (n_cells, every), LEAST_CELLS)
        _check_share("non-zero counts", test_fraction, (int(test_fraction * data.nnz), data.nnz), 1)
        train, test = data.split(test_fraction, seed=int(rng.randint(np.iinfo(np.int32).max)))
        known, cells = hold_out_cells(data, n_cells, rng)
        is_aside = rng.random_sample(len(cells)) < ASIDE
        largest = float(data.matrix.data.max())
        return cls(known, cells.take(is_aside), cells.take(~is_aside), train, test, largest, largest == 1)

    @property
    def density(self) -> float:
        """Share of the cells that are not 0."""
        return (self.train.nnz + self.test.nnz) / (self.train.n_users * self.train.n_items)

    @property
    def unknown(self) -> sp.csr_array:
        """The held-out cells, for `fit(known, unknown=…)`."""
        return sp.csr_array(self.aside.mask + self.judged.mask)


def _check_share(what: str, fraction: float, sizes: tuple[int, int], least: int) -> None:
    """Refuse to hold out, or to leave for the fits, fewer than so many."""
    n, every = sizes
    if not least <= n <= every - least:
        needed = f"at least {least} must be held out and {least} left, so choose another or give more data"
        raise ValueError(f"test_fraction is {fraction:g}, which holds out {n:,} of the {every:,} {what}; {needed}")


def sampled(data: Interactions, max_counts: int, rng: np.random.RandomState) -> Interactions:
    """Return users drawn at random until they have `max_counts` non-zero counts, with their items.

    Counts that are not whole, and data that is too small to hold out some of it, are refused.
    """
    broken = np.flatnonzero(data.matrix.data % 1)
    if len(broken):
        row = int(np.searchsorted(data.matrix.indptr, broken[0], side="right")) - 1
        user, item = data.users.tolist()[row], data.items.tolist()[data.matrix.indices[broken[0]]]
        what = f"the count {data.matrix.data[broken[0]]:g} of user {user!r} and item {item!r} is not whole"
        raise ValueError(f"{what}; only probabilities of whole counts can be compared, so round the counts")
    if data.nnz > max_counts:
        order = rng.permutation(data.n_users)
        n_taken = int(np.searchsorted(np.cumsum(np.diff(data.matrix.indptr)[order]), max_counts)) + 1
        data = data.select_users(np.sort(order[:n_taken]))
        data = data.select_items(np.unique(data.matrix.indices).astype(np.intp))
    if data.nnz < LEAST_COUNTS:
        needed = f"at least {LEAST_COUNTS} are needed to hold some out"
        raise ValueError(f"the data has {data.nnz} non-zero counts; {needed}")
    return data
