"""Kernels of an encoder, where users are functions of what they have; made as those of kernels.py.

A program gathers the rows of STEP non-zeros from two tables at a time and keeps them in the registers of one warp, so
STEP falls as K grows. Compiled for sm_90, none of the settings in use spills registers, up to K = 512.

What a sweep cannot do without are four gathers of K numbers per non-zero: V for W, H for μ and R, and W and R for the
items. For 47 million non-zeros and K = 256 in single precision those are 192 GB, or 40 ms at 4.8 TB/s, less what is
still in the cache. V is gathered once more for the items' own parts of μ, as W must be complete before: 50 ms.
"""

import triton.language as tl

from nbmf.backends.gpu.kernels import _store_sums, compiled


@compiled
def _left(whole, part, OWN: tl.constexpr):
    """What is left of a sum without a part of it; next to nothing is rounding, and becomes 0."""
    left = whole - part
    return tl.where(left > OWN * whole, left, 0.0)


@compiled
def encode_runs(
    run_row, run_first, run_last, run_slot, columns, inputs, targets, hidden, V, H, b, least,
    shares, intensities, wholes, sums, partials,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STEP: tl.constexpr, KEEP: tl.constexpr, OWN: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """`passes.encode`, one run per program; if KEEP, with the intensities. Logarithms are left to `log_shares`."""
    run = tl.program_id(0)
    row, first, last = tl.load(run_row + run).to(tl.int64), tl.load(run_first + run), tl.load(run_last + run)
    k = tl.arange(0, BLOCK_K)
    w = tl.load(hidden + row * K + k, mask=k < K, other=0.0)[None, :]
    total = tl.zeros([BLOCK_K], V.dtype.element_ty)
    for start in range(first, last, STEP):
        p = start + tl.arange(0, STEP)
        inside = p < last
        column = tl.load(columns + p, mask=inside, other=0).to(tl.int64)
        place, mask = column[:, None] * K + k[None, :], inside[:, None] & (k < K)[None, :]
        h = tl.load(H + place, mask=mask, other=0.0)
        x = tl.load(inputs + p, mask=inside, other=0.0)
        own = x[:, None] * tl.load(V + place, mask=mask, other=0.0)
        intercept = tl.load(b + column, mask=inside, other=0.0)
        intensity = tl.maximum(tl.sum(_left(w, own, OWN) * h, axis=1) + intercept, tl.load(least))
        target = tl.maximum(tl.load(targets + p, mask=inside, other=0.0), 0.0)
        share = tl.minimum(target / intensity, MOST)
        tl.store(shares + p, share, mask=inside)
        if KEEP:
            tl.store(intensities + p, intensity, mask=inside)
            tl.store(wholes + p, tl.sum(w * h, axis=1) + intercept, mask=inside)
        total += tl.sum(share[:, None] * h, axis=0)
    _store_sums(tl.load(run_slot + run).to(tl.int64), row, tl.minimum(total, MOST), sums, partials, k, K)


@compiled
def sum_others_runs(
    run_row, run_first, run_last, run_slot, users, order, weights, own, table, mine,
    more_weights, more_own, more_table, more_mine, sums, more_sums, partials, more_partials,
    K: tl.constexpr, BLOCK_K: tl.constexpr, STEP: tl.constexpr, TWO: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """`passes.sum_others`, one run per program, of one term or of two at once."""
    run = tl.program_id(0)
    row, first, last = tl.load(run_row + run).to(tl.int64), tl.load(run_first + run), tl.load(run_last + run)
    k = tl.arange(0, BLOCK_K)
    of_item = tl.load(mine + row * K + k, mask=k < K, other=0.0)[None, :]
    more_of_item = tl.load(more_mine + row * K + k, mask=k < K, other=0.0)[None, :]
    total = tl.zeros([BLOCK_K], table.dtype.element_ty)
    more_total = tl.zeros([BLOCK_K], table.dtype.element_ty)
    for start in range(first, last, STEP):
        p = start + tl.arange(0, STEP)
        inside = p < last
        place = tl.load(users + p, mask=inside, other=0).to(tl.int64)[:, None] * K + k[None, :]
        mask = inside[:, None] & (k < K)[None, :]
        source = tl.load(order + p, mask=inside, other=0)
        weight, part = tl.load(weights + source, mask=inside, other=0.0), tl.load(own + source, mask=inside, other=0.0)
        left = _left(tl.load(table + place, mask=mask, other=0.0), part[:, None] * of_item, OWN)
        total += tl.sum(weight[:, None] * left, axis=0)
        if TWO:
            weight = tl.load(more_weights + source, mask=inside, other=0.0)
            part = tl.load(more_own + source, mask=inside, other=0.0)
            left = _left(tl.load(more_table + place, mask=mask, other=0.0), part[:, None] * more_of_item, OWN)
            more_total += tl.sum(weight[:, None] * left, axis=0)
    slot = tl.load(run_slot + run).to(tl.int64)
    _store_sums(slot, row, total, sums, partials, k, K)
    if TWO:
        _store_sums(slot, row, more_total, more_sums, more_partials, k, K)
