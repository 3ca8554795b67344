"""Compiled loops over rows: each call does rows `start` to `stop`, holds no lock and writes nothing but those rows.

A row is done by one thread in one order, so the results have the same bits for any number of threads. No loop both
stores and sums up: LLVM makes two versions of such a loop, which add in different orders, and chooses by how close
together the arrays happen to lie. Sums run in the factors' own precision for at most RUN terms and then go to double: a
float32 total of 10⁵ terms may lose 3 digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

RUN = 128
AHEAD = 16  # non-zeros between asking for a factor row and using it
CACHE_LINE = 64
SQRT_HALF = 0x3FE6A09E667F3BCD  # the bits of √½
LN_2, HALF_LN_2PI = 0.6931471805599453, 0.9189385332046727

# Sums may be reordered (else no dot product is vectorized), but NaN and infinity keep their meaning; division by zero
# gives infinity as in NumPy (a test for it would keep loops from being vectorized).
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
compiled: Callable[[Any], Any] = numba.njit(fastmath={"reassoc", "contract", "nsz", "arcp"}, **_OPTIONS)
_intrinsic: Callable[[Any], Any] = intrinsic
_get_item_pointer: Callable[..., Any] = cgutils.get_item_pointer
compiled_as_written: Callable[[Any], Any] = numba.njit(fastmath=False, **_OPTIONS)  # unsaid, the caller's holds


@_intrinsic
def _prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask the memory for array[row, column] ahead of its use: the gathered rows follow no pattern hardware sees.

    Into the second-level cache: asking the first took 0.113 s against 0.079 s for the items' walk, 8 non-zeros ahead.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        position = [context.cast(builder, arguments[n], signature.args[n], types.intp) for n in (1, 2)]
        pointer = _get_item_pointer(context, builder, signature.args[0], held, position)
        address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(fetch, [address, flag(0), flag(2), flag(1)])  # for reading; into the second cache; data
        return context.get_dummy_value()

    return types.void(array, row, column), generate


def _reinterpret(name: str, source: Any, target: Any) -> Any:
    def typed(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    typed.__name__ = name
    return _intrinsic(typed)


_bits_of = _reinterpret("_bits_of", types.float64, types.int64)
_float_of = _reinterpret("_float_of", types.int64, types.float64)


@compiled_as_written
def _atanh_series(t):  # type: ignore[no-untyped-def]
    """2 artanh(t) = ln((1+t)/(1−t)) for |t| ≤ 0.1716, by its series."""
    s = t * t
    series = 1 / 17 + s * (1 / 19 + s * (1 / 21))
    series = 1 / 11 + s * (1 / 13 + s * (1 / 15 + s * series))
    series = 1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * series)))
    return 2.0 * (t + t * s * series)


@compiled_as_written
def log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a positive normal double to 3e-16 relative; unlike libm's, loops over it are vectorized."""
    bits = _bits_of(x)
    exponent = (bits - SQRT_HALF) >> 52  # x = 2^exponent · mantissa with √½ ≤ mantissa < √2
    mantissa = _float_of(bits - (exponent << 52))
    return exponent * LN_2 + _atanh_series((mantissa - 1.0) / (mantissa + 1.0))


@compiled_as_written
def log1p(x):  # type: ignore[no-untyped-def]
    """Logarithm of 1 + x, x ≥ 0; as exact for small x (a large concentration) as for large."""
    bits = _bits_of(1.0 + x)
    exponent = (bits - SQRT_HALF) >> 52
    mantissa = _float_of(bits - (exponent << 52))
    small = exponent == 0  # then 1 + x is its own mantissa, and x has not lost the digits that 1 + x has
    return exponent * LN_2 + _atanh_series((x if small else mantissa - 1.0) / (2.0 + x if small else mantissa + 1.0))


@compiled_as_written
def lost_by_adding_1(x):  # type: ignore[no-untyped-def]
    """Return x − ((1 + x) − 1): what rounding takes from a small x."""
    return x - ((1.0 + x) - 1.0)


@compiled_as_written
def exp(x):  # type: ignore[no-untyped-def]
    """Exponential of a double, to 4e-16 relative; exactly 0 below −700, where a float32 has long been 0."""
    inside = min(max(x, -700.0), 700.0)
    halves = np.floor(inside * 1.4426950408889634 + 0.5)
    r = inside - halves * 0.693147180369123816490 - halves * 1.90821492927058770002e-10  # ln 2 in two pieces
    series = 1 / 39916800 + r * (1 / 479001600 + r * (1 / 6227020800))
    series = 1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * series))
    series = 1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * series))
    series = 1.0 + r * (1.0 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * series))))
    return series * _float_of((np.int64(halves) + 1023) << 52) if x > -700.0 else 0.0


@compiled
def _gamma_moments(a):  # type: ignore[no-untyped-def]
    """For a shape a, by Stirling's series at z = a + 8 and eight steps down: z, P, ε + D/P and δ such that

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
def gamma_rows(  # type: ignore[no-untyped-def]
    start, stop, prior_shape, prior_rate, allocated, exposed, shared, mean, geometric_mean,
    row_means, row_logs, row_entropies,
):  # fmt: skip
    """Moments of Gamma(a, b), a = prior_shape + allocated, b = prior_rate + exposed; `shared`: one b for all rows.

        entropy = a − ln b + lnΓ(a) + (1−a)ψ(a) = 8.5 ln z − 8 + ½ ln 2π + δ − ln P + (a−1)(ε + D/P) − ln b

    with the names of `_gamma_moments`. Terms of size a ln a never appear, so none cancel. Logarithms appear in sums
    alone and are taken of products of two.
    """
    n_components = mean.shape[1]
    half = (n_components + 1) // 2
    z, p, b = np.ones(2 * half), np.ones(2 * half), np.ones(2 * half)
    value, drop, rest = np.empty(n_components), np.empty(n_components), np.empty(n_components)
    for row in range(start, stop):
        rate_row = 0 if shared else row
        for k in range(n_components):
            a, rate = prior_shape + allocated[row, k], prior_rate + exposed[rate_row, k]
            z[k], p[k], drop[k], delta = _gamma_moments(a)
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
def _fetch(array, row, line):  # type: ignore[no-untyped-def]
    for column in range(0, array.shape[1], line):
        _prefetch(array, row, column)


@compiled
def _sum_rows(total, run, table, indices, first, last, weights):  # type: ignore[no-untyped-def]
    """Set `total` to Σ_p weights[p] · table[indices[p]], p from first to last, by way of `run`, RUN terms at a time.

    Four rows at a time: the running sum is then loaded and stored a quarter as often (0.021 s against 0.033 s).
    """
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
def _intensities(found, users, user, items, indices, first, last, end):  # type: ignore[no-untyped-def]
    """Dot products of one user's row with the rows of the items the user took; `end` is the last non-zero of all."""
    line, zero = CACHE_LINE // items.itemsize, users.dtype.type(0)
    fours = last - (last - first) % 4
    for p in range(first, fours, 4):  # four at a time, as in `_sum_rows`
        a, b, c, d = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
        for ahead in range(p + AHEAD, p + AHEAD + 4):
            _fetch(items, indices[min(ahead, end)], line)
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
        _fetch(items, indices[min(p + AHEAD, end)], line)
        dot_a = zero
        for k in range(users.shape[1]):
            dot_a += users[user, k] * items[indices[p], k]
        found[p - first] = dot_a


@compiled
def _tie(unseen, n_unseen, concentration):  # type: ignore[no-untyped-def]
    """Turn Σ μ over a user's unseen cells of each cluster into their exposure A_uc; return their log-evidence."""
    zero, one, total = unseen.dtype.type(0), unseen.dtype.type(1), 0.0
    for c in range(len(unseen)):
        # below 0 is rounding
        mean = max(unseen[c], zero) / max(n_unseen[c], one)
        total -= concentration * n_unseen[c] * log1p(np.float64(mean) / concentration)
    for c in range(len(unseen)):
        # a user who took the whole cluster has no unseen cell in it
        mean = max(unseen[c], zero) / max(n_unseen[c], one)
        unseen[c] = concentration / (concentration + mean) if n_unseen[c] > zero else zero
    return total


@compiled
def _log_evidence(counts, λ, μ, inverse, concentration, tied):  # type: ignore[no-untyped-def]
    """Σ y ln λ − y ln(α+μ) over a user's non-zeros; if tied, −α ln(1 + μ/α) too, which tiles have done otherwise.

    `inverse` is 1/(α+μ).
    """
    total, scale = 0.0, 1.0 / np.float64(concentration)
    for p in range(len(counts)):
        total += counts[p] * log(np.float64(λ[p]) * np.float64(inverse[p]))
    if tied:
        for p in range(len(counts)):
            total -= concentration * log1p(np.float64(μ[p]) * scale)
    return total


@compiled
def expect_rows(  # type: ignore[no-untyped-def]
    start, stop, indptr, indices, counts, users, items, user_means, item_means, concentration, least,
    labels, cluster_sizes, cells, unseen, allocated, exposed, log_evidence,
):  # fmt: skip
    """For each user, the latent variables of the non-zeros, then the user's two sums and part of the objective.

    cells[p, 0] = y/λ. cells[p, 1] = by how much ⟨a⟩ of non-zero p exceeds that of an unseen cell: y/(α+μ) if exposures
    are exact, ⟨a⟩ − A_uc if tied. `unseen` comes with ⟨w_u⟩·S_c and leaves with A_uc. If exact, `exposed` is added to.
    `users` and `items` are geometric means. None leaves out `unseen` and clusters (exact) or the sums (`allocated`).
    """
    n_components, end = users.shape[1], indptr[stop] - 1
    one = users.dtype.type(1)
    longest = np.max(indptr[start + 1 : stop + 1] - indptr[start:stop])
    λ, μ, inverse = np.empty(longest, users.dtype), np.empty(longest, users.dtype), np.empty(longest, users.dtype)
    sums, run = np.empty(n_components), np.empty(n_components, users.dtype)
    if unseen is not None:
        n_unseen = np.empty(unseen.shape[1], users.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _intensities(λ, users, user, items, indices, first, last, end)
        for p in range(first, last):
            λ[p - first] = max(λ[p - first], least)
            cells[p, 0] = counts[p] / λ[p - first]
        if allocated is not None:  # now, while the first-level cache has the items' rows
            _sum_rows(sums, run, items, indices, first, last, cells[:, 0])
            for k in range(n_components):
                allocated[user, k] = users[user, k] * sums[k]
        _intensities(μ, user_means, user, item_means, indices, first, last, end)
        if unseen is not None:
            n_unseen[:] = cluster_sizes
            for p in range(first, last):
                c = labels[indices[p]]
                unseen[user, c] -= μ[p - first]
                n_unseen[c] -= one
            log_evidence[user] = _tie(unseen[user], n_unseen, concentration)
        for p in range(first, last):
            inverse[p - first] = one / (concentration + μ[p - first])
            if unseen is None:
                cells[p, 1] = counts[p] * inverse[p - first]
            else:
                exposure = (concentration + counts[p]) * inverse[p - first]
                cells[p, 1] = exposure - unseen[user, labels[indices[p]]]
        if allocated is not None:
            _sum_rows(sums, run, item_means, indices, first, last, cells[:, 1])
            for k in range(n_components):
                exposed[user, k] = sums[k] if unseen is not None else exposed[user, k] + sums[k]
        log_evidence[user] += _log_evidence(counts[first:last], λ, μ, inverse, concentration, unseen is not None)


@compiled
def allocate_rows(  # type: ignore[no-untyped-def]
    start, stop, indptr, indices, counts, users, items, least, cells, allocated, log_evidence
):  # fmt: skip
    """`expect_rows` for Poisson, whose exposures are 1: cells[p, 0] = y/λ, the allocated sums and Σ y ln λ."""
    n_components, end = users.shape[1], indptr[stop] - 1
    λ = np.empty(np.max(indptr[start + 1 : stop + 1] - indptr[start:stop]), users.dtype)
    sums, run = np.empty(n_components), np.empty(n_components, users.dtype)
    for user in range(start, stop):
        first, last = indptr[user], indptr[user + 1]
        _intensities(λ, users, user, items, indices, first, last, end)
        for p in range(first, last):
            λ[p - first] = max(λ[p - first], least)
            cells[p, 0] = counts[p] / λ[p - first]
        total = 0.0
        for p in range(first, last):
            total += counts[p] * log(np.float64(λ[p - first]))
        log_evidence[user] += total
        if allocated is not None:
            _sum_rows(sums, run, items, indices, first, last, cells[:, 0])
            for k in range(n_components):
                allocated[user, k] = users[user, k] * sums[k]


@compiled
def sum_rows(  # type: ignore[no-untyped-def]
    start, stop, indptr, indices, order, cells, items, users, user_means, allocated, exposed
):  # fmt: skip
    """Add to each item's sums the latent variables of its non-zeros; `order` finds them among the users'.

    `user_means` is None for Poisson, which has nothing to add to `exposed`.
    """
    n_components, end, line = users.shape[1], indptr[stop] - 1, CACHE_LINE // users.itemsize
    zero = users.dtype.type(0)
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
                _prefetch(cells, order[min(p + 2 * AHEAD, end)], 0)
                ahead = indices[min(p + AHEAD, end)]
                user, share = indices[p], cells[order[p], 0]
                _fetch(users, ahead, line)
                for k in range(n_components):
                    row_allocated[k] += share * users[user, k]
                if user_means is not None:
                    excess = cells[order[p], 1]
                    _fetch(user_means, ahead, line)
                    for k in range(n_components):
                        row_exposed[k] += excess * user_means[user, k]
            for k in range(n_components):
                sum_allocated[k] += row_allocated[k]
                sum_exposed[k] += row_exposed[k]
        for k in range(n_components):
            allocated[item, k] += items[item, k] * sum_allocated[k]
            if user_means is not None:
                exposed[item, k] += sum_exposed[k]


@compiled
def expose_tile(intensity, concentration, row_logs):  # type: ignore[no-untyped-def]
    """Replace each intensity μ of a tile by the exposure α/(α+μ) of an unseen cell; add Σ ln(1 + μ/α) to `row_logs`.

    Logarithms are taken of products of eight: 1 + μ/α < 10³⁸ keeps those finite. None: no logarithms wanted.
    """
    n_rows, n_columns = intensity.shape
    scale, eighth = 1.0 / np.float64(concentration), n_columns // 8
    for row in range(n_rows):
        if row_logs is not None:
            total = 0.0
            for j in range(eighth):
                product = 1.0
                for part in range(8):
                    x = np.float64(intensity[row, part * eighth + j]) * scale
                    product *= 1.0 + x
                    total += lost_by_adding_1(min(x, 1.0))
                total += log(product)
            for j in range(8 * eighth, n_columns):
                total += log1p(np.float64(intensity[row, j]) * scale)
            row_logs[row] += total
        for j in range(n_columns):
            intensity[row, j] = concentration / (concentration + intensity[row, j])
