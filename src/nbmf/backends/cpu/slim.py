"""Compiled loops for item–item weights: each item is a regression of its own on the users' other items.

    μ_ui = b_i + Σ_j x_uj B_ji,   B_ji ← B_ji · Σ_u x_uj t_ui/μ_ui / (Σ_u x_uj (α + t_ui)/(α + μ_ui) + ρ)

`fit_lanes` does LANES items side by side with all others as neighbours: a non-zero of x is loaded once for all of them.
`fit_candidates` does one item with few neighbours, and touches only users who have one of those or the item itself; all
others have μ = b. Sums and loops are made as in kernels.py.
"""

import numpy as np

from nbmf.backends.cpu.elementary import log1p
from nbmf.backends.cpu.kernels import RUN, compiled

LANES = 64  # 1.0 ns for 16 numbers, against 1.5 with 32 lanes and 2.2 with 16
GOING, SETTLED, FALLEN = 0, 1, 2
ROUNDING = RUN  # units in the last place that a sum of RUN terms may lose, of the size of the objective's terms


@compiled
def _multiply(indptr, indices, values, table, products):
    """Set each row of `products` to Σ_p values[p] · table[indices[p]] over the row's entries, all LANES wide."""
    run, total = np.empty(LANES, table.dtype), np.empty(LANES)
    for row in range(len(indptr) - 1):
        total[:] = 0.0
        for start in range(indptr[row], indptr[row + 1], RUN):
            stop = min(start + RUN, indptr[row + 1])
            fours = stop - (stop - start) % 4
            run[:] = 0
            for p in range(start, fours, 4):  # the running sum is then loaded and stored a quarter as often
                a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
                xa, xb, xc, xd = values[p], values[p + 1], values[p + 2], values[p + 3]
                for k in range(LANES):
                    run[k] += xa * table[a, k] + xb * table[b, k] + xc * table[c, k] + xd * table[d, k]
            for p in range(fours, stop):
                a, xa = indices[p], values[p]
                for k in range(LANES):
                    run[k] += xa * table[a, k]
            for k in range(LANES):
                total[k] += run[k]
        for k in range(LANES):
            products[row, k] = total[k]


@compiled
def _sum_rows(table, total):
    run = np.empty(LANES, table.dtype)
    total[:] = 0.0
    for start in range(0, len(table), RUN):
        run[:] = 0
        for row in range(start, min(start + RUN, len(table))):
            for k in range(LANES):
                run[k] += table[row, k]
        for k in range(LANES):
            total[k] += run[k]


@compiled
def _judge(now, before, size, tol, stretched, epsilon):
    """Return whether an item goes on, and whether its last step, a stretched one, must be taken back."""
    if before == -np.inf:
        return GOING, False
    if not now - before >= -ROUNDING * epsilon * (size + abs(before)):
        return (GOING, True) if stretched else (FALLEN, False)
    return SETTLED if 0 <= now - before <= tol else GOING, False


@compiled
def _expect(items, targets, rows, α, penalty, weights, intercepts, intensity, exposure, shares, objective, size):
    """Set exposures (α+t)/(α+μ), shares t/μ and, less its constant, the objective of each lane; `size` of its terms."""
    scale, least = weights.dtype.type(1) / α, np.finfo(weights.dtype).tiny
    _multiply(*rows, weights, intensity)
    for user in range(len(intensity)):
        for k in range(LANES):
            intensity[user, k] += intercepts[k]
            exposure[user, k] = α / (α + intensity[user, k])
    _sum_rows(weights, size)
    for k in range(LANES):
        objective[k], size[k] = -penalty * size[k], 0.0
    for k in range(len(items)):
        for p in range(targets[0][items[k]], targets[0][items[k] + 1]):
            user, t = targets[1][p], targets[2][p]
            μ = max(intensity[user, k], least)
            shares[user, k] = t / μ
            exposure[user, k] += t / (α + μ)
            term = t * log1p(np.float64(α) / np.float64(μ))
            objective[k] -= term
            size[k] += term
    for user in range(len(intensity)):
        for k in range(LANES):
            intensity[user, k] = log1p(intensity[user, k] * scale)
    zeros = np.empty(LANES)
    _sum_rows(intensity, zeros)
    for k in range(LANES):
        objective[k] -= α * zeros[k]
        size[k] += α * zeros[k]


@compiled
def _update(items, columns, penalty, exposure, shares, moves, stretched, ratio, allocated, weights, intercepts):
    """Multiply the weights and intercepts of the lanes that move by their ratios, or by those to the power 3/2."""
    one, least = weights.dtype.type(1), np.finfo(weights.dtype).tiny  # a neighbour may be an item without users
    _multiply(*columns, exposure, ratio)
    _multiply(*columns, shares, allocated)
    for j in range(len(weights)):
        for k in range(LANES):
            ratio[j, k] = allocated[j, k] / max(ratio[j, k] + penalty, least)
    for j in range(len(weights)):
        for k in range(LANES):
            factor = ratio[j, k] * (np.sqrt(ratio[j, k]) if stretched[k] else one)
            weights[j, k] *= factor if moves[k] else one
    above, below = np.empty(LANES), np.empty(LANES)
    _sum_rows(shares, above)
    _sum_rows(exposure, below)
    for k in range(len(items)):
        weights[items[k], k] = 0
        if moves[k]:
            intercepts[k] *= above[k] / below[k]


@compiled
def fit_lanes(
    items, rows, columns, targets, concentration, penalty, constants, max_iter, tol, stretch,
    weights, intercepts, gains, n_sweeps, states, stop,
):  # fmt: skip
    """Fit some items, at most LANES, on all others, until a sweep adds no more than `tol` to an item's objective.

    `rows` and `columns` are x by user and by item, each (indptr, indices, values), and `targets` is t by item.
    `constants` are the part of each item's log-likelihood that depends on neither b nor B. With `stretch` the ratio is
    taken to the power 3/2, until that lowers the objective. `weights`, n_items × LANES and 0 where an item meets
    itself, are B as it starts and as it ends. To `gains` are added the objective of the start and what each sweep adds.
    When another thread sets `stop`, the fit ends where it is.
    """
    dtype, n_users, n_items = weights.dtype, len(rows[0]) - 1, len(weights)
    intensity, exposure = np.empty((n_users, LANES), dtype), np.empty((n_users, LANES), dtype)
    shares, ratio = np.zeros((n_users, LANES), dtype), np.ones((n_items, LANES), dtype)
    allocated, objective, size = np.empty((n_items, LANES), dtype), np.empty(LANES), np.empty(LANES)
    before, stretched, moves = np.full(LANES, -np.inf), np.full(LANES, stretch), np.zeros(LANES, np.bool_)
    states[items] = GOING
    for sweep in range(max_iter + 1):
        settings = concentration, penalty
        _expect(items, targets, rows, *settings, weights, intercepts, intensity, exposure, shares, objective, size)
        for k in range(len(items)):
            item, now = items[k], objective[k] + constants[items[k]]
            moves[k] = states[item] == GOING
            if not moves[k]:
                continue
            states[item], back = _judge(now, before[k], size[k], tol, stretched[k], np.finfo(dtype).eps)
            if back:  # to where the plain step leads; it is judged in the next sweep
                for j in range(n_items):
                    weights[j, k] /= np.sqrt(ratio[j, k]) if ratio[j, k] > 0 else dtype.type(1)
                stretched[k], now = False, before[k]
            gains[sweep] += now - (before[k] if sweep else 0.0)
            n_sweeps[item] = sweep
            before[k], moves[k] = now, states[item] == GOING and not back
        if sweep == max_iter or stop[0] or not np.any(states[items] == GOING):
            return
        _update(items, columns, penalty, exposure, shares, moves, stretched, ratio, allocated, weights, intercepts)


@compiled
def _touch(item, near, columns, targets, place, touched, local):
    """Number the users who have the item, then those who have a neighbour; `local` is that of neighbours' entries."""
    n_touched, entry = 0, 0
    for p in range(targets[0][item], targets[0][item + 1]):
        place[targets[1][p]] = n_touched
        touched[n_touched] = targets[1][p]
        n_touched += 1
    for j in near:
        for p in range(columns[0][j], columns[0][j + 1]):
            user = columns[1][p]
            if place[user] < 0:
                place[user] = n_touched
                touched[n_touched] = user
                n_touched += 1
            local[entry] = place[user]
            entry += 1
    return n_touched


@compiled
def _expect_touched(
    near, columns, local, counts, α, penalty, weights, intercept, intensity, exposure, shares, n_others
):  # fmt: skip
    """As `_expect`, for one item, which `n_others` users do not touch; also return the sums of exposures and shares."""
    scale, least = weights.dtype.type(1) / α, np.finfo(weights.dtype).tiny
    objective, size, entry = 0.0, 0.0, 0
    intensity[:] = intercept
    for n in range(len(near)):
        begin, weight = columns[0][near[n]], weights[n]
        length = columns[0][near[n] + 1] - begin
        for p in range(length):
            intensity[local[entry + p]] += columns[2][begin + p] * weight
        entry += length
        objective -= penalty * np.float64(weight)
    for user in range(len(intensity)):
        exposure[user] = α / (α + intensity[user])
    sum_shares = 0.0
    for p in range(len(counts)):
        t, μ = counts[p], max(intensity[p], least)
        shares[p] = t / μ
        exposure[p] += t / (α + μ)
        term = t * log1p(np.float64(α) / np.float64(μ))
        sum_shares += t / μ
        objective -= term
        size += term
    sum_exposures, zeros = n_others * α / (α + intercept), n_others * log1p(np.float64(intercept * scale))
    for user in range(len(intensity)):
        intensity[user] = log1p(intensity[user] * scale)
    for user in range(len(intensity)):
        zeros += intensity[user]
    for user in range(len(exposure)):
        sum_exposures += exposure[user]
    return objective - α * zeros, size + α * zeros, sum_exposures, sum_shares


@compiled
def _update_touched(near, columns, local, penalty, exposure, shares, stretched, ratio, weights):
    entry = 0
    for n in range(len(near)):
        begin = columns[0][near[n]]
        length = columns[0][near[n] + 1] - begin
        exposed, allocated = 0.0, 0.0
        for p in range(length):
            exposed += columns[2][begin + p] * exposure[local[entry + p]]
        for p in range(length):
            allocated += columns[2][begin + p] * shares[local[entry + p]]
        entry += length
        ratio[n] = allocated / max(exposed + penalty, np.finfo(weights.dtype).tiny)
    for n in range(len(near)):
        weights[n] *= ratio[n] * (np.sqrt(ratio[n]) if stretched else weights.dtype.type(1))


@compiled
def fit_candidates(
    start, end, bounds, neighbours, columns, targets, n_users, concentration, penalty, constants, max_iter, tol,
    stretch, weights, intercepts, gains, n_sweeps, states, stop,
):  # fmt: skip
    """Fit items `start` to `end`, each on its own neighbours: those of item i are neighbours[bounds[i] : bounds[i+1]].

    `weights` has one number per neighbour, B as it starts and as it ends; the others are as in `fit_lanes`.
    """
    dtype, longest, most = weights.dtype, 0, 0
    for item in range(start, end):
        near = neighbours[bounds[item] : bounds[item + 1]]
        longest, most = max(longest, np.sum(columns[0][near + 1] - columns[0][near])), max(most, len(near))
    place = np.full(n_users, -1, np.int32)  # of a user among those that the item's regression touches
    touched, local = np.empty(n_users, np.int32), np.empty(longest, np.uint32)
    intensity, exposure, shares = np.empty(n_users, dtype), np.empty(n_users, dtype), np.zeros(n_users, dtype)
    ratio = np.ones(most, dtype)
    for item in range(start, end):
        own, near = weights[bounds[item] : bounds[item + 1]], neighbours[bounds[item] : bounds[item + 1]]
        counts = targets[2][targets[0][item] : targets[0][item + 1]]
        n = _touch(item, near, columns, targets, place, touched, local)
        parts, before, stretched = (intensity[:n], exposure[:n], shares[:n]), -np.inf, stretch
        states[item] = GOING
        for sweep in range(max_iter + 1):
            now, size, sum_exposures, sum_shares = _expect_touched(
                near, columns, local, counts, concentration, penalty, own, intercepts[item], *parts, n_users - n
            )
            now += constants[item]
            states[item], back = _judge(now, before, size, tol, stretched, np.finfo(dtype).eps)
            if back:
                for j in range(len(near)):
                    own[j] /= np.sqrt(ratio[j]) if ratio[j] > 0 else dtype.type(1)
                stretched, now = False, before
            gains[sweep] += now - (before if sweep else 0.0)
            n_sweeps[item] = sweep
            before = now
            if states[item] != GOING or sweep == max_iter or stop[0]:
                break
            if not back:
                _update_touched(near, columns, local, penalty, *parts[1:], stretched, ratio, own)
                intercepts[item] *= sum_shares / sum_exposures
        place[touched[:n]] = -1
        shares[: len(counts)] = 0


@compiled
def choose_candidates(start, stop, rows, targets, popularity, n_neighbours, chosen, n_chosen):
    """For each of items `start` to `stop` choose those that go with it most often, by Σ_u x_uj t_ui/√(Σ_u x_uj)."""
    # those that never go with the item are not chosen, as the first update would set their weights to 0
    n_items = len(popularity)
    together, met = np.zeros(n_items), np.empty(n_items, np.int64)
    for item in range(start, stop):
        n_met = 0
        for p in range(targets[0][item], targets[0][item + 1]):
            user, t = targets[1][p], targets[2][p]
            for q in range(rows[0][user], rows[0][user + 1]):
                j = rows[1][q]
                if together[j] == 0:
                    met[n_met] = j
                    n_met += 1
                together[j] += t * rows[2][q]
        found = np.sort(met[:n_met])
        found = found[found != item]
        strength = together[found] / np.sqrt(popularity[found])
        together[met[:n_met]] = 0
        if len(found) > n_neighbours:
            best = np.argsort(-strength, kind="mergesort")[:n_neighbours]
            found = np.sort(found[best])
        n_chosen[item] = len(found)
        chosen[item - start, : len(found)] = found
