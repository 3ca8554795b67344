"""Models from files."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from nbmf.estimators.averaged import Averaged, united
from nbmf.estimators.files import read_average, read_model, read_weights
from nbmf.estimators.nbmf import NBMF, PoissonMF
from nbmf.estimators.slim import NBSLIM
from nbmf.model.likelihood import NegativeBinomial
from nbmf.storage.container import Path, StorageError, read

MODELS: dict[str, type[NBMF] | type[PoissonMF]] = {"NBMF": NBMF, "PoissonMF": PoissonMF}


def load(path: Path) -> NBMF | PoissonMF | Averaged | NBSLIM:
    """Return the model that `model.save(path)` wrote: every method answers as before, to the bit.

    Loading runs no code, whatever is in the file. What is damaged, cut short or of another format raises StorageError,
    a ValueError and OSError, with the file and the fault.
    """
    contents = read(path)
    if contents.document.get("kind") == "average":
        settings, members = read_average(contents)
        models = [_made(path, name, own) for name, own, _ in members]
        return united(models, [fitted for _, _, fitted in members], settings)
    if contents.document.get("kind") == "item-item model":
        _, settings, weighted = read_weights(contents)
        _check(path, NBSLIM(), settings)
        slim = NBSLIM(**{**settings, "input": weighted.input, "target": weighted.target})
        try:
            slim._check_settings()
            NegativeBinomial(weighted.concentration)
        except (TypeError, ValueError) as error:
            raise StorageError(f"{path}: {error}") from None
        slim = NBSLIM(**settings)
        slim._become(weighted)
        return slim
    name, settings, fitted = read_model(contents)
    model = _made(path, name, settings)
    model._become(fitted)
    return model


def _made(path: Path, name: str, settings: dict[str, Any]) -> NBMF | PoissonMF:
    _check(path, MODELS[name](), settings)
    return MODELS[name](**settings)


def _check(path: Path, example: BaseEstimator, settings: dict[str, Any]) -> None:
    unknown = settings.keys() - example.get_params(deep=False).keys()
    if unknown:
        raise StorageError(f"{path}: has the setting {min(unknown)!r}, unknown to this nbmf; install a newer one")
