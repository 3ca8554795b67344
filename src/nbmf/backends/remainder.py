"""What is left of a sum over all cells once those over some of them are taken off, where hardly anything may be.

The log-likelihood of a fit to whether there is a count, Σ ln(e^λ − 1) over the counts less Σ μ over all cells, is made
of two such sums: λ and μ cancel in a cell with a count. Users who took everything may have any λ, however large,
and rounding would be what remains of it.
"""

from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, LEFT_OVER, Array, Given
from nbmf.backends.counts import Counts
from nbmf.backends.threads import cut_within, one_blas_thread

CELLS = 1 << 22  # summed together where little is left of a row
ENTRIES = 1 << 22  # of an array of non-zeros × K
LARGE = 8.0  # Σ log_events, relative to the size of the counts; a sum of λ that stand for chances of 1 − 10⁻⁶


def sum_known(unknown: sp.csr_array, means: Array) -> NDArray[np.float64]:
    """Sum the other side's means over each row's known cells: all of them less the unknown ones.

    Where next to nothing is left of a sum, rounding is, so the known cells are summed themselves.
    """
    values = means.astype(np.float64)
    total = values.sum(axis=0)
    sums: NDArray[np.float64] = total - unknown @ values
    little = np.flatnonzero(np.any(sums < LEFT_OVER * total, axis=1))
    with one_blas_thread():
        for rows in np.array_split(little, -(-len(little) * len(means) // CELLS) or 1):
            sums[rows] = (1.0 - unknown[rows].toarray()) @ values
    return sums


def cancels(counts: Counts, log_events: float) -> bool:
    """Return whether Σ ln(e^λ − 1) is so large that rounding may show in its difference from Σ μ."""
    return not log_events <= LARGE * counts.size


def log_evidence_of_cells(counts: Counts, given: Given) -> NDArray[np.float64]:
    """Return each user's Σ log_events − Σ μ in double precision, λ and μ taken off each other cell by cell."""
    (users, items, likelihood, _), by_user = given, counts.by_user
    W, H = users.mean, items.mean
    stored = sp.csr_array((np.ones(by_user.nnz), by_user.indices, by_user.indptr), shape=by_user.shape)
    found: NDArray[np.float64] = -(W * sum_known(stored, H)).sum(axis=1)
    for start, stop in pairwise(cut_within(by_user.indptr.astype(np.int64) * W.shape[1], ENTRIES)):
        cells = slice(by_user.indptr[start], by_user.indptr[stop])
        rows = np.repeat(np.arange(start, stop), np.diff(by_user.indptr[start : stop + 1]))
        columns, count = by_user.indices[cells], by_user.data[cells]
        μ = λ = _products(W[rows], H[columns])
        if users.geometric_mean is not users.mean or items.geometric_mean is not items.mean:
            λ = _products(users.geometric_mean[rows], items.geometric_mean[columns])
        of_cells = likelihood.log_events(count, np.maximum(λ, LEAST_INTENSITY[W.dtype])) - μ
        found += np.bincount(rows, np.where(count > 0, of_cells, 0.0), len(W))
    return found


def _products(rows: Array, columns: Array) -> NDArray[np.float64]:
    return np.asarray(np.einsum("pk,pk->p", rows.astype(np.float64), columns.astype(np.float64)))
