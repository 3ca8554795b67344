"""Tied exposures: the zero cells of a user within one cluster of items share one exposure.

Only the zeros make the exposures a dense matrix. Let all zero cells of user u in cluster c share one q(a): that is a
smaller variational family, so the objective stays a lower bound, and its optimum sets their intensity to the mean m_uc
over those cells. Passes then cost O((nnz + U·C)K) instead of O(U·I·K). One cluster per item is the exact algorithm.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

REFRESHED_AFTER = (1, 2, 4, 8, 16, 32)
"""Sweeps after which the items are clustered again; later the clusters are frozen, so the objective can converge."""


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
    """Cluster the items by k-means on their mean factors: similar ⟨h_i⟩ mean similar intensities for every user."""
    n_items = len(item_means)
    if n_clusters >= n_items:
        return Ties(np.arange(n_items, dtype=np.int32), n_items)
    from sklearn.cluster import KMeans  # noqa: PLC0415 (slow to import, and only tied exposures need it)
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    with threadpool_limits(1), warnings.catch_warnings():  # its sums depend on the number of threads
        # items without counts are all alike, so there may be fewer clusters than requested and some stay empty
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(n_clusters, n_init=1, max_iter=10, tol=0, random_state=rng).fit(item_means)
    return Ties(found.labels_.astype(np.int32), n_clusters)
