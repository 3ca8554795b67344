"""Estimators with factors: the facade of everything that needs W and H."""

import math
from inspect import signature
from typing import Any, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from nbmf.backends import BACKENDS, make_backend
from nbmf.backends.counts import Counts, take_unknown
from nbmf.data.interactions import FORMS, Interactions, formed, text_labels
from nbmf.estimators import check, explain, grow, predictive
from nbmf.estimators.base import Recommender, check_distinct, one_of
from nbmf.estimators.check import Check
from nbmf.estimators.explain import Exposures, Similar, TopItems
from nbmf.estimators.factorize import (
    Control,
    Data,
    Factors,
    as_number,
    check_seed,
    check_stopping,
    check_whole,
    conduct,
    large_counts,
    warn_of_misfit,
)
from nbmf.estimators.fit import FactorFit, NewRows
from nbmf.estimators.predictive import Predictive
from nbmf.inference.accelerate import Accelerated
from nbmf.inference.cavi import CAVI
from nbmf.inference.hyperparameters import Learned
from nbmf.inference.mm import MM
from nbmf.inference.run import Algorithm
from nbmf.model import Model
from nbmf.model.factors import Array, Prior
from nbmf.model.likelihood import Likelihood, Poisson
from nbmf.storage.container import StorageError

ALGORITHMS: dict[str, type[CAVI] | type[MM]] = {"cavi": CAVI, "mm": MM}
CHEAP_CELLS = 4_000_000
CHEAP_CELLS_PER_NONZERO = 32


class Factorization(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Recommender):  # type: ignore[misc]
    """Matrix factorization of counts with any likelihood: y_ui given μ_ui = [WHᵀ]_ui.

    `NBMF` and `PoissonMF` are this with a likelihood of their own. A likelihood without a compiled kernel needs
    backend="reference".

    Parameters
    ----------
    likelihood : Likelihood
        An instance of a subclass of `nbmf.model.likelihood.Likelihood`.

    The others are those of `NBMF`.
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        likelihood: Likelihood = Poisson(),  # noqa: B008 (a value)
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
        input: str = "counts",
        exposure: str = "auto",
        n_clusters: int = 64,
        init: str | tuple[ArrayLike, ArrayLike] = "random",
        max_iter: int = 500,
        tol: float = 1e-5,
        accelerate: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: None = None, *, unknown: Any = None, **control: Any) -> Self:
        """Factorize a users × items matrix of counts. Ctrl-C keeps the last finished sweep and warns.

        Parameters
        ----------
        X : Interactions, sparse matrix, array or data frame
            Of shape (n_users, n_items), any finite numbers from 0. What a sparse matrix does not store is a zero. The
            columns of a data frame name the items, and the index of a pandas data frame the users, if they are text;
            rows and columns that are labelled by numbers or dates are numbered 0, 1, 2, … by their order.
            The models are of whole numbers; fractions, such as weights, go through the same formulas without a warning.
        unknown : Interactions, sparse matrix or array, optional
            Of X's shape and ids. The cells it stores are left out of the likelihood, whatever X has there: a missing
            count does not mean zero.
        backend : Backend, optional
            Computes the passes over the data instead of the backend that the settings name.
        callbacks : iterable of callables, optional
            Called after each sweep with a snapshot (`sweep`, `objective`, `user_factors`, `item_factors`), such as
            `lambda s: mlflow.log_metric("objective", s.objective, step=s.sweep)`. One that returns True ends the fit.
        stopping : EarlyStopping, optional
            Ends the fit when held-out data says so, and keeps the best sweep.
        checkpoint : path, optional
            A file from which the fit can be resumed if it is cut short. It is replaced now and then and once more at
            the end, also after Ctrl-C. If that fails, the fit warns and continues.
        checkpoint_every : int or timedelta
            Number of sweeps or time between checkpoints, one minute by default.
        resume : path, optional
            A checkpoint to resume from, with the same data and settings (max_iter, tol, n_threads and verbose may
            change). The result is that of an undisturbed fit, bit for bit.
        """
        with self._refitting():
            self._check_settings()
            watched, data = Control.of(unknown, control), self._take(X)
            likelihood = self._likelihood_for(data, unknown)
            n_clusters = self._n_ties(data.matrix, likelihood)
            every_cell = likelihood.has_exposure and n_clusters is None
            work = float(math.prod(data.matrix.shape) if every_cell else data.matrix.nnz) * self.n_components
            backend = watched.backend or make_backend(self.backend, self.n_threads, work)
            model = Model(likelihood, *(Prior(shape, shape) for shape in (self.user_shape, self.item_shape)))
            form, cells = self._input(), take_unknown(watched.unknown, data.users, data.items)
            check_stopping(watched, form)
            problem = Factors(self, model, Counts.of(formed(data.matrix, form), np.dtype(self.dtype), cells))
            hint = large_counts(data.matrix, form)
            kept, ending = conduct(self, problem, n_clusters, backend, watched, hint)
            fit = FactorFit(
                **data.result(kept.objectives, ending),
                model=kept.state.model,
                user_posterior=kept.state.users.on_host(),
                item_posterior=kept.state.items.on_host(),
                exposure=("tied" if n_clusters else "exact") if likelihood.has_exposure else None,
                input=form,
                ties=kept.state.ties,
                unknown=cells,
            )
            warn_of_misfit(fit)
            self._become(fit)
        return self

    def transform(self, X: Any, *, unknown_items: str = "error") -> Array:
        """Return the factors of new users, rows × K, with the items' factors fixed: those that a fit would find.

        A row's own update is repeated until it changes the row by less than `tol`, relative to its size, at most 1000
        times. A row of the data of a converged fit gets the factors of the fit, up to that tolerance; where a row's
        objective has several peaks, as with shapes far below 1, perhaps those of another peak. A row without counts
        says that the user took none of the items. The model does not change.

        Parameters
        ----------
        X : Interactions, sparse matrix, array or data frame
            Items of Interactions are matched by id; otherwise there is one column per item of the fit. Data frames are
            matched by column names where `recommend_for` does so.
        unknown_items : "error" or "ignore"
            Whether items that were not fitted are an error or are left out with a warning that counts them.
        """
        return self._fit.factors_of(self._rows(X, unknown_items), self._resources).mean

    def inverse_transform(self, X: Any) -> Array:
        """Return the expected counts of rows of factors (as `transform` returns them), X @ components_."""
        factors, K = np.asarray(X), self._fit.item_posterior.dimensions[1]
        if factors.ndim != 2 or factors.shape[1] != K:
            raise ValueError(f"X has shape {factors.shape}; rows of factors of this model have {K} columns")
        return np.asarray(factors @ self.components_)

    def exposures(self, user: Any) -> Exposures:
        """Return how exposed a user was to each item the user has, E[a | y]: (α+y)/(α+μ) for NBMF, Eq. (update_a)."""
        return explain.exposures(self._fit, user)

    def top_items(self, component: int, n: int = 10) -> TopItems:
        """Return the n items that mark a component, which is numbered from 0 as in `components_`.

        They are ordered by weight × share²: the weight is the expected count by the component, Σ_u⟨w_uk⟩⟨h_ik⟩, and the
        share is its part of the item's whole expected count. So an item that is popular everywhere does not lead each
        component, and a rare item does not lead because the component alone has it. Components of `Averaged` are those
        of its members, one member after the other, and so are their weights and shares.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "ann", "bob", "cy"], ["jazz", "soul", "jazz", "folk"])
        >>> nbmf.NBMF(2, random_state=0).fit(data).top_items(0, n=1).items.shape
        (1,)
        """
        return explain.top_items(self._fit, component, n)

    def similar_users(self, user: Any, n: int = 10) -> Similar:
        """Return the n users most similar to one: cosines of their expected counts by component, Σ_i⟨w_uk⟩⟨h_ik⟩."""
        return explain.similar_users(self._fit, user, n)

    def predictive(
        self, users: ArrayLike, items: ArrayLike, *, factors: str = "mean", n_draws: int = 200, seed: int = 0
    ) -> Predictive:
        """Return the distribution of new counts y* of pairs of ids: mean, sd, intervals, probabilities.

        Parameters
        ----------
        users, items : id or list of ids
            Pairs, or one of either for all of the other.
        factors : "mean" or "posterior"
            "mean" takes the factors at their posterior means, so the spread is that of the counts alone. "posterior"
            is the mixture over draws of W and H ("cavi"), which accounts for the uncertainty of users with few counts.
            Variational posteriors are narrower than the true ones, so this is the least that must be added.
        n_draws : int
            Number of draws; each draws one gamma number per entry of the users' and items' rows.
        seed : int
            Seed of the draws.

        Examples
        --------
        >>> import nbmf
        >>> model = nbmf.NBMF(2, random_state=0).fit([[4, 0, 1], [0, 3, 0], [5, 1, 2]])
        >>> new = model.predictive(0, [0, 1])
        >>> new.at_least(1) + new.probability(0)
        array([1., 1.])
        >>> wider = model.predictive(0, [0, 1], factors="posterior")
        >>> bool((wider.sd > new.sd).all())
        True
        """
        one_of("factors", factors, ("mean", "posterior"))
        if factors == "mean":
            return predictive.predictive(self._fit, users, items)
        return predictive.predictive_drawn(self._fit, users, items, n_draws, seed)

    def check(self, data: Any = None, *, n_draws: int = 100, seed: int = 0) -> Check:
        """Compare the data with draws from the fitted model, and say in a sentence each what does not fit.

        Parameters
        ----------
        data : Interactions, sparse matrix, array or data frame, optional
            The data of the fit by default. Users of the fit, named by the ids of Interactions, keep their factors;
            anybody else, and every row of a matrix, array or data frame, is folded in.
        n_draws, seed : int
            Number of draws of the counts of at most 250,000 cells, and their seed.
        """
        return check.check(self._fit, None if data is None else self._known(data), n_draws, seed, self._resources)

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean of ln p(count) over the cells of X, larger is better: see `score_samples` for which cells.

        With input="log1p" or "binary" these are probabilities of the transformed counts, so compare only models with
        the same `input`.
        """
        total, n_cells = self._log_probabilities(X)
        return float(total.sum() / n_cells.sum()) if n_cells.any() else math.nan

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return, for each row of X, the mean of ln p(count) over its cells, at the posterior means of the factors.

        Users of the fit, named by the ids of Interactions, are scored with their factors on the cells that were not in
        the training data: held-out counts and all the zeros. Anybody else, and every row of a matrix, array or data
        frame, is folded in first and then scored on the whole row, which is held out from the items' factors but not
        from the user's. The result is −∞ if a count is impossible (intensity 0), NaN for a user without such cells.
        """
        total, n_cells = self._log_probabilities(X)
        return np.asarray(np.divide(total, n_cells, out=np.full(len(total), np.nan), where=n_cells > 0))

    def _log_probabilities(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return predictive.score_rows(self._fit, *self._known(X), self._resources)

    def _known(self, X: Any) -> tuple[NewRows, NDArray[np.bool_]]:
        """Return rows of counts, and which of them are users of the fit."""
        rows = self._rows(X)
        return rows, self._fit.user_lookup.find(rows.ids)[1] & isinstance(X, Interactions)

    def add_users(self, data: Any, *, unknown_items: str = "error") -> Self:
        """Add new users to the model, with factors as `transform` finds them; nothing else changes.

        Parameters
        ----------
        data, unknown_items
            As for `transform`. Users of Interactions, and those of a data frame whose index is text, must be new; other
            rows are numbered after the largest id.
        """
        new = self._rows(data, unknown_items)
        if text_labels(data, "index") is not None:
            check_distinct(new.ids)
        elif not isinstance(data, Interactions):
            new = grow.next_users(self._fit, new.counts)
        self._become(grow.add_users(self._fit, new, self._resources))
        return self

    def add_items(self, data: Any) -> Self:
        """Add new items to the model, with factors from the users' as they are; nothing else changes.

        The mirror image of `add_users`. Exposures of a new item are exact, one per user; if those of the model are
        tied, the item joins the cluster whose mean is nearest to its own.

        Parameters
        ----------
        data : Interactions, matrix or array
            Interactions of new items and users of the fit; or one row per user of the fit and one column per new item,
            which get the numbers after the largest item id. Where the model's ids are text, the text labels of a data
            frame are ids too.
        """
        self._become(grow.add_items(self._fit, data, self._resources))
        return self

    def partial_fit(self, X: Any, y: None = None, *, refresh: int = 0) -> Self:
        """Continue with more data: users and items may appear, and counts of known pairs are added up.

        Users who have counts in the data get factors for all of their counts, new items get theirs, and all other
        factors stay; with `refresh`, everybody's are then refreshed by sweeps from where they are. On an estimator that
        is not fitted this is `fit`.

        Parameters
        ----------
        X : Interactions, sparse matrix, array or data frame
            Rows of a matrix, with columns as for `transform`, are new users and get the numbers after the largest user
            id; those of a pandas data frame whose index is text are the users that it names. Only Interactions can
            bring new items.
        refresh : int
            Number of sweeps over all the data, old and new. With sweeps, `objective_` and `n_iter_` are theirs.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "bob", "bob"], ["jazz", "jazz", "folk"])
        >>> model = nbmf.NBMF(2, random_state=0).fit(data)
        >>> more = nbmf.Interactions.from_arrays(["ann", "cy"], ["jazz", "soul"])
        >>> model.partial_fit(more, refresh=5).recommend("cy", n=1).items
        array([['jazz']], dtype='<U4')
        >>> model.exposures("ann").count
        array([2])
        """
        if not hasattr(self, "result_"):
            return self.fit(X, y)
        grow.check_refresh(refresh)
        if text_labels(X, "index") is not None:
            rows = self._rows(X)
            X = Interactions(check_distinct(rows.ids), self.items_, rows.counts)
        if isinstance(X, Interactions):
            grown = grow.add_counts(self._fit, X, self._resources)
        else:
            grown = grow.add_users(self._fit, grow.next_users(self._fit, self._rows(X).counts), self._resources)
        self._become(grow.refresh(grown, self._algorithm(), int(refresh), self._resources) if refresh else grown)
        return self

    @property
    def _fit(self) -> FactorFit:
        return cast("FactorFit", super()._fit)

    @property
    def _n_features_out(self) -> int:
        """Number of columns of `transform`, for scikit-learn."""
        return int(self.item_factors_.shape[1])

    def _become(self, result: FactorFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.user_posterior_, self.item_posterior_ = result.user_posterior, result.item_posterior
        self.user_factors_, self.item_factors_ = result.user_posterior.mean, result.item_posterior.mean
        self.components_ = self.item_factors_.T
        self.likelihood_, self.concentration_ = result.model.likelihood, result.model.likelihood.concentration
        self.__dict__.pop("exposure_", None)
        if result.exposure is not None:
            self.exposure_ = result.exposure

    def _check_unchanged(self) -> None:
        fit = self._fit
        if self.user_factors_ is not fit.user_posterior.mean or self.item_factors_ is not fit.item_posterior.mean:
            raise StorageError("the factors are no longer those of the fit; a model file holds what was fitted")

    def _likelihood(self) -> Likelihood:
        if not isinstance(self.likelihood, Likelihood):
            raise ValueError(f"likelihood is {self.likelihood!r}; it must be a nbmf.model.likelihood.Likelihood")
        return self.likelihood

    def _likelihood_for(self, data: Data, unknown: Any) -> Likelihood:
        """Return the likelihood to begin with, which may depend on the data without its unknown cells."""
        return self._likelihood()

    def _input(self) -> str:
        """Return which form of the counts the likelihood sees."""
        form = getattr(self, "input", "counts")  # some estimators have no such setting
        one_of("input", form, FORMS)
        return str(form)

    def _n_ties(self, matrix: sp.csr_array, likelihood: Likelihood) -> int | None:
        """Return the number of item clusters whose zero cells share an exposure; None ties nothing."""
        if not likelihood.has_exposure:
            return None
        cells = matrix.shape[0] * matrix.shape[1]
        cheap = cells <= max(CHEAP_CELLS, CHEAP_CELLS_PER_NONZERO * matrix.nnz)
        return None if self.exposure == "exact" or (self.exposure == "auto" and cheap) else self.n_clusters

    def _untied_items(self, n_clusters: int | None, matrix: sp.csr_array, name: str) -> int | None:
        """Refuse tied exposures if each item has a parameter of its own."""
        if n_clusters and getattr(self, name) == "learn_per_item":
            raise ValueError(
                f"items that share an exposure cannot have a {name} each: {name}='learn_per_item' needs "
                f"exposure='exact', which computes all {matrix.shape[0] * matrix.shape[1]:,} cells in every sweep"
            )
        return n_clusters

    def _learned(self) -> Learned:
        """Return which hyper-parameters are learned."""
        for name, allowed in (("rates", ("shared", "per_row")), ("shapes", ("fixed", "learn"))):
            value = getattr(self, name)
            one_of(name, value, allowed)
            setting = signature(type(self)).parameters.get(name)  # "mm" ignores its default, as it ignores the shapes
            if value not in (allowed[0], setting and setting.default) and self.inference == "mm":
                raise ValueError(f"{name} is {value!r}, but maximum likelihood ('mm') has no priors; use 'cavi'")
        has_priors = self.inference != "mm"
        return Learned(rates=has_priors and self.rates == "per_row", shapes=has_priors and self.shapes == "learn")

    def _algorithm(self) -> Algorithm:
        algorithm = ALGORITHMS[self.inference](self._learned())
        return Accelerated(algorithm) if self.accelerate else algorithm

    def _check_settings(self) -> None:
        super()._check_settings()
        check_whole("n_components", self.n_components)
        for name in ("user_shape", "item_shape"):
            value = getattr(self, name)
            if not 0 < as_number(value) < np.inf:
                raise ValueError(f"{name} is {value!r}; a gamma prior needs a positive shape")
        one_of("inference", self.inference, ALGORITHMS)
        one_of("backend", self.backend, BACKENDS)
        if "exposure" in self.get_params(deep=False):
            one_of("exposure", self.exposure, ("auto", "exact", "tied"))
            check_whole("n_clusters", self.n_clusters)
        is_pair = isinstance(self.init, tuple | list) and len(self.init) == 2
        if not is_pair and not (isinstance(self.init, str) and self.init == "random"):
            raise ValueError(f"init is {self.init!r}; it must be 'random' or a pair of arrays (W0, H0)")
        check_seed(self.random_state)
        self._likelihood()
        self._learned()
        self._input()

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # `dtype` sets the type of the factors
        return tags
