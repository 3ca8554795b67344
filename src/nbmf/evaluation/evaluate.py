"""The paper's way to judge: hold out counts, rank for each user what the user has not taken, look where they stand.

One walk over the scores gives every metric. Means are over the users who have something to find; intervals come from
drawing users anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data.interactions import Ids, Interactions
from nbmf.estimators.ranking import Places, Report, Scores, Top, walk
from nbmf.evaluation.judged import Judged, as_sequence, fingerprint, scores_of, take
from nbmf.evaluation.metrics import (
    Array,
    Relevance,
    Standings,
    check_cutoff,
    coverage,
    popularity_rank,
    popularity_ranks,
)
from nbmf.evaluation.resampling import Metric, check_boot, summaries
from nbmf.evaluation.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Mapping[str, Metric], Table):
    """How one model ranks what was held out: metrics by name.

    users : array of all users' ids, the order of every metric's `per_user`
    n_users : how many were judged; the other n_left_out have no test item
    data : names the train and test counts, so that only evaluations of the same ones are compared
    """

    metrics: Mapping[str, Metric]
    users: Ids
    n_users: int
    n_left_out: int
    data: str

    def __getitem__(self, name: str) -> Metric:
        """Return the metric of that name."""
        if name not in self.metrics:
            near = get_close_matches(str(name), self.metrics, 1)
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise KeyError(f"there is no metric {name!r}; {hint or 'there are ' + ', '.join(self.metrics)}")
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self.metrics)

    def __len__(self) -> int:
        """Count the metrics."""
        return len(self.metrics)

    def __repr__(self) -> str:
        """Show a table."""
        lines = [f"Evaluation of {self.n_users:,} users ({self.n_left_out:,} without a test item left out)"]
        width = max(map(len, self.metrics))
        lines.append(f"{'':{width}}  {'mean':>10}  {'95 % interval':^22}  {'users':>9}")
        for name, metric in self.items():
            low, high = metric.interval
            interval = "" if np.isnan(low) else f"{_figure(low):>10}, {_figure(high):>10}"
            users = f"{metric.n_users:,}" if metric.n_users else ""
            lines.append(f"{name:{width}}  {_figure(metric.mean):>10}  {interval:22}  {users:>9}".rstrip())
        return "\n".join(lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each metric: metric, mean, low, high, n_users."""
        return [
            {"metric": name, "mean": m.mean, "low": m.interval[0], "high": m.interval[1], "n_users": m.n_users}
            for name, m in self.items()
        ]


def _figure(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"


def evaluate(
    model: Judged,
    train: Any,
    test: Any,
    relevance: Sequence[str | float] = ("counts", 1, 2, 5, 10),
    *,
    at: Sequence[int] = (10, 20),
    n_boot: int = 1000,
    seed: int = 0,
    n_threads: int | None = None,
    report: Report | None = None,
) -> Evaluation:
    """Rank all items for each user, those of `train` last, and see where those of `test` come (§5 of the paper).

    Parameters
    ----------
    model : fitted to train: `NBMF`, `PoissonMF`, anything with `user_factors_` and `item_factors_` or with a method
        `score_items(rows)` (rows of train → array len(rows) × n_items), or a pair of arrays (W, H)
    train, test : Interactions with the same users and items (as `Interactions.split` gives), or matrices
    relevance : "counts" gives `ndcg_counts`, NDCG of the full ranking with the test count as relevance (rel_A); a
        number s gives `ndcg_at_least_s`, with relevance 1[count ≥ s] (rel_B)
    at : for each cut-off k `ndcg_counts_at_k`, `recall_at_k` (of the user's test items), `precision_at_k`, `map_at_k`
        (of min(k, test items)), `coverage_at_k` (share of the items that somebody judged is recommended) and
        `popularity_rank_at_k` (of what is recommended; 1 is the item with most users in train, equals share their mean)
    n_boot, seed : number and seed of the bootstrap's draws of users, for the 95 % intervals
    n_threads : None for one a core; changes nothing but the time
    report : called with (users done, users in all) as the work goes on

    Returns
    -------
    Evaluation : a mapping from those names to `mean`, `interval` and `per_user`

    A metric's mean is over the users with a test item, `ndcg_at_least_s` over those with one of count s or more. Items
    with equal scores count as ranked in any order with equal probability, but not in `coverage` and `popularity_rank`,
    which judge the list one gets: there they come in the order of the items. Coverage is no mean over users and has no
    interval. A test item that the user has in train too comes last like all of train.

    Examples
    --------
    >>> import nbmf
    >>> train = nbmf.Interactions.from_matrix([[3, 0, 0], [0, 1, 0], [2, 0, 0]])
    >>> test = nbmf.Interactions.from_matrix([[0, 4, 0], [1, 0, 1], [0, 0, 0]])
    >>> W, H = [[1.0], [1.0], [1.0]], [[3.0], [2.0], [1.0]]
    >>> result = nbmf.evaluate((W, H), train, test, at=(1,))
    >>> result["ndcg_counts"].mean, result["recall_at_1"].per_user, result.n_left_out
    (1.0, array([1. , 0.5, nan]), 1)
    """
    worth = _relevances(relevance)
    cutoffs = _cutoffs(at)
    check_boot(n_boot)
    known, held_out = take(train, test)
    scores = scores_of(model, known)
    rows = np.flatnonzero(np.diff(held_out.matrix.indptr))
    if not len(rows):
        raise ValueError("test has no count above 0; there is nothing to find, so nothing to judge")
    standings, best_items = _rank(scores, known, held_out, rows, cutoffs, n_threads, report)
    per_user: dict[str, Array] = {name: standings.ndcg(function)[rows] for name, function in worth.items()}
    overall: dict[str, float] = {}
    ranks = popularity_ranks(known.matrix)
    for k in cutoffs:
        per_user[f"ndcg_counts_at_{k}"] = standings.ndcg(k=k)[rows]
        per_user[f"recall_at_{k}"] = standings.recall(k)[rows]
        per_user[f"precision_at_{k}"] = standings.precision(k)[rows]
        per_user[f"map_at_{k}"] = standings.average_precision(k)[rows]
        per_user[f"popularity_rank_at_{k}"] = popularity_rank(best_items[:, :k], ranks)
        overall[f"coverage_at_{k}"] = coverage(best_items[:, :k], known.n_items)
    values = np.stack(list(per_user.values()), axis=1) if per_user else np.empty((len(rows), 0))
    metrics = dict(zip(per_user, summaries(values, rows, known.n_users, n_boot, seed), strict=True))
    nobody = np.full(known.n_users, np.nan)
    metrics |= {name: Metric(value, (np.nan, np.nan), nobody, 0) for name, value in overall.items()}
    left_out = known.n_users - len(rows)
    return Evaluation(metrics, known.users, len(rows), left_out, fingerprint(known, held_out))


def _rank(
    scores: Scores,
    train: Interactions,
    test: Interactions,
    rows: NDArray[np.intp],
    cutoffs: Sequence[int],
    n_threads: int | None,
    report: Report | None,
) -> tuple[Standings, NDArray[np.intp]]:
    """Return where each test item stands, and the longest list of best items anybody asks for, in one walk."""
    places = Places(test.matrix, train.matrix)
    top = Top(max(cutoffs, default=1), len(rows), scores.dtype, np.arange(train.n_items), train.matrix)
    walk(scores, rows, [places, top] if cutoffs else [places], n_threads=n_threads, report=report)
    unordered = np.flatnonzero(places.level == 0)
    if len(unordered):
        entry = int(unordered[0])
        row = int(np.searchsorted(places.test.indptr, entry, side="right")) - 1
        user, item = train.users.tolist()[row], train.items.tolist()[places.test.indices[entry]]
        raise ValueError(f"the model's score of user {user!r} for item {item!r} is not a number; it cannot be ranked")
    return Standings(places.test, places.above, places.level), top.best.items


def _relevances(relevance: Sequence[str | float]) -> dict[str, Relevance | None]:
    """Return, for each metric's name, what a count is worth."""
    found: dict[str, Relevance | None] = {}
    for kind in as_sequence(relevance, (str, Real)):
        if kind == "counts":
            found["ndcg_counts"] = None
        elif isinstance(kind, Real) and not isinstance(kind, bool) and 0 < float(kind) < np.inf:
            found[f"ndcg_at_least_{float(kind):.12g}"] = partial(_at_least, float(kind))
        else:
            raise ValueError(
                f"relevance {kind!r} is neither 'counts' nor a positive number s, for 1[count ≥ s]; "
                "s = 1 is the metric for binary data (every count is at least 0)"
            )
    return found


def _at_least(s: float, count: Array) -> Array:
    """rel_B of the paper."""
    return (count >= s).astype(np.float64)


def _cutoffs(at: Sequence[int]) -> Sequence[int]:
    cutoffs = as_sequence(at, (int, np.integer))
    for k in cutoffs:
        check_cutoff(k)
    return cutoffs
