"""Folding in on the device: the updates of many rows at once, again and again, until none of them moves.

As in cpu/fold.py everything is in double precision, but for products over every cell (exact exposures), which are of
the other side's own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nbmf.backends import Folds
from nbmf.backends.gpu.arrays import RowCounts, to_host
from nbmf.backends.threads import cut_within
from nbmf.model.factors import Factor, Gamma, Point, Prior

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


def fetch(rows: Rows, factor: Factor, prior: Prior, passes: Any, own: Any) -> Folds:
    """Bring rows to the host, as posteriors or points of their own type like those of the side that stayed."""
    steps = to_host(rows.steps[:, 0])
    if not isinstance(factor, Gamma):
        return Folds(Point(to_host(rows.mean.to(own))), steps)
    has_rates = np.ndim(prior.rate) > 0
    rates = rows.rates if has_rates else rows.rates[:1]
    moments = passes.gamma_moments(float(prior.shape), rates, rows.allocated.to(own), rows.exposed.to(own))
    mean, geometric_mean, exposed, *of_rows = map(to_host, moments)
    return Folds(Gamma(mean, geometric_mean, exposed, to_host(rates) if has_rates else prior.rate, *of_rows), steps)


def joined(parts: list[Folds]) -> Folds:
    """Put the rows of several batches below each other."""
    steps = np.concatenate([part.steps for part in parts])
    if len(parts) == 1:
        return parts[0]
    factors: list[Any] = [part.factor for part in parts]
    if not isinstance(factors[0], Gamma):
        return Folds(Point(np.concatenate([factor.mean for factor in factors])), steps)
    arrays = {
        field.name: np.concatenate([getattr(factor, field.name) for factor in factors])
        for field in fields(Gamma)
        if np.ndim(getattr(factors[0], field.name))
    }
    return Folds(replace(factors[0], **arrays), steps)


def batches(indptr: NDArray[Any], n_components: int, n_clusters: int) -> Iterator[slice]:
    """Stretches of rows that together need at most BATCH_BYTES, or one row."""
    of_row = 8 * TABLES * n_components + CLUSTER_BYTES * n_clusters
    needed = CELL_BYTES * indptr.astype(np.int64) + of_row * np.arange(len(indptr), dtype=np.int64)
    return (slice(start, stop) for start, stop in pairwise(cut_within(needed, BATCH_BYTES)))
