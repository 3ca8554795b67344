"""Who took what, how often: `Interactions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.data.events import Events, as_times
from nbmf.data.splits import Split, at_random, from_date, last_of_each_user, per_user

Ids = NDArray[Any]

_TOO_MANY = "counts of a repeated pair add up to more than 2**63 - 1; give them as floats"


@dataclass(frozen=True, repr=False, eq=False)
class Interactions:
    """A users × items matrix of counts, together with the ids of its rows and columns.

    Build one with `nbmf.read_interactions`, `Interactions.from_arrays` or `Interactions.from_matrix`.

    Attributes
    ----------
    users, items : array of n_users, n_items ids, as they were given
    matrix : scipy csr_array of shape (n_users, n_items); what is not stored is a zero
    item_names : array of n_items strings, or None
    n_repeated : how many rows named a pair that an earlier row had named; their counts were added up
    events : the rows with their times, where times were given: `matrix` is their sum; else None

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

    def __post_init__(self) -> None:
        """Refuse events that tell of something else than the matrix."""
        if self.events is not None and not self.events.add_up_to(self.matrix):
            raise ValueError("the events do not add up to the matrix; with another matrix, pass events=None")

    @classmethod
    def from_arrays(
        cls, users: ArrayLike, items: ArrayLike, counts: ArrayLike | None = None, times: ArrayLike | None = None
    ) -> Interactions:
        """Build from one user id, one item id and one count (1 where none are given) per interaction.

        Ids come out sorted, so the order of the rows does not matter; repeated pairs are added up. `times`, one per
        interaction, are numbers, datetime64 or ISO dates: with them the rows are kept as `events`, for splits by time.
        """
        user_ids, rows = np.unique(_as_ids(users, "users"), return_inverse=True)
        item_ids, columns = np.unique(_as_ids(items, "items"), return_inverse=True)
        values = np.ones(len(rows), np.int64) if counts is None else np.asarray(counts)
        if not len(rows) == len(columns) == len(values):
            raise ValueError(
                f"users, items and counts have lengths {len(rows)}, {len(columns)} and {len(values)}; "
                "one of each is needed for every interaction"
            )
        check_counts(values)
        values = widened(values)
        events = None
        if times is not None:
            when = as_times(times)
            if len(when) != len(rows):
                raise ValueError(f"{len(when)} times for {len(rows)} interactions; one is needed for each")
            events = Events.of(rows, columns, values, when)
        pairs, pair = np.unique(rows.astype(np.int64) * len(item_ids) + columns, return_inverse=True)
        if values.dtype.kind == "i" and np.bincount(pair, values.astype(np.float64)).max(initial=0.0) >= 2.0**63:
            raise ValueError(_TOO_MANY)
        matrix = sp.csr_array((values, (rows, columns)), shape=(len(user_ids), len(item_ids)))
        return cls(user_ids, item_ids, canonical(matrix), n_repeated=len(rows) - len(pairs), events=events)

    @classmethod
    def from_matrix(cls, matrix: Any, users: ArrayLike | None = None, items: ArrayLike | None = None) -> Interactions:
        """Build from a users × items matrix, dense or scipy sparse; ids default to 0, 1, 2, …"""
        csr = sp.csr_array(widened(matrix if sp.issparse(matrix) else np.asarray(matrix)), copy=True)
        check_matrix(csr)
        n_users, n_items = csr.shape
        user_ids = np.arange(n_users) if users is None else _as_ids(users, "users")
        item_ids = np.arange(n_items) if items is None else _as_ids(items, "items")
        for what, ids, size in (("users", user_ids, n_users), ("items", item_ids, n_items)):
            if len(ids) != size:
                raise ValueError(f"{len(ids)} ids for {size} {what}; the matrix has shape {n_users} × {n_items}")
            if len(np.unique(ids)) != size:
                values, repeats = np.unique(ids, return_counts=True)
                raise ValueError(f"{what}: id {values[repeats > 1][0]!r} appears more than once")
        return cls(user_ids, item_ids, canonical(csr))

    @property
    def n_users(self) -> int:
        """Number of rows of the matrix, users without any count included."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns of the matrix, items without any count included."""
        return int(self.matrix.shape[1])

    @property
    def nnz(self) -> int:
        """Number of non-zero counts."""
        return int(self.matrix.nnz)

    def __repr__(self) -> str:
        """Sizes, and what reading did to the data."""
        repeated = f", {self.n_repeated:,} repeated pairs added up" if self.n_repeated else ""
        total = self.matrix.sum() if self.nnz else 0
        events = f", {self.events.summary}" if self.events is not None else ""
        return (
            f"{type(self).__name__}({self.n_users:,} users × {self.n_items:,} items, "
            f"{self.nnz:,} non-zero counts, total {total:,}{repeated}{events})"
        )

    def filter(self, min_users_per_item: int = 50, min_items_per_user: int = 20, *, repeat: bool = False) -> Self:
        """Keep items with enough users, then users with enough items, once (the paper's order).

        After the second step some items may have fewer users than asked for; `repeat=True` goes on until
        both hold. Users and items that fall short are removed, ids and all.

        >>> data = Interactions.from_arrays(["ann", "ann", "bob"], ["jazz", "folk", "jazz"])
        >>> data.filter(min_users_per_item=2, min_items_per_user=1)
        Interactions(2 users × 1 items, 2 non-zero counts, total 2)
        """
        data = self
        while True:
            before = data.matrix.shape
            data = data.select_items(np.flatnonzero(_stored_per_column(data.matrix) >= min_users_per_item))
            data = data.select_users(np.flatnonzero(np.diff(data.matrix.indptr) >= min_items_per_user))
            if not repeat or data.matrix.shape == before:
                return data

    def select_users(self, rows: NDArray[np.intp]) -> Self:
        """Keep the users at these positions, which ascend."""
        events = None if self.events is None else self.events.of_users(rows, self.n_users)
        return replace(self, users=self.users[rows], matrix=self.matrix[rows], events=events)

    def select_items(self, columns: NDArray[np.intp]) -> Self:
        """Keep the items at these positions, which ascend."""
        names = None if self.item_names is None else self.item_names[columns]
        events = None if self.events is None else self.events.of_items(columns, self.n_items)
        matrix = canonical(self.matrix[:, columns])
        return replace(self, items=self.items[columns], matrix=matrix, item_names=names, events=events)

    def split(self, test_fraction: float = 0.2, *, seed: int = 0) -> Split:
        """Hold out a fraction of the non-zero counts, drawn at random: the paper's split; both sides keep all ids.

        The fraction is rounded down. The draw comes from NumPy's legacy generator, whose stream is frozen: one seed
        gives one split on any machine. It takes the non-zeros by user, then item. Users may be left without any
        non-zero on either side; `Split.untested` lists those without a test item.

        >>> data = Interactions.from_arrays(["ann", "ann", "ann", "bob"], ["jazz", "folk", "soul", "jazz"])
        >>> train, test = data.split(test_fraction=0.5, seed=1)
        >>> train.nnz, test.nnz
        (2, 2)
        """
        return self._hold_out(at_random(self.nnz, test_fraction, seed))

    def split_per_user(self, test_fraction: float = 0.2, *, seed: int = 0) -> Split:
        """Hold out a fraction of each user's non-zero counts, drawn at random; both sides keep all ids.

        Of n non-zeros, test_fraction·n are held out, rounded down, and never all of them: every user keeps one to
        learn from, so at a fraction of 0.2 users with fewer than five are untested. Seeds work as in `split`.
        """
        return self._hold_out(per_user(self.matrix, test_fraction, seed))

    def leave_last_out(self, n: int = 1, *, seed: int = 0) -> Split:
        """Hold out the n items of each user whose last event is the latest, with their whole counts.

        Items with the same last time are drawn at random. A user always keeps one item to learn from: with n items or
        fewer all but the earliest are held out, and who has one item is untested. Needs times.

        >>> data = Interactions.from_arrays(["ann", "ann", "ann"], ["jazz", "folk", "jazz"], times=[2015, 2016, 2017])
        >>> data.leave_last_out().test.matrix.toarray()  # jazz, all of it
        array([[0, 2]])
        """
        return self._hold_out(last_of_each_user(self.matrix, self._dated(), n, seed))

    def split_by_date(self, date: Any = None, *, test_fraction: float | None = None, repeats: bool = False) -> Split:
        """Learn from what happened before a date, test on what happened from then on. Needs times.

        Parameters
        ----------
        date : where to split: datetime64, Python's date or datetime, ISO text or a number, as the times are
        test_fraction : instead of a date, the share of the events to test on; all at the time of the earliest of
            them go to the test part, so it may be a little more
        repeats : whether the test part keeps what the user had taken before the date. By default it does not: rankings
            put consumed items last, so finding them again cannot be judged; their later counts are in neither part

        >>> data = Interactions.from_arrays(["ann", "ann", "ann"], ["jazz", "folk", "jazz"], times=[2015, 2016, 2017])
        >>> [part.matrix.toarray().tolist() for part in data.split_by_date(2016)]
        [[[0, 1]], [[1, 0]]]
        >>> [part.matrix.toarray().tolist() for part in data.split_by_date(2016, repeats=True)]
        [[[0, 1]], [[1, 1]]]
        """
        events = self._dated()
        later = from_date(events, date, test_fraction)
        tested = later
        if not repeats:
            pairs = events.pairs
            consumed = np.zeros(self.nnz, bool)
            consumed[pairs[~later]] = True
            tested = later & ~consumed[pairs]
        return Split(self._of_events(~later), self._of_events(tested))

    def binarize(self) -> Self:
        """1 wherever the count is positive: what is left when counts are thrown away, and their events with them."""
        matrix = self.matrix.copy()
        matrix.data = np.ones_like(matrix.data)
        return replace(self, matrix=matrix, events=None)

    def _dated(self) -> Events:
        if self.events is None:
            raise ValueError(
                "these interactions have no times to split by; give them as read_interactions(…, time='column') or "
                "Interactions.from_arrays(…, times=…), and split before binarize()"
            )
        return self.events

    def _hold_out(self, marks: NDArray[np.bool_]) -> Split:
        return Split(self._keep(~marks), self._keep(marks))

    def _keep(self, stored: NDArray[np.bool_]) -> Self:
        rows = np.repeat(np.arange(self.n_users), np.diff(self.matrix.indptr))
        entries = (self.matrix.data[stored], (rows[stored], self.matrix.indices[stored]))
        matrix = canonical(sp.csr_array(entries, shape=self.matrix.shape))
        events = None if self.events is None else self.events.take(stored[self.events.pairs])
        return replace(self, matrix=matrix, n_repeated=0, events=events)

    def _of_events(self, chosen: NDArray[np.bool_]) -> Self:
        events = self._dated().take(chosen)
        return replace(self, matrix=events.matrix(self.matrix.shape), n_repeated=0, events=events)


def check_counts(values: NDArray[Any], where: Callable[[int], str] = "position {}".format) -> None:
    """Raise ValueError unless every value is a finite number from 0; `where` names the place of the n-th value."""
    if values.dtype.kind not in "biuf":
        raise ValueError(f"counts have type {values.dtype}; they must be numbers")
    for problem, is_bad, remedy in (
        ("Negative values in data", lambda: values < 0, "counts start at 0"),
        ("Input contains NaN", lambda: np.isnan(values), "leave out what is unknown"),
        ("Input contains infinity", lambda: np.isinf(values), "counts are finite"),
    ):
        bad = np.flatnonzero(is_bad())
        if len(bad):
            raise ValueError(f"{problem}: count {values[bad[0]]} at {where(int(bad[0]))}; {remedy}")


def check_matrix(matrix: sp.csr_array) -> None:
    """Raise ValueError, with row and column, unless every stored value is a finite number from 0."""

    def where(position: int) -> str:
        row = int(np.searchsorted(matrix.indptr, position, side="right")) - 1
        return f"row {row}, column {matrix.indices[position]}"

    check_counts(matrix.data, where)


def _as_ids(values: ArrayLike | Iterable[Any], what: str) -> Ids:
    ids = np.asarray(values)
    if ids.ndim != 1:
        raise ValueError(f"{what} must be a list of ids; got an array of shape {ids.shape}")
    given = values if isinstance(values, list | tuple) else ids.tolist()
    for position, value in enumerate(given if ids.dtype.kind in "fOU" else ()):
        if value is None or value != value:  # noqa: PLR0124 (NaN alone differs from itself)
            raise ValueError(f"{what}: no id at position {position} ({value!r})")
        if ids.dtype.kind != "f" and isinstance(value, str) != isinstance(given[0], str):
            raise ValueError(
                f"{what}: {given[0]!r} and {value!r} (position {position}) are of different types; "
                "ids are all strings or all numbers"
            )
    return ids


def widened(values: Any) -> Any:
    """Return whole numbers, an array or a sparse matrix, as int64, so that sums of small ones do not wrap around."""
    return values.astype(np.int64) if values.dtype.kind in "biu" else values


def canonical(matrix: sp.csr_array) -> sp.csr_array:
    """Sort each row's entries, add up repeated ones and drop stored zeros, in place."""
    matrix = sp.csr_array(matrix)
    if matrix.dtype.kind == "i" and not matrix.has_canonical_format:
        doubled = matrix.astype(np.float64)
        doubled.sum_duplicates()
        if doubled.nnz < matrix.nnz and doubled.data.max(initial=0.0) >= 2.0**63:
            raise ValueError(_TOO_MANY)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _stored_per_column(matrix: sp.csr_array) -> NDArray[np.intp]:
    return np.bincount(matrix.indices, minlength=matrix.shape[1])
