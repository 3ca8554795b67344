"""Ranking metrics for each user, computed from the positions of the test items.

    DCG = Σ_i (2^rel_i − 1) / log2(rank_i + 1) over the full list,   NDCG = DCG / (DCG of the best list)

rel is the test count (rel_A of the paper's §5) or 1[count ≥ s] (rel_B). Items with equal scores have no order: every
metric here is its expectation over all their orders, so that it does not depend on a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
Relevance = Callable[[Array], Array]


def ndcg(ranked_relevance: ArrayLike, k: int | None = None) -> float:
    """Return the normalized discounted cumulative gain of one ranked list; the gain of relevance r is 2^r − 1.

    Parameters
    ----------
    ranked_relevance : array
        Relevances of all items in the order of the ranking, numbers from 0 of any size, even 10⁶ plays.
    k : int, optional
        Count only the first k places.

    Returns
    -------
    float
        A number from 0 to 1; nan if nothing is relevant.

    Examples
    --------
    >>> ndcg([3, 1, 0]), round(ndcg([0, 1, 1]), 3), round(ndcg([0, 1_000_000]), 3)
    (1.0, 0.693, 0.631)
    """
    relevance = np.asarray(ranked_relevance, np.float64)
    if relevance.ndim != 1 or not np.all((relevance >= 0) & np.isfinite(relevance)):
        raise ValueError("ranked_relevance must be one list of finite numbers from 0, best-ranked first")
    check_cutoff(k)
    gain = scaled_gains(relevance, relevance.max(initial=0.0))
    discount = discounts(len(gain))[:k]
    best = np.sort(gain)[::-1][:k] @ discount
    return float(gain[:k] @ discount / best) if best > 0 else float("nan")


def scaled_gains(relevance: Array, largest: Array | float) -> Array:
    """Return (2^r − 1)/2^m for relevances r ≤ m = largest: 2^1024 would overflow, and a common factor cancels.

    The result is exact where r and m are whole and small; for r < 1, where 2^r − 1 would lose digits, it uses expm1.
    """
    whole_m = np.floor(largest)
    small = relevance < 1

    def power(r: Array) -> Array:  # 2^(r−m), which is 0 below 2^-1100
        whole = np.floor(r)
        exponent = np.maximum(whole - whole_m, -1100).astype(np.int64)
        return np.asarray(np.ldexp(np.exp2((r - whole) - (largest - whole_m)), exponent))

    one = power(np.zeros_like(relevance))
    return np.where(small, np.expm1(np.where(small, relevance, 0) * np.log(2)) * one, power(relevance) - one)


def discounts(n: int) -> Array:
    """Return 1/log2(rank + 1) for the ranks 1 to n."""
    return np.asarray(1 / np.log2(np.arange(2, n + 2)))


def check_cutoff(k: int | None) -> None:
    """Raise ValueError unless k is a whole number from 1, or None."""
    if k is not None and (not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1):
        raise ValueError(f"the cut-off is {k!r}; it must be a whole number from 1")


@dataclass(frozen=True)
class Standings:
    """Where every test item stands in its user's ranking, and the metrics that follow.

    Metrics are arrays with a number for each user, nan for a user without a relevant item.

    Attributes
    ----------
    test : csr_array, users × items
        The test counts.
    above : array
        For each stored count, the number of items with a higher score.
    level : array
        The number of items with the same score, itself included: its place is one of above + 1 … above + level, all
        equally likely.

    Examples
    --------
    >>> test = sp.csr_array([[1, 0, 2], [0, 0, 0]])  # the first user has items 0 and 2
    >>> first_and_last = Standings(test, above=np.array([2, 0]), level=np.array([1, 1]))
    >>> first_and_last.recall(1), first_and_last.average_precision().round(3), first_and_last.ndcg().round(3)
    (array([0.5, nan]), array([0.833,   nan]), array([0.964,   nan]))
    """

    test: sp.csr_array
    above: NDArray[np.int64]
    level: NDArray[np.int64]

    def ndcg(self, relevance: Relevance | None = None, k: int | None = None) -> Array:
        """NDCG of the full ranking, or of its first k places.

        `relevance` is a non-decreasing function of the test count; by default the count itself (rel_A).
        """
        relevant = self._count if relevance is None else relevance(self._count)
        gain = scaled_gains(relevant, relevant[self._largest])
        best = self._sum(gain[self._by_count] * self._cut(self._place, k))
        return _ratio(self._sum(gain * self._expected_discount(k)), best)

    def recall(self, k: int) -> Array:
        """Share of the user's test items among the first k places."""
        return _ratio(self._sum(self._probability_within(k)), self._n_relevant)

    def precision(self, k: int) -> Array:
        """Share of the first k places that hold a test item."""
        return _ratio(self._sum(self._probability_within(k)), np.where(self._n_relevant, k, 0))

    def average_precision(self, k: int | None = None) -> Array:
        """Mean precision at the places of the test items up to place k, divided by min(k, test items).

        Among l equal scores after a items, with r test items beside and b before them, place p holds a test item with
        probability r/l, and then b + 1 + (p−a−1)(r−1)/(l−1) of the first p are expected to be some (McSherry & Najork,
        Computing information retrieval performance measures efficiently in the presence of tied scores, 2008).
        """
        order = np.lexsort((self.above, self._user))
        user, a, l = self._user[order], self.above[order], self.level[order]  # noqa: E741 (the letters above)
        first = np.ones(len(a), bool)  # of a group of equal scores
        first[1:] = (user[1:] != user[:-1]) | (a[1:] != a[:-1])
        start = np.flatnonzero(first)
        user, a, l = user[start], a[start], l[start]  # noqa: E741
        r, b = np.diff(start, append=len(first)), start - self.test.indptr[user]
        end = a + l if k is None else np.clip(k, a, a + l)
        harmonic = np.concatenate(([0.0], np.cumsum(1 / np.arange(1, self._n_items + 1))))
        inverse = np.where(l > 1, harmonic[end] - harmonic[a], np.where(end > a, 1 / (a + 1), 0))  # Σ 1/p
        beside = (r - 1) / np.maximum(l - 1, 1) * ((end - a) - (a + 1) * inverse)
        total = _sums(user, r / l * ((b + 1) * inverse + beside), self.test.shape[0])
        return _ratio(total, self._n_relevant if k is None else np.minimum(k, self._n_relevant))

    @property
    def _n_items(self) -> int:
        return int(self.test.shape[1])

    @cached_property
    def _count(self) -> Array:
        return np.asarray(self.test.data, np.float64)

    @cached_property
    def _n_relevant(self) -> NDArray[np.intp]:
        return np.asarray(np.diff(self.test.indptr), np.intp)

    @cached_property
    def _user(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(self.test.shape[0]), self._n_relevant)

    @cached_property
    def _by_count(self) -> NDArray[np.intp]:
        """Each user's test items in the best order, which is the same for every non-decreasing relevance."""
        return np.lexsort((-self._count, self._user))

    @cached_property
    def _largest(self) -> NDArray[np.intp]:
        """For each test item, the position of its user's largest count."""
        return np.asarray(self._by_count[self.test.indptr[self._user]])

    @cached_property
    def _place(self) -> NDArray[np.intp]:
        """The places 0, 1, … of each user's test items in the best order."""
        return np.asarray(np.arange(len(self._user)) - self.test.indptr[self._user])

    @cached_property
    def _discount(self) -> Array:
        return discounts(self._n_items)

    def _cut(self, place: NDArray[np.intp], k: int | None) -> Array:
        """Discounts of places, counted from 0; none from place k on."""
        return self._discount[place] if k is None else np.where(place < k, self._discount[place], 0.0)

    def _expected_discount(self, k: int | None) -> Array:
        end = self._n_items if k is None else min(k, self._n_items)
        sums = np.concatenate(([0.0], np.cumsum(self._discount[:end]), np.empty(self._n_items - end)))
        sums[end + 1 :] = sums[end]
        # the discount of a single place is looked up: a difference of two sums would lose digits
        tied = (sums[self.above + self.level] - sums[self.above]) / self.level
        return np.where(self.level == 1, self._cut(self.above, k), tied)

    def _probability_within(self, k: int) -> Array:
        return np.clip((k - self.above) / self.level, 0, 1)

    def _sum(self, values: Array) -> Array:
        return _sums(self._user, values, self.test.shape[0])


def _sums(user: NDArray[np.intp], values: Array, n_users: int) -> Array:
    return np.asarray(np.bincount(user, values, n_users), np.float64)


def _ratio(numerator: Array, denominator: NDArray[Any]) -> Array:
    """Divide, with nan where the denominator is 0."""
    found = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=found, where=denominator > 0)
    return found


def coverage(best_items: NDArray[np.intp], n_items: int) -> float:
    """Return the share of the items that are recommended to anyone; best_items is users × k, −1 for none."""
    recommended = np.zeros(n_items + 1, bool)  # −1 indexes the last one
    recommended[best_items.ravel()] = True
    return float(recommended[:-1].mean()) if n_items else float("nan")


def popularity_ranks(train: sp.csr_array) -> Array:
    """Return each item's rank by its number of users: 1 is the most popular; equals share their mean rank.

    >>> popularity_ranks(sp.csr_array([[5, 1, 1, 0], [1, 0, 0, 0]]))
    array([1. , 2.5, 2.5, 4. ])
    """
    n_users = np.bincount(train.indices, minlength=train.shape[1])
    return np.asarray(rankdata(-n_users, method="average"), np.float64)


def popularity_rank(best_items: NDArray[np.intp], ranks: Array) -> Array:
    """Return the mean popularity rank of the items recommended to each user; nan if there are none."""
    given = best_items >= 0
    return _ratio(np.where(given, ranks[best_items], 0).sum(axis=1), given.sum(axis=1))
