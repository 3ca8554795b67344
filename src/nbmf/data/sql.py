"""Tables in DuckDB: parquet files, data frames and split text become Interactions.

Every cell is checked, ids are numbered in sorted order, and repeated pairs are added up.
"""

import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nbmf.data.events import ISO_TIME, Events
from nbmf.data.interactions import Ids, Interactions, canonical
from nbmf.data.text import BadRowsError, ReadError, choose_columns, columns_in_words

Connection = Any  # of DuckDB, which is slow to import

_TEXT_TYPES = {"TEXT", "VARCHAR", "ENUM"}
_INTEGER_TYPES = {sign + size for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")}
_FRACTION_TYPES = {"FLOAT", "DOUBLE", "DECIMAL"}
_DATE_TYPES = {"DATE", "TIMESTAMP WITH TIME ZONE"} | {"TIMESTAMP" + unit for unit in ("", "_S", "_MS", "_NS")}
_ROLES = ("user", "item", "count", "time")
_TIME_KINDS = ("integer", "number", "date")  # the times of a table are of the first kind that fits all of them
_POSITION = "__nbmf_position__"  # reserved: no column of a file has this name
_INDEX = "__index_level_"  # how the columns begin that pandas adds for its row labels
_PARTS = "files whose names end in .parquet, except those that begin with a dot or _"
MOST_SHOWN = 4  # rows with a fault that a message names
_EXPONENT = "^([0-9]+)[.]?([0-9]*?)0*[eE][+]?0*([0-9]{1,2})$"
_THOUSANDS = re.compile(r"\s*[0-9]{1,3}([,' ][0-9]{3})+\s*")


class Table(NamedTuple):
    """Something DuckDB can select from, and the roles of its columns."""

    name: str
    relation: str
    columns: dict[str, tuple[str, str]]  # SQL and type by role; TEXT comes from a text file and may stand for integers
    place: str = "row {} (from 0)"
    position: str | None = None  # SQL for the number in `place`
    fault: str = "''"  # SQL for what is wrong with the whole row, '' if nothing is
    reading: str = ""  # which columns are used, in words
    skipped: list[str] | None = None  # gets a sentence about the rows with faults, which are skipped; None refuses them


class NumberedIds(NamedTuple):
    """What a table without faults holds; the tables `users` and `items` of the database map ids to codes."""

    users: Ids  # sorted; the code of an id is its position
    items: Ids
    n_rows: int
    time_kind: str | None  # None without a time column


@contextmanager
def connect(name: str, memory: int | None = None, folder: str | None = None) -> Iterator[Connection]:
    """Open a database in memory that never goes online, and report its errors as errors of reading `name`.

    It takes `memory` bytes at most before it spills to `folder`, by default the system's for temporary files.
    """
    import duckdb  # noqa: PLC0415 (slow to import)

    with tempfile.TemporaryDirectory(prefix="nbmf-", dir=folder) as spill:
        config: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        try:
            with duckdb.connect(":memory:", config=config | {"temp_directory": spill}) as connection:
                connection.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
                # otherwise a join may hold all rows and look up the ids in them, instead of the reverse
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
                if memory is None:
                    _limit_memory(connection)
                else:
                    connection.execute(f"SET memory_limit = '{memory}B'; SET preserve_insertion_order = false")
                yield connection
        except (duckdb.Error, RuntimeError) as error:
            reason = " ".join(str(error).split())
            is_interrupted = isinstance(error, duckdb.InterruptException) or "KeyboardInterrupt" in reason
            if is_interrupted or (isinstance(error, RuntimeError) and "interrupted" in reason):
                raise KeyboardInterrupt from error  # the database reports Ctrl-C in several ways
            if not isinstance(error, duckdb.Error):
                raise
            if isinstance(error, duckdb.OutOfMemoryException) or "No space left" in reason:
                room = f"the database ran out of room in memory or in {os.path.dirname(spill)}"
                remedy = f"free some space there, or allow more memory ({reason[:300]})"
                raise ReadError(f"{name}: {room}; {remedy}") from error
            raise ReadError(f"{name}: cannot be read (damaged, or of an unknown kind): {reason[:300]}") from error


def _limit_memory(connection: Connection) -> None:
    """Make tables above 2 GB spill to disk; by default they fill the memory that the arrays will need."""
    ((limit,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    size, unit = limit.split()
    if unit == "TiB" or (unit == "GiB" and float(size) > 2):
        connection.execute("SET memory_limit = '2GiB'")


def literal(text: str) -> str:
    """Return SQL for a text."""
    return "'" + text.replace("'", "''") + "'"


def path_sql(path: str) -> str:
    """Return SQL for the path of one file; brackets keep DuckDB from reading * ? [ in its name as a pattern."""
    return literal(re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)))


def identifier(name: str) -> str:
    """Return SQL for the name of a column."""
    return '"' + name.replace('"', '""') + '"'


def column_types(connection: Connection, relation: str) -> dict[str, str]:
    """Return names and types of the columns of a relation."""
    return {column: kind for column, kind, *_ in connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()}


def frame_table(connection: Connection, frame: Any, named: dict[str, str | None]) -> Table:
    """Return the table of a data frame."""
    return typed_table(connection, "data frame", load_frame(connection, frame), "rowid", named)


def load_frame(connection: Connection, frame: Any) -> str:
    """Copy a data frame into a table of the database, and return its name."""
    # through its Arrow stream only: for the frames that DuckDB knows, it guesses types in its own ways
    connection.register("frame", SimpleNamespace(__arrow_c_stream__=frame.__arrow_c_stream__))
    connection.execute("CREATE TEMP TABLE loaded AS SELECT * FROM frame")
    return "loaded"


def typed_table(connection: Connection, name: str, relation: str, position: str, named: dict[str, str | None]) -> Table:
    """Return the table of a relation whose columns have names and types."""
    # of an ENUM without its labels, of a DECIMAL without its digits
    types = {c: re.sub(r"\(.*\)$", "", kind) for c, kind in column_types(connection, relation).items()}
    names = [column for column in types if column != position and not column.startswith(_INDEX)]
    chosen = choose_columns(name, names, named)
    columns = {role: (identifier(names[k]), types[names[k]]) for role, k in chosen.items()}
    if connection.execute(f"SELECT 1 FROM {relation} LIMIT 1").fetchone() is None:  # then columns may have no type
        raise ReadError(f"{name}: has columns but no rows")
    return Table(name, relation, columns, position=position, reading=columns_in_words(chosen, names))


def parts_of(folder: str) -> list[str]:
    """Return the sorted paths of the parquet files in a folder; subfolders, which are not read, are an error."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith((".", "_")))
    parts = [os.path.join(folder, name) for name in names if name.casefold().endswith(".parquet")]
    subfolder = next((name for name in names if os.path.isdir(os.path.join(folder, name))), None)
    if not parts:
        raise ReadError(f"{folder}: is a directory without parquet files ({_PARTS}); name one file")
    if subfolder is not None:
        nested = f"{subfolder} is a directory, and nested directories are not read"
        raise ReadError(f"{folder}: {nested}; put all parts into one directory, from which nbmf reads {_PARTS}")
    return parts


def parquet_table(connection: Connection, path: str, name: str, named: dict[str, str | None]) -> Table:
    """Return the table of a parquet file, or of all parts in a folder."""
    is_folder = os.path.isdir(path)
    files = parts_of(path) if is_folder else [path]
    if is_folder:
        _check_alike(connection, path, files)
    names = list(column_types(connection, _all_of(files)))
    # a column may have the name of one that DuckDB adds, which hides the latter unless the column is renamed
    other = [f"column_{k}" for k in range(len(names))]
    columns = ", ".join(f"{ours} AS {identifier(name)}" for ours, name in zip(other, names, strict=True))
    row = "file_row_number"
    position = f"{{'part': parse_filename(filename), 'row': {row}}}" if is_folder else row
    relation = f"(SELECT {columns}, {position} AS {_POSITION} FROM {_all_of(files)} AS parts({', '.join(other)}))"
    table = typed_table(connection, name, relation, _POSITION, named)
    return table._replace(place="{0[part]}, row {0[row]} (from 0)") if is_folder else table


def _all_of(files: list[str]) -> str:
    listed = ", ".join(map(path_sql, files))
    return f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"  # by name: also the widest integers


def _check_alike(connection: Connection, folder: str, files: list[str]) -> None:
    """Refuse parts whose columns differ, except in order and in the size of integers.

    DuckDB would silently convert all parts to the types of the first: 1.5 becomes 2, and '007' becomes 7.
    """
    first = column_types(connection, _all_of(files[:1]))
    for file in files[1:]:
        found = column_types(connection, _all_of([file]))
        for column in first | found:
            kinds = [types.get(column, "missing") for types in (first, found)]
            if kinds[0] != kinds[1] and not column.startswith(_INDEX) and not _INTEGER_TYPES.issuperset(kinds):
                places = (os.path.basename(place) for place in (files[0], file))
                differ = " and ".join(f"{kind} in {place}" for kind, place in zip(kinds, places, strict=True))
                remedy = "write all parts with the same columns and types"
                raise ReadError(f"{folder}: the column {column!r} is {differ}; {remedy}")


def number_ids(connection: Connection, table: Table, n_rows: int | None = None) -> NumberedIds:
    """Check every row of a table and number its ids; makes the view `coded` of the rows with codes instead of ids."""
    raw = ", ".join(f"{table.columns.get(role, ('NULL', ''))[0]} AS raw_{role}" for role in _ROLES)
    times = ", ".join(f"{sql} AS time_{kind}" for kind, sql in _time_sql(table).items())
    rows = f"""
        SELECT {table.position or "NULL"} AS position, {table.fault} AS fault, {raw}, {times},
            {_id_sql(table, "user")} AS user_id, {_id_sql(table, "item")} AS item_id, {_count_sql(table)} AS amount
        FROM {table.relation}"""
    connection.execute(f"CREATE OR REPLACE TEMP VIEW rows AS {rows}")
    sound, found, kind = _survey(connection, table)
    if not sound or n_rows not in (None, found):
        if table.position is None:
            raise ReadError(f"{table.name}: needs a careful look")
        bad = _refuse_or_skip(connection, table, *_faults(connection, table))
        connection.execute(f"CREATE OR REPLACE TEMP VIEW rows AS SELECT * FROM ({rows}) WHERE NOT ({bad})")
        _, found, kind = _survey(connection, table)
    users, items = (_number(connection, table, role) for role in ("user", "item"))
    connection.execute("""
        CREATE OR REPLACE TEMP VIEW coded AS SELECT users.code AS user, items.code AS item, rows.*
        FROM rows JOIN users ON user_id = users.id JOIN items ON item_id = items.id""")
    return NumberedIds(users, items, found, kind if "time" in table.columns else None)


def _survey(connection: Connection, table: Table) -> tuple[bool, int, str]:
    """Fill the table `ids`; return whether no row has a fault, the number of rows, and the kind of their times."""
    n_times = ", ".join(f"count(time_{kind}) AS n_{kind}" for kind in _TIME_KINDS)
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE ids AS
        SELECT user_id, item_id, grouping(item_id) = 1 AS of_user, count(*) AS n_rows, count(amount) AS n_counts,
            {n_times}
        FROM rows GROUP BY GROUPING SETS ((user_id), (item_id))""")
    totals = ", ".join(f"coalesce(sum(n_{what}) FILTER (of_user), 0)" for what in ("rows", *_TIME_KINDS))
    ((sound, found, *n_dated),) = connection.execute(f"""
        SELECT coalesce(bool_and(n_rows = n_counts
            AND CASE WHEN of_user THEN user_id IS NOT NULL ELSE item_id IS NOT NULL END), true), {totals}
        FROM ids""").fetchall()
    kind = next((kind for kind, n in zip(_TIME_KINDS, n_dated, strict=True) if n == found), "mixed")
    return sound and not (kind == "mixed" and "time" in table.columns), found, kind


def build_interactions(connection: Connection, table: Table, n_rows: int | None = None) -> Interactions:
    """Check a table and add up its repeated pairs. Without times, rows are read twice and never held in memory."""
    found = number_ids(connection, table, n_rows)
    total = "TRY_CAST(sum(amount) AS BIGINT) AS total"
    sums = connection.execute(f"SELECT user, item, {total} FROM coded GROUP BY ALL").fetchnumpy()
    check_sums(table, found, *sums.values())
    pairs = sums["total"], (sums["user"], sums["item"])
    matrix = canonical(sp.coo_array(pairs, shape=(len(found.users), len(found.items))))
    events = None
    if found.time_kind:
        rows = connection.execute(f"SELECT user, item, amount, time_{found.time_kind} FROM coded").fetchnumpy()
        events = Events.of(*rows.values())
    n_zeros = len(sums["total"]) - matrix.nnz
    reading = table.reading + (f"; {n_zeros:,} pair{'s' * (n_zeros != 1)} with a count of 0" if n_zeros else "")
    n_repeated = found.n_rows - len(sums["total"])
    return Interactions(found.users, found.items, matrix, n_repeated=n_repeated, events=events, reading=reading)


def check_sums(table: Table, ids: NumberedIds, rows: Any, columns: Any, total: Any) -> None:
    """Raise ReadError if the counts of a pair add up to more than 64 bits, which makes their total NULL."""
    for k in np.flatnonzero(np.ma.getmaskarray(total))[:1]:
        pair = f"user {ids.users[rows[k]]!r} and item {ids.items[columns[k]]!r}"
        raise ReadError(f"{table.name}: the counts of {pair} add up to more than 2**63 - 1")


def _id_sql(table: Table, role: str) -> str:
    """SQL for the id, NULL if there is none."""
    column, kind = table.columns[role]
    if kind in _INTEGER_TYPES:
        return f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        return f"nullif({column}::VARCHAR, '')"
    raise ReadError(f"{table.name}: the {role} column {column} has type {kind}; turn it into integers or text")


def _count_sql(table: Table) -> str:
    """SQL for the count, NULL if it is not a whole number from 0."""
    column, kind = table.columns.get("count", ("1", "BIGINT"))
    number = f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        text = f"trim({column}::VARCHAR, ' \t')"
        number = f"TRY_CAST(split_part({text}, '.', 1) AS BIGINT)"
        # 1.5e3: the digits 1 and 5, then zeros up to the exponent, which must not be less than the decimals
        whole, decimals, exponent = (f"regexp_extract({text}, '{_EXPONENT}', {group})" for group in (1, 2, 3))
        exponent = f"TRY_CAST({exponent} AS INTEGER)"
        shifted = f"TRY_CAST({whole} || rpad({decimals}, {exponent}, '0') AS BIGINT)"
        return f"""CASE WHEN regexp_full_match({text}, '[0-9]+([.]0*)?') THEN {number}
            WHEN regexp_full_match({text}, '{_EXPONENT}') AND length({decimals}) <= {exponent} THEN {shifted} END"""
    if kind in _FRACTION_TYPES:
        return f"CASE WHEN {column} >= 0 AND {column} = trunc({column}) THEN {number} END"
    if kind in _INTEGER_TYPES or kind == "BOOLEAN":
        return f"CASE WHEN {number} >= 0 THEN {number} END"
    raise ReadError(f"{table.name}: the count column {column} has type {kind}; turn it into whole numbers")


def _time_sql(table: Table) -> dict[str, str]:
    """SQL for the time as each kind, NULL if it is not of that kind."""
    sql = dict.fromkeys(_TIME_KINDS, "NULL")
    column, kind = table.columns.get("time", ("", None))
    if kind in _TEXT_TYPES:
        text = f"trim({column}::VARCHAR, ' \t')"
        for name, pattern, value in (
            ("integer", "-?[0-9]+", f"TRY_CAST({text} AS BIGINT)"),
            ("number", "-?[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?", _finite(f"TRY_CAST({text} AS DOUBLE)")),
            ("date", ISO_TIME, f"TRY_CAST({text} AS TIMESTAMPTZ)"),
        ):
            sql[name] = f"CASE WHEN regexp_full_match({text}, '{pattern}') THEN {value} END"
    elif kind in _INTEGER_TYPES:
        sql["integer"] = f"TRY_CAST({column} AS BIGINT)"
    elif kind in _FRACTION_TYPES:
        sql["number"] = _finite(f"{column}::DOUBLE")
    elif kind in _DATE_TYPES:
        sql["date"] = _finite(column)
    elif kind is not None:
        raise ReadError(f"{table.name}: the time column {column} has type {kind}; turn it into numbers or time stamps")
    return sql


def _finite(value: str) -> str:
    return f"CASE WHEN isfinite({value}) THEN {value} END"


def _number(connection: Connection, table: Table, role: str) -> Ids:
    """Fill the table `users` or `items` with ids and codes, and return the ids sorted by code."""
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


def _faults(connection: Connection, table: Table) -> tuple[str, list[str]]:
    """Return SQL that is true of the rows with a fault, and say what is wrong with the first of them.

    The first time decides whether times are dates or numbers.
    """
    bad, by_position = "user_id IS NULL OR item_id IS NULL OR amount IS NULL", "ORDER BY position LIMIT"
    date, number = "time_date IS NOT NULL", "coalesce(time_number, time_integer) IS NOT NULL"
    first = connection.execute(f"SELECT {date} FROM rows WHERE {date} OR {number} {by_position} 1").fetchall()
    expected, is_time = ("date", date) if first == [(True,)] else ("number", number)
    if "time" in table.columns:
        bad += f" OR NOT {is_time}"
    said = []
    for position, fault, user, item, count, time, no_user, no_item, no_count, other_time in connection.execute(f"""
            SELECT position, fault, {", ".join(f"raw_{role}::VARCHAR" for role in _ROLES)},
                user_id IS NULL, item_id IS NULL, amount IS NULL, {date} OR {number}
            FROM rows WHERE {bad} {by_position} {MOST_SHOWN}""").fetchall():
        if no_user or no_item:
            role, cell = ("user", user) if no_user else ("item", item)
            over = f"{cell} is over 2**63 - 1; turn the column into text"
            problem = fault or f"the {role} id {over if cell else 'is empty; every row needs one'}"
        elif no_count:
            problem = f"count {count!r} {_count_problem(count)}; counts are whole numbers from 0"
        else:
            problem = f"time {time!r} {_time_problem(time, expected if other_time else None)}"
        said.append(f"{table.place.format(position)}: {problem}")
    return bad, said


def _refuse_or_skip(connection: Connection, table: Table, bad: str, faults: list[str]) -> str:
    """Raise for rows with a fault, or report that they are skipped and return the SQL that is true of them."""
    short = [fault.rpartition("; ")[0] for fault in faults]  # without the remedy
    if table.skipped is None:
        raise BadRowsError(f"{table.name}, {faults[0]}" + (f" (also {', '.join(short[1:])})" if short[1:] else ""))
    ((n_bad, n_rows),) = connection.execute(f"SELECT count(*) FILTER ({bad}), count(*) FROM rows").fetchall()
    if n_bad == n_rows:
        raise ReadError(f"{table.name}: none of its {n_rows:,} rows can be used: {faults[0]}")
    more = f"; and {n_bad - len(short):,} more" if n_bad > len(short) else ""
    table.skipped.append(f"{table.name}: skipped {n_bad:,} of {n_rows:,} rows: {'; '.join(short)}{more}")
    return bad


def _count_problem(text: str | None) -> str:
    if text is None or not text.strip():
        return "is missing (null or NaN)" if text is None else "is empty"
    if _THOUSANDS.fullmatch(text):
        return f"has thousands separators (write {re.sub('[^0-9]', '', text)})"
    try:
        value = float(text)
    except ValueError:
        return "is not a number"
    problems = {
        "is NaN": math.isnan(value),
        "is infinite": "inf" in text.casefold(),
        "is over 2**63 - 1": value > 2**63 - 1,
        "is negative": value < 0,
        "is a fraction": value % 1 != 0,
    }
    return next((problem for problem, is_so in problems.items() if is_so), "is not written in plain digits")


def _time_problem(text: str | None, expected: str | None) -> str:
    if text is None or not text.strip():
        return f"is {'missing (null)' if text is None else 'empty'}; every row needs one"
    if expected:
        return f"is not a {expected}, but the time of the first row is; times are all numbers or all dates"
    return "is neither a number nor a date; write 2017-01-31, 2017-01-31T20:15:00 or a plain number"
