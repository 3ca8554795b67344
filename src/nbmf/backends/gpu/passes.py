"""The passes of the gpu backend in plain PyTorch: what its kernels mean, and what runs where they cannot.

That is on a CPU, in double precision over tiles, and with very many clusters. Rows are taken in blocks, so that no
array of non-zeros × K or users × items exists as a whole.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from nbmf.backends import LEFT_OVER
from nbmf.backends.encoder import OWN
from nbmf.backends.gpu.arrays import Clusters, Moments, ResidentCounts, RowCounts, Tensor, Tiles
from nbmf.backends.slopes import Pair
from nbmf.backends.threads import cut_within

Found = tuple[Tensor, Tensor | None, Tensor]  # of each non-zero, of each user, and a log-evidence

BLOCK_ENTRIES = 1 << 25  # of an array of non-zeros × K, or of a tile


class Encoded(NamedTuple):
    """Shares t/μ of the non-zeros, R, Σ t ln μ, and of the non-zeros, if wanted, μ without and with their own part."""

    shares: Tensor
    allocated: Tensor
    log: Tensor
    intensities: Sequence[Tensor]


class Tied(NamedTuple):
    """By how much a non-zero's exposure exceeds A_uc, A_uc, each user's sums of exposures if wanted, log-evidence."""

    excess: Tensor
    unseen: Tensor
    exposed: Tensor | None
    log: Tensor


class Others(NamedTuple):
    """What an item takes of its users: a weight times the user's row, less `own` times the item's own row `mine`."""

    weights: Tensor  # of each non-zero, as `own` is
    own: Tensor
    table: Tensor  # users × K
    mine: Tensor  # items × K


def allocate(counts: RowCounts, users: Tensor, items: Tensor, least: float, sum_users: bool) -> Found:
    """Eq. (update_c) from geometric means: y/λ of each non-zero, each user's sums if wanted, and Σ y ln λ."""
    shares, allocated, total = torch.empty_like(counts.values), torch.zeros_like(users), _zero(users)
    for rows, cells, lengths in _blocks(counts.indptr, users.shape[1]):
        near = items[counts.columns[cells]]
        λ = (torch.repeat_interleave(users[rows], lengths, dim=0) * near).sum(dim=1).clamp_min(least)
        y = counts.values[cells].clamp_min(0)
        shares[cells] = finite(y / λ)
        total += (y.double() * λ.double().log()).sum()
        if sum_users:
            allocated[rows] = users[rows] * finite(_row_sums(shares[cells, None] * near, lengths))
    return shares, allocated if sum_users else None, total


def intensities(counts: RowCounts, users: Tensor, items: Tensor) -> Tensor:
    """Σ_k of the user's times the item's numbers, for each non-zero."""
    found = torch.empty_like(counts.values)
    for rows, cells, lengths in _blocks(counts.indptr, users.shape[1]):
        own = torch.repeat_interleave(users[rows], lengths, dim=0)
        found[cells] = (own * items[counts.columns[cells]]).sum(dim=1)
    return found


def finite(values: Tensor) -> Tensor:
    """Cut short, in place, what has overflowed, as its product with a 0 is no number."""
    return values.clamp_max_(torch.finfo(values.dtype).max)


def sum_known(left_out: Tensor, rows: Tensor, columns: Tensor, means: Tensor) -> Tensor:
    """Sum means over each row's known cells, given the sums over the unknown ones, which are in `rows` and `columns`.

    In double precision, and where little is left the known cells are summed themselves, as `cpu` does.
    """
    means = means.double()
    total = means.sum(dim=0)
    sums = total - left_out
    for little in (sums < LEFT_OVER * total).any(dim=1).nonzero().ravel().split(max(1, BLOCK_ENTRIES // len(means))):
        place = torch.full((len(sums),), -1, device=means.device)
        place[little] = torch.arange(len(little), device=means.device)
        here = place[rows] >= 0
        known = torch.ones(len(little), len(means), dtype=means.dtype, device=means.device)
        known[place[rows[here]], columns[here]] = 0
        sums[little] = known @ means
    return sums


def expose(counts: RowCounts, users: Tensor, items: Tensor, α_users: Tensor, α_items: Tensor, sum_users: bool) -> Found:
    """Eq. (update_a) for exact exposures: by how much a non-zero's exceeds that of a zero, y/(α+μ), and the sums."""
    excess, exposed, total = torch.empty_like(counts.values), torch.zeros_like(users), _zero(users)
    for rows, cells, lengths in _blocks(counts.indptr, users.shape[1]):
        columns = counts.columns[cells]
        near, y = items[columns], counts.values[cells]
        μ = (torch.repeat_interleave(users[rows], lengths, dim=0) * near).sum(dim=1)
        α = torch.repeat_interleave(α_users[rows], lengths) if α_items is None else α_items[columns]
        excess[cells] = torch.where(y < 0, -α, y) / (α + μ)
        total -= _log_evidence(y, μ, α, 0.0)
        if sum_users:
            exposed[rows] = _row_sums(excess[cells, None] * near, lengths)
    return excess, exposed if sum_users else None, total


def tie(
    counts: RowCounts,
    users: Tensor,
    items: Tensor,
    cluster_sums: Tensor,
    clusters: Clusters,
    α_users: Tensor,
    wanted: bool,
) -> Tied:
    """Eq. (update_a) for tied exposures, from S_c."""
    n_clusters = len(cluster_sums)
    excess, unseen, total = torch.empty_like(counts.values), users @ cluster_sums.T, _zero(users)
    for rows, cells, lengths in _blocks(counts.indptr, max(users.shape[1], n_clusters)):
        columns = counts.columns[cells]
        label, y = clusters.labels[columns].long(), counts.values[cells]
        row = torch.repeat_interleave(torch.arange(len(lengths), device=users.device), lengths)
        μ = (users[rows][row] * items[columns]).sum(dim=1)
        member = torch.zeros(len(μ), n_clusters, dtype=users.dtype, device=users.device)
        member[torch.arange(len(μ), device=users.device), label] = 1
        n_unseen = clusters.n_unseen[rows]
        mean = (unseen[rows] - _row_sums(member * μ[:, None], lengths)).clamp_min(0) / n_unseen.clamp_min(1)
        α = α_users[rows, None]
        total -= (α.double() * n_unseen.double() * torch.log1p(mean.double() / α.double())).sum()
        unseen[rows] = torch.where(n_unseen > 0, α / (α + mean), 0)  # no cell of a cluster may be unseen
        α = α_users[rows][row]
        excess[cells] = (α + torch.where(y < 0, -α, y)) / (α + μ) - unseen[rows][row, label]
        total -= _log_evidence(y, μ, α, 1.0)
    exposed = add_unseen(sum_users(counts, excess, items), unseen, cluster_sums) if wanted else None
    return Tied(excess, unseen, exposed, total)


def add_unseen(of_stored_cells: Tensor, unseen: Tensor, cluster_sums: Tensor) -> Tensor:
    """Add Σ_c A_uc S_c to each user's sums, in place. It has the seen cells too, which the excess has taken off."""
    return of_stored_cells.addmm_(unseen, cluster_sums).clamp_min_(0)  # below 0 is rounding


def sum_users(counts: RowCounts, weights: Tensor, items: Tensor) -> Tensor:
    """Σ over each user's non-zeros of a weight times the item's row."""
    return _sum_gathered(counts.indptr, counts.columns, weights, items)


def sum_items(counts: ResidentCounts, weights: Tensor, table: Tensor, own: Tensor | None = None) -> Tensor:
    """Σ over each item's non-zeros of a weight times the user's row, and times the item's own row if there are some."""
    sums = _sum_gathered(counts.item_indptr, counts.item_users, weights[counts.order], table)
    return sums if own is None else finite(sums).mul_(own)


def encode(
    counts: RowCounts, inputs: Tensor, hidden: Tensor, start: tuple[Tensor, ...], least: float, intensities: bool
) -> Encoded:
    """Eq. (update_c) of an encoder, from W = X V: μ_ui = b_i + Σ_k (W_uk − x_ui V_ik) H_ik and R_u = Σ_i (t/μ) H_i."""
    (V, H, b), values = start, counts.values
    shares, allocated, total = torch.empty_like(values), torch.empty_like(hidden), _zero(hidden)
    kept = [torch.empty_like(values) for _ in range(2 * intensities)]
    for rows, cells, lengths in _blocks(counts.indptr, 2 * hidden.shape[1]):
        columns, W = counts.columns[cells], torch.repeat_interleave(hidden[rows], lengths, dim=0)
        near, x, t = H[columns], inputs[cells, None], values[cells].clamp_min(0)
        μ = ((_left(W, x * V[columns]) * near).sum(dim=1) + b[columns]).clamp_min(least)
        shares[cells] = finite(t / μ)
        allocated[rows] = finite(_row_sums(shares[cells, None] * near, lengths))
        total += (t.double() * μ.double().log()).sum()
        if intensities:
            kept[0][cells], kept[1][cells] = μ, (W * near).sum(dim=1) + b[columns]
    return Encoded(shares, allocated, total, kept)


def sum_others(counts: ResidentCounts, *terms: Others) -> list[Tensor]:
    """Σ over each item's non-zeros of weight × (the user's row − own × the item's row)."""
    found = [torch.empty_like(term.mine) for term in terms]
    for rows, cells, lengths in _blocks(counts.item_indptr, 2 * terms[0].mine.shape[1]):
        users, order = counts.item_users[cells], counts.order[cells]
        for sums, (weights, own, table, mine) in zip(found, terms, strict=True):
            left = _left(table[users], own[order, None] * torch.repeat_interleave(mine[rows], lengths, dim=0))
            sums[rows] = _row_sums(weights[order, None] * left, lengths)
    return found


def _left(whole: Tensor, part: Tensor) -> Tensor:
    """What is left without a part; next to nothing is rounding, and becomes 0."""
    left = whole - part
    return torch.where(left > OWN * torch.finfo(whole.dtype).eps * whole, left, 0)


def add_shared(exposed: Tensor, of_clusters: Tensor, labels: Tensor) -> Tensor:
    """Add to each item's sums those that its cluster shares, in place; below 0 is rounding."""
    return exposed.add_(of_clusters[labels]).clamp_min_(0)


def expose_tiles(tiles: Tiles, *, logs: bool, sums: bool, precision: str = "float32") -> tuple[Tensor | None, Tensor]:
    """Exact exposures as if every count were 0: Σ over columns of α/(α+μ) weights, and −Σ α ln(1 + μ/α) if wanted."""
    rows, columns, weights, α_rows, α_columns = tiles
    exposed, total = torch.zeros(len(rows), weights.shape[1], dtype=rows.dtype, device=rows.device), _zero(rows)
    for block in row_blocks(len(rows), len(columns)):
        μ = rows[block] @ columns.T
        α = (α_rows[block, None] if α_columns is None else α_columns[None, :]).to(μ.dtype)
        if logs:
            total -= (α.double() * torch.log1p(μ.double() / α.double())).sum()
        if sums:
            exposed[block] = (α / (α + μ)) @ weights
    return exposed if sums else None, total


def slope_tiles(rows: Tensor, columns: Tensor, α_rows: Tensor) -> Pair:
    """∂/∂α and ∂²/∂α² of −α ln(1 + μ/α), summed over each row's cells as if every count were 0."""
    slope, curvature = (torch.zeros(len(rows), dtype=torch.float64, device=rows.device) for _ in range(2))
    for block in row_blocks(len(rows), len(columns)):
        μ, α = (rows[block] @ columns.T).double(), α_rows[block, None]
        share = μ / (α + μ)
        slope[block] = (share - torch.log1p(μ / α)).sum(dim=1)
        curvature[block] = (share * share / α).sum(dim=1)
    return slope, curvature


def gamma_moments(prior_shape: float, prior_rates: Tensor, allocated: Tensor, exposed: Tensor) -> Moments:
    """Moments of Gamma(prior shape + allocated, prior rate + exposed)."""
    mean, geometric_mean = torch.empty_like(allocated), torch.empty_like(allocated)
    found = torch.empty(3, len(allocated), dtype=torch.float64, device=allocated.device)
    for block in row_blocks(*allocated.shape):
        a = prior_shape + allocated[block].double()
        rates = prior_rates[block] if len(prior_rates) > 1 else prior_rates
        b = rates.double() + (exposed[block] if len(exposed) > 1 else exposed).double()
        ψ, log_b = torch.digamma(a), torch.log(b)
        mean[block], geometric_mean[block] = a / b, torch.exp(ψ - log_b)
        entropy = a - log_b + torch.lgamma(a) + (1 - a) * ψ
        found[:, block] = torch.stack([values.sum(dim=1) for values in (a / b, ψ - log_b, entropy)])
    return mean, geometric_mean, exposed, *found


def _log_evidence(y: Tensor, μ: Tensor, α: Tensor, own: float) -> Tensor:
    """Σ y ln(α+μ) + own·α ln(1 + μ/α) of stored cells; an unknown one has −α for y there, which takes it off."""
    y, μ, α = y.double(), μ.double(), α.double()
    count = torch.where(y < 0, -α, y) + own * α
    return (y.clamp_min(0) * α.log() + count * torch.log1p(μ / α)).sum()


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=like.device)


def _sum_gathered(indptr: Tensor, columns: Tensor, weights: Tensor, table: Tensor) -> Tensor:
    sums = torch.zeros(len(indptr) - 1, table.shape[1], dtype=table.dtype, device=table.device)
    for rows, cells, lengths in _blocks(indptr, table.shape[1]):
        sums[rows] = _row_sums(weights[cells, None] * table[columns[cells]], lengths)
    return sums


def _row_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum stretches of rows of an array; in double, as the stretches may be long."""
    return torch.segment_reduce(values.double(), "sum", lengths=lengths, axis=0, initial=0).to(values.dtype)


def _blocks(indptr: Tensor, width: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Stretches of rows with at most BLOCK_ENTRIES/width non-zeros (or one row): rows, non-zeros, lengths of rows."""
    on_host = indptr.cpu().numpy()
    for start, stop in pairwise(cut_within(on_host, max(1, BLOCK_ENTRIES // width))):
        yield slice(start, stop), slice(on_host[start], on_host[stop]), torch.diff(indptr[start : stop + 1])


def row_blocks(n_rows: int, width: int, most: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Stretches of rows that together have at most so many entries, or one row."""
    step = max(1, most // max(width, 1))
    return (slice(top, top + step) for top in range(0, n_rows, step))
