"""What a fit has found, in one piece: what a model file holds, and what a model that grows replaces.

`Basis` is what every model rests on: whose counts of what; `Fitted` is that with factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from nbmf.backends import Device, find_device
from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids, Interactions
from nbmf.estimators.fold_in import Held
from nbmf.estimators.ranking import FactorScores, Scores
from nbmf.estimators.validation import check_range, take_matrix
from nbmf.inference.run import Ending
from nbmf.model import Model
from nbmf.model.factors import Factor
from nbmf.model.likelihood import Likelihood, NegativeBinomial
from nbmf.model.ties import Ties

NOTED = ("n_features_in_", "feature_names_in_")  # what scikit-learn notes of the data before it is fitted
BLOCK_CELLS = 4_000_000  # products held at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class Basis:
    """Of what data a model is, with what ids, and how its fit went.

    counts : what was fitted, users × items, as it was given
    objective : after each sweep
    item_names : in the order of `items`, or None
    has_feature_names : whether `items` are the columns' names of a data frame
    """

    users: Ids
    items: Ids
    counts: sp.csr_array
    objective: NDArray[np.float64]
    ending: Ending
    item_names: Ids | None
    has_feature_names: bool

    @cached_property
    def user_lookup(self) -> Lookup:
        """Where each user's row is."""
        return Lookup(self.users, "user")

    @cached_property
    def item_lookup(self) -> Lookup:
        """Where each item's column is."""
        return Lookup(self.items, "item")


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted(Basis):
    """What a fit of factors has found.

    model : the law and the priors, with what was learned of them
    exposure : "exact" or "tied"; None where the law has no exposures
    ties : the last clusters of items, if exposures are tied
    unknown : csr_array, users × items, of the cells that were left out of the likelihood, or None
    """

    user_posterior: Factor
    item_posterior: Factor
    model: Model
    exposure: str | None
    ties: Ties | None = None
    unknown: sp.csr_array | None = None

    @cached_property
    def held_items(self) -> Held:
        """The items as they stay while new users are folded in."""
        return Held(self.item_posterior, _of_new_rows(self.model.likelihood), self.model.user_prior, self.ties)

    @cached_property
    def held_users(self) -> Held:
        """The users as they stay while new items are folded in; of users there are no clusters."""
        return Held(self.user_posterior, _of_new_rows(_transposed(self.model.likelihood)), self.model.item_prior, None)

    def held_items_for(self, rows: NDArray[np.intp]) -> Held:
        """The items as they stay while users of the fit are folded in anew, each with its own concentration."""
        α = self.model.likelihood.concentration
        if not isinstance(α, np.ndarray) or len(α) == 1:
            return self.held_items
        return replace(self.held_items, likelihood=NegativeBinomial(α[rows]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Weighted(Basis):
    """What a fit of item–item weights has found.

    weights : B, items × items: how much a unit of input of the row's item adds to what the column's is expected to be;
        an array, or a csr_array if items have few neighbours
    intercept : b, one for each item
    input, target : the forms of the counts that x and t are (`nbmf.estimators.slim.FORMS`)
    concentration : α
    """

    input: str
    target: str
    concentration: float
    weights: NDArray[Any] | sp.csr_array
    intercept: NDArray[Any]


def _transposed(law: Likelihood) -> Likelihood:
    α = law.concentration
    return NegativeBinomial(α.T) if isinstance(α, np.ndarray) else law


def _of_new_rows(law: Likelihood) -> Likelihood:
    """If every row has its own concentration, a new one gets their geometric mean."""
    α = law.concentration
    return NegativeBinomial(typical(α)) if isinstance(α, np.ndarray) and len(α) > 1 else law


def typical(concentration: NDArray[Any]) -> float:
    """Return the geometric mean of concentrations."""
    return float(np.exp(np.mean(np.log(concentration))))


class Founded(BaseEstimator):  # type: ignore[misc]
    """What the answers of any estimator rest on: its settings, and of what data it is."""

    max_iter: int
    tol: float
    dtype: str
    n_threads: int | None

    users_: Ids
    items_: Ids
    item_names_: Ids | None
    _fitted: Any

    @property
    def _found(self) -> Any:
        """What the fit has found, if there was one."""
        check_is_fitted(self, "users_")
        return self._fitted

    def _scores(self) -> Scores:
        """The scores of all users of the fit for all items."""
        raise TypeError(f"{type(self).__name__} scores nothing")

    def _device(self, n_rows: int, work: float) -> Device | None:
        """The GPU that should fold in or rank so many rows, if any."""
        return None

    def _note(self, fitted: Basis) -> None:
        """Show what was fitted and how that went, as every fitted estimator does."""
        self._fitted = fitted
        self.users_, self.items_, self.item_names_ = fitted.users, fitted.items, fitted.item_names
        self.objective_, self.n_iter_ = fitted.objective, len(fitted.objective)
        self.ending_, self.converged_ = fitted.ending.value, fitted.ending is Ending.CONVERGED
        self.n_features_in_ = len(fitted.items)
        self.__dict__.pop("feature_names_in_", None)
        if fitted.has_feature_names:
            self.feature_names_in_ = fitted.items

    @contextmanager
    def _refitting(self) -> Iterator[None]:
        """Forget what scikit-learn noted of the data of an earlier fit, unless the new one fails."""
        noted = {name: self.__dict__.pop(name) for name in NOTED if name in self.__dict__}
        try:
            yield
        except BaseException:
            for name in NOTED:
                self.__dict__.pop(name, None)
            self.__dict__.update(noted)
            raise

    def _take(self, X: Any) -> tuple[Ids, Ids, sp.csr_array]:
        """Check the input and return its ids and its counts as a canonical matrix."""
        if isinstance(X, Interactions):
            users, items, matrix = X.users, X.items, X.matrix
            self.n_features_in_ = X.n_items
        else:
            matrix = take_matrix(self, X, reset=True)
            users = np.arange(matrix.shape[0])
            items = getattr(self, "feature_names_in_", np.arange(matrix.shape[1]))
        if 0 in matrix.shape:
            raise ValueError(
                f"the data has {matrix.shape[0]} users and {matrix.shape[1]} items; there is nothing to factorize "
                "(a filter that leaves nothing asks for too much)"
            )
        check_range(matrix, self.dtype)
        return users, items, matrix

    def _check_common(self) -> None:
        """Check the settings that all estimators have."""
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise ValueError(f"max_iter is {self.max_iter!r}; it must be a whole number from 1")
        if self.n_threads is not None and (not isinstance(self.n_threads, Integral) or self.n_threads < 1):
            raise ValueError(
                f"n_threads is {self.n_threads!r}; it must be a whole number from 1, or None for all cores"
            )
        if not isinstance(self.tol, Real) or not self.tol >= 0:
            raise ValueError(f"tol is {self.tol!r}; it must be 0 (never stop early) or a positive number")
        if not any(self.dtype == dtype for dtype in (np.float32, np.float64, "float32", "float64")):
            raise ValueError(f"dtype is {self.dtype!r}; it must be 'float32' or 'float64'")

    def _pairs(self, users: ArrayLike, items: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions of pairs of ids, or of one id with several others."""
        rows = self._found.user_lookup.positions(users)
        columns = self._found.item_lookup.positions(items)
        if len(rows) != len(columns) and 1 not in (len(rows), len(columns)):
            raise ValueError(f"{len(rows)} users and {len(columns)} items; give pairs, or one of either")
        first, second = np.broadcast_arrays(rows, columns)
        return first, second

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn: sparse input is fine, negative input is not."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


class Estimator(Founded):
    """An estimator with factors."""

    backend: str

    user_factors_: NDArray[Any]
    item_factors_: NDArray[Any]
    _fitted: Fitted

    @property
    def _found(self) -> Fitted:
        """What the fit has found, if there was one."""
        check_is_fitted(self, "users_")
        return self._fitted

    def _scores(self) -> FactorScores:
        """The scores of all users of the fit for all items."""
        _ = self._found  # says so if there was no fit
        return FactorScores(self.user_factors_, self.item_factors_)

    def _device(self, n_rows: int, work: float) -> Device | None:
        """The GPU that should fold in or rank so many rows, if any."""
        return find_device(self.backend, work, n_rows)

    def _prepare(self, matrix: sp.csr_array) -> sp.csr_array:
        """Return the counts as the law sees them."""
        return matrix


def dots(W: NDArray[Any], H: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """Return Σ_k W[row, k] H[column, k] for pairs of rows and columns, in blocks of them."""
    step = max(1, BLOCK_CELLS // W.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
    found = [np.sum(W[rows[block]] * H[columns[block]], axis=1) for block in blocks]
    return np.concatenate(found) if found else np.empty(0, W.dtype)
