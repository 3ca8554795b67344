"""How sure: the law of counts not seen yet, and how probable the model holds counts that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincc, gammainc, gammaincc

from nbmf.data.interactions import Ids, Interactions, canonical
from nbmf.estimators.fit import Fitted, dots
from nbmf.estimators.log_prob import log_probabilities
from nbmf.estimators.newcomers import Newcomers
from nbmf.estimators.ranking import FactorScores
from nbmf.model.factors import Factor, Gamma
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson, log_probability

Array = NDArray[np.float64]

MOST_COUNT = float(2**62)  # that an interval names


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """The law of the counts of some pairs of a user and an item: y ~ NB(α, μ/(μ+α)), or Poisson(μ).

    users, items : arrays of n ids, pair by pair
    intensity : array draws × n, μ of each pair; one row if the factors are taken at their means, else one for each draw
        of the factors from their posterior, and the law is the mixture of those
    likelihood : the law of the counts of these pairs, given μ

    Examples
    --------
    >>> law = Predictive(np.array(["ann"]), np.array(["jazz"]), np.array([[3.0]]), NegativeBinomial(1.0))
    >>> law.mean, law.sd.round(2), law.at_least(1).round(2), law.probability(0).round(2)
    (array([3.]), array([3.46]), array([0.75]), array([0.25]))
    >>> law.interval(0.9)
    (array([0]), array([10]))
    """

    users: Ids
    items: Ids
    intensity: Array
    likelihood: Likelihood

    @cached_property
    def mean(self) -> Array:
        """E[y], an array of n."""
        return np.asarray(self.intensity.mean(axis=0))

    @cached_property
    def sd(self) -> Array:
        """Standard deviation of y, √(E[μ + μ²/α] + Var[μ]), an array of n."""
        within = self.intensity + self.intensity**2 / self.likelihood.concentration
        return np.asarray(np.sqrt(within.mean(axis=0) + self.intensity.var(axis=0)))

    def probability(self, count: ArrayLike) -> Array:
        """P(y = count), an array of n; one whole count, or one for each pair."""
        whole = _whole(count)
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(log_probability(self.likelihood, whole, self.intensity)).mean(axis=0))

    def at_least(self, count: ArrayLike) -> Array:
        """P(y ≥ count), an array of n; one whole count, or one for each pair."""
        whole = _whole(count)
        return np.where(whole > 0, self._above(np.maximum(whole, 1.0) - 1.0), 1.0)

    def interval(self, level: float = 0.9) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the least and the largest count, both inside, of an interval that y is in with probability `level`.

        At most (1 − level)/2 is left out on either side: the lower end is the largest count with
        P(y < lower) ≤ (1 − level)/2, the upper end the least with P(y > upper) ≤ (1 − level)/2. Counts are whole, so
        the interval holds at least `level`, and more where single counts are probable: if a 0 has more than
        (1 − level)/2, nothing at all is left out below.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; it must be between 0 and 1")
        tail = (1 - level) / 2
        most = np.ceil(self.mean + self.sd / np.sqrt(tail))  # beyond it is less than the tail, by Chebyshev
        upper = _least(lambda count: self._above(count) <= tail, most)
        lower = _least(lambda count: self._up_to(count) > tail, most)
        return lower, upper

    def _above(self, count: Array) -> Array:
        """P(y > count)."""
        if isinstance(self.likelihood, Poisson):
            return np.asarray(gammainc(count + 1, self.intensity).mean(axis=0))
        α = self.likelihood.concentration
        return np.asarray(betaincc(α, count + 1, α / (α + self.intensity)).mean(axis=0))

    def _up_to(self, count: Array) -> Array:
        """P(y ≤ count), which is not 1 less the other: small ones are exact, too."""
        if isinstance(self.likelihood, Poisson):
            return np.asarray(gammaincc(count + 1, self.intensity).mean(axis=0))
        α = self.likelihood.concentration
        return np.asarray(betainc(α, count + 1, α / (α + self.intensity)).mean(axis=0))


def _whole(count: ArrayLike) -> Array:
    values = np.asarray(count, np.float64)
    if np.any((values < 0) | (values % 1 != 0)):
        bad = values[(values < 0) | (values % 1 != 0)]
        raise ValueError(f"count {bad.flat[0]:g} has no probability; counts are whole numbers from 0")
    return values


def _least(holds: Callable[[Array], NDArray[np.bool_]], most: Array) -> NDArray[np.int64]:
    """Return, for each pair, the least count for which a condition holds that holds for `most` and, once, for ever."""
    low, high = np.full_like(most, -1.0), most.copy()
    while np.any(open_ := high - low > 1):
        middle = np.floor((low + high) / 2)
        if np.all((middle == low) | (middle == high) | ~open_):  # beyond 2^53 doubles are more than 1 apart
            break
        inside = holds(np.maximum(middle, 0.0)) & (middle >= 0)
        high, low = np.where(inside, middle, high), np.where(inside, low, middle)
    return np.minimum(high, MOST_COUNT).astype(np.int64)


class Forecasting(Newcomers):
    """The part of an estimator that says how sure it is."""

    def predictive(
        self, users: ArrayLike, items: ArrayLike, *, factors: str = "mean", n_draws: int = 200, seed: int = 0
    ) -> Predictive:
        """Return the law of new counts y* of pairs of ids: mean, sd, intervals, probabilities.

        Parameters
        ----------
        users, items : one id or several; pairs, or one of either for all of the other
        factors : "mean", at the posterior means, so that the spread is that of the counts alone; or "posterior", the
            mixture over draws of W and H ("cavi"), which knows that the factors of users with few counts are uncertain.
            Variational posteriors are narrower than the true ones, so it is the least that must be added
        n_draws : number of draws; each takes time for a gamma number an entry of the users' and items' rows
        seed : of the draws

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0).fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> law = model.predictive(0, [0, 1])
        >>> law.at_least(1) + law.probability(0)
        array([1., 1.])
        >>> wider = model.predictive(0, [0, 1], factors="posterior")
        >>> bool((wider.sd > law.sd).all())
        True
        """
        found = self._found
        rows, columns = self._pairs(users, items)
        law = found.model.likelihood.at(rows, columns)
        if factors == "mean":
            μ = dots(self.user_factors_, self.item_factors_, rows, columns).astype(np.float64)[None, :]
        elif factors == "posterior":
            if not isinstance(n_draws, Integral) or n_draws < 1:
                raise ValueError(f"n_draws is {n_draws!r}; it must be a whole number from 1")
            μ = _drawn(found.user_posterior, found.item_posterior, rows, columns, int(n_draws), seed)
        else:
            raise ValueError(f"factors is {factors!r}; it must be 'mean' or 'posterior'")
        return Predictive(found.users[rows], found.items[columns], μ, law)

    def predictive_for(
        self, counts: Mapping[Any, Any], items: ArrayLike, *, unknown_items: str = "error"
    ) -> Predictive:
        """Return the law of the next counts of somebody who was not in the fit, at the mean of that user's factors.

        Parameters
        ----------
        counts, unknown_items : as for `recommend_for`, whose scores are the means
        items : one id or several

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0).fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> found = model.recommend_for({0: 4}, n=1)
        >>> bool(np.isclose(model.predictive_for({0: 4}, found.items[0]).mean, found.scores[0]).all())
        True
        """
        found = self._found
        columns = found.item_lookup.positions(items)
        matrix = self._row(counts, unknown_items)
        users = self._fold(matrix, found.held_items).mean if matrix.nnz else self._typical_user()
        μ = dots(users, self.item_factors_, np.zeros(len(columns), np.intp), columns).astype(np.float64)
        law = found.held_items.likelihood.at(np.zeros(len(columns), np.intp), columns)
        return Predictive(np.zeros(len(columns), np.intp), found.items[columns], μ[None, :], law)

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean of ln p(count) over the cells of X, larger is better: see `score_samples` for which.

        Examples
        --------
        >>> import nbmf
        >>> train, test = nbmf.datasets.simulate(60, 40, n_components=3, seed=0).split(seed=0)
        >>> model = nbmf.NBMF(3, random_state=0).fit(train)
        >>> bool(np.isclose(model.score(test), nbmf.evaluation.log_likelihood(model, train, test).mean))
        True
        """
        total, n_cells = self._log_probabilities(X)
        return float(total.sum() / n_cells.sum()) if n_cells.any() else float("nan")

    def score_samples(self, X: Any) -> Array:
        """Return, for each row of X, the mean of ln p(count) over its cells, at the posterior means of the factors.

        Users of the fit, named by the ids of Interactions, are scored with their factors, on the cells that were not in
        the data of the fit: held-out counts and all the zeros. Anybody else, and every row of a matrix, array or data
        frame, is folded in first and then scored on the whole row, which is held out from the items' factors but not
        from the user's.

        Parameters
        ----------
        X : as for `transform`

        Returns
        -------
        array with a number for each row; −∞ if a count is impossible (intensity 0), nan for a user without such cells
        """
        total, n_cells = self._log_probabilities(X)
        return np.asarray(np.divide(total, n_cells, out=np.full(len(total), np.nan), where=n_cells > 0))

    def _log_probabilities(self, X: Any) -> tuple[Array, NDArray[np.int64]]:
        """Return for each row Σ ln p(count) over the cells to be scored, and how many there are."""
        found = self._found
        ids, matrix = self._rows(X)
        rows, known = found.user_lookup.find(ids)
        if not isinstance(X, Interactions):
            known = np.zeros_like(known)
        n_items = len(found.items)
        W = np.empty((len(ids), found.item_posterior.mean.shape[1]), found.item_posterior.mean.dtype)
        W[known] = self.user_factors_[rows[known]]
        W[~known] = self._fold(sp.csr_array(matrix[~known]), found.held_items).mean
        fitted = (
            found.counts if found.unknown is None else canonical(found.counts - found.counts * (found.unknown != 0))
        )
        seen = _selected(fitted, rows, known)
        scored = self._prepare(matrix)
        overlap = sp.csr_array((np.ones(seen.nnz, bool), seen.indices, seen.indptr), shape=seen.shape)
        scored = sp.csr_array(scored - scored * overlap)
        scored.eliminate_zeros()
        law = _of_rows(found, rows, known)
        scores = FactorScores(W, self.item_factors_)
        total = log_probabilities(law, scores, scored, seen, n_threads=self.n_threads)
        return total, (n_items - np.diff(seen.indptr)).astype(np.int64)


def _selected(counts: sp.csr_array, rows: NDArray[np.intp], known: NDArray[np.bool_]) -> sp.csr_array:
    """The rows of some users' counts, empty where the user is not known."""
    if not known.any():
        return sp.csr_array((len(rows), counts.shape[1]), dtype=counts.dtype)
    picks = sp.csr_array((known.astype(np.int8), (np.arange(len(rows)), rows)), shape=(len(rows), counts.shape[0]))
    picks.eliminate_zeros()
    return sp.csr_array(picks @ counts)


def _of_rows(found: Fitted, rows: NDArray[np.intp], known: NDArray[np.bool_]) -> Likelihood:
    """The law of some rows: if users have their own concentrations, with those; new ones have a typical one."""
    law = found.model.likelihood
    α = law.concentration
    if not isinstance(α, np.ndarray) or len(α) == 1:
        return law
    new = found.held_items.likelihood.concentration
    return NegativeBinomial(np.where(known[:, None], α[rows], new))


def _drawn(
    users: Factor, items: Factor, rows: NDArray[np.intp], columns: NDArray[np.intp], n_draws: int, seed: int
) -> Array:
    """Draw factors from their posterior and return the intensities of pairs, draws × pairs."""
    if not isinstance(users, Gamma) or not isinstance(items, Gamma):
        raise ValueError(
            "maximum likelihood and averages of starts have no posterior to draw from; factors='mean' needs none"
        )
    rng = np.random.RandomState(seed)
    few_users, row = np.unique(rows, return_inverse=True)
    few_items, column = np.unique(columns, return_inverse=True)
    laws = []
    for factor, places in ((users, few_users), (items, few_items)):
        rate = np.broadcast_to(factor.rate, factor.mean.shape)[places].astype(np.float64)
        laws.append((factor.mean[places] * rate, rate))
    found = np.empty((n_draws, len(rows)))
    for draw in found:
        W, H = (rng.standard_gamma(shape) / rate for shape, rate in laws)
        draw[:] = dots(W, H, row, column)
    return found
