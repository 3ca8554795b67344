"""`NBFISM`, the encoder of the family: the accuracy of item–item models at the price of factors."""

from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from nbmf.backends import BACKENDS, Backend, encoder_of, make_backend
from nbmf.backends.counts import take_unknown
from nbmf.backends.encoder import EncoderCounts, Start
from nbmf.data.interactions import FORMS, Interactions, text_labels
from nbmf.estimators import encoder_grow, grow
from nbmf.estimators.base import Recommender, check_distinct, one_of
from nbmf.estimators.encoder_fit import EncoderFit
from nbmf.estimators.factorization import CHEAP_CELLS, Factorization
from nbmf.estimators.factorize import (
    Control,
    Data,
    as_number,
    check_seed,
    check_stopping,
    check_whole,
    conduct,
    large_counts,
)
from nbmf.estimators.grow import check_refresh
from nbmf.inference.encoder import EncoderMM, joined
from nbmf.inference.run import Algorithm, State, Tie, observe, total_log_base
from nbmf.model import Model
from nbmf.model.factors import Array, Prior
from nbmf.model.likelihood import Likelihood, NegativeBinomial, Poisson
from nbmf.storage.container import StorageError

LIKELIHOODS = ("poisson", "negative_binomial")
START_SHAPE = 0.3  # of the gammas that a fit starts from: uneven, so that starts differ and components soon part
UNUSED = Prior(1.0, 1.0)


class NBFISM(Factorization):
    """A factor model whose users are functions of what they have: t_ui ~ p(t | μ_ui), μ_ui = b_i + Σ_k W_uk H_ik,

    W_uk = Σ_{j≠i} x_uj V_jk. It is NBSLIM with item–item weights B = V Hᵀ of rank K, after FISM (Kabbur, Ning and
    Karypis 2013): nearly as accurate, with components, and at a cost of non-zeros × K per sweep, so that it also fits
    where an array of items × items does not. No item takes part in its own score. Users have no parameters: a new
    user is one product, and explanations are exact. V, H, b ≥ 0, and every weight of B has an exponential prior.

    Parameters
    ----------
    n_components : int
        K, the number of components of a start.
    likelihood : "poisson" or "negative_binomial"
        p(t | μ). The negative binomial, with the exposures of `NBMF`, takes about three times as long and ranks alike.
    concentration : float
        α of the negative binomial. Logarithms of counts vary less than counts, so it is larger here than for `NBMF`.
    penalty : float
        ρ, the rate of the prior on the weights: as if ρ more of each item's x had been met by users who took nothing.
    input, target : "log1p", "binary" or "counts"
        Forms of x and t: ln(1 + y), whether there is a count, or y. Scores are expected targets, and expected counts
        only for "counts".
    n_clusters : int
        Of items, in which a user's unseen cells share one exposure of the negative binomial, as tied exposures of
        `NBMF` do. Up to 4 million cells each has its own.
    n_starts : int
        Number of random starts. They are fitted together, and a score is the mean of theirs: four rank better than
        one, in four times the time.
    max_iter : int
        Largest number of sweeps.
    tol : float
        Stop when a sweep raises the objective by less than this, relatively. Ranking seldom gains from more.
    backend : str
        "cpu" (threads), "gpu", "reference" (plain NumPy with dense arrays, for small data), or "auto".
    n_threads : int, optional
        Number of threads, all cores by default. Results are identical for any number.
    dtype : "float32" or "float64"
        Precision of the factors; sums are in double precision either way.
    random_state : int, RandomState or None
        Seed of the starts.
    verbose : bool
        Whether to show progress on standard error.

    Attributes
    ----------
    encoder_ : array
        V of all starts side by side, n_items × (n_starts·K): what one unit of input of an item adds to its user.
    user_factors_, item_factors_ : array
        Users' means W/n_starts and H of all starts side by side, with a last column of ones and intercepts b: their
        products are the scores of what users do not have. components_ is item_factors_ᵀ.
    objective_ : array
        Log-likelihood of the targets less ρ ΣB after each sweep, the mean over the starts; higher is better.
    n_iter_, converged_, ending_ : int, bool, str
        As of `NBMF`.
    users_, items_, item_names_ : array
        As of `NBMF`.

    Examples
    --------
    >>> import nbmf
    >>> users = ["ann", "ann", "bob", "cy", "cy", "dee", "dee"]
    >>> items = ["jazz", "blues", "jazz", "punk", "ska", "punk", "ska"]
    >>> data = nbmf.Interactions.from_arrays(users, items, [9, 5, 7, 8, 2, 3, 6])
    >>> model = nbmf.NBFISM(2, penalty=1.0, random_state=0).fit(data)
    >>> model.recommend("bob", n=1).items
    array([['blues']], dtype='<U5')
    """

    def __init__(
        self,
        n_components: int = 200,
        *,
        likelihood: str = "poisson",
        concentration: float = 3.0,
        penalty: float = 10.0,
        input: str = "log1p",
        target: str = "log1p",
        n_clusters: int = 64,
        n_starts: int = 4,
        max_iter: int = 200,
        tol: float = 2e-4,
        backend: str = "auto",
        n_threads: int | None = None,
        dtype: str = "float32",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: None = None, *, unknown: Any = None, **control: Any) -> Self:
        """Find V, H and b from a users × items matrix of counts. Ctrl-C keeps the last finished sweep and warns.

        The parameters are those of `NBMF.fit`. An unknown cell is neither predicted nor an input.
        """
        with self._refitting():
            self._check_settings()
            watched, data = Control.of(unknown, control), self._take(X)
            check_stopping(watched, self.target, "target")
            cells = take_unknown(watched.unknown, data.users, data.items)
            counts = self._counts(data, cells)
            work = float(counts.by_user.nnz) * self.n_components
            backend = encoder_of(watched.backend or make_backend(self.backend, self.n_threads, work))
            likelihood = self._likelihood()
            n_clusters = self._n_ties(data.matrix, likelihood)
            problem = RandomStarts(self, Model(likelihood, UNUSED, UNUSED), counts)
            hint = large_counts(data.matrix, self.target, "target")
            kept, ending = conduct(self, problem, n_clusters, backend, watched, hint)
            shared = data.result(kept.objectives, ending)
            shared |= {"model": kept.state.model, "ties": kept.state.ties, "unknown": cells, "input": self.target}
            shared["exposure"] = ("tied" if n_clusters else "exact") if likelihood.has_exposure else None
            self._become(EncoderFit.of(encoder_grow.sides_of(kept.state), self.input, **shared))
        return self

    def partial_fit(self, X: Any, y: None = None, *, refresh: int = 0) -> Self:
        """Continue with more data: users and items may appear, and counts of known pairs are added up.

        Users are what they have, so new counts show at once. New items get rows of V, H and b while all others stay;
        with `refresh`, everything is then refreshed by sweeps from where it is. See `NBMF.partial_fit`.
        """
        if not hasattr(self, "result_"):
            return self.fit(X, y)
        check_refresh(refresh)
        self._become(encoder_grow.add_counts(self._fit, self._given(X), self._growth(), int(refresh)))
        return self

    def add_items(self, data: Any) -> Self:
        """Add new items to the model, with all others as they are. See `NBMF.add_items`."""
        whole = grow.new_items(self._fit, data)
        self._fit.user_lookup.positions(whole.users)  # refuses users who were not fitted
        self._become(encoder_grow.add_counts(self._fit, whole, self._growth()))
        return self

    def _given(self, X: Any) -> Interactions:
        """Return more data with ids; rows without ids are new users."""
        if isinstance(X, Interactions):
            return X
        rows = self._rows(X)
        if text_labels(X, "index") is None:
            rows = grow.next_users(self._fit, rows.counts)
        return Interactions(check_distinct(rows.ids), self.items_, rows.counts)

    def _growth(self) -> encoder_grow.Growth:
        backend = encoder_of(make_backend(self.backend, self.n_threads))
        return encoder_grow.Growth(backend, float(self.penalty), self.tol, self.random_state)

    @property
    def _fit(self) -> EncoderFit:
        return cast("EncoderFit", super()._fit)

    def _become(self, result: EncoderFit) -> None:  # type: ignore[override]
        super()._become(result)
        self.encoder_ = result.encoder
        if result.input != "counts":  # otherwise it is not a parameter of the counts
            del self.concentration_

    def _check_unchanged(self) -> None:
        super()._check_unchanged()
        if self.encoder_ is not self._fit.encoder:
            raise StorageError("encoder_ is no longer that of the fit; a model file holds what was fitted")

    def _counts(self, data: Data, unknown: Any) -> EncoderCounts:
        forms = FORMS[self.input], FORMS[self.target]
        return EncoderCounts.encoded(data.matrix, forms, float(self.penalty), np.dtype(self.dtype), unknown)

    def _likelihood(self) -> Likelihood:
        return Poisson() if self.likelihood == "poisson" else NegativeBinomial(self.concentration)

    def _input(self) -> str:
        return str(self.target)

    def _n_ties(self, matrix: Any, likelihood: Likelihood) -> int | None:
        is_cheap = matrix.shape[0] * matrix.shape[1] <= CHEAP_CELLS
        return None if is_cheap or not likelihood.has_exposure else int(self.n_clusters)

    def _algorithm(self) -> Algorithm:
        return EncoderMM()

    def _check_settings(self) -> None:
        Recommender._check_settings(self)
        for name in ("n_components", "n_starts", "n_clusters"):
            check_whole(name, getattr(self, name))
        one_of("likelihood", self.likelihood, LIKELIHOODS)
        if not 1e-30 < as_number(self.concentration) < 1e30:
            raise ValueError(f"concentration is {self.concentration!r}; it must be a positive number")
        if not 0 <= as_number(self.penalty) < 1e30:
            raise ValueError(f"penalty is {self.penalty!r}; it must be a number from 0")
        for name in ("input", "target"):
            one_of(name, getattr(self, name), FORMS)
        one_of("backend", self.backend, BACKENDS)
        check_seed(self.random_state)


class RandomStarts:
    """Random starts of an encoder: half of each item's mean comes from b, and half from the components."""

    def __init__(self, settings: NBFISM, model: Model, counts: EncoderCounts) -> None:
        self.settings, self.model, self.counts = settings, model, counts

    def start(self, backend: Backend, rng: np.random.RandomState, tie: Tie | None) -> State:
        """Return the state before the first sweep."""
        starts = [start_of(self.counts, self.settings.n_components, rng) for _ in range(self.settings.n_starts)]
        users, items = joined([one.factors for one in starts], self.counts)
        log_base, ties = total_log_base(self.model.likelihood, self.counts), tie(items) if tie else None
        return observe(self.model, self.counts, backend, users, items, ties, log_base)


def start_of(counts: EncoderCounts, n_components: int, rng: np.random.RandomState) -> Start:
    """Return a random start."""
    by_user, dtype = counts.by_user, counts.by_user.dtype
    half = np.bincount(by_user.indices, np.maximum(by_user.data, 0).astype(np.float64), by_user.shape[1]) / 2
    V, H = (rng.gamma(START_SHAPE, 1 / START_SHAPE, (len(half), n_components)) for _ in range(2))
    V, H = _scaled(V, counts.met @ V), _scaled(H, H.sum(axis=1, keepdims=True)) * half[:, None]
    V[counts.met == 0] = 0  # nobody has the item, and without a penalty nothing would change its row
    return Start(V.astype(dtype), H.astype(dtype), (half / by_user.shape[0]).astype(dtype))


def _scaled(values: NDArray[np.float64], size: Array) -> NDArray[np.float64]:
    return np.asarray(values / np.where(size > 0, size, 1.0))
