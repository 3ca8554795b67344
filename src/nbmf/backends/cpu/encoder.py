"""The passes of an encoder on several threads; backends/encoder.py says what they mean.

Users are walked once: W_u = Σ_j x_uj V_j, then μ of each stored cell without the item's own part, then R_u = Σ_i G_ui
H_i. Then a walk over the items gathers W and R of their users, side by side. Where exposures are all 1, what is exposed
has a closed form. Rows, sums and threads are as in kernels.py and passes.py. The unseen cells of a user within a cluster
share an exposure; one item per cluster is exact, and takes memory for users × items.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import LEAST_INTENSITY, Array, Given, Sums, check_kind
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.elementary import log, log1p, prefetch, prefetch_row
from nbmf.backends.cpu.kernels import AHEAD, CACHE_LINE, RUN, _sum_rows, compiled
from nbmf.backends.cpu.passes import Cpu, _not_below_zero, _unsigned
from nbmf.backends.encoder import (
    OWN,
    Encoder,
    EncoderCounts,
    evidence_of_all,
    exposed_inputs,
    exposed_outputs,
    starts_of,
)
from nbmf.backends.threads import one_blas_thread
from nbmf.model.factors import Encoding


@compiled
def project_rows(start, stop, indptr, indices, inputs, table, projected):
    """Set each user's row to Σ_j x_uj times the item's row of the table."""
    total, run = np.empty(table.shape[1]), np.empty(table.shape[1], table.dtype)
    for user in range(start, stop):
        _sum_rows(total, run, table, indices, indptr[user], indptr[user + 1], inputs)
        for k in range(table.shape[1]):
            projected[user, k] = total[k]


@compiled
def _others_intensities(found, hidden, indices, inputs, first, last, end, V, H, b, least):
    """μ of each of a user's stored cells without the item's own part of W, which is `hidden`; at least `least`."""
    line, zero, own = CACHE_LINE // H.itemsize, H.dtype.type(0), H.dtype.type(OWN * np.finfo(H.dtype).eps)
    for p in range(first, last):
        ahead = indices[min(p + AHEAD // 2, end)]
        prefetch_row(V, ahead, line)
        prefetch_row(H, ahead, line)
        i, x, dot = indices[p], inputs[p], zero
        for k in range(H.shape[1]):
            whole = hidden[k]
            left = whole - x * V[i, k]
            dot += (left if left > own * whole else zero) * H[i, k]
        found[p - first] = max(dot + b[i], least)


@compiled
def encode_rows(
    start, stop, indptr, indices, inputs, targets, V, H, b, least, hidden, shares, intensities, log_evidence
):  # fmt: skip
    """For each user set W and R, side by side in `hidden`, and shares[p] = t/μ; add Σ t ln μ of the stored cells.

    `intensities` takes μ unless it is None. A negative target is an unknown cell.
    """
    n_components, end, zero = H.shape[1], indptr[stop] - 1, H.dtype.type(0)
    most, longest = np.finfo(H.dtype).max, np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, total, run = np.empty(longest, H.dtype), np.empty(n_components), np.empty(n_components, H.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _sum_rows(total, run, V, indices, first, last, inputs)
        for k in range(n_components):
            hidden[user, 0, k] = total[k]
        _others_intensities(μ, hidden[user, 0], indices, inputs, first, last, end, V, H, b, least)
        for p in range(first, last):
            shares[p] = min(max(targets[p], zero) / μ[p - first], most)
        if intensities is not None:
            for p in range(first, last):
                intensities[p] = μ[p - first]
        _sum_rows(total, run, H, indices, first, last, shares)
        for k in range(n_components):
            hidden[user, 1, k] = min(total[k], most)
        evidence = 0.0
        for p in range(first, last):
            evidence += max(targets[p], zero) * log(np.float64(μ[p - first]))
        log_evidence[user] += evidence


@compiled
def gather_rows(start, stop, indptr, users, order, inputs, shares, V, H, hidden, to_inputs, to_outputs, to_intercepts):
    """Add to each item what is allocated to its V, H and b; `order` finds the item's cells among the users'."""
    n_components, end, zero = H.shape[1], indptr[stop] - 1, H.dtype.type(0)
    line, most, own = CACHE_LINE // H.itemsize, np.finfo(H.dtype).max, H.dtype.type(OWN * np.finfo(H.dtype).eps)
    run_inputs, run_outputs = np.empty(n_components, H.dtype), np.empty(n_components, H.dtype)
    sum_inputs, sum_outputs = np.empty(n_components), np.empty(n_components)
    for item in range(start, stop):
        first, last, total = indptr[item], indptr[item + 1], 0.0
        sum_inputs[:] = 0.0
        sum_outputs[:] = 0.0
        for begin in range(first, last, RUN):
            run_inputs[:] = zero
            run_outputs[:] = zero
            for p in range(begin, min(begin + RUN, last)):
                prefetch(shares, order[min(p + AHEAD, end)])
                prefetch(inputs, order[min(p + AHEAD, end)])
                prefetch_row(hidden, users[min(p + AHEAD // 4, end)], line)
                user, share, x = users[p], shares[order[p]], inputs[order[p]]
                total += share
                for k in range(n_components):
                    whole = hidden[user, 0, k]
                    left = whole - x * V[item, k]
                    run_outputs[k] += share * (left if left > own * whole else zero)
                for k in range(n_components):
                    whole = hidden[user, 1, k]
                    left = whole - share * H[item, k]
                    run_inputs[k] += x * (left if left > own * whole else zero)
            for k in range(n_components):
                sum_inputs[k] += run_inputs[k]
                sum_outputs[k] += run_outputs[k]
        to_intercepts[item] += total
        for k in range(n_components):
            to_inputs[item, k] += V[item, k] * min(sum_inputs[k], most)
            to_outputs[item, k] += H[item, k] * min(sum_outputs[k], most)


@compiled
def expose_rows(
    start, stop, indptr, indices, targets, hidden, intensities, H, b, α, labels, sizes, unseen, excess, exposures,
    log_evidence,
):  # fmt: skip
    """For each user turn `unseen`, which comes with Σ μ over the clusters' items, into the exposures of unseen cells.

    Sets each stored cell's exposure, and by how much that exceeds an unseen one's; adds what depends on them to
    `log_evidence`. For infinite α all exposures of known cells are 1, and only the unknown cells' μ is added.
    """
    longest, poisson = np.max(indptr[start + 1 : stop + 1] - indptr[start:stop]), α == np.inf
    full, n_unseen, zero = np.empty(longest), np.empty(unseen.shape[1]), H.dtype.type(0)
    for user in range(start, stop):
        first, last, total = indptr[user], indptr[user + 1], 0.0
        n_unseen[:] = sizes
        for p in range(first, last):
            i, dot = indices[p], zero
            for k in range(H.shape[1]):
                dot += hidden[user, 0, k] * H[i, k]
            full[p - first] = np.float64(dot) + b[i]
        for p in range(first, last):
            unseen[user, labels[indices[p]]] -= full[p - first]
            n_unseen[labels[indices[p]]] -= 1.0
        for c in range(unseen.shape[1]):
            μ = max(np.float64(unseen[user, c]), 0.0) / max(n_unseen[c], 1.0)
            if not poisson:
                total -= α * n_unseen[c] * log1p(μ / α)
            unseen[user, c] = 0.0 if n_unseen[c] <= 0.0 else 1.0 if poisson else α / (α + μ)
        for p in range(first, last):
            t, μ = np.float64(targets[p]), np.float64(intensities[p])
            if t < 0.0:
                exposures[p] = zero
                total += μ if poisson else 0.0
            else:
                exposures[p] = 1.0 if poisson else (α + t) / (α + μ)
                total -= 0.0 if poisson else t * log(α) + (α + t) * log1p(μ / α)
            excess[p] = exposures[p] - unseen[user, labels[indices[p]]]
        log_evidence[user] += total


@compiled
def expose_inputs(start, stop, indptr, users, order, inputs, exposures, H, exposed, found):
    """Add to each item Σ_u x_uj (Q_uk − E_uj H_jk), Q being the users' rows of `exposed`."""
    zero, own = H.dtype.type(0), H.dtype.type(OWN * np.finfo(H.dtype).eps)
    total = np.empty(H.shape[1])
    for item in range(start, stop):
        total[:] = 0.0
        for p in range(indptr[item], indptr[item + 1]):
            user, x, exposure = users[p], inputs[order[p]], exposures[order[p]]
            for k in range(H.shape[1]):
                left = exposed[user, k] - exposure * H[item, k]
                total[k] += x * (left if left > own * exposed[user, k] else zero)
        for k in range(H.shape[1]):
            found[item, k] += total[k]


@compiled
def expose_outputs(start, stop, indptr, users, order, inputs, excess, exposures, V, projected, found):
    """Add to each item Σ_u e_ui W_uk − E_ui x_ui V_ik over its stored cells, and at last Σ_u e_ui."""
    n_components = V.shape[1]
    total = np.empty(n_components)
    for item in range(start, stop):
        total[:] = 0.0
        beyond = 0.0
        for p in range(indptr[item], indptr[item + 1]):
            user, e, own = users[p], excess[order[p]], exposures[order[p]] * inputs[order[p]]
            beyond += e
            for k in range(n_components):
                total[k] += np.float64(e) * projected[user, k] - np.float64(own) * V[item, k]
        for k in range(n_components):
            found[item, k] += total[k]
        found[item, n_components] += beyond


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
        found, logs = zip(*[self._infer(counts, given, one) for one in starts_of(given.users, given.items)], strict=True)
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
            return Sums(to_inputs, exposed_inputs(counts, H)), allocated
        exposed = counts.penalty * (H.sum(axis=0, dtype=np.float64) - H)
        for walk, users in _by_block(counts):
            of_users = inferred.exposed.users[users]
            loop = (expose_inputs, *walk, counts.inputs, inferred.exposed.exposures, H, of_users, exposed)
            self._share_out((walk[0], loop))
        return Sums(to_inputs, _not_below_zero(exposed).astype(V.dtype)), allocated

    def expose_outputs(self, counts: EncoderCounts, inferred: SparseInferred, inputs: Array) -> Array:
        """Return what [H | b] is exposed to, with a V that may be newer."""
        exposed, by_user = inferred.exposed, counts.by_user
        if exposed is None:
            return exposed_outputs(counts, inputs, float(by_user.shape[0]))
        projected = np.empty((by_user.shape[0], inputs.shape[1]), inputs.dtype)
        walk = (by_user.indptr, _unsigned(by_user.indices), counts.inputs)
        self._share_out((by_user.indptr, (project_rows, *walk, inputs, projected)))
        shared = self._sum_rows(np.column_stack((projected, np.ones_like(projected[:, :1]))), exposed.unseen)
        found = shared[exposed.labels]
        found[:, :-1] += counts.penalty * (inputs.sum(axis=0, dtype=np.float64) - inputs)
        for walk, users in _by_block(counts):
            cells = (counts.inputs, exposed.excess, exposed.exposures)
            self._share_out((walk[0], (expose_outputs, *walk, *cells, inputs, projected[users], found)))
        return _not_below_zero(found).astype(inputs.dtype)


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
