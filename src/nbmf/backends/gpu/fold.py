"""Folding in on the device: the updates of many rows at once, again and again, until none of them moves.

As in cpu/fold.py everything is in double precision, but for products over every cell (exact exposures), which are of
the other side's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nbmf.backends import FoldJob, Folds
from nbmf.backends.gpu.arrays import RowCounts, to_host
from nbmf.backends.threads import cut_within
from nbmf.model.factors import Gamma, Point

Tensor = Any

BATCH_BYTES = 1 << 31  # of the device's memory for the rows of a batch
CELL_BYTES = 64  # of a non-zero: its column, count, share and excess, and what making them takes
TABLES = 20  # arrays of rows × K that an update holds, about
CLUSTER_BYTES = 32  # of a row and cluster


class Rows(NamedTuple):
    """Rows on the device as they are after some updates.

    Beside the moments, rows × K, there are the sums that the last update was made of, rows × K, and in rows × 1 the
    rate of each row's prior, its α and the number of its updates.
    """

    mean: Tensor
    geometric_mean: Tensor
    allocated: Tensor
    exposed: Tensor
    rates: Tensor
    concentrations: Tensor
    steps: Tensor

    @classmethod
    def at(cls, start: Tensor, rate: float, concentrations: Tensor) -> Rows:
        """Return rows at a start, which serves as their geometric means, too."""
        rates = torch.full_like(start[:, :1], rate)
        nothing = torch.zeros_like(start)
        steps = torch.zeros(len(start), 1, dtype=torch.int64, device=start.device)
        return cls(start, start, nothing, nothing, rates, concentrations.expand(len(start), 1), steps)

    def take(self, which: Tensor) -> Rows:
        """Return some of the rows."""
        return Rows(*(values[which] for values in self))


def settle(counts: RowCounts, rows: Rows, update: Callable[[RowCounts, Rows], Rows], tol: float, most: int) -> Rows:
    """Update all rows until each changes by less than `tol` of its size, or `most` times.

    A row that has settled stays as it is; once half of the rows have, the others go on alone.
    """
    found = [torch.empty_like(values, memory_format=torch.contiguous_format) for values in rows]
    at = torch.arange(len(rows.mean), device=rows.mean.device)
    moving = torch.ones_like(rows.steps, dtype=torch.bool)
    n_moving = len(at)
    while n_moving:
        after = update(counts, rows)
        change, size = (after.mean - rows.mean).abs().sum(1, keepdim=True), after.mean.sum(1, keepdim=True)
        rows = Rows(*(torch.where(moving, new, old) for new, old in zip(after, rows, strict=True)))
        moving = moving & (change > tol * size) & (size > 0) & (rows.steps < most)
        n_moving = int(moving.sum())
        if 2 * n_moving <= len(at):
            for whole, part in zip(found, rows, strict=True):
                whole.index_copy_(0, at, part)
            keep = moving.ravel().nonzero().ravel()
            counts, rows, at, moving = counts.take(keep), rows.take(keep), at[keep], moving[keep]
    return Rows(*found)


def fetch(rows: Rows, job: FoldJob, passes: Any, own: Any) -> list[NDArray[Any]]:
    """Bring rows to the host: their steps, and their means or all of a posterior's arrays, of their own type."""
    if not isinstance(job.factor, Gamma):
        return [to_host(values) for values in (rows.steps[:, 0], rows.mean.to(own))]
    sums = (rows.allocated.to(own), rows.exposed.to(own))
    moments = passes.gamma_moments(float(job.prior.shape), rows.rates, *sums)
    return [to_host(values) for values in (rows.steps[:, 0], rows.rates, *moments)]


def joined(parts: list[list[NDArray[Any]]], job: FoldJob) -> Folds:
    """Put the rows of several batches below each other."""
    steps, *arrays = (np.concatenate(values) for values in zip(*parts, strict=True))
    if not isinstance(job.factor, Gamma):
        return Folds(Point(arrays[0]), steps)
    rates, mean, geometric_mean, exposed, *of_rows = arrays
    rate = rates if np.ndim(job.prior.rate) else job.prior.rate
    return Folds(Gamma(mean, geometric_mean, exposed, rate, *of_rows), steps)


def batches(indptr: NDArray[Any], n_components: int, n_clusters: int) -> Iterator[slice]:
    """Stretches of rows that together need at most BATCH_BYTES, or one row."""
    of_row = 8 * TABLES * n_components + CLUSTER_BYTES * n_clusters
    needed = CELL_BYTES * indptr.astype(np.int64) + of_row * np.arange(len(indptr), dtype=np.int64)
    return (slice(start, stop) for start, stop in pairwise(cut_within(needed, BATCH_BYTES)))
