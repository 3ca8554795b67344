"""Compiled loops over rows: each call does rows `start` to `stop`, holds no lock and writes nothing but those rows.

A row is done by one thread in one order, so results have the same bits for any number of threads. No loop both stores
and sums up: LLVM makes two versions of such a loop, which add in different orders, and chooses by how close together
the arrays happen to lie. Sums run in the factors' own precision for at most RUN terms and then go to double: a float32
total of 10⁵ terms may lose 3 digits. Tiles of intensities, for exact exposures, are done as if every count were 0.
"""

import numpy as np

from nbmf.backends.cpu.compiler import compiler
from nbmf.backends.cpu.elementary import exp, log, log1p, prefetch, prefetch_row
from nbmf.backends.cpu.events import allocate_events

RUN = 128
AHEAD = 32  # non-zeros between asking for a factor row and using it (16: 5 % slower; 48: 2 %)
CACHE_LINE = 64
HALF_LN_2PI = 0.9189385332046727

# Sums may be reordered (else no dot product is vectorized), but NaN and infinity keep their meaning.
compiled = compiler(fastmath={"reassoc", "contract", "nsz", "arcp"})


@compiled
def gamma_moments(a):
    """Return z, P, ε + D/P and δ of a shape a, by Stirling's series at z = a + 8 and eight steps down, such that

    ψ(a) = ln z − ε − D/P,   lnΓ(a) = (z−½) ln z − z + ½ ln 2π + δ − ln P,   P = a(a+1)…(a+7),  D = dP/da.
    """
    product, slope = a, 1.0
    for step in range(1, 8):
        slope = slope * (a + step) + product
        product = product * (a + step)
    y = 1.0 / (a + 8.0)
    s = y * y
    epsilon = 1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12)))))
    delta = 1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360 - s / 156)))))
    return a + 8.0, product, 0.5 * y + s * epsilon + slope / product, y * delta


@compiled
def gamma_rows(
    start, stop, prior_shape, prior_rates, allocated, exposed, mean, geometric_mean,
    row_means, row_logs, row_entropies,
):  # fmt: skip
    """Moments of Gamma(a, b), a = prior_shape + allocated, b = prior rate + exposed, either of which may be one row.

        entropy = a − ln b + lnΓ(a) + (1−a)ψ(a) = 8.5 ln z − 8 + ½ ln 2π + δ − ln P + (a−1)(ε + D/P) − ln b

    with the names of `gamma_moments`. Terms of size a ln a never appear, so none cancel. Logarithms are needed only in
    sums and are taken of products of two.
    """
    n_components = mean.shape[1]
    half = (n_components + 1) // 2
    z, p, b = np.ones(2 * half), np.ones(2 * half), np.ones(2 * half)
    value, drop, rest = np.empty(n_components), np.empty(n_components), np.empty(n_components)
    for row in range(start, stop):
        prior_rate = prior_rates[row if len(prior_rates) > 1 else 0]
        rate_row = row if len(exposed) > 1 else 0
        for k in range(n_components):
            a, rate = prior_shape + allocated[row, k], prior_rate + exposed[rate_row, k]
            z[k], p[k], drop[k], delta = gamma_moments(a)
            b[k] = rate
            rest[k] = delta + (a - 1.0) * drop[k]
            value[k] = a / rate
            mean[row, k] = value[k]
            geometric_mean[row, k] = (a + 8.0) / rate * exp(-drop[k])
        sum_mean, sum_log, sum_entropy = 0.0, 0.0, n_components * (HALF_LN_2PI - 8.0)
        for k in range(n_components):
            sum_mean += value[k]
            sum_log -= drop[k]
            sum_entropy += rest[k]
        for k in range(half):
            log_z, log_b = log(z[k] * z[k + half]), log(b[k] * b[k + half])
            sum_log += log_z - log_b
            sum_entropy += 8.5 * log_z - log_b - log(p[k] * p[k + half])
        row_means[row], row_logs[row], row_entropies[row] = sum_mean, sum_log, sum_entropy


@compiled
def _sum_rows(total, run, table, indices, first, last, weights):
    """Set `total` to Σ_p weights[p] · table[indices[p]], p from first to last, by way of `run`, RUN terms at a time."""
    # four rows at a time: the running sum is then loaded and stored a quarter as often (0.021 s against 0.033 s)
    n_components = table.shape[1]
    total[:] = 0.0
    for start in range(first, last, RUN):
        stop = min(start + RUN, last)
        fours = stop - (stop - start) % 4
        run[:] = 0
        for p in range(start, fours, 4):
            a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
            wa, wb, wc, wd = weights[p], weights[p + 1], weights[p + 2], weights[p + 3]
            for k in range(n_components):
                run[k] += wa * table[a, k] + wb * table[b, k] + wc * table[c, k] + wd * table[d, k]
        for p in range(fours, stop):
            a, wa = indices[p], weights[p]
            for k in range(n_components):
                run[k] += wa * table[a, k]
        for k in range(n_components):
            total[k] += run[k]


@compiled
def sum_groups(start, stop, bounds, members, ones, values, sums):
    """Set each group's row of `sums` to the sum of its members' rows of `values`."""
    total, run = np.empty(values.shape[1]), np.empty(values.shape[1], values.dtype)
    for group in range(start, stop):
        _sum_rows(total, run, values, members, bounds[group], bounds[group + 1], ones)
        sums[group] = total


@compiled
def _intensities(found, users, user, items, indices, first, last, end):
    """Dot products of one user's row with the rows of the user's items; `end` is the last non-zero of all."""
    line, zero = CACHE_LINE // items.itemsize, users.dtype.type(0)
    fours = last - (last - first) % 4
    for p in range(first, fours, 4):  # four at a time, as in `_sum_rows`
        a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
        for ahead in range(p + AHEAD, p + AHEAD + 4):
            prefetch_row(items, indices[min(ahead, end)], line)
        dot_a = dot_b = dot_c = dot_d = zero
        for k in range(users.shape[1]):
            weight = users[user, k]
            dot_a += weight * items[a, k]
            dot_b += weight * items[b, k]
            dot_c += weight * items[c, k]
            dot_d += weight * items[d, k]
        place = p - first
        found[place], found[place + 1], found[place + 2], found[place + 3] = dot_a, dot_b, dot_c, dot_d
    for p in range(fours, last):
        prefetch_row(items, indices[min(p + AHEAD, end)], line)
        dot_a = zero
        for k in range(users.shape[1]):
            dot_a += users[user, k] * items[indices[p], k]
        found[p - first] = dot_a


@compiled
def _tie(unseen, n_unseen, concentration, logs):
    """Turn Σ μ over a user's unseen cells of each cluster into their exposure A_uc; return their log-evidence."""
    zero, one, total = unseen.dtype.type(0), unseen.dtype.type(1), 0.0
    scale = one / concentration
    for c in range(len(unseen)):
        unseen[c] = max(unseen[c], zero) / max(n_unseen[c], one)  # the mean; below 0 is rounding
        logs[c] = log1p(unseen[c] * scale)
    for c in range(len(unseen)):
        total -= n_unseen[c] * np.float64(logs[c])
    for c in range(len(unseen)):
        # a user who has every item of the cluster has no unseen cells in it
        unseen[c] = concentration / (concentration + unseen[c]) if n_unseen[c] > zero else zero
    return concentration * total


@compiled
def allocate_rows(
    start, stop, indptr, indices, counts, users, items, least, law, scales, shares, allocated, log_evidence, precise
):  # fmt: skip
    """For each user set shares[p] = y/λ of the non-zeros, by which counts are allocated, and their sums; add Σ y ln λ.

    `users` and `items` are geometric means. `allocated` is None if the sums are not wanted. A negative count is an
    unknown cell. `precise` takes logarithms in double, as large counts multiply errors. Where counts are made of
    several events, `law` is one of `events.LAWS` and not None, E[n | y] replaces y, and log_events y ln λ;
    `scales` are rows × columns, either of which may be 1.
    """
    n_components, end, zero = users.shape[1], indptr[stop] - 1, users.dtype.type(0)
    most = np.finfo(users.dtype).max  # what overflows is cut short, as a product of 0 and infinity is no number
    λ = np.empty(np.max(indptr[start + 1 : stop + 1] - indptr[start:stop]), users.dtype)
    sums, run = np.empty(n_components), np.empty(n_components, users.dtype)
    if law is not None:
        work = np.empty((3, len(λ)))
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _intensities(λ, users, user, items, indices, first, last, end)
        for p in range(first, last):
            λ[p - first] = max(λ[p - first], least)
            shares[p] = min(max(counts[p], zero) / λ[p - first], most)
        if law is not None:  # each count may be several events
            cells = indices[first:last], counts[first:last], λ, shares[first:last], work
            log_evidence[user] += allocate_events(law, scales[user if len(scales) > 1 else 0], *cells)
        if allocated is not None:  # now, while the first-level cache has the items' rows
            _sum_rows(sums, run, items, indices, first, last, shares)
            for k in range(n_components):
                allocated[user, k] = users[user, k] * min(sums[k], most)
        total = 0.0
        if law is not None:
            continue
        if precise:
            for p in range(first, last):
                total += max(counts[p], zero) * log(np.float64(λ[p - first]))
        else:
            for p in range(last - first):
                λ[p] = log(λ[p])
            for p in range(first, last):
                total += max(counts[p], zero) * np.float64(λ[p - first])
        log_evidence[user] += total


@compiled
def _log_evidence_of_seen(counts, μ, concentration, rest, precise):
    """Return Σ −y ln(α+μ) − rest ln(1 + μ/α) over a user's stored cells, −y ln α apart; μ becomes logarithms."""
    # an unknown cell has −α for y in the sum with ln(1 + μ/α): it takes off what was added as if its count were 0
    zero, one, total = μ.dtype.type(0), μ.dtype.type(1), 0.0
    scale, log_concentration = one / concentration, log(np.float64(concentration))
    if precise:
        for p in range(len(counts)):
            count = np.float64(counts[p] if counts[p] >= zero else -concentration)
            logarithm = log1p(np.float64(μ[p]) / np.float64(concentration))
            total -= max(counts[p], zero) * log_concentration + (count + rest) * logarithm
        return total
    for p in range(len(counts)):
        μ[p] = log1p(μ[p] * scale)
    for p in range(len(counts)):
        count = np.float64(counts[p] if counts[p] >= zero else -concentration)
        total -= max(counts[p], zero) * log_concentration + (count + rest) * np.float64(μ[p])
    return total


@compiled
def _expose_by_item(indices, counts, μ, concentrations, excess):
    """Set `excess` to y/(α+μ) of a user's stored cells, with the α of the item; return −Σ y ln(α+μ)."""
    zero, total = μ.dtype.type(0), 0.0
    for p in range(len(counts)):
        α = concentrations[indices[p]]
        count = counts[p] if counts[p] >= zero else -α
        excess[p] = count / (α + μ[p])
    for p in range(len(counts)):
        α = np.float64(concentrations[indices[p]])
        count = np.float64(counts[p]) if counts[p] >= zero else -α
        total -= max(counts[p], zero) * log(α) + count * log1p(np.float64(μ[p]) / α)
    return total


@compiled
def expose_rows(
    start, stop, indptr, indices, counts, users, items, concentrations, item_concentrations, labels, cluster_sizes,
    excess, unseen, exposed, log_evidence, precise,
):  # fmt: skip
    """For each user set excess[p], by how much ⟨a⟩ of a non-zero exceeds that of an unseen cell, and the sums of those.

    If exact that is y/(α+μ); `labels`, `cluster_sizes` and `unseen` are None, and `exposed` is added to. If tied it is
    ⟨a⟩ − A_uc; `unseen` comes with ⟨w_u⟩·S_c and becomes A_uc, and `exposed` is set. `users` and `items` are means.
    What depends on μ is added to `log_evidence`: −y ln(α+μ), and −α ln(1 + μ/α) if tied (else tiles have done that).
    `exposed` is None if the sums are not wanted. For an unknown cell, a negative count, ⟨a⟩ is 0: −α is in its place.
    Exact exposures may have the α of the item, else `item_concentrations` is None.
    """
    n_components, end, zero, one = users.shape[1], indptr[stop] - 1, users.dtype.type(0), users.dtype.type(1)
    longest = np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    μ, sums, run = np.empty(longest, users.dtype), np.empty(n_components), np.empty(n_components, users.dtype)
    if unseen is not None:
        n_unseen, logs = np.empty(unseen.shape[1], users.dtype), np.empty(unseen.shape[1], users.dtype)
        clusters = np.empty(longest, labels.dtype)
    for user in range(start, stop):
        first, last, concentration, rest = indptr[user], indptr[user + 1], concentrations[user], 0.0
        _intensities(μ, users, user, items, indices, first, last, end)
        if item_concentrations is not None:
            of_cells = indices[first:last], counts[first:last], μ
            log_evidence[user] += _expose_by_item(*of_cells, item_concentrations, excess[first:last])
        elif unseen is None:
            for p in range(first, last):
                count = counts[p] if counts[p] >= zero else -concentration
                excess[p] = count / (concentration + μ[p - first])
        else:
            shared, rest = unseen[user], np.float64(concentration)
            n_unseen[:] = cluster_sizes
            for p in range(last - first):
                c = labels[indices[first + p]]
                clusters[p] = c
                shared[c] -= μ[p]
                n_unseen[c] -= one
            log_evidence[user] += _tie(shared, n_unseen, concentration, logs)
            for p in range(first, last):
                count = counts[p] if counts[p] >= zero else -concentration
                excess[p] = (concentration + count) / (concentration + μ[p - first])
            for p in range(first, last):
                excess[p] -= shared[clusters[p - first]]
        if exposed is not None:
            _sum_rows(sums, run, items, indices, first, last, excess)
            for k in range(n_components):
                exposed[user, k] = sums[k] if unseen is not None else exposed[user, k] + sums[k]
        if item_concentrations is None:
            log_evidence[user] += _log_evidence_of_seen(counts[first:last], μ, concentration, rest, precise)


@compiled
def sum_rows(start, stop, indptr, indices, order, shares, excess, users, items, allocated, exposed):
    """Add to each item's sums the latent variables of its non-zeros; `order` finds them among the users'.

    `users` is rows × 1 × K, geometric means, or rows × 2 × K, with the means beside them; for Poisson `excess` is None.
    """
    n_components, end, zero = users.shape[2], indptr[stop] - 1, users.dtype.type(0)
    line, most = CACHE_LINE // users.itemsize, np.finfo(users.dtype).max  # see `allocate_rows`
    row_allocated, row_exposed = np.empty(n_components, users.dtype), np.empty(n_components, users.dtype)
    sum_allocated, sum_exposed = np.empty(n_components), np.empty(n_components)
    for item in range(start, stop):
        first, last = indptr[item], indptr[item + 1]
        sum_allocated[:] = 0.0
        sum_exposed[:] = 0.0
        for run in range(first, last, RUN):
            row_allocated[:] = zero
            row_exposed[:] = zero
            for p in range(run, min(run + RUN, last)):
                ahead, user = order[min(p + AHEAD, end)], indices[p]
                prefetch(shares, ahead)
                prefetch_row(users, indices[min(p + AHEAD // 2, end)], line)
                share = shares[order[p]]
                for k in range(n_components):
                    row_allocated[k] += share * users[user, 0, k]
                if excess is not None:
                    prefetch(excess, ahead)
                    more = excess[order[p]]
                    for k in range(n_components):
                        row_exposed[k] += more * users[user, 1, k]
            for k in range(n_components):
                sum_allocated[k] += row_allocated[k]
                sum_exposed[k] += row_exposed[k]
        for k in range(n_components):
            allocated[item, k] += items[item, k] * min(sum_allocated[k], most)
            if excess is not None:
                exposed[item, k] += sum_exposed[k]


@compiled
def sum_log1p(row, scale, moderate):
    """Σ ln(1 + scale · x) over a row; if `moderate`, by products of eight: 1 + x < 10³⁸ keeps them finite."""
    total, eighth = 0.0, len(row) // 8 if moderate else 0
    for j in range(eighth):
        more = 0.0  # Π(1 + x) − 1: without the 1, small x keep their digits
        for part in range(8):
            x = np.float64(row[part * eighth + j]) * scale
            more += x + more * x
        total += log1p(more)
    for j in range(8 * eighth, len(row)):
        total += log1p(np.float64(row[j]) * scale)
    return total


@compiled
def expose_tile(intensity, row_concentrations, column_concentrations, row_logs):
    """Replace each intensity μ of a tile by the exposure α/(α+μ) of an unseen cell; take α ln(1 + μ/α) off `row_logs`.

    α is that of the row, or of the column unless those are None. `row_logs` is None if no logarithms are wanted.
    """
    for row in range(len(intensity)):
        if column_concentrations is None:
            concentration = row_concentrations[row]
            if row_logs is not None:
                row_logs[row] -= concentration * sum_log1p(intensity[row], 1.0 / np.float64(concentration), True)
        elif row_logs is not None:
            total = 0.0
            for j in range(intensity.shape[1]):
                α = np.float64(column_concentrations[j])
                total += α * log1p(np.float64(intensity[row, j]) / α)
            row_logs[row] -= total
        for j in range(intensity.shape[1]):
            α = concentration if column_concentrations is None else column_concentrations[j]
            intensity[row, j] = α / (α + intensity[row, j])


@compiled
def slope_tile(intensity, concentrations, slopes, curvatures):
    """Add up ∂/∂α and ∂²/∂α² of −α ln(1 + μ/α): −ln(1 + μ/α) + μ/(α+μ) and μ²/(α(α+μ)²), α that of the row."""
    for row in range(len(intensity)):
        α, slope, curvature = np.float64(concentrations[row]), 0.0, 0.0
        for j in range(intensity.shape[1]):
            μ = np.float64(intensity[row, j])
            share = μ / (α + μ)
            slope += share - log1p(μ / α)
            curvature += share * share
        slopes[row] += slope
        curvatures[row] += curvature / α
