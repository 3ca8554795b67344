"""`CoupledCompoundMF`, a comparison model whose exposures have a factorization of their own."""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from nbmf.backends.counts import Counts
from nbmf.backends.reference import Reference
from nbmf.data.interactions import Ids
from nbmf.estimators.comparison import DenseModel, data_fields
from nbmf.estimators.comparison_fit import CoupledFit
from nbmf.estimators.factorize import Data, as_number, check_whole
from nbmf.estimators.predictive import Predictive
from nbmf.inference.comparison import Coupled, Pair, begin_coupled
from nbmf.inference.progress import Progress
from nbmf.inference.run import Until, run
from nbmf.model import Model
from nbmf.model.factors import Array, Point, Prior
from nbmf.model.likelihood import Poisson


class CoupledCompoundMF(DenseModel):
    """Comparison model: coupled compound Poisson factorization, experimental, for at most 4 million cells.

    After Basbug and Engelhardt (2017), exposures are whole numbers with a factorization of their own:
    a_ui ~ Poisson([UVᵀ]_ui) and y_ui ~ Poisson(a_ui [WHᵀ]_ui), with gamma priors on all factors. Mean-field coordinate
    ascent alternates between the exposures, with E[a] = Λe^(−μ) for a zero and a sum over a ≥ 1 for a count, and two
    factorizations: that of Λ = UVᵀ with the counts E[a], and that of μ = WHᵀ with the exposures E[a]. Scores are
    expected counts Λ_ui μ_ui.

    Parameters
    ----------
    n_components : int
        K, the number of components of μ.
    n_exposure_components : int, optional
        Number of components of Λ, n_components by default.
    user_shape, item_shape : float
        Shapes of the gamma priors of both factorizations.
    max_iter, tol, n_threads, dtype, random_state, verbose
        As of `NBMF`.

    Attributes
    ----------
    user_posterior_, item_posterior_ : Gamma
        Of W and H, in `nbmf.model.factors`.
    exposing_user_posterior_, exposing_item_posterior_ : Gamma
        Of U and V.
    objective_ : array
        ELBO after each sweep; higher is better.
    n_iter_, converged_, ending_, users_, items_, item_names_
        As of `NBMF`.

    Examples
    --------
    >>> model = CoupledCompoundMF(2, random_state=0).fit([[9, 5, 0, 0], [7, 0, 0, 0], [0, 0, 8, 2], [0, 0, 3, 6]])
    >>> model.recommend(1, n=1).items  # the second item, of which the first user has 5
    array([[1]])
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        n_exposure_components: int | None = None,
        user_shape: float = 0.3,
        item_shape: float = 0.3,
        max_iter: int = 100,
        tol: float = 1e-5,
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def _factorized(self, data: Data) -> CoupledFit:
        rng, until = check_random_state(self.random_state), Until(self.max_iter, self.tol)
        counts, backend = Counts.of(data.matrix, np.dtype(self.dtype)), Reference()
        sizes = self.n_exposure_components or self.n_components, self.n_components
        exposing, tasting = (self._start(data.matrix.shape, n_components, rng) for n_components in sizes)
        start = begin_coupled(exposing, tasting, counts, backend)
        with Progress(type(self).__name__, self.max_iter, quiet=not self.verbose) as progress:
            found = run(Coupled(), start, counts, backend, until, watch=progress.report)
        exposing, tasting = cast("Any", found.state).pairs
        return CoupledFit(
            **data_fields(data),
            objective=np.array(found.objectives),
            ending=found.ending,
            model=tasting.model,
            user_posterior=tasting.users,
            item_posterior=tasting.items,
            exposure=None,
            exposing_model=exposing.model,
            exposing_users=exposing.users,
            exposing_items=exposing.items,
        )

    def _start(self, shape: tuple[int, int], n_components: int, rng: np.random.RandomState) -> Pair:
        """Return priors and random factors whose products have mean 1."""
        model = Model(Poisson(), *(Prior(shape, shape) for shape in (self.user_shape, self.item_shape)))
        users, items = (rng.gamma(1.0, n_components**-0.5, (n, n_components)).astype(self.dtype) for n in shape)
        return Pair(model, Point(users), Point(items))

    def predictive(self, users: ArrayLike, items: ArrayLike) -> Predictive:
        """Return the distribution of new counts of pairs of ids: mean, sd, intervals, probabilities."""
        fit = self._fit
        rows, columns = fit.pairs(users, items)
        factors = fit.exposing_users.mean[rows], fit.user_posterior.mean[rows]
        return self._predictive(fit.users[rows], factors, columns)

    def predictive_for(
        self, counts: Mapping[Any, Any], items: ArrayLike, *, unknown_items: str = "error"
    ) -> Predictive:
        """Return the distribution of the next counts of a user who was not fitted, given as for `recommend_for`."""
        new, columns = self._rows(counts, unknown_items, mapping=True), self._fit.item_lookup.positions(items)
        new.check_one("predictive_for")
        exposed, users = self._fit.both_factors_of(new, self._resources)
        return self._predictive(np.zeros(len(columns), np.intp), (exposed.mean, users.mean), columns)

    def _predictive(self, users: Ids, factors: tuple[Array, Array], columns: NDArray[np.intp]) -> Predictive:
        μ, likelihood = self._fit.distribution(factors, columns)
        return Predictive(users, self._fit.items[columns], μ[None, :], likelihood)

    @property
    def _fit(self) -> CoupledFit:
        return cast("CoupledFit", super()._fit)

    def _become(self, result: CoupledFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.user_posterior_, self.item_posterior_ = result.user_posterior, result.item_posterior
        self.exposing_user_posterior_, self.exposing_item_posterior_ = result.exposing_users, result.exposing_items

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.n_exposure_components is not None:
            check_whole("n_exposure_components", self.n_exposure_components, ", or None for n_components")
        for name in ("user_shape", "item_shape"):
            if not 0 < as_number(getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; a gamma prior needs a positive shape")
