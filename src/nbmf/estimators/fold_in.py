"""Folding in: the factors of new rows, while the other side of the factorization stays as it is.

A user's posterior depends on the other users only through the items. With those held fixed, the user's own update, Eqs.
(update_c), (update_a), (update_w), repeated until nothing moves, gives the user the factors that a fit would; each
repetition raises the row's part of the objective. Items are the mirror: rows and columns swap.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import Device, FoldJob, Folds, Sums
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.fold import fold_rows
from nbmf.backends.cpu.passes import Cpu
from nbmf.backends.reference import Reference
from nbmf.model.factors import Factor, Gamma, Point, Prior
from nbmf.model.likelihood import Likelihood, Poisson
from nbmf.model.ties import Ties

Array = NDArray[np.floating[Any]]

MOST_STEPS = 1000
FOLD_COST = 400  # products of a matrix product that take as long as one of all updates of a row together, about
SHARE = 64  # rows that a thread takes at a time
LEAST_INTENSITY = 1e-250  # y/λ must stay finite when λ has underflown
LEAST_SUM = float(np.finfo(np.float32).tiny)  # of a row whose prior has a rate of its own, as in a fit


@dataclass(frozen=True)
class Held:
    """The side that stays, ready to fold rows of the other one in.

    factor : its posterior or points, columns × K
    likelihood : the law of the counts, with the concentrations of rows × columns
    prior : of the rows; its rates are the rows' own if it comes with an array of them
    ties : clusters of the columns whose unseen cells share an exposure; None: every cell has its own
    """

    factor: Factor
    likelihood: Likelihood
    prior: Prior
    ties: Ties | None

    @cached_property
    def clusters(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """For each column its cluster; for each cluster its size and the sum of its columns' means."""
        means = self.factor.mean.astype(np.float64)
        if isinstance(self.likelihood, Poisson):  # all exposures are 1: one cluster will do
            return np.zeros(len(means), np.int64), np.array([float(len(means))]), means.sum(axis=0, keepdims=True)
        if self.ties is None:
            return np.arange(len(means)), np.ones(len(means)), means
        sums = np.array([means[members].sum(axis=0) for members in self.ties.members])
        return self.ties.labels.astype(np.int64), np.array([float(len(m)) for m in self.ties.members]), sums

    @property
    def bayesian(self) -> bool:
        """Whether rows get gamma posteriors."""
        return isinstance(self.factor, Gamma)


def fold_in(
    counts: sp.csr_array,
    held: Held,
    *,
    tol: float,
    start: Array | None = None,
    max_steps: int = MOST_STEPS,
    n_threads: int | None = None,
) -> Folds:
    """Return the factors of rows of counts, the columns' factors held fixed.

    Parameters
    ----------
    counts : csr_array, rows × columns, canonical; a negative count is an unknown cell, which is left out
    tol : a row is done when an update changes it by less than this, relative to its size, or `max_steps` times
    start : rows × K of positive numbers; by default all components alike, with the row's total for expected count
    n_threads : None for one a core; changes nothing but the time
    """
    n_rows, dtype = counts.shape[0], held.factor.mean.dtype
    mean = np.array(even_start(counts, held) if start is None else start, np.float64, order="C")
    allocated, exposed = np.empty_like(mean), np.empty_like(mean)
    rates, steps = np.array(np.broadcast_to(np.ravel(held.prior.rate)[:1], n_rows), np.float64), np.empty(n_rows, int)
    settings = (held.bayesian, float(held.prior.shape), rates, np.ndim(held.prior.rate) > 0)
    stop = (LEAST_INTENSITY, LEAST_SUM, stopping_tolerance(tol, dtype), max_steps)
    arguments = (
        counts.indptr.astype(np.int64),
        counts.indices.astype(np.int64),
        counts.data.astype(np.float64),
        np.array(held.likelihood.concentration, np.float64, ndmin=2),
        np.ascontiguousarray(held.factor.geometric_mean),
        np.ascontiguousarray(held.factor.mean),
        *held.clusters,
    )
    call = partial(_fold_share, (*arguments, *settings, *stop, mean, allocated, exposed, steps), n_rows)
    _share_out(call, -(-n_rows // SHARE), n_threads)
    return Folds(_factor_of(held, mean, allocated, exposed, rates), steps)


def fold_in_on(
    device: Device,
    counts: sp.csr_array,
    held: Held,
    *,
    tol: float,
    start: Array | None = None,
    max_steps: int = MOST_STEPS,
) -> Folds:
    """`fold_in` on a GPU, to the same factors but for the tolerance and rounding."""
    begin = np.array(even_start(counts, held) if start is None else start, np.float64, order="C")
    side = (held.factor, held.likelihood, held.prior, held.ties)
    least = stopping_tolerance(tol, held.factor.mean.dtype)
    return device.fold(FoldJob(counts, *side, start=begin, least_sum=LEAST_SUM, tol=least, most=max_steps))


def fold_in_plainly(
    counts: sp.csr_array, held: Held, *, tol: float, start: Array | None = None, max_steps: int = MOST_STEPS
) -> Folds:
    """`fold_in` by the passes of the `reference` backend, with dense arrays: what it means."""
    backend, dtype = Reference(), held.factor.mean.dtype
    data = Counts.of(counts, np.dtype(np.float64))
    mean = np.array(even_start(counts, held) if start is None else start, np.float64)
    rows: Factor = Point(mean)
    exposed, allocated, steps = np.empty_like(mean), np.empty_like(mean), np.zeros(len(mean), int)
    rates = np.array(np.broadcast_to(np.ravel(held.prior.rate)[:1], len(mean)), np.float64)
    settled = np.zeros(len(mean), bool)
    while steps.max(initial=0) < max_steps and not settled.all():
        sums = backend.expect(data, rows, held.factor, held.likelihood, held.ties).user_sums
        if held.bayesian:
            if np.ndim(held.prior.rate):
                sums_of_rows = np.maximum(rows.mean.sum(axis=1), LEAST_SUM)
                rates[~settled] = (held.prior.shape * mean.shape[1] / sums_of_rows)[~settled]
            rows = backend.conditional(Prior(held.prior.shape, rates[:, None]), sums)
        else:
            rows = Point(np.divide(sums.allocated, sums.exposed, out=rows.mean.copy(), where=sums.exposed > 0))
        change = np.abs(rows.mean - mean).sum(axis=1)
        moving = ~settled
        mean[moving], allocated[moving], exposed[moving] = (
            values[moving] for values in (rows.mean, sums.allocated, sums.exposed)
        )
        steps[moving] += 1
        settled |= change <= stopping_tolerance(tol, dtype) * rows.mean.sum(axis=1)
    return Folds(_factor_of(held, mean, allocated, exposed, rates), steps)


def stopping_tolerance(tol: float, dtype: np.dtype[Any]) -> float:
    """A fit's own tolerance, here for the relative change of a row's factors; and not below what rounding does."""
    return min(max(tol, 4 * float(np.finfo(dtype).eps)), 1.0)  # a fit may ask for one sweep by tol=inf


def even_start(counts: sp.csr_array, held: Held) -> NDArray[np.float64]:
    """All components alike, and the row's expected total its total."""
    totals = np.maximum(counts.sum(axis=1), 1.0)
    size = held.factor.total
    start = totals / size if size > 0 else np.ones(len(totals))
    return np.repeat(np.asarray(start, np.float64)[:, None], held.factor.mean.shape[1], axis=1)


def products_of(counts: sp.csr_array, held: Held) -> float:
    """Return about how many products of a matrix product take as long as folding these rows in."""
    every_cell = held.ties is None and not isinstance(held.likelihood, Poisson)
    cells = float(counts.shape[0]) * counts.shape[1] if every_cell else float(counts.nnz)
    return FOLD_COST * cells * held.factor.dimensions[1]


def _factor_of(held: Held, mean: Array, allocated: Array, exposed: Array, rates: NDArray[np.float64]) -> Factor:
    dtype = held.factor.mean.dtype
    if not held.bayesian:
        return Point(mean.astype(dtype))
    rate = rates[:, None] if np.ndim(held.prior.rate) else held.prior.rate
    return Cpu(1).conditional(Prior(held.prior.shape, rate), Sums(allocated.astype(dtype), exposed.astype(dtype)))


def _fold_share(arguments: tuple[Any, ...], n_rows: int, share: int) -> None:
    fold_rows(share * SHARE, min((share + 1) * SHARE, n_rows), *arguments)


def _share_out(job: Callable[[int], None], n_shares: int, n_threads: int | None) -> None:
    n_helpers = min(n_threads or numba.get_num_threads(), n_shares) - 1
    if n_helpers < 1:
        for share in range(n_shares):
            job(share)
        return
    with ThreadPoolExecutor(n_helpers + 1, thread_name_prefix="nbmf") as pool:
        list(pool.map(job, range(n_shares)))


def stack(first: Factor, second: Factor) -> Factor:
    """Return the rows of two factors of one kind, one after the other."""
    if not isinstance(first, Gamma) or not isinstance(second, Gamma):
        return Point(np.concatenate((first.mean, second.mean)))
    parts = {}
    for field in fields(Gamma):
        pair = [getattr(factor, field.name) for factor in (first, second)]
        if field.name == "exposed":
            pair = [np.broadcast_to(factor.exposed, factor.mean.shape) for factor in (first, second)]
        parts[field.name] = np.concatenate(pair) if np.ndim(pair[0]) else pair[0]
    return Gamma(**parts)


def put(factor: Factor, rows: NDArray[np.intp], values: Factor) -> Factor:
    """Return a factor with some rows replaced."""
    if not isinstance(factor, Gamma) or not isinstance(values, Gamma):
        mean = factor.mean.copy()
        mean[rows] = values.mean
        return Point(mean)
    parts = {}
    for field in fields(Gamma):
        old, new = getattr(factor, field.name), getattr(values, field.name)
        if np.ndim(old):
            shape = factor.mean.shape if field.name == "exposed" else old.shape
            parts[field.name] = np.array(np.broadcast_to(old, shape))
            parts[field.name][rows] = new
    return replace(factor, **parts)
