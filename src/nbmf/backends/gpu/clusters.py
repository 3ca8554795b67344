"""K-means on the device, for ties: each row is tied to the nearest of n centres."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Tensor = Any

ROUNDS = 10  # as in `ties.tie_items`
DRAWN_ROWS = 4096  # rows whose weights are added up before one of them is drawn
MOVED_ROWS = 64 * 4096  # rows summed in their own precision


def cluster_rows(rows: Tensor, n_clusters: int, rng: np.random.RandomState) -> NDArray[np.int32]:
    """Return the number of each row's centre: centres drawn far apart (k-means++), then moved to their rows' means."""
    centred = rows - rows.mean(dim=0)  # differences of distances keep more digits
    centres = _far_apart(centred, rng.random_sample(n_clusters))
    for _ in range(ROUNDS):
        centres = _moved(centred, _nearest(centred, centres), centres)
    found: NDArray[np.int32] = _nearest(centred, centres).int().cpu().numpy()
    return found


def _far_apart(rows: Tensor, draws: NDArray[np.float64]) -> Tensor:
    """Draw each centre among the rows, in proportion to the squared distance from the centres before it."""
    centres = torch.empty(len(draws), rows.shape[1], dtype=rows.dtype, device=rows.device)
    weight = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    for n, draw in enumerate(draws.tolist()):
        centres[n] = rows[_drawn(weight, draw)]
        distance = (rows - centres[n]).square().sum(dim=1).double()
        weight = distance if n == 0 else torch.minimum(weight, distance)
    return centres


def _drawn(weight: Tensor, draw: float) -> int:
    """Return the place up to which the weights add up to the share `draw` of all."""
    # running sums on a device change from run to run, so sums of blocks and the weights of one block come to the host
    whole = len(weight) - len(weight) % DRAWN_ROWS
    upto = np.cumsum([*weight[:whole].view(-1, DRAWN_ROWS).sum(dim=1).tolist(), float(weight[whole:].sum())])
    block = min(int(np.searchsorted(upto, draw * upto[-1])), len(upto) - 1)
    inside = np.cumsum(weight[block * DRAWN_ROWS : (block + 1) * DRAWN_ROWS].cpu().numpy())
    rest = draw * upto[-1] - (upto[block - 1] if block else 0.0)
    return min(block * DRAWN_ROWS + int(np.searchsorted(inside, rest)), len(weight) - 1)


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    return (centres.square().sum(dim=1) - 2 * rows @ centres.T).argmin(dim=1)


def _moved(rows: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Return the mean of each centre's rows; one without rows stays. Sums in the order of blocks: the same bits."""
    total = torch.zeros(centres.shape, dtype=torch.float64, device=rows.device)
    numbers = torch.arange(len(centres), device=rows.device)
    for top in range(0, len(rows), MOVED_ROWS):
        part, of_part = rows[top : top + MOVED_ROWS], labels[top : top + MOVED_ROWS]
        member = (of_part[:, None] == numbers).to(rows.dtype)
        total += (member.T @ part).double()
    sizes = torch.bincount(labels, minlength=len(centres))[:, None]
    return torch.where(sizes > 0, total / sizes.clamp_min(1), centres.double()).to(rows.dtype)
