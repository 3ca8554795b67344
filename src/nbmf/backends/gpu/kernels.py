"""Kernels over runs of non-zeros, over clusters and over posteriors, for one GPU; passes.py says what each pass means.

A program does one run, row or block of rows and writes nothing else, without atomic sums: the same bits every time.
Logarithms and sums within a run are of the factors' own precision; what is summed across rows is double.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

compiled: Callable[[Any], Any] = triton.jit
LN_2 = tl.constexpr(0.6931471805599453)
HALF_LN_2PI = tl.constexpr(0.9189385332046727)


@compiled
def log1p(x):
    """ln(1 + x) for x from 0, in the precision of x; in double the rounding of 1 + x is corrected in proportion."""
    if x.dtype == tl.float32:
        return _log1p_single(x)
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@compiled
def _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS: tl.constexpr):
    """RUNS runs of like length: row, first and last non-zero, slot. The last program may have fewer, of row −1."""
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    there = run < n_runs
    first, last = tl.load(run_first + run, mask=there, other=0), tl.load(run_last + run, mask=there, other=0)
    row, slot = tl.load(run_row + run, mask=there, other=-1), tl.load(run_slot + run, mask=there, other=-1)
    return row.to(tl.int64)[:, None], first[None, :], last[None, :], slot.to(tl.int64)[:, None]


@compiled
def _rows(table, row, k, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows of a table, all finite: none is masked, which would cost more than a needless read with a weight of 0."""
    place = table + row.to(tl.int64)[:, :, None] * K + k[None, None, :]
    if K == BLOCK_K:
        return tl.load(place)
    return tl.load(place, mask=(k < K)[None, None, :], other=0.0)


@compiled
def _store_sums(slot, row, total, sums, partials, k, K: tl.constexpr):
    inside = (k < K)[None, :]
    tl.store(sums + row * K + k[None, :], total, mask=inside & (slot < 0) & (row >= 0))
    tl.store(partials + slot * K + k[None, :], total, mask=inside & (slot >= 0))


@compiled
def allocate_runs(
    run_row, run_first, run_last, run_slot, n_runs, columns, values, users, items, least, shares, sums, partials,
    RUNS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, SUMS: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """`passes.allocate`, RUNS runs per program; logarithms, which would fill the registers, are left to `log_shares`.

    MOST is the largest finite number, where sums are cut short. Here and below, the columns of the next step are asked
    for before this one's rows are waited for.
    """
    row, first, last, slot = _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS)
    k = tl.arange(0, BLOCK_K)
    w = tl.load(users + row * K + k[None, :], mask=(k < K)[None, :] & (row >= 0), other=0.0)
    total, smallest = tl.zeros([RUNS, BLOCK_K], users.dtype.element_ty), tl.load(least)
    p = first + tl.arange(0, STEP)[:, None]
    column = tl.load(columns + p, mask=p < last, other=0)
    for _ in range(0, tl.max(last - first), STEP):
        h = _rows(items, column, k, K, BLOCK_K)
        y = tl.maximum(tl.load(values + p, mask=p < last, other=0.0), 0.0)
        column = tl.load(columns + p + STEP, mask=p + STEP < last, other=0)
        share = tl.minimum(y / tl.maximum(tl.sum(h * w[None, :, :], axis=2), smallest), MOST)
        tl.store(shares + p, share, mask=p < last)
        if SUMS:
            total += tl.sum(share[:, :, None] * h, axis=0)
        p += STEP
    if SUMS:
        _store_sums(slot, row, tl.minimum(total, MOST) * w, sums, partials, k, K)


@compiled
def log_shares(values, shares, logs, nnz, BLOCK: tl.constexpr):
    """Σ y ln λ over a block of non-zeros, from λ = y/share."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(values + p, mask=p < nnz, other=0.0)
    share = tl.load(shares + p, mask=p < nnz, other=1.0)
    log = tl.where(y > 0, y * tl.log(tl.where(y > 0, y, 1.0) / tl.where(y > 0, share, 1.0)), 0.0)
    tl.store(logs + tl.program_id(0), tl.sum(log.to(tl.float64), axis=0))


@compiled
def expose_runs(
    run_row, run_first, run_last, run_slot, n_runs, columns, values, users, items, alphas, excess, sums, partials, logs,
    RUNS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, SUMS: tl.constexpr,
    BY_ITEM: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """`passes.expose`, RUNS runs per program, with the users' `alphas` or, BY_ITEM, the items'; if PLAIN, only μ."""
    row, first, last, slot = _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS)
    k = tl.arange(0, BLOCK_K)
    w = tl.load(users + row * K + k[None, :], mask=(k < K)[None, :] & (row >= 0), other=0.0)
    total, log = tl.zeros([RUNS, BLOCK_K], users.dtype.element_ty), tl.zeros([STEP, RUNS], tl.float64)
    p = first + tl.arange(0, STEP)[:, None]
    column = tl.load(columns + p, mask=p < last, other=0)
    for _ in range(0, tl.max(last - first), STEP):
        h, inside = _rows(items, column, k, K, BLOCK_K), p < last
        if not PLAIN:
            y = tl.load(values + p, mask=inside, other=0.0)
            if BY_ITEM:
                alpha = tl.load(alphas + column, mask=inside, other=1.0)
            else:
                alpha = tl.load(alphas + tl.trans(row), mask=tl.trans(row) >= 0, other=1.0) + tl.zeros_like(y)
        column = tl.load(columns + p + STEP, mask=p + STEP < last, other=0)
        intensity = tl.sum(h * w[None, :, :], axis=2)
        if PLAIN:
            tl.store(excess + p, intensity, mask=inside)
        else:
            count = tl.where(y < 0, -alpha, y)
            more = count / (alpha + intensity)
            tl.store(excess + p, more, mask=inside)
            log -= _log_evidence(y, intensity, alpha, count)
            if SUMS:
                total += tl.sum(more[:, :, None] * h, axis=0)
        p += STEP
    if not PLAIN:
        tl.store(logs + tl.program_id(0), tl.sum(log))
    if SUMS:
        _store_sums(slot, row, total, sums, partials, k, K)


@compiled
def _log_evidence(y, intensity, alpha, weight):
    """max(y, 0) ln α + weight ln(1 + μ/α)."""
    return (tl.maximum(y, 0.0) * tl.log(alpha) + weight * log1p(intensity / alpha)).to(tl.float64)


@compiled
def tie_rows(
    order, indptr, labels, values, n_unseens, alphas, excess, unseen, logs, n_rows,
    ROWS: tl.constexpr, STEP: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A_uc of ROWS users from ⟨w_u⟩·S_c, in `unseen`; and ⟨a⟩ − A_uc of the non-zeros from their μ, in `excess`.

    `order` has users with about as many non-zeros next to each other.
    """
    n, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_C)
    row = tl.load(order + n, mask=n < n_rows, other=0).to(tl.int64)
    first = tl.load(indptr + row, mask=n < n_rows, other=0)
    last = tl.load(indptr + row + 1, mask=n < n_rows, other=0)
    place, there = row[:, None] * C + c[None, :], (n < n_rows)[:, None] & (c < C)[None, :]
    alpha, mass = tl.load(alphas + row)[:, None], tl.load(unseen + place, mask=there, other=0.0)
    n_unseen = tl.load(n_unseens + place, mask=there, other=0)
    p = first[None, :] + tl.arange(0, STEP)[:, None]
    for _ in range(0, tl.max(last - first), STEP):
        inside = p < last[None, :]
        label = tl.load(labels + p, mask=inside, other=0).to(tl.int32)
        intensity = tl.load(excess + p, mask=inside, other=0.0)
        mass -= tl.sum(tl.where(label[:, :, None] == c[None, None, :], intensity[:, :, None], 0.0), axis=0)
        p += STEP
    mean = tl.maximum(mass, 0.0) / tl.maximum(n_unseen, 1).to(mass.dtype)
    tl.store(unseen + place, tl.where(n_unseen > 0, alpha / (alpha + mean), 0.0), mask=there)
    tl.debug_barrier()  # what was stored is read below, by other threads of this program
    log = -tl.sum(alpha.to(tl.float64) * (n_unseen.to(mass.dtype) * log1p(mean / alpha)).to(tl.float64))
    p = first[None, :] + tl.arange(0, STEP)[:, None]
    for _ in range(0, tl.max(last - first), STEP):
        inside = p < last[None, :]
        label = tl.load(labels + p, mask=inside, other=0).to(tl.int32)
        intensity, y = tl.load(excess + p, mask=inside, other=0.0), tl.load(values + p, mask=inside, other=0.0)
        of_zero = tl.load(unseen + row[None, :] * C + label, mask=inside, other=0.0)
        own = tl.load(alphas + row)[None, :] + tl.zeros_like(y)
        count = own + tl.where(y < 0, -own, y)
        tl.store(excess + p, count / (own + intensity) - of_zero, mask=inside)
        log -= tl.sum(tl.where(inside, _log_evidence(y, intensity, own, count), 0.0))
        p += STEP
    tl.store(logs + tl.program_id(0), log)


@compiled
def multiply_rows(
    rows, table, added, found, n_rows,
    ROWS: tl.constexpr, M: tl.constexpr, BLOCK_M: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """ROWS rows times a small table, M × N; if ADD, on top of what is there, and at least 0."""
    row, m, n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    place, inside, there = row[:, None] * N + n[None, :], (row < n_rows)[:, None], (row < n_rows)[:, None]
    if M < BLOCK_M:
        there &= (m < M)[None, :]
    if N < BLOCK_N:
        inside &= (n < N)[None, :]
    a = tl.load(rows + row[:, None] * M + m[None, :], mask=there, other=0.0)
    b = tl.load(table + m[:, None] * N + n[None, :], mask=(m < M)[:, None] & (n < N)[None, :], other=0.0)
    total = tl.dot(a, b, input_precision="tf32x3")
    if ADD:
        total = tl.maximum(total + tl.load(added + place, mask=inside, other=0.0), 0.0)
    tl.store(found + place, total, mask=inside)


@compiled
def sum_runs(
    run_row, run_first, run_last, run_slot, n_runs, columns, order, weights, table, factors, sums, partials,
    RUNS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, ORDERED: tl.constexpr,
    SCALED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """`passes.sum_users` and `sum_items`, RUNS runs per program: weighted sums of gathered rows.

    If SCALED, sums are cut short at MOST and multiplied by the rows' `factors`.
    """
    row, first, last, slot = _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([RUNS, BLOCK_K], table.dtype.element_ty)
    p = first + tl.arange(0, STEP)[:, None]
    column = tl.load(columns + p, mask=p < last, other=0)
    source = tl.load(order + p, mask=p < last, other=0) if ORDERED else p
    for _ in range(0, tl.max(last - first), STEP):
        h = _rows(table, column, k, K, BLOCK_K)
        weight = tl.load(weights + source, mask=p < last, other=0.0)
        column = tl.load(columns + p + STEP, mask=p + STEP < last, other=0)
        source = tl.load(order + p + STEP, mask=p + STEP < last, other=0) if ORDERED else p + STEP
        total += tl.sum(weight[:, :, None] * h, axis=0)
        p += STEP
    if SCALED:
        own = tl.load(factors + row * K + k[None, :], mask=(k < K)[None, :] & (row >= 0), other=0.0)
        total = tl.minimum(total, MOST) * own
    _store_sums(slot, row, total, sums, partials, k, K)


@compiled
def join_runs(
    split_row, split_first, split_last, partials, sums, K: tl.constexpr, BLOCK_K: tl.constexpr, STEP: tl.constexpr
):
    """Add up the partial sums of a row with several runs, in double."""
    n = tl.program_id(0)
    row, first, last = tl.load(split_row + n).to(tl.int64), tl.load(split_first + n), tl.load(split_last + n)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_K], tl.float64)
    for start in range(first, last, STEP):
        slot = start + tl.arange(0, STEP)
        mask = (slot < last)[:, None] & (k < K)[None, :]
        total += tl.sum(tl.load(partials + slot[:, None] * K + k[None, :], mask=mask, other=0.0).to(tl.float64), axis=0)
    tl.store(sums + row * K + k, total.to(sums.dtype.element_ty), mask=k < K)


@compiled
def add_shared_rows(exposed, of_clusters, labels, n_rows, K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr):
    """`passes.add_shared` of ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    mask = (row < n_rows)[:, None] & (k < K)[None, :]
    label = tl.load(labels + row, mask=row < n_rows, other=0).to(tl.int64)
    shared = tl.load(of_clusters + label[:, None] * K + k[None, :], mask=mask, other=0.0)
    place = exposed + row[:, None] * K + k[None, :]
    tl.store(place, tl.maximum(tl.load(place, mask=mask, other=0.0) + shared, 0.0), mask=mask)


@compiled
def gamma_rows(
    allocated, exposed, rates, prior_shape, mean, geometric_mean, row_means, row_logs, row_entropies, n_rows,
    K: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, OWN_RATES: tl.constexpr, SHARED: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """`passes.gamma_moments` of ROWS rows; OWN_RATES: each has its prior's rate; SHARED: `exposed` is one row.

    With z = shape + SHIFT, from where Stirling's series has all digits of the rows' precision, ln Γ and ψ of the shape
    are those of z less logarithms and inverses of shape, shape + 1, …, whose ratios to z neither over- nor underflow.
    """
    own = mean.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    mask = (row < n_rows)[:, None] & (k < K)[None, :]
    place = row[:, None] * K + k[None, :]
    rate = tl.load(rates + row, mask=row < n_rows, other=1.0)[:, None] if OWN_RATES else tl.load(rates)
    a = tl.load(prior_shape).to(own) + tl.load(allocated + place, mask=mask, other=1.0)
    if SHARED:
        b = rate.to(own) + tl.load(exposed + k, mask=k < K, other=1.0)[None, :]
    else:
        b = rate.to(own) + tl.load(exposed + place, mask=mask, other=1.0)
    z = a + SHIFT
    y = 1.0 / z
    product, slope = a * y, a * 0.0 + 1.0
    for n in tl.static_range(1, SHIFT):
        ratio = (a + n) * y
        slope = slope * ratio + product
        product = product * ratio
    s = y * y
    epsilon = 1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12)))))
    delta = 1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360 - s / 156)))))
    drop = 0.5 * y + s * epsilon + y * (slope / product)
    inverse, log_z, log_b = 1.0 / b, tl.log(z), tl.log(b)
    value = a * inverse
    tl.store(mean + place, value, mask=mask)
    tl.store(geometric_mean + place, z * inverse * tl.exp(-drop), mask=mask)
    entropy = 0.5 * log_z - SHIFT + HALF_LN_2PI + y * delta - tl.log(product) + (a - 1.0) * drop - log_b
    _store_row_sums(row_means, row, value, mask, n_rows)
    _store_row_sums(row_logs, row, log_z - drop - log_b, mask, n_rows)
    _store_row_sums(row_entropies, row, entropy, mask, n_rows)


@compiled
def _store_row_sums(sums, row, values, mask, n_rows):
    tl.store(sums + row, tl.sum(tl.where(mask, values, 0.0).to(tl.float64), axis=1), mask=row < n_rows)


@compiled
def expose_tiles(
    rows, columns, weights, alphas, few, sums, logs, n_rows, n_columns, length,
    K: tl.constexpr, BLOCK_K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr, LOGS: tl.constexpr, SUMS: tl.constexpr, FEW: tl.constexpr, LOG_EVERY: tl.constexpr,
    EXACT_LOGS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Exact exposures of a block of rows with a stretch of columns, as if all counts were 0; no tile leaves the chip.

    A stretch has `length` columns, a multiple of two tiles, and its own sums and logarithms. `rows` and `columns` are
    means, one side divided by α, so that their products are x = μ/α and an exposure is 1/(1 + x). `sums` are
    Σ over columns of 1/(1 + x) weights or, where x is mostly small, of x/(1 + x) weights: in all rows if FEW is 1, in
    those that `few` marks if it is 2. `logs` are −Σ ln(1 + x) of each row, BY_COLUMN times the column's α. They are
    taken of products of 2 LOG_EVERY factors, whose exponents are counted apart; or, with EXACT_LOGS, of Π(1 + x) − 1,
    without the 1, so that small x keep their digits. Two tiles share one reciprocal, as 1/u = v/(u v).
    """
    row, k = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS), tl.arange(0, BLOCK_K)
    in_rows = (row < n_rows)[:, None] & (k < K)[None, :]
    w = tl.load(rows + row.to(tl.int64)[:, None] * K + k[None, :], mask=in_rows, other=0.0)
    is_few = tl.load(few + row, mask=row < n_rows, other=0)[:, None] > 0
    total, log = tl.zeros([TILE_ROWS, BLOCK_K], tl.float32), tl.zeros([TILE_ROWS], tl.float64)
    product, since = _no_factors(TILE_ROWS, TILE_COLUMNS, EXACT_LOGS), 0
    begin = tl.program_id(1) * length
    for left in range(begin, tl.minimum(begin + length, n_columns), 2 * TILE_COLUMNS):
        first, second = left + tl.arange(0, TILE_COLUMNS), left + TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        place = first.to(tl.int64)[:, None] * K + k[None, :]
        inside = (k < K)[None, :]
        in_first, in_second = (first < n_columns)[:, None] & inside, (second < n_columns)[:, None] & inside
        x = tl.dot(w, tl.trans(tl.load(columns + place, mask=in_first, other=0.0)), input_precision=PRECISION)
        h = tl.load(columns + place + TILE_COLUMNS * K, mask=in_second, other=0.0)
        z = tl.dot(w, tl.trans(h), input_precision=PRECISION)
        u, v = 1.0 + x, 1.0 + z
        both = u * v
        if LOGS:
            if BY_COLUMN:
                log -= _weighted_logs(x, alphas, first, n_columns) + _weighted_logs(z, alphas, second, n_columns)
            else:
                if EXACT_LOGS:
                    product = product * x + (product + x)
                    product = product * z + (product + z)
                else:
                    product = product * both
                since += 1
                if since == LOG_EVERY:
                    if EXACT_LOGS:
                        log -= _log_of(product, EXACT_LOGS)
                        product = _no_factors(TILE_ROWS, TILE_COLUMNS, EXACT_LOGS)
                    else:  # exponents are whole logarithms, and need no function
                        bits = product.to(tl.int32, bitcast=True)
                        log -= LN_2 * tl.sum((bits >> 23) - 127, axis=1).to(tl.float64)
                        product = ((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
                    since = 0
        if SUMS:
            inverse = tl.rsqrt(both)
            inverse = inverse * inverse  # a division takes twice as long
            g = tl.load(weights + place, mask=in_first, other=0.0)
            exposure = _exposure_or_rest(inverse * v, x, is_few, FEW)
            total = tl.dot(exposure.to(g.dtype), g, total, input_precision=PRECISION)
            g = tl.load(weights + place + TILE_COLUMNS * K, mask=in_second, other=0.0)
            exposure = _exposure_or_rest(inverse * u, z, is_few, FEW)
            total = tl.dot(exposure.to(g.dtype), g, total, input_precision=PRECISION)
    place = tl.program_id(1).to(tl.int64) * n_rows + row
    if SUMS:
        tl.store(sums + place[:, None] * K + k[None, :], total, mask=in_rows)
    if LOGS:
        tl.store(logs + place, log if BY_COLUMN else log - _log_of(product, EXACT_LOGS), mask=row < n_rows)


@compiled
def _exposure_or_rest(exposure, x, is_few, FEW: tl.constexpr):
    """1/(1 + x), or x/(1 + x), what is left of 1: in all rows, FEW = 1, or in some, FEW = 2."""
    if FEW == 0:
        return exposure
    return exposure * x if FEW == 1 else exposure * tl.where(is_few, x, 1.0)


@compiled
def _no_factors(n_rows: tl.constexpr, n_columns: tl.constexpr, EXACT: tl.constexpr):
    return tl.zeros([n_rows, n_columns], tl.float32) + (0.0 if EXACT else 1.0)


@compiled
def _log_of(product, EXACT: tl.constexpr):
    return tl.sum(_log1p_single(product) if EXACT else tl.log(product), axis=1).to(tl.float64)


@compiled
def _weighted_logs(x, alphas, column, n_columns):
    alpha = tl.load(alphas + column, mask=column < n_columns, other=0.0)[None, :]
    return tl.sum(alpha * _log1p_single(x), axis=1).to(tl.float64)


@compiled
def _log1p_single(x):
    """ln(1 + x) in single precision, x from 0; below 1/128 by its series, which has no 1 to lose digits to."""
    return tl.where(x < 0.0078125, x * (1.0 - x * (0.5 - x * (0.33333334 - x * 0.25))), tl.log(1.0 + x))
