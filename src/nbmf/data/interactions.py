"""Who took what, and how often: `Interactions`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nbmf.data.events import Events, as_times, check_fraction, from_date
from nbmf.data.listing import Listing

Ids = NDArray[Any]

FORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "log1p": np.log1p,
    "binary": np.ones_like,
    "counts": lambda counts: counts,
}
"""What a likelihood may see in place of a positive count."""

# y/λ, and products of sixteen shapes in the moments of gammas, must stay numbers
RANGES = {np.dtype(np.float32): (1e-20, 1e29), np.dtype(np.float64): (1e-100, 1e35)}


class Split(NamedTuple):
    """A train and a test part with the same ids: `train, test = data.split()`."""

    train: "Interactions"
    test: "Interactions"

    @property
    def untested(self) -> Ids:
        """Ids of the users without a test item, whose rankings cannot be evaluated."""
        return np.asarray(self.test.users[np.diff(self.test.matrix.indptr) == 0])


@dataclass(frozen=True, repr=False, eq=False)
class Interactions(Listing):
    """A users × items matrix of counts with the ids of its rows and columns.

    Build one with `nbmf.read_interactions`, `Interactions.from_arrays` or `Interactions.from_matrix`.

    Attributes
    ----------
    users, items : ndarray
        Ids of the rows and of the columns, as they were given.
    matrix : scipy.sparse.csr_array
        The counts, users × items; cells that are not stored are zeros.
    item_names : ndarray of str, optional
        A name for each item.
    n_repeated : int
        Number of rows whose pair of user and item had appeared before; their counts were added up.
    events : Events, optional
        The rows with their times, if times were given; `matrix` is their sum.
    reading : str
        Which columns of a source were used and which were ignored, and how many of its pairs have a count of 0.

    Examples
    --------
    >>> data = Interactions.from_arrays(["ann", "bob", "ann"], ["jazz", "jazz", "folk"], [3, 1, 12])
    >>> data
    Interactions(2 users × 2 items, 3 non-zero counts, total 16)
    >>> data.matrix.toarray()
    array([[12,  3],
           [ 0,  1]])
    """

    users: Ids
    items: Ids
    matrix: sp.csr_array
    item_names: Ids | None = field(default=None, kw_only=True)
    n_repeated: int = field(default=0, kw_only=True)
    events: Events | None = field(default=None, kw_only=True)
    reading: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if self.events is not None and not self.events.add_up_to(self.matrix):
            raise ValueError("the events do not add up to the matrix; with another matrix, pass events=None")

    @classmethod
    def from_arrays(
        cls, users: ArrayLike, items: ArrayLike, counts: ArrayLike | None = None, times: ArrayLike | None = None
    ) -> "Interactions":
        """Build from parallel arrays with one entry per interaction, in any order.

        Parameters
        ----------
        users, items : array_like
            Ids, all strings or all numbers; the result has them sorted.
        counts : array_like, optional
            How often, 1 by default. The counts of repeated pairs are added up.
        times : array_like, optional
            Numbers, datetime64 or ISO dates. The rows are then kept as `events`, for splits by time.
        """
        user_ids, rows = np.unique(_as_ids(users, "users"), return_inverse=True)
        item_ids, columns = np.unique(_as_ids(items, "items"), return_inverse=True)
        values = np.ones(len(rows), np.int64) if counts is None else np.asarray(counts)
        if not len(rows) == len(columns) == len(values):
            lengths = f"{len(rows)}, {len(columns)} and {len(values)}"
            raise ValueError(f"users, items and counts have lengths {lengths}; every interaction needs one of each")
        check_counts(values)
        values = widened(values)
        events = None
        if times is not None:
            when = as_times(times)
            if len(when) != len(rows):
                raise ValueError(f"{len(when)} times for {len(rows)} interactions; every interaction needs one")
            events = Events.of(rows, columns, values, when)
        summed = _summed(sp.coo_array((values, (rows, columns)), shape=(len(user_ids), len(item_ids))))
        n_repeated = len(rows) - summed.nnz
        return cls(user_ids, item_ids, canonical(summed), n_repeated=n_repeated, events=events)

    @classmethod
    def from_matrix(cls, matrix: Any, users: ArrayLike | None = None, items: ArrayLike | None = None) -> "Interactions":
        """Build from a users × items matrix.

        Parameters
        ----------
        matrix : array_like, scipy sparse matrix or data frame
            The counts, whole numbers or any others from 0; they are copied.
        users, items : array_like, optional
            Ids of the rows and of the columns, by default the index and the columns of a data frame where they are
            text, otherwise 0, 1, 2, …
        """
        refuse_path(matrix)
        users = text_labels(matrix, "index") if users is None else users
        items = text_labels(matrix, "columns") if items is None else items
        csr = sp.csr_array(widened(matrix if sp.issparse(matrix) else np.asarray(matrix)), copy=True)
        check_matrix(csr)
        ids = []
        for what, given, size in (("users", users, csr.shape[0]), ("items", items, csr.shape[1])):
            ids.append(np.arange(size) if given is None else _as_ids(given, what))
            if len(ids[-1]) != size:
                shape = f"{csr.shape[0]} × {csr.shape[1]}"
                raise ValueError(f"{len(ids[-1])} ids for {size} {what}; the matrix has shape {shape}")
            values, repeats = np.unique(ids[-1], return_counts=True)
            if len(values) != size:
                raise ValueError(f"{what}: id {values[repeats > 1][0]!r} appears more than once")
        return cls(ids[0], ids[1], canonical(csr))

    @property
    def n_users(self) -> int:
        """Number of rows of the matrix, including users without counts."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns of the matrix, including items without counts."""
        return int(self.matrix.shape[1])

    @property
    def nnz(self) -> int:
        """Number of non-zero counts."""
        return int(self.matrix.nnz)

    def filter(self, min_users_per_item: int = 50, min_items_per_user: int = 20, *, repeat: bool = False) -> Self:
        """Remove items with few users, then users with few of the remaining items (the paper's order).

        Parameters
        ----------
        min_users_per_item, min_items_per_user : int
            The fewest non-zero counts that an item and a user may have.
        repeat : bool
            The second step can leave items with fewer users than required. True repeats both steps until none is left.

        Examples
        --------
        >>> data = Interactions.from_arrays(["ann", "ann", "bob"], ["jazz", "folk", "jazz"])
        >>> data.filter(min_users_per_item=2, min_items_per_user=1)
        Interactions(2 users × 1 item, 2 non-zero counts, total 2)
        """
        data = self
        while True:
            before = data.matrix.shape
            n_users = np.bincount(data.matrix.indices, minlength=data.n_items)
            data = data.select_items(np.flatnonzero(n_users >= min_users_per_item))
            data = data.select_users(np.flatnonzero(np.diff(data.matrix.indptr) >= min_items_per_user))
            if not repeat or data.matrix.shape == before:
                return data

    def select_users(self, rows: NDArray[np.intp]) -> Self:
        """Keep the users at these positions, which must ascend."""
        events = None if self.events is None else self.events.select("rows", rows, self.n_users)
        return replace(self, users=self.users[rows], matrix=self.matrix[rows], events=events)

    def select_items(self, columns: NDArray[np.intp]) -> Self:
        """Keep the items at these positions, which must ascend."""
        names = None if self.item_names is None else self.item_names[columns]
        events = None if self.events is None else self.events.select("columns", columns, self.n_items)
        matrix = canonical(self.matrix[:, columns])
        return replace(self, items=self.items[columns], matrix=matrix, item_names=names, events=events)

    def split(self, test_fraction: float = 0.2, *, seed: int = 0) -> Split:
        """Hold out a random fraction of the non-zero counts: the paper's split. Both parts keep all ids.

        Parameters
        ----------
        test_fraction : float
            Share of the non-zero counts to hold out, rounded down. Some users may have none left in one of the parts;
            `Split.untested` lists those without a test item.
        seed : int
            Seed of NumPy's legacy generator, whose stream is frozen: a seed gives the same split on any machine.

        Examples
        --------
        >>> data = Interactions.from_arrays(["ann", "ann", "ann", "bob"], ["jazz", "folk", "soul", "jazz"])
        >>> train, test = data.split(test_fraction=0.5, seed=1)
        >>> train.nnz, test.nnz
        (2, 2)
        """
        marks, n_test = np.zeros(self.nnz, bool), int(check_fraction(test_fraction) * self.nnz)
        marks[np.random.RandomState(seed).choice(self.nnz, n_test, replace=False)] = True
        return self._hold_out(marks)

    def split_per_user(self, test_fraction: float = 0.2, *, seed: int = 0) -> Split:
        """Hold out a random fraction of each user's non-zero counts, rounded down, but never all. Like `split`."""
        n_stored = np.diff(self.matrix.indptr)
        n_test = np.minimum((check_fraction(test_fraction) * n_stored).astype(np.intp), n_stored - 1)
        return self._hold_out_largest(n_test, np.random.RandomState(seed).random_sample(self.nnz))

    def leave_last_out(self, n: int = 1, *, seed: int = 0) -> Split:
        """Hold out the n items that each user turned to last, with their whole counts. Needs times.

        Parameters
        ----------
        n, seed : int
            Items to hold out per user, by the time of their last event; those with the same last time are drawn at
            random, with seeds as in `split`. Every user keeps at least one item to train on.

        Examples
        --------
        >>> data = Interactions.from_arrays(["ann", "ann", "ann"], ["jazz", "folk", "jazz"], times=[2015, 2016, 2017])
        >>> data.leave_last_out().test.matrix.toarray()  # jazz, all of it
        array([[0, 2]])
        """
        times = self._dated().last_times
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n is {n!r}; it must be a whole number from 1")
        n_test = np.minimum(n, np.diff(self.matrix.indptr) - 1)
        return self._hold_out_largest(n_test, times, np.random.RandomState(seed).random_sample(self.nnz))

    def split_by_date(self, date: Any = None, *, test_fraction: float | None = None, repeats: bool = False) -> Split:
        """Train on the events before a date and test on those from that date on. Needs times.

        Parameters
        ----------
        date : datetime64, date, datetime, str or number
            Where to split. Numbers if the times are numbers, else a date; text is ISO.
        test_fraction : float
            Instead of a date, the share of the events to test on. Events at the time of the earliest of them are
            tested too, so the share may be slightly larger.
        repeats : bool
            Whether to test on pairs that are also in the train part. By default they are left out of the test part:
            rankings put the items of the train part last, so they cannot be found again.

        Examples
        --------
        >>> data = Interactions.from_arrays(["ann", "ann", "ann"], ["jazz", "folk", "jazz"], times=[2015, 2016, 2017])
        >>> [part.matrix.toarray().tolist() for part in data.split_by_date(2016)]
        [[[0, 1]], [[1, 0]]]
        >>> [part.matrix.toarray().tolist() for part in data.split_by_date(2016, repeats=True)]
        [[[0, 1]], [[1, 1]]]
        """
        events = self._dated()
        pairs = events.pairs
        later = tested = from_date(events, date, test_fraction)
        if not repeats:
            in_train = np.zeros(self.nnz, bool)
            in_train[pairs[~later]] = True
            tested = later & ~in_train[pairs]
        parts = [events.take(chosen) for chosen in (~later, tested)]
        return Split(*(replace(self, matrix=e.matrix(self.matrix.shape), n_repeated=0, events=e) for e in parts))

    def binarize(self) -> Self:
        """Replace every non-zero count by 1. The events are dropped, as they no longer add up to the counts."""
        matrix = self.matrix.copy()
        matrix.data = np.ones_like(matrix.data)
        return replace(self, matrix=matrix, events=None)

    def _dated(self) -> Events:
        if self.events is None:
            remedy = "give them as read_interactions(…, time='column') or Interactions.from_arrays(…, times=…)"
            raise ValueError(f"these interactions have no times to split by; {remedy}, and split before binarize()")
        return self.events

    def _hold_out_largest(self, n_test: NDArray[Any], *keys: NDArray[Any]) -> Split:
        """Hold out the non-zeros of each user with the largest keys; later keys break ties of earlier ones."""
        indptr, sizes = self.matrix.indptr, np.diff(self.matrix.indptr)
        rows = np.repeat(np.arange(self.n_users), sizes)
        n_above = np.repeat(indptr[1:], sizes) - 1 - np.arange(self.nnz)
        marks = np.zeros(self.nnz, bool)
        marks[np.lexsort((*reversed(keys), rows))] = n_above < n_test[rows]
        return self._hold_out(marks)

    def _hold_out(self, marks: NDArray[np.bool_]) -> Split:
        parts = []
        for stored in (~marks, marks):
            matrix = self.matrix.copy()
            matrix.data[~stored] = 0
            matrix.eliminate_zeros()
            events = None if self.events is None else self.events.take(stored[self.events.pairs])
            parts.append(replace(self, matrix=matrix, n_repeated=0, events=events))
        return Split(*parts)


def check_counts(
    values: NDArray[Any],
    where: Callable[[int], str] = "position {}".format,
    if_missing: str = "leave out what is unknown",
) -> None:
    """Raise ValueError unless every value is finite and not negative; `where` names the place of the n-th value."""
    if values.dtype.kind not in "biuf":
        raise ValueError(f"counts have type {values.dtype}; they must be numbers")
    for problem, is_bad, remedy in (
        ("Negative values in data", lambda: values < 0, "counts start at 0"),
        ("Input contains NaN", lambda: np.isnan(values), if_missing),
        ("Input contains infinity", lambda: np.isinf(values), "counts are finite"),
    ):
        bad = np.flatnonzero(is_bad())
        if len(bad):
            raise ValueError(f"{problem}: count {values[bad[0]]} at {where(int(bad[0]))}; {remedy}")


def check_matrix(matrix: sp.csr_array) -> None:
    """Raise ValueError, with row and column, unless every stored value is finite and not negative."""
    row_of = partial(np.searchsorted, matrix.indptr, side="right")
    remedy = "if no count means 0, fillna(0) of a data frame says so; fit(X, unknown=cells) leaves unknown cells out"
    check_counts(matrix.data, lambda place: f"row {row_of(place) - 1}, column {matrix.indices[place]}", remedy)


def check_range(matrix: sp.csr_array, dtype: Any) -> None:
    """Refuse counts whose products would overflow or underflow in the factors' precision."""
    least, most = RANGES[np.dtype(dtype)]
    for count in (matrix.data.max(initial=1), matrix.data.min(initial=1)):
        if not least <= count <= most:
            remedy = "scale the data" if np.dtype(dtype) == np.float64 else "scale the data or use dtype='float64'"
            raise ValueError(f"count {count} is out of the range of {np.dtype(dtype)}; {remedy}")


def text_labels(frame: Any, axis: str) -> Ids | None:
    """Return the "index" or the "columns" of a data frame if they are text; numbers, dates and the like name nobody."""
    labels = getattr(frame, axis, None) if hasattr(frame, "columns") else None
    values: Any = getattr(labels, "tolist", lambda: labels)()
    is_text = isinstance(values, list) and values and all(isinstance(value, str) for value in values)
    return np.array(values) if is_text else None


def _as_ids(values: ArrayLike | Iterable[Any], what: str) -> Ids:
    ids = np.asarray(values)
    if ids.ndim != 1:
        raise ValueError(f"{what} must be a list of ids; got an array of shape {ids.shape}")
    given = values if isinstance(values, list | tuple) else ids.tolist()
    for position, value in enumerate(given if ids.dtype.kind in "fOU" else ()):
        if value is None or value != value:  # noqa: PLR0124 (NaN alone differs from itself)
            raise ValueError(f"{what}: no id at position {position} ({value!r})")
        if ids.dtype.kind != "f" and isinstance(value, str) != isinstance(given[0], str):
            apart = f"{given[0]!r} and {value!r} (position {position}) are of different types"
            raise ValueError(f"{what}: {apart}; ids are all strings or all numbers")
    return ids


def widened(values: Any) -> Any:
    """Return integers, an array or a sparse matrix, as int64, so that sums of small types do not wrap around."""
    return values.astype(np.int64) if values.dtype.kind in "biu" else values


def refuse_path(matrix: Any) -> None:
    """Refuse the name of a file where a matrix belongs."""
    if isinstance(matrix, str | bytes | PathLike):
        raise TypeError(f"{matrix!r} is not a matrix; nbmf.read_interactions({matrix!r}) reads files")


def canonical(matrix: Any) -> sp.csr_array:
    """Return a csr_array with sorted rows, repeated entries added up and no stored zeros; reuses the arrays given."""
    csr = _summed(matrix)
    csr.eliminate_zeros()
    return csr


def _summed(matrix: Any) -> sp.csr_array:
    if matrix.dtype.kind == "i" and matrix.data.sum(dtype=np.float64) >= 2.0**62:  # or no sum can overflow
        doubled = sp.csr_array(matrix.astype(np.float64))
        doubled.sum_duplicates()
        if doubled.nnz < matrix.nnz and doubled.data.max(initial=0.0) >= 2.0**63:
            raise ValueError("the counts of a repeated pair add up to more than 2**63 - 1; give them as floats")
    csr = sp.csr_array(matrix)
    csr.sum_duplicates()
    return csr


def formed(counts: sp.csr_array, form: str, dtype: DTypeLike | None = None) -> sp.csr_array:
    """Return counts in one of FORMS; with a type, computed in double precision and rounded to it."""
    if form == "counts" and dtype is None:
        return counts
    values = FORMS[form](counts.data if dtype is None else counts.data.astype(np.float64))
    return sp.csr_array((values.astype(dtype or values.dtype, copy=False), counts.indices, counts.indptr), counts.shape)
