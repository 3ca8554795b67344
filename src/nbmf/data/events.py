"""When it happened: `Events`, the dated rows that add up to a matrix of counts."""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

Times = NDArray[Any]

ISO_TIME = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ]([01][0-9]|2[0-3]):[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?(Z|[-+][0-9]{2}(:?[0-9]{2})?)?)?"
)
"""Regular expression of a date or time stamp. It does not know how many days a month has."""
UNIX_TIMES = {"s": (10**8, 10**10), "ms": (10**11, 10**13)}  # seconds and milliseconds from 1973 to 2286


@dataclass(frozen=True, repr=False, eq=False)
class Events:
    """One row per event, sorted by user, item and time; `Interactions.matrix` is their sum.

    Attributes
    ----------
    rows, columns : ndarray of int
        Positions of the user and of the item in the matrix.
    counts : ndarray
        What each event adds to the count of its pair, above 0.
    times : ndarray of datetime64 or of numbers
        When it happened.
    """

    rows: NDArray[np.integer[Any]]
    columns: NDArray[np.integer[Any]]
    counts: NDArray[Any]
    times: Times

    @classmethod
    def of(cls, rows: NDArray[Any], columns: NDArray[Any], counts: NDArray[Any], times: Times) -> "Events":
        """Sort rows that come in any order, and drop those with a count of 0."""
        order = np.lexsort((counts, times, columns, rows))
        order = order[counts[order] != 0]
        smallest = sp.get_index_dtype(maxval=max(rows.max(initial=0), columns.max(initial=0)))
        return cls(rows[order].astype(smallest), columns[order].astype(smallest), counts[order], times[order])

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"Events({self.summary})"

    @property
    def summary(self) -> str:
        """How many events there are, and from when to when."""
        if not len(self):
            return "0 events"
        ends = self.times.min(), self.times.max()
        span = " to ".join(map(in_words, ends))
        for unit, times in UNIX_TIMES.items():  # numbers so large are hardly anything else
            if self.times.dtype.kind in "iuf" and times[0] <= ends[0] and ends[1] <= times[1]:
                dates = np.array(ends, np.int64).astype(f"datetime64[{unit}]").astype("datetime64[D]")
                span += f", as Unix time {' to '.join(map(in_words, dates))}"
        return f"{len(self):,} event{'s' * (len(self) != 1)} from {span}"

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where the events of each pair begin; the pairs are the non-zeros of the matrix, in its order."""
        return np.flatnonzero((np.diff(self.rows, prepend=-1) != 0) | (np.diff(self.columns, prepend=-1) != 0))

    @property
    def pairs(self) -> NDArray[np.intp]:
        """For each event, the position of its pair among the non-zeros of the matrix."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self)))

    @property
    def last_times(self) -> Times:
        """For each pair, the time of its last event."""
        return np.asarray(self.times[np.append(self.starts, len(self))[1:] - 1])

    def matrix(self, shape: tuple[int, int]) -> sp.csr_array:
        """Add up the counts of each pair."""
        totals = np.add.reduceat(self.counts, self.starts)
        indptr = np.searchsorted(self.rows[self.starts], np.arange(shape[0] + 1))
        indptr = indptr.astype(sp.get_index_dtype(maxval=len(totals)))
        return sp.csr_array((totals, self.columns[self.starts], indptr), shape=shape)

    def add_up_to(self, matrix: sp.csr_array) -> bool:
        """Check whether the events add up to a canonical matrix; sums of floats may round differently."""
        own = self.matrix(matrix.shape)
        same_cells = np.array_equal(own.indptr, matrix.indptr) and np.array_equal(own.indices, matrix.indices)
        return same_cells and np.allclose(own.data, matrix.data)

    def take(self, chosen: NDArray[np.bool_]) -> "Events":
        """Keep the events that are marked."""
        return Events(self.rows[chosen], self.columns[chosen], self.counts[chosen], self.times[chosen])

    def select(self, axis: str, positions: NDArray[np.intp], size: int) -> "Events":
        """Keep the users (axis "rows") or items ("columns") at ascending positions, of `size`, and renumber them."""
        new_position = np.full(size, -1, self.rows.dtype)
        new_position[positions] = np.arange(len(positions))
        moved = new_position[getattr(self, axis)]
        return replace(self.take(moved >= 0), **{axis: moved[moved >= 0]})


def in_words(time: Any) -> str:
    """Write a time without trailing zeros."""
    return str(np.datetime_as_string(time, unit="auto")) if np.asarray(time).dtype.kind == "M" else str(time)


def as_times(values: ArrayLike | Iterable[Any], what: str = "times") -> Times:
    """Return numbers and datetime64 unchanged, ISO text and Python's dates as datetime64; offsets become UTC.

    >>> as_times(["2017-01-31", "2017-01-31T20:15:00+02:00"])
    array(['2017-01-31T00:00:00.000000', '2017-01-31T18:15:00.000000'], dtype='datetime64[us]')
    """
    times = np.asarray(values)
    if times.ndim != 1:
        raise ValueError(f"{what} must be a list with one per interaction; got an array of shape {times.shape}")
    if times.dtype.kind in "OU":
        moments = [_as_moment(value, f"{what}: {value!r} at position {n}") for n, value in enumerate(times.tolist())]
        times = np.array(moments, "datetime64[us]")
    if times.dtype.kind not in "Miuf":
        raise ValueError(f"{what} have type {times.dtype}; they must be numbers, datetime64 or ISO dates")
    missing = np.flatnonzero(np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times))
    if len(missing):
        where = f"{times[missing[0]]} at position {missing[0]}"
        raise ValueError(f"{what}: {where} is not a time; every interaction needs one")
    return times


def _as_moment(value: Any, where: str) -> datetime | date | np.datetime64:
    moment: Any = value
    if isinstance(value, str):
        moment = None
        with suppress(ValueError):
            moment = datetime.fromisoformat(value) if re.fullmatch(ISO_TIME, value) else None
    if not isinstance(moment, date | np.datetime64):
        raise ValueError(f"{where} is not a time; write it as 2017-01-31 or 2017-01-31T20:15:00, or give numbers")
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC).replace(tzinfo=None)
    return moment


def from_date(events: Events, date: Any, test_fraction: float | None) -> NDArray[np.bool_]:
    """Mark the events from a date on, or from the time at which the last fraction of them begins."""
    if (date is None) == (test_fraction is None):
        raise ValueError("give either a date or test_fraction=, so that there is one time to split at")
    if test_fraction is None:
        cut = as_times([date], "date")[0]
        if (cut.dtype.kind == "M") != (events.times.dtype.kind == "M"):
            raise ValueError(f"date {date!r} does not fit the times: there are {events.summary}")
    else:
        n_test = int(check_fraction(test_fraction) * len(events))
        if not n_test:
            none = f"of {len(events)} events that leaves none for the test part"
            raise ValueError(f"test_fraction is {test_fraction}; {none}")
        cut = np.partition(events.times, -n_test)[-n_test]
    marks = np.asarray(events.times >= cut)
    if marks.all() or not marks.any():
        empty = "train" if marks.any() else "test"
        at = f"the split is at {in_words(cut)}, and there are {events.summary}"
        raise ValueError(f"the {empty} part would be empty: {at}")
    return marks


def check_fraction(test_fraction: float) -> float:
    """Return a share of the data; raise ValueError if it is none."""
    if not 0 <= test_fraction <= 1:
        raise ValueError(f"test_fraction is {test_fraction}; it must lie between 0 and 1")
    return test_fraction
