"""What can be judged: anything that scores the items of users, on data it was fitted to and data it was not."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbmf.data.interactions import Ids, Interactions
from nbmf.estimators.ranking import FactorScores, ModelScores, Scores
from nbmf.model.likelihood import Concentration, Likelihood, NegativeBinomial, Poisson


@runtime_checkable
class Factorized(Protocol):
    """A model whose scores are products of a user's and an item's row, in the order of `train`'s users and items."""

    user_factors_: NDArray[Any]
    item_factors_: NDArray[Any]


@runtime_checkable
class ScoresItems(Protocol):
    """Any other model. Several threads may ask at once, so asking must not change it."""

    def score_items(self, rows: NDArray[np.intp]) -> ArrayLike:
        """Return the scores of the users in these rows of `train` for all its items: len(rows) × n_items."""


Judged = Factorized | ScoresItems | tuple[ArrayLike, ArrayLike]


def take(train: Any, test: Any) -> tuple[Interactions, Interactions]:
    """Return both as Interactions, with the same users and items."""
    known, held_out = (
        data if isinstance(data, Interactions) else Interactions.from_matrix(data) for data in (train, test)
    )
    for what, ours, theirs in (("user", known.users, held_out.users), ("item", known.items, held_out.items)):
        _check_same(what, "train", ours, "test", theirs, "take both from one data.split(…)")
    return known, held_out


def scores_of(model: Judged, train: Interactions) -> Scores:
    """Return the model's scores, after checking that they are those of train's users and items."""
    for what, ours, name in (("user", train.users, "users_"), ("item", train.items, "items_")):
        theirs = getattr(model, name, None)
        if theirs is not None:
            _check_same(what, "train", ours, "the model", theirs, "judge a model on the data it was fitted to")
    if isinstance(model, tuple | list):
        if len(model) != 2:
            raise TypeError(f"a model given as arrays is a pair (W, H); got {len(model)} of them")
        return _from_factors(*model, train)
    if isinstance(model, Factorized):
        return _from_factors(model.user_factors_, model.item_factors_, train)
    if isinstance(model, ScoresItems):
        return ModelScores(model.score_items, train.n_users, train.n_items)
    if hasattr(model, "fit"):
        raise TypeError(f"this {type(model).__name__} is not fitted yet; call fit(train) first")
    raise TypeError(
        f"{type(model).__name__} cannot be judged: it needs user_factors_ and item_factors_, or a method "
        "score_items(rows); a pair of arrays (W, H) will do too"
    )


def law_of(model: Judged, concentration: Concentration | None) -> Likelihood:
    """Return the law a model gives the counts: that of its concentration_, unless another is asked for."""
    α = getattr(model, "concentration_", None) if concentration is None else concentration
    if α is None:
        raise TypeError(
            f"{type(model).__name__} names no law of the counts (no concentration_); "
            "say concentration=…, a positive number, or infinity for Poisson"
        )
    return Poisson() if np.ndim(α) == 0 and α == np.inf else NegativeBinomial(α)


def _from_factors(users: ArrayLike, items: ArrayLike, train: Interactions) -> FactorScores:
    W, H = np.asarray(users), np.asarray(items)
    for name, values, size, what in (("W", W, train.n_users, "users"), ("H", H, train.n_items, "items")):
        if values.ndim != 2 or len(values) != size:
            raise ValueError(f"{name} has shape {values.shape}; with {size} {what} it must be {size} × K")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has entries that are not finite numbers")
    if W.shape[1] != H.shape[1]:
        raise ValueError(f"W has {W.shape[1]} components and H has {H.shape[1]}; they must have the same")
    dtype = np.result_type(W, H)
    dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
    return FactorScores(np.ascontiguousarray(W, dtype), np.ascontiguousarray(H, dtype))


def _check_same(what: str, here: str, ours: Ids, there: str, theirs: Ids, remedy: str) -> None:
    theirs = np.asarray(theirs)
    if len(ours) != len(theirs):
        raise ValueError(f"{here} has {len(ours)} {what}s and {there} has {len(theirs)}; {remedy}")
    differ = np.flatnonzero(ours != theirs)
    if len(differ):
        n = int(differ[0])
        raise ValueError(
            f"{what} number {n} is {ours.tolist()[n]!r} in {here} and {theirs.tolist()[n]!r} in {there}; {remedy}"
        )


def fingerprint(*data: Interactions) -> str:
    """Return a short name for the counts, to tell whether two evaluations are about the same ones."""
    digest = blake2b(digest_size=8)
    for part in data:
        for values, kind in (
            (part.matrix.indptr, np.int64),
            (part.matrix.indices, np.int64),
            (part.matrix.data, float),
        ):
            digest.update(np.ascontiguousarray(values, kind).data)
    return digest.hexdigest()


def as_sequence(value: Any, kind: type | tuple[type, ...]) -> Sequence[Any]:
    """Return one value as a list of one, and several as they are."""
    return (value,) if isinstance(value, kind) else tuple(value)
