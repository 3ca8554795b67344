"""K-means on the device, for ties: rows are tied to the nearest of n centres."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Tensor = Any

ROUNDS = 10  # as many as `ties.tie_items` makes
BLOCK_ROWS = 4096


def cluster_rows(rows: Tensor, n_clusters: int, rng: np.random.RandomState) -> NDArray[np.int32]:
    """Return the number of each row's centre: centres drawn far apart (k-means++), then moved to their rows' means."""
    centred = rows - rows.mean(dim=0)  # differences of distances keep more digits
    centres = _far_apart(centred, torch.from_numpy(rng.random_sample(n_clusters)).to(rows.device))
    for _ in range(ROUNDS):
        centres = _moved(centred, _nearest(centred, centres), centres)
    found: NDArray[np.int32] = _nearest(centred, centres).int().cpu().numpy()
    return found


def _far_apart(rows: Tensor, draws: Tensor) -> Tensor:
    """Draw each centre among the rows, in proportion to the squared distance from the centres before it."""
    centres = torch.empty(len(draws), rows.shape[1], dtype=rows.dtype, device=rows.device)
    weight = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    for n in range(len(draws)):
        upto = torch.cumsum(weight, 0)
        place = torch.searchsorted(upto, draws[n] * upto[-1]).clamp_max(len(rows) - 1)
        centres[n] = rows.index_select(0, place.reshape(1))[0]
        distance = (rows - centres[n]).square().sum(dim=1).double()
        weight = distance if n == 0 else torch.minimum(weight, distance)
    return centres


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(dim=1) - 2 * rows @ centres.T).argmin(dim=1)


def _moved(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Return the mean of each centre's rows; one without rows stays. Sums in the order of blocks: the same bits."""
    total = torch.zeros(centres.shape, dtype=torch.float64, device=rows.device)
    numbers = torch.arange(len(centres), device=rows.device)
    for top in range(0, len(rows), 64 * BLOCK_ROWS):
        part, of_part = rows[top : top + 64 * BLOCK_ROWS], labels[top : top + 64 * BLOCK_ROWS]
        member = (of_part[:, None] == numbers).to(rows.dtype)
        total += (member.T @ part).double()
    sizes = torch.bincount(labels, minlength=len(centres))[:, None]
    return torch.where(sizes > 0, total / sizes.clamp_min(1), centres.double()).to(rows.dtype)
