"""Negative binomial matrix factorization: factorize over-dispersed counts and recommend from them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmf import datasets
    from nbmf.interactions import Interactions
    from nbmf.reading import read_interactions
    from nbmf.recommender import NBMF, PoissonMF

__all__ = ["NBMF", "Interactions", "PoissonMF", "datasets", "read_interactions"]

_HOMES = {
    "NBMF": "nbmf.recommender",
    "PoissonMF": "nbmf.recommender",
    "Interactions": "nbmf.interactions",
    "read_interactions": "nbmf.reading",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: scikit-learn and numba take a second, `nbmf --help` should not."""
    if name == "datasets":
        return import_module("nbmf.datasets")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nbmf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
