"""Models from files."""

from typing import Any

from sklearn.base import clone

from nbmf.estimators.averaged import Averaged
from nbmf.estimators.base import Recommender
from nbmf.estimators.blend import Blend
from nbmf.estimators.comparison import ExpoMF, RandomGraphExposureMF
from nbmf.estimators.coupled import CoupledCompoundMF
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.family import BinaryMF, CompoundMF, RobustMF, ZeroInflatedMF
from nbmf.estimators.files import READERS, check_settings, read_model
from nbmf.estimators.fism import NBFISM
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.storage.container import Path, StorageError, read

FAMILY = (NBMF, PoissonMF, CompoundMF, ZeroInflatedMF, RobustMF, BinaryMF, Factorization)
COMPARISON = (ExpoMF, RandomGraphExposureMF, CoupledCompoundMF)
ESTIMATORS: dict[str, type[Recommender]] = {one.__name__: one for one in (*FAMILY, NBSLIM, NBFISM, *COMPARISON)}


def load(
    path: Path,
) -> NBMF | PoissonMF | Averaged | Blend | NBSLIM | NBFISM | ExpoMF | RandomGraphExposureMF | CoupledCompoundMF:
    """Return the model that `model.save(path)` wrote: every method answers as before, to the bit.

    Loading runs no code, whatever is in the file. A file that is damaged, cut short or of another format raises
    StorageError, a ValueError and OSError, with the file and the fault.

    Parameters
    ----------
    path : path
    """
    contents = read(path)
    kind = str(contents.document.get("kind"))
    model: NBMF | PoissonMF | NBSLIM = _of_kind(path, kind, READERS.get(kind, read_model)(contents))
    return model


def _of_kind(path: Path, kind: str, saved: Any) -> Any:
    """Return the model that a file of this kind holds."""
    if kind == "average":
        settings, members = saved
        _check_names(path, settings, Averaged)
        model: Any = Averaged.of([_restored(path, *member) for member in members], settings)
    elif kind == "blend":
        settings, weights, scales, members = saved
        _check_names(path, settings, Blend)
        fitted = [_of_kind(path, *member) for member in members]
        model = Blend(list(map(clone, fitted)), **{"weights": weights.tolist(), **settings})
        model._unite(fitted, weights, scales)
    else:
        return _restored(path, *saved)
    check_settings(path, model)
    return model


def _restored(path: Path, name: str, settings: dict[str, Any], fit: Any) -> Any:
    _check_names(path, settings, ESTIMATORS[name])
    model = ESTIMATORS[name](**settings)
    check_settings(path, model)
    model._become(fit)
    return model


def _check_names(path: Path, settings: dict[str, Any], kind: type[Recommender]) -> None:
    unknown = settings.keys() - (kind().get_params(deep=False).keys() - {"estimator", "models"})
    if unknown:
        raise StorageError(f"{path}: has the setting {min(unknown)!r}, unknown to this nbmf; install a newer one")
