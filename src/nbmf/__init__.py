"""Negative binomial matrix factorization: factorize over-dispersed counts and recommend from them."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # typing takes ten times as long to import as all of this, and Ctrl-C may come at once
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from nbmf import evaluation
    from nbmf.backends import dask as distributed
    from nbmf.data import datasets
    from nbmf.data.interactions import Interactions
    from nbmf.data.read import read_interactions
    from nbmf.estimators.averaged import Averaged
    from nbmf.estimators.blend import Blend
    from nbmf.estimators.comparison import ExpoMF, RandomGraphExposureMF
    from nbmf.estimators.coupled import CoupledCompoundMF
    from nbmf.estimators.factorize import MisfitWarning
    from nbmf.estimators.family import BinaryMF, CompoundMF, RobustMF, ZeroInflatedMF
    from nbmf.estimators.fism import NBFISM
    from nbmf.estimators.loading import load
    from nbmf.estimators.nbmf import NBMF, PoissonMF
    from nbmf.estimators.slim import NBSLIM
    from nbmf.evaluation import choose, compare, evaluate, ndcg
    from nbmf.evaluation.stopping import EarlyStopping
    from nbmf.evaluation.tune import tune
    from nbmf.storage.counts import open_counts, store_counts

__all__ = [
    "NBFISM",
    "NBMF",
    "NBSLIM",
    "Averaged",
    "BinaryMF",
    "Blend",
    "CompoundMF",
    "CoupledCompoundMF",
    "EarlyStopping",
    "ExpoMF",
    "Interactions",
    "MisfitWarning",
    "PoissonMF",
    "RandomGraphExposureMF",
    "RobustMF",
    "ZeroInflatedMF",
    "choose",
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
    "data.interactions": ["Interactions"],
    "data.read": ["read_interactions"],
    "estimators.averaged": ["Averaged"],
    "estimators.blend": ["Blend"],
    "estimators.family": ["BinaryMF", "CompoundMF", "RobustMF", "ZeroInflatedMF"],
    "estimators.comparison": ["ExpoMF", "RandomGraphExposureMF"],
    "estimators.coupled": ["CoupledCompoundMF"],
    "estimators.factorize": ["MisfitWarning"],
    "estimators.fism": ["NBFISM"],
    "estimators.loading": ["load"],
    "estimators.nbmf": ["NBMF", "PoissonMF"],
    "estimators.slim": ["NBSLIM"],
    "evaluation": ["choose", "compare", "evaluate", "ndcg"],
    "evaluation.stopping": ["EarlyStopping"],
    "evaluation.tune": ["tune"],
    "storage.counts": ["open_counts", "store_counts"],
}

_ALIASES = {
    "nbmf.datasets": "nbmf.data.datasets",
    "nbmf.distributed": "nbmf.backends.dask",
    "nbmf.external": "",  # an empty package, for the sake of the next
    "nbmf.external.anndata": "nbmf.estimators.anndata",
}


class _Alias:
    """Lets `import nbmf.datasets` and the like find modules that have moved into folders."""

    def find_spec(self, fullname: str, path: "Any" = None, target: "Any" = None) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(fullname, loader, is_package=fullname == "nbmf.external") if fullname in _ALIASES else None

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        module = import_module(_ALIASES[spec.name]) if _ALIASES[spec.name] else type(sys)(spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state or module.__spec__


sys.meta_path.insert(0, _Alias())


def __getattr__(name: str) -> "Any":
    """Import a public name on first use: scikit-learn and numba take a second to import, `nbmf --help` must not."""
    if name == "evaluation" or f"nbmf.{name}" in _ALIASES:
        return import_module(f"nbmf.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"nbmf.{home}"), name)
    raise AttributeError(f"module 'nbmf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
