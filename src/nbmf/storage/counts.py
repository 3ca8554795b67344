"""More data than memory: counts go from a file of any size into a compact one, from which fits are run.

The database numbers the ids and spills what does not fit. Then users are taken a range at a time: their rows are added
up, sorted and put behind those of the users before. The compact file is the container of docs/format.md; `open_counts`
leaves its arrays where they are, and the machine fetches what is used.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nbmf.data.interactions import Interactions
from nbmf.data.read import read_table
from nbmf.data.sql import Numbered, Table, number, too_many
from nbmf.storage.codec import CHECKED_AT_A_TIME, pack_ids, unpack_cells, unpack_ids
from nbmf.storage.container import (
    Arrays,
    Contents,
    Path,
    StorageError,
    Stream,
    check_place,
    open_as,
    read,
    remove_leftovers,
    seal,
    write_streams,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VERSION = 1
RANDOM_LETTERS = 8  # that tempfile puts behind the name of a folder
LEAST_MEMORY = 500_000_000
OWN_MEMORY = 250_000_000  # of Python and its packages
BYTES_PER_ROW = 120  # while a range of users is added up
BYTES_PER_TEXT = 64  # of an id, beside its letters
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
    source, user, item, count : as for `nbmf.read_interactions`
    path : of the file to write; it is replaced as a whole or not at all
    min_users_per_item, min_items_per_user : keep items with enough users, then users with enough items, once, as
        `Interactions.filter` does
    memory_limit : what this process may take, in bytes or as "2GB"; the rest goes through temporary files beside `path`

    Returns
    -------
    Interactions whose counts stay in the file, as `nbmf.open_counts(path)` returns them

    Examples
    --------
    >>> import pathlib, tempfile, nbmf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plays = pathlib.Path(folder, "plays.tsv")
    ...     _ = plays.write_text("ann\\tjazz\\t3\\nbob\\tjazz\\t1\\nann\\tfolk\\t12\\n")
    ...     data = nbmf.store_counts(plays, pathlib.Path(folder, "plays.counts"), min_users_per_item=2)
    ...     data
    Interactions(2 users × 1 items, 2 non-zero counts, total 4)
    """
    memory = as_bytes("memory_limit", memory_limit)
    if memory < LEAST_MEMORY:
        needed = LEAST_MEMORY // 10**6
        raise ValueError(f"memory_limit is {memory_limit!r}; Python and the database need {needed} MB at least")
    name = check_place(path)
    if isinstance(source, str | os.PathLike) and os.path.realpath(source) in (name, os.path.dirname(name)):
        raise StorageError(f"{os.fspath(path)}: is, or lies in, what is to be read; write to another place")
    for what, value in (("min_users_per_item", min_users_per_item), ("min_items_per_user", min_items_per_user)):
        if not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{what} is {value!r}; it must be a whole number from 0")
    named = {"user": user, "item": item, "count": count}
    least = (min_users_per_item, min_items_per_user)
    with _working_folder(name) as folder:

        def collect(connection: DuckDBPyConnection, table: Table, n_rows: int | None) -> tuple[Numbered, Spool]:
            found = number(connection, table, n_rows)
            _check_room(table.name, found, memory)
            connection.execute("""
                CREATE OR REPLACE TEMP TABLE pairs AS SELECT users.code AS user, items.code AS item, amount
                FROM rows JOIN users ON user_id = users.id JOIN items ON item_id = items.id""")
            with _writing(name):
                return found, _spool(connection, table, found, folder, (memory - OWN_MEMORY) // (4 * BYTES_PER_ROW))

        # written when the source has been read as a whole, and was the same at the end as at the beginning
        found, spool = read_table(source, named, collect, (memory - OWN_MEMORY) // 2, folder)
        with _writing(name):
            _write(name, found, spool, *least)
    return open_counts(path)


def _check_room(name: str, found: Numbered, memory: int) -> None:
    """Ids are held in memory, and for a while four times."""
    taken = sum(
        sum(map(len, ids)) + BYTES_PER_TEXT * len(ids) if ids.dtype.kind == "O" else ids.nbytes
        for ids in (found.users, found.items)
    )
    needed = OWN_MEMORY + 4 * taken
    if needed > memory:
        raise StorageError(
            f"{name}: the ids of {len(found.users):,} users and {len(found.items):,} items alone need about "
            f"{needed / 1e9:.1f} GB, and memory_limit is {memory / 1e9:.1f} GB; give more, or whole numbers for ids"
        )


@contextmanager
def _working_folder(name: str) -> Iterator[str]:
    """A folder beside the file that is to be written, for what comes in between; named after it and locked."""
    place, base = os.path.split(name)
    prefix = f".{base}.working-"
    _remove_killed(name, prefix)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as folder, _locked(folder):
            yield folder
    except OSError as error:  # those that name nothing in it are of the source, or have been told
        if error.filename is None or not os.fsdecode(error.filename).startswith(os.path.join(place, prefix)):
            raise
        raise _unwritten(name, error) from error


def _remove_killed(name: str, prefix: str) -> None:
    """Remove what writers of this file left beside it when they were killed: their folders are locked no more."""
    place = os.path.dirname(name)
    for other in os.listdir(place):
        if other.startswith(prefix) and len(other) == len(prefix) + RANDOM_LETTERS:
            folder = os.path.join(place, other)
            with suppress(OSError), _locked(folder) as is_left:
                if is_left:
                    shutil.rmtree(folder)
                    remove_leftovers(name)


@contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Lock a folder for as long as this lasts and the process lives; say whether it could be locked."""
    if os.name != "posix":  # elsewhere folders cannot be opened
        yield False
        return
    import fcntl  # noqa: PLC0415

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    except OSError:  # another has locked it, or it lies where nothing can be locked
        is_locked = False
    try:
        yield is_locked
    finally:
        os.close(descriptor)


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Tell whatever fails as a fault of writing; numpy says of a full disk neither that nor where."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _unwritten(name, error) from error


def _unwritten(name: str, error: OSError) -> StorageError:
    return StorageError(
        f"{name}: cannot be written ({error.strerror or error}); what was there is unchanged. Make room in "
        f"{os.path.dirname(name)}, or write elsewhere"
    )


def open_counts(path: Path) -> Interactions:
    """Open a file that `nbmf.store_counts` has written; the counts stay in the file until they are used."""
    if os.path.isfile(path) and not is_counts_file(path):
        remedy = "nbmf.store_counts(source, path) writes one"
        raise StorageError(f"{os.fspath(path)}: is no file of counts, or its beginning is damaged; {remedy}")
    contents = open_as("counts", read(path, mapped=True), VERSION)
    users, items = (unpack_ids(contents, role, contents.value(role, str)) for role in ("users", "items"))
    n_repeated, n_items = contents.value("n_repeated", int), contents.value("n_items", int)
    if n_repeated < 0 or n_items != len(items):
        raise contents.fault(f"it says that it has {n_items} items, of {len(items)}, and {n_repeated} repeated pairs")
    return Interactions(users, items, _mapped_matrix(contents, len(users), len(items)), n_repeated=n_repeated)


def counts_of_users(path: Path, start: int, stop: int) -> sp.csr_array:
    """Return the rows of some users of a file that `open_counts` has found sound; they stay in the file."""
    contents = open_as("counts", read(path, mapped=True, checked=False), VERSION)
    indptr = contents.array("counts.indptr", "i", None)
    cells = slice(int(indptr[start]), int(indptr[stop]))
    data, indices = (contents.array(f"counts.{name}", "iuf", None)[cells] for name in ("data", "indices"))
    n_items = contents.value("n_items", int)
    matrix = sp.csr_array((data, indices, indptr[start : stop + 1] - indptr[start]), shape=(stop - start, n_items))
    matrix.has_canonical_format = True
    return matrix


def as_bytes(name: str, size: int | str) -> int:
    """Return a size in bytes, such as "2GB"; `name` is what it is called where it was given.

    >>> as_bytes("memory_limit", "1.5 GB")
    1500000000
    """
    parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?\s*", str(size).upper())
    if parts is None or parts[2] not in UNITS:
        raise ValueError(f"{name} is {size!r}; give bytes, or a text such as '2GB' or '800MB'")
    return int(float(parts[1]) * UNITS[parts[2]])


@dataclass(frozen=True)
class Spool:
    """The counts on their way: one file each of items and of counts, users one after the other.

    lengths : how many each user has
    users_of_items : how many users each item has
    bounds : the users' ranges that were added up together
    largest : of all counts
    n_pairs : how many pairs of a user and an item there were, those with a count of 0 included
    """

    folder: str
    lengths: NDArray[np.int64]
    users_of_items: NDArray[np.int64]
    bounds: list[int]
    largest: int
    n_pairs: int

    def ranges(self, name: str, dtype: Any) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Go through one of the files, a range of users at a time."""
        with open(os.path.join(self.folder, name), "rb") as stream:
            for start, stop in pairwise(self.bounds):
                size = int(self.lengths[start:stop].sum())
                yield slice(start, stop), np.fromfile(stream, dtype, size)


def _spool(connection: DuckDBPyConnection, table: Table, found: Numbered, folder: str, most_rows: int) -> Spool:
    """Add up the rows of each user and item, a range of users at a time."""
    n_users, n_items = len(found.users), len(found.items)
    per_user = connection.execute("SELECT user, count(*) AS n FROM pairs GROUP BY user").fetchnumpy()
    n_rows = np.zeros(n_users, np.int64)
    n_rows[per_user["user"]] = per_user["n"]
    bounds = _ranges(n_rows, most_rows)
    lengths, users_of_items, largest = np.zeros(n_users, np.int64), np.zeros(n_items, np.int64), 0
    n_pairs = 0
    with open(os.path.join(folder, "items"), "wb") as items, open(os.path.join(folder, "counts"), "wb") as counts:
        for start, stop in pairwise(bounds):
            part = connection.execute(f"""
                SELECT user, item, TRY_CAST(sum(amount) AS BIGINT) AS total FROM pairs
                WHERE user >= {start} AND user < {stop} GROUP BY ALL ORDER BY ALL""").fetchnumpy()
            if np.ma.is_masked(part["total"]):
                k = np.flatnonzero(np.ma.getmaskarray(part["total"]))[0]
                raise too_many(table, found.users[part["user"][k]], found.items[part["item"][k]])
            stored = np.asarray(part["total"]) > 0
            chosen, total = np.asarray(part["item"])[stored], np.asarray(part["total"])[stored]
            lengths += np.bincount(part["user"][stored], minlength=n_users)
            users_of_items += np.bincount(chosen, minlength=n_items)
            n_pairs += len(stored)
            largest = max(largest, int(total.max(initial=0)))
            chosen.astype(np.int32).tofile(items)
            total.astype(np.int64).tofile(counts)
    return Spool(folder, lengths, users_of_items, bounds, largest, n_pairs)


def _ranges(n_rows: NDArray[np.int64], most: int) -> list[int]:
    """Cut the users into ranges of at most so many rows, or of one user."""
    upto, bounds = np.concatenate(([0], np.cumsum(n_rows))), [0]
    while bounds[-1] < len(n_rows):
        stop = int(np.searchsorted(upto, upto[bounds[-1]] + most, side="right")) - 1
        bounds.append(min(max(stop, bounds[-1] + 1), len(n_rows)))
    return bounds


def _write(name: str, found: Numbered, spool: Spool, min_users: int, min_items: int) -> None:
    """Leave out rare items, then users with few of the others, and write what is left."""
    items_kept = spool.users_of_items >= min_users
    left = np.zeros(len(found.users), np.int64)
    for users, items in spool.ranges("items", np.int32):
        rows = np.repeat(np.arange(users.start, users.stop), spool.lengths[users])
        left += np.bincount(rows[items_kept[items]], minlength=len(left))
    users_kept = left >= min_items
    number_of_item = np.cumsum(items_kept, dtype=np.int32) - np.int32(1)
    indptr = np.concatenate(([0], np.cumsum(left[users_kept])))
    index, counted = (np.dtype(np.int32 if largest < 2**31 else np.int64) for largest in (indptr[-1], spool.largest))

    def chosen(file: str, dtype: Any) -> Iterator[NDArray[Any]]:
        for (users, items), (_, values) in zip(spool.ranges("items", np.int32), spool.ranges(file, dtype), strict=True):
            kept = items_kept[items] & np.repeat(users_kept[users], spool.lengths[users])
            yield number_of_item[values[kept]] if file == "items" else values[kept]

    ids: Arrays = {}
    kinds = {"users": pack_ids("users", found.users[users_kept], ids)}
    kinds["items"] = pack_ids("items", found.items[items_kept], ids)
    size = (int(indptr[-1]),)
    streams = {
        "counts.data": Stream(counted, size, chosen("counts", np.int64)),
        "counts.indices": Stream(index, size, chosen("items", np.int32)),
        "counts.indptr": Stream(index, indptr.shape, [indptr]),
    } | {key: Stream(values.dtype, values.shape, [values]) for key, values in ids.items()}
    streams = dict(sorted(streams.items(), key=lambda stream: -stream[1].dtype.itemsize))
    sizes = {"n_repeated": found.n_rows - spool.n_pairs, "n_items": int(items_kept.sum())}
    document = {"kind": "counts", "version": VERSION, **sizes, **kinds}
    write_streams(name, document, streams)


def _mapped_matrix(contents: Contents, n_users: int, n_items: int) -> sp.csr_array:
    """Return the matrix; compiled loops walk over it unchecked, so every entry is checked here, some at a time."""
    data = contents.array("counts.data", "i", None)
    indices, indptr = unpack_cells(contents, "counts", len(data), n_users, n_items)
    if any(data[start : start + CHECKED_AT_A_TIME].min() < 1 for start in range(0, len(data), CHECKED_AT_A_TIME)):
        raise contents.fault("one of its counts is not above 0")
    matrix = sp.csr_array((data, indices, indptr), shape=(n_users, n_items))
    matrix.has_canonical_format = True
    return matrix


def is_counts_file(path: Path) -> bool:
    """Whether a file begins like one that nbmf has written; what is in it shows when it is opened."""
    return seal(path) is not None
