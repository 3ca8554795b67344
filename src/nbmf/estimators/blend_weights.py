"""What the members of a blend weigh: weights that rank best counts which the members have not seen.

Scores are made comparable first: those of each model are divided by their mean size. On the Taste Profile and the
groceries, one number per user and model, or root mean squares, ranked counts set aside no better.
"""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement, permutations

import numpy as np
import scipy.sparse as sp

from nbmf.backends.threads import one_blas_thread
from nbmf.estimators.blend_fit import Numbers, block_of
from nbmf.estimators.fit import FitResult
from nbmf.estimators.metrics import Standings
from nbmf.estimators.ranking import Places, walk
from nbmf.estimators.scores import Array, ModelScores, Rows, Scores

Scaled = Sequence[tuple[float, Scores]]  # the scores of each member, and their size
Split = tuple[sp.csr_array, sp.csr_array]  # the counts set aside, and the others

MOST_USERS = 10_000  # that weights are learned from
MOST_SIZED, AT_A_TIME = 1000, 128  # users whose scores tell their size
MOST_MIXTURES, MOST_PARTS = 100, 20  # of the first round: how many, and of how many equal parts each is made
ROUNDS = 3  # of refinement, each with half the step of the last
CLEAR = 1.0  # standard errors from which a mean gain of users is clear


def size_of(scores: Scores) -> float:
    """Return the mean size of the scores of some users for all items, or 1 if they are all 0."""
    rows = spread(np.arange(scores.n_users), MOST_SIZED)
    with one_blas_thread():
        blocks = (block_of(scores, rows[start : start + AT_A_TIME]) for start in range(0, len(rows), AT_A_TIME))
        size = sum(float(np.abs(block).sum(dtype=np.float64)) for block in blocks) / (len(rows) * scores.n_items)
    return size if size > 1e-150 else 1.0


def spread(rows: Rows, most: int) -> Rows:
    """Return at most so many of the rows, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def learn_weights(members: Sequence[FitResult], aside: sp.csr_array, n_threads: int | None) -> Numbers:
    """Return the weights of fits of the same counts that maximize the NDCG on the counts set `aside`.

    The search begins with a grid and goes on with ever smaller steps from the best weights so far. A member that ranks
    clearly better than the others, user by user, gets all the weight unless a mixture ranks clearly better still.
    """
    rows = spread(np.flatnonzero(np.diff(aside.indptr)), MOST_USERS)
    every = [member.scores() for member in members]
    scaled = [(size_of(scores), scores.of(rows)) for scores in every]
    split = sp.csr_array(aside[rows]), sp.csr_array(members[0].counts[rows])
    tried, step = simplex(len(members))
    found = ndcg_of(tried, scaled, split, n_threads)
    for _ in range(ROUNDS):
        step /= 2
        near = around(tried[np.argmax(found.mean(axis=1))], step)
        tried, found = np.vstack((tried, near)), np.vstack((found, ndcg_of(near, scaled, split, n_threads)))
    means, is_single = found.mean(axis=1), tried.max(axis=1) == 1
    best, single = int(np.argmax(means)), int(np.argmax(np.where(is_single, means, -np.inf)))
    others = np.flatnonzero(is_single & (tried @ tried[best] > 0) & (tried @ tried[single] == 0))
    is_one_enough = all(is_clear(found[single] - found[other]) for other in others)
    return np.asarray(tried[single if is_one_enough and not is_clear(found[best] - found[single]) else best])


def is_clear(gain: Numbers) -> bool:
    """Return whether a gain, one number per user, is clearly above 0."""
    return len(gain) > 1 and bool(gain.mean() > CLEAR * gain.std(ddof=1) / math.sqrt(len(gain)))


def simplex(n_members: int) -> tuple[Numbers, float]:
    """Return weights spread over all that sum to 1, each member alone among them, and the step between them.

    >>> simplex(2)[0][:2].tolist(), simplex(2)[1], len(simplex(5)[0])
    ([[1.0, 0.0], [0.95, 0.05]], 0.05, 70)
    """
    sizes = (n for n in range(MOST_PARTS, 1, -1) if math.comb(n + n_members - 1, n) <= MOST_MIXTURES)
    n_parts = next(sizes, 1)
    parts = combinations_with_replacement(range(n_members), n_parts)
    return np.array([np.bincount(part, minlength=n_members) / n_parts for part in parts]), 1 / n_parts


def around(weights: Numbers, step: float) -> Numbers:
    """Return the weights after a step from one member to another, for all pairs of members that allow it."""
    unit = np.eye(len(weights)) * step
    pairs = permutations(range(len(weights)), 2)
    return np.array([weights - unit[giving] + unit[taking] for giving, taking in pairs if weights[giving] >= step])


def ndcg_of(weights: Numbers, scaled: Scaled, split: Split, n_threads: int | None) -> Numbers:
    """Return the NDCG on counts of each user under each mixture, mixtures × users; scores are computed once."""
    places, (n_users, n_items) = [Places(*split) for _ in weights], split[0].shape

    def side_by_side(rows: Rows) -> Array:
        return np.hstack([block_of(scores, rows) / size for size, scores in scaled])

    def visit(start: int, rows: Rows, left: int, scores: Array) -> None:
        parts = scores.reshape(len(rows), -1, n_items)
        for place, mixture in zip(places, weights, strict=True):
            mixed = [mixture[m] * parts[:, m] for m in np.flatnonzero(mixture)]
            place(start, rows, left, np.sum(mixed, axis=0))

    walk(ModelScores(side_by_side, n_users, len(scaled) * n_items), np.arange(n_users), [visit], n_threads=n_threads)
    return np.array([Standings(place.test, place.above, place.level).ndcg() for place in places])
