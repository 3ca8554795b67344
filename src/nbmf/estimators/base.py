"""The facade of all estimators: each public method is one call of a function of the frozen fit.

The fit is kept in `result_` and never changes; a model that grows replaces it. `Factorization` (factorization.py) adds
what only models with factors can answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from nbmf.data.ids import align_items, align_row, column_ids
from nbmf.data.interactions import (
    Ids,
    Interactions,
    canonical,
    check_matrix,
    check_range,
    refuse_path,
    text_labels,
    widened,
)
from nbmf.data.text import ReadError, choose_columns, list_interactions
from nbmf.estimators import explain, predictive, recommend
from nbmf.estimators.explain import Explanation, Similar
from nbmf.estimators.factorize import Data, as_number, check_whole
from nbmf.estimators.files import save
from nbmf.estimators.fit import FitResult, NewRows
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.predictive import Predictive
from nbmf.estimators.recommend import Chosen, Filter, Recommendations
from nbmf.inference.run import Ending
from nbmf.model.factors import Array
from nbmf.storage.container import Path

RECORDED = ("n_features_in_", "feature_names_in_")  # what scikit-learn records of the data before it is fitted
FLAGS = {"accelerate", "binarize"}  # settings that are True or False
MOST_LISTED = 8  # columns of a table of interactions


class Recommender(BaseEstimator):  # type: ignore[misc]
    """Base class of all estimators: settings, ids and the answers of a fit, which is kept in `result_`."""

    def recommend(
        self,
        users: ArrayLike | Iterable[Any] | None = None,
        n: int = 10,
        *,
        exclude_seen: bool = True,
        allow: Chosen = None,
        deny: Chosen = None,
    ) -> Recommendations:
        """Return the n items of largest score for each user, equal scores in the order of the items.

        Parameters
        ----------
        users : id or list of ids, optional
            Users of the fit, everybody by default.
        n : int
            Number of items per user.
        exclude_seen : bool
            Whether to leave out what the user has in the training data.
        allow : ids or mapping, optional
            Items that may be recommended to everybody, or a mapping from each user to that user's own items.
        deny : ids or mapping, optional
            Items not to recommend to anybody, or a mapping, in which users with nothing to deny may be missing.

        Examples
        --------
        >>> import nbmf
        >>> users, items = ["ann", "ann", "bob", "cy", "cy"], ["jazz", "soul", "jazz", "folk", "punk"]
        >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 6])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> model.recommend("bob", n=1).items
        array([['soul']], dtype='<U4')
        >>> model.recommend(["ann", "bob"], n=3, deny={"bob": ["soul"]}).items
        array([['folk', 'punk', None],
               ['folk', 'punk', None]], dtype=object)
        """
        return recommend.recommend(self._fit, users, n, Filter(exclude_seen, allow, deny), self._resources)

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
        """Return the n best items for users who were not fitted, from their counts; rows without ids are numbered.

        Parameters
        ----------
        counts : mapping, Interactions, matrix, array or data frame
            For one user, a mapping from item ids to counts; an empty one means that nothing is known of the user. For
            several, Interactions, whose items are matched by id, or rows with one column per item of the fit. A data
            frame is matched by its column names if the model's items have ids: columns may be in any order, and items
            without a column count 0. A model that was fitted to a data frame asks for the same columns in the same
            order, as scikit-learn does.
        n : int
            Number of items per user.
        exclude_seen : bool
            Whether to leave out the given items.
        allow, deny : ids or mapping, optional
            As for `recommend`; mappings name users of `counts` by id or row number.
        unknown_items : "error" or "ignore"
            Whether items that were not fitted are an error or are left out with a warning that counts them.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> model.recommend_for({"soul": 3}, n=1).items
        array([['jazz']], dtype='<U4')
        """
        new = self._rows(counts, unknown_items, mapping=True)
        if isinstance(allow, Mapping) or isinstance(deny, Mapping):
            check_distinct(new.ids)
        return recommend.recommend_for(self._fit, new, n, Filter(exclude_seen, allow, deny), self._resources)

    def predict(self, users: Any, items: ArrayLike | None = None) -> Array:
        """Return the expected counts E[y*] of pairs of ids, Eq. (score); for NBSLIM and NBFISM, their targets.

        For NBMF and PoissonMF these are Σ_k ⟨w_uk⟩⟨h_ik⟩, for other likelihoods a function of that.

        Parameters
        ----------
        users, items : id or list of ids
            Pairs, or one of either for all of the other. Without items, `users` are rows of counts of new users, as
            for `recommend_for`, and the result is the expected total of each: scikit-learn asks for a predict(X) with
            one number per row.
        """
        if items is None:
            return self._fit.expected_totals(self._rows(users), self._resources)
        return self._fit.expected(*self._fit.pairs(users, items))

    def explain(self, user: Any, item: Any) -> Explanation:
        """Return what the components, and what each item the user has, contribute to the user's score for an item.

        The score is Σ_k ⟨w_uk⟩⟨h_ik⟩, so by component its parts are these products: "because you buy dairy drinks".

        The user's factors are ⟨w_uk⟩ = (α^W + Σ_j y_uj φ_ujk)/rate_uk, where φ_ujk is the share of component k in the
        user's count of item j. So the score Σ_k ⟨w_uk⟩⟨h_ik⟩ is a sum over the items j, plus the prior's part
        Σ_k α^W⟨h_ik⟩/rate_uk. Nothing is approximate: the parts sum to the score, up to rounding. Maximum likelihood
        has no prior. The scores of NBSLIM and NBFISM are Σ_j x_uj B_ji plus the intercept b_i, reported as the prior.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> why = model.explain("bob", "soul")
        >>> why.items, bool(np.isclose(why.contributions.sum() + why.prior, why.score))
        (array(['jazz'], dtype='<U4'), True)
        >>> why.components.shape, bool(np.isclose(why.component_scores.sum(), why.score))
        ((2,), True)
        """
        return explain.explain(self._fit, user, item, self._resources)

    def explain_for(self, counts: Mapping[Any, Any], item: Any, *, unknown_items: str = "error") -> Explanation:
        """Return the same for a user who was not fitted, given as for `recommend_for`."""
        return explain.explain_for(self._fit, self._rows(counts, unknown_items, mapping=True), item, self._resources)

    def similar_items(self, item: Any, n: int = 10) -> Similar:
        """Return the n items most similar to one, without itself; equal ones are in the order of the items.

        With factors, the similarity is the cosine of the items' expected counts by component, Σ_u⟨w_uk⟩⟨h_ik⟩. For
        NBSLIM it is √(B_ji B_ij): a popular item has large weights from all others and gives small ones, and the
        product is free of that. There, fewer than n are returned where fewer have both weights.
        """
        return explain.similar_items(self._fit, item, n)

    def predictive(self, users: ArrayLike, items: ArrayLike) -> Predictive:
        """Return the distribution of new counts of pairs of ids: mean, sd, intervals, probabilities."""
        return predictive.predictive(self._fit, users, items)

    def predictive_for(
        self, counts: Mapping[Any, Any], items: ArrayLike, *, unknown_items: str = "error"
    ) -> Predictive:
        """Return the distribution of the next counts of a user who was not fitted, given as for `recommend_for`."""
        new = self._rows(counts, unknown_items, mapping=True)
        return predictive.predictive_for(self._fit, new, items, self._resources)

    def save(self, path: Path) -> None:
        """Write the model to a file from which `nbmf.load(path)` restores it, data and settings included.

        The file is replaced as a whole or not at all, is checked when it is loaded, and loading it runs no code. Its
        format is documented in docs/format.md. Ids must be strings or numbers.
        """
        self._check_unchanged()
        save(path, self, self._fit)

    def _check_unchanged(self) -> None:
        """Refuse to save a model of which a part that users can see is no longer that of the fit."""

    @property
    def _fit(self) -> FitResult:
        """What the fit found; scikit-learn's error if there was none."""
        if "result_" not in self.__dict__:
            check_is_fitted(self, "result_")
        result: FitResult = self.result_
        return result

    @property
    def _resources(self) -> Resources:
        return Resources(self.backend, self.n_threads, self.tol)

    def _become(self, result: FitResult) -> None:
        """Take over what a fit found: the one just run, the next one of a model that grows, or that of a file."""
        self.result_: Any = result
        self.users_, self.items_, self.item_names_ = result.users, result.items, result.item_names
        self.objective_, self.n_iter_ = result.objective, len(result.objective)
        self.ending_, self.converged_ = result.ending.value, result.ending is Ending.CONVERGED
        self.n_features_in_ = len(result.items)
        self.__dict__.pop("feature_names_in_", None)
        if result.has_feature_names:
            self.feature_names_in_ = result.items

    @contextmanager
    def _refitting(self) -> Iterator[None]:
        """Forget what scikit-learn recorded of the data of an earlier fit, unless the new one fails."""
        recorded = {name: self.__dict__.pop(name) for name in RECORDED if name in self.__dict__}
        try:
            yield
        except BaseException:
            for name in RECORDED:
                self.__dict__.pop(name, None)
            self.__dict__.update(recorded)
            raise

    def _take(self, X: Any) -> Data:
        """Check the input of a fit."""
        names = None
        if isinstance(X, Interactions):
            users, items, matrix, names = X.users, X.items, X.matrix, X.item_names
            self.n_features_in_ = X.n_items
        else:
            matrix = take_matrix(self, X, reset=True)
            users = check_distinct(row_ids(X, matrix.shape[0]))
            items = getattr(self, "feature_names_in_", np.arange(matrix.shape[1]))
        if 0 in matrix.shape:
            raise ValueError(
                f"the data has {matrix.shape[0]} users and {matrix.shape[1]} items; there is nothing to factorize "
                "(if a filter removed everything, loosen it)"
            )
        check_range(matrix, self.dtype)
        return Data(users, items, matrix, names, hasattr(self, "feature_names_in_"))

    def _rows(self, X: Any, unknown_items: str | None = None, *, mapping: bool = False) -> NewRows:
        """Check the counts of users who were not fitted and put them into the columns of the fit's items.

        Methods that have no such option leave out `unknown_items`; items that were not fitted are an error then.
        """
        if unknown_items is not None:
            one_of("unknown_items", unknown_items, ("error", "ignore"))
        fit = self._fit
        if mapping and isinstance(X, Mapping) and not sp.issparse(X):
            row = align_row(X, fit.item_lookup, unknown_items)
            new = NewRows(np.arange(1), row, nothing_known=not row.nnz)
        elif isinstance(X, Interactions):
            new = NewRows(X.users, align_items(X, fit.item_lookup, unknown_items))
        else:
            columns = None if fit.has_feature_names else column_ids(X, fit.items)
            if columns is None:
                matrix = take_matrix(self, X, reset=False)
            else:
                check_distinct(columns, "columns")
                matrix = take_matrix(self, X, reset=False, by_name=True)
                named = Interactions(np.arange(matrix.shape[0]), columns, matrix)
                matrix = align_items(named, fit.item_lookup, unknown_items)
            new = NewRows(row_ids(X, matrix.shape[0]), matrix)
        check_range(new.counts, fit.dtype)
        return new

    def _keep(self, settings: Mapping[str, Any]) -> None:
        """Keep the arguments of a constructor, unchecked, as scikit-learn asks."""
        self.__dict__ |= {name: value for name, value in settings.items() if name not in ("self", "__class__")}

    def _check_settings(self) -> None:
        """Check the settings that all estimators have; `fit`, `save` and `nbmf.load` do."""
        check_whole("max_iter", self.max_iter)
        if self.n_threads is not None:
            check_whole("n_threads", self.n_threads, ", or None for all cores")
        if not as_number(self.tol) >= 0:
            raise ValueError(f"tol is {self.tol!r}; it must be 0 (never stop early) or a positive number")
        if not any(self.dtype == dtype for dtype in (np.float32, np.float64, "float32", "float64")):
            raise ValueError(f"dtype is {self.dtype!r}; it must be 'float32' or 'float64'")
        if not isinstance(self.verbose, Integral) or self.verbose < 0:
            raise ValueError(f"verbose is {self.verbose!r}; it must be True, False or a whole number from 0")
        for name in FLAGS & self.get_params(deep=False).keys():
            one_of(name, getattr(self, name), (True, False))

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse a setting that is not one of the allowed values."""
    if value not in list(allowed):
        *others, last = map(repr, allowed)
        raise ValueError(f"{name} is {value!r}; it must be {', '.join(others)} or {last}")


def take_matrix(estimator: BaseEstimator, X: Any, *, reset: bool, by_name: bool = False) -> sp.csr_array:
    """Return a scipy sparse matrix, array or data frame as a canonical matrix.

    Parameters
    ----------
    reset : bool
        Whether to record the columns and their names in the estimator. Otherwise they must match those on record.
    by_name : bool
        Whether the caller matches the columns by their names, so that they need not be those on record.
    """
    columns: list[str] = []
    if sp.issparse(X):
        wide = widened(X)  # repeated entries are added up
    else:
        wide, columns = X, numeric_columns(X)
    check = check_array if by_name else partial(validate_data, estimator, reset=reset)
    try:
        # scikit-learn has nothing to say about such rows, and takes 0.1 ms to say it
        is_plain = not reset and sp.issparse(X) and _are_rows_for(estimator, wide)
        matrix = sp.csr_array(wide if is_plain else check(wide, accept_sparse="csr", ensure_all_finite=False))
    except ValueError as error:
        if columns and ("could not convert string" in str(error) or "dtype object" in str(error)):  # columns of text
            raise ValueError(read_instead(columns, text_columns(X))) from None
        raise
    check_matrix(matrix)
    if not (matrix.has_canonical_format and np.all(matrix.data)):
        matrix = canonical(matrix.copy() if sp.issparse(X) else matrix)
    return matrix


def _are_rows_for(estimator: BaseEstimator, X: Any) -> bool:
    """Return whether a sparse matrix has numbers in rows, and one column per item of a fit without column names."""
    fits = X.format == "csr" and X.ndim == 2 and X.shape[0] > 0 and X.dtype in (np.int64, np.float32, np.float64)
    return fits and X.shape[1] == estimator.n_features_in_ and not hasattr(estimator, "feature_names_in_")


def numeric_columns(X: Any) -> list[str]:
    """Return the columns of a data frame, none of an array; refuse what is no matrix of counts."""
    refuse_path(X)
    if isinstance(X, Mapping):
        raise TypeError("a mapping is not a matrix; recommend_for({item: count}) takes one user's counts")
    if hasattr(X, "obs_names") and hasattr(X, "var_names"):
        raise TypeError("this is an AnnData object; nbmf.external.anndata.factorize(adata) fits the counts in it")
    columns = [str(name) for name in getattr(X, "columns", ())]
    if 0 < len(columns) <= MOST_LISTED and list_interactions(columns, only_numbers=not text_columns(X)):
        raise ValueError(read_instead(columns, []))
    return columns


def text_columns(X: Any) -> list[str]:
    """Return the columns of a data frame that do not hold numbers."""
    kinds = zip(getattr(X, "columns", ()), getattr(X, "dtypes", ()), strict=False)
    return [str(name) for name, kind in kinds if not is_numeric(kind)]


def is_numeric(kind: Any) -> bool:
    """Return whether a column of this pandas or polars type holds numbers."""
    return bool(kind.is_numeric()) if hasattr(kind, "is_numeric") else getattr(kind, "kind", "O") in "biuf"


def read_instead(columns: list[str], text: list[str]) -> str:
    """Say how to fit a data frame that has a row per interaction, or columns of text, one of which may name users."""
    found = dict.fromkeys(("user", "item", "count"), "…")
    with suppress(ReadError):
        found = {role: repr(columns[k]) for role, k in choose_columns("", columns, dict.fromkeys(found)).items()}
    arguments = ", ".join(f"{role}={found[role]}" for role in ("user", "item", "count") if role in found)
    shown = ", ".join(map(repr, columns[:MOST_LISTED])) + (", …" if len(columns) > MOST_LISTED else "")
    by_user = f"if {text[0]!r} names the users, fit frame.set_index({text[0]!r}); " if len(text) == 1 else ""
    return (
        f"the data frame has the columns {shown}, which do not look like counts of one item each; {by_user}"
        f"if every row is an interaction, fit nbmf.read_interactions(frame, {arguments})"
    )


def row_ids(X: Any, size: int) -> Ids:
    """Return the ids of the rows of a matrix: the index of a data frame if it is text, or 0, 1, 2, …"""
    named = text_labels(X, "index")
    return np.arange(size) if named is None else named


def check_distinct(ids: Ids, what: str = "index") -> Ids:
    """Return the labels of the rows or columns of a data frame, all of them different."""
    values, repeats = np.unique(ids, return_counts=True)
    if len(values) == len(ids):
        return ids
    one, remedy = ("user", ", or number them by reset_index(drop=True)") if what == "index" else ("item", "")
    raise ValueError(
        f"the {what} of the data frame {'is' if what == 'index' else 'are'} taken for the {one}s, and "
        f"{values[repeats > 1].tolist()[0]!r} appears more than once; add up what belongs to one {one}{remedy}"
    )
