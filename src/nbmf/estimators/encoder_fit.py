"""What a fit of an encoder leaves: users are functions of what they have, and none of the items explains itself."""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.backends.cpu.encoder import intensities_of_stored
from nbmf.backends.encoder import Start
from nbmf.data.interactions import FORMS, formed
from nbmf.estimators.fit import FactorFit, NewRows, Reasons, no_likelihood
from nbmf.estimators.fold_in import Resources
from nbmf.estimators.ranking import nearest
from nbmf.estimators.scores import FactorScores
from nbmf.model.factors import Array, Point


@dataclass(frozen=True, eq=False, kw_only=True)
class EncoderFit(FactorFit):
    """A fit of V, H and b, of several starts side by side: a score is the mean of theirs, and one product.

    `item_posterior` is [H | b], items × (RK+1), and `user_posterior` [X V/R | 1]. Scores of items that the user has are
    no products, as the item's own part is left out. `input` is the form of the targets, `input_form` that of x.
    """

    is_product = False
    remedies = MappingProxyType(
        {
            "NBMF": "likelihood='negative_binomial'",
            "PoissonMF": "likelihood='poisson'",
            "input='log1p'": "target='log1p'",
            "inference='cavi'": "",
        }
    )
    encoder: Array
    intercepts: Array
    input_form: str

    @classmethod
    def of(cls, sides: tuple[Array, Array, Array], form: str, **shared: Any) -> Self:
        """Take V, H and the intercepts, items × RK, RK and R, and the form of x, and encode the users."""
        V, H, b = sides
        items = Point(np.column_stack((H, b.mean(axis=1, dtype=np.float64).astype(b.dtype))))
        fit = cls(**shared, user_posterior=items, item_posterior=items, encoder=V, intercepts=b, input_form=form)
        return replace(fit, user_posterior=Point(fit.encode(fit.fitted)))

    @property
    def n_starts(self) -> int:
        """R, the number of starts."""
        return int(self.intercepts.shape[1])

    @cached_property
    def first_start(self) -> tuple[Array, Array]:
        """[X V | 1] and [H | b] of the first start: a whole model, of as many components as a reader can take in."""
        K, (users, items) = self.encoder.shape[1] // self.n_starts, (self.user_posterior.mean, self.item_posterior.mean)
        own = users[:, :K] * self.dtype.type(self.n_starts)
        return np.column_stack((own, users[:, -1])), np.column_stack((items[:, :K], self.intercepts[:, 0]))

    @cached_property
    def kin(self) -> NDArray[np.intp]:
        """For each component the one of the first start that explains the same items most similarly.

        A component of the first start is its own, and so is the last one.
        """
        of_users, total = self._expected
        shares = self.item_posterior.mean[:, :-1] * of_users[:-1] / np.maximum(total, 1e-300)[:, None]
        shares /= np.maximum(np.linalg.norm(shares, axis=0), 1e-300)
        K = self.encoder.shape[1] // self.n_starts
        nearest_of = np.argmax(shares.T @ shares[:, :K], axis=1)
        return np.concatenate((np.arange(K), nearest_of[K:], [K]))

    def encode(self, counts: sp.csr_array) -> Array:
        """Return the users' rows that these counts make, [X V/R | 1]."""
        users = np.ones((counts.shape[0], self.encoder.shape[1] + 1), self.dtype)
        users[:, :-1] = formed(counts, self.input_form, self.dtype) @ self.encoder
        users[:, :-1] /= self.dtype.type(self.n_starts)
        return users

    def seen(self, counts: sp.csr_array, n_threads: int | None = None) -> sp.csr_array:
        """Return the scores of what users have, each without what the item says of itself."""
        H = self.item_posterior.mean
        one = Start(self.encoder / self.dtype.type(self.n_starts), *map(np.ascontiguousarray, (H[:, :-1], H[:, -1])))
        return intensities_of_stored(formed(counts, self.input_form, self.dtype), one, n_threads)

    @cached_property
    def _seen(self) -> sp.csr_array:
        return self.seen(self.fitted)

    def factors_of(self, rows: NewRows, resources: Resources) -> Point:
        """Return what the users' counts make of them; no counts, no factors."""
        return Point(self.encode(rows.counts))

    def scores(self) -> FactorScores:
        return FactorScores(self.user_posterior.mean, self.item_posterior.mean, lambda: self._seen)

    def scores_of(self, rows: NewRows, resources: Resources) -> FactorScores:
        return self.row_scores(self.encode(rows.counts), rows.counts)

    def intensity_scores(self) -> FactorScores:
        return self.scores()

    def intensity_scores_of(self, rows: NewRows, resources: Resources) -> FactorScores:
        return self.scores_of(rows, resources)

    def row_scores(self, users: Array, counts: sp.csr_array) -> FactorScores:
        return FactorScores(users, self.item_posterior.mean, cache(lambda: self.seen(counts)))

    def expected_totals(self, rows: NewRows, resources: Resources) -> Array:
        return self.scores_of(rows, resources).totals().astype(self.dtype)

    def check_of_counts(self) -> None:
        if self.input == "log1p":
            raise ValueError(no_likelihood("target", self.input))

    def reasons(
        self, whose: int | NewRows, columns: NDArray[Any], counts: Array, column: int, resources: Resources
    ) -> Reasons:
        """Split b_i + Σ_{j≠i} x_uj Σ_k V_jk H_ik, in which nothing is approximate."""
        h = self.item_posterior.mean[column].astype(np.float64)
        x = FORMS[self.input_form](counts.astype(np.float64)) / self.n_starts
        parts = x[:, None] * self.encoder[columns].astype(np.float64) * h[:-1]
        parts[columns == column] = 0
        by_component = np.append(np.sort(parts, axis=0)[::-1].sum(axis=0), h[-1])
        contributions = parts.sum(axis=1)
        return Reasons(contributions, float(h[-1]), float(contributions.sum() + h[-1]), by_component)

    def component_name(self, component: int) -> str:
        """Return a name for a component; the last one is what an item has from nobody's counts."""
        is_last = component == self.encoder.shape[1]
        return "everybody" if is_last else super().component_name(component)

    def similar_items(self, column: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        return nearest(self.item_posterior.mean[:, :-1], self.user_posterior.mean[:, :-1], column, n)

    def similar_users(self, row: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        return nearest(self.user_posterior.mean[:, :-1], self.item_posterior.mean[:, :-1], row, n)
