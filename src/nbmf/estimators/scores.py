"""Scores of users for items, computed a block at a time: products of factors, or what a model returns.

Neither the blocks nor the products, on one BLAS thread each, depend on the number of threads, so the scores do not
either.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.backends.cpu.topk import score_rows
from nbmf.backends.threads import cut_evenly, exact_product_type, hand_out

Array = NDArray[np.floating[Any]]
Rows = NDArray[np.intp]
Tiles = Callable[[Rows], Iterator[tuple[int, Array]]]

TILE_ROWS, TILE_COLUMNS = 256, 1600  # scores of one product, which stay in a core's own cache
WHOLE_ROWS, WHOLE_CELLS = 128, 2_500_000  # most users and scores of a block of whole rows
FEW_ROWS = 16  # for fewer users, transposing the items takes longer than scoring them
SHARED_ENTRIES, SHARES = 2_000_000, 4  # of items' factors from which they are shared out for a single user, and parts
PAIR_CELLS = 4_000_000  # products of pairs held at a time
PADDED_TO = 64  # items; BLAS may round the last few columns differently, and equal items must score equally


@dataclass(frozen=True)
class FactorScores:
    """Scores Σ_k w_uk h_ik of factors of one floating type: `users` is users × K, `items` is items × K.

    `exceptions` returns the cells with other scores, users × items, where there are any.
    """

    users: Array
    items: Array
    exceptions: Callable[[], sp.csr_array] | None = None

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the factors and so of the scores."""
        return self.items.dtype

    @cached_property
    def transposed(self) -> Array:
        """K × items, with columns of 0 up to a multiple of PADDED_TO, in the type that products are made in."""
        size = self.items.shape[1], -(-self.n_items // PADDED_TO) * PADDED_TO
        columns = np.zeros(size, exact_product_type(self.dtype))
        columns[:, : self.n_items] = self.items.T
        return columns

    def block_rows(self, *, whole: bool) -> int:
        """Return the number of users to score at a time."""
        return max(1, min(WHOLE_ROWS, WHOLE_CELLS // max(self.n_items, 1))) if whole else TILE_ROWS

    def reader(self, n_rows: int, *, whole: bool, n_threads: int | None = None) -> Tiles:
        """Return a function for one thread: user rows, at most n_rows → (first column, their scores), left to right.

        With `whole` it gives all scores of a row at once. The next scores overwrite the last ones, and columns beyond
        the last item are padding.
        """
        few = n_rows < FEW_ROWS
        n_columns = self.n_items if few else self.transposed.shape[1]
        width = n_columns if whole or few else min(n_columns, TILE_COLUMNS)
        buffer = np.empty(n_rows * width, self.dtype)

        def tiles(rows: Rows) -> Iterator[tuple[int, Array]]:
            users = self.users[rows]
            for left in range(0, n_columns, width):
                right = min(left + width, n_columns)
                scores = buffer[: len(rows) * (right - left)].reshape(len(rows), right - left)
                if len(rows) == 1 and few and self.items.size >= SHARED_ENTRIES:
                    self._share_out(users, scores, n_threads)
                elif few:
                    score_rows(users, self.items, scores)
                else:
                    np.matmul(users, self.transposed[:, left:right], out=scores, casting="same_kind")
                if self.exceptions is not None:
                    _replace(scores, left, self.exceptions()[rows])
                yield left, scores

        return tiles

    def _share_out(self, user: Array, scores: Array, n_threads: int | None) -> None:
        """Score all items for one user on several threads: a large table is read as fast as memory allows."""
        bounds = cut_evenly(np.arange(self.n_items + 1), SHARES)

        def score(n: int) -> None:
            part = slice(bounds[n], bounds[n + 1])
            score_rows(user, self.items[part], scores[:, part])

        hand_out(score, range(len(bounds) - 1), n_threads)

    def among(self, items: NDArray[np.intp]) -> "FactorScores":
        """Return the scores for some of the items."""
        return replace(self, items=self.items[items], exceptions=self._excepted(lambda cells: cells[:, items]))

    def of(self, users: Rows) -> "FactorScores":
        """Return the scores of some of the users."""
        return replace(self, users=self.users[users], exceptions=self._excepted(lambda cells: cells[users]))

    def products(self) -> "FactorScores":
        """Return the scores as plain products, for callers that never read the exceptions."""
        return self if self.exceptions is None else replace(self, exceptions=None)

    def _excepted(self, change: Callable[[sp.csr_array], sp.csr_array]) -> Callable[[], sp.csr_array] | None:
        return None if self.exceptions is None else cache(lambda: change(self.exceptions()))  # type: ignore[misc]

    def pairs(self, rows: Rows, columns: Rows) -> Array:
        """Return the scores of pairs of a user and an item."""
        step = max(1, PAIR_CELLS // self.items.shape[1])
        blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
        found = [np.sum(self.users[rows[block]] * self.items[columns[block]], axis=1) for block in blocks]
        scores = np.concatenate(found) if found else np.empty(0, self.dtype)
        if self.exceptions is not None and len(rows):
            few, row = np.unique(rows, return_inverse=True)
            others = np.asarray(self.exceptions()[few][row, np.array(columns)]).ravel()
            scores = np.where(others > 0, others, scores)  # no score is 0 that is stored
        return scores

    def totals(self) -> Array:
        """Return the sum of each user's scores."""
        totals = np.asarray(self.users @ self.items.T.sum(axis=1))
        if self.exceptions is None:
            return totals
        cells = self.exceptions()
        rows = np.repeat(np.arange(len(totals)), np.diff(cells.indptr))
        return totals + np.bincount(rows, cells.data - self.products().pairs(rows, cells.indices), len(totals))


def _replace(scores: Array, left: int, cells: sp.csr_array) -> None:
    """Put the scores of some cells into a part of all scores whose first column is `left`."""
    rows = np.repeat(np.arange(cells.shape[0]), np.diff(cells.indptr))
    inside = (cells.indices >= left) & (cells.indices < left + scores.shape[1])
    scores[rows[inside], cells.indices[inside] - left] = cells.data[inside]


@dataclass(frozen=True)
class ModelScores:
    """Scores that a model computes itself: `score_items(rows)` returns len(rows) × n_items of them."""

    exceptions: ClassVar[None] = None
    score_items: Callable[[Rows], ArrayLike]
    n_users: int
    n_columns: int
    items: NDArray[np.intp] | None = None

    @property
    def n_items(self) -> int:
        return self.n_columns if self.items is None else len(self.items)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision holds whatever the model returns."""
        return np.dtype(np.float64)

    def block_rows(self, *, whole: bool) -> int:
        return max(1, min(WHOLE_ROWS, WHOLE_CELLS // max(self.n_columns, 1)))

    def reader(self, n_rows: int, *, whole: bool, n_threads: int | None = None) -> Tiles:

        def tiles(rows: Rows) -> Iterator[tuple[int, Array]]:
            scores = np.asarray(self.score_items(rows))
            if scores.shape != (len(rows), self.n_columns):
                raise ValueError(
                    f"score_items of {len(rows)} rows returned an array of shape {scores.shape}; "
                    f"it must be {(len(rows), self.n_columns)}"
                )
            chosen = scores if self.items is None else scores[:, self.items]
            yield 0, np.ascontiguousarray(chosen, self.dtype)

        return tiles

    def among(self, items: NDArray[np.intp]) -> "ModelScores":
        return replace(self, items=items if self.items is None else self.items[items])

    def of(self, users: Rows) -> "ModelScores":
        return replace(self, score_items=lambda rows: self.score_items(users[rows]), n_users=len(users))

    def products(self) -> "ModelScores":
        return self

    def pairs(self, rows: Rows, columns: Rows) -> Array:
        few, row = np.unique(rows, return_inverse=True)
        step, order, found = max(1, PAIR_CELLS // self.n_columns), np.argsort(row, kind="stable"), [np.empty(0)]
        for start in range(0, len(few), step):
            inside = order[slice(*np.searchsorted(row[order], (start, start + step)))]
            found.append(np.asarray(self.score_items(few[start : start + step]))[row[inside] - start, columns[inside]])
        scores = np.empty(len(rows), found[-1].dtype)
        scores[order] = np.concatenate(found[1:] or found)
        return scores

    def totals(self) -> Array:
        return np.asarray(np.asarray(self.score_items(np.arange(self.n_users))).sum(axis=1))


Scores = FactorScores | ModelScores
"""Scores of all users for all items, larger is better, computed a block at a time."""
