"""Model files: everything a fit found, in one sealed file (docs/format.md).

Old files stay readable: UPGRADES turns the contents of each earlier version into those of the next.
"""

import os
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from importlib.metadata import version
from reprlib import repr as shortened
from typing import Any

import numpy as np

from nbmf.data.interactions import FORMS
from nbmf.estimators.blend_fit import BlendFit
from nbmf.estimators.comparison_fit import CoupledFit, RidgeFit
from nbmf.estimators.encoder_fit import EncoderFit
from nbmf.estimators.fit import AverageFit, FactorFit, FitResult
from nbmf.estimators.weight_fit import WeightFit
from nbmf.inference.comparison import ExposedRidge
from nbmf.inference.run import Ending
from nbmf.model import Model
from nbmf.model.factors import largest
from nbmf.model.likelihood import Poisson
from nbmf.storage import codec
from nbmf.storage.container import Array, Arrays, Contents, Path, StorageError, open_as, unwritten, write

VERSION = 1
UPGRADES: dict[int, Callable[[Contents], Contents]] = {}
"""For each earlier version of the format, what turns its contents into those of the next."""

CLASSES = (
    "NBMF",
    "PoissonMF",
    "CompoundMF",
    "ZeroInflatedMF",
    "RobustMF",
    "BinaryMF",
    "Factorization",
    "RandomGraphExposureMF",
)
ENCODER_CLASSES = ("NBFISM",)
WEIGHT_CLASSES, RIDGE_CLASSES, COUPLED_CLASSES = ("NBSLIM",), ("ExpoMF",), ("CoupledCompoundMF",)
"""Whose models a file may hold: names that are looked up here, never imported."""

KNOWN = {
    "model": CLASSES,
    "encoder model": ENCODER_CLASSES,
    "item-item model": WEIGHT_CLASSES,
    "ridge model": RIDGE_CLASSES,
    "coupled model": COUPLED_CLASSES,
}
KIND_OF: dict[type[FitResult], str] = {
    EncoderFit: "encoder model",
    WeightFit: "item-item model",
    RidgeFit: "ridge model",
    CoupledFit: "coupled model",
}
"""The kind of a file by what it holds; that of any other fit is "model"."""
EXPOSING = "exposing_"  # how the sides of a coupled model's second factorization begin

Saved = tuple[str, dict[str, Any], Any]
"""Name of an estimator, its settings, and its fit."""


def save(path: Path, estimator: Any, fit: FitResult) -> None:
    """Write a model file: the name of an estimator, its settings, and what it found; of several, those of each."""
    arrays: Arrays = {}
    document = _pack(path, estimator, fit, arrays)
    opening = {"kind": document["kind"], "version": VERSION, "written_by": f"nbmf {version('nbmf')}"}
    READERS[document["kind"]](unwritten(path, opening | document, arrays))  # what is written can be read
    write(path, opening | document, arrays)


def check_settings(path: Path, estimator: Any) -> None:
    """Refuse to write or to restore an estimator with settings that its `fit` refuses."""
    try:
        estimator._check_settings()
    except (TypeError, ValueError) as error:
        raise StorageError(f"{os.fspath(path)}: {error}") from None


def read_model(source: Path | Contents) -> Saved:
    """Return the name of an estimator with factors, its settings, and what it found."""
    return _unpack(_upgraded(open_as("model", source, VERSION)))


def read_encoder(source: Path | Contents) -> Saved:
    """Return the name of an estimator of an encoder, its settings, and what it found."""
    contents = _upgraded(open_as("encoder model", source, VERSION))
    name, shared = _unpack_shared(contents, ENCODER_CLASSES)
    n_users, n_items = len(shared["users"]), len(shared["items"])
    forms, exposure = [contents.value(name, str) for name in ("input", "target")], contents.document.get("exposure")
    if not set(forms) <= FORMS.keys() or exposure not in (None, "exact", "tied"):
        raise contents.fault(f"its forms are {shortened(forms)} and its exposure is {shortened(exposure)}")
    sides = codec.unpack_encoder(contents, n_items)
    held = sum(array.nbytes for array in contents.arrays.values())
    of_users = n_users * (sides[0].shape[1] + 1) * sides[0].itemsize
    codec.check_room(contents, "its users take too much memory", of_users, held)
    shared |= {"input": forms[1], "exposure": exposure, "model": codec.unpack_model(contents, n_users, n_items)}
    shared |= {
        "ties": codec.unpack_ties(contents, n_items),
        "unknown": codec.unpack_unknown(contents, n_users, n_items),
    }
    return name, codec.unpack_settings(contents), EncoderFit.of(sides, forms[0], **shared)


def read_weights(source: Path | Contents) -> Saved:
    """Return the name of an estimator of item–item weights, its settings, and what it found."""
    contents = _upgraded(open_as("item-item model", source, VERSION))
    name, shared = _unpack_shared(contents, WEIGHT_CLASSES)
    weights, intercept = codec.unpack_weights(contents, len(shared["items"]))
    forms: dict[str, Any] = {name: contents.value(name, str) for name in ("input", "target")}
    α = codec.unpack_number(contents, "concentration")
    if not set(forms.values()) <= FORMS.keys() or not 1e-30 < α < 1e30:
        raise contents.fault(f"its forms are {shortened(forms)} and its concentration is {α}")
    fit = WeightFit(**shared, **forms, concentration=α, weights=weights, intercept=intercept)
    return name, codec.unpack_settings(contents), fit


def read_ridge(source: Path | Contents) -> Saved:
    """Return the name of an estimator with factors of any sign, its settings, and what it found."""
    contents = _upgraded(open_as("ridge model", source, VERSION))
    name, shared = _unpack_shared(contents, RIDGE_CLASSES)
    users, items = (contents.array(f"{side}_vectors", "f", len(shared[f"{side}s"]), None) for side in ("user", "item"))
    if users.shape[1] != items.shape[1] or not users.size or users.dtype != items.dtype or users.itemsize not in (4, 8):
        raise contents.fault("its users and its items differ in type or in number of components, or have none")
    probability = contents.array("probability", "f", len(items))
    if not all(np.abs(values).max() <= largest(values.dtype) for values in (users, items)):  # which no NaN is
        raise contents.fault("its factors are not finite, or too large")
    if probability.dtype != np.float64 or not np.all((probability >= 0) & (probability <= 1)):
        raise contents.fault("its probabilities are not from 0 to 1, in double precision")
    numbers = {field.name: codec.unpack_number(contents, field.name) for field in fields(ExposedRidge)}
    if not all(0 < number < np.inf for number in numbers.values()):
        raise contents.fault(f"its precision, penalties and priors are {shortened(numbers)}, not all positive")
    vectors: dict[str, Any] = {"user_vectors": users, "item_vectors": items, "probability": probability}
    return name, codec.unpack_settings(contents), RidgeFit(**shared, **vectors, algorithm=ExposedRidge(**numbers))


def read_coupled(source: Path | Contents) -> Saved:
    """Return the name of an estimator of two coupled factorizations, its settings, and what it found."""
    contents = _upgraded(open_as("coupled model", source, VERSION))
    name, shared = _unpack_shared(contents, COUPLED_CLASSES)
    size = len(shared["users"]), len(shared["items"])
    users, items = codec.unpack_factors(contents, *size)
    exposing_users, exposing_items = codec.unpack_factors(contents, *size, EXPOSING)
    if users.mean.dtype != exposing_users.mean.dtype or not users.is_posterior or not exposing_users.is_posterior:
        raise contents.fault("its two factorizations differ in type, or are not of gammas")
    models = [Model(Poisson(), *codec.unpack_priors(contents, *size, of)) for of in ("", EXPOSING)]
    fit = CoupledFit(
        **shared,
        model=models[0],
        user_posterior=users,
        item_posterior=items,
        exposure=None,
        exposing_model=models[1],
        exposing_users=exposing_users,
        exposing_items=exposing_items,
    )
    return name, codec.unpack_settings(contents), fit


def read_average(source: Path | Contents) -> tuple[dict[str, Any], list[Saved]]:
    """Return the settings of an average, and its members as `read_model` returns one."""
    contents = open_as("average", source, VERSION)
    documents = contents.value("members", list)
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise contents.fault("it has no members")
    shared = {key.removeprefix("0/"): array for key, array in contents.arrays.items() if key.startswith("0/")}
    number, members, taken = contents.value("version", int), list[Saved](), 0
    held = sum(array.nbytes for array in contents.arrays.values())
    for n, document in enumerate(documents):
        own = {key.removeprefix(f"{n}/"): array for key, array in contents.arrays.items() if key.startswith(f"{n}/")}
        member = replace(contents, document={**document, "version": number}, arrays={**shared, **own})
        members.append(_unpack(_upgraded(member)))
        if _form(members[n]) != _form(members[0]) or not _same_ids(members[n][-1], members[0][-1]):
            raise contents.fault("its members are not fits of one estimator to the same users and items")
        taken += sum(side.mean.nbytes for side in (members[n][-1].user_posterior, members[n][-1].item_posterior))
        codec.check_room(contents, f"its {len(documents)} members take too much memory", taken, held)
    return codec.unpack_settings(contents), members


def read_blend(source: Path | Contents) -> tuple[dict[str, Any], Array, Array, list[tuple[str, Any]]]:
    """Return the settings of a blend, its weights and scales, and its members: kinds, and what their readers return."""
    contents = open_as("blend", source, VERSION)
    documents, number = contents.value("members", list), contents.value("version", int)
    equal, arrays, members = contents.value("equal", dict), dict(contents.arrays), list[tuple[str, Any]]()
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise contents.fault("it has no members")
    if not all(isinstance(first, str) and first in contents.arrays for first in equal.values()):
        raise contents.fault("it says of arrays that they equal others, which it does not have")
    arrays |= {key: contents.arrays[first] for key, first in equal.items()}
    weights, scales = (contents.array(name, "f", len(documents)).astype(np.float64) for name in ("weights", "scales"))
    if not (np.all((weights >= 0) & (scales > 1e-150) & (scales < 1e150)) and abs(weights.sum() - 1) < 1e-5):
        raise contents.fault("its weights are not numbers from 0 that sum to 1, or its scales not positive numbers")
    taken, held = 0, sum(array.nbytes for array in contents.arrays.values())
    for n, document in enumerate(documents):
        own = {key.removeprefix(f"{n}/"): array for key, array in arrays.items() if key.startswith(f"{n}/")}
        taken += sum(array.nbytes for array in own.values())
        codec.check_room(contents, f"its {len(documents)} members take too much memory", taken, held)
        kind = str(document.get("kind"))
        if kind not in READERS or kind == "blend":
            raise contents.fault(f"one of its members is {shortened(kind)}")
        members.append((kind, READERS[kind](replace(contents, document={**document, "version": number}, arrays=own))))
        fits = [saved[1][0][-1] if kind == "average" else saved[-1] for kind, saved in (members[0], members[n])]
        if not _same_ids(*fits):
            raise contents.fault("its members are not fits of the same users and items")
    return codec.unpack_settings(contents), weights, scales, members


def _same_ids(one: FitResult, other: FitResult) -> bool:
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)


def _form(member: Saved) -> tuple[Any, ...]:
    """Return what the members of an average have in common."""
    name, _, fit = member
    likelihood = fit.model.likelihood
    return name, fit.dtype, likelihood.kind, [np.shape(value) for value in likelihood.parameters.values()]


def _pack(path: Path, estimator: Any, fit: Any, arrays: Arrays) -> dict[str, Any]:
    if isinstance(fit, AverageFit | BlendFit):
        check_settings(path, estimator)
        return (_pack_average if isinstance(fit, AverageFit) else _pack_blend)(path, estimator, arrays)
    name, settings = type(estimator).__name__, estimator.get_params(deep=False)
    kind = KIND_OF.get(type(fit), "model")
    if name not in KNOWN[kind]:
        raise StorageError(f"a {name} cannot be saved; nbmf.load knows {' and '.join(sum(KNOWN.values(), ()))}")
    arrays["objective"] = fit.objective
    codec.pack_counts(fit.counts, arrays)
    packed = codec.pack_settings(settings, arrays)
    check_settings(path, estimator)
    if kind in ("model", "encoder model") and estimator._input() != fit.input:
        changed = f"was fitted to {fit.input!r} of the data, and its settings now say {estimator._input()!r}"
        raise StorageError(f"{os.fspath(path)}: the model {changed}; set them back, or fit it again")
    if kind == "encoder model" and estimator.input != fit.input_form:
        changed = f"encodes {fit.input_form!r} of the data, and its settings now say input={estimator.input!r}"
        raise StorageError(f"{os.fspath(path)}: the model {changed}; set it back, or fit it again")
    shared = {
        "kind": kind,
        "class": name,
        "settings": packed,
        "user_ids": codec.pack_ids("user_ids", fit.users, arrays),
        "item_ids": codec.pack_ids("item_ids", fit.items, arrays),
        "item_names": None if fit.item_names is None else codec.pack_ids("item_names", fit.item_names, arrays),
        "has_feature_names": fit.has_feature_names,
        "ending": fit.ending.value,
    }
    return shared | PACKERS[kind](fit, arrays)


def _pack_average(path: Path, average: Any, arrays: Arrays) -> dict[str, Any]:
    """Pack the members of an average; an array that equals the first's is stored once."""
    documents = []
    for n, member in enumerate(average.members_):
        own: Arrays = {}
        documents.append(_pack(path, member, member.result_, own))
        del documents[n]["kind"]
        for key, array in own.items():
            first = arrays.get(f"0/{key}")
            if first is None or first.dtype != array.dtype or not np.array_equal(first, array):
                arrays[f"{n}/{key}"] = array
    settings = codec.pack_settings({"n_runs": average.n_runs, "random_state": average.random_state}, arrays)
    return {"kind": "average", "settings": settings, "members": documents}


def _pack_blend(path: Path, blend: Any, arrays: Arrays) -> dict[str, Any]:
    """Pack the members of a blend, each as in a file of its own; arrays that are equal are stored once."""
    documents, equal, stored = [], dict[str, str](), dict[Any, str]()
    for n, member in enumerate(blend.members_):
        own: Arrays = {}
        documents.append(_pack(path, member, member.result_, own))
        for key, array in own.items():
            identity = str(array.dtype), array.shape, sha256(array.tobytes()).digest()
            if (first := stored.setdefault(identity, f"{n}/{key}")) in arrays:
                equal[f"{n}/{key}"] = first
            else:
                arrays[first] = array
    arrays |= {"weights": blend.weights_, "scales": blend.scales_}
    learned = {"weights": blend.weights} if isinstance(blend.weights, str) else {}
    settings = codec.pack_settings({"random_state": blend.random_state, **learned}, arrays)
    return {"kind": "blend", "settings": settings, "members": documents, "equal": equal}


def _pack_factors(fit: FactorFit, arrays: Arrays) -> dict[str, Any]:
    return {
        "exposure": fit.exposure,
        **codec.pack_ties(fit.ties, arrays),
        **codec.pack_unknown(fit.unknown, arrays),
        **codec.pack_model(fit.model, arrays),
        **codec.pack_factor("users", fit.user_posterior, arrays),
        **codec.pack_factor("items", fit.item_posterior, arrays),
    }


def _pack_encoder(fit: EncoderFit, arrays: Arrays) -> dict[str, Any]:
    codec.pack_encoder(fit.encoder, np.ascontiguousarray(fit.item_posterior.mean[:, :-1]), fit.intercepts, arrays)
    return {
        "input": fit.input_form,
        "target": fit.input,
        "exposure": fit.exposure,
        **codec.pack_ties(fit.ties, arrays),
        **codec.pack_unknown(fit.unknown, arrays),
        **codec.pack_model(fit.model, arrays),
    }


def _pack_weights(fit: WeightFit, arrays: Arrays) -> dict[str, Any]:
    return {
        "input": fit.input,
        "target": fit.target,
        "concentration": codec.pack_number(fit.concentration),
        **codec.pack_weights(fit.weights, fit.intercept, arrays),
    }


def _pack_ridge(fit: RidgeFit, arrays: Arrays) -> dict[str, Any]:
    arrays |= {name: getattr(fit, name) for name in ("user_vectors", "item_vectors", "probability")}
    return {name: codec.pack_number(value) for name, value in vars(fit.algorithm).items()}


def _pack_coupled(fit: CoupledFit, arrays: Arrays) -> dict[str, Any]:
    return {
        **codec.pack_priors(fit.model, arrays),
        **codec.pack_factor("users", fit.user_posterior, arrays),
        **codec.pack_factor("items", fit.item_posterior, arrays),
        **codec.pack_priors(fit.exposing_model, arrays, EXPOSING),
        **codec.pack_factor(f"{EXPOSING}users", fit.exposing_users, arrays),
        **codec.pack_factor(f"{EXPOSING}items", fit.exposing_items, arrays),
    }


def _upgraded(contents: Contents) -> Contents:
    while (number := contents.value("version", int)) < VERSION:
        contents = UPGRADES[number](contents)
    return contents


def _unpack_shared(contents: Contents, known: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the name of the estimator, and the fields that every `FitResult` has."""
    name = contents.value("class", str)
    if name not in known:
        raise StorageError(f"{contents.path}: holds a {name!r}, and nbmf.load knows {' and '.join(known)} there")
    users = codec.unpack_ids(contents, "user_ids", contents.value("user_ids", str))
    items = codec.unpack_ids(contents, "item_ids", contents.value("item_ids", str))
    if not len(users) or not len(items):
        raise contents.fault(f"it has {len(users)} users and {len(items)} items")
    names, ending = contents.document.get("item_names"), contents.value("ending", str)
    if ending not in {one.value for one in Ending}:
        raise contents.fault(f"its ending is {shortened(ending)}")
    return name, {
        "users": users,
        "items": items,
        "counts": codec.unpack_counts(contents, len(users), len(items)),
        "objective": contents.array("objective", "f", None),
        "ending": Ending(ending),
        "item_names": None if names is None else codec.unpack_ids(contents, "item_names", str(names), len(items)),
        "has_feature_names": contents.value("has_feature_names", bool),
    }


def _unpack(contents: Contents) -> Saved:
    name, shared = _unpack_shared(contents, CLASSES)
    n_users, n_items = len(shared["users"]), len(shared["items"])
    settings, exposure = codec.unpack_settings(contents), contents.document.get("exposure")
    if exposure not in (None, "exact", "tied"):
        raise contents.fault(f"its exposure is {shortened(exposure)}")
    if not len(shared["objective"]):
        raise contents.fault("it has no sweep")
    user_posterior, item_posterior = codec.unpack_factors(contents, n_users, n_items)
    fit = FactorFit(
        **shared,
        user_posterior=user_posterior,
        item_posterior=item_posterior,
        model=codec.unpack_model(contents, n_users, n_items),
        exposure=exposure,
        input="binary" if settings.get("binarize") or name == "BinaryMF" else settings.get("input", "counts"),
        ties=codec.unpack_ties(contents, n_items),
        unknown=codec.unpack_unknown(contents, n_users, n_items),
    )
    return name, settings, fit


PACKERS: dict[str, Callable[[Any, Arrays], dict[str, Any]]] = {
    "model": _pack_factors,
    "encoder model": _pack_encoder,
    "item-item model": _pack_weights,
    "ridge model": _pack_ridge,
    "coupled model": _pack_coupled,
}
READERS: dict[str, Callable[[Path | Contents], Any]] = {
    "model": read_model,
    "encoder model": read_encoder,
    "item-item model": read_weights,
    "ridge model": read_ridge,
    "coupled model": read_coupled,
    "average": read_average,
    "blend": read_blend,
}
