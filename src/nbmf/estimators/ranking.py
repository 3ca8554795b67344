"""Rankings: walks over the scores of users for items, a block of users at a time.

A walk asks for a block of scores, shows it to every visit (`Top` keeps each user's best items, `Places` finds the ranks
of given items) and drops it: nothing of size users × items is stored, and several visits share one product. Neither the
blocks nor the products, on one BLAS thread each, depend on the number of threads, so the results do not either.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from numbers import Integral
from threading import local
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.topk import keep_best, place_rows, sort_best
from nbmf.backends.threads import hand_out, one_blas_thread
from nbmf.estimators.scores import FEW_ROWS, Array, FactorScores, Rows, Scores

Report = Callable[[int, int], None] | None

NAMED_BY = 2  # items that name a component
SIZE = re.compile(r",[^,\d]{0,8}\d[^,]{0,14}$")  # ", 18 lb" at the end of a product's name


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
