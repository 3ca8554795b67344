"""The counts as the passes over the data need them: `Counts`."""

from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.threads import hand_out
from nbmf.data.ids import check_same
from nbmf.data.interactions import Ids, Interactions, canonical

BLOCK_USERS = 16_896
BLOCK_ON_DEVICE = 1 << 16  # the same for the larger cache of a GPU
SMALL_COUNT = 1e6  # below which a table of how often each is there is small
CHUNK, COUNTING_THREADS = 1 << 20, 4  # non-zeros looked at together, and by how many threads
UNKNOWN = -1.0  # in the place of a count


@dataclass(frozen=True)
class Counts:
    """The counts, users × items: floating point, canonical, no stored zero; UNKNOWN in a cell that is left out."""

    by_user: sp.csr_array

    @classmethod
    def of(cls, matrix: sp.csr_array, dtype: np.dtype[Any], unknown: sp.csr_array | None = None) -> "Counts":
        """Take a canonical matrix; the cells that `unknown` stores are left out of the likelihood."""
        if unknown is not None and unknown.nnz:
            matrix = _with_unknown(matrix, unknown)
        positions = matrix.indices, matrix.indptr
        if max(matrix.nnz, *matrix.shape) < 2**31:  # SciPy often uses 8 bytes for what fits into 4
            positions = tuple(values.astype(np.int32, copy=False) for values in positions)
        return cls(sp.csr_array((matrix.data.astype(dtype, copy=False), *positions), shape=matrix.shape))

    @cached_property
    def by_item(self) -> tuple[sp.csr_array, ...]:
        """The transpose, items × users, of blocks of users whose factors a cache holds; the values are positions."""
        blocks = range(0, max(self.by_user.shape[0], 1), BLOCK_USERS)
        return tuple(_transposed_positions(self.by_user, start) for start in blocks)

    @cached_property
    def values(self) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """The distinct counts, and how often each occurs."""
        stored = self.by_user.data
        if len(stored) and stored.max() < SMALL_COUNT:  # sorting would take far longer
            times, lock, all_whole = np.zeros(int(stored.max()) + 1, np.intp), Lock(), True

            def count(start: int) -> None:
                nonlocal times, all_whole
                piece = stored[start : start + CHUNK]
                whole = piece.astype(np.int32) if all_whole else piece[:0]
                if not np.array_equal(whole, piece):
                    all_whole = False
                    return
                found = np.bincount(np.maximum(whole, 0, out=whole), minlength=len(times))
                with lock:
                    times += found

            starts = range(0, len(stored), CHUNK)
            hand_out(count, starts, min(len(starts), COUNTING_THREADS))
            if all_whole:
                times[:1] = 0  # unknown cells
                values = np.flatnonzero(times)
                return values.astype(np.float64), times[values]
        return np.unique(stored[stored > 0].astype(np.float64), return_counts=True)

    @property
    def cells(self) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[np.float64]]:
        """Rows, columns and counts of the non-zeros."""
        rows, columns, values = self._stored(self.by_user.data > 0)
        return rows, columns, values.astype(np.float64)

    @cached_property
    def total(self) -> float:
        """The sum of the counts."""
        values, times = self.values
        return float(values @ times)

    @cached_property
    def size(self) -> float:
        """Σ y(1 + ln(1+y)): about the size of counts times the logarithms of their intensities."""
        values, times = self.values
        return float((values * (1 + np.log1p(values))) @ times)

    @cached_property
    def n_unknown(self) -> int:
        """Number of cells that are left out."""
        return int(np.count_nonzero(self.by_user.data < 0))

    @cached_property
    def unknown(self) -> sp.csr_array | None:
        """A 1 in each cell that is left out, users × items; None if there is none."""
        rows, columns, values = self._stored(self.by_user.data < 0)
        return sp.csr_array((np.ones_like(values), (rows, columns)), shape=self.by_user.shape) if len(rows) else None

    def n_known(self, axis: int) -> NDArray[np.float64]:
        """Return the number of cells that are not left out, of each item (axis 0) or user (axis 1)."""
        n, of_each = self.by_user.shape[1 - axis], float(self.by_user.shape[axis])
        return np.full(n, of_each) - (0.0 if self.unknown is None else np.asarray(self.unknown.sum(axis=axis)))

    @cached_property
    def item_totals(self) -> NDArray[np.float64]:
        """The sum of the counts of each item."""
        _, columns, values = self.cells
        return np.bincount(columns, values, self.by_user.shape[1]).astype(np.float64)

    @cached_property
    def item_sizes(self) -> NDArray[np.intp]:
        """The number of positive counts of each item."""
        return np.bincount(self.cells[1], minlength=self.by_user.shape[1])

    def _stored(self, which: NDArray[np.bool_]) -> tuple[NDArray[Any], ...]:
        rows = np.repeat(np.arange(self.by_user.shape[0]), np.diff(self.by_user.indptr))
        return rows[which], self.by_user.indices[which], self.by_user.data[which]


def take_unknown(unknown: Any, users: Ids, items: Ids) -> sp.csr_array | None:
    """Check that unknown cells belong to these users and items, and return them as a matrix."""
    if unknown is None:
        return None
    named = isinstance(unknown, Interactions)
    matrix = unknown.matrix if named else sp.csr_array(unknown)
    if matrix.shape != (len(users), len(items)):
        raise ValueError(f"unknown has shape {matrix.shape}; the counts have {(len(users), len(items))}")
    for what, ours, theirs in (("user", users, unknown.users), ("item", items, unknown.items)) if named else ():
        check_same(what, ours, theirs, ("the counts", "unknown"), "take both from the same Interactions")
    stored = matrix.copy()
    stored.eliminate_zeros()
    return stored


def without(matrix: sp.csr_array, unknown: sp.csr_array | None) -> sp.csr_array:
    """Return the counts without those of unknown cells."""
    return matrix if unknown is None else canonical(matrix - matrix * (unknown != 0))


def _with_unknown(matrix: sp.csr_array, unknown: sp.csr_array) -> sp.csr_array:
    mask = canonical(sp.csr_array((np.ones(unknown.nnz), unknown.indices, unknown.indptr), shape=unknown.shape))
    mask.data[:] = 1.0
    known = canonical(matrix.astype(np.float64) - matrix.astype(np.float64) * mask)
    return canonical(known + UNKNOWN * mask)


def _transposed_positions(matrix: sp.csr_array, start: int) -> sp.csr_array:
    indptr = matrix.indptr[start : start + BLOCK_USERS + 1]
    positions = np.arange(indptr[0], indptr[-1], dtype=matrix.indices.dtype)
    shape = (len(indptr) - 1, matrix.shape[1])
    block = sp.csr_array((positions, matrix.indices[indptr[0] : indptr[-1]], indptr - indptr[0]), shape=shape)
    return sp.csr_array(block.T)
