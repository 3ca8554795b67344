"""One file of named arrays and a JSON document, sealed by checksums, written as a whole or not at all.

It is a safetensors file, so other programs can read the arrays: 8 bytes with the length of the header, the header in
JSON, the arrays. What that format leaves open is added inside it (docs/format.md): a SHA-256 of each array and one of
the header, which is checked before anything in the header is believed. Reading it runs no code: bytes become numbers
and text, nothing else.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nbmf.data import START

Array = NDArray[Any]
Arrays = dict[str, Array]
Path = str | os.PathLike[str]
Value = TypeVar("Value")

LENGTH_BYTES, DIGITS = 8, 64
CHUNK = 1 << 20
NOTHING = b"0" * DIGITS  # in the place of the header's own checksum while it is computed
TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
CODES = {np.dtype(kind): code for code, kind in TYPES.items()}


class StorageError(OSError, ValueError):
    """A model or checkpoint cannot be written or read; the message names the file, the fault and the way out."""


class MissingStorageError(StorageError, FileNotFoundError):
    """There is no such file."""


@dataclass(frozen=True)
class Contents:
    """What was in a file: a JSON document and arrays, both sound as bytes, not yet as a model."""

    path: str
    document: dict[str, Any]
    arrays: Arrays

    def value(self, name: str, kind: type[Value]) -> Value:
        """Return an entry of the document, which must be of that type."""
        found = self.document.get(name)
        if type(found) is not kind:
            raise self.fault(f"its entry {name!r} is {found!r}, no {kind.__name__}")
        return found

    def array(self, name: str, kinds: str, *shape: int | None) -> Array:
        """Return an array, which must have one of these kinds of numbers and this shape; None is any length."""
        if name not in self.arrays:
            raise self.fault(f"it has no array {name!r}")
        found = self.arrays[name]
        fits = len(found.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
        if not fits or found.dtype.kind not in kinds:
            wanted = " × ".join("any" if n is None else str(n) for n in shape) or "one number"
            raise self.fault(f"its array {name!r} has type {found.dtype} and shape {found.shape}; it must be {wanted}")
        return found

    def fault(self, what: str) -> StorageError:
        """Return the error for contents that do not make sense."""
        return senseless(self.path, what)


def senseless(path: str, what: str) -> StorageError:
    """Return the error for a file that is sound by its checksums and yet says what nbmf never writes."""
    return StorageError(f"{path}: {what}; this is not how nbmf writes a file, so write it again")


class Stream(NamedTuple):
    """An array that comes in pieces: its type, its shape, and parts that follow each other along the first axis."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Iterable[Array]


def write(path: Path, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Replace a file by one with these contents; whatever goes wrong, the old one is still there.

    document : what json can write; floats are finite
    arrays : by name, of the types in TYPES
    """
    name = check_place(path)
    flat = {key: _little(key, arrays[key]) for key in sorted(arrays, key=lambda key: -arrays[key].itemsize)}
    checksums = {key: sha256(_bytes(values)).hexdigest() for key, values in flat.items()}
    header = _header(document, flat, checksums)
    with replacing(name) as temporary, open(temporary, "xb") as stream:
        stream.write(header)
        for values in flat.values():
            stream.write(_bytes(values))


def write_streams(path: Path, document: Mapping[str, Any], streams: Mapping[str, Stream]) -> None:
    """`write` of arrays that need not fit into memory; they are written in their order, largest entries first."""
    name = check_place(path)
    checksums = dict.fromkeys(streams, NOTHING.decode())
    header = _header(document, streams, checksums)
    with replacing(name) as temporary, open(temporary, "xb") as file:
        file.write(header)
        for key, (dtype, shape, parts) in streams.items():
            digest, size = sha256(), 0
            for part in parts:
                values = _bytes(np.ascontiguousarray(part, dtype.newbyteorder("<")))
                digest.update(values)
                file.write(values)
                size += len(values)
            if size != prod(shape) * dtype.itemsize:
                raise ValueError(f"array {key!r} came as {size} bytes; its shape is {shape}")
            checksums[key] = digest.hexdigest()
        file.seek(0)
        file.write(_header(document, streams, checksums))  # as long as the first: checksums have one length


def read(path: Path, *, mapped: bool = False, checked: bool = True) -> Contents:
    """Read a file, every byte of which is covered by a checksum that must be right.

    mapped : leave the arrays in the file, from where the machine fetches what is used; they cannot be written to
    checked : False believes the arrays' checksums: for a file that was read before
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise MissingStorageError(f"{name}: there is no such file")
    if not os.path.isfile(name):
        raise StorageError(f"{name}: is a {'folder; name the file in it' if os.path.isdir(name) else 'device'}")
    try:
        with open(name, "rb") as stream:
            return _read(name, stream, mapped, checked)
    except StorageError:
        raise
    except MemoryError as error:
        raise StorageError(f"{name}: does not fit into the memory of this machine") from error
    except OSError as error:
        raise StorageError(f"{name}: cannot be read ({error.strerror or error})") from error


def open_as(kind: str, source: Path | Contents, version: int) -> Contents:
    """Read what must be of one kind ("model", "item-item model", "average", "checkpoint"), and of no later version."""
    contents = source if isinstance(source, Contents) else read(source)
    found, number = contents.value("kind", str), contents.value("version", int)
    if found != kind:
        loaded = "nbmf.load(path) reads it"
        remedy = {
            "model": loaded,
            "item-item model": loaded,
            "average": loaded,
            "checkpoint": "fit(X, resume=path) goes on from it",
            "counts": "nbmf.open_counts(path) reads it",
        }
        raise StorageError(
            f"{contents.path}: is {_one(found)}, not {_one(kind)}; {remedy.get(found, 'name another file')}"
        )
    if not 1 <= number <= version:
        raise StorageError(
            f"{contents.path}: is a {kind} of format version {number}; this nbmf reads those up to {version}, "
            "so install a newer nbmf"
        )
    return contents


def _one(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"


def seal(path: Path) -> str | None:
    """Return the checksum in the header of a file, which stands for all that is in it; None if it is no file of nbmf.

    Nothing is checked: `read` does that.
    """
    try:
        with open(path, "rb") as stream:
            opening = stream.read(LENGTH_BYTES + len(START) + DIGITS)
    except OSError:
        return None
    return opening[-DIGITS:].decode("ascii", "replace") if opening[LENGTH_BYTES:].startswith(START) else None


def check_place(path: Path) -> str:
    """Return the name of the file to write, after looking whether one can be put there; links are followed."""
    name = os.path.realpath(path)
    folder = os.path.dirname(name)
    if os.path.isdir(name):
        raise StorageError(f"{os.fspath(path)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise StorageError(f"{os.fspath(path)}: there is no folder {folder}; make it first")
    return name


def remove_leftovers(path: Path) -> None:
    """Remove what writers of this file left beside it when they were killed; nobody else may be writing it."""
    name = os.path.realpath(path)
    folder, start = os.path.dirname(name), _temporary(name, "")
    with suppress(OSError):
        for other in os.listdir(folder):
            if os.path.join(folder, other).startswith(start) and len(other) == len(os.path.basename(start)) + 16:
                os.unlink(os.path.join(folder, other))


def _temporary(name: str, suffix: str) -> str:
    folder, base = os.path.split(name)
    return os.path.join(folder, f".{base}.unfinished-{suffix}")


@contextmanager
def replacing(name: str) -> Iterator[str]:
    """Give the name of a new file beside `name`, which takes its place once it is safely on the disk, or vanishes."""
    temporary = _temporary(name, secrets.token_hex(8))
    try:
        try:
            yield temporary
            with open(temporary, "rb+") as stream:
                os.fsync(stream.fileno())
            if os.path.exists(name):
                os.chmod(temporary, os.stat(name).st_mode & 0o7777)
            os.replace(temporary, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"{name}: cannot be written ({reason}); what was there is unchanged. Make room, or write elsewhere"
        ) from error
    try:
        _sync_folder(os.path.dirname(name))
    except OSError as error:
        raise StorageError(f"{name}: is written, but a power cut may undo it ({error.strerror or error})") from error


def _sync_folder(folder: str) -> None:
    """Put the new name on the disk too; Windows has no way to ask for that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _little(name: str, values: Array) -> Array:
    little = values.dtype.newbyteorder("<")
    if little not in CODES:
        raise StorageError(f"array {name!r} has type {values.dtype}, which a file cannot hold; {', '.join(TYPES)} can")
    return np.ascontiguousarray(values, little)


def _bytes(values: Array) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _header(document: Mapping[str, Any], arrays: Mapping[str, Array | Stream], checksums: dict[str, str]) -> bytes:
    """The length of the header, and the header with its checksum."""
    text = _json({"document": document, "sha256": checksums})
    listed: dict[str, Any] = {"__metadata__": {"sha256": NOTHING.decode(), "nbmf": text}}
    end = 0
    for name, values in arrays.items():
        start, end = end, end + prod(values.shape) * values.dtype.itemsize
        listed[name] = {"dtype": CODES[values.dtype], "shape": list(values.shape), "data_offsets": [start, end]}
    header = _json(listed).encode()
    header += b" " * (-len(header) % 8)  # so that the arrays are aligned
    header = len(header).to_bytes(LENGTH_BYTES, "little") + header
    place = LENGTH_BYTES + len(START)
    return header[:place] + sha256(header).hexdigest().encode() + header[place + DIGITS :]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _read(name: str, stream: BufferedReader, mapped: bool, checked: bool) -> Contents:
    size = os.fstat(stream.fileno()).st_size
    opening = stream.read(LENGTH_BYTES + len(START))
    if opening[LENGTH_BYTES:] != START:
        raise StorageError(f"{name}: is no file of nbmf, or its beginning is damaged; model.save(path) writes one")
    length = int.from_bytes(opening[:LENGTH_BYTES], "little")
    if not len(START) + DIGITS <= length <= size - LENGTH_BYTES:
        raise StorageError(f"{name}: is damaged or cut short (it has {size} bytes); fetch or write it again")
    rest = stream.read(length - len(START))
    if sha256(opening + NOTHING + rest[DIGITS:]).hexdigest().encode() != rest[:DIGITS]:
        raise StorageError(f"{name}: is damaged: its header does not match its checksum; fetch or write it again")
    document, checksums, listed = _parse(name, START + rest)
    arrays, place = {}, 0
    for key, (kind, shape, start, stop) in listed.items():
        n_entries = prod(shape) if len(shape) <= 2 and max(shape, default=0) <= size else -1
        if start != place or stop - start != np.dtype(kind).itemsize * n_entries:
            raise senseless(name, f"its array {key!r} does not lie where the header says")
        if LENGTH_BYTES + length + stop > size:
            raise StorageError(f"{name}: is cut short (it has {size} bytes); fetch or write it again")
        place = stop
        values, checksum = (_map if mapped and stop > start else _take)(name, stream, kind, shape, checked)
        if checked and checksum != checksums.get(key):
            raise StorageError(f"{name}: is damaged: {key!r} does not match its checksum; fetch or write it again")
        arrays[key] = values.astype(values.dtype.newbyteorder("="), copy=False)
    if LENGTH_BYTES + length + place != size:
        raise StorageError(f"{name}: is damaged: {size - LENGTH_BYTES - length - place} bytes follow its end")
    return Contents(name, document, arrays)


def _take(name: str, stream: BufferedReader, kind: str, shape: tuple[int, ...], checked: bool) -> tuple[Array, str]:
    """Return the array that follows in the stream, and its checksum if it is wanted."""
    values = np.empty(shape, kind)
    stream.readinto(_bytes(values))
    return values, sha256(_bytes(values)).hexdigest() if checked else ""


def _map(name: str, stream: BufferedReader, kind: str, shape: tuple[int, ...], checked: bool) -> tuple[Array, str]:
    """`_take` that leaves the array where it is; the checksum is made of pieces, so that no more is held."""
    start, digest = stream.tell(), sha256()
    left = prod(shape) * np.dtype(kind).itemsize
    if not checked:
        stream.seek(left, os.SEEK_CUR)
    while checked and left and (piece := stream.read(min(left, CHUNK))):
        digest.update(piece)
        left -= len(piece)
    end = stream.tell()
    values = np.asarray(np.memmap(stream, kind, "r", start, shape))  # of this very file, whatever has its name by now
    stream.seek(end)
    return values, digest.hexdigest()


Listed = dict[str, tuple[str, tuple[int, ...], int, int]]


def _parse(name: str, header: bytes) -> tuple[dict[str, Any], dict[str, str], Listed]:
    """Document, checksums, and where the arrays lie. The checksum is right, but anybody can compute one."""
    try:
        entries = json.loads(header)
        inner = json.loads(entries.pop("__metadata__")["nbmf"])
        listed = {}
        for key, entry in entries.items():
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if not all(type(n) is int and 0 <= n < 2**63 for n in (start, stop, *shape)):
                raise ValueError(f"array {key!r} has no shape")
            listed[key] = (TYPES[entry["dtype"]], shape, start, stop)
        document, checksums = inner["document"], inner["sha256"]
        if not isinstance(document, dict) or not isinstance(checksums, dict):
            raise TypeError("no document")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise senseless(name, f"its header is not laid out as it should be ({error})") from error
    return document, checksums, listed
