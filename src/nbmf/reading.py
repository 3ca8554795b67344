"""Read who took what, how often, from a file or a data frame: `read_interactions`, the only reader of user files.

DuckDB does the bulk, but it only cuts a text file into lines: each line is split and checked by our own rules, since
its guesses change data in silence ('2.5' becomes 3, a blank line is dropped). At the first sign of trouble, and for
quoted fields, the file is read again by Python's csv module, which is slow but knows the number of every line.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nbmf.interactions import Ids, Interactions
from nbmf.layout import (
    HEAD_LINES,
    LONGEST_LINE,
    Layout,
    MissingFileError,
    ReadError,
    as_text,
    choose,
    recognise,
    wrong_width,
)

__all__ = ["MissingFileError", "ReadError", "read_interactions"]

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LARGEST = 2**63 - 1
_STARTS = {"parquet": b"PAR1", "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
_EXTENSIONS = {".parquet": "parquet", ".gz": "gzip", ".zst": "zstd"}
_TEXT_TYPES = {"TEXT", "VARCHAR", "ENUM"}
_INTEGER_TYPES = {sign + size for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")}


class _Table(NamedTuple):
    name: str
    relation: str
    columns: dict[str, tuple[str, str]]  # SQL and type; TEXT is text from a file, which may stand for integers
    place: str = "row {} (from 0)"
    position: str | None = None  # SQL for the number in the place


def read_interactions(
    source: Any, *, user: str | None = None, item: str | None = None, count: str | None = None
) -> Interactions:
    """Read interactions from a text or parquet file, or from a data frame.

    Parameters
    ----------
    source : path to a csv, tsv, txt (also .gz, .zst) or parquet file, or a pandas, polars, pyarrow or other data
        frame with `__arrow_c_stream__`. Delimiter and header of a text file are recognised from its first lines.
    user, item, count : names of the columns; those not given are recognised by common names (user_id, song, plays,
        …), in a file without header by position. Without a count column each row counts 1.

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
    named = {"user": user, "item": item, "count": count}
    if hasattr(source, "__arrow_c_stream__"):
        with _connection("data frame") as connection:
            # only its stream: of the frames that it knows, DuckDB guesses types in ways of its own
            connection.register("frame", SimpleNamespace(__arrow_c_stream__=source.__arrow_c_stream__))
            connection.execute("CREATE TEMP TABLE loaded AS SELECT * FROM frame")
            return _read_typed(connection, "data frame", "loaded", "rowid", named)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"cannot read interactions from a {type(source).__name__}; give a path or a data frame")
    path = os.fsdecode(source)
    packing, changed = _packing(path), os.stat(path).st_mtime_ns
    with _connection(path) as connection:
        if packing == "parquet":
            relation = f"read_parquet({_path_literal(path)}, file_row_number=true, hive_partitioning=false)"
            data = _read_typed(connection, path, relation, "file_row_number", named)
        else:
            data = _TextFile(connection, path, packing).read(named)
    if os.stat(path).st_mtime_ns != changed:  # it is gone through more than once
        raise ReadError(f"{path}: changed while it was being read; try again when it is complete")
    return data


@contextmanager
def _connection(name: str) -> Iterator[DuckDBPyConnection]:
    import duckdb  # noqa: PLC0415 - slow to import

    with tempfile.TemporaryDirectory(prefix="nbmf-") as spill:
        config: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        try:
            with duckdb.connect(":memory:", config=config | {"temp_directory": spill}) as connection:
                connection.execute("SET enable_progress_bar = false")
                # else a join may hold all rows and look up the ids in them, not the other way round
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
                yield connection
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:300]
            raise ReadError(f"{name}: cannot be read (damaged, or of a kind not known here): {reason}") from error


def _packing(path: str) -> str:
    """How the file is packed, by its first bytes; a name that promises something else is an error."""
    if not os.path.exists(path):
        raise MissingFileError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        raise ReadError(f"{path}: is a {'directory' if os.path.isdir(path) else 'device'}; name one file")
    with open(path, "rb") as stream:
        start = stream.read(4)
    if not start:
        raise ReadError(f"{path}: is empty (0 bytes)")
    packing = next((packing for packing, bytes_ in _STARTS.items() if start.startswith(bytes_)), "none")
    promised = _EXTENSIONS.get(os.path.splitext(path)[1].lower(), packing)
    if promised != packing:
        raise ReadError(f"{path}: is damaged or misnamed: it does not start like a {promised} file")
    return packing


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _path_literal(path: str) -> str:
    # brackets keep DuckDB from taking * ? [ in a file name as a pattern
    return _literal(re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)))


class _TextFile(NamedTuple):
    connection: DuckDBPyConnection
    path: str
    packing: str

    def read(self, named: dict[str, str | None]) -> Interactions:
        n_lines = self.check()
        with closing(self.lines()) as lines:
            layout = recognise(self.path, list(islice(lines, HEAD_LINES)), named)
        with suppress(Exception):  # whatever it was, a careful look names it, or finds nothing wrong
            return _gather(self.connection, *self.fast_table(layout, n_lines))
        return self.read_carefully(layout)

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
            f"read_csv({_path_literal(self.path)}, columns={{'line': 'VARCHAR'}}, auto_detect=false, header=false, "
            f"skip={skip:d}, delim='\x1f', quote='', escape='', comment='', compression='{self.packing}', "
            f"hive_partitioning=false, strict_mode=true, null_padding=false, ignore_errors=false, "
            f"max_line_size={LONGEST_LINE})"
        )

    def fast_table(self, layout: Layout, n_lines: int | None) -> tuple[_Table, int | None]:
        """The file by DuckDB, and how many rows it must have; a line that needs a careful look has no user."""
        n_rows = None if n_lines is None else n_lines - bool(layout.header)
        blank = "false" if n_lines is None else "line IS NULL"  # one that is not at the end shows in n_rows
        lines = f"{self.lines_sql(skip=bool(layout.header))} WHERE NOT {blank}"
        relation = f"(SELECT line, string_split(line, '{layout.delimiter}') AS cell FROM {lines})"
        columns = {role: (f"cell[{k + 1}]", "TEXT") for role, k in layout.columns.items()}
        sound = f"len(cell) = {layout.width} AND NOT contains(line, '\"') AND NOT contains(line, chr(0))"
        sound += f" AND cell <> [{', '.join(map(_literal, layout.header))}]::VARCHAR[]"
        columns["user"] = (f"CASE WHEN {sound} THEN {columns['user'][0]} END", "TEXT")
        return _Table(self.path, relation, columns), n_rows

    def read_carefully(self, layout: Layout) -> Interactions:
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
        data = _gather(self.connection, _Table(self.path, "careful", columns, "line {}", "line"))
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


def _read_typed(
    connection: DuckDBPyConnection, name: str, relation: str, position: str, named: dict[str, str | None]
) -> Interactions:
    described = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    # neither the labels of an ENUM nor the digits of a DECIMAL; nor the row labels that pandas adds
    types = {column: re.sub(r"\(.*\)$", "", kind) for column, kind, *_ in described if column != position}
    types = {column: kind for column, kind in types.items() if not column.startswith("__index_level_")}
    chosen = {role: list(types)[k] for role, k in choose(name, list(types), named).items()}
    columns = {role: ('"' + column.replace('"', '""') + '"', types[column]) for role, column in chosen.items()}
    data = _gather(connection, _Table(name, relation, columns, position=position))
    if not data.n_users:
        raise ReadError(f"{name}: has columns but no rows")
    return data


def _id_sql(table: _Table, role: str) -> str:
    """The id, NULL where there is none."""
    column, kind = table.columns[role]
    if kind in _INTEGER_TYPES:
        return f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        return f"nullif({column}::VARCHAR, '')"
    raise ReadError(f"{table.name}: the {role} column {column} has type {kind}; turn it into integers or text")


def _count_sql(table: _Table) -> str:
    """The count, NULL where it is none."""
    column, kind = table.columns.get("count", ("1", "BIGINT"))
    number = f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        text = f"trim({column}::VARCHAR, ' \t')"
        number = f"TRY_CAST(split_part({text}, '.', 1) AS BIGINT)"
        return f"CASE WHEN regexp_full_match({text}, '[0-9]+([.]0*)?') THEN {number} END"
    if kind in {"FLOAT", "DOUBLE", "DECIMAL"}:
        return f"CASE WHEN {column} >= 0 AND {column} = trunc({column}) THEN {number} END"
    if kind in _INTEGER_TYPES or kind == "BOOLEAN":
        return f"CASE WHEN {number} >= 0 THEN {number} END"
    raise ReadError(f"{table.name}: the count column {column} has type {kind}; turn it into whole numbers")


def _gather(connection: DuckDBPyConnection, table: _Table, n_rows: int | None = None) -> Interactions:
    """Check, number the ids, add up. Rows are gone through twice and never held: that is up to the table."""
    raw = ", ".join(f"{table.columns[role][0]} AS raw_{role}" for role in table.columns)
    connection.execute(f"""
        CREATE OR REPLACE TEMP VIEW rows AS SELECT {table.position or "NULL"} AS position, {raw},
            {_id_sql(table, "user")} AS user_id, {_id_sql(table, "item")} AS item_id, {_count_sql(table)} AS times
        FROM {table.relation}""")
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE ids AS
        SELECT user_id, item_id, grouping(item_id) = 1 AS of_user, count(*) AS n_rows, count(times) AS n_counts
        FROM rows GROUP BY GROUPING SETS ((user_id), (item_id))""")
    ((found, sound),) = connection.execute("""
        SELECT coalesce(sum(n_rows) FILTER (of_user), 0), coalesce(bool_and(n_rows = n_counts
            AND CASE WHEN of_user THEN user_id IS NOT NULL ELSE item_id IS NOT NULL END), true) FROM ids""").fetchall()
    if not sound or n_rows not in (None, found):
        raise _first_fault(connection, table) if table.position else ReadError(f"{table.name}: needs a careful look")
    users, items = (_number(connection, table, role) for role in ("user", "item"))
    pairs: dict[str, Any] = connection.execute("""
        SELECT users.code AS user, items.code AS item, TRY_CAST(sum(times) AS BIGINT) AS total
        FROM rows JOIN users ON user_id = users.id JOIN items ON item_id = items.id GROUP BY ALL""").fetchnumpy()
    rows, columns, total = pairs.values()
    if np.ma.is_masked(total):
        k = np.flatnonzero(np.ma.getmaskarray(total))[0]
        pair = f"user {users[rows[k]]!r} and item {items[columns[k]]!r}"
        raise ReadError(f"{table.name}: the counts of {pair} add up to more than 2**63 - 1")
    matrix = sp.csr_array((total, (rows, columns)), shape=(len(users), len(items)))
    matrix.sum_duplicates()  # sorts, too
    matrix.eliminate_zeros()
    return Interactions(users, items, matrix, n_repeated=found - len(total))


def _number(connection: DuckDBPyConnection, table: _Table, role: str) -> Ids:
    """Fill the table `users` or `items` with ids and their codes, and return the ids in this order."""
    chosen = f"FROM ids WHERE {'' if role == 'user' else 'NOT'} of_user"
    value = f"{role}_id"
    if table.columns[role][1] == "TEXT":
        is_integer = f"regexp_full_match({value}, '0|-?[1-9][0-9]*') AND TRY_CAST({value} AS BIGINT) IS NOT NULL"
        if connection.execute(f"SELECT bool_and({is_integer}) {chosen}").fetchall() == [(True,)]:
            value += "::BIGINT"
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE {role}s AS SELECT {role}_id AS id, {value} AS value,
        (row_number() OVER (ORDER BY {value}) - 1)::INTEGER AS code {chosen}""")
    return np.asarray(connection.execute(f"SELECT value FROM {role}s ORDER BY code").fetchnumpy()["value"])


def _first_fault(connection: DuckDBPyConnection, table: _Table) -> ReadError:
    """The first row in which something is missing, in words."""
    raw_count = "raw_count" if "count" in table.columns else "1"
    ((position, user, item, count, no_user, no_item),) = connection.execute(f"""
        SELECT position, raw_user::VARCHAR, raw_item::VARCHAR, {raw_count}::VARCHAR, user_id IS NULL, item_id IS NULL
        FROM rows WHERE user_id IS NULL OR item_id IS NULL OR times IS NULL ORDER BY position LIMIT 1""").fetchall()
    problem = f"count {count!r} {_count_problem(count)}; counts are whole numbers from 0"
    if no_user or no_item:
        role, cell = ("user", user) if no_user else ("item", item)
        over = f"{cell} is over 2**63 - 1; turn the column into text"
        problem = f"the {role} id {over if cell else 'is empty; every row needs one'}"
    return ReadError(f"{table.name}, {table.place.format(position)}: {problem}")


def _count_problem(text: str | None) -> str:
    if text is None or not text.strip():
        return "is missing (null or NaN)" if text is None else "is empty"
    try:
        value = float(text)
    except ValueError:
        return "is not a number"
    if value > _LARGEST and "inf" not in text.casefold():
        return "is over 2**63 - 1"
    if not math.isfinite(value):
        return "is NaN" if math.isnan(value) else "is infinite"
    if value < 0:
        return "is negative"
    return "is a fraction" if value % 1 else "is not written in plain digits"
