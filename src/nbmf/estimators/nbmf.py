"""The estimators a user meets: counts in, factors and recommendations out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from nbmf.estimators.base import CountFactorization
from nbmf.inference.hyperparameters import Learned
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson

CHEAP_CELLS = 4_000_000
CHEAP_CELLS_PER_NONZERO = 32
LEARNED = {"learn": "all", "learn_per_user": "user", "learn_per_item": "item"}


class NBMF(CountFactorization):
    """Negative binomial matrix factorization: y_ui ~ Poisson(a_ui [WHᵀ]_ui), a_ui ~ Gamma(α, α).

    Parameters
    ----------
    n_components : K, the number of components
    concentration : α; the variance of a count with mean μ is μ(1 + μ/α), so large α is close to Poisson. "learn" finds
        it from the data, between 0.001 and 10,000, "learn_per_user" and "learn_per_item" (exact exposures only) one
        for each. The most likely α is often smaller than the one that ranks best: `nbmf.tune` looks for that
    user_shape, item_shape : α^W, α^H, the shapes of the gamma priors ("cavi"); below 1 favours sparse factors
    rates : "shared", one β^H for all items, learned, and β^W = α^W, as in the paper; "per_row", a learned rate for
        every user and item, as in hierarchical Poisson factorization ("cavi")
    shapes : "fixed", or "learn" them, starting from user_shape and item_shape ("cavi")
    inference : "cavi", variational Bayes (Algorithm 1), or "mm", maximum likelihood (Eqs. nmfH, nmfW)
    exposure : "exact", an exposure for every cell; "tied", the unseen cells of a user share one in each cluster of
        items, which costs no more than the non-zeros do; "auto", exact while there are at most 32 cells for each
        non-zero count (then the cells cost about as much as the non-zeros) or 4 million cells in all
    n_clusters : number of item clusters if tied
    init : "random" (each entry Gamma(1, 1)) or a pair of positive arrays, users × K and items × K
    max_iter : most sweeps
    tol : stop when the objective's relative increase in a sweep is below this (τ); 0 never stops early
    accelerate : start every third sweep from a safeguarded extrapolation
    backend : "auto", "cpu" (threads), "gpu" or "gpu-bf16" (one CUDA device, docs/scale.md; "auto" takes it where it is
        there and pays), "reference" (plain NumPy with dense arrays, for small data)
    n_threads : None for one a core; changes nothing but the time
    dtype : "float32" or "float64", of the factors; sums are in double precision either way
    random_state : seed of the start
    verbose : show progress on standard error

    Attributes
    ----------
    user_factors_, item_factors_ : posterior means ⟨W⟩ (n_users × K) and ⟨H⟩ (n_items × K); components_ is ⟨H⟩ᵀ
    user_posterior_, item_posterior_ : `nbmf.model.factors.Gamma` ("cavi") or `Point` ("mm")
    objective_ : ELBO ("cavi") or log-likelihood ("mm") after each sweep; higher is better
    n_iter_, converged_ : number of sweeps, and whether `tol` ended them; ending_ is "converged", "max_iter", "stopped"
        (by a callback or by `stopping`) or "interrupted" (by Ctrl-C)
    concentration_, exposure_ : what was used; a concentration for each user is an array n_users × 1, for each item
        1 × n_items
    users_, items_ : ids of the rows and columns; item_names_ : the items' names where the data had them, else None

    Examples
    --------
    >>> import nbmf
    >>> users = ["ann", "ann", "bob", "cy", "cy", "dee", "dee"]
    >>> items = ["jazz", "blues", "jazz", "punk", "ska", "punk", "ska"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 2, 3, 6])
    >>> model = nbmf.NBMF(n_components=2, random_state=0).fit(data)
    >>> model.recommend("bob", n=1).items
    array([['blues']], dtype='<U5')
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        concentration: float | str = 1.0,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
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
        """Keep the settings; `fit` checks them."""
        self.n_components = n_components
        self.concentration = concentration
        self.user_shape = user_shape
        self.item_shape = item_shape
        self.rates = rates
        self.shapes = shapes
        self.inference = inference
        self.exposure = exposure
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.accelerate = accelerate
        self.backend = backend
        self.n_threads = n_threads
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _likelihood(self) -> Likelihood:
        if not isinstance(self.concentration, str):
            return NegativeBinomial(self.concentration)
        if self.concentration not in LEARNED:
            raise ValueError(
                f"concentration is {self.concentration!r}; it must be a positive number or one of "
                f"{', '.join(map(repr, LEARNED))}"
            )
        return NegativeBinomial(1.0)  # where learning starts

    def _learned(self) -> Learned:
        group = LEARNED[self.concentration] if isinstance(self.concentration, str) else ""
        return replace(super()._learned(), concentration=group)

    def _n_ties(self, matrix: sp.csr_array) -> int | None:
        if self.exposure not in ("auto", "exact", "tied"):
            raise ValueError(f"exposure is {self.exposure!r}; it must be 'auto', 'exact' or 'tied'")
        if self.n_clusters < 1:
            raise ValueError(f"n_clusters is {self.n_clusters}; it must be a whole number from 1")
        cells = matrix.shape[0] * matrix.shape[1]
        cheap = cells <= max(CHEAP_CELLS, CHEAP_CELLS_PER_NONZERO * matrix.nnz)
        exact = self.exposure == "exact" or (self.exposure == "auto" and cheap)
        if not exact and self.concentration == "learn_per_item":
            raise ValueError(
                "items that share an exposure cannot have a concentration each: concentration='learn_per_item' needs "
                f"exposure='exact', which computes all {cells:,} cells in every sweep"
            )
        return None if exact else self.n_clusters


class PoissonMF(CountFactorization):
    """Poisson factorization, the baseline: y_ui ~ Poisson([WHᵀ]_ui), on raw counts or on whether there are any.

    Parameters
    ----------
    binarize : replace every positive count by 1 before the fit

    The others are those of `NBMF`.

    Examples
    --------
    >>> PoissonMF(n_components=1, random_state=0).fit([[4, 0], [2, 2]]).predict([0, 1], [0, 0]).round(0)
    array([3., 3.], dtype=float32)
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        binarize: bool = False,
        user_shape: float = 1.0,
        item_shape: float = 1.0,
        rates: str = "shared",
        shapes: str = "fixed",
        inference: str = "cavi",
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
        """Keep the settings; `fit` checks them."""
        self.n_components = n_components
        self.binarize = binarize
        self.user_shape = user_shape
        self.item_shape = item_shape
        self.rates = rates
        self.shapes = shapes
        self.inference = inference
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.accelerate = accelerate
        self.backend = backend
        self.n_threads = n_threads
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def _likelihood(self) -> Likelihood:
        return Poisson()

    def _prepare(self, matrix: sp.csr_array) -> sp.csr_array:
        if not self.binarize:
            return matrix
        return sp.csr_array((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
