"""Data larger than memory: `store_counts` turns a source of any size into a compact file, from which models are fitted.

The database numbers the ids and spills to disk. Then one range of users at a time is added up, sorted and appended. The
compact file is the container of docs/format.md; `open_counts` maps a copy of its arrays that no other process reaches.
A map of the file itself would end the process if the file were cut short, and show other counts if it were changed.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.interactions import Interactions
from nbmf.data.read import read_table
from nbmf.data.sql import Connection, NumberedIds, Table, check_sums, number_ids
from nbmf.storage import container
from nbmf.storage.codec import CHECKED_AT_A_TIME, canonical_csr, pack_ids, unpack_ids, unpack_matrix
from nbmf.storage.container import Array, Arrays, Path, StorageError, Stream

VERSION = 1
RANDOM_LETTERS = 8  # that tempfile adds to the name of a folder
LEAST_MEMORY = 500_000_000
OWN_MEMORY = 250_000_000  # of Python and its packages
BYTES_PER_ROW = 120  # while a range of users is added up
BYTES_PER_TEXT = 64  # of an id, besides its letters
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def store_counts(
    source: Any,
    path: Path,
    *,
    user: str | None = None,
    item: str | None = None,
    count: str | None = None,
    min_users_per_item: int = 0,
    min_items_per_user: int = 0,
    memory_limit: int | str = "2GB",
) -> Interactions:
    """Read interactions that may be larger than memory, filter them, and write them to a compact file.

    Parameters
    ----------
    source : str, path or data frame
        As for `nbmf.read_interactions`.
    path : str or path
        File to write; it is replaced as a whole or not at all.
    user, item, count : str, optional
        Names of the columns, as for `nbmf.read_interactions`.
    min_users_per_item, min_items_per_user : int
        Remove items with fewer users, then users with fewer items, once, like `Interactions.filter`.
    memory_limit : int or str
        What this process may take, in bytes or as "2GB". The rest goes through temporary files beside `path`.

    Returns
    -------
    Interactions
        As `nbmf.open_counts` returns it.

    Examples
    --------
    >>> import pathlib, tempfile, nbmf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plays = pathlib.Path(folder, "plays.tsv")
    ...     _ = plays.write_text("ann\\tjazz\\t3\\nbob\\tjazz\\t1\\nann\\tfolk\\t12\\n")
    ...     data = nbmf.store_counts(plays, pathlib.Path(folder, "plays.counts"), min_users_per_item=2)
    ...     data
    Interactions(2 users × 1 item, 2 non-zero counts, total 4)
    """
    memory = as_bytes("memory_limit", memory_limit)
    if memory < LEAST_MEMORY:
        needed = LEAST_MEMORY // 10**6
        raise ValueError(f"memory_limit is {memory_limit!r}; Python and the database need at least {needed} MB")
    name = container.check_place(path)
    if isinstance(source, str | os.PathLike) and os.path.realpath(source) in (name, os.path.dirname(name)):
        raise StorageError(f"{os.fspath(path)}: is, or lies in, the source to be read; write to another place")
    for what, value in (("min_users_per_item", min_users_per_item), ("min_items_per_user", min_items_per_user)):
        if not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{what} is {value!r}; it must be a whole number from 0")
    most_rows = (memory - OWN_MEMORY) // (4 * BYTES_PER_ROW)
    with _working_folder(name) as folder:

        def build(connection: Connection, table: Table, n_rows: int | None) -> tuple[NumberedIds, Spool]:
            found = number_ids(connection, table, n_rows)
            _check_room(table.name, found, memory)
            connection.execute("CREATE OR REPLACE TEMP TABLE pairs AS SELECT user, item, amount FROM coded")
            with container.writing(name):
                return found, _spool(connection, table, found, folder, most_rows)

        named = {"user": user, "item": item, "count": count}
        # write only after the whole source has been read and found unchanged
        found, spool = read_table(source, named, build, (memory - OWN_MEMORY) // 2, folder)
        with container.writing(name):
            _write(name, found, spool, min_users_per_item, min_items_per_user)
    return open_counts(path)


def _check_room(name: str, found: NumberedIds, memory: int) -> None:
    """Refuse ids that do not fit into memory, where up to four copies of them are held."""
    both = found.users, found.items
    taken = [sum(map(len, i)) + BYTES_PER_TEXT * len(i) if i.dtype.kind == "O" else i.nbytes for i in both]
    needed = OWN_MEMORY + 4 * sum(taken)
    if needed > memory:
        ids = f"the ids of {len(found.users):,} users and {len(found.items):,} items alone need about"
        limit = f"memory_limit is {memory / 1e9:.1f} GB; raise it, or use whole numbers for ids"
        raise StorageError(f"{name}: {ids} {needed / 1e9:.1f} GB, and {limit}")


@contextmanager
def _working_folder(name: str) -> Iterator[str]:
    """Make a locked folder for temporary files beside the file to be written, and remove those of killed writers."""
    place, base = os.path.split(name)
    prefix = f".{base}.working-"
    for other in container.leftovers(name, "working", RANDOM_LETTERS):
        with suppress(OSError), _locked(other) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(other)
                container.remove_leftovers(name)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as folder, _locked(folder):
            yield folder
    except OSError as error:  # others are errors of the source, or have been reported
        if error.filename is None or not os.fsdecode(error.filename).startswith(os.path.join(place, prefix)):
            raise
        with container.writing(name):
            raise


@contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Lock a folder for the duration of the block or the life of the process; yield whether it could be locked."""
    if os.name != "posix":  # elsewhere folders cannot be opened
        yield False
        return
    import fcntl  # noqa: PLC0415

    descriptor, is_locked = os.open(folder, os.O_RDONLY), False
    try:
        with suppress(OSError):  # locked by another process, or on a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        yield is_locked
    finally:
        os.close(descriptor)


def open_counts(path: Path) -> Interactions:
    """Open a file that `nbmf.store_counts` wrote.

    Parameters
    ----------
    path : str or path
        The file. All of it is checked once and copied: to memory or, if it is large, to a temporary file beside it.
        So nothing that happens to the file afterwards changes the counts.

    Returns
    -------
    Interactions
        Large counts are on disk and loaded as they are used.
    """
    if os.path.isfile(path) and not is_counts_file(path):
        remedy = "nbmf.store_counts(source, path) writes one"
        raise StorageError(f"{os.fspath(path)}: is not a file of counts, or its beginning is damaged; {remedy}")
    contents = container.open_as("counts", container.read(path, mapped=True), VERSION)
    users, items = (unpack_ids(contents, role, contents.value(role, str)) for role in ("users", "items"))
    n_repeated, n_items = contents.value("n_repeated", int), contents.value("n_items", int)
    if n_repeated < 0 or n_items != len(items):
        raise contents.fault(f"it claims {n_items} items but has {len(items)}, or {n_repeated} repeated pairs")
    data = contents.array("counts.data", "i", None)
    if any(data[start : start + CHECKED_AT_A_TIME].min() < 1 for start in range(0, len(data), CHECKED_AT_A_TIME)):
        raise contents.fault("one of its counts is not above 0")
    matrix = unpack_matrix(contents, "counts", data, (len(users), len(items)))
    return Interactions(users, items, matrix, n_repeated=n_repeated)


def counts_of_users(path: Path, start: int, stop: int) -> sp.csr_array:
    """Return the rows of a range of users, unchecked: compare their `fingerprint` with that of the same rows before."""
    rows, cells = "counts.indptr", ("counts.data", "counts.indices")
    contents = container.read(path, ranges={rows: slice(start, stop + 1)})
    indptr = contents.array(rows, "i", stop - start + 1)
    wanted = slice(*np.maximum(indptr[[0, -1]], 0).tolist())
    contents = container.open_as("counts", container.read(path, ranges=dict.fromkeys(cells, wanted)), VERSION)
    data, indices = (contents.array(name, "i", wanted.stop - wanted.start) for name in cells)
    return canonical_csr(data, indices, indptr - indptr[0], (stop - start, contents.value("n_items", int)))


def fingerprint(matrix: sp.csr_array, start: int = 0, stop: int | None = None) -> str:
    """Return a checksum of whole counts of users and their places, whatever integers hold them; copy no counts."""
    digest, ends = sha256(), matrix.indptr[start : matrix.shape[0] + 1 if stop is None else stop + 1]
    cells = slice(ends[0], ends[-1])
    for values in (matrix.data[cells], matrix.indices[cells], np.diff(ends)):
        for place in range(0, len(values), CHECKED_AT_A_TIME):
            digest.update(values[place : place + CHECKED_AT_A_TIME].astype("<i8").data)
    return digest.hexdigest()


def as_bytes(name: str, size: int | str) -> int:
    """Return a size such as "2GB" in bytes; `name` is the setting to blame in an error.

    >>> as_bytes("memory_limit", "1.5 GB")
    1500000000
    """
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", str(size).upper())
    if parts is None or parts[2] not in UNITS:
        raise ValueError(f"{name} is {size!r}; give bytes, or a text such as '2GB' or '800MB'")
    return int(float(parts[1]) * UNITS[parts[2]])


class Spool(NamedTuple):
    """Counts in temporary files."""

    files: list[str]  # one matrix per range of users
    users_of_items: NDArray[np.int64]  # number of users per item
    largest: int  # of all counts
    n_pairs: int  # pairs of a user and an item, including those with a count of 0


def _spool(connection: Connection, table: Table, found: NumberedIds, folder: str, most_rows: int) -> Spool:
    """Add up the counts of each pair, one range of users at a time."""
    n_users, n_items = len(found.users), len(found.items)
    per_user = connection.execute("SELECT user, count(*) AS n FROM pairs GROUP BY user").fetchnumpy()
    n_rows = np.zeros(n_users, np.int64)
    n_rows[per_user["user"]] = per_user["n"]
    files, users_of_items, largest, n_pairs = [], np.zeros(n_items, np.int64), 0, 0
    for start, stop in pairwise(_ranges(n_rows, most_rows)):
        part = connection.execute(f"""
            SELECT user, item, TRY_CAST(sum(amount) AS BIGINT) AS total FROM pairs
            WHERE user >= {start} AND user < {stop} GROUP BY ALL ORDER BY ALL""").fetchnumpy()
        check_sums(table, found, *part.values())
        stored = np.asarray(part["total"]) > 0
        users, items, total = (np.asarray(values)[stored] for values in part.values())
        indptr = np.searchsorted(users, np.arange(start, stop + 1))
        files.append(os.path.join(folder, f"{start}.npz"))
        sp.save_npz(files[-1], sp.csr_array((total, items, indptr), shape=(stop - start, n_items)), compressed=False)
        users_of_items += np.bincount(items, minlength=n_items)
        n_pairs += len(stored)
        largest = max(largest, int(total.max(initial=0)))
    return Spool(files, users_of_items, largest, n_pairs)


def _ranges(n_rows: NDArray[np.int64], most: int) -> list[int]:
    """Cut the users into ranges of at most so many rows, or of one user."""
    upto, bounds = np.concatenate(([0], np.cumsum(n_rows))), [0]
    while bounds[-1] < len(n_rows):
        stop = int(np.searchsorted(upto, upto[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(stop, bounds[-1] + 1), len(n_rows)))
    return bounds


def _write(name: str, found: NumberedIds, spool: Spool, min_users: int, min_items: int) -> None:
    """Leave out rare items, then users with few of the others, and write the rest."""
    items_kept = spool.users_of_items >= min_users
    lengths = [np.diff(matrix[:, items_kept].indptr) for matrix in map(sp.load_npz, spool.files)]
    users_kept = [n_items >= min_items for n_items in lengths]
    indptr = np.concatenate(([0], np.cumsum(np.concatenate(lengths)[np.concatenate(users_kept)])))
    index, counted = (np.dtype(np.int32 if largest < 2**31 else np.int64) for largest in (indptr[-1], spool.largest))

    def chosen(part: str) -> Iterator[NDArray[Any]]:
        for file, kept in zip(spool.files, users_kept, strict=True):
            yield getattr(sp.load_npz(file)[kept][:, items_kept], part)

    ids: Arrays = {}
    kinds = {"users": pack_ids("users", found.users[np.concatenate(users_kept)], ids)}
    kinds["items"] = pack_ids("items", found.items[items_kept], ids)
    size = (int(indptr[-1]),)
    counts: dict[str, Array | Stream] = {
        "counts.data": Stream(counted, size, chosen("data")),
        "counts.indices": Stream(index, size, chosen("indices")),
        "counts.indptr": indptr.astype(index),
    }
    sizes = {"n_repeated": found.n_rows - spool.n_pairs, "n_items": int(items_kept.sum())}
    container.write(name, {"kind": "counts", "version": VERSION, **sizes, **kinds}, counts | ids)


def is_counts_file(path: Path) -> bool:
    """Whether a file begins like one that nbmf wrote; opening it shows whether it holds counts."""
    return container.seal(path) is not None
