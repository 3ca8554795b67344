"""What every estimator does: take counts, run inference, answer in the user's own ids."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nbmf.backends import make_backend
from nbmf.factors import Prior
from nbmf.inference.accelerate import Accelerated
from nbmf.inference.cavi import CAVI
from nbmf.inference.mm import MM
from nbmf.inference.run import Algorithm, Ending, run
from nbmf.interactions import Counts, Ids, Interactions, canonical, check_matrix, widened
from nbmf.likelihood import Likelihood
from nbmf.model import Model, State, begin
from nbmf.progress import Progress
from nbmf.ties import tie_items

Array = NDArray[np.floating[Any]]

ALGORITHMS: dict[str, Algorithm] = {"cavi": CAVI(), "mm": MM()}
BLOCK_CELLS = 4_000_000  # scores held at a time


@dataclass(frozen=True)
class Recommendations:
    """The best items of each user, best first.

    users : array of user ids
    items : array users × n of item ids; None where fewer than n items were left to recommend
    scores : array users × n, the expected counts E[y*]
    """

    users: Ids
    items: Ids
    scores: Array


@dataclass(frozen=True)
class Exposures:
    """What one user took, and how exposed to it the model thinks the user was: five arrays, largest count first.

    item : ids
    count, intensity : y and μ = ⟨w⟩·⟨h⟩
    exposure, sd : mean and standard deviation of a given y; above 1 is over-exposed, below 1 under-exposed
    """

    item: Ids
    count: Array
    intensity: Array
    exposure: Array
    sd: Array


class CountFactorization(BaseEstimator):  # type: ignore[misc]
    """What the estimators share. A subclass says which law the counts follow and which exposures are tied."""

    n_components: int
    user_shape: float
    item_shape: float
    inference: str
    init: str | tuple[ArrayLike, ArrayLike]
    max_iter: int
    tol: float
    accelerate: bool
    backend: str
    n_threads: int | None
    dtype: str
    random_state: Any
    verbose: bool

    def _likelihood(self) -> Likelihood:
        raise TypeError(f"{type(self).__name__} names no likelihood")

    def _n_ties(self, matrix: sp.csr_array) -> int | None:
        """Number of item clusters whose unseen cells share an exposure; None ties nothing."""
        return None

    def _prepare(self, matrix: sp.csr_array) -> sp.csr_array:
        return matrix

    def fit(self, X: Any, y: None = None) -> Self:
        """Factorize a users × items matrix of counts.

        Parameters
        ----------
        X : Interactions, or scipy sparse matrix, array or data frame of shape (n_users, n_items)
            Any finite numbers from 0; what a sparse matrix does not store is a zero.
        y : ignored

        Returns
        -------
        self, fitted. Ctrl-C during the fit keeps the last finished sweep and warns.
        """
        self._check_settings()
        likelihood = self._likelihood()
        users, items, matrix = self._take(X)
        rng = check_random_state(self.random_state)
        backend = make_backend(self.backend, self.n_threads)
        counts = Counts.of(self._prepare(matrix), np.dtype(self.dtype))
        n_ties = self._n_ties(matrix)
        tie = partial(tie_items, n_clusters=n_ties, rng=rng) if n_ties else None
        model = Model(likelihood, Prior(self.user_shape, self.user_shape), Prior(self.item_shape, self.item_shape))
        algorithm = ALGORITHMS[self.inference]

        def start() -> State:
            W, H = self._start(matrix.shape, rng)
            return begin(model, counts, backend, W, H, tie(H) if tie else None)

        with Progress(type(self).__name__, self.max_iter, quiet=not self.verbose) as progress:
            found = run(
                Accelerated(algorithm) if self.accelerate else algorithm,
                start(),  # not held here: a sweep lets go of what it is done with
                counts,
                backend,
                max_iter=self.max_iter,
                tol=self.tol,
                tie=tie,
                report=progress.report,
            )
        if found.ending is Ending.INTERRUPTED:
            warnings.warn(f"fit interrupted: the model is that of sweep {len(found.objectives)}", stacklevel=2)
        self.users_, self.items_, self._counts, self._law = users, items, matrix, likelihood
        self.user_posterior_, self.item_posterior_ = found.state.users, found.state.items
        self.user_factors_, self.item_factors_ = found.state.users.mean, found.state.items.mean
        self.components_ = self.item_factors_.T
        self.objective_ = np.array(found.objectives)
        self.n_iter_ = len(found.objectives)
        self.converged_ = found.ending is Ending.CONVERGED
        self.concentration_ = likelihood.concentration
        if np.isfinite(self.concentration_):
            self.exposure_ = "tied" if n_ties else "exact"
        return self

    def predict(self, users: ArrayLike, items: ArrayLike) -> Array:
        """Return the expected counts E[y*] = Σ_k ⟨w_uk⟩⟨h_ik⟩ of pairs of ids, Eq. (score)."""
        check_is_fitted(self, "user_factors_")
        rows = _positions(np.atleast_1d(users), self.users_, "user")
        columns = _positions(np.atleast_1d(items), self.items_, "item")
        if len(rows) != len(columns) and 1 not in (len(rows), len(columns)):
            raise ValueError(f"{len(rows)} users and {len(columns)} items; give pairs, or one of either")
        rows, columns = np.broadcast_arrays(rows, columns)
        step = max(1, BLOCK_CELLS // self.n_components)
        blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
        score = [np.sum(self.user_factors_[rows[b]] * self.item_factors_[columns[b]], axis=1) for b in blocks]
        return np.concatenate(score) if score else np.empty(0)

    def recommend(self, users: ArrayLike, n: int = 10, *, exclude_seen: bool = True) -> Recommendations:
        """Return the n items of largest expected count for each user, equal scores in the order of the items.

        Parameters
        ----------
        users : one user id or several
        exclude_seen : leave out what the user took in the data of the fit
        """
        check_is_fitted(self, "user_factors_")
        if n < 1:
            raise ValueError(f"n is {n}; recommend at least 1 item")
        ids = np.atleast_1d(users)
        rows = _positions(ids, self.users_, "user")
        n = min(n, len(self.items_))
        best, scores = np.empty((len(rows), n), np.intp), np.empty((len(rows), n), self.user_factors_.dtype)
        step = max(1, BLOCK_CELLS // len(self.items_))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            score = self.user_factors_[block] @ self.item_factors_.T
            for place, row in enumerate(block):
                if exclude_seen:
                    score[place, self._seen(row)] = -np.inf
                best[start + place] = _largest(score[place], n)
                scores[start + place] = score[place, best[start + place]]
        items = self.items_[best]
        missing = np.isneginf(scores)
        if missing.any():
            items = items.astype(object)
            items[missing] = None
        return Recommendations(ids, items, scores)

    def exposures(self, user: Any) -> Exposures:
        """Return how exposed a user was to each item the user took: ⟨a_ui⟩ = (α+y)/(α+μ), Eq. (update_a)."""
        check_is_fitted(self, "user_factors_")
        if np.ndim(user):
            raise ValueError(f"exposures are those of one user; got {np.size(user)}")
        row = int(_positions(np.atleast_1d(user), self.users_, "user")[0])
        start, stop = self._counts.indptr[row], self._counts.indptr[row + 1]
        order = np.argsort(-self._counts.data[start:stop], kind="stable")
        columns, count = self._counts.indices[start:stop][order], self._counts.data[start:stop][order]
        intensity = (self.item_factors_[columns] @ self.user_factors_[row]).astype(np.float64)
        exposure = self._law.exposure(count, intensity)
        # q(a) = Gamma(α+y, α+μ): its standard deviation is √(α+y)/(α+μ); Poisson's exposure is 1 for certain
        sd = exposure / np.sqrt(self.concentration_ + count)
        return Exposures(self.items_[columns], count, intensity, exposure, sd)

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn: sparse input is fine, negative input is not."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags

    def _seen(self, row: int) -> NDArray[Any]:
        seen: NDArray[Any] = self._counts.indices[self._counts.indptr[row] : self._counts.indptr[row + 1]]
        return seen

    def _check_settings(self) -> None:
        for name in ("n_components", "max_iter"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number from 1")
        if self.n_threads is not None and (not isinstance(self.n_threads, Integral) or self.n_threads < 1):
            raise ValueError(
                f"n_threads is {self.n_threads!r}; it must be a whole number from 1, or None for all cores"
            )
        for name in ("user_shape", "item_shape"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < float(value) < np.inf:
                raise ValueError(f"{name} is {value!r}; a gamma prior needs a positive shape")
        if not isinstance(self.tol, Real) or not self.tol >= 0:
            raise ValueError(f"tol is {self.tol!r}; it must be 0 (never stop early) or a small positive number")
        if self.inference not in ALGORITHMS:
            raise ValueError(f"inference is {self.inference!r}; it must be one of {', '.join(map(repr, ALGORITHMS))}")
        if not any(self.dtype == dtype for dtype in (np.float32, np.float64, "float32", "float64")):
            raise ValueError(f"dtype is {self.dtype!r}; it must be 'float32' or 'float64'")

    def _take(self, X: Any) -> tuple[Ids, Ids, sp.csr_array]:
        """Check the input and return its ids and its counts as a canonical matrix."""
        if isinstance(X, Interactions):
            users, items, matrix = X.users, X.items, X.matrix
            self.n_features_in_ = X.n_items
        else:
            if {"user", "item"} <= set(map(str, getattr(X, "columns", ()))) <= {"user", "item", "count"}:
                raise ValueError("this data frame lists interactions; fit(nbmf.read_interactions(frame)) takes those")
            wide = widened(X) if sp.issparse(X) else X  # repeated entries are added up
            checked = validate_data(self, wide, accept_sparse="csr", ensure_all_finite=False)
            matrix = sp.csr_array(checked)
            check_matrix(matrix)
            users = np.arange(matrix.shape[0])
            items = getattr(self, "feature_names_in_", np.arange(matrix.shape[1]))
            if not (matrix.has_canonical_format and np.all(matrix.data)):
                matrix = canonical(matrix.copy() if sp.issparse(X) else matrix)
        if 0 in matrix.shape:
            raise ValueError(
                f"the data has {matrix.shape[0]} users and {matrix.shape[1]} items; there is nothing to factorize "
                "(a filter that leaves nothing asks for too much)"
            )
        self._check_range(matrix)
        return users, items, matrix

    def _check_range(self, matrix: sp.csr_array) -> None:
        """Refuse counts whose products with others leave the range of the factors' numbers."""
        limit = float(np.sqrt(np.finfo(self.dtype).max)) * 1e10
        for count in (matrix.data.max(initial=1), matrix.data.min(initial=1)):
            if not 1 / limit <= count <= limit:
                remedy = (
                    "scale the data" if np.dtype(self.dtype) == np.float64 else "scale the data or use dtype='float64'"
                )
                raise ValueError(f"count {count} is out of the range of {np.dtype(self.dtype)}; {remedy}")

    def _start(self, shape: tuple[int, int], rng: np.random.RandomState) -> tuple[Array, Array]:
        sizes = [(n, self.n_components) for n in shape]
        if isinstance(self.init, str):
            if self.init != "random":
                raise ValueError(f"init is {self.init!r}; it must be 'random' or a pair of arrays (W0, H0)")
            users, items = (rng.gamma(1.0, 1.0, size).astype(self.dtype) for size in sizes)
            return users, items
        if not isinstance(self.init, tuple | list) or len(self.init) != 2:
            raise ValueError(f"init is {self.init!r}; it must be 'random' or a pair of arrays (W0, H0)")
        users, items = (np.ascontiguousarray(values, dtype=self.dtype) for values in self.init)
        for name, values, size in (("W0", users, sizes[0]), ("H0", items, sizes[1])):
            if values.shape != size:
                raise ValueError(f"init: {name} has shape {values.shape}; this data and n_components ask for {size}")
            if not np.all((values > 0) & np.isfinite(values)):
                raise ValueError(f"init: {name} must be positive and finite; a zero would stay zero for ever")
        return users, items


def _positions(ids: Ids, known: Ids, what: str) -> NDArray[np.intp]:
    """Find ids among the ids of the fit."""
    if ids.ndim != 1:
        raise ValueError(f"{what}s must be one id or a list of ids; got an array of shape {ids.shape}")
    order = np.argsort(known, kind="stable")
    try:
        found = order[np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)]
        unknown = np.flatnonzero(known[found] != ids)
    except TypeError:  # a number asked of strings: none of them is there
        unknown = np.array([0])
    if len(unknown):
        raise KeyError(
            f"{what} {ids.tolist()[unknown[0]]!r} was not in the data of the fit, which had {len(known)} {what}s"
        )
    return found


def _largest(scores: Array, n: int) -> NDArray[np.intp]:
    """Return the positions of the n largest scores, largest first, equal ones by position."""
    least = np.partition(scores, len(scores) - n)[len(scores) - n]
    candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:n]
