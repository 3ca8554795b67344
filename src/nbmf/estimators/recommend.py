"""The best items of users: for everybody or for some, without what they have or must not get."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.backends.cpu.topk import keep_best_listed, sort_best
from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids
from nbmf.estimators.fit import FitResult, NewRows
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.log_prob import Entries
from nbmf.estimators.ranking import Best, top, walk
from nbmf.estimators.scores import FactorScores, Scores
from nbmf.estimators.table import MOST_ROWS, Shown, Table, first_rows
from nbmf.model.factors import Array

Chosen = ArrayLike | Iterable[Any] | Mapping[Any, Any] | None
"""Item ids for everybody, or a mapping from user ids to item ids."""


@dataclass(frozen=True, eq=False, repr=False)
class Recommendations(Table):
    """The best items of each user, best first.

    Attributes
    ----------
    users : array
        User ids.
    items : array
        Item ids, users × n; None where fewer than n items were left to recommend.
    scores : array
        Expected counts E[y*], or expected targets of NBSLIM and NBFISM, users × n; −∞ where there is no item.
    names : array or None
        Names of the items, users × n, if items have names.

    Examples
    --------
    >>> found = Recommendations(np.array(["ann"]), np.array([["jazz", "folk"]]), np.array([[2.5, 0.25]]))
    >>> found
    Recommendations(1 user × 2 items)
    user  rank  item  score
    ann      1  jazz    2.5
    ann      2  folk   0.25
    """

    users: Ids
    items: Ids
    scores: Array
    names: Ids | None = None

    @cached_property
    def columns(self) -> dict[str, Any]:
        """One entry per recommendation: user, rank from 1, item, name if items have names, score."""
        there = ~np.isneginf(self.scores)
        row, place = np.nonzero(there)
        items = self.items[there]
        if items.dtype == object and len(items):  # because they stood beside None
            items = np.array(items.tolist())
        found = {"user": self.users[row], "rank": place + 1, "item": items}
        if self.names is not None:
            found["name"] = self.names[there]
        return {**found, "score": self.scores[there]}

    def to_polars(self) -> Any:
        """Return the table as a polars data frame."""
        import polars as pl  # noqa: PLC0415 (optional)

        columns = self.columns.items()
        return pl.DataFrame({name: v.tolist() if v.dtype.kind in "OU" else v for name, v in columns})

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        n_users, n_items = self.items.shape
        users, items = ("user" if n_users == 1 else "users"), ("item" if n_items == 1 else "items")
        tables = (self.users, self.items, self.scores, *(() if self.names is None else (self.names,)))
        few, n = Recommendations(*(table[:MOST_ROWS] for table in tables)), int((~np.isneginf(self.scores)).sum())
        return f"Recommendations({n_users:,} {users} × {n_items} {items})", *first_rows(few.columns, n)


class Filter(NamedTuple):
    """What may be recommended: `exclude_seen` leaves out what a user has, `allow` and `deny` name items."""

    exclude_seen: bool = True
    allow: Chosen = None
    deny: Chosen = None


@dataclass(frozen=True)
class Choice:
    """What may be recommended to the users of one question, numbered from 0."""

    allowed: NDArray[np.bool_] | None = None  # one per item, for everybody
    lists: sp.csr_array | None = None  # users × items: the only items each user may get
    denied: sp.csr_array | None = None  # users × items: what each user must not get

    @classmethod
    def of(cls, choose: Filter, items: Lookup, users: Lookup, rows: NDArray[np.intp] | None) -> "Choice":
        """Look up the ids: `users` are those a mapping may name, `rows` those who ask (None: all, in order)."""
        allow, deny = choose.allow, choose.deny
        allowed = lists = denied = None
        if isinstance(allow, Mapping):
            lists = _listed(allow, "allow", items, users, rows)
        elif allow is not None:
            allowed = np.zeros(len(items.ids), bool)
            allowed[items.positions(allow)] = True
        if isinstance(deny, Mapping):
            denied = _listed(deny, "deny", items, users, rows)
        elif deny is not None:
            allowed = np.ones(len(items.ids), bool) if allowed is None else allowed
            allowed[items.positions(deny)] = False
        return cls(allowed, lists, denied)


def _listed(
    named: Mapping[Any, Any], what: str, items: Lookup, users: Lookup, rows: NDArray[np.intp] | None
) -> sp.csr_array:
    """Turn a mapping from user ids to item ids into a matrix with a row for each user who asks."""
    keys = list(named)
    entries = dict(zip(users.positions(keys).tolist(), keys, strict=True))
    asking = range(len(users.ids)) if rows is None else rows.tolist()
    found = []
    for row in asking:
        if row not in entries and what == "allow":
            user = users.ids[row : row + 1].tolist()[0]
            raise KeyError(
                f"allow has no items for user {user!r}; a mapping names every user asked for (an empty list allows "
                "nothing)"
            )
        found.append(np.unique(items.positions(named[entries[row]])) if row in entries else np.empty(0, np.intp))
    indptr = np.cumsum([0, *map(len, found)])
    indices = np.concatenate(found) if found else np.empty(0, np.intp)
    return sp.csr_array((np.ones(len(indices), np.int8), indices, indptr), shape=(len(found), len(items.ids)))


def recommend(fit: FitResult, users: Any, n: int, choose: Filter, resources: Resources) -> Recommendations:
    """Return the n items of largest score for each user who was fitted; `users=None` means everybody."""
    rows = None if users is None else fit.user_lookup.positions(users)
    ids = fit.users if users is None else fit.user_lookup.as_ids(users)
    choice = Choice.of(choose, fit.item_lookup, fit.user_lookup, rows)
    seen = fit.counts if choose.exclude_seen else None
    return _recommended(fit, ids, _best(fit.scores(), rows, seen, n, choice, resources))


def recommend_for(fit: FitResult, new: NewRows, n: int, choose: Filter, resources: Resources) -> Recommendations:
    """Return the n items of largest score for users who were not fitted."""
    choice = Choice.of(choose, fit.item_lookup, Lookup(new.ids, "user"), None)
    seen = new.counts if choose.exclude_seen else None
    return _recommended(fit, new.ids, _best(fit.scores_of(new, resources), None, seen, n, choice, resources))


def _recommended(fit: FitResult, ids: Ids, best: Best) -> Recommendations:
    names = None if fit.item_names is None else _taken(fit.item_names, best.items)
    return Recommendations(ids, _taken(fit.items, best.items), best.scores, names)


def _best(
    scores: Scores,
    rows: NDArray[np.intp] | None,
    seen: sp.csr_array | None,
    n: int,
    choice: Choice,
    resources: Resources,
) -> Best:
    """Return the best items of users who are rows of `scores` and of `seen`, all of them if `rows` is None."""
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n is {n!r}; it must be a whole number from 1")
    n = min(int(n), scores.n_items)
    if seen is not None:
        scores = scores.products()  # exceptions are cells that the user has, and those are left out
    if rows is not None and (choice.lists is not None or choice.denied is not None):
        scores, seen, rows = scores.of(rows), None if seen is None else seen[rows], None
    exclude = seen
    if choice.denied is not None:
        exclude = choice.denied if seen is None else sp.csr_array(_marks(seen) + choice.denied)
    if choice.lists is not None:
        return _best_listed(scores, n, _left(choice, exclude), resources.n_threads)
    n_users = scores.n_users if rows is None else len(rows)
    n_products = scores.items.shape[1] if isinstance(scores, FactorScores) else 0  # per score
    device = None
    if scores.exceptions is None:
        device = resources.device(n_users, float(n_users) * scores.n_items * n_products)
    settings = {"allowed": choice.allowed, "n_threads": resources.n_threads, "device": device}
    return top(scores, n, rows=rows, exclude=exclude, **settings)


def _best_listed(scores: Scores, n: int, lists: sp.csr_array, n_threads: int | None) -> Best:
    """Return the n best of the items that each user's row of `lists` stores, equal scores in the order of the items."""
    best = Best(np.full((scores.n_users, n), -1, np.intp), np.full((scores.n_users, n), -np.inf, scores.dtype))
    if isinstance(scores, FactorScores) and scores.exceptions is None:
        keep_best_listed(scores.users, scores.items, lists.indptr, lists.indices, *best)
        sort_best(*best)
        return best
    values = Entries(lists)
    walk(scores, np.arange(scores.n_users), [values], n_threads=n_threads)
    for user in range(scores.n_users):
        own = slice(lists.indptr[user], lists.indptr[user + 1])
        items, found = lists.indices[own], values.scores[own]
        order = np.argsort(-found, kind="stable")[:n]
        best.items[user, : len(order)], best.scores[user, : len(order)] = items[order], found[order]
    return best


def _marks(counts: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones(counts.nnz, np.int8), counts.indices, counts.indptr), shape=counts.shape)


def _left(choice: Choice, exclude: sp.csr_array | None) -> sp.csr_array:
    """Return what is left of the users' own lists."""
    left = sp.csr_array(choice.lists, copy=True)
    if exclude is not None:
        left = sp.csr_array(left - left * (_marks(exclude)))
    if choice.allowed is not None:
        left.data[~choice.allowed[left.indices]] = 0
    left.eliminate_zeros()
    left.sort_indices()
    return left


def _taken(ids: Ids, positions: NDArray[np.intp]) -> Ids:
    """Return the ids at some positions, and None at −1."""
    taken = ids[positions]
    missing = positions < 0
    if missing.any():
        taken = taken.astype(object)
        taken[missing] = None
    return taken
