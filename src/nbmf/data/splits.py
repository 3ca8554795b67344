"""Which part of the data to hold out: each function marks it, and `Interactions` takes it out."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.events import Events, as_times, in_words

if TYPE_CHECKING:
    from nbmf.data.interactions import Ids, Interactions

Marks = NDArray[np.bool_]


class Split(NamedTuple):
    """A train and a test part with the same ids: `train, test = data.split()`."""

    train: Interactions
    test: Interactions

    @property
    def untested(self) -> Ids:
        """Ids of the users without a test item, whose rankings cannot be evaluated."""
        return np.asarray(self.test.users[np.diff(self.test.matrix.indptr) == 0])


def at_random(n_stored: int, test_fraction: float, seed: int) -> Marks:
    """Mark a fraction, rounded down, of all non-zeros."""
    _check_fraction(test_fraction)
    marks = np.zeros(n_stored, bool)
    marks[np.random.RandomState(seed).choice(n_stored, int(test_fraction * n_stored), replace=False)] = True
    return marks


def per_user(matrix: sp.csr_array, test_fraction: float, seed: int) -> Marks:
    """Mark a fraction, rounded down, of each user's non-zeros, but never all of them."""
    _check_fraction(test_fraction)
    n_stored = np.diff(matrix.indptr)
    n_test = np.minimum((test_fraction * n_stored).astype(np.intp), n_stored - 1)
    return _largest_of_each_row(matrix.indptr, n_test, np.random.RandomState(seed).random_sample(matrix.nnz))


def last_of_each_user(matrix: sp.csr_array, events: Events, n: int, seed: int) -> Marks:
    """Mark the n non-zeros of each user with the latest last events, but never all of them; ties are random."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n is {n!r}; it must be a whole number from 1")
    n_test = np.minimum(n, np.diff(matrix.indptr) - 1)
    lot = np.random.RandomState(seed).random_sample(matrix.nnz)
    return _largest_of_each_row(matrix.indptr, n_test, events.last_times, lot)


def from_date(events: Events, date: Any, test_fraction: float | None) -> Marks:
    """Mark the events from a date on, or from the time at which the last fraction of them begins."""
    if (date is None) == (test_fraction is None):
        raise ValueError("give either a date or test_fraction=, so that there is one time to split at")
    cut = _as_date(date, events) if test_fraction is None else _start_of_the_last(events, test_fraction)
    marks = np.asarray(events.times >= cut)
    if marks.all() or not marks.any():
        empty = "train" if marks.any() else "test"
        at = f"the split is at {in_words(cut)}, and there are {events.summary}"
        raise ValueError(f"the {empty} part would be empty: {at}")
    return marks


def _largest_of_each_row(indptr: NDArray[Any], n_marked: NDArray[Any], *keys: NDArray[Any]) -> Marks:
    """Mark the entries of each row with the largest keys; later keys break ties of earlier ones."""
    sizes = np.diff(indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((*reversed(keys), rows))
    n_above = np.repeat(indptr[1:], sizes) - 1 - np.arange(len(rows))
    marks = np.zeros(len(rows), bool)
    marks[order] = n_above < n_marked[rows]
    return marks


def _as_date(date: Any, events: Events) -> Any:
    cut = as_times([date], "date")[0]
    if (cut.dtype.kind == "M") != (events.times.dtype.kind == "M"):
        raise ValueError(f"date {date!r} does not fit the times: there are {events.summary}")
    return cut


def _start_of_the_last(events: Events, test_fraction: float) -> Any:
    _check_fraction(test_fraction)
    n_test = int(test_fraction * len(events))
    if not n_test:
        raise ValueError(
            f"test_fraction is {test_fraction}; of {len(events)} events that leaves none for the test part"
        )
    return np.partition(events.times, -n_test)[-n_test]


def _check_fraction(test_fraction: float) -> None:
    if not 0 <= test_fraction <= 1:
        raise ValueError(f"test_fraction is {test_fraction}; it must lie between 0 and 1")
