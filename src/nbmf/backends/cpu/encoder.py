"""The passes of an encoder on several threads; backends/encoder.py says what they mean.

A walk over the users yields W, the intensities of the stored cells and R (see encode.py). Another one over the items
gathers W and R of their users, which lie side by side. Where every exposure is 1, what is exposed has a closed form.
Otherwise the unseen cells of a user within a cluster of items share an exposure; one item per cluster is exact, and
takes memory for users × items. Rows, sums and threads are as in passes.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, Array, Given, Sums, check_kind
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.encode import (
    encode_rows,
    expose_inputs,
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
    OWN,
    Encoder,
    EncoderCounts,
    evidence_of_all,
    starts_of,
    weighed_sum,
)
from nbmf.backends.threads import one_blas_thread
from nbmf.model.factors import Factor, Point, largest

ENTRIES_PER_WORK = 16  # entries of a row that take as long as one non-zero does


@dataclass(frozen=True)
class SparseInferred:
    """Of one start: W and R of each user side by side, the shares of the stored cells, and exposures if they vary."""

    encoder: Encoder
    hidden: Array
    shares: Array
    exposed: "Exposed | None"


@dataclass(frozen=True)
class Exposed:
    """Exposures of unseen cells by user and cluster, of stored cells, their difference, and Σ_i E_ui H_i."""

    unseen: Array
    exposures: Array
    excess: Array
    labels: NDArray[Any]
    users: Array


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

    def _infer(self, counts: EncoderCounts, given: Given, one: Encoder) -> tuple[SparseInferred, float]:
        by_user, (n_users, dtype) = counts.by_user, (counts.by_user.shape[0], one.inputs.dtype)
        hidden, shares = np.empty((n_users, 2, one.inputs.shape[1]), dtype), np.empty(by_user.nnz, dtype)
        varies = given.likelihood.has_exposure or counts.n_unknown > 0
        intensities, log_evidence = np.empty_like(shares) if varies else None, np.zeros(n_users)
        walk = (by_user.indptr, _unsigned(by_user.indices))
        found = (LEAST_INTENSITY[dtype], hidden, shares, intensities, log_evidence)
        self._share_out((by_user.indptr, (encode_rows, *walk, counts.inputs, by_user.data, *one, *found)))
        exposed = self._expose(counts, given, one, (hidden, intensities, log_evidence)) if varies else None
        total = float(log_evidence.sum())
        if given.likelihood.has_exposure:
            total -= counts.penalty * _sum_weights(one)
        else:
            total += evidence_of_all(counts, one)
        return SparseInferred(one, hidden, shares, exposed), total

    def _expose(self, counts: EncoderCounts, given: Given, one: Encoder, found: Any) -> Exposed:
        hidden, intensities, log_evidence = found
        by_user, n_items, ties = counts.by_user, len(one.outputs), given.ties
        varies = given.likelihood.has_exposure
        labels = np.zeros(n_items, np.int32) if not varies else np.arange(n_items, dtype=np.int32)
        labels = ties.labels if varies and ties is not None else labels
        n_clusters = ties.n_clusters if varies and ties is not None else int(labels[-1]) + 1
        sums, sizes = _sum_clusters(one.side, labels, n_clusters), np.bincount(labels, minlength=n_clusters)
        with one_blas_thread():
            unseen = hidden[:, 0] @ sums[:, :-1].T + sums[:, -1]
        excess, exposures = np.empty_like(intensities), np.empty_like(intensities)
        walk = (by_user.indptr, _unsigned(by_user.indices), by_user.data, hidden, intensities, one.outputs)
        α, labels = float(np.ravel(given.likelihood.concentration)[0]), _unsigned(labels)
        ties_of = (α, labels, sizes.astype(np.float64), unseen, excess, exposures, log_evidence)
        self._share_out((by_user.indptr, (expose_rows, *walk, one.intercept, *ties_of)))
        with one_blas_thread():
            users = unseen @ sums[:, :-1]
        beyond = np.empty_like(users)
        self._share_out((by_user.indptr, (project_rows, *walk[:2], excess, one.outputs, beyond)))
        return Exposed(unseen, exposures, excess, labels, _not_below_zero(users + beyond))

    def sum_inputs(self, counts: EncoderCounts, inferred: SparseInferred) -> tuple[Sums, Array]:
        """Return both sums of V, and what is allocated to [H | b]."""
        V, H, b = inferred.encoder
        to_inputs, to_outputs, to_intercepts = np.zeros_like(V), np.zeros_like(H), np.zeros(len(b))
        found = (to_inputs, to_outputs, to_intercepts)
        for walk, users in _by_block(counts):
            gather = (gather_rows, *walk, counts.inputs, inferred.shares, V, H, inferred.hidden[users], *found)
            self._share_out((walk[0], gather))
        allocated = np.column_stack((to_outputs, (b * to_intercepts).astype(b.dtype)))
        if inferred.exposed is None:
            return Sums(to_inputs, self._others(H, np.ones(len(H)), counts.met)), allocated
        exposed = counts.penalty * (H.sum(axis=0, dtype=np.float64) - H)
        for walk, users in _by_block(counts):
            of_users = inferred.exposed.users[users]
            loop = (expose_inputs, *walk, counts.inputs, inferred.exposed.exposures, H, of_users, exposed)
            self._share_out((walk[0], loop))
        return Sums(to_inputs, _not_below_zero(exposed).astype(V.dtype)), allocated

    def expose_outputs(self, counts: EncoderCounts, inferred: SparseInferred, inputs: Factor) -> Array:
        """Return what [H | b] is exposed to, with a V that may be newer."""
        exposed, by_user, V = inferred.exposed, counts.by_user, inputs.mean
        if exposed is None:
            others = self._others(V, counts.met, np.ones(len(V)))
            return np.column_stack((others, np.full(len(V), by_user.shape[0], V.dtype)))
        projected = np.empty((by_user.shape[0], V.shape[1]), V.dtype)
        walk = (by_user.indptr, _unsigned(by_user.indices), counts.inputs)
        self._share_out((by_user.indptr, (project_rows, *walk, V, projected)))
        shared = self._sum_rows(np.column_stack((projected, np.ones_like(projected[:, :1]))), exposed.unseen)
        found = shared[exposed.labels]
        found[:, :-1] += counts.penalty * (V.sum(axis=0, dtype=np.float64) - V)
        for walk, users in _by_block(counts):
            cells = (counts.inputs, exposed.excess, exposed.exposures)
            self._share_out((walk[0], (expose_outputs, *walk, *cells, V, projected[users], found)))
        return _not_below_zero(found).astype(V.dtype)

    def quotient(self, factor: Factor, sums: Sums) -> Point:
        """Return allocated / exposed, Eqs. (nmfH) and (nmfW)."""
        old, found = factor.mean, np.empty_like(factor.mean)
        loop = (quotient_rows, old, sums.allocated, sums.exposed, old.dtype.type(largest(old.dtype)), found)
        self._share_out((np.arange(len(old) + 1) * (old.shape[1] // ENTRIES_PER_WORK), loop))
        return Point(found)

    def _others(self, values: Array, weights: NDArray[np.float64], scales: NDArray[np.float64]) -> Array:
        """Return for each row the weighted sum of all other rows, times the row's scale."""
        total, found = weighed_sum(values, weights), np.empty_like(values)
        least = OWN * float(np.finfo(values.dtype).eps) * total
        loop = (others_rows, values, weights, scales, total, least, found)
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
    return sums.astype(values.dtype)


def _sum_weights(one: Encoder) -> float:
    """Return Σ_{j≠i} B_ji."""
    V, H = one.inputs, one.outputs
    own = float(np.einsum("jk,jk->", V, H, dtype=np.float64))
    return max(float(V.sum(axis=0, dtype=np.float64) @ H.sum(axis=0, dtype=np.float64)) - own, 0.0)


def intensities_of_stored(inputs: sp.csr_array, one: Encoder, n_threads: int | None = None) -> sp.csr_array:
    """Return μ of the stored cells of some users, each without the item's own part."""
    found, indptr = np.empty(inputs.nnz, one.outputs.dtype), inputs.indptr.astype(np.int64)
    cells = indptr, inputs.indices.astype(np.uint32), inputs.data.astype(found.dtype, copy=False)
    loop = (intensity_rows, *cells, *one, LEAST_INTENSITY[found.dtype], found)
    if inputs.nnz:
        Cpu(n_threads)._share_out((indptr, loop))
    return sp.csr_array((found, inputs.indices, inputs.indptr), shape=inputs.shape)
