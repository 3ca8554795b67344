"""How sure: the distribution of new counts, and how probable counts are that were not fitted."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from nbmf.data.interactions import Ids, formed
from nbmf.estimators.fit import FactorFit, FitResult, NewRows
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.log_prob import log_probabilities
from nbmf.estimators.scores import FactorScores
from nbmf.estimators.table import MOST_ROWS, Shown, Table, first_rows
from nbmf.model.likelihood import Likelihood, log_probability

Array = NDArray[np.float64]

MOST_COUNT = float(2**62)  # largest end of an interval


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(Table):
    """The distribution of the counts of some pairs of a user and an item, such as y ~ NB(α, μ/(μ+α)).

    Attributes
    ----------
    users, items : array
        n ids each, pair by pair.
    intensity : array
        μ of each pair, draws × n: one row if the factors are taken at their means; otherwise one per draw of the
        factors from their posterior, and the distribution is the mixture of those.
    likelihood : Likelihood
        Of the counts of these pairs, given μ.

    Examples
    --------
    >>> from nbmf.model.likelihood import NegativeBinomial
    >>> new = Predictive(np.array(["ann"]), np.array(["jazz"]), np.array([[3.0]]), NegativeBinomial(1.0))
    >>> new.mean, new.sd.round(2), new.at_least(1).round(2), new.probability(0).round(2)
    (array([3.]), array([3.46]), array([0.75]), array([0.25]))
    >>> new.interval(0.9)
    (array([0]), array([10]))
    >>> new
    Predictive(1 pair)
    user  item  mean     sd  low  high
    ann   jazz     3  3.464    0    10
    """

    users: Ids
    items: Ids
    intensity: Array
    likelihood: Likelihood

    @cached_property
    def mean(self) -> Array:
        """E[y], one per pair."""
        return np.asarray(self.likelihood.mean(self.intensity).mean(axis=0))

    @cached_property
    def sd(self) -> Array:
        """Standard deviation of y, √(E[Var[y | μ]] + Var[E[y | μ]]), one per pair."""
        means = self.likelihood.mean(self.intensity)
        return np.asarray(np.sqrt(self.likelihood.variance(self.intensity).mean(axis=0) + means.var(axis=0)))

    @property
    def columns(self) -> dict[str, Any]:
        """One row per pair: user, item, mean, sd, and the ends of the 90 % interval; only what the likelihood has."""
        found: dict[str, Any] = {"user": self.users, "item": self.items, "mean": self.mean}
        with suppress(ValueError):  # a likelihood may lack its variance and its tails
            found["sd"] = self.sd
            found["low"], found["high"] = self.interval(0.9)
        return found

    def shown(self) -> Shown:
        """Return title, heads and rows."""
        n, first = len(self.users), slice(0, MOST_ROWS)
        pairs = self.users[first], self.items[first]
        few = Predictive(*pairs, self.intensity[:, first], self.likelihood.of_rows(first))
        return f"Predictive({n:,} {'pair' if n == 1 else 'pairs'})", *first_rows(few.columns, n)

    def probability(self, count: ArrayLike) -> Array:
        """Return P(y = count), one per pair, for one whole count or one per pair."""
        whole = _whole(count)
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(log_probability(self.likelihood, whole, self.intensity)).mean(axis=0))

    def at_least(self, count: ArrayLike) -> Array:
        """Return P(y ≥ count), one per pair, for one whole count or one per pair."""
        whole = _whole(count)
        return np.where(whole > 0, self._above(np.maximum(whole, 1.0) - 1.0), 1.0)

    def interval(self, level: float = 0.9) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the smallest and the largest count of an interval that contains y with probability `level`.

        At most (1 − level)/2 is left out on either side: the lower end is the largest count with
        P(y < lower) ≤ (1 − level)/2, the upper end the smallest with P(y > upper) ≤ (1 − level)/2. Counts are whole, so
        the interval holds at least `level`, and more where single counts are probable: if a 0 has more than
        (1 − level)/2, nothing is left out below.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; it must be between 0 and 1")
        tail = (1 - level) / 2
        most = np.ceil(self.mean + self.sd / np.sqrt(tail))  # beyond it is less than the tail, by Chebyshev
        upper = _least(lambda count: self._above(count) <= tail, most)
        lower = _least(lambda count: self.likelihood.up_to(count, self.intensity).mean(axis=0) > tail, most)
        return lower, upper

    def _above(self, count: Array) -> Array:
        return np.asarray(self.likelihood.above(count, self.intensity).mean(axis=0))


def _whole(count: ArrayLike) -> Array:
    values = np.asarray(count, np.float64)
    if np.any((values < 0) | (values % 1 != 0)):
        bad = values[(values < 0) | (values % 1 != 0)]
        raise ValueError(f"count {bad.flat[0]:g} has no probability; counts are whole numbers from 0")
    return values


def _least(holds: Callable[[Array], NDArray[np.bool_]], most: Array) -> NDArray[np.int64]:
    """Return, for each pair, the smallest count from which on a condition holds, by bisection below `most`."""
    low, high = np.full_like(most, -1.0), most.copy()
    while np.any(open_ := high - low > 1):
        middle = np.floor((low + high) / 2)
        if np.all((middle == low) | (middle == high) | ~open_):  # beyond 2^53 doubles are more than 1 apart
            break
        inside = holds(np.maximum(middle, 0.0)) & (middle >= 0)
        high, low = np.where(inside, middle, high), np.where(inside, low, middle)
    return np.minimum(high, MOST_COUNT).astype(np.int64)


def predictive(fit: FitResult, users: ArrayLike, items: ArrayLike) -> Predictive:
    """Return the distribution of new counts of pairs, at the means of the factors."""
    rows, columns = fit.pairs(users, items)
    likelihood = fit.likelihood_of(rows, columns)
    μ = fit.intensity_scores().pairs(rows, columns).astype(np.float64)[None, :]
    return Predictive(fit.users[rows], fit.items[columns], μ, likelihood)


def predictive_drawn(fit: FactorFit, users: ArrayLike, items: ArrayLike, n_draws: int, seed: int) -> Predictive:
    """Return the distribution of new counts of pairs as a mixture over draws of the factors."""
    rows, columns = fit.pairs(users, items)
    if not isinstance(n_draws, Integral) or n_draws < 1:
        raise ValueError(f"n_draws is {n_draws!r}; it must be a whole number from 1")
    rng = np.random.RandomState(seed)
    few_users, row = np.unique(rows, return_inverse=True)
    few_items, column = np.unique(columns, return_inverse=True)
    draw_users, draw_items = fit.user_posterior.sampler(few_users), fit.item_posterior.sampler(few_items)
    μ = np.empty((int(n_draws), len(rows)))
    for draw in μ:
        draw[:] = FactorScores(draw_users(rng), draw_items(rng)).pairs(row, column)
    return Predictive(fit.users[rows], fit.items[columns], μ, fit.likelihood_of(rows, columns))


def predictive_for(fit: FitResult, new: NewRows, items: ArrayLike, resources: Resources) -> Predictive:
    """Return the distribution of the next counts of a user who was not fitted."""
    columns = fit.item_lookup.positions(items)
    new.check_one("predictive_for")
    likelihood = fit.likelihood_of(None, columns)
    zeros = np.zeros(len(columns), np.intp)
    μ = fit.intensity_scores_of(new, resources).pairs(zeros, columns).astype(np.float64)
    return Predictive(zeros, fit.items[columns], μ[None, :], likelihood)


def score_rows(
    fit: FactorFit, rows: NewRows, known: NDArray[np.bool_], resources: Resources
) -> tuple[Array, NDArray[np.int64]]:
    """Return Σ ln p(count) over the cells of each row that were not fitted, and how many cells that is.

    Rows that are `known` are scored with the factors of the fitted user of that id; the others are folded in first.
    """
    W, places = means_of(fit, rows, known, resources)
    seen = selected(fit.fitted, places, known)
    scored = formed(rows.counts, fit.input)
    overlap = sp.csr_array((np.ones(seen.nnz, bool), seen.indices, seen.indptr), shape=seen.shape)
    scored = sp.csr_array(scored - scored * overlap)
    scored.eliminate_zeros()
    scores = fit.row_scores(W, selected(rows.counts, np.arange(len(W)), ~known))  # what known users have is not scored
    likelihood = fit.model.likelihood.of_some_rows(places, known)
    total = log_probabilities(likelihood, scores, scored, seen, n_threads=resources.n_threads)
    return total, (len(fit.items) - np.diff(seen.indptr)).astype(np.int64)


def means_of(
    fit: FactorFit, rows: NewRows, known: NDArray[np.bool_], resources: Resources
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the factors of rows, of which those that are `known` have the fitted user's, and the users' positions."""
    places = fit.user_lookup.find(rows.ids)[0]
    W = np.empty((len(rows.ids), fit.item_posterior.dimensions[1]), fit.dtype)
    W[known] = fit.user_posterior.mean[places[known]]
    new = NewRows(rows.ids[~known], sp.csr_array(rows.counts[~known]))
    W[~known] = fit.factors_of(new, resources).mean
    return W, places


def selected(counts: sp.csr_array, rows: NDArray[np.intp], known: NDArray[np.bool_]) -> sp.csr_array:
    """Return the rows of some users' counts, empty where the user is not known."""
    if not known.any():
        return sp.csr_array((len(rows), counts.shape[1]), dtype=counts.dtype)
    picks = sp.csr_array((known.astype(np.int8), (np.arange(len(rows)), rows)), shape=(len(rows), counts.shape[0]))
    picks.eliminate_zeros()
    return sp.csr_array(picks @ counts)
