"""The paper's evaluation: hold out counts, rank for each user the items not in train, and look where they stand.

All metrics come from one walk over the scores. Means are over the users who have a test item, and intervals come from
resampling the users. Any model that scores items can be evaluated.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from hashlib import blake2b
from numbers import Real
from typing import Any, Protocol, TypedDict, Unpack, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbmf.data.ids import check_same
from nbmf.data.interactions import Ids, Interactions
from nbmf.estimators.blend_fit import BlendFit
from nbmf.estimators.fit import FactorFit, FitResult
from nbmf.estimators.metrics import (
    Gains,
    Standings,
    check_whole,
    coverage,
    equal_gains,
    gains_at_least,
    popularity_rank,
    popularity_ranks,
    proportional_gains,
    scaled_gains,
)
from nbmf.estimators.ranking import Places, Report, Top, walk
from nbmf.estimators.scores import FactorScores, ModelScores, Rows, Scores
from nbmf.estimators.table import RowTable, Shown
from nbmf.evaluation.resampling import Metric, summaries


@runtime_checkable
class Factorized(Protocol):
    """A model whose scores are products of user and item factors, with rows in the order of train's users and items."""

    user_factors_: NDArray[Any]
    item_factors_: NDArray[Any]


@runtime_checkable
class ScoresItems(Protocol):
    """Any other model. Several threads may call it at once, so scoring must not change it."""

    def score_items(self, rows: NDArray[np.intp]) -> ArrayLike:
        """Return the scores of the users in these rows of train for all items: len(rows) × n_items."""


Judged = Factorized | ScoresItems | tuple[ArrayLike, ArrayLike]
"""What `evaluate` accepts as a model."""


_NAMED_GAINS: Mapping[str, Gains] = {"counts": scaled_gains, "log2": proportional_gains}


class Walking(TypedDict, total=False):
    """Options of a walk over the scores."""

    n_threads: int | None
    report: Report | None


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Mapping[str, Metric], RowTable):
    """How one model ranks the held-out counts: a mapping from names to metrics.

    Attributes
    ----------
    users : array
        Ids of all users, in the order of every metric's `per_user`.
    n_users, n_left_out : int
        Number of users evaluated, and of users left out because they have no test item.
    data : str
        Fingerprint of the train and test counts, so that only evaluations of the same data are compared.
    """

    metrics: Mapping[str, Metric]
    users: Ids
    n_users: int
    n_left_out: int
    data: str

    def __getitem__(self, name: str) -> Metric:
        if name not in self.metrics:
            near = get_close_matches(str(name), self.metrics, 1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.metrics)}"
            raise KeyError(f"there is no metric {name!r}; {hint}")
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        title = f"Evaluation of {self.n_users:,} users ({self.n_left_out:,} without a test item left out)"
        rows = []
        for name, metric in self.items():
            interval = "" if np.isnan(metric.interval[0]) else ", ".join(map(_figure, metric.interval))
            rows.append((name, _figure(metric.mean), interval, f"{metric.n_users:,}" if metric.n_users else ""))
        return title, ("", "mean", "95 % interval", "users"), rows

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per metric: metric, mean, low, high, n_users."""
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
    relevance: Sequence[str | float] = ("counts", 1, 2, 5, 10, "log2"),
    *,
    at: Sequence[int] = (10, 20),
    n_boot: int = 1000,
    seed: int = 0,
    **walking: Unpack[Walking],
) -> Evaluation:
    """Rank all items for each user, those of `train` last, and see where those of `test` stand (§5 of the paper).

    Means are over the users with a test item, that of `ndcg_at_least_s` over those with one of count s or more. Metrics
    are expectations over all orders of items with equal scores, except `coverage` and `popularity_rank`, where equal
    items come in the order of the data. Coverage is not a mean over users and has no interval. A test item that is also
    in train is ranked last.

    Parameters
    ----------
    model : estimator, object or pair of arrays
        Fitted to train: anything with `user_factors_` and `item_factors_`, such as `NBMF`, or with a method
        `score_items(rows)` (rows of train → array len(rows) × n_items), or arrays (W, H).
    train, test : Interactions or matrix
        With the same users and items, as `Interactions.split` returns them.
    relevance : sequence of "counts", "log2" and numbers
        "counts" adds `ndcg_counts`, NDCG of the full ranking with the test count as relevance (rel_A); a number s adds
        `ndcg_at_least_s`, with relevance 1[count ≥ s] (rel_B). "log2" adds `ndcg_log2`, with relevance log2(1 + count):
        the gain is then the count itself, not 2^count − 1, of which large counts leave one item per user.
    at : sequence of int
        Each cut-off k adds `ndcg_counts_at_k`, `ndcg_binary_at_k` (all test items are equally relevant, as in most
        published NDCG@k), `recall_at_k` (of the user's test items), `precision_at_k`, `map_at_k` (of min(k, test
        items)), `coverage_at_k` (share of the items that are recommended to anyone) and `popularity_rank_at_k` (mean
        over the recommended items; 1 is the item with most users in train).
    n_boot, seed : int
        Number and seed of the resamples of users for the 95 % intervals.
    n_threads : int, optional
        Number of threads, all cores by default. Results are identical for any number.
    report : callable, optional
        Called with (users done, all users).

    Returns
    -------
    Evaluation
        A mapping from these names to metrics with `mean`, `interval` and `per_user`.

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
    gains, cutoffs = _gains(relevance), _as_sequence(at, (int, np.integer))
    check_whole("n_boot", n_boot)
    for k in cutoffs:
        check_whole("the cut-off", k)
    known, held_out = as_interactions(train, test)
    scores = scores_of(model, known)
    rows = np.flatnonzero(np.diff(held_out.matrix.indptr))
    if not len(rows):
        raise ValueError("test has no count above 0, so there is nothing to evaluate")
    n_fitted, note = fitted_pairs(known, held_out, model)
    if n_fitted:
        warnings.warn(note, stacklevel=2)
    standings, best_items = _rank(scores, known, held_out, rows, cutoffs, walking)
    per_user = {name: standings.ndcg(of_counts)[rows] for name, of_counts in gains.items()}
    overall: dict[str, float] = {}
    ranks = popularity_ranks(known.matrix)
    for k in cutoffs:
        per_user[f"ndcg_counts_at_{k}"] = standings.ndcg(k=k)[rows]
        per_user[f"ndcg_binary_at_{k}"] = standings.ndcg(equal_gains, k)[rows]
        per_user[f"recall_at_{k}"] = standings.recall(k)[rows]
        per_user[f"precision_at_{k}"] = standings.precision(k)[rows]
        per_user[f"map_at_{k}"] = standings.average_precision(k)[rows]
        per_user[f"popularity_rank_at_{k}"] = popularity_rank(best_items[:, :k], ranks)
        overall[f"coverage_at_{k}"] = coverage(best_items[:, :k], known.n_items)
    metrics = summaries(per_user, rows, known.n_users, n_boot, seed)
    nobody = np.full(known.n_users, np.nan)
    metrics |= {name: Metric(value, (np.nan, np.nan), nobody, 0) for name, value in overall.items()}
    return Evaluation(metrics, known.users, len(rows), known.n_users - len(rows), fingerprint(known, held_out))


def fitted_pairs(train: Interactions, test: Interactions, model: Any = None) -> tuple[int, str]:
    """Return how many test counts are of pairs that train or the model's own counts have, and a sentence about them.

    No ranking can find those of train. Those that only the model has seen are found all too easily.
    """
    tested = test.matrix != 0
    in_train = tested * (train.matrix != 0)
    n_ranked_last, fit = int(in_train.nnz), getattr(model, "result_", None)
    n_fitted = n_ranked_last
    if isinstance(fit, FitResult) and fit.counts is not train.matrix:
        n_fitted = int((in_train + tested * (fit.fitted != 0)).nnz)
    what = f"{n_fitted:,} of {test.nnz:,} test counts are of pairs that were fitted"
    if n_fitted == n_ranked_last:
        return n_fitted, f"{what}; they are ranked last, like everything fitted"
    return n_fitted, f"{what}, of which train lacks {n_fitted - n_ranked_last:,}; fit the model to train alone"


def _rank(
    scores: Scores, train: Interactions, test: Interactions, rows: Rows, cutoffs: Sequence[int], walking: Walking
) -> tuple[Standings, NDArray[np.intp]]:
    """Return where each test item stands, and the best items up to the largest cut-off, in one walk."""
    places = Places(test.matrix, train.matrix)
    top = Top(max(cutoffs, default=1), len(rows), scores.dtype, np.arange(train.n_items), train.matrix)
    walk(scores, rows, [places, top] if cutoffs else [places], **walking)
    unordered = np.flatnonzero(places.level == 0)
    if len(unordered):
        entry = int(unordered[0])
        row = int(np.searchsorted(places.test.indptr, entry, side="right")) - 1
        user, item = train.users.tolist()[row], train.items.tolist()[places.test.indices[entry]]
        raise ValueError(f"the model's score of user {user!r} for item {item!r} is not a number; it cannot be ranked")
    return Standings(places.test, places.above, places.level), top.best.items


def _gains(relevance: Sequence[str | float]) -> dict[str, Gains]:
    """Return the gains for the name of each NDCG of the full ranking."""
    found: dict[str, Gains] = {}
    for kind in _as_sequence(relevance, (str, Real)):
        if isinstance(kind, str) and kind in _NAMED_GAINS:
            found[f"ndcg_{kind}"] = _NAMED_GAINS[kind]
        elif isinstance(kind, Real) and not isinstance(kind, bool) and 0 < float(kind) < np.inf:
            found[f"ndcg_at_least_{float(kind):.12g}"] = partial(gains_at_least, float(kind))
        else:
            raise ValueError(
                f"relevance {kind!r} is neither 'counts' nor 'log2' nor a positive number s, for 1[count ≥ s]; "
                "every count is at least 0, so the metric for binary data is s = 1"
            )
    return found


def _as_sequence(value: Any, kind: tuple[type, ...]) -> Sequence[Any]:
    return (value,) if isinstance(value, kind) else tuple(value)


def as_interactions(train: Any, test: Any) -> tuple[Interactions, Interactions]:
    """Return both as Interactions, with the same users and items."""
    both = (train, test)
    known, held_out = (part if isinstance(part, Interactions) else Interactions.from_matrix(part) for part in both)
    for what, ours, theirs in (("user", known.users, held_out.users), ("item", known.items, held_out.items)):
        check_same(what, ours, theirs, ("train", "test"), "take both from one data.split(…)")
    return known, held_out


def scores_of(model: Judged, train: Interactions, *, intensities: bool = False) -> Scores:
    """Return the model's scores, or intensities, after checking that it was fitted to train's users and items."""
    for what, ours in (("user", train.users), ("item", train.items)):
        theirs = getattr(model, f"{what}s_", None)
        if theirs is not None:
            _check_named(what, ours, np.asarray(theirs))
            check_same(what, ours, theirs, ("train", "the model"), "evaluate a model on the data it was fitted to")
    if isinstance(model, tuple | list):
        if len(model) != 2:
            raise TypeError(f"a model given as arrays is a pair (W, H); got {len(model)} arrays")
        return _from_factors(*model, train)
    fit = getattr(model, "result_", None)
    if isinstance(fit, FactorFit | BlendFit) and not intensities:
        scores: Scores = fit.scores()
        return _from_factors(scores.users, scores.items, train) if isinstance(scores, FactorScores) else scores
    if isinstance(model, Factorized):
        return _from_factors(model.user_factors_, model.item_factors_, train)
    if isinstance(model, ScoresItems):
        return ModelScores(model.score_items, train.n_users, train.n_items)
    if hasattr(model, "fit"):
        raise TypeError(f"this {type(model).__name__} is not fitted yet; call fit(train) first")
    raise TypeError(
        f"{type(model).__name__} cannot be evaluated: it needs user_factors_ and item_factors_, or a method "
        "score_items(rows); a pair of arrays (W, H) works, too"
    )


def _check_named(what: str, ours: Ids, theirs: Ids) -> None:
    """Refuse a model whose ids are the numbers of a matrix without ids, where train has ids of its own."""
    if len(ours) == len(theirs) and not np.array_equal(ours, theirs) and np.array_equal(theirs, np.arange(len(theirs))):
        raise ValueError(
            f"the model was fitted to a matrix without ids, so its {what}s are numbered from 0, while train's have ids "
            f"such as {ours.tolist()[0]!r}; fit it to train as it is, or evaluate it on train.matrix and test.matrix"
        )


def _from_factors(users: ArrayLike, items: ArrayLike, train: Interactions) -> FactorScores:
    W, H = np.asarray(users), np.asarray(items)
    for name, values, size, what in (("W", W, train.n_users, "users"), ("H", H, train.n_items, "items")):
        if values.ndim != 2 or len(values) != size:
            raise ValueError(f"{name} has shape {values.shape}; with {size} {what} it must be {size} × K")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has entries that are not finite numbers")
    if W.shape[1] != H.shape[1]:
        raise ValueError(f"W has {W.shape[1]} components and H has {H.shape[1]}; they must have the same number")
    dtype = np.result_type(W, H)
    dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
    return FactorScores(np.ascontiguousarray(W, dtype), np.ascontiguousarray(H, dtype))


def fingerprint(*data: Interactions) -> str:
    """Return a hash of the counts, to tell whether two evaluations are of the same data."""
    digest = blake2b(digest_size=8)
    for matrix in (part.matrix for part in data):
        for values, kind in ((matrix.indptr, np.int64), (matrix.indices, np.int64), (matrix.data, float)):
            digest.update(np.ascontiguousarray(values, kind).data)
    return digest.hexdigest()
