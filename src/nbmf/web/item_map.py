"""The whole model at a glance: its factors with what is most theirs, and a map of the items.

On the map every factor is an island, and every item lies on the island of the factor that marks it most.

What an item is made of is its share of each factor in Σ_k Σ_u⟨w_uk⟩⟨h_ik⟩: numbers that no rescaling of the factors
changes. Islands lie near those whose items they share; an item lies the nearer to the middle of its island the more
purely it belongs there, and on the side of the factors that it has besides. No chance is involved: one model, one map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TURN = np.pi * (3 - np.sqrt(5))  # of sunflower seeds, by which points fill a disc evenly
SPACING = 1.0  # between neighbouring items
STEPS = 400  # of pushing overlapping islands apart
GAP = 1.5  # between islands, in spacings


@dataclass(frozen=True)
class Owned:
    """What is most a factor's own.

    factor : its number in the model, from 0
    rank : its place by size, from 0
    share : of all expected counts, how much the factor explains
    items, users : their positions, and the factor's share in each of them
    """

    factor: int
    rank: int
    share: float
    items: list[tuple[int, float]]
    users: list[tuple[int, float]]


def largest_factors(users: NDArray[Any], items: NDArray[Any], n_factors: int, n: int) -> list[Owned]:
    """Return the factors that explain most, each with n items and n users that are most its own.

    users, items : factors, users × K and items × K

    >>> [one] = largest_factors(np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[1.0, 0.0], [1.0, 1.0]]), 1, 1)
    >>> one
    Owned(factor=1, rank=0, share=0.6, items=[(1, 0.75)], users=[(1, 1.0)])
    """
    of_users, of_items = (side.sum(axis=0, dtype=np.float64) for side in (users, items))
    explained = of_users * of_items
    item_total, user_total = items @ of_users, users @ of_items
    total = float(explained.sum())
    return [
        Owned(
            k,
            rank,
            float(explained[k]) / total if total > 0 else 0.0,
            _most_own(items[:, k] * of_users[k], item_total, n),
            _most_own(users[:, k] * of_items[k], user_total, n),
        )
        for rank, k in enumerate(np.argsort(-explained, kind="stable")[:n_factors].tolist())
    ]


def _most_own(expected: NDArray[Any], total: NDArray[Any], n: int) -> list[tuple[int, float]]:
    """The n rows of largest expected count × share, with the shares: much of the factor, and mostly of this one."""
    share = np.divide(expected, total, out=np.zeros(len(total)), where=total > 0)
    worth = expected * share
    n = min(n, len(worth))
    best = np.argpartition(-worth, n - 1)[:n]
    best = best[np.lexsort((best, -worth[best]))]
    return [(int(place), round(float(share[place]), 4)) for place in best if worth[place] > 0]


@dataclass(frozen=True, eq=False)
class Atlas:
    """Where items lie.

    place : array items × 2
    factor : array of the factor that marks each item most
    share : array, how much of the item that factor is
    middle, radius, rank : of each factor's island, K × 2, K and K; the radius is 0 where no item is
    """

    place: Array
    factor: NDArray[np.intp]
    share: Array
    middle: Array
    radius: Array
    rank: NDArray[np.intp]


def item_shares(expected: Array) -> Array:
    """Return the share of each factor in what all users are expected to take of an item, items × K.

    expected : array items × K, Σ_u⟨w_uk⟩⟨h_ik⟩

    >>> item_shares(np.array([[3.0, 1.0], [0.0, 0.0]]))
    array([[0.75, 0.25],
           [0.5 , 0.5 ]])
    """
    total = expected.sum(axis=1, keepdims=True)
    nothing = np.full_like(expected, 1 / expected.shape[1])
    return np.asarray(np.divide(expected, total, out=nothing, where=total > 0))


def draw_atlas(users: NDArray[Any], items: NDArray[Any]) -> Atlas:
    """Lay out items by their shares of the factors; users and items are users × K and items × K."""
    expected = items * users.sum(axis=0, dtype=np.float64)
    shares, sizes_of_all = item_shares(expected), expected.sum(axis=0)
    n_factors = shares.shape[1]
    # much of an item is of the largest factors, whatever it is: what marks it is what it has more of than others
    common = np.maximum(sizes_of_all / max(float(sizes_of_all.sum()), np.finfo(float).tiny), 1e-9)
    factor = np.argmax(shares**1.5 / np.sqrt(common), axis=1)
    share = shares[np.arange(len(shares)), factor]
    sizes = np.bincount(factor, minlength=n_factors)
    radius = SPACING * np.sqrt(sizes)
    middle = _spread(_near_alike(shares), radius)
    place = np.empty((len(shares), 2))
    for k in np.flatnonzero(sizes).tolist():
        members = np.flatnonzero(factor == k)
        place[members] = middle[k] + _on_island(shares[members], k, middle)
    rank = np.argsort(np.argsort(-sizes_of_all, kind="stable"), kind="stable")
    return Atlas(place, factor, share, middle, radius, rank)


def _near_alike(shares: Array) -> Array:
    """Positions of factors in the plane, near each other where they share items: the leading eigenvectors."""
    roots = np.sqrt(shares)
    alike = roots.T @ roots
    length = np.sqrt(np.maximum(np.diag(alike), np.finfo(float).tiny))
    cosine = alike / length / length[:, None]
    centred = cosine - cosine.mean(axis=0) - cosine.mean(axis=1)[:, None] + cosine.mean()
    _, vectors = np.linalg.eigh(centred)
    plane = np.zeros((len(cosine), 2))
    found = vectors[:, ::-1][:, :2]
    found = found * np.where(found[np.argmax(np.abs(found), axis=0), np.arange(found.shape[1])] < 0, -1.0, 1.0)
    plane[:, : found.shape[1]] = found
    # ranks instead of values: eigenvectors put most factors into one heap and a few far away
    ranks = np.argsort(np.argsort(plane, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(ranks / max(len(plane) - 1, 1) - 0.5)


def _spread(plane: Array, radius: Array) -> Array:
    """Draw islands together and push those that overlap apart, until none does."""
    middle = plane * 2.5 * np.sqrt((radius**2).sum())
    reach = radius[:, None] + radius + GAP * SPACING
    for step in range(STEPS):
        apart = middle[:, None] - middle
        distance = np.sqrt((apart**2).sum(axis=2)) + np.eye(len(middle))
        overlap = np.maximum(reach - distance, 0.0)
        np.fill_diagonal(overlap, 0.0)
        push = (overlap / distance)[:, :, None] * apart
        pull = 0.02 * (1 - step / STEPS)
        middle = middle * (1 - pull) + 0.45 * push.sum(axis=1)
    return np.asarray(middle)


def _on_island(shares: Array, k: int, middle: Array) -> Array:
    """Offsets of an island's items from its middle: a sunflower whose seeds are swapped towards the other islands."""
    purest_first = np.argsort(-shares[:, k], kind="stable")
    rank = np.arange(len(shares))
    seeds = SPACING * np.sqrt(rank + 0.5)[:, None] * np.stack([np.cos(TURN * rank), np.sin(TURN * rank)], axis=1)
    towards = shares @ (middle - middle[k])
    angle = np.arctan2(towards[purest_first, 1], towards[purest_first, 0])
    placed = np.empty_like(seeds)
    ring = max(8, int(np.sqrt(len(shares)) * 4))  # items of about one distance share the seeds of a ring
    for start in range(0, len(shares), ring):
        block = slice(start, start + ring)
        by_angle = np.argsort(angle[block], kind="stable")
        by_seed = np.argsort(np.arctan2(seeds[block, 1], seeds[block, 0]), kind="stable")
        placed[start + by_angle] = seeds[start + by_seed]
    offsets = np.empty_like(placed)
    offsets[purest_first] = placed
    return np.asarray(offsets)
