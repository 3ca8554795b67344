"""What the fits of comparison models leave: `RidgeFit` has factors of any sign, `CoupledFit` two factorizations."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.counts import Counts
from nbmf.backends.reference import Reference
from nbmf.data.interactions import formed
from nbmf.estimators.fit import FactorFit, FitResult, NewRows, Reasons
from nbmf.estimators.fold_in import MOST_STEPS, Resources, stopping_tolerance
from nbmf.estimators.ranking import name_of_items, nearest
from nbmf.estimators.scores import FactorScores, ModelScores
from nbmf.inference.comparison import ExposedRidge, Pair, expect_coupled
from nbmf.model import Model
from nbmf.model.comparison import PoissonExposure
from nbmf.model.factors import Array, Factor, Point
from nbmf.model.likelihood import Likelihood

NO_COUNTS = "ExpoMF is a Gaussian model of whether there is a count, so counts have no distribution; NBMF has one"


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeFit(FitResult):
    """A fit of `ExposedRidge`: a score is π_i w_u·h_i, the expectation of whether there is a count."""

    algorithm: ExposedRidge
    user_vectors: Array  # W, users × K
    item_vectors: Array  # H, items × K
    probability: NDArray[np.float64]  # π, one per item

    @property
    def target(self) -> str:
        """The form of the counts that scores are of."""
        return "binary"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the scores."""
        return self.item_vectors.dtype

    @cached_property
    def scored_items(self) -> Array:
        """π_i h_i, items × K."""
        return (self.item_vectors * self.probability[:, None]).astype(self.dtype)

    def scores(self) -> FactorScores:
        """Return the scores of all fitted users for all items."""
        return FactorScores(self.user_vectors, self.scored_items)

    def scores_of(self, rows: NewRows, resources: Resources) -> FactorScores:
        """Return the scores of new users for all items."""
        return FactorScores(self.vectors_of(rows, resources), self.scored_items)

    def score_rows(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of some fitted users for all items."""
        return np.asarray(self.user_vectors[rows] @ self.scored_items.T)

    def vectors_of(self, rows: NewRows, resources: Resources) -> Array:
        """Return the factors of new users; of one of whom nothing is known, the mean of the users'."""
        if rows.nothing_known:
            return np.asarray(self.user_vectors.mean(axis=0, keepdims=True))
        tol = stopping_tolerance(resources.tol, self.dtype)
        items = self.item_vectors.astype(np.float64)
        found = self.algorithm.fold_in(seen_cells(rows.counts), items, self.probability, tol, MOST_STEPS)
        return found.astype(self.dtype)

    def check_of_counts(self) -> None:
        """Refuse: the model is of whether there is a count."""
        raise ValueError(NO_COUNTS)

    def likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        """Refuse likewise."""
        raise ValueError(NO_COUNTS)

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split π_i w_u·h_i, where w_u = M⁻¹ λ Σ_j h_j is a sum over the user's items j, M = λ Σ_i E[a] h hᵀ + λ_w.

        E[a] and H are those of the end of the fit. Before convergence they differ a little from those of the last
        update of w_u; what is left over is reported as the prior's part, so the parts always sum to the score.
        """
        items, scored = self.item_vectors.astype(np.float64), self.scored_items[column].astype(np.float64)
        if isinstance(whose, NewRows):
            vector, row = self.vectors_of(whose, resources).astype(np.float64), whose.counts
        else:
            vector, row = self.user_vectors[[whose]].astype(np.float64), self.counts[[whose]]
        parts = vector[0] * scored
        exposure, _ = self.algorithm.expect(seen_cells(row), vector, items, self.probability)
        moments = self.algorithm.moments(exposure, items, self.algorithm.user_penalty)[0]
        contributions = self.algorithm.precision * items[columns] @ np.linalg.solve(moments, scored)
        return Reasons(contributions, float(parts.sum() - contributions.sum()), float(parts.sum()), parts)

    def component_name(self, component: int) -> str:
        """Return a name for a component: the items that have most of it."""
        labels = self.items if self.item_names is None else self.item_names
        return name_of_items(labels[np.argsort(-self.item_vectors[:, component], kind="stable")[:8]].tolist())

    def similar_items(self, column: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the items with the largest cosines of h; the penalties leave no scale of a component open."""
        return nearest(self.item_vectors, np.ones((1, self.item_vectors.shape[1])), column, n)


@dataclass(frozen=True, eq=False, kw_only=True)
class CoupledFit(FactorFit):
    """A fit of two factorizations: a score is Λ_ui μ_ui. The fields of `FactorFit` are those of μ = W Hᵀ.

    `exposing_model`, `exposing_users` and `exposing_items` are those of Λ = U Vᵀ.
    """

    exposing_users: Factor
    exposing_items: Factor
    exposing_model: Model

    def scores(self) -> ModelScores:  # type: ignore[override]
        """Return the scores of all fitted users for all items."""
        return self._scores(self.exposing_users.mean, self.user_posterior.mean)

    def scores_of(self, rows: NewRows, resources: Resources) -> ModelScores:  # type: ignore[override]
        """Return the scores of new users for all items."""
        return self._scores(*(factor.mean for factor in self.both_factors_of(rows, resources)))

    def expected(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Array:
        """Return Λμ of pairs."""
        return self.scores().pairs(rows, columns)

    def _scores(self, exposed: Array, users: Array) -> ModelScores:
        V, H = self.exposing_items.mean, self.item_posterior.mean
        return ModelScores(lambda rows: (exposed[rows] @ V.T) * (users[rows] @ H.T), len(users), len(H))

    def score_rows(self, rows: NDArray[np.intp]) -> Array:
        """Return the scores of some fitted users for all items."""
        return np.asarray(self.scores().score_items(rows))

    def both_factors_of(self, rows: NewRows, resources: Resources) -> tuple[Factor, Factor]:
        """Return the factors of new users, of Λ and of μ; of one of whom nothing is known, the means of the users'."""
        exposing, tasting = self._mean_user(len(rows.ids))
        if rows.nothing_known:
            return exposing.users, tasting.users
        backend, tol = Reference(), stopping_tolerance(resources.tol, self.dtype)
        counts = Counts.of(rows.counts, self.dtype)
        for _ in range(MOST_STEPS):
            before, found = (exposing, tasting), expect_coupled(counts, exposing, tasting, backend)
            users = [
                backend.conditional(pair.model.user_prior, expectation.user_sums)
                for pair, expectation in ((exposing, found.exposing), (tasting, found.tasting))
            ]
            exposing, tasting = replace(exposing, users=users[0]), replace(tasting, users=users[1])
            if all(map(partial(_unchanged, tol=tol), (exposing, tasting), before)):
                break
        return exposing.users, tasting.users

    def _mean_user(self, n_rows: int) -> tuple[Pair, Pair]:
        """Return both factorizations with the mean of all users in the place of each of so many."""
        means = (side.mean.mean(axis=0, dtype=np.float64) for side in (self.exposing_users, self.user_posterior))
        exposed, users = (Point(np.tile(mean, (n_rows, 1)).astype(self.dtype)) for mean in means)
        return Pair(self.exposing_model, exposed, self.exposing_items), Pair(self.model, users, self.item_posterior)

    def factors_of(self, rows: NewRows, resources: Resources) -> Factor:
        """Return the factors of new users, of μ."""
        return self.both_factors_of(rows, resources)[1]

    def likelihood_of(self, rows: NDArray[np.intp] | None, columns: NDArray[np.intp]) -> Likelihood:
        """Refuse: a count depends on two intensities, and `scores` are their products; `distribution` has the law."""
        raise ValueError("counts of two coupled factorizations have no likelihood given their means alone")

    def distribution(
        self, factors: tuple[Array, Array], columns: NDArray[np.intp]
    ) -> tuple[NDArray[np.float64], Likelihood]:
        """Return μ and the likelihood of the counts of pairs: rows of U and of W, and the columns of their items."""
        items = (self.exposing_items.mean, self.item_posterior.mean)
        Λ, μ = (np.sum(r.astype(np.float64) * i[columns], axis=1) for r, i in zip(factors, items, strict=True))
        return μ, PoissonExposure(np.maximum(Λ, np.finfo(np.float64).tiny))

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split Λ_ui Σ_k ⟨w_uk⟩⟨h_ik⟩ as `FactorFit` splits the sum; the exposure multiplies each part."""
        found = super().reasons(whose, columns, counts, column, resources)
        if isinstance(whose, NewRows):
            exposed = self.both_factors_of(whose, resources)[0].mean[0]
        else:
            exposed = self.exposing_users.mean[whose]
        Λ = float(exposed.astype(np.float64) @ self.exposing_items.mean[column].astype(np.float64))
        parts = None if found.by_component is None else Λ * found.by_component
        return Reasons(Λ * found.contributions, Λ * found.prior, Λ * found.score, parts)


def seen_cells(counts: sp.csr_array) -> sp.csr_array:
    """Return a 1 for every count."""
    return formed(counts, "binary", np.float64)


def _unchanged(now: Pair, before: Pair, tol: float) -> bool:
    """Whether no user changed by more than `tol`, relatively."""
    change, size = np.abs(now.users.mean - before.users.mean), np.abs(now.users.mean)
    return bool(np.all(change.sum(axis=1) <= tol * size.sum(axis=1)))
