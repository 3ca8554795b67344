"""A model file of version 1, written from docs/format.md without help from the package."""

import json
import struct
from hashlib import sha256

import numpy as np


def seal(header: bytes, data: bytes = b"") -> bytes:
    """Return a file with the checksum of its header, as docs/format.md specifies."""
    header = struct.pack("<Q", len(header)) + header
    place = header.index(b"0" * 64)
    return header[:place] + sha256(header).hexdigest().encode() + header[place + 64 :] + data


START = '{"__metadata__":{"sha256":"' + 64 * "0" + '","nbmf":'


def version_1_file() -> bytes:
    """Return a model of two users, three items and one component."""
    data = np.array([3, 1, 2])
    arrays = {
        "objective": np.array([-9.5, -9.25]),
        "counts.data": data,
        "items.value": np.array([[2.0], [0.5], [0.0]]),
        "users.value": np.array([[1.5], [0.25]]),
        "user_ids.ends": np.array([3, 6]),
        "counts.indices": np.array([0, 2, 0], np.int32),
        "counts.indptr": np.array([0, 2, 3], np.int32),
        "item_ids": np.array([7, 8, 9], np.int32),
        "user_ids.utf8": np.frombuffer(b"annbob", np.uint8),
    }
    document = {
        "kind": "model", "version": 1, "written_by": "hand", "class": "PoissonMF",
        "settings": {"n_components": 1, "inference": "mm", "tol": {"float": "inf"}},
        "user_ids": "object", "item_ids": "<i4", "item_names": None, "has_feature_names": False,
        "ending": "max_iter", "exposure": None, "concentration": "inf",
        "users.prior.shape": 1.0, "users.prior.rate": 1.0, "items.prior.shape": 1.0, "items.prior.rate": 1.0,
        "users.law": "point", "items.law": "point",
    }  # fmt: skip
    codes = {"float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8"}
    checksums = {name: sha256(values.tobytes()).hexdigest() for name, values in arrays.items()}
    inner = json.dumps({"document": document, "sha256": checksums})
    header, end = {"__metadata__": {"sha256": "0" * 64, "nbmf": inner}}, 0
    for name, values in arrays.items():
        header[name] = {
            "dtype": codes[str(values.dtype)],
            "shape": values.shape,
            "data_offsets": [end, end + values.nbytes],
        }
        end += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    return seal(text + b" " * (-len(text) % 8), b"".join(values.tobytes() for values in arrays.values()))
