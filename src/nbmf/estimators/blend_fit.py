"""What a fit of a blend leaves: the fits of its members, and what their scores weigh."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.estimators.fit import FitResult, NewRows, Reasons
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.ranking import check_at_least_one
from nbmf.estimators.scores import FactorScores, ModelScores, Rows, Scores
from nbmf.inference.run import Ending
from nbmf.model.factors import Array, largest

ENDINGS = Ending.INTERRUPTED, Ending.STOPPED, Ending.MAX_ITER, Ending.CONVERGED
"""Worst first: a blend ends as its worst member did."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class BlendFit(FitResult):
    """A weighted sum of the scores of several fits of the same data: Σ_m weights[m]/scales[m] · score of member m.

    A member's scale is the mean size of its scores, so weights of different models can be compared. A member of weight
    0 is kept but not asked.
    """

    members: tuple[FitResult, ...]
    weights: Numbers
    scales: Numbers

    @classmethod
    def of(cls, members: Sequence[FitResult], weights: Numbers, scales: Numbers) -> "BlendFit":
        """Blend fits of the same data; each has an objective of its own, so the blend has none."""
        names = "users", "items", "counts", "item_names", "has_feature_names"
        shared: dict[str, Any] = {name: getattr(members[0], name) for name in names}
        shared |= {"objective": np.empty(0), "ending": min((m.ending for m in members), key=ENDINGS.index)}
        return cls(**shared, members=tuple(members), weights=weights, scales=scales)

    @property
    def target(self) -> str:
        """What scores are of, in words."""
        return "several models"

    @cached_property
    def shares(self) -> list[tuple[float, FitResult]]:
        """The members of a weight above 0, and what their scores are multiplied by."""
        shares = zip((self.weights / self.scales).tolist(), self.members, strict=True)
        return [each for each in shares if each[0] > 0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The least precise type of the members' scores."""
        return min((member.dtype for member in self.members), key=lambda dtype: dtype.itemsize)

    def scores(self) -> Scores:
        """Return the scores of all fitted users for all items."""
        return summed([(share, member.scores()) for share, member in self.shares], self.dtype)

    def scores_of(self, rows: NewRows, resources: Resources) -> Scores:
        """Return the scores of new users for all items."""
        return summed([(share, member.scores_of(rows, resources)) for share, member in self.shares], self.dtype)

    def check_of_counts(self) -> NoReturn:
        """Refuse: each member has a distribution of its own, or none."""
        remedy = "ask a member that has one, as in model.members_[0].predictive(users, items)"
        raise ValueError(f"a blend of models has no likelihood of counts; {remedy}")

    def likelihood_of(self, rows: Rows | None, columns: Rows) -> NoReturn:
        """Refuse likewise."""
        self.check_of_counts()

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Add up the members' parts, each multiplied as the member's score is."""
        parts = [(share, member.reasons(whose, columns, counts, column, resources)) for share, member in self.shares]
        contributions = np.sum([share * part.contributions for share, part in parts], axis=0)
        return Reasons(
            contributions, sum(s * part.prior for s, part in parts), sum(s * part.score for s, part in parts)
        )

    def similar_items(self, column: int, n: int) -> tuple[Rows, Numbers]:
        """Return the items with the largest weighted mean of the members' similarities, each relative to its largest.

        Items that no member finds similar are left out.
        """
        check_at_least_one(n)
        total = np.zeros(len(self.items))
        for weight, (_, member) in zip(self.weights[self.weights > 0], self.shares, strict=True):
            near, similarity = member.similar_items(column, max(len(self.items) - 1, 1))
            if len(near) and similarity[0] > 0:
                total[near] += weight * np.maximum(similarity, 0) / similarity[0]
        near = np.argsort(-total, kind="stable")[: min(int(n), np.count_nonzero(total))]
        return near, total[near]


def summed(parts: Sequence[tuple[float, Scores]], dtype: np.dtype[Any]) -> Scores:
    """Return the sum of scores, each times a number; of factors it is a product again, of all of them side by side."""
    factors = [(share, scores) for share, scores in parts if isinstance(scores, FactorScores)]
    if len(factors) == len(parts):
        users = np.hstack([share * scores.users.astype(np.float64) for share, scores in factors])
        kind = dtype if np.abs(users).max(initial=0.0) <= largest(dtype) else np.dtype(np.float64)
        exceptions = cache(lambda: summed_exceptions(factors, kind)) if any(s.exceptions for _, s in factors) else None
        items = np.hstack([scores.items for _, scores in factors])
        return FactorScores(users.astype(kind), items.astype(kind), exceptions)

    def score_items(rows: Rows) -> Numbers:
        blocks = (share * block_of(scores, rows).astype(np.float64) for share, scores in parts)
        return sum(blocks, np.zeros((len(rows), parts[0][1].n_items)))

    return ModelScores(score_items, parts[0][1].n_users, parts[0][1].n_items)


def summed_exceptions(factors: Sequence[tuple[float, FactorScores]], dtype: np.dtype[Any]) -> sp.csr_array:
    """Return the weighted sums of the cells in which the scores of any part are no product."""
    stored = [scores.exceptions() for _, scores in factors if scores.exceptions is not None]
    cells = sum(sp.csr_array((np.ones(m.nnz, np.int32), m.indices, m.indptr), shape=m.shape) for m in stored)
    rows = np.repeat(np.arange(cells.shape[0]), np.diff(cells.indptr))
    sums = sum(share * scores.pairs(rows, cells.indices).astype(np.float64) for share, scores in factors)
    found = np.maximum(sums, np.finfo(dtype).tiny).astype(dtype)  # a stored score is above 0
    return sp.csr_array((found, cells.indices, cells.indptr), shape=cells.shape)


def block_of(scores: Scores, rows: Rows) -> Array:
    """Return the scores of some users for all items."""
    ((_, block),) = scores.reader(len(rows), whole=True)(rows)
    return block[:, : scores.n_items]
