"""Compiled folding in: a row's own update, repeated while the other side of the factorization stays fixed.

Everything but the other side's rows as they lie in memory is in double precision. As in kernels.py a row is done by one
thread in one order, and no loop both stores and sums up.
"""

import numpy as np

from nbmf.backends.cpu.elementary import exp
from nbmf.backends.cpu.events import events_of
from nbmf.backends.cpu.inflated import zero_cell
from nbmf.backends.cpu.kernels import compiled, gamma_moments


@compiled
def _dots(found, row, table, size):
    for p in range(size):
        total = 0.0
        for k in range(len(row)):
            total += row[k] * table[p, k]
        found[p] = total


@compiled
def _add_rows(total, weights, table, size):
    """Add Σ_p weights[p] · table[p] to `total`, four rows at a time as in `kernels._sum_rows`."""
    fours = size - size % 4
    for p in range(0, fours, 4):
        a, b, c, d = weights[p], weights[p + 1], weights[p + 2], weights[p + 3]
        for k in range(len(total)):
            total[k] += a * table[p, k] + b * table[p + 1, k] + c * table[p + 2, k] + d * table[p + 3, k]
    for p in range(fours, size):
        for k in range(len(total)):
            total[k] += weights[p] * table[p, k]


@compiled
def _unseen(sums, sizes, seen, clusters, n_seen, rest, n_unseen):
    """Set `rest` and `n_unseen` to each cluster's sum and size without the row's stored cells; below 0 is rounding."""
    rest[:] = sums
    n_unseen[:] = sizes
    for p in range(n_seen):
        n_unseen[clusters[p]] -= 1.0
        for k in range(seen.shape[1]):
            rest[clusters[p], k] = max(rest[clusters[p], k] - seen[p, k], 0.0)


@compiled
def _expose(w, rest, n_unseen, concentrations, inflated, shared, seen, clusters, counts, intensity, exposures):
    """Eq. (update_a): set `shared` to the exposures of the unseen cells, `exposures` to those of the stored ones."""
    size, n_clusters = len(counts), len(shared)
    if concentrations[0] == np.inf:
        shared[:] = 1.0
        for p in range(size):
            exposures[p] = 1.0 if counts[p] >= 0.0 else 0.0
        return
    _dots(shared, w, rest, n_clusters)
    for c in range(n_clusters):
        α, mean = concentrations[c], shared[c] / max(n_unseen[c], 1.0)
        exposure = zero_cell(α, mean)[0] if inflated else α / (α + mean)
        shared[c] = exposure if n_unseen[c] > 0.0 else 0.0  # a row may have counts in the whole cluster
    if inflated:
        for p in range(size):
            exposures[p] = 1.0 if counts[p] >= 0.0 else 0.0
        return
    _dots(intensity, w, seen, size)
    for p in range(size):
        α = concentrations[clusters[p]]
        exposures[p] = (α + counts[p]) / (α + intensity[p]) if counts[p] >= 0.0 else 0.0


@compiled
def _update(bayesian, shape, rate, allocated, exposed, most, mean, geometric_mean, before):
    """Eq. (update_w), or (nmfW) for points; return the change of the row relative to its size."""
    before[:] = mean
    if bayesian:
        for k in range(len(mean)):
            a, b = shape + allocated[k], rate + exposed[k]
            z, _, drop, _ = gamma_moments(a)
            mean[k] = a / b
            geometric_mean[k] = z / b * exp(-drop)
    else:  # see `OnHost.quotient`
        for k in range(len(mean)):
            mean[k] = min(allocated[k] / exposed[k], most) if exposed[k] > 0.0 else before[k]
        geometric_mean[:] = mean
    change, size = 0.0, 0.0
    for k in range(len(mean)):
        change += abs(mean[k] - before[k])
        size += mean[k]
    return change / size if size > 0.0 else 0.0


@compiled
def fold_rows(
    start, stop, indptr, indices, counts, concentrations, inflated, law, scales, geometric, means, labels, sizes, sums,
    bayesian, shape, rates, own_rates, least, least_sum, largest, tol, most, mean, allocated, exposed, steps,
):  # fmt: skip
    """Repeat each row's update until it changes the row by less than `tol` of its size, or `most` times.

    A negative count is that of an unknown cell, which is left out. `concentrations` are α, rows × clusters, either of
    which may be 1; infinity if exposures are 1, and π if they are `inflated`. Where counts are made of several events,
    `law` is one of `events.LAWS`, else 0, and λ is multiplied by `scales`, rows × columns. `geometric` and `means` are
    those of the fixed side, columns × K; `sizes` and `sums` have the number of columns and the sum of their means per
    cluster. One cluster per column makes exposures exact; exposures of 1 need only one in all. If `bayesian` rows have
    gamma posteriors, with the prior (shape, rate of the row), else points, which are at most `largest`. With
    `own_rates` a row's prior rate is shape · K / Σ_k ⟨w_k⟩, anew in each step, with a sum of at least `least_sum`. λ,
    which may underflow, is at least `least`. `mean` comes with the start, which serves as geometric means too;
    `allocated`, `exposed` and `rates` become what the last update was made of.
    """
    n_components, n_clusters = means.shape[1], len(sizes)
    longest = max(np.max(indptr[start + 1 : stop + 1] - indptr[start:stop]), 1)
    near, seen = np.empty((longest, n_components)), np.empty((longest, n_components))
    clusters, intensity, weights = np.empty(longest, np.int64), np.empty(longest), np.empty(longest)
    rest, n_unseen, shared, α = np.empty_like(sums), np.empty(n_clusters), np.empty(n_clusters), np.empty(n_clusters)
    w, geometric_w, before = np.empty(n_components), np.empty(n_components), np.empty(n_components)
    for row in range(start, stop):
        first, size, change = indptr[row], indptr[row + 1] - indptr[row], np.inf
        for p in range(size):
            column = indices[first + p]
            near[p], seen[p], clusters[p] = geometric[column], means[column], labels[column]
        _unseen(sums, sizes, seen, clusters, size, rest, n_unseen)
        for c in range(n_clusters):
            α[c] = concentrations[row if len(concentrations) > 1 else 0, c if concentrations.shape[1] > 1 else 0]
        w[:] = mean[row]
        geometric_w[:] = w
        found, open_to = allocated[row], exposed[row]
        steps[row] = 0
        while steps[row] < most and not change <= tol:
            _dots(intensity, geometric_w, near, size)
            for p in range(size):
                λ = max(intensity[p], least)
                weights[p] = max(counts[first + p], 0.0) / λ
                if law > 0:
                    own = scales[row if len(scales) > 1 else 0, indices[first + p] if scales.shape[1] > 1 else 0]
                    weights[p] = events_of(law, counts[first + p], λ * own)[0] / λ
            found[:] = 0.0
            _add_rows(found, weights, near, size)
            for k in range(n_components):
                found[k] = geometric_w[k] * min(found[k], np.finfo(np.float64).max)  # see `kernels.allocate_rows`
            of_row = counts[first : first + size]
            _expose(w, rest, n_unseen, α, inflated, shared, seen, clusters, of_row, intensity, weights)
            open_to[:] = 0.0
            _add_rows(open_to, shared, rest, n_clusters)
            _add_rows(open_to, weights, seen, size)
            if own_rates:
                rates[row] = shape * n_components / max(np.sum(w), least_sum)
            change = _update(bayesian, shape, rates[row], found, open_to, largest, w, geometric_w, before)
            steps[row] += 1
        mean[row] = w
