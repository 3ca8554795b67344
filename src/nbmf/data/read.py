"""Read who took what, how often, from a file or a data frame: `read_interactions`, the only reader of user files.

DuckDB does the bulk, but it only cuts a text file into lines: each line is split and checked by our own rules, since
its guesses change data in silence ('2.5' becomes 3, a blank line is dropped). At the first sign of trouble, and for
quoted fields, the file is read again by Python's csv module, which is slow but knows the number of every line.
"""

from __future__ import annotations

import csv
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbmf.data import START
from nbmf.data.interactions import Interactions
from nbmf.data.parquet import parquet_table, parts_of
from nbmf.data.sql import Table, connect, gather, is_interrupted, is_without_room, literal, path_literal, typed_table
from nbmf.data.text import (
    HEAD_LINES,
    LONGEST_LINE,
    Layout,
    MissingFileError,
    ReadError,
    as_text,
    recognise,
    wrong_width,
)

__all__ = ["MissingFileError", "ReadError", "read_interactions"]

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_STARTS = {"parquet": b"PAR1", "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_EXTENSIONS = {".parquet": "parquet", ".gz": "gzip", ".zst": "zstd"}


def read_interactions(
    source: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    count: str | None = None,
    time: str | None = None,
) -> Interactions:
    """Read interactions from a text or parquet file, or from a data frame.

    Parameters
    ----------
    source : path to a csv, tsv, txt (also .gz, .zst) or parquet file, or to a folder of parquet files; or a pandas,
        polars, pyarrow or other data frame with `__arrow_c_stream__`. Delimiter and header of a text file are
        recognised from its first lines. Of a folder all files *.parquet are taken, but hidden ones and those whose
        names begin with _; their columns must be the same, in any order.
    user, item, count : names of the columns; those not given are recognised by common names (user_id, song, plays,
        …), in a file without header by position. Without a count column each row counts 1.
    time : name of the column with the time of each row: numbers, dates or time stamps; in text all numbers, or all ISO
        (2017-01-31, 2017-01-31T20:15:00, to the microsecond). With an offset (Z, +02:00) they are turned into UTC.
        The rows are then kept with their times, for splits by time: `events`. Not given, no time is read.

    Returns
    -------
    Interactions with sorted ids: int64 arrays where they are integers (in a text file, if every one is written as a
    plain integer), else object arrays of str, untouched ('007' stays '007'; one long id does not make all long).
    Repeated pairs are added up and counted in `n_repeated`; a count of 0 keeps its ids. What cannot be taken as it
    stands raises ReadError, a ValueError; nothing is dropped or converted.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "plays.tsv")
    ...     _ = path.write_text("ann\\tjazz\\t3\\nbob\\tjazz\\t1\\nann\\tfolk\\t12\\n")
    ...     data = read_interactions(path)
    >>> data
    Interactions(2 users × 2 items, 3 non-zero counts, total 16)
    >>> data.users
    array(['ann', 'bob'], dtype=object)
    """
    named = {"user": user, "item": item, "count": count} | ({} if time is None else {"time": time})
    found: Interactions = read_table(source, named, gather)
    return found


Collect = Callable[["DuckDBPyConnection", Table, int | None], Any]
"""What is done with a table: it gets the connection, the table, and how many rows must be there, if that is known."""


def read_table(
    source: Any,
    named: dict[str, str | None],
    collect: Collect,
    memory: int | None = None,
    folder: str | None = None,
) -> Any:
    """Find out how a file, a folder of parquet files or a data frame is made, and return what `collect` makes of it.

    named : names of columns, None for those to be recognised
    memory, folder : bytes the database may take before it spills to disk, and where
    """
    if hasattr(source, "__arrow_c_stream__"):
        with connect("data frame", memory, folder) as connection:
            # only its stream: of the frames that it knows, DuckDB guesses types in ways of its own
            connection.register("frame", SimpleNamespace(__arrow_c_stream__=source.__arrow_c_stream__))
            connection.execute("CREATE TEMP TABLE loaded AS SELECT * FROM frame")
            return collect(connection, typed_table(connection, "data frame", "loaded", "rowid", named), None)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"cannot read interactions from a {type(source).__name__}; give a path or a data frame")
    path = os.fsdecode(source)
    packing, changed = _packing(path), _times(path)
    with connect(path, memory, folder) as connection:
        if packing == "parquet":
            data = collect(connection, parquet_table(connection, path, named), None)
        else:
            data = _TextFile(connection, path, packing).read(named, collect)
    if _times(path) != changed:  # it is gone through more than once
        raise ReadError(f"{path}: changed while it was being read; try again when it is complete")
    return data


def _times(path: str) -> list[int]:
    """When the file, or the folder and each of its parts, was changed."""
    parts = parts_of(path) if os.path.isdir(path) else []
    return [os.stat(each).st_mtime_ns for each in (path, *parts)]


def _packing(path: str) -> str:
    """How the file is packed, by its first bytes; a name that promises something else is an error."""
    if not os.path.exists(path):
        raise MissingFileError(f"{path}: there is no such file")
    if os.path.isdir(path):
        return "parquet"
    if not os.path.isfile(path):
        raise ReadError(f"{path}: is a device; name one file")
    with open(path, "rb") as stream:
        start = stream.read(8 + len(START))
    if not start:
        raise ReadError(f"{path}: is empty (0 bytes)")
    if start.endswith(START):
        raise ReadError(f"{path}: was written by nbmf; nbmf.open_counts(path) opens counts, nbmf.load(path) a model")
    if start.startswith(b"PK\3\4"):
        raise ReadError(f"{path}: is a zip archive; unpack it and name the file inside")
    packing = next((packing for packing, bytes_ in _STARTS.items() if start.startswith(bytes_)), "none")
    promised = _EXTENSIONS.get(os.path.splitext(path)[1].lower(), packing)
    if promised != packing:
        raise ReadError(f"{path}: is damaged or misnamed: it does not start like a {promised} file")
    return packing


class _TextFile(NamedTuple):
    connection: DuckDBPyConnection
    path: str
    packing: str

    def read(self, named: dict[str, str | None], collect: Collect) -> Any:
        n_lines = self.check()
        with closing(self.lines()) as lines:
            layout = recognise(self.path, list(islice(lines, HEAD_LINES)), named)
        try:
            return collect(self.connection, *self.fast_table(layout, n_lines))
        except (OSError, MemoryError):  # a second try would find as little
            raise
        except Exception as error:  # whatever else it was, a careful look names it, or finds nothing wrong
            if is_without_room(error) or is_interrupted(error):
                raise
            return self.read_carefully(layout, collect)

    def open_bytes(self) -> Any:
        return gzip.open(self.path) if self.packing == "gzip" else open(self.path, "rb")

    def check(self) -> int | None:
        """Check checksums and ends, which DuckDB does not; count the lines up to the last that is not blank."""
        n_ends, tail = 0, b""
        try:
            if self.packing == "zstd":
                _check_zstd_frames(self.path)
                return None
            with self.open_bytes() as stream:
                while block := stream.read(1 << 20):
                    n_ends, tail = n_ends + block.count(b"\n"), (tail + block)[-1000:]
        except (EOFError, gzip.BadGzipFile, zlib.error, struct.error) as error:
            raise ReadError(f"{self.path}: is damaged or cut short ({error}); fetch or pack it again") from error
        return n_ends - tail[len(tail.rstrip(b"\r\n")) :].count(b"\n") + 1

    def raw_lines(self) -> Generator[bytes]:
        if self.packing != "zstd":
            with self.open_bytes() as stream:
                yield from iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
            return
        result = self.connection.cursor().execute(f"SELECT line FROM {self.lines_sql()}")
        while batch := result.fetchmany(1000):
            for (line,) in batch:
                if line and line.count('"') % 2:  # the bytes that end the line are lost here
                    raise ReadError(f"{self.path}: has line breaks inside quotes; decompress it, then read it")
                yield (line or "").encode() + b"\n"

    def lines(self) -> Generator[str]:
        """Every line with its end; what is not text is named by line and byte."""
        offset = 0
        with closing(self.raw_lines()) as raw_lines:  # not left open while an error is on its way
            for number, raw in enumerate(raw_lines, 1):
                yield as_text(raw, offset, f"{self.path}, line {number}")
                offset += len(raw)

    def lines_sql(self, skip: bool = False) -> str:
        # One column: no line has the delimiter, or else it is an error and the file is read carefully.
        # No new_line option: with it, DuckDB 2.0 reads nothing from a file with CRLF, in silence.
        return (
            f"read_csv({path_literal(self.path)}, columns={{'line': 'VARCHAR'}}, auto_detect=false, header=false, "
            f"skip={skip:d}, delim='\x1f', quote='', escape='', comment='', compression='{self.packing}', "
            f"hive_partitioning=false, strict_mode=true, null_padding=false, ignore_errors=false, "
            f"max_line_size={LONGEST_LINE})"
        )

    def fast_table(self, layout: Layout, n_lines: int | None) -> tuple[Table, int | None]:
        """The file by DuckDB, and how many rows it must have; a line that needs a careful look has no user."""
        n_rows = None if n_lines is None else n_lines - bool(layout.header)
        blank = "false" if n_lines is None else "line IS NULL"  # one that is not at the end shows in n_rows
        lines = f"{self.lines_sql(skip=bool(layout.header))} WHERE NOT {blank}"
        relation = f"(SELECT line, string_split(line, '{layout.delimiter}') AS cell FROM {lines})"
        columns = {role: (f"cell[{k + 1}]", "TEXT") for role, k in layout.columns.items()}
        sound = f"len(cell) = {layout.width} AND NOT contains(line, '\"') AND NOT contains(line, chr(0))"
        sound += f" AND cell <> [{', '.join(map(literal, layout.header))}]::VARCHAR[]"
        columns["user"] = (f"CASE WHEN {sound} THEN {columns['user'][0]} END", "TEXT")
        return Table(self.path, relation, columns), n_rows

    def read_carefully(self, layout: Layout, collect: Collect) -> Any:
        """Read by the csv module, or raise for the first line at fault."""
        columns = {role: (f'"{role}"', "TEXT") for role in layout.columns}
        declared = ", ".join(f"{name} TEXT" for name, _ in columns.values())
        self.connection.execute(f"CREATE TEMP TABLE careful (line BIGINT, {declared})")
        faults: list[ReadError] = []
        records = self.records(layout, faults)
        while batch := list(islice(records, 100_000)):
            cells = zip(*batch, strict=True)
            self.connection.register("batch", {str(k): np.array(cell, object) for k, cell in enumerate(cells)})
            self.connection.execute("INSERT INTO careful SELECT * FROM batch")
        data = collect(self.connection, Table(self.path, "careful", columns, "line {}", "line"), None)
        if faults:  # the rows before it are sound, or the first that is not has been named
            raise faults[0]
        return data

    def records(self, layout: Layout, faults: list[ReadError]) -> Iterator[tuple[Any, ...]]:
        """Line number and chosen cells of each row, up to the first fault."""
        line, blank = 1, 0
        with closing(self.lines()) as lines:
            reader = csv.reader(lines, delimiter=layout.delimiter, strict=True)
            try:
                for record in reader:
                    if record and (blank or len(record) != layout.width):
                        raise wrong_width(self.path, blank or line, 0 if blank else len(record), layout.width)
                    if not record:
                        blank = blank or line
                    elif record == layout.header and line > 1:
                        raise ReadError(f"{self.path}, line {line}: the header again; remove it")
                    elif record != layout.header:
                        yield (line, *(record[k] for k in layout.columns.values()))
                    line = reader.line_num + 1
            except ReadError as error:
                faults.append(error)
            except csv.Error as error:
                problem = f"the quotes do not match ({error}); inside quotes, write a quote twice"
                faults.append(ReadError(f"{self.path}, line {line}: {problem}"))


def _check_zstd_frames(path: str) -> None:
    """Step from block to block: a file that was cut short would be read as if it ended there."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        while stream.tell() < size:
            (magic,) = struct.unpack("<I", stream.read(4))
            if magic & 0xFFFFFFF0 == 0x184D2A50:  # a skippable frame
                stream.seek(struct.unpack("<I", stream.read(4))[0], os.SEEK_CUR)
                continue
            (flags,) = struct.unpack("B", stream.read(1))
            single = flags >> 5 & 1
            stream.seek((1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6], os.SEEK_CUR)
            block = 0
            while not block & 1:  # the lowest bit marks the last block, the next two its kind
                block = int.from_bytes(struct.unpack("3s", stream.read(3))[0], "little")
                stream.seek(1 if block >> 1 & 3 == 1 else block >> 3, os.SEEK_CUR)
            stream.seek(4 if flags & 4 else 0, os.SEEK_CUR)
        if stream.tell() > size:
            raise EOFError("it ends inside a frame")
