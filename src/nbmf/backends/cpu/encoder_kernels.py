"""Compiled loops of an encoder, where users are functions of what they have; made as those of kernels.py.

    W_u = Σ_j x_uj V_j,   μ_ui = b_i + Σ_k (W_uk − x_ui V_ik) H_ik,   R_u = Σ_i G_ui H_i,   G = t/μ

What an item says of itself is taken off a sum. If that is most of the sum, only rounding would be left of the others,
so beside each sum there is one without its largest term.
"""

import numpy as np

from nbmf.backends.cpu.elementary import log, log1p, prefetch, prefetch_row
from nbmf.backends.cpu.kernels import AHEAD, CACHE_LINE, RUN, compiled

LARGE = 0.75  # share of a sum from which a term is the largest, and so left out in the first place


@compiled
def _sum_both(sums, rests, total, run, table, indices, first, last, weights):
    """Set `sums` to Σ_p weights[p] · table[indices[p]], and `rests` to that without the largest term."""
    zero, most, n = table.dtype.type(0), np.finfo(table.dtype).max, table.shape[1]
    total[:] = 0.0
    sums[:] = zero  # the largest term so far
    for begin in range(first, last, RUN):
        stop = min(begin + RUN, last)
        fours = stop - (stop - begin) % 4
        run[:] = zero
        for p in range(begin, fours, 4):  # as in `_sum_rows`
            a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
            wa, wb, wc, wd = weights[p], weights[p + 1], weights[p + 2], weights[p + 3]
            for k in range(n):
                pa, pb, pc, pd = wa * table[a, k], wb * table[b, k], wc * table[c, k], wd * table[d, k]
                one, other = max(pa, pb), max(pc, pd)
                four, largest = max(one, other), sums[k]
                run[k] += min(pa, pb) + min(pc, pd) + min(one, other) + min(four, largest)
                sums[k] = max(four, largest)
        for p in range(fours, stop):
            a, wa = indices[p], weights[p]
            for k in range(n):
                pa, largest = wa * table[a, k], sums[k]
                run[k] += min(pa, largest)
                sums[k] = max(pa, largest)
        for k in range(n):
            total[k] += run[k]
    for k in range(n):
        rests[k] = min(total[k], most)
        sums[k] = min(total[k] + sums[k], most)


@compiled
def project_rows(start, stop, indptr, indices, inputs, table, projected, rests):
    """Set each user's rows to Σ_j x_uj times the item's row of the table, and to that without its largest term."""
    total, run = np.empty(table.shape[1]), np.empty(table.shape[1], table.dtype)
    for user in range(start, stop):
        _sum_both(projected[user], rests[user], total, run, table, indices, indptr[user], indptr[user + 1], inputs)


@compiled
def _others_intensities(found, hidden, rest, indices, inputs, first, last, end, V, H, b, least):
    """μ of each of a user's stored cells without the item's own part of W, which is `hidden`; at least `least`."""
    line, zero, large = CACHE_LINE // H.itemsize, H.dtype.type(0), H.dtype.type(LARGE)
    for p in range(first, last):
        ahead = indices[min(p + AHEAD // 2, end)]
        prefetch_row(V, ahead, line)
        prefetch_row(H, ahead, line)
        i, x, dot = indices[p], inputs[p], zero
        for k in range(H.shape[1]):
            whole, own = hidden[k], x * V[i, k]
            dot += (rest[k] if own > large * whole else whole - own) * H[i, k]
        found[p - first] = max(dot + b[i], least)


@compiled
def encode_rows(
    start, stop, indptr, indices, inputs, targets, V, H, b, least, hidden, shares, intensities, log_evidence
):  # fmt: skip
    """For each user set W and R, each with what is left without its largest term, side by side in `hidden`, and
    shares[p] = t/μ; add Σ t ln μ of the stored cells.

    `intensities` takes μ unless it is None. A negative target is an unknown cell.
    """
    n_components, end, zero = H.shape[1], indptr[stop] - 1, H.dtype.type(0)
    most, longest = np.finfo(H.dtype).max, np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, total, run = np.empty(longest, H.dtype), np.empty(n_components), np.empty(n_components, H.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _sum_both(hidden[user, 0], hidden[user, 1], total, run, V, indices, first, last, inputs)
        _others_intensities(μ, hidden[user, 0], hidden[user, 1], indices, inputs, first, last, end, V, H, b, least)
        for p in range(first, last):
            shares[p] = min(max(targets[p], zero) / μ[p - first], most)
        if intensities is not None:
            for p in range(first, last):
                intensities[p] = μ[p - first]
        _sum_both(hidden[user, 2], hidden[user, 3], total, run, H, indices, first, last, shares)
        evidence = 0.0
        for p in range(first, last):
            evidence += max(targets[p], zero) * log(np.float64(μ[p - first]))
        log_evidence[user] += evidence


@compiled
def gather_rows(start, stop, indptr, users, order, inputs, shares, V, H, hidden, to_inputs, to_outputs, to_intercepts):
    """Add to each item what is allocated to its V, H and b; `order` finds the item's cells among the users'."""
    n_components, end, zero = H.shape[1], indptr[stop] - 1, H.dtype.type(0)
    line, most, large = CACHE_LINE // H.itemsize, np.finfo(H.dtype).max, H.dtype.type(LARGE)
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
                    whole, rest, own = hidden[user, 0, k], hidden[user, 1, k], x * V[item, k]
                    run_outputs[k] += share * (rest if own > large * whole else whole - own)
                for k in range(n_components):
                    whole, rest, own = hidden[user, 2, k], hidden[user, 3, k], share * H[item, k]
                    run_inputs[k] += x * (rest if own > large * whole else whole - own)
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
    `log_evidence`. For infinite α all exposures of known cells are 1, and nothing is added.
    """
    longest, poisson = np.max(indptr[start + 1 : stop + 1] - indptr[start:stop]), α == np.inf
    full, n_unseen = np.empty(longest), np.empty(unseen.shape[1])
    for user in range(start, stop):
        first, last, total = indptr[user], indptr[user + 1], 0.0
        n_unseen[:] = sizes
        for p in range(first, last):
            i, dot = indices[p], 0.0
            for k in range(H.shape[1]):
                dot += np.float64(hidden[user, 0, k]) * H[i, k]
            full[p - first] = dot + b[i]
        for p in range(first, last):
            unseen[user, labels[indices[p]]] -= full[p - first]
            n_unseen[labels[indices[p]]] -= 1.0
        for c in range(unseen.shape[1]):
            μ = max(unseen[user, c], 0.0) / max(n_unseen[c], 1.0)
            if not poisson:
                total -= α * n_unseen[c] * log1p(μ / α)
            unseen[user, c] = 0.0 if n_unseen[c] <= 0.0 else 1.0 if poisson else α / (α + μ)
        for p in range(first, last):
            t, μ = np.float64(targets[p]), np.float64(intensities[p])
            if t < 0.0:
                exposures[p] = 0.0
            else:
                exposures[p] = 1.0 if poisson else (α + t) / (α + μ)
                total -= 0.0 if poisson else t * log(α) + (α + t) * log1p(μ / α)
            excess[p] = exposures[p] - unseen[user, labels[indices[p]]]
        log_evidence[user] += total


@compiled
def expose_inputs(start, stop, indptr, users, order, inputs, exposures, H, gross, unseen, seen, rests, found, doubt):
    """Add to each item Σ_u x_uj (Q_uk − E_uj H_jk), Q_u being Σ_i E_ui H_i over the unseen items and over the others.

    `doubt` is what the unseen part was the rest of, `gross`, summed up likewise.
    """
    total, total_gross = np.empty(H.shape[1]), np.empty(H.shape[1])
    for item in range(start, stop):
        total[:] = 0.0
        total_gross[:] = 0.0
        for p in range(indptr[item], indptr[item + 1]):
            user, x, exposure = users[p], np.float64(inputs[order[p]]), exposures[order[p]]
            for k in range(H.shape[1]):
                whole, own = seen[user, k], exposure * H[item, k]
                left = rests[user, k] if own > LARGE * whole else whole - own
                total[k] += x * (unseen[user, k] + left)
                total_gross[k] += x * gross[user, k]
        for k in range(H.shape[1]):
            found[item, k] += total[k]
            doubt[item, k] += total_gross[k]


@compiled
def expose_outputs(start, stop, indptr, users, order, inputs, excess, exposures, V, projected, rests, found):
    """Add to each item Σ_u e_ui W_uk − E_ui x_ui V_ik over its stored cells, and at last Σ_u e_ui.

    e = E − E_unseen, the excess over the exposure of the cluster's unseen cells; without ties E_unseen is 0, and e = E.
    """
    n_components, total = V.shape[1], np.empty(V.shape[1])
    for item in range(start, stop):
        total[:] = 0.0
        beyond = 0.0
        for p in range(indptr[item], indptr[item + 1]):
            user, e, exposure, x = users[p], excess[order[p]], exposures[order[p]], inputs[order[p]]
            beyond += e
            for k in range(n_components):
                whole, own = projected[user, k], x * V[item, k]
                left = rests[user, k] if own > LARGE * whole else whole - own
                total[k] += exposure * left - (exposure - e) * whole
        for k in range(n_components):
            found[item, k] += total[k]
        found[item, n_components] += beyond


@compiled
def expose_one_input(item, k, indptr, indices, inputs, exposures, unseen, labels, H):
    """Return Σ_u x_uj Σ_{i≠j} E_ui H_ik of one item and component, term by term."""
    total = 0.0
    for user in range(len(indptr) - 1):
        x, others, p = 0.0, 0.0, indptr[user]
        for q in range(indptr[user], indptr[user + 1]):
            x += inputs[q] if indices[q] == item else 0.0
        if x == 0.0:
            continue
        for i in range(len(H)):
            exposure = unseen[user, labels[i]]
            if p < indptr[user + 1] and indices[p] == i:
                exposure = exposures[p]
                p += 1
            others += 0.0 if i == item else exposure * H[i, k]
        total += x * others
    return total


@compiled
def expose_one_output(item, k, indptr, indices, inputs, exposures, unseen, labels, V):
    """Return Σ_u E_ui Σ_{j≠i} x_uj V_jk of one item and component, term by term."""
    total = 0.0
    for user in range(len(indptr) - 1):
        exposure, others = unseen[user, labels[item]], 0.0
        for p in range(indptr[user], indptr[user + 1]):
            if indices[p] == item:
                exposure = exposures[p]
            else:
                others += inputs[p] * V[indices[p], k]
        total += exposure * others
    return total


@compiled
def intensity_rows(start, stop, indptr, indices, inputs, V, H, b, least, found):
    """Set μ of each user's stored cells without the item's own part."""
    end, longest = indptr[stop] - 1, np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, total, run = np.empty(longest, H.dtype), np.empty(H.shape[1]), np.empty(H.shape[1], H.dtype)
    hidden = np.empty((2, H.shape[1]), H.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _sum_both(hidden[0], hidden[1], total, run, V, indices, first, last, inputs)
        _others_intensities(μ, hidden[0], hidden[1], indices, inputs, first, last, end, V, H, b, least)
        for p in range(first, last):
            found[p] = μ[p - first]


@compiled
def others_rows(start, stop, values, weights, scales, total, largest, rest, found):
    """Set each row to the weighted sum of all other rows, times its scale: `total` less its own part, or the `rest`."""
    for row in range(start, stop):
        for k in range(values.shape[1]):
            left = rest[k] if row == largest[k] else total[k] - weights[row] * np.float64(values[row, k])
            found[row, k] = left * scales[row]


@compiled
def quotient_rows(start, stop, old, allocated, exposed, most, found):
    """Set each entry to allocated / exposed, but not above `most`; where nothing is exposed the old one stays."""
    zero = old.dtype.type(0)
    for row in range(start, stop):
        for k in range(old.shape[1]):
            below = exposed[row, k]
            found[row, k] = min(allocated[row, k] / below, most) if below > zero else old[row, k]
