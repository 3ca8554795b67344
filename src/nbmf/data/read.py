"""Read interactions from a file or a data frame: `read_interactions`, the only reader of user files.

DuckDB only splits a text file into lines: its guesses change data silently ('2.5' becomes 3). Our own rules split and
check the lines. At the first sign of trouble, and for quoted fields, Python's csv module reads the file again, slowly.
"""

import csv
import gzip
import os
import re
import shutil
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nbmf.data import START
from nbmf.data.interactions import Interactions
from nbmf.data.sql import (
    MOST_SHOWN,
    Connection,
    Table,
    build_interactions,
    connect,
    frame_table,
    literal,
    parquet_table,
    parts_of,
    path_sql,
)
from nbmf.data.text import (
    LONGEST_LINE,
    BadRowsError,
    MissingFileError,
    ReadError,
    TextFormat,
    columns_in_words,
    decoded,
    is_blank,
    recognise,
    wrong_width,
)

_STARTS = {"parquet": b"PAR1", "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_EXTENSIONS = {".parquet": "parquet", ".gz": "gzip", ".zst": "zstd"}
_BEFORE_BLANK = re.compile(rb"\n(?=\r?\n)")


def read_interactions(
    source: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    count: str | None = None,
    time: str | None = None,
    bad_rows: str = "error",
) -> Interactions:
    """Read interactions from a text or parquet file, or from a data frame.

    Parameters
    ----------
    source : str, path or data frame
        A csv, tsv or txt file (also .gz or .zst), whose delimiter and header are recognised from its first lines; a
        parquet file, or a folder of them with the same columns in any order (names that begin with a dot or _ are
        skipped); "-" for such a file from standard input; or a pandas, polars, pyarrow or other data frame with
        `__arrow_c_stream__`. Blank lines are skipped. Counts may be written as 100000, 100000.0 or 1e+05.
    user, item, count : str, optional
        Names of the columns. By default they are recognised by common names (user_id, song, plays, …), or by position
        in a file without a header. Without a count column each row counts 1.
    time : str, optional
        Name of the column with the time of each row, which is needed for splits by time. Times are all numbers or all
        dates; in text, dates are ISO (2017-01-31, 2017-01-31T20:15:00.5), and offsets (Z, +02:00) become UTC.
    bad_rows : "error" or "skip"
        Whether a row that cannot be used, such as one with a negative or missing count, is an error or is left out
        with a warning that counts such rows and shows the first of them.

    Returns
    -------
    Interactions
        Ids are sorted. They are int64 if all are integers (in text: written as plain integers), else str objects,
        unchanged: '007' stays '007'. Repeated pairs are added up and counted in `n_repeated`; a count of 0 keeps its
        ids. `reading` says which columns were used.

    Raises
    ------
    ReadError
        A ValueError that names the file, the line, the value and the remedy. Nothing is dropped or converted silently.

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
    if bad_rows not in ("error", "skip"):
        raise ValueError(f"bad_rows is {bad_rows!r}; it must be 'error' or 'skip'")
    named = {"user": user, "item": item, "count": count} | ({} if time is None else {"time": time})
    skipped: list[str] | None = [] if bad_rows == "skip" else None
    try:
        data = read_table(source, named, build_interactions, skipped=skipped)
    except BadRowsError as error:
        raise BadRowsError(f"{error}; bad_rows='skip' leaves such rows out") from None
    if skipped:
        warnings.warn(skipped[0], stacklevel=2)
    return data


Built = TypeVar("Built")
Build = Callable[["Connection", Table, int | None], Built]
"""Makes something of a connection, a table and the number of rows it must have, if that is known."""


def read_table(
    source: Any,
    named: dict[str, str | None],
    build: Build[Built],
    memory: int | None = None,
    folder: str | None = None,
    skipped: list[str] | None = None,
) -> Built:
    """Open a source as a table and return what `build` makes of it.

    Parameters
    ----------
    named : dict
        Column names by role, or None to recognise them.
    memory, folder
        Most bytes that the database takes, and where it puts what does not fit.
    skipped : list, optional
        Rows that cannot be used are skipped, and a sentence about them is added to this list. By default they are an
        error.
    """
    if hasattr(source, "__arrow_c_stream__"):
        with connect("data frame", memory, folder) as connection:
            return build(connection, frame_table(connection, source, named)._replace(skipped=skipped), None)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"cannot read interactions from a {type(source).__name__}; give a path or a data frame")
    if source != "-":
        path = os.fsdecode(source)
        return _read_file(path, path, named, build, memory, folder, skipped)
    with tempfile.TemporaryDirectory(prefix="nbmf-", dir=folder) as place:
        path = os.path.join(place, "input")  # a copy, as it is read more than once
        with open(0, "rb", closefd=False) as stream, open(path, "wb") as copy:
            shutil.copyfileobj(stream, copy)
        return _read_file(path, "standard input", named, build, memory, folder, skipped)


def _read_file(
    path: str,
    name: str,
    named: dict[str, str | None],
    build: Build[Built],
    memory: int | None,
    folder: str | None,
    skipped: list[str] | None,
) -> Built:
    compression, changed = _compression(path, name), _change_times(path)
    with connect(name, memory, folder) as connection:
        if compression == "parquet":
            data = build(connection, parquet_table(connection, path, name, named)._replace(skipped=skipped), None)
        else:
            data = _TextFile(connection, path, name, compression, skipped).read(named, build)
    if _change_times(path) != changed:  # it is read more than once
        raise ReadError(f"{name}: changed while it was being read; try again when it is complete")
    return data


def _change_times(path: str) -> list[int]:
    parts = parts_of(path) if os.path.isdir(path) else []
    return [os.stat(each).st_mtime_ns for each in (path, *parts)]


def _compression(path: str, name: str) -> str:
    """Return "parquet", "gzip", "zstd" or "none", by the first bytes of the file, with which its name must agree."""
    if not os.path.exists(path):
        raise MissingFileError(f"{name}: there is no such file")
    if os.path.isdir(path):
        return "parquet"
    if not os.path.isfile(path):
        raise ReadError(f"{name}: is a device; name one file")
    with open(path, "rb") as stream:
        start = stream.read(8 + len(START))
    if not start:
        raise ReadError(f"{name}: is empty (0 bytes)")
    if start.endswith(START):
        raise ReadError(f"{name}: was written by nbmf; nbmf.open_counts(path) opens counts, nbmf.load(path) a model")
    if start.startswith(b"PK\3\4"):
        raise ReadError(f"{name}: is a zip archive; unpack it and name the file inside")
    found = next((kind for kind, magic in _STARTS.items() if start.startswith(magic)), "none")
    promised = _EXTENSIONS.get(os.path.splitext(path)[1].lower(), found)
    if promised != found:
        raise ReadError(f"{name}: is damaged or misnamed: it does not start like a {promised} file")
    return found


class _TextFile(NamedTuple):
    connection: Connection
    path: str
    name: str  # in messages
    compression: str
    skipped: list[str] | None  # as in `read_table`

    def read(self, named: dict[str, str | None], build: Build[Built]) -> Built:
        import duckdb  # noqa: PLC0415 (slow to import)

        n_lines = self.check()
        with closing(self.lines()) as lines:
            text_format = recognise(self.name, lines, named)
        try:
            return build(self.connection, *self.fast_table(text_format, n_lines))
        except (ReadError, duckdb.Error) as error:
            hopeless = duckdb.InterruptException, duckdb.OutOfMemoryException
            if isinstance(error, hopeless) or "No space left" in str(error):
                raise
            return self.read_carefully(text_format, build)  # names the fault, or finds nothing wrong

    def open_bytes(self) -> Any:
        return gzip.open(self.path) if self.compression == "gzip" else open(self.path, "rb")

    def check(self) -> int | None:
        """Check that the file is complete, which DuckDB does not, and count its lines without empty ones."""
        n_lines, last = 0, b"\n"
        try:
            if self.compression == "zstd":
                _check_zstd_frames(self.path)
                return None
            with self.open_bytes() as stream:
                while block := stream.read(1 << 20):
                    text = last + block
                    n_lines += block.count(b"\n")
                    if b"\n\n" in text or b"\n\r\n" in text:
                        n_lines -= len(_BEFORE_BLANK.findall(text))
                    last = text[-2:] if text.endswith(b"\n\r") else text[-1:]
        except (EOFError, gzip.BadGzipFile, zlib.error, struct.error) as error:
            raise ReadError(f"{self.name}: is damaged or cut short ({error}); fetch or pack it again") from error
        return n_lines + (last != b"\n")

    def raw_lines(self) -> Generator[bytes]:
        if self.compression != "zstd":
            with self.open_bytes() as stream:
                yield from iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
            return
        result = self.connection.cursor().execute(f"SELECT line FROM {self.lines_sql()}")
        while batch := result.fetchmany(1000):
            for (line,) in batch:
                if line and line.count('"') % 2:  # DuckDB has dropped the bytes that ended the line
                    raise ReadError(f"{self.name}: has line breaks inside quotes; decompress it, then read it")
                yield (line or "").encode() + b"\n"

    def lines(self) -> Generator[str]:
        with closing(self.raw_lines()) as raw_lines:  # or the file stays open while an error is handled
            yield from decoded(self.name, raw_lines)

    def lines_sql(self, skip: bool = False) -> str:
        # One column: no line contains the delimiter, or it is an error and the file is read carefully.
        # No new_line option: with it, DuckDB 2.0 silently reads nothing from a file with CRLF.
        return (
            f"read_csv({path_sql(self.path)}, columns={{'line': 'VARCHAR'}}, auto_detect=false, header=false, "
            f"skip={skip:d}, delim='\x1f', quote='', escape='', comment='', compression='{self.compression}', "
            f"hive_partitioning=false, strict_mode=true, null_padding=false, ignore_errors=false, "
            f"max_line_size={LONGEST_LINE})"
        )

    def fast_table(self, text_format: TextFormat, n_lines: int | None) -> tuple[Table, int | None]:
        """Return the table by DuckDB and the rows it must have; lines that need the careful way have no user."""
        has_header = bool(text_format.header)
        n_rows = None if n_lines is None else n_lines - has_header
        lines = f"{self.lines_sql(skip=has_header)} WHERE trim(line, ' \t') <> ''"  # of an empty line it is NULL
        relation = f"(SELECT line, string_split(line, '{text_format.delimiter}') AS cell FROM {lines})"
        columns = {role: (f"cell[{k + 1}]", "TEXT") for role, k in text_format.columns.items()}
        sound = f"len(cell) = {text_format.n_columns} AND NOT contains(line, '\"') AND NOT contains(line, chr(0))"
        sound += f" AND cell <> [{', '.join(map(literal, text_format.header))}]::VARCHAR[]"
        columns["user"] = (f"CASE WHEN {sound} THEN {columns['user'][0]} END", "TEXT")
        return Table(self.name, relation, columns, reading=_columns_of(text_format)), n_rows

    def read_carefully(self, text_format: TextFormat, build: Build[Built]) -> Built:
        """Read with the csv module; rows that cannot be used are skipped, or are an error that names the first."""
        columns = {role: (f'"{role}"', "TEXT") for role in text_format.columns}
        declared = ", ".join(f"{name} TEXT" for name, _ in columns.values())
        self.connection.execute(f"CREATE TEMP TABLE careful (line BIGINT, fault TEXT, {declared})")
        ends: list[ReadError] = []
        records = self.records(text_format, ends)
        while batch := list(islice(records, 100_000)):
            cells = zip(*batch, strict=True)
            self.connection.register("batch", {str(k): np.array(cell, object) for k, cell in enumerate(cells)})
            self.connection.execute("INSERT INTO careful SELECT * FROM batch")
        if ends and self.skipped is not None:
            raise ends[0]
        how: dict[str, Any] = {"fault": "fault", "reading": _columns_of(text_format), "skipped": self.skipped}
        data = build(self.connection, Table(self.name, "careful", columns, "line {}", "line", **how), None)
        if ends:  # the rows before it have no fault, or `build` has named the first of them
            raise ends[0]
        return data

    def records(self, text_format: TextFormat, ends: list[ReadError]) -> Iterator[tuple[Any, ...]]:
        """Yield line number, fault and chosen cells of each row, up to where the file is no table of text any more."""
        delimiter, n_columns, header, columns = text_format
        line, n_faults, awaits_header = 1, 0, True
        with closing(self.lines()) as lines:
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            try:
                for record in reader:
                    fault = "" if len(record) == n_columns else wrong_width(len(record), n_columns)
                    if record == header:
                        fault, awaits_header = "" if awaits_header else "the header again; remove it", False
                    if not is_blank(record, delimiter) and (fault or record != header):
                        yield (line, fault, *("" if fault else record[k] for k in columns.values()))
                        n_faults += bool(fault)
                    if n_faults > MOST_SHOWN and self.skipped is None:
                        return
                    line = reader.line_num + 1
            except ReadError as error:
                ends.append(error)
            except csv.Error as error:
                problem = f"the quotes do not match ({error}); inside quotes, write a quote twice"
                ends.append(ReadError(f"{self.name}, line {line}: {problem}"))


def _columns_of(text_format: TextFormat) -> str:
    if text_format.header:
        return columns_in_words(text_format.columns, text_format.header)
    each = "" if "count" in text_format.columns else "; each row counts 1"
    return f"no header, so {', '.join(text_format.columns)} in this order{each}"


def _check_zstd_frames(path: str) -> None:
    """Walk from block to block, because DuckDB reads a file that was cut short as if it ended there."""
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
