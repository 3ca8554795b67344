"""Rankings: walks over the scores of users for items, a block of users at a time.

A walk asks for a block of scores, shows it to every visit (`Top` keeps each user's best items, `Places` finds the ranks
of given items) and drops it: nothing of size users × items is stored, and several visits share one product. Neither the
blocks nor the products, on one BLAS thread each, depend on the number of threads, so the results do not either.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from numbers import Integral
from threading import local
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.backends.cpu.topk import keep_best, place_rows, score_rows, sort_best
from nbmf.backends.threads import cut_evenly, exact_product_type, hand_out, one_blas_thread

Array = NDArray[np.floating[Any]]
Rows = NDArray[np.intp]
Tiles = Callable[[Rows], Iterator[tuple[int, Array]]]
Report = Callable[[int, int], None] | None

TILE_ROWS, TILE_COLUMNS = 256, 1600  # scores of one product, which stay in a core's own cache
WHOLE_ROWS, WHOLE_CELLS = 128, 2_500_000  # most users and scores of a block of whole rows
FEW_ROWS = 16  # for fewer users, transposing the items takes longer than scoring them
SHARED_ENTRIES, SHARES = 2_000_000, 4  # of items' factors from which they are shared out for a single user, and parts
PAIR_CELLS = 4_000_000  # products of pairs held at a time
NAMED_BY = 2  # items that name a component
SIZE = re.compile(r",[^,\d]{0,8}\d[^,]{0,14}$")  # ", 18 lb" at the end of a product's name
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
        """Return the scores without exceptions, where nobody looks at those."""
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

Visit = Callable[[int, Rows, int, Array], None]
"""What is done with scores: called with the walk's number of the first user, the users' rows, the first item, and the
scores, users × items, which may extend past the last item and are valid only during the call."""


def walk(
    scores: Scores,
    rows: Rows,
    visits: Sequence[Visit],
    *,
    whole: bool = True,
    n_threads: int | None = None,
    report: Report = None,
) -> None:
    """Show the scores of the users in `rows` to each visit, block by block.

    Visits see whole rows, or with whole=False parts of them from left to right. `report` is called with (users done,
    users in all) after every block, by one thread at a time.
    """
    step = min(scores.block_rows(whole=whole), max(len(rows), 1))
    own = local()

    def show(start: int) -> None:
        if not hasattr(own, "tiles"):
            own.tiles = scores.reader(step, whole=whole, n_threads=n_threads)
        block = rows[start : start + step]
        for left, part in own.tiles(block):
            for visit in visits:
                visit(start, block, left, part)

    count_users = None if report is None else lambda n_blocks: report(min(n_blocks * step, len(rows)), len(rows))
    # limiting BLAS takes longer than ranking for one user, which needs no matrix product
    with nullcontext() if isinstance(scores, FactorScores) and step < FEW_ROWS else one_blas_thread():
        hand_out(show, range(0, len(rows), step), n_threads, report=count_users)


class Best(NamedTuple):
    """Positions and scores of each user's n best items, best first; item −1 and score −∞ where there are fewer."""

    items: NDArray[np.intp]
    scores: Array


class Top:
    """A visit that keeps the n best items of each user in `best`, equal scores in the order of the items.

    Each user has a heap with the worst kept item on top; most scores fail the comparison with that one. A score of −∞
    or NaN is never kept. `items` are the ascending positions of the scores' columns; what `exclude`, users × items,
    stores is left out.
    """

    def __init__(
        self, n: int, n_users: int, dtype: np.dtype[Any], items: NDArray[np.intp], exclude: sp.csr_array | None = None
    ) -> None:
        self.items, self.exclude = items, exclude if exclude is None else with_sorted_rows(exclude)
        self.best = Best(np.full((n_users, n), -1, np.intp), np.full((n_users, n), -np.inf, dtype))
        self._next = np.empty(n_users, np.int64)  # each user's first excluded item that has not been passed

    def __call__(self, start: int, rows: Rows, left: int, scores: Array) -> None:
        """Take in scores of some users."""
        block = slice(start, start + len(rows))
        indptr = indices = None
        if self.exclude is not None:
            indptr, indices = self.exclude.indptr, self.exclude.indices
            if left == 0:
                self._next[block] = indptr[rows]
        items = self.items[left : left + scores.shape[1]]
        best = self.best.items[block], self.best.scores[block]
        keep_best(scores, items, rows, indptr, indices, self._next[block], *best)
        if left + scores.shape[1] >= len(self.items):
            sort_best(*best)


class Places:
    """A visit that ranks what is stored in `test`, users × items: for each entry, in their order,

    `above` is the number of items with a greater score and `level` that with the same one, itself included. Items of
    `train` come after all others, among themselves by score. A score that is NaN has level 0.
    """

    def __init__(self, test: sp.csr_array, train: sp.csr_array) -> None:
        self.test, self.train = with_sorted_rows(test), with_sorted_rows(train)
        self.above, self.level = np.zeros((2, test.nnz), np.int64)

    def __call__(self, start: int, rows: Rows, left: int, scores: Array) -> None:
        """Take in scores of some users."""
        test, train = self.test, self.train
        entries = (test.indptr, test.indices, train.indptr, train.indices)
        place_rows(scores, test.shape[1], rows, *entries, self.above, self.level)


def with_sorted_rows(matrix: sp.csr_array) -> sp.csr_array:
    """Return the matrix with each row's entries in the order of the columns, as parallel walks over two rows need."""
    if matrix.has_sorted_indices:
        return matrix
    ordered = matrix.copy()
    ordered.sort_indices()
    return ordered


def top(
    scores: Scores,
    n: int,
    *,
    rows: Rows | None = None,
    exclude: sp.csr_array | None = None,
    allowed: NDArray[np.bool_] | None = None,
    n_threads: int | None = None,
    report: Report = None,
    device: Any = None,
) -> Best:
    """Return the n best items of each user in `rows`, or of all, best first, equal scores in the order of the items.

    What `exclude`, users × items, stores and what is not `allowed` is left out. A `device` ranks instead of the CPU if
    the scores come from factors.

    >>> scores = FactorScores(np.ones((1, 1)), np.array([[3.0], [5.0], [1.0], [5.0]]))
    >>> top(scores, 3).items
    array([[1, 3, 0]])
    >>> top(scores, 3, exclude=sp.csr_array([[0, 1, 0, 0]]), allowed=np.array([True, True, False, True])).items
    array([[ 3,  0, -1]])
    """
    items = np.arange(scores.n_items) if allowed is None else np.flatnonzero(allowed)
    chosen = scores if allowed is None else scores.among(items)
    if device is not None and isinstance(chosen, FactorScores):
        users = chosen.users if rows is None else chosen.users[rows]
        if exclude is not None and rows is not None:
            exclude = sp.csr_array(exclude[rows])
        if exclude is not None and allowed is not None:
            exclude = sp.csr_array(exclude[:, items])
        columns, values = device.best(users, chosen.items, n, exclude)
        if report is not None:
            report(len(users), len(users))
        return Best(np.where(columns < 0, -1, items[columns]) if len(items) else columns, values)
    rows = np.arange(scores.n_users) if rows is None else rows
    visit = Top(n, len(rows), scores.dtype, items, exclude)
    if len(items):
        walk(chosen, rows, [visit], whole=False, n_threads=n_threads, report=report)
    return visit.best


def places(
    scores: Scores, test: sp.csr_array, train: sp.csr_array, *, n_threads: int | None = None, report: Report = None
) -> Places:
    """Return the rank of each stored entry of `test` among its user's items, with those of `train` last.

    >>> scores = FactorScores(np.ones((1, 1)), np.array([[3.0], [5.0], [1.0], [5.0]]))
    >>> found = places(scores, test=sp.csr_array([[4, 0, 1, 2]]), train=sp.csr_array([[0, 1, 0, 0]]))
    >>> found.above, found.level
    (array([1, 2, 0]), array([1, 1, 1]))
    """
    visit = Places(test, train)
    walk(scores, np.flatnonzero(np.diff(test.indptr)), [visit], n_threads=n_threads, report=report)
    return visit


def name_of_items(labels: Iterable[Any]) -> str:
    """Return a name for a component: its first items, without the sizes of products.

    >>> name_of_items(["Milk, 1 ga", "Milk, 2 ga", "Grapes red, 18 lb", "Tea"])
    'Milk · Grapes red'
    """
    return " · ".join(list(dict.fromkeys(SIZE.sub("", str(label)) for label in labels))[:NAMED_BY])


def most_typical(
    expected: NDArray[Any], total: NDArray[Any], n: int
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Return the n rows that mark a component, with their expected counts by it and its share of their totals.

    Rows are ordered by expected count × share². By count alone those that are popular everywhere would lead many
    components, by share alone rare ones that no other component has. On groceries and newsgroups (20 components, ten
    items each) this order had more coherent items (mean NPMI 0.265 and 0.264) than counts (0.18 and 0.21) or counts ×
    share (0.25 and 0.26), and 399 of 400 items were listed once.

    >>> most_typical(np.array([5.0, 4.0, 0.1]), np.array([50.0, 5.0, 0.1]), 2)[0]
    array([1, 2])
    """
    share = np.divide(expected, total, out=np.zeros(len(total)), where=total > 0)
    worth = expected * share**2
    n = min(n, len(worth))
    best = np.argpartition(-worth, n - 1)[:n]
    best = best[np.lexsort((best, -worth[best]))]
    best = best[worth[best] > 0]
    return best, expected[best].astype(np.float64), share[best]


def check_at_least_one(n: Any) -> None:
    """Refuse to look for no items or users."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n is {n!r}; ask for at least 1")


def nearest(rows: Array, others: Array, place: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the n rows with the largest cosines to one, each component scaled by its total on the other side.

    The factors alone would not do: multiplying column k of H and dividing column k of W by the same number leaves the
    model as it is but changes the cosines; products of the two do not change. A row of zeros is similar to nothing.
    """
    check_at_least_one(n)
    scaled = rows * others.sum(axis=0, dtype=np.float64)
    # by a power of two per row, which leaves all digits as they are, so that no square overflows
    scaled *= np.ldexp(1.0, np.clip(-np.frexp(scaled.max(axis=1, keepdims=True))[1], -1000, 1000))
    length = np.sqrt(np.einsum("ik,ik->i", scaled, scaled))[:, None]
    profile = np.divide(scaled, length, out=scaled, where=length > 0)
    n = min(n, len(rows) - 1)
    if n == 0:
        return np.empty(0, np.intp), np.empty(0)
    itself = sp.csr_array(([True], [place], [0, 1]), shape=(1, len(rows)))
    near, cosine = top(FactorScores(profile[[place]], profile), n, exclude=itself, n_threads=1)
    return near[0], np.minimum(cosine[0], 1.0)
