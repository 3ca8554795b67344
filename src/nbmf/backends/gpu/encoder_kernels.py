"""Kernels of an encoder, where users are functions of what they have; made as those of kernels.py.

A program gathers rows from two tables at a time and keeps them in the registers of its warps, so STEP falls as K grows.

What a sweep cannot do without are four gathers of K numbers per non-zero: V for W, H for μ and R, and W and R for the
items. For 47 million non-zeros and K = 256 in single precision those are 192 GB, or 40 ms at 4.8 TB/s, less what is
still in the cache. V is gathered once more for the items' own parts of μ, as W must be complete before: 50 ms.
"""

import triton.language as tl

from nbmf.backends.gpu.kernels import _rows, _runs, _store_sums, compiled


@compiled
def _left(whole, part, OWN: tl.constexpr):
    """What is left of a sum without a part of it; next to nothing is rounding, and becomes 0."""
    left = whole - part
    return tl.where(left > OWN * whole, left, 0.0)


@compiled
def encode_runs(
    run_row, run_first, run_last, run_slot, n_runs, columns, inputs, targets, hidden, V, H, b, least,
    shares, intensities, wholes, sums, partials,
    RUNS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, KEEP: tl.constexpr,
    OWN: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """`passes.encode`, RUNS runs per program; if KEEP, with the intensities. Logarithms are left to `log_shares`."""
    row, first, last, slot = _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS)
    k = tl.arange(0, BLOCK_K)
    w = tl.load(hidden + row * K + k[None, :], mask=(k < K)[None, :] & (row >= 0), other=0.0)[None, :, :]
    total, smallest = tl.zeros([RUNS, BLOCK_K], V.dtype.element_ty), tl.load(least)
    p = first + tl.arange(0, STEP)[:, None]
    column = tl.load(columns + p, mask=p < last, other=0)
    for _ in range(0, tl.max(last - first), STEP):
        inside, h = p < last, _rows(H, column, k, K, BLOCK_K)
        x = tl.load(inputs + p, mask=inside, other=0.0)
        own = x[:, :, None] * _rows(V, column, k, K, BLOCK_K)
        intercept = tl.load(b + column, mask=inside, other=0.0)
        target = tl.maximum(tl.load(targets + p, mask=inside, other=0.0), 0.0)
        column = tl.load(columns + p + STEP, mask=p + STEP < last, other=0)
        intensity = tl.maximum(tl.sum(_left(w, own, OWN) * h, axis=2) + intercept, smallest)
        share = tl.minimum(target / intensity, MOST)
        tl.store(shares + p, share, mask=inside)
        if KEEP:
            tl.store(intensities + p, intensity, mask=inside)
            tl.store(wholes + p, tl.sum(w * h, axis=2) + intercept, mask=inside)
        total += tl.sum(share[:, :, None] * h, axis=0)
        p += STEP
    _store_sums(slot, row, tl.minimum(total, MOST), sums, partials, k, K)


@compiled
def sum_others_runs(
    run_row, run_first, run_last, run_slot, n_runs, users, order, weights, own, table, mine, sums, partials,
    RUNS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """`passes.sum_others` of one term, RUNS runs per program."""
    row, first, last, slot = _runs(run_row, run_first, run_last, run_slot, n_runs, RUNS)
    k = tl.arange(0, BLOCK_K)
    of_item = tl.load(mine + row * K + k[None, :], mask=(k < K)[None, :] & (row >= 0), other=0.0)[None, :, :]
    total = tl.zeros([RUNS, BLOCK_K], table.dtype.element_ty)
    p = first + tl.arange(0, STEP)[:, None]
    user, source = tl.load(users + p, mask=p < last, other=0), tl.load(order + p, mask=p < last, other=0)
    for _ in range(0, tl.max(last - first), STEP):
        whole = _rows(table, user, k, K, BLOCK_K)
        weight = tl.load(weights + source, mask=p < last, other=0.0)
        part = tl.load(own + source, mask=p < last, other=0.0)
        user = tl.load(users + p + STEP, mask=p + STEP < last, other=0)
        source = tl.load(order + p + STEP, mask=p + STEP < last, other=0)
        total += tl.sum(weight[:, :, None] * _left(whole, part[:, :, None] * of_item, OWN), axis=0)
        p += STEP
    _store_sums(slot, row, total, sums, partials, k, K)
