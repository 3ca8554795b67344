"""Folding in on the device: the updates of many rows at once, again and again, until none of them moves.

Everything is in double precision, but for products over every cell, which are of the other side's own type.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from nbmf.backends import FoldJob, Folds
from nbmf.backends.gpu.arrays import ResidentGamma, RowCounts, Tensor, to_host
from nbmf.backends.threads import cut_within
from nbmf.model.factors import Gamma, Point

BATCH_BYTES = 1 << 31  # of the device's memory for the rows of a batch
CELL_BYTES = 64  # of a non-zero: its column, count, share and excess, and what making them takes
TABLES = 20  # arrays of rows × K that an update holds, about
CLUSTER_BYTES = 32  # of a row and cluster


class Rows(NamedTuple):
    """Rows after some updates: moments and the sums of the last one, rows × K, prior rates, parameters of the
    likelihood (α or π, or what λ is multiplied by) and steps, rows × 1.
    """

    mean: Tensor
    geometric_mean: Tensor
    allocated: Tensor
    exposed: Tensor
    rates: Tensor
    parameters: Tensor
    steps: Tensor


def settle(counts: RowCounts, rows: Rows, update: Callable[[RowCounts, Rows], Rows], tol: float, most: int) -> Rows:
    """Update each row until it changes by less than `tol` of its size; when half are done, the others go on alone."""
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
            counts, rows = counts.take(keep), Rows(*(values[keep] for values in rows))
            at, moving = at[keep], moving[keep]
    return Rows(*found)


def fetch(rows: Rows, job: FoldJob, passes: Any, own: Any) -> Folds:
    """Bring rows to the host, of their own type."""
    steps, sums = to_host(rows.steps[:, 0]), (rows.allocated.to(own), rows.exposed.to(own))
    if not isinstance(job.factor, Gamma):
        return Folds(Point(to_host(rows.mean.to(own))), steps)
    rate = to_host(rows.rates) if np.ndim(job.prior.rate) else job.prior.rate
    moments = passes.gamma_moments(float(job.prior.shape), rows.rates, *sums)
    return Folds(ResidentGamma(moments, rate).on_host(), steps)


def joined(parts: list[Folds]) -> Folds:
    """Put the rows of several batches below each other."""
    factors: list[Any] = [part.factor for part in parts]
    by_field = ([getattr(factor, field.name) for factor in factors] for field in fields(factors[0]))
    values = (np.concatenate(each) if np.ndim(each[0]) else each[0] for each in by_field)
    return Folds(type(factors[0])(*values), np.concatenate([part.steps for part in parts]))


def batches(indptr: NDArray[Any], n_components: int, n_clusters: int) -> Iterator[slice]:
    """Stretches of rows that together need at most BATCH_BYTES, or one row."""
    of_row = 8 * TABLES * n_components + CLUSTER_BYTES * n_clusters
    needed = CELL_BYTES * indptr.astype(np.int64) + of_row * np.arange(len(indptr), dtype=np.int64)
    return (slice(start, stop) for start, stop in pairwise(cut_within(needed, BATCH_BYTES)))
