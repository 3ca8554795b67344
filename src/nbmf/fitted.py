"""What a fit has found, in one piece: what a model file holds, and what a model that grows replaces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from nbmf.factors import Factor
from nbmf.folding import Held
from nbmf.inference.run import Ending
from nbmf.interactions import Ids
from nbmf.likelihood import Likelihood, NegativeBinomial
from nbmf.lookup import Lookup
from nbmf.model import Model
from nbmf.ties import Ties

BLOCK_CELLS = 4_000_000  # products held at a time


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit has found, of what data, with what ids.

    counts : what was fitted, users × items, as it was given
    model : the law and the priors, with what was learned of them
    exposure : "exact" or "tied"; None where the law has no exposures
    item_names : in the order of `items`, or None
    has_feature_names : whether `items` are the columns' names of a data frame
    ties : the last clusters of items, if exposures are tied
    unknown : csr_array, users × items, of the cells that were left out of the likelihood, or None
    """

    users: Ids
    items: Ids
    counts: sp.csr_array
    user_posterior: Factor
    item_posterior: Factor
    objective: NDArray[np.float64]
    ending: Ending
    model: Model
    exposure: str | None
    item_names: Ids | None
    has_feature_names: bool
    ties: Ties | None = None
    unknown: sp.csr_array | None = None

    @cached_property
    def user_lookup(self) -> Lookup:
        """Where each user's row is."""
        return Lookup(self.users, "user")

    @cached_property
    def item_lookup(self) -> Lookup:
        """Where each item's column is."""
        return Lookup(self.items, "item")

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


class Estimator(BaseEstimator):  # type: ignore[misc]
    """What the answers of an estimator rest on: its settings, and what its fit has found."""

    tol: float
    backend: str
    n_threads: int | None

    users_: Ids
    items_: Ids
    item_names_: Ids | None
    user_factors_: NDArray[Any]
    item_factors_: NDArray[Any]
    _fitted: Fitted

    @property
    def _found(self) -> Fitted:
        """What the fit has found, if there was one."""
        check_is_fitted(self, "user_factors_")
        return self._fitted

    def _prepare(self, matrix: sp.csr_array) -> sp.csr_array:
        """Return the counts as the law sees them."""
        return matrix

    def _pairs(self, users: ArrayLike, items: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions of pairs of ids, or of one id with several others."""
        rows = self._found.user_lookup.positions(users)
        columns = self._found.item_lookup.positions(items)
        if len(rows) != len(columns) and 1 not in (len(rows), len(columns)):
            raise ValueError(f"{len(rows)} users and {len(columns)} items; give pairs, or one of either")
        first, second = np.broadcast_arrays(rows, columns)
        return first, second


def dots(W: NDArray[Any], H: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """Return Σ_k W[row, k] H[column, k] for pairs of rows and columns, in blocks of them."""
    step = max(1, BLOCK_CELLS // W.shape[1])
    blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
    found = [np.sum(W[rows[block]] * H[columns[block]], axis=1) for block in blocks]
    return np.concatenate(found) if found else np.empty(0, W.dtype)
