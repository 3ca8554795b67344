"""Model files: all that a fit has found, in one sealed file (docs/format.md).

Old files stay readable: UPGRADES turns the contents of each earlier version into those of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from nbmf.estimators.fit import Basis, Fitted, Weighted
from nbmf.inference.run import Ending
from nbmf.storage.codec import (
    pack_counts,
    pack_factor,
    pack_ids,
    pack_model,
    pack_number,
    pack_settings,
    pack_ties,
    pack_unknown,
    pack_weights,
    unpack_counts,
    unpack_factors,
    unpack_ids,
    unpack_model,
    unpack_number,
    unpack_settings,
    unpack_ties,
    unpack_unknown,
    unpack_weights,
)
from nbmf.storage.container import Arrays, Contents, Path, StorageError, open_as, write

__all__ = [
    "Fitted",
    "StorageError",
    "read_average",
    "read_model",
    "read_weights",
    "write_average",
    "write_model",
    "write_weights",
]

VERSION = 1
UPGRADES: dict[int, Callable[[Contents], Contents]] = {}
"""For each earlier version of the format what makes its contents those of the next one."""

CLASSES, WEIGHT_CLASSES = ("NBMF", "PoissonMF"), ("NBSLIM",)
"""Whose models a file may hold: names, looked up where they are listed, never imported."""


def write_model(path: Path, name: str, settings: dict[str, Any], fitted: Fitted) -> None:
    """Write a model file: the name of the estimator, its settings, and what it found."""
    arrays: Arrays = {}
    document = _pack(name, settings, fitted, arrays)
    write(path, {"kind": "model", "version": VERSION, "written_by": f"nbmf {version('nbmf')}", **document}, arrays)


def write_average(path: Path, settings: dict[str, Any], members: Sequence[tuple[str, dict[str, Any], Fitted]]) -> None:
    """Write the members of an average, each as in a model file; an array that the first has too is there once."""
    arrays: Arrays = {}
    documents = []
    for n, (name, member_settings, fitted) in enumerate(members):
        own: Arrays = {}
        documents.append(_pack(name, member_settings, fitted, own))
        for key, array in own.items():
            first = arrays.get(f"0/{key}")
            if first is None or first.dtype != array.dtype or not np.array_equal(first, array):
                arrays[f"{n}/{key}"] = array
    document = {
        "kind": "average",
        "version": VERSION,
        "written_by": f"nbmf {version('nbmf')}",
        "settings": pack_settings(settings, arrays),
        "members": documents,
    }
    write(path, document, arrays)


def write_weights(path: Path, name: str, settings: dict[str, Any], fitted: Weighted) -> None:
    """Write a model of item–item weights: the name of the estimator, its settings, and what it found."""
    arrays: Arrays = {}
    document = {
        "kind": "item-item model",
        "version": VERSION,
        "written_by": f"nbmf {version('nbmf')}",
        **_pack_basis(name, WEIGHT_CLASSES, settings, fitted, arrays),
        "input": fitted.input,
        "target": fitted.target,
        "concentration": pack_number(fitted.concentration),
        **pack_weights(fitted.weights, fitted.intercept, arrays),
    }
    write(path, document, arrays)


def read_weights(source: Path | Contents) -> tuple[str, dict[str, Any], Weighted]:
    """Return the name of an estimator of item–item weights, its settings, and what it found."""
    contents = _upgraded(open_as("item-item model", source, VERSION))
    name, basis = _unpack_basis(contents, WEIGHT_CLASSES)
    weights, intercept = unpack_weights(contents, len(basis["items"]))
    weighted = Weighted(
        **basis,
        input=contents.value("input", str),
        target=contents.value("target", str),
        concentration=unpack_number(contents, "concentration"),
        weights=weights,
        intercept=intercept,
    )
    return name, unpack_settings(contents), weighted


def read_model(source: Path | Contents) -> tuple[str, dict[str, Any], Fitted]:
    """Return the name of an estimator, its settings, and what it found."""
    return _unpack(_upgraded(open_as("model", source, VERSION)))


def read_average(source: Path | Contents) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any], Fitted]]]:
    """Return the settings of an average, and its members as `read_model` does one."""
    contents = open_as("average", source, VERSION)
    documents = contents.value("members", list)
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise contents.fault("it has no members")
    shared = {key.removeprefix("0/"): array for key, array in contents.arrays.items() if key.startswith("0/")}
    number = contents.value("version", int)
    members = []
    for n, document in enumerate(documents):
        own = {key.removeprefix(f"{n}/"): array for key, array in contents.arrays.items() if key.startswith(f"{n}/")}
        member = Contents(contents.path, {**document, "version": number}, {**shared, **own})
        members.append(_unpack(_upgraded(member)))
    return unpack_settings(contents), members


def _pack_basis(
    name: str, known: tuple[str, ...], settings: dict[str, Any], fitted: Basis, arrays: Arrays
) -> dict[str, Any]:
    if name not in known:
        raise StorageError(f"a {name} cannot be saved; nbmf.load knows {' and '.join(CLASSES + WEIGHT_CLASSES)}")
    arrays["objective"] = fitted.objective
    pack_counts(fitted.counts, arrays)
    return {
        "class": name,
        "settings": pack_settings(settings, arrays),
        "user_ids": pack_ids("user_ids", fitted.users, arrays),
        "item_ids": pack_ids("item_ids", fitted.items, arrays),
        "item_names": None if fitted.item_names is None else pack_ids("item_names", fitted.item_names, arrays),
        "has_feature_names": fitted.has_feature_names,
        "ending": fitted.ending.value,
    }


def _pack(name: str, settings: dict[str, Any], fitted: Fitted, arrays: Arrays) -> dict[str, Any]:
    return {
        **_pack_basis(name, CLASSES, settings, fitted, arrays),
        "exposure": fitted.exposure,
        **pack_ties(fitted.ties, arrays),
        **pack_unknown(fitted.unknown, arrays),
        **pack_model(fitted.model, arrays),
        **pack_factor("users", fitted.user_posterior, arrays),
        **pack_factor("items", fitted.item_posterior, arrays),
    }


def _upgraded(contents: Contents) -> Contents:
    while (number := contents.value("version", int)) < VERSION:
        contents = UPGRADES[number](contents)
    return contents


def _unpack_basis(contents: Contents, known: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the name of the estimator, and the fields of a `Basis`."""
    name = contents.value("class", str)
    if name not in known:
        raise StorageError(f"{contents.path}: holds a {name!r}, and nbmf.load knows {' and '.join(known)} there")
    users = unpack_ids(contents, "user_ids", contents.value("user_ids", str))
    items = unpack_ids(contents, "item_ids", contents.value("item_ids", str))
    names, ending = contents.document.get("item_names"), contents.value("ending", str)
    if ending not in {one.value for one in Ending}:
        raise contents.fault(f"its ending is {ending!r}")
    return name, {
        "users": users,
        "items": items,
        "counts": unpack_counts(contents, len(users), len(items)),
        "objective": contents.array("objective", "f", None),
        "ending": Ending(ending),
        "item_names": None if names is None else unpack_ids(contents, "item_names", str(names), len(items)),
        "has_feature_names": contents.value("has_feature_names", bool),
    }


def _unpack(contents: Contents) -> tuple[str, dict[str, Any], Fitted]:
    name, basis = _unpack_basis(contents, CLASSES)
    n_users, n_items = len(basis["users"]), len(basis["items"])
    exposure = contents.document.get("exposure")
    if exposure not in (None, "exact", "tied"):
        raise contents.fault(f"its exposure is {exposure!r}")
    user_posterior, item_posterior = unpack_factors(contents, n_users, n_items)
    fitted = Fitted(
        **basis,
        user_posterior=user_posterior,
        item_posterior=item_posterior,
        model=unpack_model(contents, n_users, n_items),
        exposure=exposure,
        ties=unpack_ties(contents, n_items),
        unknown=unpack_unknown(contents, n_users, n_items),
    )
    return name, unpack_settings(contents), fitted
