"""When it happened: `Events`, the dated rows that a matrix of counts adds up."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
"""Pattern of a date or time stamp in a text; it does not know how many days a month has."""


@dataclass(frozen=True, repr=False, eq=False)
class Events:
    """One row for each thing that happened, by user, item, time; `Interactions.matrix` adds them up.

    Attributes
    ----------
    rows, columns : positions of the user and of the item in the matrix
    counts : what the event adds to the count of its pair, above 0
    times : datetime64 or numbers
    """

    rows: NDArray[np.integer[Any]]
    columns: NDArray[np.integer[Any]]
    counts: NDArray[Any]
    times: Times

    @classmethod
    def of(cls, rows: NDArray[Any], columns: NDArray[Any], counts: NDArray[Any], times: Times) -> Events:
        """Put them in order, whatever theirs was. A count of 0 is no event."""
        order = np.lexsort((counts, times, columns, rows))
        order = order[counts[order] != 0]
        smallest = sp.get_index_dtype(maxval=max(rows.max(initial=0), columns.max(initial=0)))
        return cls(rows[order].astype(smallest), columns[order].astype(smallest), counts[order], times[order])

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.times)

    def __repr__(self) -> str:
        """How many, and from when to when."""
        return f"Events({self.summary})"

    @property
    def summary(self) -> str:
        """How many, and from when to when, in words."""
        span = f" from {in_words(self.times.min())} to {in_words(self.times.max())}" if len(self) else ""
        return f"{len(self):,} events{span}"

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """Where the events of each pair begin; the pairs are the non-zeros of the matrix, in its order."""
        is_new = (np.diff(self.rows, prepend=-1) != 0) | (np.diff(self.columns, prepend=-1) != 0)
        return np.flatnonzero(is_new)

    @property
    def pairs(self) -> NDArray[np.intp]:
        """For each event the number of its pair."""
        sizes = np.diff(self.starts, append=len(self))
        return np.repeat(np.arange(len(self.starts)), sizes)

    @property
    def last_times(self) -> Times:
        """For each pair the time of its last event."""
        return np.asarray(self.times[np.append(self.starts, len(self))[1:] - 1])

    def matrix(self, shape: tuple[int, int]) -> sp.csr_array:
        """Add up the counts of each pair."""
        totals = np.add.reduceat(self.counts, self.starts)
        indptr = np.searchsorted(self.rows[self.starts], np.arange(shape[0] + 1))
        indptr = indptr.astype(sp.get_index_dtype(maxval=len(totals)))
        return sp.csr_array((totals, self.columns[self.starts], indptr), shape=shape)

    def add_up_to(self, matrix: sp.csr_array) -> bool:
        """Tell whether the events are those of a matrix in canonical format; float sums may be rounded differently."""
        own = self.matrix(matrix.shape)
        return (
            np.array_equal(own.indptr, matrix.indptr)
            and np.array_equal(own.indices, matrix.indices)
            and np.allclose(own.data, matrix.data)
        )

    def take(self, chosen: NDArray[np.bool_]) -> Events:
        """Return those that are marked."""
        return Events(self.rows[chosen], self.columns[chosen], self.counts[chosen], self.times[chosen])

    def of_users(self, rows: NDArray[np.intp], n_users: int) -> Events:
        """Return the events of the users at ascending positions `rows`, who are numbered anew."""
        number = _new_numbers(self.rows, rows, n_users)
        return replace(self.take(number >= 0), rows=number[number >= 0])

    def of_items(self, columns: NDArray[np.intp], n_items: int) -> Events:
        """Return the events of the items at ascending positions `columns`, which are numbered anew."""
        number = _new_numbers(self.columns, columns, n_items)
        return replace(self.take(number >= 0), columns=number[number >= 0])


def _new_numbers(old: NDArray[np.integer[Any]], chosen: NDArray[np.intp], size: int) -> NDArray[np.integer[Any]]:
    """Rank of each old number among the chosen ones, −1 where it is none of them."""
    rank = np.full(size, -1, old.dtype)
    rank[chosen] = np.arange(len(chosen))
    return np.asarray(rank[old])


def in_words(time: Any) -> str:
    """Write a time without the digits that say nothing."""
    return str(np.datetime_as_string(time, unit="auto")) if np.asarray(time).dtype.kind == "M" else str(time)


def as_times(values: ArrayLike | Iterable[Any], what: str = "times") -> Times:
    """Return numbers or datetime64 as they are; ISO texts and Python's dates as datetime64, with an offset in UTC.

    >>> as_times(["2017-01-31", "2017-01-31T20:15:00+02:00"])
    array(['2017-01-31T00:00:00.000000', '2017-01-31T18:15:00.000000'], dtype='datetime64[us]')
    """
    times = np.asarray(values)
    if times.ndim != 1:
        raise ValueError(f"{what} must be a list, one for each interaction; got an array of shape {times.shape}")
    if times.dtype.kind in "OU":
        moments = [_as_moment(value, f"{what}: {value!r} at position {n}") for n, value in enumerate(times.tolist())]
        times = np.array(moments, "datetime64[us]")
    if times.dtype.kind not in "Miuf":
        raise ValueError(f"{what} have type {times.dtype}; they must be numbers, datetime64 or ISO dates")
    missing = np.flatnonzero(np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times))
    if len(missing):
        raise ValueError(
            f"{what}: {times[missing[0]]} at position {missing[0]} is no time; every interaction needs one"
        )
    return times


def _as_moment(value: Any, where: str) -> datetime | date | np.datetime64:
    moment: Any = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value) if re.fullmatch(ISO_TIME, value) else None
        except ValueError:
            moment = None
    if not isinstance(moment, date | np.datetime64):
        raise ValueError(f"{where} is no time; write it as 2017-01-31 or 2017-01-31T20:15:00, or give numbers")
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.astimezone(UTC).replace(tzinfo=None)
    return moment
