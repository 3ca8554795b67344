"""Negative binomial matrix factorization: factorize over-dispersed counts and recommend from them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmf import datasets, distributed, evaluation
    from nbmf.averaging import Averaged
    from nbmf.compacting import open_counts, store_counts
    from nbmf.evaluation import compare, evaluate, ndcg
    from nbmf.interactions import Interactions
    from nbmf.loading import load
    from nbmf.reading import read_interactions
    from nbmf.recommender import NBMF, PoissonMF
    from nbmf.slim import NBSLIM
    from nbmf.stopping import EarlyStopping
    from nbmf.tuning import tune

__all__ = [
    "NBMF",
    "NBSLIM",
    "Averaged",
    "EarlyStopping",
    "Interactions",
    "PoissonMF",
    "compare",
    "datasets",
    "distributed",
    "evaluate",
    "evaluation",
    "load",
    "ndcg",
    "open_counts",
    "read_interactions",
    "store_counts",
    "tune",
]

_HOMES = {
    "Averaged": "nbmf.averaging",
    "NBMF": "nbmf.recommender",
    "NBSLIM": "nbmf.slim",
    "PoissonMF": "nbmf.recommender",
    "load": "nbmf.loading",
    "open_counts": "nbmf.compacting",
    "store_counts": "nbmf.compacting",
    "Interactions": "nbmf.interactions",
    "read_interactions": "nbmf.reading",
    "EarlyStopping": "nbmf.stopping",
    "compare": "nbmf.evaluation",
    "evaluate": "nbmf.evaluation",
    "ndcg": "nbmf.evaluation",
    "tune": "nbmf.tuning",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: scikit-learn and numba take a second, `nbmf --help` should not."""
    if name in ("datasets", "distributed", "evaluation"):
        return import_module(f"nbmf.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nbmf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
