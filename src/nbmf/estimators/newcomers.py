"""Users and items that were not in the fit: folded in, recommended to, and taken into the model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from nbmf.backends.counts import Counts
from nbmf.data.ids import Lookup
from nbmf.data.interactions import Ids, Interactions, canonical, check_counts, widened
from nbmf.estimators.fit import Estimator, Fitted
from nbmf.estimators.fold_in import Held, fold_in, fold_in_on, fold_in_plainly, products_of
from nbmf.estimators.ranking import FactorScores, Scores
from nbmf.estimators.recommend import Choice, Chosen, Recommendations, Recommending
from nbmf.estimators.validation import check_range, take_matrix
from nbmf.model.factors import Factor, Gamma

Array = NDArray[np.floating[Any]]


class Arriving(Recommending):
    """The part of any estimator that recommends to users who were not in the fit."""

    def recommend_for(
        self,
        counts: Any,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        allow: Chosen = None,
        deny: Chosen = None,
        unknown_items: str = "error",
    ) -> Recommendations:
        """Return the n best items for users who were not in the fit, from what they took.

        Parameters
        ----------
        counts : a mapping from item ids to counts, for one user; or Interactions, whose items are matched by their ids;
            or a matrix, array or data frame of rows with a column for each item of the fit. Of the user of an empty
            mapping nothing is known
        exclude_seen : leave out what is given
        allow, deny : as for `recommend`; mappings name users of `counts`, by their ids or row numbers
        unknown_items : "error", or "ignore" to leave out items that were not in the fit, with a warning that counts

        Returns
        -------
        Recommendations : users are the ids of Interactions, else row numbers

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> model.recommend_for({"soul": 3}, n=1).items
        array([['jazz']], dtype='<U4')
        """
        found = self._found
        if isinstance(counts, Mapping):
            ids, matrix = np.arange(1), self._row(counts, unknown_items)
        else:
            ids, matrix = self._rows(counts, unknown_items)
        scores = self._scores_of(matrix if matrix.nnz or not isinstance(counts, Mapping) else None)
        choice = Choice.of(allow, deny, found.item_lookup, Lookup(ids, "user"), None)
        return self._best(ids, scores, None, n, matrix if exclude_seen else None, choice)

    def _scores_of(self, counts: sp.csr_array | None) -> Scores:
        """The scores of new users with these rows of counts, for all items; None: of one of whom nothing is known."""
        raise TypeError(f"{type(self).__name__} scores nobody new")

    def _rows(self, X: Any, unknown_items: str = "error") -> tuple[Ids, sp.csr_array]:
        """Return the ids of rows of counts, and the counts with a column for each item of the fit."""
        _ = self._found  # says so if there was no fit
        _check_unknown(unknown_items)
        if isinstance(X, Interactions):
            return X.users, self._aligned(X, unknown_items)
        matrix = take_matrix(self, X, reset=False)
        return np.arange(matrix.shape[0]), matrix

    def _row(self, counts: Mapping[Any, Any], unknown_items: str) -> sp.csr_array:
        """Return the one row of a mapping from item ids to counts."""
        _check_unknown(unknown_items)
        lookup = self._found.item_lookup
        items, values = lookup.as_ids(list(counts)), widened(np.array(list(counts.values()) or np.empty(0)))
        check_counts(values, lambda place: f"item {list(counts)[place]!r}")
        row = Interactions(np.arange(1), items, sp.csr_array(values[None, :]))
        return self._aligned(row, unknown_items)

    def _aligned(self, data: Interactions, unknown_items: str) -> sp.csr_array:
        """Put the counts into the columns of the fit's items."""
        lookup = self._found.item_lookup
        columns, known = lookup.find(data.items)
        matrix = data.matrix
        lost = ~known[matrix.indices]
        if lost.any():
            first = data.items[matrix.indices[lost][:1]].tolist()[0]
            if unknown_items == "error":
                raise KeyError(f"{lookup.unknown(first).args[0]}; unknown_items='ignore' leaves such items out")
            warnings.warn(
                f"{len(np.unique(matrix.indices[lost]))} items were not in the data of the fit, {first!r} among them: "
                f"{int(lost.sum())} of {matrix.nnz} counts are left out",
                stacklevel=4,
            )
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))[~lost]
        entries = matrix.data[~lost], (rows, columns[matrix.indices[~lost]])
        return canonical(sp.csr_array(entries, shape=(matrix.shape[0], len(lookup.ids))))


class Newcomers(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Arriving, Estimator):  # type: ignore[misc]
    """The part of an estimator with factors that finds those of users who were not in the fit."""

    def transform(self, X: Any, *, unknown_items: str = "error") -> Array:
        """Return the factors of new users, the items' held fixed: those that a fit would give them.

        A row's own update is repeated until it changes the row by less than `tol`, relative to its size (1000 times at
        most). A row of the data of a converged fit gets the factors of the fit, but for that tolerance; where a row's
        objective has several peaks, as for shapes far below 1, perhaps those of another peak. A row without counts says
        that the user took none of the items. Nothing in the model changes.

        Parameters
        ----------
        X : Interactions, whose items are matched by their ids; or a scipy sparse matrix, array or data frame with a
            column for each item of the fit
        unknown_items : "error", or "ignore" to leave out items that were not in the fit, with a warning that counts

        Returns
        -------
        array rows × K : posterior means ("cavi") or points ("mm")

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0, tol=1e-9, dtype="float64").fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> bool(abs(model.transform([[4, 0, 1]]) - model.user_factors_[0]).max() < 1e-4)
        True
        """
        found = self._found
        _, matrix = self._rows(X, unknown_items)
        return self._fold(matrix, found.held_items).mean

    def _scores_of(self, counts: sp.csr_array | None) -> FactorScores:
        """Fold the rows in; for nobody in particular, the prior mean stands ("mm": the mean of all users)."""
        found = self._found
        factors = self._typical_user() if counts is None else self._fold(counts, found.held_items).mean
        return FactorScores(factors, self.item_factors_)

    def _typical_user(self) -> Array:
        """The factors of somebody of whom nothing is known."""
        return typical_user(self._found)

    @property
    def _n_features_out(self) -> int:
        """How many columns `transform` returns, for scikit-learn."""
        return int(self.item_factors_.shape[1])

    def _fold(
        self, matrix: sp.csr_array, held: Held, start: Array | None = None, unknown: sp.csr_array | None = None
    ) -> Factor:
        """Return the factors of rows of counts; `unknown` stores the cells to be left out."""
        check_range(matrix, held.factor.mean.dtype)
        prepared = Counts.of(self._prepare(matrix), np.dtype(np.float64), unknown).by_user
        if self.backend == "reference":
            return fold_in_plainly(prepared, held, tol=self.tol, start=start).factor
        device = self._device(prepared.shape[0], products_of(prepared, held))
        if device is not None:
            return fold_in_on(device, prepared, held, tol=self.tol, start=start).factor
        return fold_in(prepared, held, tol=self.tol, start=start, n_threads=self.n_threads).factor


def _check_unknown(unknown_items: str) -> None:
    if unknown_items not in ("error", "ignore"):
        raise ValueError(f"unknown_items is {unknown_items!r}; it must be 'error' or 'ignore'")


def typical_user(found: Fitted) -> Array:
    """The prior mean, 1 × K; where there is no one prior for all, the mean of the users."""
    means, prior = found.user_posterior.mean, found.model.user_prior
    if isinstance(found.user_posterior, Gamma) and not isinstance(prior.rate, np.ndarray):
        return np.full((1, means.shape[1]), prior.shape / prior.rate, means.dtype)
    return np.asarray(means.mean(axis=0, keepdims=True, dtype=np.float64).astype(means.dtype))
