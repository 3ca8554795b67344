"""The passes of zero-inflated exposures, a ~ Bernoulli(π), in the place of those of gamma exposures, in PyTorch.

A count shows that its cell is exposed. A zero cell is exposed with probability A = πe^(−μ)/d, where d = 1 − π + πe^(−μ)
is the probability of a zero, and its log-evidence is ln d. Only the walks over the non-zeros have kernels of Triton's;
exact exposures, over every cell, take plain matrix products by blocks of rows.
"""

from dataclasses import dataclass
from typing import Any

import torch

from nbmf.backends.gpu.arrays import Clusters, RowCounts, Tensor, Tiles
from nbmf.backends.gpu.events import BLOCK
from nbmf.backends.gpu.passes import Found, Tied, add_unseen, row_blocks

TILE = 1 << 23  # cells of a block of rows


@dataclass(frozen=True)
class Inflated:
    """`expose`, `tie` and `expose_tiles` as in passes.py, whose α are π here."""

    walks: Any  # passes that have `intensities` and `sum_users`

    def expose(
        self, counts: RowCounts, users: Tensor, items: Tensor, π_users: Tensor, π_items: Tensor, sum_users: bool
    ) -> Found:
        """By how much the exposure of a stored cell exceeds that of a zero: 1 − A, or −A if it is unknown."""
        excess, total = self.walks.intensities(counts, users, items), _zero(users)
        for cells in counts.stretches(BLOCK):
            μ, known, π = excess[cells], counts.values[cells] > 0, counts.of_cells(cells, π_users, π_items)
            total -= _log_chance(π, μ).sum() + torch.where(known, μ, 0).sum(dtype=torch.float64)
            excess[cells] = known.to(μ.dtype) - _exposure(π, μ)
        return excess, self.walks.sum_users(counts, excess, items) if sum_users else None, total

    def tie(
        self,
        counts: RowCounts,
        users: Tensor,
        items: Tensor,
        cluster_sums: Tensor,
        clusters: Clusters,
        π_users: Tensor,
        wanted: bool,
    ) -> Tied:
        """Tied exposures; the excess is 1 − A_uc of a count, or −A_uc of an unknown cell."""
        excess, total = self.walks.intensities(counts, users, items), _zero(users)
        unseen = (users @ cluster_sums.T).sub_(sum_by_cluster(self.walks, counts, excess, clusters))
        for rows in row_blocks(len(unseen), unseen.shape[1], TILE):
            n_unseen, π = clusters.n_unseen[rows], π_users[rows, None]
            mean = unseen[rows].clamp_min(0) / n_unseen.clamp_min(1)  # below 0 is rounding
            total += (n_unseen.double() * _log_chance(π, mean)).sum()
            unseen[rows] = torch.where(n_unseen > 0, _exposure(π, mean), 0)  # no cell of a cluster may be unseen
        for cells in counts.stretches(BLOCK):
            μ, known = excess[cells], counts.values[cells] > 0
            total -= torch.where(known, μ, 0).sum(dtype=torch.float64)
            shared = unseen[counts.rows_of(cells), clusters.labels[counts.columns[cells]].long()]
            excess[cells] = known.to(μ.dtype) - shared
        exposed = add_unseen(self.walks.sum_users(counts, excess, items), unseen, cluster_sums) if wanted else None
        return Tied(excess, unseen, exposed, total)

    def expose_tiles(
        self, tiles: Tiles, *, logs: bool, sums: bool, precision: str = "float32"
    ) -> tuple[Tensor | None, Tensor]:
        """Exact exposures as if every count were 0: Σ over columns of A times weights, and Σ ln d if wanted.

        Products are of the factors' own precision, whatever `precision` says.
        """
        rows, columns, weights, π_rows, π_columns = tiles
        exposed, total = torch.zeros(len(rows), weights.shape[1], dtype=rows.dtype, device=rows.device), _zero(rows)
        for block in row_blocks(len(rows), len(columns), TILE):
            μ, π = rows[block] @ columns.T, π_rows[block, None] if π_columns is None else π_columns[None, :]
            if logs:
                total += _log_chance(π, μ).sum()
            if sums:
                exposed[block] = _exposure(π, μ) @ weights
        return exposed if sums else None, total


def sum_by_cluster(walks: Any, counts: RowCounts, values: Tensor, clusters: Clusters) -> Tensor:
    """Sum values of the non-zeros for each user and cluster."""
    if clusters.belongs is not None:
        found: Tensor = walks.sum_users(counts, values, clusters.belongs)
        return found
    # so many clusters have no matrix of who belongs to which: sort the non-zeros by their place in users × clusters
    n_clusters = len(clusters.sizes)
    place = counts.rows * n_clusters + clusters.labels[counts.columns]
    lengths = torch.bincount(place, minlength=counts.shape[0] * n_clusters)
    in_order = values[torch.argsort(place, stable=True)].double()
    sums = torch.segment_reduce(in_order, "sum", lengths=lengths, initial=0)
    return sums.to(values.dtype).view(-1, n_clusters)


def _exposure(π: Tensor, μ: Tensor) -> Tensor:
    """A of a zero cell."""
    exposed = π.to(μ.dtype) * torch.exp(-μ)
    return exposed / ((1 - π).to(μ.dtype) + exposed)


def _log_chance(π: Tensor, μ: Tensor) -> Tensor:
    """Return ln d of a zero cell, in double precision; small μ keep their digits."""
    return torch.log1p(π.double() * torch.expm1(-μ.double()))


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=like.device)
