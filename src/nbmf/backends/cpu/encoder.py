"""The passes of an encoder on several threads; backends/encoder.py says what they mean.

A walk over the users yields W, the intensities of the stored cells and R (see encoder_kernels.py). Another one over the
items gathers W and R of their users, which lie side by side. Where every exposure is 1, what is exposed has a closed
form. Otherwise the unseen cells of a user within a cluster of items share an exposure; one item per cluster is exact,
and takes memory for users × items. Rows, sums and threads are as in passes.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, Array, Given, Sums, check_kind
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.encoder_kernels import (
    encode_rows,
    expose_inputs,
    expose_one_input,
    expose_one_output,
    expose_outputs,
    expose_rows,
    gather_rows,
    intensity_rows,
    others_rows,
    project_rows,
    quotient_rows,
)
from nbmf.backends.cpu.passes import Cpu, _not_below_zero, _unsigned
from nbmf.backends.encoder import (
    EncoderCounts,
    Start,
    Whole,
    evidence_of_all,
    starts_of,
    sum_weights,
)
from nbmf.backends.threads import one_blas_thread
from nbmf.model.factors import Factor, Point, largest

ENTRIES_PER_WORK = 16  # entries of a row that take as long as one non-zero does

SURE = {np.dtype(np.float32): 2.0**-30, np.dtype(np.float64): 2.0**-16}
"""Share of a sum from which what is left, after unknown cells or those of a cluster are taken off, has enough digits.

Below it the terms are added up anew. They are few: an item, and a component of almost no other item.
"""


@dataclass(frozen=True)
class SparseInferred:
    """Of one start: W and R of each user, whole and without their largest terms, side by side; the shares of the stored
    cells; and exposures if they vary.
    """

    start: Start
    hidden: Array
    shares: Array
    exposed: "Exposed | None"


@dataclass(frozen=True)
class Exposed:
    """Exposures of unseen cells by user and cluster, of stored cells, their difference, and what V is exposed to.

    All are in double precision, as large parts are taken off them.
    """

    unseen: NDArray[np.float64]
    exposures: NDArray[np.float64]
    excess: NDArray[np.float64]
    labels: NDArray[Any]
    inputs: NDArray[np.float64]


@dataclass(frozen=True)
class SparseEncoderExpectation:
    """All that was inferred."""

    starts: list[SparseInferred]
    log_evidence: float


@dataclass(frozen=True)
class CpuEncoder(Cpu):
    """Threads on one machine."""

    def expect(self, counts: Counts, given: Given, *, sum_users: bool = True) -> Any:
        """Infer allocations and exposures of every start."""
        check_kind(given.likelihood)
        assert isinstance(counts, EncoderCounts)
        found, logs = zip(
            *[self._infer(counts, given, one) for one in starts_of(given.users, given.items)], strict=True
        )
        return SparseEncoderExpectation(list(found), float(np.mean(logs)))

    def _infer(self, counts: EncoderCounts, given: Given, one: Start) -> tuple[SparseInferred, float]:
        by_user, (n_users, dtype) = counts.by_user, (counts.by_user.shape[0], one.inputs.dtype)
        hidden, shares = np.empty((n_users, 4, one.inputs.shape[1]), dtype), np.empty(by_user.nnz, dtype)
        varies = given.likelihood.has_exposure or counts.n_unknown > 0
        intensities, log_evidence = np.empty_like(shares) if varies else None, np.zeros(n_users)
        walk = (by_user.indptr, _unsigned(by_user.indices))
        found = (LEAST_INTENSITY[dtype], hidden, shares, intensities, log_evidence)
        self._share_out((by_user.indptr, (encode_rows, *walk, counts.inputs, by_user.data, *one, *found)))
        exposed = self._expose(counts, given, one, (hidden, intensities, log_evidence)) if varies else None
        total = float(log_evidence.sum())
        if given.likelihood.has_exposure:
            total -= sum_weights(one, np.full(len(one.inputs), counts.penalty)) if counts.penalty else 0.0
        elif exposed is None:
            total += evidence_of_all(counts, one)
        else:
            total -= float(np.einsum("jk,jk->", one.inputs, exposed.inputs)) + float(counts.n_known(0) @ one.intercept)
        return SparseInferred(one, hidden, shares, exposed), total

    def _expose(self, counts: EncoderCounts, given: Given, one: Start, found: Any) -> Exposed:
        hidden, intensities, log_evidence = found
        by_user, n_items, ties = counts.by_user, len(one.outputs), given.ties
        varies = given.likelihood.has_exposure
        labels = np.zeros(n_items, np.int32) if not varies else np.arange(n_items, dtype=np.int32)
        labels = ties.labels if varies and ties is not None else labels
        n_clusters = ties.n_clusters if varies and ties is not None else int(labels[-1]) + 1
        sums, sizes = _sum_clusters(one.side, labels, n_clusters), np.bincount(labels, minlength=n_clusters)
        with one_blas_thread():
            unseen = hidden[:, 0] @ sums[:, :-1].T + sums[:, -1]
        excess, exposures = np.empty((2, by_user.nnz))
        walk = (by_user.indptr, _unsigned(by_user.indices), by_user.data, hidden, intensities, one.outputs)
        α, labels = float(np.ravel(given.likelihood.concentration)[0]), _unsigned(labels)
        ties_of = (α, labels, sizes.astype(np.float64), unseen, excess, exposures, log_evidence)
        self._share_out((by_user.indptr, (expose_rows, *walk, one.intercept, *ties_of)))
        exposed = Exposed(unseen, exposures, excess, labels, np.zeros(one.outputs.shape))
        self._expose_inputs(counts, exposed, one.outputs.astype(np.float64), sums[:, :-1], SURE[one.inputs.dtype])
        return exposed

    def _expose_inputs(self, counts: EncoderCounts, exposed: Exposed, H: Array, sums: Array, sure: float) -> None:
        """Set what V is exposed to: the parts of unseen cells and of stored ones, and the prior's."""
        by_user, inputs = counts.by_user, exposed.inputs
        walk = by_user.indptr, _unsigned(by_user.indices)
        with one_blas_thread():
            gross = exposed.unseen @ sums
        stored, rests, taken, _ = np.empty((4, *gross.shape))
        self._share_out((by_user.indptr, (project_rows, *walk, exposed.exposures, H, stored, rests)))
        of_unseen = exposed.exposures - exposed.excess
        self._share_out((by_user.indptr, (project_rows, *walk, of_unseen, H, taken, _)))
        doubt, parts = np.zeros_like(H), (gross, _not_below_zero(gross - taken), stored, rests)
        for block, users in _by_block(counts):
            of_users = [part[users] for part in parts]
            loop = (expose_inputs, *block, counts.inputs, exposed.exposures, H, *of_users, inputs, doubt)
            self._share_out((block[0], loop))
        anew = (*walk, counts.inputs, exposed.exposures, exposed.unseen, exposed.labels, H)
        for item, k in np.argwhere(inputs < sure * doubt).tolist():
            inputs[item, k] = expose_one_input(item, k, *anew)
        if counts.penalty:
            inputs += self._others(H, np.ones(len(H)), np.full(len(H), counts.penalty))

    def sum_inputs(self, counts: EncoderCounts, inferred: SparseInferred) -> tuple[Sums, Array]:
        """Return both sums of V, and what is allocated to [H | b]."""
        V, H, b = inferred.start
        to_inputs, to_outputs, to_intercepts = np.zeros_like(V), np.zeros_like(H), np.zeros(len(b))
        found = (to_inputs, to_outputs, to_intercepts)
        for walk, users in _by_block(counts):
            gather = (gather_rows, *walk, counts.inputs, inferred.shares, V, H, inferred.hidden[users], *found)
            self._share_out((walk[0], gather))
        allocated = np.column_stack((to_outputs, (b * to_intercepts).astype(b.dtype)))
        if inferred.exposed is None:
            return Sums(to_inputs, self._others(H, np.ones(len(H)), counts.met)), allocated
        return Sums(to_inputs, inferred.exposed.inputs.astype(V.dtype)), allocated

    def expose_outputs(self, counts: EncoderCounts, inferred: SparseInferred, inputs: Factor) -> Array:
        """Return what [H | b] is exposed to, with a V that may be newer."""
        exposed, by_user, given = inferred.exposed, counts.by_user, inputs.mean
        if exposed is None:
            others = self._others(given, counts.met, np.ones(len(given)))
            return np.column_stack((others, np.full(len(given), by_user.shape[0], given.dtype)))
        V, (projected, rests) = given.astype(np.float64), np.empty((2, by_user.shape[0], given.shape[1]))
        walk = (by_user.indptr, _unsigned(by_user.indices), counts.inputs)
        self._share_out((by_user.indptr, (project_rows, *walk, V, projected, rests)))
        shared = self._sum_rows(np.column_stack((projected, np.ones(len(projected)))), exposed.unseen)[exposed.labels]
        found = shared.copy()
        for block, users in _by_block(counts):
            cells = (counts.inputs, exposed.excess, exposed.exposures)
            loop = (expose_outputs, *block, *cells, V, projected[users], rests[users], found)
            self._share_out((block[0], loop))
        anew = (*walk, exposed.exposures, exposed.unseen, exposed.labels, V)
        for item, k in np.argwhere(found[:, :-1] < SURE[given.dtype] * shared[:, :-1]).tolist():
            found[item, k] = expose_one_output(item, k, *anew)
        if counts.penalty:
            found[:, :-1] += self._others(V, np.ones(len(V)), np.full(len(V), counts.penalty))
        return np.asarray(found.astype(given.dtype))

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed, Eqs. (nmfH) and (nmfW)."""
        old, found = factor.mean, np.empty_like(factor.mean)
        loop = (quotient_rows, old, sums.allocated, sums.exposed, old.dtype.type(largest(old.dtype)), found)
        self._share_out((np.arange(len(old) + 1) * (old.shape[1] // ENTRIES_PER_WORK), loop))
        return Point(found)

    def _others(self, values: Array, weights: NDArray[np.float64], scales: NDArray[np.float64]) -> Array:
        """Return for each row the weighted sum of all other rows, times the row's scale."""
        found = np.empty_like(values)
        loop = (others_rows, values, weights, scales, *Whole.of(values, weights), found)
        self._share_out((np.arange(len(values) + 1) * (values.shape[1] // ENTRIES_PER_WORK), loop))
        return found


def _by_block(counts: EncoderCounts) -> list[tuple[tuple[Any, ...], slice]]:
    """Return, for each block of users that a cache holds, the walk over its cells by item, and the users."""
    walks, top = [], 0
    for block in counts.by_item:
        walk = (block.indptr, _unsigned(block.indices), _unsigned(block.data))
        walks.append((walk, slice(top, top + block.shape[1])))
        top += block.shape[1]
    return walks


def _sum_clusters(values: Array, labels: NDArray[Any], n_clusters: int) -> Array:
    order = np.argsort(labels, kind="stable")
    sums = np.zeros((n_clusters, values.shape[1]))
    np.add.at(sums, labels[order], values[order])
    return sums


def intensities_of_stored(inputs: sp.csr_array, one: Start, n_threads: int | None = None) -> sp.csr_array:
    """Return μ of the stored cells of some users, each without the item's own part."""
    found, indptr = np.empty(inputs.nnz, one.outputs.dtype), inputs.indptr.astype(np.int64)
    cells = indptr, inputs.indices.astype(np.uint32), inputs.data.astype(found.dtype, copy=False)
    loop = (intensity_rows, *cells, *one, LEAST_INTENSITY[found.dtype], found)
    if inputs.nnz:
        Cpu(n_threads)._share_out((indptr, loop))
    return sp.csr_array((found, inputs.indices, inputs.indptr), shape=inputs.shape)
