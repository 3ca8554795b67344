"""Tied exposures: the zero cells of a user within one cluster of items share one exposure.

Only the zeros make the exposures a dense matrix. Let all zero cells of user u in cluster c share one q(a): that is a
smaller variational family, so the objective stays a lower bound, and its optimum sets their intensity to the mean m_uc
over those cells. Passes then cost O((nnz + U·C)K) instead of O(U·I·K). One cluster per item is the exact algorithm.

Each item joins the nearest of C centres, which are items chosen far apart: the start of k-means. Iterating further
gained nothing (docs/paper.md).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

RETIED_IN = (1, 2, 4, 8, 16, 32)
"""Sweeps that end with new clusters of the items; later the clusters are frozen, so the objective can converge."""

SAMPLED = 8  # items drawn for each centre
DISTANCES = 1 << 21  # from centres that are held at a time


@dataclass(frozen=True)
class Ties:
    """A partition of the items: `labels[i]` is the cluster of item i."""

    labels: NDArray[np.int32]
    n_clusters: int

    @cached_property
    def members(self) -> list[NDArray[np.intp]]:
        """The items of each cluster."""
        order = np.argsort(self.labels, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.labels, minlength=self.n_clusters))[:-1])


def tie_items(item_means: NDArray[Any], n_clusters: int, rng: np.random.RandomState) -> Ties:
    """Cluster the items by their mean factors: similar ⟨h_i⟩ mean similar intensities for every user."""
    n_items = len(item_means)
    if n_clusters >= n_items:
        return Ties(np.arange(n_items, dtype=np.int32), n_items)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 (slow to import)

    with threadpool_limits(1):  # sums depend on the number of threads
        rows = item_means - item_means.mean(axis=0)  # differences of distances then keep more digits
        drawn, weights = draw_far(np.einsum("ik,ik->i", rows, rows), n_clusters, rng)
        centres = rows[drawn[far_apart(rows[drawn], weights, rng.random_sample(n_clusters))]]
        step = max(1, DISTANCES // n_clusters)
        blocks = (rows[start : start + step] for start in range(0, n_items, step))
        return Ties(np.concatenate([nearest(block, centres) for block in blocks]), n_clusters)


def draw_far(
    distances: NDArray[Any], n_clusters: int, rng: np.random.RandomState
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Sample candidates for centres, half of them in proportion to their squared distances from the mean.

    Those are the few items of large intensities, where ties matter most. The weights say how many each stands for.
    """
    n_items, n_drawn = len(distances), SAMPLED * n_clusters
    if n_drawn >= n_items:
        return np.arange(n_items), np.ones(n_items)
    distances = distances.astype(np.float64)
    chance = 0.5 / n_items + 0.5 * distances / max(distances.sum(), np.finfo(np.float64).tiny)
    upto = np.cumsum(chance)
    found = np.minimum(np.searchsorted(upto, rng.random_sample(n_drawn) * upto[-1]), n_items - 1)
    drawn, times = np.unique(found, return_counts=True)
    return drawn, times / chance[drawn]


def far_apart(rows: NDArray[Any], weights: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.intp]:
    """Draw rows one after another, in proportion to weight × squared distance from those before: k-means++."""
    rows = rows.astype(np.float64)
    lengths = np.einsum("ik,ik->i", rows, rows)
    found, left, distances = np.empty(len(draws), np.intp), weights, np.full(len(rows), np.inf)
    for n, draw in enumerate(draws):
        upto = np.cumsum(left)
        found[n] = min(np.searchsorted(upto, draw * upto[-1]), len(rows) - 1)
        distances = np.minimum(distances, lengths - 2 * (rows @ rows[found[n]]) + lengths[found[n]])
        left = weights * np.maximum(distances, 0)  # below 0 is rounding
    return found


def nearest(rows: NDArray[Any], centres: NDArray[Any]) -> NDArray[np.int32]:
    """Return the number of each row's nearest centre."""
    lengths = np.einsum("ck,ck->c", centres, centres)
    labels: NDArray[np.int32] = np.argmin(lengths - 2 * rows @ centres.T, axis=1).astype(np.int32)
    return labels
