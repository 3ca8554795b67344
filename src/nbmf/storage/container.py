"""One file of named arrays and a JSON document, sealed by checksums, written as a whole or not at all.

It is a safetensors file: 8 bytes with the length of the header, the header in JSON, the arrays. The header also holds
what that format lacks (docs/format.md): a SHA-256 of each array and one of the header, which is checked before anything
in the header is trusted. Reading runs no code: bytes become numbers and text.
"""

import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from errno import EACCES, EPERM, EROFS
from hashlib import sha256
from io import BufferedReader
from math import prod
from reprlib import repr as shortened
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nbmf.data import START

Array = NDArray[Any]
Arrays = dict[str, Array]
Path = str | os.PathLike[str]
Value = TypeVar("Value")

LENGTH_BYTES, DIGITS = 8, 64
CHUNK = 1 << 20
IN_MEMORY = 1 << 26  # bytes of an array up to which its copy is in memory, not in a temporary file
COPIED = "; while it is open, a temporary file beside it holds a copy, which needs as much free space again"
NOTHING = b"0" * DIGITS  # stands for the checksum of the header while that is computed
TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
CODES = {np.dtype(kind): code for code, kind in TYPES.items()}


class StorageError(OSError, ValueError):
    """A file cannot be written or read; the message names the file, the fault and the remedy."""


class MissingStorageError(StorageError, FileNotFoundError):
    """There is no such file."""


@dataclass(frozen=True)
class Contents:
    """A JSON document and arrays as a file holds them, or is about to: intact, but not yet checked to make sense."""

    path: str
    document: dict[str, Any]
    arrays: Arrays
    remedy: str = "this is not how nbmf writes a file, so write it again"

    def value(self, name: str, kind: type[Value]) -> Value:
        """Return an entry of the document, which must have this type."""
        found = self.document.get(name)
        if type(found) is not kind:
            raise self.fault(f"its entry {name!r} is {shortened(found)}, not of type {kind.__name__}")
        return found

    def array(self, name: str, kinds: str, *shape: int | None) -> Array:
        """Return an array, which must have one of these NumPy kinds and this shape, where None is any length."""
        if name not in self.arrays:
            raise self.fault(f"it has no array {name!r}")
        found = self.arrays[name]
        fits = len(found.shape) == len(shape) and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
        if not fits or found.dtype.kind not in kinds:
            wanted = " × ".join("any" if n is None else str(n) for n in shape) or "one number"
            raise self.fault(f"its array {name!r} has type {found.dtype} and shape {found.shape}; it must be {wanted}")
        return found

    def fault(self, what: str) -> StorageError:
        """Return the error for contents that nbmf would never read, whatever their checksums."""
        return StorageError(f"{self.path}: {what}; {self.remedy}")


def unwritten(path: Path, document: dict[str, Any], arrays: Arrays) -> Contents:
    """Return contents that are about to be written, for their reader to refuse what it would refuse in a file."""
    return Contents(os.fspath(path), document, arrays, "nbmf could not read that back, so nothing was written")


class Stream(NamedTuple):
    """An array that need not fit into memory: it comes in parts along its first axis."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Iterable[Array]


def write(path: Path, document: Mapping[str, Any], arrays: Mapping[str, Array | Stream]) -> None:
    """Write a document of finite JSON, and arrays of the types in TYPES; if that fails, the old file is unchanged."""
    name = check_place(path)
    streams = {key: _as_stream(key, arrays[key]) for key in sorted(arrays, key=lambda key: -arrays[key].dtype.itemsize)}
    checksums = dict.fromkeys(streams, NOTHING.decode())
    header = _header(document, streams, checksums)
    with replacing(name) as temporary, open(temporary, "xb") as file:
        file.write(header)
        for key, (dtype, shape, parts) in streams.items():
            digest, size = sha256(), 0
            for part in parts:
                values = _bytes(np.ascontiguousarray(part, dtype))
                digest.update(values)
                file.write(values)
                size += len(values)
            if size != prod(shape) * dtype.itemsize:
                raise ValueError(f"array {key!r} came as {size} bytes; its shape is {shape}")
            checksums[key] = digest.hexdigest()
        file.seek(0)
        file.write(_header(document, streams, checksums))  # as long as the first: all checksums have the same length


def _as_stream(name: str, array: Array | Stream) -> Stream:
    little = array.dtype.newbyteorder("<")
    if little not in CODES:
        raise StorageError(f"array {name!r} has type {array.dtype}, which a file cannot hold; {', '.join(TYPES)} can")
    return Stream(little, array.shape, array.parts if isinstance(array, Stream) else [array])


def read(path: Path, *, mapped: bool = False, ranges: Mapping[str, slice] | None = None) -> Contents:
    """Read a file, every byte of which is covered by a checksum.

    `mapped` keeps large arrays out of memory: it maps copies of them, read-only, that no other process can change or
    cut short. `ranges` reads these entries of these arrays and nothing else; their checksums cannot be checked then.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise MissingStorageError(f"{name}: there is no such file")
    if not os.path.isfile(name):
        raise StorageError(f"{name}: is a {'folder; name the file in it' if os.path.isdir(name) else 'device'}")
    try:
        with _reporting(name, "cannot be read", COPIED if mapped else ""), open(name, "rb") as stream:
            return _read(name, stream, mapped, ranges)
    except MemoryError as error:
        raise StorageError(f"{name}: does not fit into the memory of this machine") from error


def open_as(kind: str, source: Path | Contents, version: int) -> Contents:
    """Read a file, or take contents that were read, of one kind ("model", "checkpoint", …) and no later version."""
    contents = source if isinstance(source, Contents) else read(source)
    found, number = contents.value("kind", str), contents.value("version", int)
    if found != kind:
        models = "model", "encoder model", "item-item model", "ridge model", "coupled model", "average", "blend"
        remedy = dict.fromkeys(models, "nbmf.load(path) reads it")
        remedy |= {"checkpoint": "fit(X, resume=path) resumes from it", "counts": "nbmf.open_counts(path) reads it"}
        other = f"is {_one(found)}, not {_one(kind)}; {remedy.get(found, 'name another file')}"
        raise StorageError(f"{contents.path}: {other}")
    if not 1 <= number <= version:
        later = f"is {_one(kind)} of format version {number}; this nbmf reads versions up to {version}"
        raise StorageError(f"{contents.path}: {later}, so install a newer nbmf")
    return contents


def _one(kind: str) -> str:
    if kind == "counts":
        return "a file of counts"
    return f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"


def seal(path: Path) -> str | None:
    """Return the checksum in the header, which identifies all contents, unchecked; None if nbmf did not write it."""
    try:
        with open(path, "rb") as stream:
            opening = stream.read(LENGTH_BYTES + len(START) + DIGITS)
    except OSError:
        return None
    return opening[-DIGITS:].decode("ascii", "replace") if opening[LENGTH_BYTES:].startswith(START) else None


def check_place(path: Path) -> str:
    """Return the name of the file to write, with links followed, or raise if no file can be written there."""
    name = os.path.realpath(path)
    folder = os.path.dirname(name)
    if os.path.isdir(name):
        raise StorageError(f"{os.fspath(path)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise StorageError(f"{os.fspath(path)}: there is no folder {folder}; make it first")
    return name


def check_writable(path: Path) -> str:
    """Do as check_place, and try to make a file there, so that no long fit ends without a place for its model."""
    name = check_place(path)
    with writing(name), tempfile.TemporaryFile(dir=os.path.dirname(name)):
        return name


def remove_leftovers(path: Path) -> None:
    """Remove the files that killed writers of this one left beside it; nobody else may be writing it."""
    with suppress(OSError):
        for other in leftovers(os.path.realpath(path), "unfinished", 16):
            os.unlink(other)


def leftovers(name: str, kind: str, n_letters: int) -> list[str]:
    """Return the files or folders beside `name` that are named after it, with a kind and random letters at the end."""
    folder, base = os.path.split(name)
    start = f".{base}.{kind}-"
    names = (other for other in os.listdir(folder) if other.startswith(start) and len(other) == len(start) + n_letters)
    return [os.path.join(folder, other) for other in names]


@contextmanager
def replacing(name: str) -> Iterator[str]:
    """Yield the name of a new file beside `name`, which replaces it once it is safely on disk, or is removed."""
    folder, base = os.path.split(name)
    temporary = os.path.join(folder, f".{base}.unfinished-{secrets.token_hex(8)}")
    with writing(name):
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
    with _reporting(name, "is written, but a power cut may undo it"):
        _sync_folder(folder)


def writing(name: str) -> AbstractContextManager[None]:
    """Report every OSError as a failure to write a file; NumPy's for a full disk names neither cause nor place."""
    return _reporting(name, "cannot be written", "; what was there is unchanged. {} {}, or write elsewhere")


@contextmanager
def _reporting(name: str, problem: str, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        do = "Allow writing to" if error.errno in (EACCES, EPERM, EROFS) else "Make room in"
        way_out = remedy.format(do, os.path.dirname(name))
        raise StorageError(f"{name}: {problem} ({error.strerror or error}){way_out}") from error


def _sync_folder(folder: str) -> None:
    """Force the new name to disk; Windows has no way to do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(values: Array) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _header(document: Mapping[str, Any], streams: Mapping[str, Stream], checksums: dict[str, str]) -> bytes:
    """Length of the header, and the header with its checksum."""
    text = _json({"document": document, "sha256": checksums})
    listed: dict[str, Any] = {"__metadata__": {"sha256": NOTHING.decode(), "nbmf": text}}
    end = 0
    for name, (dtype, shape, _) in streams.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        listed[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    header = _json(listed).encode()
    header += b" " * (-len(header) % 8)  # so that the arrays are aligned
    header = len(header).to_bytes(LENGTH_BYTES, "little") + header
    place = LENGTH_BYTES + len(START)
    return header[:place] + sha256(header).hexdigest().encode() + header[place + DIGITS :]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _read(name: str, stream: BufferedReader, mapped: bool, ranges: Mapping[str, slice] | None) -> Contents:
    size = os.fstat(stream.fileno()).st_size
    opening = stream.read(LENGTH_BYTES + len(START))
    if opening[LENGTH_BYTES:] != START:
        raise StorageError(f"{name}: is not a file of nbmf, or its beginning is damaged; model.save(path) writes one")
    length = int.from_bytes(opening[:LENGTH_BYTES], "little")
    if not len(START) + DIGITS <= length <= size - LENGTH_BYTES:
        raise StorageError(f"{name}: is damaged or cut short (it has {size} bytes); fetch or write it again")
    rest = stream.read(length - len(START))
    if sha256(opening + NOTHING + rest[DIGITS:]).hexdigest().encode() != rest[:DIGITS]:
        raise StorageError(f"{name}: is damaged: its header does not match its checksum; fetch or write it again")
    contents, checksums, listed = _parse(name, START + rest)
    place = 0
    for key, (kind, shape, start, stop) in listed.items():
        n_entries = prod(shape) if len(shape) <= 2 and max(shape, default=0) <= size else -1
        if start != place or stop - start != np.dtype(kind).itemsize * n_entries:
            raise contents.fault(f"its array {key!r} does not lie where the header says")
        if LENGTH_BYTES + length + stop > size:
            raise StorageError(f"{name}: is cut short (it has {size} bytes); fetch or write it again")
        place = stop
        if ranges is not None:
            stream.seek(LENGTH_BYTES + length + start)
            contents.arrays.update({key: _some(name, stream, kind, prod(shape), ranges[key])} if key in ranges else {})
            continue
        values, checksum = _take(stream, kind, shape, mapped)
        if checksum != checksums.get(key):
            raise StorageError(f"{name}: is damaged: {key!r} does not match its checksum; fetch or write it again")
        contents.arrays[key] = values.astype(values.dtype.newbyteorder("="), copy=False)
    if LENGTH_BYTES + length + place != size:
        raise StorageError(f"{name}: is damaged: {size - LENGTH_BYTES - length - place} bytes follow its end")
    return contents


def _take(stream: BufferedReader, kind: str, shape: tuple[int, ...], mapped: bool) -> tuple[Array, str]:
    """Load the next array of the stream or map a copy of it, and compute its checksum."""
    size, digest = prod(shape) * np.dtype(kind).itemsize, sha256()
    if not mapped or size <= IN_MEMORY:
        values = np.empty(shape, kind)
        stream.readinto(_bytes(values))
        digest.update(_bytes(values))
        values.flags.writeable = not mapped
        return values, digest.hexdigest()
    # a map of the file itself would end the process as soon as somebody cut the file short
    with _nameless_file(os.path.dirname(os.path.abspath(stream.name))) as copy:
        for place in range(0, size, CHUNK):
            piece = stream.read(min(CHUNK, size - place))
            digest.update(piece)
            copy.write(piece)
        copy.truncate(size)  # longer if the stream ended early; then its checksum is wrong
        return np.asarray(np.memmap(copy, kind, "r", 0, shape)), digest.hexdigest()


def _nameless_file(folder: str) -> IO[bytes]:
    """Open a temporary file in a folder, or in the system's if that one cannot be written to."""
    try:
        return tempfile.TemporaryFile(prefix="nbmf-", dir=folder)
    except OSError:
        return tempfile.TemporaryFile(prefix="nbmf-")


def _some(name: str, stream: BufferedReader, kind: str, size: int, entries: slice) -> Array:
    """Load some entries of the array of this many that begins here."""
    first, last, _ = entries.indices(size)
    values = np.empty(max(0, last - first), kind)
    stream.seek(first * values.itemsize, os.SEEK_CUR)
    if stream.readinto(_bytes(values)) != values.nbytes:
        raise StorageError(f"{name}: was cut short while it was being read; fetch or write it again")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _parse(name: str, header: bytes) -> tuple[Contents, dict[str, str], dict[str, Any]]:
    """Document, checksums, and type, shape, start and end of each array; anybody can compute a right checksum."""
    try:
        entries, listed = json.loads(header), {}
        inner = json.loads(entries.pop("__metadata__")["nbmf"])
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
        raise Contents(name, {}, {}).fault(f"its header is malformed ({error})") from error
    return Contents(name, document, {}), checksums, listed
