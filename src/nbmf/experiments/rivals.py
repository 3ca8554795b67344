"""Models that can be compared: ours, and those people use instead, each fitted by one function of the same form.

Every model gets the same counts. One that takes numbers may be given them as they are, as log(1 + count) or as 0 and 1,
whichever ranks better; those whose name says what they take have no choice. What each is searched over is said beside
it; iterations are limited so that a dozen trials of every model end within minutes on data of half a million non-zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from nbmf.data.interactions import Interactions
from nbmf.estimators.averaged import Averaged
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.evaluation.judged import Judged
from nbmf.experiments.search import Between, OneOf, Space

Rows = NDArray[np.intp]
Array = NDArray[np.float32]

INPUTS = ("counts", "log1p", "binary")
ANY_INPUT = OneOf(INPUTS)


@dataclass(frozen=True)
class Rival:
    """A model as it is compared.

    label : what it is called in a table
    fit : (train, seed, number of threads, settings by name) → something `nbmf.evaluate` can judge
    defaults : all settings it is tried with first, those its authors publish or its package comes with
    space : where others are looked for
    random : whether the seed changes what it finds
    package : what must be installed beside nbmf; "" for nothing
    """

    label: str
    fit: Callable[..., Judged]
    defaults: Mapping[str, Any]
    space: Space
    random: bool = True
    package: str = ""


@dataclass(frozen=True)
class ItemWeights:
    """Scores Σ_j g(y_uj) B_ji: what a user did, times the weights from each item to each.

    inputs : csr, users × items; weights : items × items, dense or sparse
    """

    inputs: sp.csr_array
    weights: Any

    def score_items(self, rows: Rows) -> Array:
        """Return the scores of these users for all items: len(rows) × n_items."""
        scores = self.inputs[rows] @ self.weights
        return np.asarray(scores.toarray() if sp.issparse(scores) else scores)


class Popularity:
    """The baseline that knows nobody: an item's score is its number of users."""

    def __init__(self, train: Interactions) -> None:
        """Count the users of each item."""
        self.n_users = np.bincount(train.matrix.indices, minlength=train.n_items).astype(float)

    def score_items(self, rows: Rows) -> NDArray[np.float64]:
        """Return the same scores for everybody."""
        return np.tile(self.n_users, (len(rows), 1))


def taken(train: Interactions, form: str) -> sp.csr_array:
    """Return the counts in single precision in one of the forms of INPUTS, users × items."""
    forms: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "counts": lambda count: count,
        "log1p": np.log1p,
        "binary": np.ones_like,
    }
    if form not in forms:
        raise ValueError(f"input is {form!r}; it must be one of {', '.join(map(repr, forms))}")
    matrix = train.matrix
    return sp.csr_array((forms[form](matrix.data.astype(np.float32)), matrix.indices, matrix.indptr), matrix.shape)


def fit_popularity(train: Interactions, seed: int, n_threads: int) -> Judged:
    """Popularity."""
    return Popularity(train)


def fit_knn(train: Interactions, seed: int, n_threads: int, *, neighbors: int, weighting: str, input: str) -> Judged:
    """Item-based nearest neighbours of implicit."""
    from implicit import nearest_neighbours as package  # noqa: PLC0415 (an extra)

    kinds = {
        "cosine": package.CosineRecommender,
        "tfidf": package.TFIDFRecommender,
        "bm25": package.BM25Recommender,
    }
    inputs = taken(train, input)
    model = kinds[weighting](K=neighbors, num_threads=n_threads)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Method expects CSR input")  # of its own making
        model.fit(sp.csr_matrix(inputs), show_progress=False)
    return ItemWeights(inputs, sp.csr_array(model.similarity.astype(np.float32)))


def fit_ease(train: Interactions, seed: int, n_threads: int, *, penalty: float, input: str) -> Judged:
    """EASE (Steck, Embarrassingly shallow autoencoders for sparse data, 2019), in closed form.

    B = argmin ‖X − XB‖² + λ‖B‖² with a diagonal of 0: with P = (XᵀX + λI)⁻¹, B_ji = −P_ji / P_ii off the diagonal.
    """
    inputs = taken(train, input)
    with threadpool_limits(n_threads, user_api="blas"):
        return ItemWeights(inputs, ease_weights(inputs, penalty))


def ease_weights(inputs: sp.csr_array, penalty: float) -> Array:
    """Return B, items × items, of inputs X, users × items."""
    gram = np.asfortranarray((inputs.T @ inputs).toarray())
    gram[np.diag_indices_from(gram)] += np.float32(penalty)
    factor, failed = lapack.spotrf(gram, lower=True, overwrite_a=True)
    inverse, failed_too = lapack.spotri(factor, lower=True, overwrite_c=True)
    if failed or failed_too:
        raise ValueError(f"penalty {penalty} is too small for single precision; the matrix cannot be inverted")
    below = np.tril(inverse, -1)
    weights = (below + below.T) / -np.diag(inverse)
    return np.asarray(weights, np.float32)


def fit_als(
    train: Interactions, seed: int, n_threads: int, *, factors: int, iterations: int, input: str, **settings: float
) -> Judged:
    """Weighted matrix factorization by alternating least squares, of implicit."""
    from implicit.cpu.als import AlternatingLeastSquares  # noqa: PLC0415

    with threadpool_limits(1, user_api="blas"):  # its own threads are enough
        model = AlternatingLeastSquares(
            factors=factors, iterations=iterations, num_threads=n_threads, random_state=seed, **settings
        )
        model.fit(sp.csr_matrix(taken(train, input)), show_progress=False)
    return model.user_factors, model.item_factors


def fit_bpr(train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    """Bayesian personalized ranking of implicit, which looks at no count."""
    from implicit.cpu.bpr import BayesianPersonalizedRanking  # noqa: PLC0415

    with threadpool_limits(1, user_api="blas"):
        model = BayesianPersonalizedRanking(num_threads=n_threads, random_state=seed, **settings)
        model.fit(sp.csr_matrix(taken(train, "binary")), show_progress=False)
    return model.user_factors, model.item_factors


def fit_hpf(
    train: Interactions, seed: int, n_threads: int, *, components: int, iterations: int, input: str, **shapes: float
) -> Judged:
    """Hierarchical Poisson factorization of hpfrec."""
    import hpfrec  # noqa: PLC0415

    matrix = taken(train, input)
    model = hpfrec.HPF(
        k=components, maxiter=iterations, check_every=iterations, stop_crit="maxiter", ncores=n_threads,
        random_seed=seed + 1,  # 0 is no seed to it
        reindex=False, verbose=False, keep_data=False, keep_all_objs=False, produce_dicts=False, **shapes,
    )  # fmt: skip
    model.fit(matrix.tocoo())
    return _as_many(model.Theta, train.n_users), _as_many(model.Beta, train.n_items)


def _as_many(factors: Array, n: int) -> Array:
    """Return rows of 0 for the last users or items where they have no count: hpfrec leaves those off."""
    return np.vstack([factors, np.zeros((n - len(factors), factors.shape[1]), factors.dtype)])


def fit_kl_nmf(
    train: Interactions, seed: int, n_threads: int, *, components: int, penalty: float, iterations: int, input: str
) -> Judged:
    """Nonnegative matrix factorization of scikit-learn, Kullback-Leibler divergence, multiplicative updates."""
    from sklearn.decomposition import NMF  # noqa: PLC0415

    model = NMF(
        components, solver="mu", beta_loss="kullback-leibler", init="random", alpha_W=penalty, max_iter=iterations,
        tol=0.0, random_state=seed,
    )  # fmt: skip
    with threadpool_limits(n_threads, user_api="blas"):
        users = model.fit_transform(sp.csr_matrix(taken(train, input)))
    return users, model.components_.T


def fit_poisson(train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    """Poisson factorization of raw counts."""
    return PoissonMF(random_state=seed, n_threads=n_threads, **settings).fit(train)


def fit_binary(train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    """Poisson factorization of whether there is a count."""
    return PoissonMF(binarize=True, random_state=seed, n_threads=n_threads, **settings).fit(train)


def fit_nbmf(train: Interactions, seed: int, n_threads: int, *, input: str, **settings: Any) -> Judged:
    """Negative binomial factorization of the counts, or of log(1 + count)."""
    return NBMF(random_state=seed, n_threads=n_threads, **settings).fit(_in_form(train, input))


def fit_averaged(train: Interactions, seed: int, n_threads: int, *, input: str, **settings: Any) -> Judged:
    """Return the mean of the scores of five starts of NBMF."""
    return Averaged(NBMF(n_threads=n_threads, **settings), n_runs=5, random_state=seed).fit(_in_form(train, input))


def _in_form(train: Interactions, form: str) -> Interactions:
    return train if form == "counts" else replace(train, matrix=taken(train, form), events=None)


def fit_nbslim(train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    """Weights between items by the negative binomial likelihood."""
    return NBSLIM(n_threads=n_threads, **settings).fit(train)


def check_installed(model: str) -> None:
    """Raise ModuleNotFoundError, with what to type, where a model's package is missing."""
    package = RIVALS[model].package
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"the model {model} needs the package {package}: pip install 'nbmf[bench]'")


def _own_defaults(estimator: Any, *names: str) -> dict[str, Any]:
    settings = estimator.get_params(deep=False)
    return {name: settings[name] for name in names}


_PF_SPACE: Space = {
    "n_components": Between(5, 200, whole=True),
    "user_shape": Between(0.1, 3),
    "item_shape": Between(0.1, 3),
    "rates": OneOf(("shared", "per_row")),
    "max_iter": Between(30, 300, whole=True),
}
_NB_SPACE: Space = {**_PF_SPACE, "concentration": Between(0.1, 10), "input": OneOf(("counts", "log1p"))}
_SLIM_SPACE: Space = {
    "concentration": Between(0.3, 30),
    "penalty": Between(3, 100),
    "input": ANY_INPUT,
    "target": ANY_INPUT,
    "tol": Between(0.5, 10),
}
_PF_DEFAULTS = _own_defaults(PoissonMF(), *_PF_SPACE, "tol")
_NB_DEFAULTS = {**_own_defaults(NBMF(), *_PF_SPACE, "tol", "concentration"), "input": "counts"}

RIVALS: dict[str, Rival] = {
    "popularity": Rival("popularity", fit_popularity, {}, {}, random=False),
    "knn": Rival(
        "item kNN",
        fit_knn,
        {"neighbors": 20, "weighting": "cosine", "input": "counts"},
        {
            "neighbors": Between(5, 1000, whole=True),
            "weighting": OneOf(("cosine", "tfidf", "bm25")),
            "input": ANY_INPUT,
        },
        random=False,
        package="implicit",
    ),
    "ease": Rival(
        "EASE",
        fit_ease,
        {"penalty": 500.0, "input": "binary"},
        {"penalty": Between(10, 5000), "input": ANY_INPUT},
        random=False,
    ),
    "als": Rival(
        "ALS",
        fit_als,
        {"factors": 100, "regularization": 0.01, "alpha": 1.0, "iterations": 15, "input": "counts"},
        {
            "factors": Between(20, 200, whole=True),
            "regularization": Between(1, 300),
            "alpha": Between(0.3, 10),
            "iterations": Between(5, 30, whole=True),
            "input": ANY_INPUT,
        },
        package="implicit",
    ),
    "bpr": Rival(
        "BPR",
        fit_bpr,
        {"factors": 100, "learning_rate": 0.01, "regularization": 0.01, "iterations": 100},
        {
            "factors": Between(10, 200, whole=True),
            "learning_rate": Between(0.003, 0.1),
            "regularization": Between(0.001, 0.5),
            "iterations": Between(20, 200, whole=True),
        },
        package="implicit",
    ),
    "hpf": Rival(
        "hpfrec",
        fit_hpf,
        {"components": 30, "a": 0.3, "c": 0.3, "iterations": 100, "input": "counts"},
        {
            "components": Between(5, 100, whole=True),
            "a": Between(0.05, 1),
            "c": Between(0.05, 1),
            "iterations": Between(20, 100, whole=True),
            "input": ANY_INPUT,
        },
        package="hpfrec",
    ),
    "kl-nmf": Rival(
        "KL-NMF",
        fit_kl_nmf,
        {"components": 20, "penalty": 0.0, "iterations": 100, "input": "counts"},
        {
            "components": Between(5, 100, whole=True),
            "penalty": Between(1e-5, 1e-2),
            "iterations": Between(20, 100, whole=True),
            "input": ANY_INPUT,
        },
    ),
    "poisson": Rival("PF", fit_poisson, _PF_DEFAULTS, _PF_SPACE),
    "binary": Rival("binarized PF", fit_binary, _PF_DEFAULTS, _PF_SPACE),
    "nbmf": Rival("NBMF", fit_nbmf, _NB_DEFAULTS, _NB_SPACE),
    "averaged": Rival(
        "NBMF, 5 starts averaged",
        fit_averaged,
        _NB_DEFAULTS,
        {**_NB_SPACE, "n_components": Between(5, 100, whole=True), "max_iter": Between(30, 150, whole=True)},
    ),
    "nbslim": Rival("NBSLIM", fit_nbslim, _own_defaults(NBSLIM(), *_SLIM_SPACE), _SLIM_SPACE, random=False),
}
"""By the name that is typed."""
