"""Who comes first: walks over the scores of users for items, a block of users at a time.

Scores come from factors (`FactorScores`) or from a model's own method (`ModelScores`). A walk asks for a block of them,
shows it to every visit (`Top` keeps each user's best items, `Places` finds where given items stand) and drops it:
nothing of size users × items is stored, and several visits share one product. The blocks do not depend on the number of
threads and each product runs on one BLAS thread, so the results do not either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from nbmf.backends import Device
from nbmf.backends.cpu.topk import keep_best, place_rows, score_rows, sort_best

Array = NDArray[np.floating[Any]]
Rows = NDArray[np.intp]
Tiles = Callable[[Rows], Iterator[tuple[int, Array]]]
Report = Callable[[int, int], None]

TILE_ROWS, TILE_COLUMNS = 256, 1600  # scores of one product, which stay in a core's own cache
WHOLE_ROWS, WHOLE_CELLS = 128, 2_500_000  # most users and scores of a block of whole rows
FEW_ROWS = 16  # for fewer users, laying out the items anew takes longer than their scores
PADDED_TO = 64  # items; the last few columns of a product may be rounded otherwise, and equal items must score equally


class Scores(Protocol):
    """Scores of all users for all items, larger is better, computed a block at a time."""

    @property
    def n_users(self) -> int:
        """How many users there are."""

    @property
    def n_items(self) -> int:
        """How many items there are."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the scores."""

    def block_rows(self, *, whole: bool) -> int:
        """How many users to score at a time."""

    def reader(self, n_rows: int, *, whole: bool) -> Tiles:
        """Return a function for one thread: user rows, at most n_rows → (first column, their scores), left to right.

        whole : give all of a row's scores at once. The scores are overwritten by the next ones; columns beyond the last
        item are padding.
        """

    def among(self, items: NDArray[np.intp]) -> Scores:
        """Return the scores for some of the items."""

    def of(self, users: Rows) -> Scores:
        """Return the scores of some of the users."""


@dataclass(frozen=True)
class FactorScores:
    """Scores Σ_k w_uk h_ik: users is users × K, items is items × K, of one floating type."""

    users: Array
    items: Array

    @property
    def n_users(self) -> int:
        """How many users there are."""
        return len(self.users)

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.items)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the factors and so of the scores."""
        return self.items.dtype

    @cached_property
    def transposed(self) -> Array:
        """K × items, with columns of 0 up to a multiple of PADDED_TO."""
        columns = np.zeros((self.items.shape[1], -(-self.n_items // PADDED_TO) * PADDED_TO), self.dtype)
        columns[:, : self.n_items] = self.items.T
        return columns

    def block_rows(self, *, whole: bool) -> int:
        """How many users to score at a time."""
        return max(1, min(WHOLE_ROWS, WHOLE_CELLS // max(self.n_items, 1))) if whole else TILE_ROWS

    def reader(self, n_rows: int, *, whole: bool) -> Tiles:
        """Return a function that scores users by one product for each tile; a few users by plain loops."""
        few = n_rows < FEW_ROWS
        n_columns = self.n_items if few else self.transposed.shape[1]
        width = n_columns if whole or few else min(n_columns, TILE_COLUMNS)
        buffer = np.empty(n_rows * width, self.dtype)

        def tiles(rows: Rows) -> Iterator[tuple[int, Array]]:
            users = self.users[rows]
            for left in range(0, n_columns, width):
                right = min(left + width, n_columns)
                scores = buffer[: len(rows) * (right - left)].reshape(len(rows), right - left)
                if few:
                    score_rows(users, self.items, scores)
                else:
                    np.matmul(users, self.transposed[:, left:right], out=scores)
                yield left, scores

        return tiles

    def among(self, items: NDArray[np.intp]) -> FactorScores:
        """Return the scores for some of the items."""
        return replace(self, items=self.items[items])

    def of(self, users: Rows) -> FactorScores:
        """Return the scores of some of the users."""
        return replace(self, users=self.users[users])


@dataclass(frozen=True)
class ModelScores:
    """Scores that a model computes itself: `score_items(rows)` returns len(rows) × n_items of them."""

    score_items: Callable[[Rows], ArrayLike]
    n_users: int
    n_columns: int
    items: NDArray[np.intp] | None = None

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return self.n_columns if self.items is None else len(self.items)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Double precision holds whatever the model returns."""
        return np.dtype(np.float64)

    def block_rows(self, *, whole: bool) -> int:
        """How many users to score at a time."""
        return max(1, min(WHOLE_ROWS, WHOLE_CELLS // max(self.n_columns, 1)))

    def reader(self, n_rows: int, *, whole: bool) -> Tiles:
        """Return a function that asks the model."""

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

    def among(self, items: NDArray[np.intp]) -> ModelScores:
        """Return the scores for some of the items."""
        return replace(self, items=items if self.items is None else self.items[items])

    def of(self, users: Rows) -> ModelScores:
        """Return the scores of some of the users."""
        return replace(self, score_items=lambda rows: self.score_items(users[rows]), n_users=len(users))


class Visit(Protocol):
    """What is done with the scores of a walk."""

    def __call__(self, start: int, rows: Rows, left: int, scores: Array) -> None:
        """Take in some scores.

        start : the walk's number of the first user; `rows` are the users' rows
        left : the first item
        scores : users × items, perhaps with columns beyond the last item; valid during the call
        """


def walk(
    scores: Scores,
    rows: Rows,
    visits: Sequence[Visit],
    *,
    whole: bool = True,
    n_threads: int | None = None,
    report: Report | None = None,
) -> None:
    """Show the scores of some users to each visit, block by block.

    Parameters
    ----------
    rows : array of user rows, in the order in which visits number them
    whole : show whole rows, not parts of them from left to right
    n_threads : None for one a core; changes nothing but the time
    report : called with (users done, users in all) after every block, by one thread at a time
    """
    step = min(scores.block_rows(whole=whole), max(len(rows), 1))
    starts = range(0, len(rows), step)
    remaining = iter(starts)  # shared: taking the next is one step of the interpreter
    done, lock = 0, Lock()

    def work() -> None:
        nonlocal done
        tiles = scores.reader(step, whole=whole)
        try:
            for start in remaining:
                block = rows[start : start + step]
                for left, part in tiles(block):
                    for visit in visits:
                        visit(start, block, left, part)
                with lock:
                    done += len(block)
                    if report is not None:
                        report(done, len(rows))
        except BaseException:
            deque(remaining, maxlen=0)  # the other threads stop after the block they are at
            raise

    n_helpers = min(n_threads or numba.get_num_threads(), len(starts)) - 1
    with _blas().limit(limits=1, user_api="blas"):
        if n_helpers < 1:
            work()
            return
        with ThreadPoolExecutor(n_helpers, thread_name_prefix="nbmf") as pool:
            helpers = [pool.submit(work) for _ in range(n_helpers)]
            work()
            for helper in helpers:
                helper.result()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries, which takes longer than ranking for one user


class Best(NamedTuple):
    """The n best items of each user, best first; item −1 and score −∞ where there are fewer.

    items : array users × n of item positions
    scores : array users × n
    """

    items: NDArray[np.intp]
    scores: Array


class Top:
    """A visit that keeps the n best items of each user in `best`, equal scores in the order of the items.

    Each user has a heap with the worst kept item on top; most scores fail the comparison with that one. A score of −∞
    or NaN is never kept.
    """

    def __init__(
        self,
        n: int,
        n_users: int,
        dtype: np.dtype[Any],
        items: NDArray[np.intp],
        exclude: sp.csr_array | None = None,
    ) -> None:
        """Prepare for n_users users; `items` are the positions of the scores' columns, in ascending order.

        exclude : csr_array, users × items; what is stored there is left out
        """
        self.items, self.exclude = items, exclude if exclude is None else with_sorted_rows(exclude)
        self.best = Best(np.full((n_users, n), -1, np.intp), np.full((n_users, n), -np.inf, dtype))
        self._next = np.empty(n_users, np.int64)  # each user's first excluded item that has not been passed

    def __call__(self, start: int, rows: Rows, left: int, scores: Array) -> None:
        """Take in more scores of some users."""
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
    """A visit that finds where each user's test items stand: how many come before, how many beside.

    above : for each stored entry of `test`, how many items have a greater score
    level : how many have the same score, itself included

    Items of `train` come after all others, among themselves by score. A score that is NaN has level 0.
    """

    def __init__(self, test: sp.csr_array, train: sp.csr_array) -> None:
        """Prepare to place what is stored in `test`; both are users × items."""
        self.test, self.train = with_sorted_rows(test), with_sorted_rows(train)
        self.above, self.level = np.zeros((2, test.nnz), np.int64)

    def __call__(self, start: int, rows: Rows, left: int, scores: Array) -> None:
        """Take in the whole rows of scores of some users."""
        test, train = self.test, self.train
        entries = (test.indptr, test.indices, train.indptr, train.indices)
        place_rows(scores, test.shape[1], rows, *entries, self.above, self.level)


def with_sorted_rows(matrix: sp.csr_array) -> sp.csr_array:
    """Return the matrix with each row's entries in the order of the columns, as two walks side by side need them."""
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
    report: Report | None = None,
    device: Device | None = None,
) -> Best:
    """Return the n best items of each user, best first, equal scores in the order of the items.

    Parameters
    ----------
    rows : array of user rows; None for all users
    exclude : csr_array, users × items: what a user is not to get
    allowed : array of n_items booleans: what anybody may get; None for all items
    device : ranks in place of the CPU, if the scores come from factors

    Examples
    --------
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
        if exclude is not None:
            exclude = exclude if rows is None else sp.csr_array(exclude[rows])
            exclude = exclude if allowed is None else sp.csr_array(exclude[:, items])
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
    scores: Scores,
    test: sp.csr_array,
    train: sp.csr_array,
    *,
    n_threads: int | None = None,
    report: Report | None = None,
) -> Places:
    """Return where each stored entry of `test` stands in its user's ranking, items of `train` last.

    Examples
    --------
    >>> scores = FactorScores(np.ones((1, 1)), np.array([[3.0], [5.0], [1.0], [5.0]]))
    >>> found = places(scores, test=sp.csr_array([[4, 0, 1, 2]]), train=sp.csr_array([[0, 1, 0, 0]]))
    >>> found.above, found.level
    (array([1, 2, 0]), array([1, 1, 1]))
    """
    visit = Places(test, train)
    walk(scores, np.flatnonzero(np.diff(test.indptr)), [visit], n_threads=n_threads, report=report)
    return visit
