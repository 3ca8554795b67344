"""The whole model at a glance: its largest factors, and a map of the items.

An item consists of its shares of the factors in Σ_k Σ_u⟨w_uk⟩⟨h_ik⟩, which no rescaling of the factors changes. On the
map every factor is an island, and an item lies on the island of its most distinctive factor: the closer to the middle
the larger its share of that factor, and on the side of its other factors. Islands that share items are neighbours.
Nothing is random: equal models have equal maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.estimators.encoder_fit import EncoderFit
from nbmf.estimators.ranking import most_typical, name_of_items

Array = NDArray[np.float64]

MOST_FACTORS, SHOWN_PER_FACTOR = 200, 8  # factors listed, and items and users listed for each
SHOWN_SHARES, FACTORS_PER_ITEM = (
    5,
    3,
)  # factors listed for a user, an item or a score, and found for each item searched for
TURN = np.pi * (3 - np.sqrt(5))  # the angle between sunflower seeds, which fill a disc evenly
SPACING = 1.0  # between neighbouring items
STEPS = 400  # in which overlapping islands are pushed apart
GAP = 1.5  # between islands, in spacings, and at least
EVERYBODY = "everybody"  # whose factor has no rank: what an item has for every user alike
LABEL_GAP = 0.08  # of the size of the map, so that a name fits between two islands


@dataclass(frozen=True, eq=False)
class FactorSummary:
    """A factor, and the items and users for which it is typical."""

    factor: int  # position in the model
    share: float  # of all expected counts
    leading: NDArray[np.intp]  # the same items, in the order of `top_items`
    items: NDArray[np.intp]  # positions
    item_shares: Array  # of this factor in each of them
    users: NDArray[np.intp]
    user_shares: Array


@dataclass(frozen=True, eq=False)
class Readable:
    """The factors of a model as they are shown: of several starts of an encoder, those of the first one.

    The last column of an encoder is what items have for everybody. It is no taste: it comes last, and has no island.
    """

    users: NDArray[Any]
    items: NDArray[Any]
    numbers: list[int]  # of the columns, as components of the model
    n_tastes: int
    column_of: NDArray[np.intp]  # as which each component of the model is shown

    @classmethod
    def of(cls, model: Any) -> "Readable":
        """Return the factors of a fitted model."""
        fit = model.result_
        if not isinstance(fit, EncoderFit):
            every = np.arange(model.item_factors_.shape[1])
            return cls(model.user_factors_, model.item_factors_, every.tolist(), len(every), every)
        n_tastes, everybody = fit.first_start[1].shape[1] - 1, fit.encoder.shape[1]
        return cls(*fit.first_start, [*range(n_tastes), everybody], n_tastes, fit.kin)

    @property
    def tastes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both sides without what items have for everybody."""
        return self.users[:, : self.n_tastes], self.items[:, : self.n_tastes]


def largest_factors(
    users: NDArray[Any], items: NDArray[Any], n_factors: int, n: int, n_tastes: int | None = None
) -> list[FactorSummary]:
    """Return the factors with the largest shares of all expected counts, each with n typical items and users.

    Factors after the first `n_tastes` come last, whatever their shares.

    >>> users, items = np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> [one] = largest_factors(users, items, 1, 1)
    >>> one.factor, one.share, one.items, one.item_shares
    (1, 0.6, array([1]), array([0.75]))
    """
    of_users, of_items = (side.sum(axis=0, dtype=np.float64) for side in (users, items))
    explained = of_users * of_items
    item_total, user_total = items @ of_users, users @ of_items
    total = float(explained.sum())
    found = []
    last = list(range(len(explained)))[n_tastes:] if n_tastes is not None else []
    for k in np.argsort(-explained[:n_tastes], kind="stable")[:n_factors].tolist() + last:
        marks = most_typical(items[:, k] * of_users[k], item_total, n)
        fans = most_typical(users[:, k] * of_items[k], user_total, n)
        part = float(explained[k]) / total if total > 0 else 0.0
        found.append(FactorSummary(k, part, marks[0], *_by_share(*marks), *_by_share(*fans)))
    return found


def _by_share(best: NDArray[np.intp], _: Array, share: Array) -> tuple[NDArray[np.intp], Array]:
    """Return rows that mark a factor with its share of each, largest first."""
    order = np.argsort(-share, kind="stable")
    return best[order], share[order].round(4)


def factor_shares(rows: NDArray[Any], others: Array) -> Array:
    """Return the share of each factor in each of these users or items, given the sums of the other side's factors.

    >>> factor_shares(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([1.0, 3.0]))
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    expected = rows * others
    total = expected.sum(axis=1, keepdims=True)
    equal = np.full(expected.shape, 1 / expected.shape[1])
    return np.asarray(np.divide(expected, total, out=equal, where=total > 0))


class Factors:
    """The factors of a model: ranked by size, named by typical items, and found again in users and items."""

    def __init__(self, shown: Readable, names: Sequence[str]) -> None:
        self.shown, (users, items) = shown, (shown.users, shown.items)
        self.sums = tuple(side.sum(axis=0, dtype=np.float64) for side in (users, items))
        self.largest = largest_factors(users, items, MOST_FACTORS, SHOWN_PER_FACTOR, shown.n_tastes)
        ranked = np.argsort(-(self.sums[0] * self.sums[1])[: shown.n_tastes], kind="stable").tolist()
        named = {one.factor: name_of_items(names[place] for place in one.leading.tolist()) for one in self.largest}
        self.labels = {
            k: {"factor": k, "rank": n, "name": named.get(k) or f"Factor {n + 1}"} for n, k in enumerate(ranked)
        }
        for k in range(shown.n_tastes, len(shown.numbers)):
            self.labels[k] = {"factor": shown.numbers[k], "rank": None, "name": EVERYBODY}

    @property
    def for_everybody(self) -> Array:
        """The share of each item's expected counts that it has for everybody."""
        shares = factor_shares(self.shown.items, self.sums[0])
        return np.asarray(shares[:, self.shown.n_tastes :].sum(axis=1))

    def of_user(self, place: int) -> list[dict[str, Any]]:
        """Return the factors with the largest shares of a user's expected counts."""
        return self._leading(factor_shares(self.shown.users[[place]], self.sums[1])[0])

    def of_item(self, place: int) -> list[dict[str, Any]]:
        """Return the factors with the largest shares of an item's expected counts."""
        return self._leading(factor_shares(self.shown.items[[place]], self.sums[0])[0])

    def _leading(self, shares: Array) -> list[dict[str, Any]]:
        """Return the largest factors, and last what is for everybody."""
        best = np.argsort(-shares[: self.shown.n_tastes], kind="stable")[:SHOWN_SHARES].tolist()
        best += range(self.shown.n_tastes, len(shares))
        return [{**self.labels[k], "share": round(float(shares[k]), 4)} for k in best]

    def parts(self, components: NDArray[np.intp], scores: Array) -> list[dict[str, Any]]:
        """Return the factors that a score is made of, largest part first, and last what is for everybody."""
        sums = np.bincount(self.shown.column_of[components], scores, len(self.shown.numbers))
        order = np.argsort(-sums[: self.shown.n_tastes], kind="stable").tolist()
        order += range(self.shown.n_tastes, len(sums))
        return [{**self.labels[k], "contribution": float(sums[k])} for k in order]

    def of_items(self, places: Sequence[int]) -> list[tuple[dict[str, Any], NDArray[np.intp], Array]]:
        """Return each factor that is among the largest of one of these items, with these items and its shares."""
        found, shares = np.array(places, np.intp), factor_shares(self.shown.items[list(places)], self.sums[0])
        best = np.argsort(-shares[:, : self.shown.n_tastes], axis=1, kind="stable")[:, :FACTORS_PER_ITEM]
        answer = []
        for k, label in self.labels.items():
            rows = np.flatnonzero((best == k).any(axis=1))
            rows = rows[np.argsort(-shares[rows, k], kind="stable")][:SHOWN_PER_FACTOR]
            if len(rows):
                answer.append((label, found[rows], shares[rows, k].round(4)))
        return answer


def sizes_of(counts: NDArray[Any]) -> list[dict[str, int]]:
    """Return how many counts there are from each of 0, 1, 2, 3, 4, 5, 10, 20, 50, 100, … up to the next.

    >>> sizes_of(np.array([3, 3, 4, 12]))[:2]
    [{'least': 3, 'below': 4, 'n': 2}, {'least': 4, 'below': 5, 'n': 1}]
    """
    edges = [0, 1, 2, 3, 4, 5, 10]
    while counts.size and edges[-1] <= counts.max():
        edges.append(round(edges[-1] * (2.5 if str(edges[-1])[0] == "2" else 2)))
    n = np.histogram(counts, edges)[0].tolist()
    held = [place for place, found in enumerate(n) if found]
    kept = range(held[0], held[-1] + 1) if held else ()
    return [{"least": edges[k], "below": edges[k + 1], "n": n[k]} for k in kept]


@dataclass(frozen=True, eq=False)
class ItemMap:
    """Where items and islands lie."""

    place: Array  # items × 2
    factor: NDArray[np.intp]  # whose island each item lies on
    share: Array  # of that factor in each item
    middle: Array  # of each factor's island, factors × 2
    radius: Array  # of each factor's island, 0 without items


def draw_map(users: NDArray[Any], items: NDArray[Any]) -> ItemMap:
    """Place items by their shares of the factors; users and items are users × K and items × K."""
    of_users = users.sum(axis=0, dtype=np.float64)
    shares, per_factor = factor_shares(items, of_users), of_users * items.sum(axis=0, dtype=np.float64)
    n_items, n_factors = shares.shape
    # The largest factors dominate every item, so an item belongs to the factor it has most of relative to the average.
    average = np.maximum(per_factor / max(float(per_factor.sum()), np.finfo(float).tiny), 1e-9)
    factor = np.argmax(shares**1.5 / np.sqrt(average), axis=1)
    sizes = np.bincount(factor, minlength=n_factors)
    radius = SPACING * np.sqrt(sizes)
    middle = _push_apart(_neighbourhood(shares), radius)
    place = np.empty((n_items, 2))
    for k in np.flatnonzero(sizes).tolist():
        members = np.flatnonzero(factor == k)
        place[members] = middle[k] + _on_island(shares[members], k, middle)
    return ItemMap(place, factor, shares[np.arange(n_items), factor], middle, radius)


def _neighbourhood(shares: Array) -> Array:
    """Return positions of factors in the plane, close where they share items: the leading eigenvectors."""
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
    # ranks instead of values, as eigenvectors put most factors on one heap and a few far away
    ranks = np.argsort(np.argsort(plane, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(ranks / max(len(plane) - 1, 1) - 0.5)


def _push_apart(plane: Array, radius: Array) -> Array:
    """Return the middles of islands, drawn together and pushed apart until none overlap."""
    size = np.sqrt((radius**2).sum())
    middle = plane * 2.5 * size
    reach = radius[:, None] + radius + max(GAP * SPACING, LABEL_GAP * size)
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
    """Return the offsets of items from the middle of their island: a sunflower, seeds sorted towards other islands."""
    purest_first = np.argsort(-shares[:, k], kind="stable")
    rank = np.arange(len(shares))
    seeds = SPACING * np.sqrt(rank + 0.5)[:, None] * np.stack([np.cos(TURN * rank), np.sin(TURN * rank)], axis=1)
    towards = shares @ (middle - middle[k])
    angle = np.arctan2(towards[purest_first, 1], towards[purest_first, 0])
    placed = np.empty_like(seeds)
    ring = max(8, int(np.sqrt(len(shares)) * 4))  # items that are about equally far out share the seeds of a ring
    for start in range(0, len(shares), ring):
        block = slice(start, start + ring)
        by_angle = np.argsort(angle[block], kind="stable")
        by_seed = np.argsort(np.arctan2(seeds[block, 1], seeds[block, 0]), kind="stable")
        placed[start + by_angle] = seeds[start + by_seed]
    offsets = np.empty_like(placed)
    offsets[purest_first] = placed
    return np.asarray(offsets)
