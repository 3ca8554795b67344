"""Slope and curvature of the log-evidence in α on the device, where a concentration is learned; all in double."""

from __future__ import annotations

from typing import Any

import torch

from nbmf.backends.gpu.arrays import ResidentCounts
from nbmf.backends.gpu.passes import BLOCK_ENTRIES

Tensor = Any
Pair = tuple[Tensor, Tensor]


def unseen_slopes(
    counts: ResidentCounts,
    means: Pair,
    α: tuple[Tensor, Tensor | None],
    group: str,
    unseen: Tensor | None,
    labels: Tensor | None,
) -> Pair:
    """∂/∂α and ∂²/∂α² of −α ln(1 + μ/α): over all cells as if every count were 0; if tied, over the unseen ones."""
    by_user, by_item = α
    if unseen is not None and labels is not None:
        place = counts.rows * unseen.shape[1] + labels[counts.columns]
        n_seen = torch.bincount(place, minlength=unseen.numel()).view(unseen.shape)
        n_unseen = (torch.bincount(labels, minlength=unseen.shape[1]) - n_seen).double()
        shared = torch.where(n_unseen > 0, unseen.double(), 1.0)  # α/(α + m)
        slopes = n_unseen * (shared.log() + 1 - shared), n_unseen * (1 - shared) ** 2 / by_user[:, None]
        return _grouped(slopes[0].sum(dim=1), group), _grouped(slopes[1].sum(dim=1), group)
    rows, columns = means
    concentrations = by_user
    if group == "item":
        rows, columns = columns, rows
        concentrations = by_user[:1].expand(len(rows)) if by_item is None else by_item
    slope, curvature = (torch.zeros(len(rows), dtype=torch.float64, device=rows.device) for _ in range(2))
    step = max(1, BLOCK_ENTRIES // max(len(columns), 1))
    for top in range(0, len(rows), step):
        block = slice(top, top + step)
        μ, of_block = (rows[block] @ columns.T).double(), concentrations[block, None]
        share = μ / (of_block + μ)
        slope[block] = (share - torch.log1p(μ / of_block)).sum(dim=1)
        curvature[block] = (share * share / of_block).sum(dim=1)
    return _grouped(slope, group), _grouped(curvature, group)


def stored_slopes(
    counts: ResidentCounts,
    α: tuple[Tensor, Tensor | None],
    group: str,
    excess: Tensor,
    unseen: Tensor | None,
    labels: Tensor | None,
) -> Pair:
    """What the stored cells add to that; an unknown cell takes off what was added as if its count were 0."""
    rows, columns, y = counts.rows, counts.columns.long(), counts.values.double()
    by_cell = α[0][rows] if α[1] is None else α[1][columns]
    known, more = y > 0, excess.double()
    if unseen is None or labels is None:
        shared = torch.where(known, 1.0, -more)  # excess is y/(α+μ) of a count, −α/(α+μ) of an unknown cell
        slope = torch.where(known, -more, -(shared.log() + 1 - shared))
        curvature = torch.where(known, more**2 / torch.where(known, y, 1.0), -((1 - shared) ** 2) / by_cell)
    else:
        exposure = torch.where(known, more + unseen[rows, labels[columns].long()].double(), 1.0)
        denominator = torch.where(known, (by_cell + y) / exposure, 1.0)  # α + μ
        slope = torch.where(known, 1 - exposure - torch.log(denominator / by_cell), 0.0)
        rest = (denominator - by_cell) / (by_cell * denominator) - (1 - exposure) / denominator
        curvature = torch.where(known, rest, 0.0)
    positive = torch.where(known, y, 0.0)
    slope += torch.digamma(by_cell + positive) - torch.digamma(by_cell)
    curvature += torch.polygamma(1, by_cell + positive) - torch.polygamma(1, by_cell)
    if group == "all":
        return slope.sum()[None], curvature.sum()[None]
    if group == "user":
        lengths = torch.diff(counts.indptr)
    else:  # one item after another
        lengths, slope, curvature = torch.diff(counts.item_indptr), slope[counts.order], curvature[counts.order]
    first, second = (torch.segment_reduce(v, "sum", lengths=lengths, initial=0) for v in (slope, curvature))
    return first, second


def _grouped(of_rows: Tensor, group: str) -> Tensor:
    return of_rows.sum()[None] if group == "all" else of_rows
