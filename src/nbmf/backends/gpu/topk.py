"""The best items of many users on the device: blocks of scores by one product, and the best of each row exactly."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from nbmf.backends.gpu.arrays import Tensor, to_device

BLOCK_BYTES = 1 << 30  # for a block of scores, and for choosing from them
NARROWEST = 32  # items of a chunk, at least


def best(users: Tensor, items: Tensor, n: int, exclude: sp.csr_array | None) -> tuple[Tensor, Tensor]:
    """Return the columns and the scores of each user's n best items, best first, equal scores in the items' order.

    What `exclude` stores, and a score of NaN, is left out. Where there are fewer the column is −1 and the score −∞.
    """
    n_users, n_items = len(users), len(items)
    width = max(NARROWEST, 1 << round(np.log2(max(n_items / n, 1)) / 2))
    # columns of 0 fill the last chunk, so that rounding treats all items alike
    n_columns = -(-n_items // width) * width
    table = torch.nn.functional.pad(items, (0, 0, 0, n_columns - n_items)).T
    finite = bool(torch.isfinite(users).all() & torch.isfinite(items).all())
    columns = torch.full((n_users, n), -1, dtype=torch.int64, device=users.device)
    scores = torch.full((n_users, n), -torch.inf, dtype=users.dtype, device=users.device)
    if not n_items:
        return columns, scores
    chosen = n_columns // width + min(n * width, n_columns)
    step = max(1, BLOCK_BYTES // (users.element_size() * n_columns + 40 * chosen))
    for top in range(0, n_users, step):
        block = slice(top, top + step)
        tile = users[block] @ table
        tile[:, n_items:].fill_(-torch.inf)
        if exclude is not None:
            tile.view(-1).index_fill_(0, _cells(exclude, top, len(tile), n_columns, users.device), -torch.inf)
        if not finite:
            tile.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        found, values = _best_of_rows(tile, n, width)
        columns[block, : found.shape[1]], scores[block, : found.shape[1]] = found, values
    return columns, scores


def _cells(exclude: sp.csr_array, top: int, n_rows: int, n_columns: int, device: Any) -> Tensor:
    bounds = exclude.indptr[top : top + n_rows + 1].astype(np.int64)
    rows = np.repeat(np.arange(n_rows, dtype=np.int64), np.diff(bounds))
    return to_device(rows * n_columns + exclude.indices[bounds[0] : bounds[-1]], device)


def _best_of_rows(scores: Tensor, n: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the columns and scores of the n best of each row, or of all if there are fewer; −1 for a score of −∞."""
    # they are in the n chunks of largest maximum, equal ones in their order: an item of any other chunk comes after the
    # best item of each of those
    chunks = scores.view(len(scores), -1, width)
    n_chunks = min(n, chunks.shape[1])
    order = chunks.amax(dim=2).sort(dim=1, descending=True, stable=True).indices[:, :n_chunks].sort(dim=1).values
    near = chunks.gather(1, order[:, :, None].expand(-1, -1, width)).reshape(len(scores), -1)
    values, place = near.sort(dim=1, descending=True, stable=True)
    values, place = values[:, :n], place[:, :n]
    columns = order.gather(1, place // width) * width + place % width
    return columns.masked_fill_(values == -torch.inf, -1), values
