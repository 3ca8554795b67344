"""Slope and curvature of the log-evidence in α, by which a concentration is learned, in double precision.

The formulas are written over an array library, NumPy (`NUMPY`) or torch; each backend adds them up in its own way.
"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from nbmf.backends.threads import cut_evenly
from nbmf.model.ties import Ties

Array = Any  # of the library in question
Pair = tuple[Array, Array]
Concentrations = tuple[Array, Array | None]

BLOCK_WORK = 1 << 18  # stored cells and shared exposures per block, for which there are some ten arrays of doubles
SHAPES = {"all": (), "user": (-1, 1), "item": (1, -1)}  # of the sums, by the cells that belong together
NUMPY = SimpleNamespace(where=np.where, maximum=np.maximum, log=np.log, digamma=digamma, polygamma=polygamma)


def of_stored(y: Array, excess: Array, α: Array, shared: Array | None, eps: float, library: Any) -> Pair:
    """Return ∂/∂α and ∂²/∂α² of the log-evidence of stored cells; a negative y is an unknown cell.

    If exact (`shared` is None) they are what a cell adds to that of a count of 0, which is summed by tiles: `excess` is
    y/(α+μ), or −α/(α+μ) of an unknown cell. If tied they are those of the counts alone, and ⟨a⟩ = `excess` + `shared`,
    which has no digits below `eps` of `shared`, the precision in which `excess` was stored.
    """
    where, known = library.where, y > 0
    if shared is None:
        e = where(known, 1.0, -excess)
        slope = where(known, -excess, -(library.log(e) + 1 - e))
        curvature = where(known, excess**2 / where(known, y, 1.0), -((1 - e) ** 2) / α)
    else:
        a = where(known, library.maximum(excess + shared, eps * shared), 1.0)
        denominator = where(known, (α + y) / a, 1.0)  # α + μ
        slope = where(known, 1 - a - library.log(denominator / α), 0.0)
        curvature = where(known, (denominator - α) / (α * denominator) - (1 - a) / denominator, 0.0)
    higher = α + where(known, y, 0.0)
    # and those of ln Γ(α + y) − ln Γ(α)
    slope = slope + library.digamma(higher) - library.digamma(α)
    return slope, curvature + library.polygamma(1, higher) - library.polygamma(1, α)


def of_unseen(unseen: Array, n_unseen: Array, α: Array, library: Any) -> Pair:
    """Return the sums over each user's unseen cells, n_unseen in each cluster, which share A_uc = `unseen`."""
    A = library.where(n_unseen > 0, unseen, 1.0)
    slope, curvature = n_unseen * (library.log(A) + 1 - A), n_unseen * (1 - A) ** 2
    return slope.sum(axis=1), curvature.sum(axis=1) / α


def sum_slopes(
    counts: sp.csr_array, excess: Array, concentrations: Concentrations, tied: tuple[Ties | None, Array], group: str
) -> NDArray[np.float64]:
    """Return ∂/∂α above ∂²/∂α² for "all" cells, each "user" or each "item"; without ties, of the stored cells alone."""
    (n_users, n_items), (by_user, by_item), (ties, all_unseen) = counts.shape, concentrations, tied
    sums = np.zeros((2, {"all": 1, "user": n_users, "item": n_items}[group]))
    n_clusters = 0 if ties is None else ties.n_clusters
    work = counts.indptr + n_clusters * np.arange(n_users + 1, dtype=np.int64)
    for start, stop in pairwise(cut_evenly(work, max(1, int(work[-1]) // BLOCK_WORK))):
        cells = slice(counts.indptr[start], counts.indptr[stop])
        rows = np.repeat(np.arange(start, stop), np.diff(counts.indptr[start : stop + 1]))
        columns, shared = counts.indices[cells], None
        if ties is not None:
            labels, unseen = ties.labels, all_unseen[start:stop].astype(np.float64)
            shared = unseen[rows - start, labels[columns]]
            n_stored = np.bincount((rows - start) * n_clusters + labels[columns], minlength=unseen.size)
            n_unseen = np.bincount(labels, minlength=n_clusters) - n_stored.reshape(unseen.shape)
            found = np.array(of_unseen(unseen, n_unseen, by_user[start:stop], NUMPY))
            if group == "all":
                sums += found.sum(axis=1, keepdims=True)
            else:
                sums[:, start:stop] += found
        α = by_user[rows] if by_item is None else by_item[columns]
        y, own = counts.data[cells].astype(np.float64), excess[cells].astype(np.float64)
        groups = {"all": np.zeros_like(rows), "user": rows, "item": columns}[group]
        known, eps = y > 0, float(np.finfo(excess.dtype).eps)
        if not known.all():
            if shared is None:
                sums += [
                    np.bincount(groups[~known], each, sums.shape[1]) for each in of_unknown(own[~known], α[~known])
                ]
            y, own, α, groups = y[known], own[known], α[known], groups[known]
            shared = None if shared is None else shared[known]
        sums += [np.bincount(groups, each, sums.shape[1]) for each in of_stored(y, own, α, shared, eps, NUMPY)]
    return sums


def of_unknown(excess: Array, α: Array) -> Pair:
    """Return what `of_stored` does for unknown cells, which need no Γ functions, with exact exposures."""
    return -(np.log(-excess) + 1 + excess), -((1 + excess) ** 2) / α
