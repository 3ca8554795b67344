"""Slope and curvature of the log-evidence in α, by which a concentration is learned: NumPy, some users at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import digamma, polygamma

from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]

BLOCK_WORK = 1 << 18  # stored cells, and shared exposures, for which there are some ten arrays of doubles at a time


def sum_slopes(
    counts: sp.csr_array,
    law: Likelihood,
    ties: Ties | None,
    excess: Array,
    unseen: Array | None,
    group: str,
) -> NDArray[np.float64]:
    """∂/∂α above ∂²/∂α² of the log-evidence, for "all" cells, each "user" or each "item".

    `excess` and `unseen` are those of `cpu.SparseExpectation`. If exact, only what stored cells differ by from cells
    with a count of 0: those are summed by tiles.
    """
    n_users, n_items = counts.shape
    sums = np.zeros((2, {"all": 1, "user": n_users, "item": n_items}[group]))
    for start, stop in _blocks(counts.indptr, 0 if unseen is None else unseen.shape[1]):
        cells = slice(counts.indptr[start], counts.indptr[stop])
        rows = np.repeat(np.arange(start, stop), np.diff(counts.indptr[start : stop + 1]))
        columns, y, more = counts.indices[cells], counts.data[cells].astype(np.float64), excess[cells].astype(float)
        α = np.broadcast_to(np.asarray(law.at(rows, columns).concentration, np.float64), len(rows))
        if ties is None or unseen is None:
            found = _of_stored_exact(y, more, α)
        else:
            found = _of_stored_tied(y, more + unseen[rows, ties.labels[columns]], α)
            of_users = np.broadcast_to(np.asarray(law.concentration, np.float64), (n_users, 1))[start:stop, 0]
            places = (rows - start) * ties.n_clusters + ties.labels[columns]
            of_unseen = _of_unseen_tied(unseen[start:stop], places, ties, of_users)
            sums[:, slice(None) if group == "all" else slice(start, stop)] += (
                np.sum(of_unseen, axis=1, keepdims=True) if group == "all" else of_unseen
            )
        groups = {"all": np.zeros_like(rows), "user": rows, "item": columns}[group]
        sums += [np.bincount(groups, values, sums.shape[1]) for values in found]
    return sums


def _blocks(indptr: NDArray[Any], n_clusters: int) -> Iterator[tuple[int, int]]:
    """Cut the users into stretches of about equal work."""
    work = indptr + n_clusters * np.arange(len(indptr), dtype=np.int64)
    n_blocks = max(1, int(work[-1]) // BLOCK_WORK)
    yield from pairwise(np.unique(np.searchsorted(work, np.linspace(0, work[-1], n_blocks + 1))).tolist())


def _of_stored_exact(y: Array, excess: Array, α: Array) -> Pair:
    """`excess` is y/(α+μ) of a count; of an unknown cell it is −α/(α+μ), and all that was added for it goes."""
    known = y > 0
    e = np.where(known, 1.0, -excess)
    slope = np.where(known, -excess, -(np.log(e) + 1 - e))
    curvature = np.where(known, excess**2 / np.where(known, y, 1.0), -((1 - e) ** 2) / α)
    return _with_base(slope, curvature, np.where(known, y, 0.0), α)


def _of_stored_tied(y: Array, exposure: Array, α: Array) -> Pair:
    """Those of counts, ⟨a⟩ being `exposure`; unknown cells have none."""
    known = y > 0
    a = np.where(known, exposure, 1.0)
    denominator = np.where(known, (α + y) / a, 1.0)  # α + μ
    slope = np.where(known, 1 - a - np.log(denominator / α), 0.0)
    curvature = np.where(known, (denominator - α) / (α * denominator) - (1 - a) / denominator, 0.0)
    return _with_base(slope, curvature, np.where(known, y, 0.0), α)


def _with_base(slope: Array, curvature: Array, y: Array, α: Array) -> Pair:
    """Add those of ln Γ(α + y) − ln Γ(α)."""
    return slope + digamma(α + y) - digamma(α), curvature + polygamma(1, α + y) - polygamma(1, α)


def _of_unseen_tied(unseen: Array, stored: NDArray[Any], ties: Ties, α: Array) -> Pair:
    """Sums over each user's unseen cells, which share A_uc; `stored` are the places of the others in that table."""
    sizes = np.bincount(ties.labels, minlength=ties.n_clusters)
    n_unseen = sizes - np.bincount(stored, minlength=unseen.size).reshape(unseen.shape)
    A = np.where(n_unseen > 0, unseen, 1.0).astype(np.float64)
    slope, curvature = n_unseen * (np.log(A) + 1 - A), n_unseen * (1 - A) ** 2
    return slope.sum(axis=1), curvature.sum(axis=1) / α
