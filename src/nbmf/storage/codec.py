"""The parts of a model as arrays and plain values, and back: ids, counts, factors, settings, random generators.

Each `pack_…` adds arrays to a dictionary and returns what goes into the JSON document; each `unpack_…` returns what was
packed, and checks it, because a file may say anything.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import pairwise
from numbers import Integral
from reprlib import repr as shortened
from typing import Any

import numpy as np
import scipy.sparse as sp

from nbmf.data.interactions import Ids, canonical, check_matrix
from nbmf.model import Model
from nbmf.model.factors import Encoding, Factor, Gamma, Point, Prior
from nbmf.model.likelihood import KINDS, Likelihood, NegativeBinomial, Poisson
from nbmf.model.ties import Ties
from nbmf.storage.container import Array, Arrays, Contents, StorageError

MOMENTS = ("mean", "geometric_mean", "exposed")
ROWS = ("row_means", "row_logs", "row_entropies")
_FIXED_WIDTH = re.compile("<U([1-9][0-9]{0,8})")
CHECKED_AT_A_TIME = 1 << 22  # cells
# what a file claims may take so many bytes, and so many for each byte that the file holds of it
FREE_BYTES, MOST_PER_BYTE = 1 << 24, 64


def pack_number(value: float) -> float | str:
    """Return a number for JSON, which has no infinity: that is written as text."""
    return float(value) if math.isfinite(value) else str(float(value))


def unpack_number(contents: Contents, name: str) -> float:
    """Return a number of the document."""
    found = contents.document.get(name)
    if (type(found) is float and not math.isnan(found)) or found in ("inf", "-inf"):
        return float(found)
    raise contents.fault(f"its entry {name!r} is {shortened(found)}, not a number")


def _pack_quantity(name: str, value: float | Array, arrays: Arrays) -> float | str:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return "array"
    return pack_number(value)


def _unpack_positive(contents: Contents, name: str) -> float:
    number = unpack_number(contents, name)
    if not 0 < number < math.inf:
        raise contents.fault(f"its entry {name!r} is {number}, not above 0 and finite")
    return number


def _unpack_quantity(contents: Contents, name: str, n_rows: int, n_columns: int) -> float | Array:
    """Return one number, or an array with one for each row or each column."""
    if contents.document.get(name) != "array":
        return _unpack_positive(contents, name)
    found = _finite(contents, name, None, None)
    if found.shape not in {(1, 1), (n_rows, 1), (1, n_columns)} or not found.all():
        raise contents.fault(f"its array {name!r} has shape {found.shape} for {n_rows} × {n_columns}, or zeros")
    return found


def pack_ids(name: str, ids: Ids, arrays: Arrays) -> str:
    """Pack numbers as they are and strings as UTF-8, one after the other, with their ends; return their type."""
    if ids.dtype.kind in "biuf":
        arrays[name] = ids
        return str(ids.dtype.newbyteorder("<"))
    texts = ids.tolist()
    odd = next((text for text in texts if not isinstance(text, str)), None)
    if ids.dtype.kind not in "OU" or odd is not None:
        kind = type(odd).__name__ if odd is not None else str(ids.dtype)
        raise StorageError(f"{name} are of type {kind}; a model file holds ids that are all strings or all numbers")
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise StorageError(f"{name}: {error.object!r} is not valid text, so a model file cannot hold it") from None
    arrays[f"{name}.utf8"] = np.frombuffer(b"".join(encoded), np.uint8)
    arrays[f"{name}.ends"] = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    # one long id among many short ones makes a width that `unpack_ids` refuses; as objects, the ids are equal
    held = arrays[f"{name}.utf8"].nbytes + arrays[f"{name}.ends"].nbytes
    return "object" if ids.dtype.kind == "O" or _is_too_much(ids.nbytes, held) else f"<U{ids.dtype.itemsize // 4}"


def unpack_ids(contents: Contents, name: str, kind: str, size: int | None = None) -> Ids:
    """Return ids of the type that `pack_ids` named."""
    width = _FIXED_WIDTH.fullmatch(kind)
    if kind != "object" and width is None:
        ids = contents.array(name, "biuf", size)
        if kind not in (str(ids.dtype), ids.dtype.str):
            raise contents.fault(f"its {name} are {ids.dtype}, not {shortened(kind)}")
        return ids
    stops = contents.array(f"{name}.ends", "i", size)
    ends = stops.tolist()
    blob = contents.array(f"{name}.utf8", "u", ends[-1] if ends else 0).tobytes()
    places = list(pairwise([0, *ends]))
    if any(start > end for start, end in places):
        raise contents.fault(f"the ends of its {name} do not ascend")
    if width:
        wide = f"its {name} are of type {kind}, which makes them too long (ids.astype(object) has no fixed width)"
        check_room(contents, wide, 4 * int(width[1]) * len(ends), len(blob) + stops.nbytes)
    try:
        return np.array([blob[start:end].decode() for start, end in places], kind)
    except UnicodeDecodeError as error:
        raise contents.fault(f"its {name} are not UTF-8 ({error})") from None


def check_room(contents: Contents, what: str, taken: int, held: int) -> None:
    """Refuse what would take far more bytes than the file holds of it, before memory is allocated."""
    if _is_too_much(taken, held):
        raise contents.fault(f"{what}: {taken:,} bytes from {held:,} bytes of the file")


def _is_too_much(taken: int, held: int) -> bool:
    return taken > FREE_BYTES + MOST_PER_BYTE * held


def pack_counts(matrix: sp.csr_array, arrays: Arrays, name: str = "counts") -> None:
    """Pack a canonical matrix, row by row."""
    arrays |= {f"{name}.{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}


def unpack_counts(contents: Contents, n_users: int, n_items: int) -> sp.csr_array:
    """Return the counts, all of which are finite and not negative."""
    data = contents.array("counts.data", "biuf", None)
    if data.dtype == np.float16:  # SciPy does not know it
        raise contents.fault("its counts are of type float16")
    matrix = unpack_matrix(contents, "counts", data, (n_users, n_items))
    try:
        check_matrix(matrix)
    except ValueError as error:
        raise contents.fault(str(error)) from None
    return matrix


def pack_weights(weights: Array | sp.csr_array, intercept: Array, arrays: Arrays) -> dict[str, Any]:
    """Pack item–item weights, a square array or row by row where there are few, and the intercepts."""
    arrays["intercept"] = intercept
    if isinstance(weights, np.ndarray):
        arrays["weights"] = weights
        return {"n_weights": None}
    pack_counts(weights, arrays, "weights")
    return {"n_weights": int(weights.nnz)}


def unpack_weights(contents: Contents, n_items: int) -> tuple[Array | sp.csr_array, Array]:
    """Return the weights and the intercepts."""
    intercept = _finite(contents, "intercept", n_items)
    if contents.document.get("n_weights") is None:
        weights = _finite(contents, "weights", n_items, n_items)
    else:
        data = _finite(contents, "weights.data", contents.value("n_weights", int))
        weights = unpack_matrix(contents, "weights", data, (n_items, n_items))
    if weights.diagonal().any():
        raise contents.fault("an item has a weight on itself")
    if weights.dtype != intercept.dtype:
        raise contents.fault(f"its weights are {weights.dtype} and its intercepts {intercept.dtype}")
    return weights, intercept


def pack_encoder(encoder: Array, items: Array, intercepts: Array, arrays: Arrays) -> None:
    """Pack V, H and the intercepts of each start."""
    arrays |= {"encoder": encoder, "components": items, "intercepts": intercepts}


def unpack_encoder(contents: Contents, n_items: int) -> tuple[Array, Array, Array]:
    """Return V, H and the intercepts of each start."""
    V, b = _finite(contents, "encoder", n_items, None), _finite(contents, "intercepts", n_items, None)
    H = _finite(contents, "components", *V.shape)
    if not V.size or not b.size or V.shape[1] % b.shape[1]:
        raise contents.fault(f"its {V.shape[1]} components are not of {b.shape[1]} starts")
    if not V.dtype == H.dtype == b.dtype:
        raise contents.fault(f"its encoder is {V.dtype}, its components {H.dtype} and its intercepts {b.dtype}")
    return V, H, b


def pack_unknown(matrix: sp.csr_array | None, arrays: Arrays) -> dict[str, Any]:
    """Pack the cells that were left out of the likelihood, if any were."""
    if matrix is None:
        return {"n_unknown": None}
    ordered = canonical(matrix.copy())
    arrays |= {"unknown.indices": ordered.indices, "unknown.indptr": ordered.indptr}
    return {"n_unknown": int(ordered.nnz)}


def unpack_unknown(contents: Contents, n_users: int, n_items: int) -> sp.csr_array | None:
    """Return the cells that were left out of the likelihood, as ones."""
    if contents.document.get("n_unknown") is None:
        return None
    indices = contents.array("unknown.indices", "i", contents.value("n_unknown", int))
    return unpack_matrix(contents, "unknown", np.ones_like(indices, np.int8), (n_users, n_items))


def unpack_matrix(contents: Contents, name: str, data: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix of these entries; compiled loops trust its indices, so each is checked, some at a time."""
    indices = contents.array(f"{name}.indices", "i", len(data))
    indptr = contents.array(f"{name}.indptr", "i", shape[0] + 1)
    if indices.dtype != indptr.dtype or indices.dtype.itemsize < 4:  # else loops are compiled anew
        raise contents.fault(
            f"the indices of its {name} are {indices.dtype} and {indptr.dtype}, but both must be int32 or both int64"
        )
    if indptr[0] != 0 or indptr[-1] != len(data) or np.any(indptr[1:] < indptr[:-1]):
        raise contents.fault(f"the rows of its {name} do not follow each other")
    for start in range(0, len(data), CHECKED_AT_A_TIME):
        piece = indices[start : start + CHECKED_AT_A_TIME]
        before = np.concatenate((indices[start - 1 : start] if start else [-1], piece[:-1]))
        is_first = np.zeros(len(piece), bool)
        is_first[indptr[slice(*np.searchsorted(indptr, (start, start + len(piece))))] - start] = True
        if piece.min() < 0 or piece.max() >= shape[1] or not np.all((piece > before) | is_first):
            raise contents.fault(f"its {name} are not of {shape[1]} items, each once and in order")
    return canonical_csr(data, indices, indptr, shape)


def canonical_csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix that is known to be canonical, so that nobody reads all of it to find out."""
    matrix = sp.csr_array((data, indices, indptr), shape=shape)
    matrix.has_canonical_format = True
    return matrix


def pack_factor(name: str, factor: Factor, arrays: Arrays) -> dict[str, Any]:
    """Pack one side: the moments of a gamma, or values."""
    document: dict[str, Any] = {f"{name}.law": factor.kind}
    if not isinstance(factor, Gamma):
        arrays[f"{name}.value"] = factor.parameters[0]
        return document
    arrays |= {f"{name}.{part}": getattr(factor, part) for part in (*MOMENTS, *ROWS)}
    return document | {f"{name}.prior_rate": _pack_quantity(f"{name}.prior_rate", factor.prior_rate, arrays)}


def unpack_factors(contents: Contents, n_users: int, n_items: int, of: str = "") -> tuple[Factor, Factor]:
    """Return the sides "users" and "items", or of a second factorization those whose names begin with `of`."""
    if contents.document.get(f"{of}users.law") == Encoding.kind:
        return _unpack_encoding(contents, n_items, of)
    users, items = (_unpack_factor(contents, *side) for side in ((f"{of}users", n_users), (f"{of}items", n_items)))
    if type(users) is not type(items) or users.mean.shape[1] != items.mean.shape[1] or not users.mean.size:
        raise contents.fault("its users and its items differ in kind or in number of components, or have none")
    if users.mean.dtype != items.mean.dtype:
        raise contents.fault(f"its users are {users.mean.dtype} and its items {items.mean.dtype}")
    return users, items


def _unpack_encoding(contents: Contents, n_items: int, of: str) -> tuple[Encoding, Point]:
    """Return V of some starts, which the data turns into users, and [H | b] of each."""
    V, items = _finite(contents, f"{of}users.value", n_items, None), _unpack_factor(contents, f"{of}items", n_items)
    n_starts = items.mean.shape[1] - V.shape[1]
    if (
        not isinstance(items, Point)
        or n_starts < 1
        or V.shape[1] % n_starts
        or not V.size
        or V.dtype != items.mean.dtype
    ):
        raise contents.fault("its encoder and its items differ in type or do not belong together")
    return Encoding(V, n_starts), Point(items.mean)


def _unpack_factor(contents: Contents, name: str, n_rows: int) -> Factor:
    law = contents.value(f"{name}.law", str)
    if law == "point":
        return Point(_finite(contents, f"{name}.value", n_rows, None))
    if law != "gamma":
        raise contents.fault(f"its factor {name!r} follows the law {law!r}, neither 'gamma' nor 'point'")
    mean = _finite(contents, f"{name}.mean", n_rows, None)
    geometric_mean = _finite(contents, f"{name}.geometric_mean", *mean.shape)
    exposed = _finite(contents, f"{name}.exposed", None, mean.shape[1])
    if len(exposed) not in (1, len(mean)) or not mean.dtype == geometric_mean.dtype == exposed.dtype:
        raise contents.fault(f"the moments of its factor {name!r} have different shapes or types")
    means = _finite(contents, f"{name}.row_means", len(mean))
    logs, entropies = (contents.array(f"{name}.{part}", "f", len(mean)) for part in ROWS[1:])
    if np.isnan(logs).any() or np.isnan(entropies).any():
        raise contents.fault(f"the logarithms or entropies of its factor {name!r} are not numbers")
    rows = (part.astype(np.float64, copy=False) for part in (means, logs, entropies))
    return Gamma(mean, geometric_mean, exposed, _unpack_quantity(contents, f"{name}.prior_rate", len(mean), 1), *rows)


def _finite(contents: Contents, name: str, *shape: int | None) -> Array:
    values = contents.array(name, "f", *shape)
    # the least and the largest of numbers with a NaN are NaN
    if values.dtype.itemsize not in (4, 8) or not (values.min(initial=0) >= 0 and values.max(initial=0) < np.inf):
        raise contents.fault(f"its array {name!r} has entries that are not finite numbers from 0")
    return values


def pack_model(model: Model, arrays: Arrays) -> dict[str, Any]:
    """Pack the likelihood and the priors; Poisson's is packed as a negative binomial with infinite α."""
    likelihood, document = model.likelihood, dict[str, Any]()
    if type(likelihood) in (Poisson, NegativeBinomial):
        quantities = {"concentration": likelihood.concentration}
    else:
        document["likelihood"] = likelihood.kind
        quantities = {f"likelihood.{name}": value for name, value in likelihood.parameters.items()}
    packed = {name: _pack_quantity(name, value, arrays) for name, value in quantities.items()}
    return document | packed | pack_priors(model, arrays)


def pack_priors(model: Model, arrays: Arrays, of: str = "") -> dict[str, Any]:
    """Pack the priors of the two sides, whose names begin with `of`."""
    document = dict[str, Any]()
    for name, prior in ((f"{of}users", model.user_prior), (f"{of}items", model.item_prior)):
        document[f"{name}.prior.shape"] = pack_number(prior.shape)
        document[f"{name}.prior.rate"] = _pack_quantity(f"{name}.prior.rate", prior.rate, arrays)
    return document


def unpack_priors(contents: Contents, n_users: int, n_items: int, of: str = "") -> list[Prior]:
    """Return the priors of the two sides."""
    priors = []
    for at, n in ((f"{of}users.prior", n_users), (f"{of}items.prior", n_items)):
        priors.append(Prior(_unpack_positive(contents, f"{at}.shape"), _unpack_quantity(contents, f"{at}.rate", n, 1)))
    return priors


def unpack_model(contents: Contents, n_users: int, n_items: int) -> Model:
    """Return the likelihood and the priors."""
    try:
        return Model(_unpack_likelihood(contents, n_users, n_items), *unpack_priors(contents, n_users, n_items))
    except StorageError:
        raise
    except (TypeError, ValueError) as error:
        raise contents.fault(str(error)) from None


def _unpack_likelihood(contents: Contents, n_users: int, n_items: int) -> Likelihood:
    if "likelihood" not in contents.document:
        if contents.document.get("concentration") == "inf":
            return Poisson()
        return NegativeBinomial(_unpack_quantity(contents, "concentration", n_users, n_items))
    kind = contents.value("likelihood", str)
    if kind not in KINDS:
        known = ", ".join(map(repr, KINDS))
        raise contents.fault(f"its likelihood is {kind!r}, and nbmf knows {known}; import the module that defines it")
    names = [field.name for field in fields(KINDS[kind])]
    return KINDS[kind](**{name: _unpack_quantity(contents, f"likelihood.{name}", n_users, n_items) for name in names})


def pack_ties(ties: Ties | None, arrays: Arrays) -> dict[str, Any]:
    """Pack the cluster of each item, if any are tied."""
    if ties is None:
        return {"n_clusters": None}
    arrays["ties"] = ties.labels
    return {"n_clusters": int(ties.n_clusters)}


def unpack_ties(contents: Contents, n_items: int) -> Ties | None:
    """Return the clusters of the items, None if none are tied."""
    if contents.document.get("n_clusters") is None:
        return None
    n_clusters = contents.value("n_clusters", int)
    labels = contents.array("ties", "i", n_items)
    if labels.dtype != np.int32 or labels.min() < 0 or not labels.max() < n_clusters <= n_items:
        raise contents.fault("its items are in clusters that do not exist")
    return Ties(labels, n_clusters)


def pack_settings(settings: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Pack the settings of an estimator: plain values, starts as arrays, a random generator as its state."""
    return {name: _pack_setting(f"settings.{name}", value, arrays) for name, value in settings.items()}


def _pack_setting(name: str, value: Any, arrays: Arrays) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_ | Integral | float | np.floating):
        plain = value.item() if isinstance(value, np.generic) else value
        return plain if math.isfinite(plain) else {"float": pack_number(float(plain))}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic | float)):
        return np.dtype(value).name
    if isinstance(value, np.random.RandomState):
        return {"generator": pack_generator(name, value.get_state(legacy=False), arrays)}
    if isinstance(value, tuple | list) and all(np.asarray(part).dtype.kind in "biuf" for part in value):
        arrays |= {f"{name}.{n}": np.asarray(part) for n, part in enumerate(value)}
        return {"arrays": len(value)}
    if isinstance(value, Likelihood):
        parts = {part: _pack_quantity(f"{name}.{part}", each, arrays) for part, each in value.parameters.items()}
        return {"likelihood": value.kind, "parameters": parts}
    setting = name.removeprefix("settings.")
    raise StorageError(f"{setting} is {value!r}; a file cannot hold a {type(value).__name__}, so change this setting")


def unpack_settings(contents: Contents) -> dict[str, Any]:
    """Return the settings of an estimator."""
    settings = contents.value("settings", dict)
    return {name: _unpack_setting(contents, f"settings.{name}", value) for name, value in settings.items()}


def _unpack_setting(contents: Contents, name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | str | int | float):
        return value
    keys = list(value) if isinstance(value, dict) else []
    if keys == ["float"] and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if keys == ["generator"]:
        return unpack_generator(contents, name, value["generator"])
    if keys == ["arrays"] and type(value["arrays"]) is int:
        parts = [f"{name}.{n}" for n in range(min(value["arrays"], 1 + len(contents.arrays)))]
        if set(parts) <= set(contents.arrays):
            return tuple(contents.arrays[part] for part in parts)
    try:
        if keys == ["likelihood", "parameters"]:
            parts = value["parameters"].items()
            given = {p: contents.arrays[f"{name}.{p}"] if each == "array" else float(each) for p, each in parts}
            return KINDS[value["likelihood"]](**given)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise contents.fault(f"{name!r} is {shortened(value)} ({error})") from None
    raise contents.fault(f"{name!r} is {shortened(value)}")


def pack_generator(name: str, state: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Pack the position of a generator in its stream: its `get_state(legacy=False)`."""
    if state["bit_generator"] != "MT19937":
        raise StorageError(f"a file cannot hold a random generator {state['bit_generator']}, only RandomState's own")
    arrays[f"{name}.key"] = state["state"]["key"]
    return {"position": state["state"]["pos"], "has_gauss": state["has_gauss"], "gauss": float(state["gauss"])}


def unpack_generator(contents: Contents, name: str, entry: Any) -> np.random.RandomState:
    """Return a generator at the same position."""
    key = contents.array(f"{name}.key", "u", 624)
    match entry:
        case {"position": int(position), "has_gauss": int(has_gauss), "gauss": float(gauss)}:
            if 0 <= position <= len(key) and has_gauss in (0, 1) and key.dtype == np.uint32:
                generator = np.random.RandomState()
                generator.set_state(("MT19937", key, position, has_gauss, gauss))
                return generator
    raise contents.fault(f"the random generator {name!r} has an invalid state")
