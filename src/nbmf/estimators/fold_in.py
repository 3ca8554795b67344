"""Folding in: the factors of new rows, while the other side of the factorization stays as it is.

A user's posterior depends on the other users only through the items. With the items fixed, the user's own update, Eqs.
(update_c), (update_a), (update_w), repeated until nothing moves, yields the factors that a fit would; each repetition
raises the row's part of the objective. Items are the mirror image: rows and columns swap.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, FoldJob, Folds, Given, Sums, find_device
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.fold import fold_rows
from nbmf.backends.cpu.passes import Cpu, fold_parameters
from nbmf.backends.reference import Reference
from nbmf.backends.threads import hand_out
from nbmf.data.interactions import check_range, formed
from nbmf.model.factors import Array, Factor, Point, Prior, largest
from nbmf.model.likelihood import Likelihood
from nbmf.model.ties import Ties

MOST_STEPS = 1000
FOLD_COST = 400  # folding a row in takes about as long as so many times its products
SHARE = 64  # rows that a thread takes at a time
LEAST_SUM = float(np.finfo(np.float32).tiny)  # least Σ_k⟨w⟩ of a row whose prior has its own rate, as in a fit


class Resources(NamedTuple):
    """Where answers are computed, and how exactly new rows are folded in."""

    backend: str = "cpu"
    n_threads: int | None = None
    tol: float = 1e-5

    def device(self, n_rows: int, work: float) -> Any:
        """Return the GPU that should handle so many rows and products, if any."""
        return find_device(self.backend, work, n_rows)


@dataclass(frozen=True)
class FixedSide:
    """The side that stays while rows of the other one are folded in: its factor and ties, columns × K.

    The likelihood is that of the new rows, which see counts in the form `input`. The prior is theirs, too; if it comes
    with rates per row, each new row learns its own.
    """

    factor: Factor
    likelihood: Likelihood
    prior: Prior
    ties: Ties | None
    input: str = "counts"

    @cached_property
    def clusters(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The cluster of each column; the size of each cluster and the sum of its columns' means."""
        means = self.factor.mean.astype(np.float64)
        if not self.likelihood.has_exposure:  # one cluster will do
            return np.zeros(len(means), np.int64), np.array([float(len(means))]), means.sum(axis=0, keepdims=True)
        if self.ties is None:
            return np.arange(len(means)), np.ones(len(means)), means
        sums = np.array([means[members].sum(axis=0) for members in self.ties.members])
        return self.ties.labels.astype(np.int64), np.array([float(len(m)) for m in self.ties.members]), sums

    def work(self, counts: sp.csr_array) -> float:
        """Return about how many products of a matrix product take as long as folding these rows in."""
        every_cell = self.ties is None and self.likelihood.has_exposure
        cells = float(counts.shape[0]) * counts.shape[1] if every_cell else float(counts.nnz)
        return FOLD_COST * cells * self.factor.dimensions[1]


def fold_in(
    counts: sp.csr_array,
    side: FixedSide,
    resources: Resources = Resources(),  # noqa: B008 (a value)
    *,
    start: Array | None = None,
    unknown: sp.csr_array | None = None,
) -> Factor:
    """Return the factors of rows of counts, computed wherever that is fastest; `unknown` stores cells to leave out."""
    check_range(counts, side.factor.mean.dtype)
    prepared = Counts.of(formed(counts, side.input), np.dtype(np.float64), unknown).by_user
    until = Steps(resources.tol)
    if resources.backend == "reference":
        return fold_plainly(prepared, side, until, start=start).factor
    device = resources.device(prepared.shape[0], side.work(prepared))
    if device is not None:
        return fold_on(device, prepared, side, until, start=start).factor
    return fold_compiled(prepared, side, until, start=start, n_threads=resources.n_threads).factor


class Steps(NamedTuple):
    """When a row is done: when an update changes it by less than `tol`, relatively, or after `most` updates."""

    tol: float
    most: int = MOST_STEPS


def fold_compiled(
    counts: sp.csr_array, side: FixedSide, until: Steps, *, start: Array | None = None, n_threads: int | None = None
) -> Folds:
    """Fold rows in on the threads of this machine; a negative count is an unknown cell, which is left out."""
    n_rows, dtype = counts.shape[0], side.factor.mean.dtype
    mean = _start(counts, side, start)
    allocated, exposed = np.empty_like(mean), np.empty_like(mean)
    rates, steps = np.array(np.broadcast_to(np.ravel(side.prior.rate)[:1], n_rows), np.float64), np.empty(n_rows, int)
    settings = (side.factor.is_posterior, float(side.prior.shape), rates, side.prior.per_row)
    stop = (
        float(LEAST_INTENSITY[np.dtype(np.float64)]),
        LEAST_SUM,
        largest(dtype),
        stopping_tolerance(until.tol, dtype),
        until.most,
    )
    arguments = (
        counts.indptr.astype(np.int64),
        counts.indices.astype(np.int64),
        counts.data.astype(np.float64),
        *fold_parameters(side.likelihood),
        np.ascontiguousarray(side.factor.geometric_mean),
        np.ascontiguousarray(side.factor.mean),
        *side.clusters,
    )

    def fold_share(first: int) -> None:
        rows = first, min(first + SHARE, n_rows)
        fold_rows(*rows, *arguments, *settings, *stop, mean, allocated, exposed, steps)

    hand_out(fold_share, range(0, n_rows, SHARE), n_threads)
    return Folds(_factor_of(side, mean, allocated, exposed, rates), steps)


def fold_on(device: Any, counts: sp.csr_array, side: FixedSide, until: Steps, *, start: Array | None = None) -> Folds:
    """Fold rows in on a GPU, to the same factors up to the tolerance and rounding."""
    fixed = (side.factor, side.likelihood, side.prior, side.ties)
    least = stopping_tolerance(until.tol, side.factor.mean.dtype)
    begin = _start(counts, side, start)
    folds: Folds = device.fold(FoldJob(counts, *fixed, start=begin, least_sum=LEAST_SUM, tol=least, most=until.most))
    return folds


def fold_plainly(counts: sp.csr_array, side: FixedSide, until: Steps, *, start: Array | None = None) -> Folds:
    """Fold rows in by the passes of the `reference` backend, with dense arrays: what the others mean."""
    backend, dtype = Reference(), side.factor.mean.dtype
    data, mean = Counts.of(counts, np.dtype(np.float64)), _start(counts, side, start)
    rows: Factor = Point(mean)
    exposed, allocated, steps = np.empty_like(mean), np.empty_like(mean), np.zeros(len(mean), int)
    rates = np.array(np.broadcast_to(np.ravel(side.prior.rate)[:1], len(mean)), np.float64)
    settled = np.zeros(len(mean), bool)
    while steps.max(initial=0) < until.most and not settled.all():
        sums = backend.expect(data, Given(rows, side.factor, side.likelihood, side.ties)).user_sums
        if side.prior.per_row and side.factor.is_posterior:
            own = side.prior.shape * mean.shape[1] / np.maximum(rows.mean.sum(axis=1), LEAST_SUM)
            rates = np.where(settled, rates, own)
        posterior = side.factor.is_posterior
        prior = Prior(side.prior.shape, rates[:, None])
        rows = backend.conditional(prior, sums) if posterior else backend.quotient(rows, sums)
        change, moving = np.abs(rows.mean - mean).sum(axis=1), ~settled
        mean[moving], allocated[moving], exposed[moving] = (
            values[moving] for values in (rows.mean, sums.allocated, np.broadcast_to(sums.exposed, mean.shape))
        )
        steps[moving] += 1
        settled |= change <= stopping_tolerance(until.tol, dtype) * rows.mean.sum(axis=1)
    return Folds(_factor_of(side, mean, allocated, exposed, rates), steps)


def stopping_tolerance(tol: float, dtype: np.dtype[Any]) -> float:
    """Return a fit's tolerance for the relative change of a row, but not less than rounding can reach."""
    return min(max(float(tol), 4 * float(np.finfo(dtype).eps)), 1.0)  # a fit may ask for one sweep by tol=inf


def even_start(counts: sp.csr_array, side: FixedSide) -> NDArray[np.float64]:
    """Return a start whose components are all alike and whose expected total is the row's total."""
    totals = np.maximum(counts.sum(axis=1), 1.0)
    size = side.factor.total
    least = totals / largest(np.dtype(np.float64))  # so that the quotient is finite
    start = totals / np.maximum(size, least) if size > 0 else np.ones(len(totals))
    return np.repeat(np.asarray(start, np.float64)[:, None], side.factor.mean.shape[1], axis=1)


def _start(counts: sp.csr_array, side: FixedSide, start: Array | None) -> NDArray[np.float64]:
    return np.array(even_start(counts, side) if start is None else start, np.float64, order="C")


def _factor_of(side: FixedSide, mean: Array, allocated: Array, exposed: Array, rates: NDArray[np.float64]) -> Factor:
    dtype = side.factor.mean.dtype
    if not side.factor.is_posterior:
        return Point(np.minimum(mean, largest(dtype)).astype(dtype))
    rate = rates[:, None] if side.prior.per_row else side.prior.rate
    return Cpu(1).conditional(Prior(side.prior.shape, rate), Sums(allocated.astype(dtype), exposed.astype(dtype)))
