"""Log-probabilities of counts under a likelihood with given intensities, summed over whole rows of cells.

The cells of a row are all but those of the train counts. Each has the probability of a count of 0, but for those that
have a count; so one pass over all intensities, in blocks of rows, and one over the counts give the sum.
"""

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.kernels import compiled, sum_log1p
from nbmf.estimators.ranking import Report, walk, with_sorted_rows
from nbmf.estimators.scores import Rows, Scores
from nbmf.model.likelihood import Likelihood, log_probability

Array = NDArray[np.float64]


def log_probabilities(
    likelihood: Likelihood,
    scores: Scores,
    counts: sp.csr_array,
    train: sp.csr_array,
    *,
    n_threads: int | None = None,
    report: Report = None,
) -> Array:
    """Return Σ ln p(y) over the cells of each row that `train` does not store; −∞ where a count is impossible.

    The `scores` are the intensities. No count is in a cell of `train`; what is not stored is a 0.
    """
    n_rows, ordered = scores.n_users, with_sorted_rows(counts)
    at_zero, intensity = Zeros(likelihood, train, n_rows), Entries(ordered)
    walk(scores, np.arange(n_rows), [at_zero, intensity], n_threads=n_threads, report=report)
    row = np.repeat(np.arange(n_rows), np.diff(ordered.indptr))
    count, μ, of_cells = ordered.data.astype(np.float64), intensity.scores, likelihood.at(row, ordered.indices)
    with np.errstate(divide="ignore"):
        gained = log_probability(of_cells, count, μ) - log_probability(of_cells, 0.0, μ)
    return np.asarray(at_zero.totals + np.bincount(row, gained, n_rows))


class Entries:
    """A visit that keeps the scores of the cells stored in `cells`, users × items."""

    def __init__(self, cells: sp.csr_array) -> None:
        self.cells, self.scores = cells, np.zeros(cells.nnz)

    def __call__(self, start: int, rows: Rows, left: int, scores: NDArray[Any]) -> None:
        """Take in whole rows of scores."""
        pick_rows(scores, rows, self.cells.indptr, self.cells.indices, self.scores)


class Zeros:
    """A visit that sums the log-probability of a count of 0 over each user's cells not in train."""

    def __init__(self, likelihood: Likelihood, train: sp.csr_array, n_users: int) -> None:
        self.likelihood, self.train, self.totals = likelihood, train, np.zeros(n_users)

    def __call__(self, start: int, rows: Rows, left: int, scores: NDArray[Any]) -> None:
        """Take in whole rows of scores."""
        check_intensities(scores)
        concentration: Any = self.likelihood.concentration
        if self.likelihood.has_exposure and (self.likelihood.varies or math.isnan(concentration)):
            μ, unseen = scores[:, : self.train.shape[1]].astype(np.float64), self.train[rows].toarray() == 0
            logs = self.likelihood.of_rows(rows).log_evidence(0.0, μ)
            self.totals[start : start + len(rows)] = np.sum(logs, axis=1, where=unseen)
            return
        seen = self.train.indptr, self.train.indices
        settings = concentration, float(scores.max(initial=0)) / concentration < 1e38
        sum_log_zeros(scores, self.train.shape[1], rows, *seen, *settings, self.totals[start : start + len(rows)])


def check_intensities(scores: NDArray[Any]) -> None:
    """Raise ValueError unless all scores can be the mean of a count."""
    least = scores.min(initial=np.inf)
    if not least >= 0:
        raise ValueError(f"the model has the score {least}; the mean of a count is a number from 0")


@compiled
def pick_rows(scores, rows, indptr, indices, found):  # type: ignore[no-untyped-def]
    """Copy the scores of a csr matrix's entries to where those stand among its data."""
    for n in range(len(rows)):
        for p in range(indptr[rows[n]], indptr[rows[n] + 1]):
            found[p] = scores[n, indices[p]]


@compiled
def sum_log_zeros(  # type: ignore[no-untyped-def]
    scores, n_items, rows, indptr, indices, concentration, moderate, totals
):  # fmt: skip
    """For each user, Σ ln p(0 | μ) over all cells but those of the csr matrix: −μ, or −α ln(1 + μ/α)."""
    poisson, scale = concentration == np.inf, 1.0 / concentration
    for n in range(len(rows)):
        row, total = scores[n][:n_items], 0.0
        seen = indices[indptr[rows[n]] : indptr[rows[n] + 1]]
        if poisson:
            for j in range(len(row)):
                total += np.float64(row[j])
            for p in range(len(seen)):
                total -= np.float64(row[seen[p]])
            totals[n] = -total
        else:
            totals[n] = -concentration * (sum_log1p(row, scale, moderate) - sum_log1p(row[seen], scale, moderate))
