"""Ids: where they stand among others, and how to move counts into the rows and columns of other ids."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.data.interactions import Ids, Interactions, canonical, check_counts, text_labels, widened

NUMBERS = "biuf"
MOST_COMPARED = 20_000  # known ids that are compared with a wrong one to suggest the nearest


@dataclass(frozen=True, eq=False)
class Lookup:
    """Finds unique ids, all strings or all numbers, by bisection; errors say `what` they are and `where`.

    >>> Lookup(np.array(["jazz", "folk", "soul"]), "item").positions(["folk", "soul"])
    array([1, 2])
    """

    ids: Ids
    what: str
    where: str = "the data of the fit"

    @cached_property
    def _sorted(self) -> tuple[Ids, NDArray[np.intp] | None]:
        """The ids in ascending order, and the positions that they had, None if the same."""
        if np.all(self.ids[1:] > self.ids[:-1]):
            return self.ids, None
        order = np.argsort(self.ids, kind="stable")
        return self.ids[order], order

    def find(self, wanted: Ids) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the position of each id, and whether it is known; positions of unknown ids mean nothing."""
        nowhere = np.zeros(len(wanted), np.intp), np.zeros(len(wanted), bool)
        if not len(self.ids) or (wanted.dtype.kind in NUMBERS) != (self.ids.dtype.kind in NUMBERS):
            return nowhere
        ascending, order = self._sorted
        # strings of another width would widen all ids; those cut short here fail the comparison below
        alike = wanted.astype(self.ids.dtype) if wanted.dtype.kind == self.ids.dtype.kind == "U" else wanted
        try:
            places = np.minimum(np.searchsorted(ascending, alike), len(ascending) - 1)
        except TypeError:  # objects that cannot be compared with these ids are not among them
            return nowhere
        known = np.asarray(ascending[places] == wanted, bool)
        return places if order is None else order[places], known

    def positions(self, wanted: ArrayLike | Iterable[Any]) -> NDArray[np.intp]:
        """Return the positions of one or several ids; an unknown one raises KeyError."""
        ids = self.as_ids(wanted)
        found, known = self.find(ids)
        if not known.all():
            raise self.unknown(ids[~known].tolist()[0])
        return found

    def as_ids(self, wanted: ArrayLike | Iterable[Any]) -> Ids:
        """Return one or several ids as an array; an empty one has the type of the ids."""
        if isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes) and not hasattr(wanted, "__array__"):
            wanted = list(wanted)
        ids = np.atleast_1d(np.asarray(wanted))
        if ids.dtype.kind == "U" and isinstance(wanted, list):  # NumPy turns numbers among strings into strings
            number = next((one for one in wanted if not isinstance(one, str | list)), None)
            if number is not None:
                raise self.unknown(number)
        if ids.ndim != 1:
            raise ValueError(f"{self.what}s must be one id or a list of ids; got an array of shape {ids.shape}")
        return ids if len(ids) else self.ids[:0]

    def from_text(self, text: str) -> Any:
        """Return an id that was typed, as a number if the ids are numbers.

        >>> Lookup(np.array([7, 8]), "user").from_text("8"), Lookup(np.array(["7", "8"]), "user").from_text("8")
        (8, '8')
        """
        if self.ids.dtype.kind not in NUMBERS:
            return text
        try:
            number = float(text) if self.ids.dtype.kind == "f" else int(text)
            return self.ids.dtype.type(number).item()
        except (ValueError, OverflowError):
            raise self.unknown(text) from None

    def unknown(self, wanted: Any) -> KeyError:
        """Return the error for an unknown id."""
        kind, other = ("numbers", "text") if self.ids.dtype.kind in NUMBERS else ("text", "numbers")
        n = len(self.ids)
        if isinstance(wanted, int | float) != (kind == "numbers"):
            hint = f"ids are {kind} here, not {other}"
        else:
            near = get_close_matches(str(wanted), map(str, self.ids[:MOST_COMPARED].tolist()), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of them is {self.ids[:1].tolist()[0]!r}" if n else ""
        return KeyError(f"{self.what} {wanted!r} was not in {self.where}, which had {n} {self.what}s; {hint}")


def align(
    data: Interactions, users: Lookup | None = None, items: Lookup | None = None, *, unknown: str = "error"
) -> sp.csr_array:
    """Move counts into the rows and columns of other ids, or of their own where these are None.

    An id that the lookup does not have is an "error" (KeyError) if it has counts; or "ignore" it; or "append" it after
    all others, in the order of the data.

    >>> data = Interactions.from_arrays(["ann", "bob"], ["soul", "jazz"], [2, 5])
    >>> known = Lookup(np.array(["jazz", "folk"]), "item")
    >>> align(data, items=known, unknown="ignore").toarray()
    array([[0, 0],
           [5, 0]])
    >>> align(data, items=known, unknown="append").toarray()
    array([[0, 0, 2],
           [5, 0, 0]])
    """
    if unknown not in ("error", "ignore", "append"):
        raise ValueError(f"unknown is {unknown!r}; it must be 'error', 'ignore' or 'append'")
    matrix = data.matrix
    sizes = np.diff(matrix.indptr)
    rows, n_rows = _moved(users, data.users, sizes, unknown)
    columns, n_columns = _moved(items, data.items, np.bincount(matrix.indices, minlength=data.n_items), unknown)
    row, column = np.repeat(rows, sizes), columns[matrix.indices]
    kept = (row >= 0) & (column >= 0)
    return canonical(sp.coo_array((matrix.data[kept], (row[kept], column[kept])), shape=(n_rows, n_columns)))


def _moved(lookup: Lookup | None, ids: Ids, n_counts: NDArray[Any], unknown: str) -> tuple[NDArray[np.intp], int]:
    """The new position of each id, −1 to leave it out, and how many positions there are."""
    if lookup is None:
        return np.arange(len(ids)), len(ids)
    position, known = lookup.find(ids)
    if unknown == "append":
        appended = len(lookup.ids) + np.cumsum(~known) - 1
        return np.where(known, position, appended), len(lookup.ids) + int((~known).sum())
    lost = ~known & (n_counts > 0)
    if unknown == "error" and lost.any():
        raise lookup.unknown(ids[lost].tolist()[0])
    return np.where(known, position, -1), len(lookup.ids)


def column_ids(X: Any, items: Ids) -> Ids | None:
    """Return the columns of a data frame as ids if those of the items are not just 0, 1, 2, …, otherwise None."""
    if not hasattr(X, "columns") or np.array_equal(items, np.arange(len(items))):
        return None
    columns = X.columns
    # whole numbers may be ids too, but nobody chose those of a range
    is_numbered = getattr(columns, "inferred_type", "") == "integer" and not hasattr(columns, "start")
    return np.asarray(columns) if is_numbered else text_labels(X, "columns")


def align_items(data: Interactions, items: Lookup, unknown_items: str | None, stacklevel: int = 4) -> sp.csr_array:
    """Put counts into the columns of known items.

    Parameters
    ----------
    unknown_items : str
        "error" to refuse items that are not known, "ignore" to leave them out with a warning; None for "error" in a
        method that has no such option.
    """
    try:
        matrix = align(data, items=items, unknown=unknown_items or "error")
    except KeyError as error:
        if unknown_items is None:
            raise
        raise KeyError(f"{error.args[0]}; unknown_items='ignore' leaves such items out") from None
    if matrix.nnz < data.nnz:
        lost = np.setdiff1d(data.matrix.indices, np.flatnonzero(items.find(data.items)[1]))
        warnings.warn(
            f"{len(lost)} items were not in the data of the fit, {data.items[lost[:1]].tolist()[0]!r} among them: "
            f"{data.nnz - matrix.nnz} of {data.nnz} counts are left out",
            stacklevel=stacklevel,
        )
    return matrix


def align_row(counts: Mapping[Any, Any], items: Lookup, unknown_items: str | None) -> sp.csr_array:
    """Put one user's counts, a mapping from item ids, into the columns of known items; see `align_items`."""
    ids, values = items.as_ids(list(counts)), widened(np.array(list(counts.values()) or np.empty(0)))
    if values.ndim != 1:
        item = next(item for item, value in counts.items() if np.ndim(value))
        raise ValueError(f"item {item!r} has {counts[item]!r} for a count; it must be one number")
    check_counts(values, lambda place: f"item {list(counts)[place]!r}")
    columns, known = items.find(ids)
    order = np.argsort(columns)
    order = order[values[order] != 0]
    columns = columns[order]
    if not known.all() or np.any(columns[1:] == columns[:-1]):
        return align_items(Interactions(np.arange(1), ids, sp.csr_array(values[None, :])), items, unknown_items, 5)
    # `align_items` builds and checks several SciPy matrices, which takes longer than ranking thousands of items
    parts = values[order], columns.astype(np.int32), np.array([0, len(order)], np.int32)
    row = sp.csr_array(parts, shape=(1, len(items.ids)))
    row.has_sorted_indices = row.has_canonical_format = True
    return row


def check_same(what: str, ours: Ids, theirs: ArrayLike, names: tuple[str, str], remedy: str) -> None:
    """Raise ValueError unless the ids ("user"s or "item"s) of two things with these names agree, order included."""
    theirs = np.asarray(theirs)
    if len(ours) != len(theirs):
        raise ValueError(f"{names[0]} has {len(ours)} {what}s and {names[1]} has {len(theirs)}; {remedy}")
    differ = np.flatnonzero(ours != theirs)
    if len(differ):
        n = int(differ[0])
        pair = f"{ours.tolist()[n]!r} in {names[0]} and {theirs.tolist()[n]!r} in {names[1]}"
        raise ValueError(f"{what} number {n} is {pair}; {remedy}")
