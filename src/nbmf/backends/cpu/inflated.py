"""Compiled loops of zero-inflated exposures, a ~ Bernoulli(π), in the place of those of gamma exposures in kernels.py.

A count shows that its cell is exposed. A zero cell is exposed with probability A = πe^(−μ)/d, where d = 1 − π + πe^(−μ)
is the probability of a zero, and its log-evidence is ln d.
"""

import numpy as np

from nbmf.backends.cpu.elementary import exp, log, log1p
from nbmf.backends.cpu.kernels import _intensities, _sum_rows, compiled


@compiled
def zero_cell(π, μ):
    """Return A and d of a zero cell, in double precision."""
    exposed = π * exp(-μ)
    chance = 1.0 - π + exposed
    return exposed / chance, chance


@compiled
def _sum_logs(chances, size):
    """Return Σ ln d; logarithms are taken of products of eight, which are at least 10⁻⁷²."""
    total, eighth = 0.0, size // 8
    for j in range(eighth):
        product = chances[j]
        for part in range(1, 8):
            product *= chances[part * eighth + j]
        total += log(product)
    for j in range(8 * eighth, size):
        total += log(chances[j])
    return total


@compiled
def expose_tile(intensity, row_probabilities, column_probabilities, row_logs):
    """Replace each intensity of a tile by the exposure of a zero cell; add Σ ln d to `row_logs` unless it is None."""
    n_columns = intensity.shape[1]
    chances = np.empty(n_columns)
    for row in range(len(intensity)):
        if column_probabilities is None:
            π = np.float64(row_probabilities[row])
            for j in range(n_columns):
                intensity[row, j], chances[j] = zero_cell(π, np.float64(intensity[row, j]))
        else:
            for j in range(n_columns):
                own = np.float64(column_probabilities[j])
                intensity[row, j], chances[j] = zero_cell(own, np.float64(intensity[row, j]))
        if row_logs is not None:
            row_logs[row] += _sum_logs(chances, n_columns)


@compiled
def _tie(unseen, n_unseen, π, logs):
    """Turn Σ μ over a user's unseen cells of each cluster into their exposure A_uc; return their log-evidence."""
    # ln d = −ln(1 + (1−d)/d), which keeps its digits in single precision
    zero, one, total = unseen.dtype.type(0), unseen.dtype.type(1), 0.0
    for c in range(len(unseen)):
        mean = max(unseen[c], zero) / max(n_unseen[c], one)  # below 0 is rounding
        exposed = π * exp(-np.float64(mean))
        inverse = 1.0 / (1.0 - π + exposed)
        unseen[c] = exposed * inverse
        logs[c] = (π - exposed) * inverse
    for c in range(len(unseen)):
        logs[c] = log1p(logs[c])
    for c in range(len(unseen)):
        total -= n_unseen[c] * np.float64(logs[c])
    for c in range(len(unseen)):  # a user who has every item of the cluster has no unseen cells in it
        unseen[c] = unseen[c] if n_unseen[c] > zero else zero
    return total


@compiled
def expose_rows(
    start, stop, indptr, indices, counts, users, items, probabilities, item_probabilities, labels, cluster_sizes,
    excess, unseen, exposed, log_evidence, precise,
):  # fmt: skip
    """See `kernels.expose_rows`. Exact: `excess` is 1 − A of a count, −A of an unknown cell. Tied: A is A_uc."""
    n_components, end, zero, one = users.shape[1], indptr[stop] - 1, users.dtype.type(0), users.dtype.type(1)
    longest = np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, sums, run = np.empty(longest, users.dtype), np.empty(n_components), np.empty(n_components, users.dtype)
    if unseen is None:
        chances = np.empty(longest)
    else:
        n_unseen, logs = np.empty(unseen.shape[1], users.dtype), np.empty(unseen.shape[1], users.dtype)
        clusters = np.empty(longest, labels.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        size, π, total = last - first, np.float64(probabilities[user]), 0.0
        _intensities(μ, users, user, items, indices, first, last, end)
        if unseen is None:
            for p in range(size):
                own = π if item_probabilities is None else np.float64(item_probabilities[indices[first + p]])
                exposure, chances[p] = zero_cell(own, np.float64(μ[p]))
                excess[first + p] = (1.0 if counts[first + p] >= zero else 0.0) - exposure
            total -= _sum_logs(chances, size)  # tiles have added those of all cells
        else:
            shared = unseen[user]
            n_unseen[:] = cluster_sizes
            for p in range(size):
                c = labels[indices[first + p]]
                clusters[p] = c
                shared[c] -= μ[p]
                n_unseen[c] -= one
            total += _tie(shared, n_unseen, π, logs)
            for p in range(size):
                excess[first + p] = (one if counts[first + p] >= zero else zero) - shared[clusters[p]]
        for p in range(size):
            total -= np.float64(μ[p]) if counts[first + p] >= zero else 0.0
        if exposed is not None:
            _sum_rows(sums, run, items, indices, first, last, excess)
            for k in range(n_components):
                exposed[user, k] = sums[k] if unseen is not None else exposed[user, k] + sums[k]
        log_evidence[user] += total
