"""Some cells of a model, with their counts beside their intensities: what a likelihood is checked on.

They are all cells of some users and some items. Both are spread evenly over the ranks of their total counts, so that
the most and the least active are among them in their right proportion, and there are about as many users as items.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.interactions import formed
from nbmf.estimators.fit import FactorFit, NewRows
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.predictive import means_of, selected
from nbmf.model.factors import Array
from nbmf.model.likelihood import Likelihood

MOST_CELLS = 250_000
LEAST_CELLS, COST = 1000, 300  # so many cells take about a hundredth of the time of a non-zero count in a sweep
FAR_OFF = 3.0


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells in a row: counts as the likelihood sees them, intensities, and the likelihood of each cell.

    `users` and `items` number the rows and columns of the sample that the cells are from.
    """

    counts: NDArray[np.float64]
    intensity: NDArray[np.float64]
    likelihood: Likelihood
    users: NDArray[np.intp]
    items: NDArray[np.intp]

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """E[y | μ] of each cell."""
        return np.asarray(self.likelihood.mean(self.intensity), np.float64)

    def occupancy(self) -> "Occupancy":
        """Return which share of the cells is non-zero, and which share the model expects to be."""
        chance = -np.expm1(self.likelihood.log_evidence(0.0, self.intensity))  # a count of 0 has no events
        n = max(len(self.counts), 1)
        shares = float(chance.sum() / n), float(np.count_nonzero(self.counts) / n)
        sd = math.sqrt(float((chance * (1 - chance)).sum())) / n
        tail = float(np.quantile(self.counts[self.counts > 0], 0.99)) if shares[1] else 0.0
        return Occupancy(*shares, sd, float(self.expected.sum() / n), float(self.counts.sum() / n), tail)


class Occupancy(NamedTuple):
    """Shares of the cells that are non-zero, and means of their counts: as the model expects, and as they are."""

    expected: float
    observed: float
    sd: float  # of the share that is expected
    expected_mean: float
    observed_mean: float
    quantile: float  # 99 % of the non-zero counts are at most this

    @property
    def is_misfit(self) -> bool:
        """Whether far more cells are expected to be non-zero than are, with a mean that is right.

        Fits of counts up to tens had ratios up to 2, those of counts up to thousands 4 and more. If the mean is wrong
        too, the fit has not got far.
        """
        far_off = self.expected > FAR_OFF * self.observed + 5 * self.sd
        return far_off and self.expected_mean < 2 * self.observed_mean


def fitted_cells(fit: FactorFit, n_cells: int = MOST_CELLS) -> Cells:
    """Return at most about so many cells of the data of a fit, without those that were left out of it."""
    rows = _evenly(fit.counts.sum(axis=1), _n_rows(fit.counts.shape, n_cells))
    unknown = None if fit.unknown is None else fit.unknown[rows]
    likelihood = fit.model.likelihood.of_rows(rows)
    given = fit.user_posterior.mean[rows], fit.counts[rows], unknown, likelihood
    return _cells(fit, given, None if fit.is_product else fit.fitted[rows], n_cells)


def given_cells(
    fit: FactorFit, rows: NewRows, known: NDArray[np.bool_], resources: Resources, n_cells: int = MOST_CELLS
) -> Cells:
    """Return at most about so many cells of other data; rows that are not `known` users of the fit are folded in."""
    chosen = _evenly(rows.counts.sum(axis=1), _n_rows(rows.counts.shape, n_cells))
    some, known = NewRows(rows.ids[chosen], rows.counts[chosen]), known[chosen]
    W, places = means_of(fit, some, known, resources)
    had = selected(some.counts, np.arange(len(W)), ~known) + selected(fit.fitted, places, known)
    return _cells(fit, (W, some.counts, None, fit.model.likelihood.of_some_rows(places, known)), had, n_cells)


def cheap_cells(fit: FactorFit) -> Cells:
    """Return so few cells that looking at them takes about a hundredth of the time of the fit."""
    return fitted_cells(fit, min(MOST_CELLS, max(LEAST_CELLS, fit.counts.nnz * len(fit.objective) // COST)))


def _cells(
    fit: FactorFit,
    given: tuple[Array, sp.csr_array, sp.csr_array | None, Likelihood],
    had: sp.csr_array | None,
    n_cells: int,
) -> Cells:
    """Return cells of some users, whose factors come from the counts that they `had`."""
    W, counts, unknown, likelihood = given
    columns = _evenly(fit.counts.sum(axis=0), min(len(fit.items), max(1, n_cells // max(len(W), 1))))
    μ = W.astype(np.float64) @ fit.item_posterior.mean[columns].T.astype(np.float64)
    if not fit.is_product and had is not None:
        others = fit.seen(had)[:, columns].toarray()
        μ = np.where(others > 0, others, μ)
    known = np.ones(μ.shape, bool) if unknown is None else unknown[:, columns].toarray() == 0
    y = formed(counts[:, columns], fit.input).toarray().astype(np.float64)
    users, items = np.nonzero(known)
    return Cells(np.minimum(y[known], likelihood.most), μ[known], likelihood.at(users, columns[items]), users, items)


def _n_rows(shape: tuple[int, int], n_cells: int) -> int:
    return min(shape[0], max(math.isqrt(n_cells), n_cells // shape[1]))


def _evenly(totals: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return n positions, in order, spread evenly over the ranks of the totals.

    >>> _evenly(np.array([5, 1, 4, 2, 3]), 3)  # those of 1, 3 and 5
    array([0, 1, 4])
    """
    ranks = (np.arange(n) + 0.5) * (len(totals) / max(n, 1))
    return np.sort(np.argsort(totals, kind="stable")[ranks.astype(np.intp)])
