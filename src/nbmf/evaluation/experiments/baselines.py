"""The models that can be compared: ours and the common alternatives, with their defaults and where to tune them.

Iterations are limited so that a dozen trials of every model take minutes on half a million non-zero counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

from nbmf.data import how_to_install
from nbmf.data.interactions import Interactions
from nbmf.estimators.averaged import Averaged
from nbmf.estimators.blend import Blend
from nbmf.estimators.family import BinaryMF, CompoundMF, RobustMF, ZeroInflatedMF
from nbmf.estimators.fism import NBFISM
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.evaluation.evaluate import Judged
from nbmf.evaluation.experiments.alternatives import (
    INPUTS,
    Popularity,
    fit_ease,
    fit_hpf,
    fit_ials,
    fit_implicit,
    fit_kl_nmf,
    fit_knn,
    fit_rp3beta,
    fit_slim,
)

Space = Mapping[str, tuple[Any, ...]]
"""The values to search for each setting: two numbers are the ends of a range, searched on a log scale and in whole
numbers if both are; strings are the choices."""


@dataclass(frozen=True)
class Baseline:
    """A model that can be compared."""

    label: str  # its name in tables
    fit: Callable[..., Judged]  # (train, seed, n_threads, **settings) → a model that `nbmf.evaluate` accepts
    defaults: Mapping[str, Any]  # all settings, as its authors publish them or its package sets them
    space: Space  # where to search for better ones
    random: bool = True  # whether the seed changes the result
    package: str = ""  # what it needs in addition to nbmf's own dependencies


def _fit_own(make: Callable[..., Any], train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    return cast(Judged, make(random_state=seed, n_threads=n_threads, **settings).fit(train))


def _fit_blend(train: Interactions, seed: int, n_threads: int, **settings: Any) -> Judged:
    members = [NBSLIM(n_threads=n_threads), NBFISM(random_state=seed, n_threads=n_threads, **settings)]
    return cast(Judged, Blend(members, random_state=seed).fit(train))


def check_installed(model: str) -> None:
    """Raise ModuleNotFoundError, with the command to type, if a model's package is missing."""
    package = BASELINES[model].package
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"the model {model} needs the package {package}; {how_to_install('bench')}")


def _own_defaults(estimator: Any, *names: str) -> dict[str, Any]:
    return {name: estimator.get_params(deep=False)[name] for name in names}


_WALK_SPACE: Space = {"neighbors": (5, 1000), "alpha": (0.3, 2.0), "beta": (0.1, 1.0), "input": INPUTS}
_PF_SPACE: Space = {
    "n_components": (5, 200),
    "user_shape": (0.1, 3.0),
    "item_shape": (0.1, 3.0),
    "rates": ("shared", "per_row"),
    "max_iter": (30, 300),
}
_NB_SPACE: Space = {**_PF_SPACE, "concentration": (0.1, 10.0), "input": ("counts", "log1p")}
_SLIM_SPACE: Space = {
    "concentration": (0.3, 30.0),
    "penalty": (3.0, 100.0),
    "input": INPUTS,
    "target": INPUTS,
    "tol": (0.5, 10.0),
}
_FISM_SPACE: Space = {
    "n_components": (50, 400),
    "penalty": (1.0, 100.0),
    "input": INPUTS,
    "target": INPUTS,
    "tol": (5e-5, 1e-3),
}
_BLEND_SPACE: Space = {"n_components": (50, 400), "penalty": (1.0, 100.0)}
_JUMP_SPACE: Space = {**_PF_SPACE, "jump": ("learn", "learn_per_item")}
_ZERO_SPACE: Space = {**_PF_SPACE, "probability": ("learn", "learn_per_user")}
_ROBUST_SPACE: Space = {**_PF_SPACE, "penalty": (3.0, 300.0)}
_PF_DEFAULTS = _own_defaults(PoissonMF(), *_PF_SPACE, "tol")
_NB_DEFAULTS = _own_defaults(NBMF(), *_PF_SPACE, "tol", "concentration", "input")

BASELINES: dict[str, Baseline] = {
    "popularity": Baseline("popularity", lambda train, seed, n_threads: Popularity(train), {}, {}, random=False),
    "knn": Baseline(
        "item kNN",
        fit_knn,
        {"neighbors": 20, "weighting": "cosine", "input": "counts"},
        {"neighbors": (5, 1000), "weighting": ("cosine", "tfidf", "bm25"), "input": INPUTS},
        random=False,
        package="implicit",
    ),
    "ease": Baseline(
        "EASE",
        fit_ease,
        {"penalty": 500.0, "input": "binary"},
        {"penalty": (10.0, 5000.0), "input": INPUTS},
        random=False,
    ),
    "edlae": Baseline(
        "EDLAE",
        fit_ease,
        {"penalty": 1.0, "dropout": 0.1, "input": "binary"},
        {"penalty": (10.0, 5000.0), "dropout": (0.05, 0.8), "input": INPUTS},
        random=False,
    ),
    "slim": Baseline(
        "SLIM",
        fit_slim,
        {"l1": 0.5, "l2": 0.5, "iterations": 50, "input": "binary"},
        {"l1": (0.5, 30.0), "l2": (10.0, 1000.0), "iterations": (5, 50), "input": INPUTS},
        random=False,
        package="fastslim",
    ),
    "rp3beta": Baseline(
        "RP3beta",
        fit_rp3beta,
        {"neighbors": 200, "alpha": 1.0, "beta": 0.6, "input": "binary"},
        _WALK_SPACE,
        random=False,
        package="irspack",
    ),
    "als": Baseline(
        "ALS",  # weighted matrix factorization by alternating least squares
        partial(fit_implicit, "implicit.cpu.als.AlternatingLeastSquares"),
        {"factors": 100, "regularization": 0.01, "alpha": 1.0, "iterations": 15, "input": "counts"},
        {
            "factors": (20, 200),
            "regularization": (1.0, 300.0),
            "alpha": (0.3, 10.0),
            "iterations": (5, 30),
            "input": INPUTS,
        },
        package="implicit",
    ),
    "ials": Baseline(
        "iALS",  # the same with penalties that are scaled by frequency
        fit_ials,
        {"factors": 256, "alpha0": 0.1, "reg": 0.003, "iterations": 16, "input": "binary"},
        {"factors": (20, 256), "alpha0": (0.01, 1.0), "reg": (0.001, 0.1), "iterations": (5, 30), "input": INPUTS},
        package="irspack",
    ),
    "bpr": Baseline(
        "BPR",  # Bayesian personalized ranking, which ignores the counts' sizes
        partial(fit_implicit, "implicit.cpu.bpr.BayesianPersonalizedRanking"),
        {"factors": 100, "learning_rate": 0.01, "regularization": 0.01, "iterations": 100},
        {"factors": (10, 200), "learning_rate": (0.003, 0.1), "regularization": (0.001, 0.5), "iterations": (20, 200)},
        package="implicit",
    ),
    "hpf": Baseline(
        "hpfrec",
        fit_hpf,
        {"components": 30, "a": 0.3, "c": 0.3, "iterations": 100, "input": "counts"},
        {"components": (5, 100), "a": (0.05, 1.0), "c": (0.05, 1.0), "iterations": (20, 100), "input": INPUTS},
        package="hpfrec",
    ),
    "kl-nmf": Baseline(
        "KL-NMF",
        fit_kl_nmf,
        {"components": 20, "penalty": 0.0, "iterations": 100, "input": "counts"},
        {"components": (5, 100), "penalty": (1e-5, 1e-2), "iterations": (20, 100), "input": INPUTS},
    ),
    "poisson": Baseline("PF", partial(_fit_own, PoissonMF), _PF_DEFAULTS, _PF_SPACE),
    "binary": Baseline("binarized PF", partial(_fit_own, partial(PoissonMF, binarize=True)), _PF_DEFAULTS, _PF_SPACE),
    "nbmf": Baseline("NBMF", partial(_fit_own, NBMF), _NB_DEFAULTS, _NB_SPACE),
    "compound": Baseline(
        "CompoundMF", partial(_fit_own, CompoundMF), _own_defaults(CompoundMF(), *_JUMP_SPACE, "tol"), _JUMP_SPACE
    ),
    "compound-geometric": Baseline(
        "CompoundMF, geometric",
        partial(_fit_own, partial(CompoundMF, jumps="geometric")),
        _own_defaults(CompoundMF(), *_JUMP_SPACE, "tol"),
        _JUMP_SPACE,
    ),
    "zero-inflated": Baseline(
        "ZeroInflatedMF",
        partial(_fit_own, ZeroInflatedMF),
        _own_defaults(ZeroInflatedMF(), *_ZERO_SPACE, "tol"),
        _ZERO_SPACE,
    ),
    "robust": Baseline(
        "RobustMF", partial(_fit_own, RobustMF), _own_defaults(RobustMF(), *_ROBUST_SPACE, "tol"), _ROBUST_SPACE
    ),
    "bernoulli": Baseline(
        "BinaryMF", partial(_fit_own, BinaryMF), _own_defaults(BinaryMF(), *_PF_SPACE, "tol"), _PF_SPACE
    ),
    "averaged": Baseline(
        "NBMF, 5 starts averaged",
        partial(_fit_own, lambda random_state, **own: Averaged(NBMF(**own), n_runs=5, random_state=random_state)),
        _NB_DEFAULTS,
        {**_NB_SPACE, "n_components": (5, 100), "max_iter": (30, 150)},
    ),
    "nbslim": Baseline(
        "NBSLIM",
        lambda train, seed, n_threads, **own: NBSLIM(n_threads=n_threads, **own).fit(train),
        _own_defaults(NBSLIM(), *_SLIM_SPACE),
        _SLIM_SPACE,
        random=False,
    ),
    "nbfism": Baseline("NBFISM", partial(_fit_own, NBFISM), _own_defaults(NBFISM(), *_FISM_SPACE), _FISM_SPACE),
    "blend": Baseline("NBSLIM and NBFISM, blended", _fit_blend, _own_defaults(NBFISM(), *_BLEND_SPACE), _BLEND_SPACE),
}
"""The models by the names typed on the command line."""
