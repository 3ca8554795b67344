"""Models from files."""

from typing import Any

from nbmf.estimators.averaged import Averaged
from nbmf.estimators.base import Recommender
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.files import read_average, read_model, read_weights
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.storage.container import Path, StorageError, read

ESTIMATORS: dict[str, type[Recommender]] = {one.__name__: one for one in (NBMF, PoissonMF, Factorization, NBSLIM)}


def load(path: Path) -> NBMF | PoissonMF | Averaged | NBSLIM:
    """Return the model that `model.save(path)` wrote: every method answers as before, to the bit.

    Loading runs no code, whatever is in the file. A file that is damaged, cut short or of another format raises
    StorageError, a ValueError and OSError, with the file and the fault.

    Parameters
    ----------
    path : path
    """
    contents = read(path)
    kind = contents.document.get("kind")
    if kind == "average":
        settings, saved = read_average(contents)
        return Averaged.of([_restored(path, *member) for member in saved], settings)
    read_one = read_weights if kind == "item-item model" else read_model
    model: NBMF | PoissonMF | NBSLIM = _restored(path, *read_one(contents))
    return model


def _restored(path: Path, name: str, settings: dict[str, Any], fit: Any) -> Any:
    unknown = settings.keys() - ESTIMATORS[name]().get_params(deep=False).keys()
    if unknown:
        raise StorageError(f"{path}: has the setting {min(unknown)!r}, unknown to this nbmf; install a newer one")
    model = ESTIMATORS[name](**settings)
    try:
        model._check_settings()
    except (TypeError, ValueError) as error:
        raise StorageError(f"{path}: {error}") from None
    model._become(fit)
    return model
