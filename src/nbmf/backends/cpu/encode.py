"""Compiled loops of an encoder, where users are functions of what they have; made as those of kernels.py.

    W_u = Σ_j x_uj V_j,   μ_ui = b_i + Σ_k (W_uk − x_ui V_ik) H_ik,   R_u = Σ_i G_ui H_i,   G = t/μ

What an item says of itself is taken off term by term. If next to nothing is left, that is rounding, and becomes 0.
"""

import numpy as np

from nbmf.backends.cpu.elementary import log, log1p, prefetch, prefetch_row
from nbmf.backends.cpu.kernels import AHEAD, CACHE_LINE, RUN, _sum_rows, compiled
from nbmf.backends.encoder import OWN


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


@compiled
def intensity_rows(start, stop, indptr, indices, inputs, V, H, b, least, found):
    """Set μ of each user's stored cells without the item's own part."""
    end, longest = indptr[stop] - 1, np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, total, run = np.empty(longest, H.dtype), np.empty(H.shape[1]), np.empty(H.shape[1], H.dtype)
    hidden = np.empty(H.shape[1], H.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _sum_rows(total, run, V, indices, first, last, inputs)
        for k in range(H.shape[1]):
            hidden[k] = total[k]
        _others_intensities(μ, hidden, indices, inputs, first, last, end, V, H, b, least)
        for p in range(first, last):
            found[p] = μ[p - first]


@compiled
def others_rows(start, stop, values, weights, scales, total, least, found):
    """Set each row to the weighted sum of all other rows, `total` less its own part, times its scale.

    What is not above `least` is rounding, and becomes 0.
    """
    for row in range(start, stop):
        for k in range(values.shape[1]):
            left = total[k] - weights[row] * np.float64(values[row, k])
            found[row, k] = left * scales[row] if left > least[k] else 0.0


@compiled
def quotient_rows(start, stop, old, allocated, exposed, most, found):
    """Set each entry to allocated / exposed, but not above `most`; where nothing is exposed the old one stays."""
    zero = old.dtype.type(0)
    for row in range(start, stop):
        for k in range(old.shape[1]):
            below = exposed[row, k]
            found[row, k] = min(allocated[row, k] / below, most) if below > zero else old[row, k]
