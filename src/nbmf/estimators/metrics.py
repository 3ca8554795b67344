"""Ranking metrics for each user, computed from the positions of the test items.

    DCG = Σ_i (2^rel_i − 1) / log2(rank_i + 1) over the full list,   NDCG = DCG / (DCG of the best list)

rel is the test count (rel_A of the paper's §5), 1[count ≥ s] (rel_B) or log2(1 + count). The gain of the last is the
count itself; where counts are large, 2^count leaves only the largest of each user. Items with equal scores have no
order: every metric here is its expectation over all their orders, so that it does not depend on a sort.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
Gains = Callable[[Array, Array], Array]
"""Gains of counts, given the largest count of each one's user. They may share a factor for each user, which cancels."""


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
    if k is not None:
        check_whole("the cut-off", k)
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


def proportional_gains(count: Array, largest: Array) -> Array:
    """Return the gains of the relevances log2(1 + count), 2^log2(1 + count) − 1 = count, in units of the largest."""
    return count / largest


def equal_gains(count: Array, largest: Array) -> Array:
    """Return the gains of binary relevance: every test item has the same."""
    return np.ones_like(count)


def gains_at_least(s: float, count: Array, largest: Array) -> Array:
    """Return the gains of the relevances 1[count ≥ s]."""
    return (count >= s).astype(np.float64)


def discounts(n: int) -> Array:
    """Return 1/log2(rank + 1) for the ranks 1 to n."""
    return np.asarray(1 / np.log2(np.arange(2, n + 2)))


def check_whole(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a whole number from 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1")


class Standings:
    """Where every test item stands in its user's ranking, and the metrics that follow.

    `test` has the test counts, users × items. For each of them, `above` is the number of items with a higher score and
    `level` the number with the same score, itself included: it is equally likely in the places above + 1 … above +
    level. Metrics are arrays with a number for each user, nan for a user without a relevant item.

    >>> test = sp.csr_array([[1, 0, 2], [0, 0, 0]])  # the first user has items 0 and 2
    >>> first_and_last = Standings(test, above=np.array([2, 0]), level=np.array([1, 1]))
    >>> first_and_last.recall(1), first_and_last.average_precision().round(3), first_and_last.ndcg().round(3)
    (array([0.5, nan]), array([0.833,   nan]), array([0.964,   nan]))
    """

    def __init__(self, test: sp.csr_array, above: NDArray[np.int64], level: NDArray[np.int64]) -> None:
        self.test, self.above, self.level = test, above, level
        self._n_relevant: NDArray[Any] = np.diff(test.indptr)
        self._user = np.repeat(np.arange(test.shape[0]), self._n_relevant)
        self._count = np.asarray(test.data, np.float64)
        # each user's test items in the best order, which is the same for all gains
        self._by_count = np.lexsort((-self._count, self._user))
        first = test.indptr[self._user]
        self._largest = self._by_count[first]  # for each test item, the position of its user's largest count
        self._place = np.arange(len(first)) - first  # 0, 1, … of each user's test items in the best order
        self._discount = discounts(test.shape[1])

    def ndcg(self, gains: Gains = scaled_gains, k: int | None = None) -> Array:
        """NDCG of the first k places; `gains` must not decrease with the count, and are by default 2^count − 1."""
        gain = gains(self._count, self._count[self._largest])
        best = self._sum(gain[self._by_count] * self._cut(self._place, k))
        return ratio(self._sum(gain * self._expected_discount(k)), best)

    def recall(self, k: int) -> Array:
        """Share of the user's test items among the first k places."""
        return ratio(self._sum(self._probability_within(k)), self._n_relevant)

    def precision(self, k: int) -> Array:
        """Share of the first k places that hold a test item."""
        return ratio(self._sum(self._probability_within(k)), np.where(self._n_relevant, k, 0))

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
        harmonic = np.concatenate(([0.0], np.cumsum(1 / np.arange(1, self.test.shape[1] + 1))))
        inverse = np.where(l > 1, harmonic[end] - harmonic[a], np.where(end > a, 1 / (a + 1), 0))  # Σ 1/p
        beside = (r - 1) / np.maximum(l - 1, 1) * ((end - a) - (a + 1) * inverse)
        total = self._sum(r / l * ((b + 1) * inverse + beside), user)
        return ratio(total, self._n_relevant if k is None else np.minimum(k, self._n_relevant))

    def _cut(self, place: NDArray[np.intp], k: int | None) -> Array:
        """Discounts of places, counted from 0; none from place k on."""
        return self._discount[place] if k is None else np.where(place < k, self._discount[place], 0.0)

    def _expected_discount(self, k: int | None) -> Array:
        sums = np.concatenate(([0.0], np.cumsum(self._discount)))
        sums = sums if k is None else sums[np.minimum(np.arange(len(sums)), k)]
        # the discount of a single place is looked up: a difference of two sums would lose digits
        tied = (sums[self.above + self.level] - sums[self.above]) / self.level
        return np.where(self.level == 1, self._cut(self.above, k), tied)

    def _probability_within(self, k: int) -> Array:
        return np.clip((k - self.above) / self.level, 0, 1)

    def _sum(self, values: Array, user: NDArray[np.intp] | None = None) -> Array:
        user = self._user if user is None else user
        return np.asarray(np.bincount(user, values, self.test.shape[0]), np.float64)


def ratio(numerator: Array, denominator: NDArray[Any]) -> Array:
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
    return ratio(np.where(given, ranks[best_items], 0).sum(axis=1), given.sum(axis=1))
