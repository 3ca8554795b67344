"""`NBSLIM`, the item–item member of the family: what a user is expected to do is made of what the user did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nbmf.data.interactions import Ids, Interactions
from nbmf.estimators.explain import Alike, Explanation, one_place
from nbmf.estimators.files import write_weights
from nbmf.estimators.fit import BLOCK_CELLS, Weighted
from nbmf.estimators.log_prob import log_probabilities
from nbmf.estimators.newcomers import Arriving
from nbmf.estimators.predictive import Predictive
from nbmf.estimators.ranking import ModelScores
from nbmf.estimators.slim_fit import Regressions, fit, fit_plainly
from nbmf.estimators.validation import check_range
from nbmf.inference.progress import QUIET_SECONDS, RunsProgress
from nbmf.inference.run import Ending
from nbmf.model.likelihood import NegativeBinomial
from nbmf.storage.container import Path

Array = NDArray[np.floating[Any]]

FORMS: dict[str, Callable[[Array], Array]] = {
    "log1p": np.log1p,
    "binary": np.ones_like,
    "counts": lambda counts: counts,
}
FEW_ITEMS, FEW_USERS = 5000, 300_000  # up to which every item may be every other's neighbour
NEIGHBORS = 200


def formed(counts: sp.csr_array, form: str, dtype: DTypeLike) -> sp.csr_array:
    """Return the counts in one of FORMS."""
    values = FORMS[form](counts.data.astype(np.float64)).astype(dtype)
    return sp.csr_array((values, counts.indices, counts.indptr), shape=counts.shape)


class NBSLIM(Arriving):
    """A negative binomial model of each item given the others: t_ui ~ NB(α, mean μ_ui), μ_ui = b_i + Σ_{j≠i} x_uj B_ji.

    x and t are what the user did, the counts themselves or their logarithms, and B ≥ 0 has an exponential prior. It
    needs no random start and takes a new user by one product. An item's weights begin equal and become different as far
    as its users bear it out: it stops when a sweep adds less than `tol` to its log-likelihood, rare items after few
    sweeps, popular ones after many. Going on to the end would fit the data better and rank worse.

    Parameters
    ----------
    concentration : α, as for `NBMF`; logarithms of counts vary less than counts, so it is larger here
    penalty : ρ, the rate of the exponential prior on the weights; a neighbour that few users have counts for less
    input : x, "log1p" (ln(1 + y)), "binary" (whether there is a count) or "counts"
    target : t, likewise; scores are expected targets, and expected counts only for "counts"
    n_neighbors : most neighbours of an item, those that most often go with it; None, all others, which takes memory for
        n_items² weights and 192 numbers a user and thread; "auto", all for up to 5,000 items and 300,000 users, 200 for
        more
    max_iter : most sweeps
    tol : an item stops when a sweep adds no more than this to its own objective, in nats
    accelerate : take longer steps as long as they raise the objective: the same objective in two thirds of the sweeps
    backend : "auto" or "cpu" (threads), "reference" (plain NumPy with dense arrays, for small data)
    n_threads : None for one a core; changes nothing but the time
    dtype : "float32" or "float64", of the weights; sums are in double precision either way
    verbose : show progress on standard error

    Attributes
    ----------
    weights_ : B, n_items × n_items; weights_[j, i] is what a unit of input of item j adds to item i; an array, or a
        csr_array where items have few neighbours
    intercept_ : b, n_items
    objective_ : log-likelihood of the targets less ρ ΣB, after each sweep; higher is better
    n_iter_, converged_, ending_ : as of `NBMF`; converged if every item stopped by `tol`
    users_, items_, item_names_ : as of `NBMF`

    Examples
    --------
    >>> import nbmf
    >>> users = ["ann", "ann", "bob", "cy", "cy", "dee", "dee"]
    >>> items = ["jazz", "blues", "jazz", "punk", "ska", "punk", "ska"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 2, 3, 6])
    >>> model = nbmf.NBSLIM(penalty=1.0).fit(data)
    >>> model.recommend("bob", n=1).items
    array([['blues']], dtype='<U5')
    """

    def __init__(
        self,
        *,
        concentration: float = 3.0,
        penalty: float = 20.0,
        input: str = "log1p",
        target: str = "log1p",
        n_neighbors: int | str | None = "auto",
        max_iter: int = 100,
        tol: float = 5.0,
        accelerate: bool = True,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        verbose: bool = False,
    ) -> None:
        """Keep the settings; `fit` checks them."""
        self.concentration = concentration
        self.penalty = penalty
        self.input = input
        self.target = target
        self.n_neighbors = n_neighbors
        self.max_iter = max_iter
        self.tol = tol
        self.accelerate = accelerate
        self.backend = backend
        self.n_threads = n_threads
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, X: Any, y: None = None) -> Self:
        """Find the weights from a users × items matrix of counts.

        Parameters
        ----------
        X : Interactions, or scipy sparse matrix, array or data frame of shape (n_users, n_items)
            Any finite numbers from 0; what a sparse matrix does not store is a zero.
        y : ignored
        """
        with self._refitting():
            self._become(self._fit(X))
        return self

    def _fit(self, X: Any) -> Weighted:
        self._check_settings()
        users, items, matrix = self._take(X)
        x, t = (formed(matrix, form, self.dtype) for form in (self.input, self.target))
        problem = Regressions(x, t, float(self.concentration), float(self.penalty))
        ending: dict[str, Any] = {"max_iter": self.max_iter, "tol": self.tol, "accelerate": self.accelerate}
        ending["n_neighbors"] = self._most_neighbors(*matrix.shape)
        name, quiet = type(self).__name__, not self.verbose
        with RunsProgress(name, what="items", pause=QUIET_SECONDS, quiet=quiet) as progress:
            if self.backend == "reference":
                found = fit_plainly(problem, **ending)
            else:
                show: Callable[[int, int], None] = lambda done, total: progress.report(done, total, done / total)  # noqa: E731
                found = fit(problem, **ending, n_threads=self.n_threads, report=show)
        return Weighted(
            users=users,
            items=items,
            counts=matrix,
            objective=found.objective,
            ending=Ending.CONVERGED if found.settled else Ending.MAX_ITER,
            item_names=X.item_names if isinstance(X, Interactions) else None,
            has_feature_names=hasattr(self, "feature_names_in_"),
            input=self.input,
            target=self.target,
            concentration=float(self.concentration),
            weights=found.weights,
            intercept=found.intercept,
        )

    def _become(self, fitted: Weighted) -> None:
        """Take over what a fit has found, this one or that of a model file."""
        self._note(fitted)
        self.weights_, self.intercept_ = fitted.weights, fitted.intercept
        self.__dict__.pop("concentration_", None)
        if fitted.target == "counts":  # else it is not the law of counts
            self.concentration_ = fitted.concentration

    def score_items(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of the users in these rows of the data of the fit for all items: len(rows) × n_items."""
        return self._expected(self._found.counts[rows])

    def predict(self, users: Any, items: ArrayLike | None = None) -> Array:
        """Return the expected targets μ of pairs of ids: expected counts if the target is "counts".

        Without items, `users` are rows of counts of new users and the result is the sum over the items of each.
        """
        if items is None:
            return np.asarray(self._expected(self._rows(users)[1]).sum(axis=1))
        rows, columns = self._pairs(users, items)
        return self._intensities(rows, columns)

    def explain(self, user: Any, item: Any) -> Explanation:
        """Return what each item the user took contributes to the user's score for an item: x_uj B_ji, largest first.

        They and the intercept b_i, which stands as `prior`, add up to the score: nothing in it is approximate.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> why = nbmf.NBSLIM(penalty=0.1).fit(data).explain("bob", "soul")
        >>> why.items, bool(np.isclose(why.contributions.sum() + why.prior, why.score))
        (array(['jazz'], dtype='<U4'), True)
        """
        found = self._found
        row = one_place(found.user_lookup, user, "explain one user's score")
        column = one_place(found.item_lookup, item, "explain the score of one item")
        name = found.users[row : row + 1].tolist()[0]
        return self._reasons(name, column, found.counts[[row]])

    def explain_for(self, counts: Mapping[Any, Any], item: Any, *, unknown_items: str = "error") -> Explanation:
        """Return the same for somebody who was not in the fit, as `recommend_for` takes one."""
        column = one_place(self._found.item_lookup, item, "explain the score of one item")
        return self._reasons(None, column, self._row(counts, unknown_items))

    def _reasons(self, user: Any, column: int, taken: sp.csr_array) -> Explanation:
        found = self._found
        columns, counts = taken.indices, taken.data
        x = formed(taken, found.input, np.float64).data
        contributions = x * self._column(column)[columns]
        order = np.lexsort((-counts.astype(np.float64), -contributions))
        names = None if found.item_names is None else found.item_names[columns[order]]
        item = found.items[column : column + 1].tolist()[0]
        parts, prior = contributions[order], float(found.intercept[column])
        score = float(parts.sum()) + prior
        return Explanation(user, item, found.items[columns[order]], counts[order], parts, prior, score, names)

    def similar_items(self, item: Any, n: int = 10) -> Alike:
        """Return the n items most like one: those that speak for it and for which it speaks, √(B_ji B_ij).

        The root of the product of both weights: a popular item has large weights from all others and gives small ones,
        and the product is free of that. Fewer than n where fewer have both weights; equal ones are in the order of the
        items.
        """
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"n is {n!r}; ask for at least 1")
        found = self._found
        place = one_place(found.item_lookup, item, "similar_items of one item")
        mutual = np.sqrt(self._column(place) * self._row_of_weights(place))
        near = np.argsort(-mutual, kind="stable")[: min(int(n), np.count_nonzero(mutual))]
        names = None if found.item_names is None else found.item_names[near]
        return Alike(found.items[near], mutual[near], names)

    def predictive(self, users: ArrayLike, items: ArrayLike) -> Predictive:
        """Return the law of new counts of pairs of ids: mean, sd, intervals, probabilities; for target="counts"."""
        rows, columns = self._pairs(users, items)
        μ = self._intensities(rows, columns)
        return self._law(self._found.users[rows], columns, μ)

    def predictive_for(
        self, counts: Mapping[Any, Any], items: ArrayLike, *, unknown_items: str = "error"
    ) -> Predictive:
        """Return the same for somebody who was not in the fit, as `recommend_for` takes one."""
        columns = self._found.item_lookup.positions(items)
        μ = self._expected(self._row(counts, unknown_items))[0, columns]
        return self._law(np.zeros(len(columns), np.intp), columns, μ)

    def _law(self, users: Ids, columns: NDArray[np.intp], μ: Array) -> Predictive:
        found = self._found
        if found.target != "counts":
            raise ValueError(
                f"the model was fitted with target={found.target!r}, so it knows no law of counts; fit with "
                "target='counts'"
            )
        law = NegativeBinomial(found.concentration)
        return Predictive(users, found.items[columns], μ.astype(np.float64)[None, :], law)

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean over the cells of X of ln p(t), larger is better: how well each item is told by the others.

        No cell's own count is among what it is told by. A density of counts only for target="counts"; that of another
        target has no unit, so compare only models with the same target.
        """
        matrix, found = self._rows(X)[1], self._found
        law, targets = NegativeBinomial(found.concentration), formed(matrix, found.target, np.float64)
        nothing = sp.csr_array(matrix.shape, dtype=np.int8)
        scores = self._scores_of(matrix)
        total = log_probabilities(law, scores, targets, nothing, n_threads=self.n_threads)
        return float(total.mean() / matrix.shape[1])

    def save(self, path: Path) -> None:
        """Write the model to a file, from which `nbmf.load(path)` brings it back as it is, as for `NBMF`."""
        write_weights(path, type(self).__name__, self.get_params(deep=False), self._found)

    def _scores(self) -> ModelScores:
        return ModelScores(self.score_items, len(self._found.users), len(self._found.items))

    def _scores_of(self, counts: sp.csr_array | None) -> ModelScores:
        n_items = len(self._found.items)
        rows = sp.csr_array((1, n_items)) if counts is None else counts
        return ModelScores(lambda which: self._expected(rows[which]), rows.shape[0], n_items)

    def _expected(self, counts: sp.csr_array) -> Array:
        """μ of rows of counts for all items."""
        found = self._found
        products = formed(counts, found.input, found.intercept.dtype) @ found.weights
        dense = products.toarray() if sp.issparse(products) else products
        return np.asarray(dense + found.intercept)

    def _rows(self, X: Any, unknown_items: str = "error") -> tuple[Ids, sp.csr_array]:
        ids, matrix = super()._rows(X, unknown_items)
        check_range(matrix, self._found.intercept.dtype)
        return ids, matrix

    def _row(self, counts: Mapping[Any, Any], unknown_items: str) -> sp.csr_array:
        row = super()._row(counts, unknown_items)
        check_range(row, self._found.intercept.dtype)
        return row

    def _intensities(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
        few, row = np.unique(rows, return_inverse=True)
        step = max(1, BLOCK_CELLS // len(self._found.items))
        found, order = np.empty(len(rows), self._found.intercept.dtype), np.argsort(row, kind="stable")
        bounds = np.searchsorted(row[order], np.arange(0, len(few) + step, step))
        for n, start in enumerate(range(0, len(few), step)):
            inside = order[bounds[n] : bounds[n + 1]]
            found[inside] = self.score_items(few[start : start + step])[row[inside] - start, columns[inside]]
        return found

    def _column(self, item: int) -> NDArray[np.float64]:
        """What speaks for an item, from all items."""
        weights = self._found.weights
        found = weights[:, [item]].toarray().ravel() if sp.issparse(weights) else weights[:, item]
        return np.asarray(found, np.float64)

    def _row_of_weights(self, item: int) -> NDArray[np.float64]:
        """For what an item speaks, of all items."""
        weights = self._found.weights
        found = weights[[item]].toarray().ravel() if sp.issparse(weights) else weights[item]
        return np.asarray(found, np.float64)

    def _most_neighbors(self, n_users: int, n_items: int) -> int | None:
        if self.n_neighbors == "auto":
            return None if n_items <= FEW_ITEMS and n_users <= FEW_USERS else NEIGHBORS
        return self.n_neighbors if self.n_neighbors is None else int(self.n_neighbors)

    def _check_settings(self) -> None:
        self._check_common()
        if not isinstance(self.concentration, Real):
            raise ValueError(f"concentration is {self.concentration!r}; it must be a positive number")
        NegativeBinomial(self.concentration)
        if not isinstance(self.penalty, Real) or not 0 <= float(self.penalty) < 1e30:
            raise ValueError(f"penalty is {self.penalty!r}; it must be a number from 0")
        if not isinstance(self.accelerate, bool | np.bool_):
            raise ValueError(f"accelerate is {self.accelerate!r}; it must be True or False")
        for name in ("input", "target"):
            if getattr(self, name) not in list(FORMS):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, FORMS))}")
        if self.backend not in ("auto", "cpu", "reference"):
            raise ValueError(f"backend is {self.backend!r}; it must be 'auto', 'cpu' or 'reference'")
        if self.n_neighbors not in ("auto", None) and (
            not isinstance(self.n_neighbors, Integral) or isinstance(self.n_neighbors, bool) or self.n_neighbors < 1
        ):
            raise ValueError(
                f"n_neighbors is {self.n_neighbors!r}; it must be a whole number from 1, None for all items, or 'auto'"
            )
