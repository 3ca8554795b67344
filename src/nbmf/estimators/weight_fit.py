"""What a fit of item–item weights leaves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.interactions import FORMS, formed
from nbmf.estimators.fit import FitResult, NewRows, Reasons, no_likelihood
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.ranking import check_at_least_one
from nbmf.estimators.scores import ModelScores
from nbmf.model.factors import Array
from nbmf.model.likelihood import Likelihood, NegativeBinomial


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightFit(FitResult):
    """A fit of item–item weights.

    `input` and `target` are the forms of the counts that the model sees and predicts. `weights` is B, items × items:
    how much one unit of input of the row's item adds to the column's; sparse if items have few neighbours.
    """

    input: str
    target: str
    concentration: float
    weights: Any
    intercept: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.intercept.dtype

    def scores(self) -> ModelScores:
        return self._scores(self.counts)

    def scores_of(self, rows: NewRows, resources: Resources) -> ModelScores:
        return self._scores(rows.counts)

    def _scores(self, counts: sp.csr_array) -> ModelScores:
        return ModelScores(lambda which: self.intensities(counts[which]), counts.shape[0], len(self.items))

    def intensities(self, counts: sp.csr_array) -> Array:
        """Return μ of rows of counts for all items."""
        products = formed(counts, self.input, self.dtype) @ self.weights
        dense = products.toarray() if sp.issparse(products) else products
        return np.asarray(dense + self.intercept)

    def check_of_counts(self) -> None:
        if self.target != "counts":
            raise ValueError(no_likelihood("target", self.target))

    def likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        self.check_of_counts()
        return NegativeBinomial(self.concentration)

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split b_i + Σ_j x_uj B_ji, in which nothing is approximate."""
        x = FORMS[self.input](counts.astype(np.float64))
        contributions, prior = x * self._into(column)[columns], float(self.intercept[column])
        return Reasons(contributions, prior, float(np.sort(contributions)[::-1].sum()) + prior)

    def similar_items(self, column: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the items with the largest √(B_ji B_ij); fewer than n where fewer have both weights."""
        check_at_least_one(n)
        mutual = np.sqrt(self._into(column) * self._from(column))
        near = np.argsort(-mutual, kind="stable")[: min(int(n), np.count_nonzero(mutual))]
        return near, mutual[near]

    def _into(self, item: int) -> NDArray[np.float64]:
        """Return the weights of all items in an item's score."""
        found = self.weights[:, [item]].toarray().ravel() if sp.issparse(self.weights) else self.weights[:, item]
        return np.asarray(found, np.float64)

    def _from(self, item: int) -> NDArray[np.float64]:
        """Return the weights of an item in the scores of all items."""
        found = self.weights[[item]].toarray().ravel() if sp.issparse(self.weights) else self.weights[item]
        return np.asarray(found, np.float64)
