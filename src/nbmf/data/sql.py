"""Rows of a table in DuckDB → Interactions: check every cell, number the ids, add up repeated pairs."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from nbmf.data.events import ISO_TIME, Events
from nbmf.data.interactions import Ids, Interactions
from nbmf.data.text import ReadError, choose

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_MEMORY = "2GiB"
_LARGEST = 2**63 - 1
_TEXT_TYPES = {"TEXT", "VARCHAR", "ENUM"}
INTEGER_TYPES = {sign + size for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")}
_FRACTION_TYPES = {"FLOAT", "DOUBLE", "DECIMAL"}
_DATE_TYPES = {"DATE", "TIMESTAMP WITH TIME ZONE"} | {"TIMESTAMP" + unit for unit in ("", "_S", "_MS", "_NS")}
_TIME_KINDS = ("integer", "number", "date")
"""What the times of a table may be: the first that all of them are."""


class Table(NamedTuple):
    """What DuckDB can select, and which of its columns hold what."""

    name: str
    relation: str
    columns: dict[str, tuple[str, str]]  # SQL and type; TEXT is text from a file, which may stand for integers
    place: str = "row {} (from 0)"
    position: str | None = None  # SQL for the number in the place


class Numbered(NamedTuple):
    """What was found in a table whose every row is sound.

    users, items : ids in order; the tables `users` and `items` of the connection have their codes
    n_rows : how many there are
    time_kind : which kind of time all rows have, None where no time was asked for
    """

    users: Ids
    items: Ids
    n_rows: int
    time_kind: str | None


@contextmanager
def connect(name: str, memory: int | None = None, folder: str | None = None) -> Iterator[DuckDBPyConnection]:
    """Open a database in memory that never goes online; its errors are told as those of reading `name`.

    memory : bytes that it may take before it spills to disk
    folder : where it spills; by default where temporary files go
    """
    import duckdb  # noqa: PLC0415 - slow to import

    with tempfile.TemporaryDirectory(prefix="nbmf-", dir=folder) as spill:
        config: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        try:
            with duckdb.connect(":memory:", config=config | {"temp_directory": spill}) as connection:
                connection.execute("SET enable_progress_bar = false")
                connection.execute("SET TimeZone = 'UTC'")
                # else a join may hold all rows and look up the ids in them, not the other way round
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
                if memory is None:
                    _limit_memory(connection)
                else:
                    connection.execute(f"SET memory_limit = '{memory}B'")
                    connection.execute("SET preserve_insertion_order = false")
                yield connection
        except (duckdb.Error, RuntimeError) as error:
            if is_interrupted(error):
                raise KeyboardInterrupt from error
            if not isinstance(error, duckdb.Error):
                raise
            reason = " ".join(str(error).split())[:300]
            if is_without_room(error):
                raise ReadError(
                    f"{name}: the database has no room for it, in memory or in {os.path.dirname(spill)}; make room "
                    f"there, or let it take more memory ({reason})"
                ) from error
            raise ReadError(f"{name}: cannot be read (damaged, or of a kind not known here): {reason}") from error


def is_interrupted(error: Exception) -> bool:
    """Whether the database has ended because of Ctrl-C, which it tells in ways of its own."""
    import duckdb  # noqa: PLC0415

    told = isinstance(error, RuntimeError) and "interrupted" in str(error)
    return told or isinstance(error, duckdb.InterruptException) or "KeyboardInterrupt" in str(error)


def is_without_room(error: Exception) -> bool:
    """Whether the database has filled its memory or the disk."""
    import duckdb  # noqa: PLC0415

    is_disk = isinstance(error, duckdb.Error) and "No space left" in str(error)
    return is_disk or isinstance(error, duckdb.OutOfMemoryException)


def _limit_memory(connection: DuckDBPyConnection) -> None:
    """Let tables of more than 2 GB spill to disk: by default they fill the machine, where the arrays must go too."""
    ((limit,),) = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    size, unit = limit.split()
    if unit == "TiB" or (unit == "GiB" and float(size) > 2):
        connection.execute(f"SET memory_limit = '{MOST_MEMORY}'")


def literal(text: str) -> str:
    """Return SQL for a text."""
    return "'" + text.replace("'", "''") + "'"


def path_literal(path: str) -> str:
    """Return SQL for the path of one file: brackets keep DuckDB from taking * ? [ in its name as a pattern."""
    return literal(re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)))


def identifier(name: str) -> str:
    """Return SQL for the name of a column."""
    return '"' + name.replace('"', '""') + '"'


def typed_table(
    connection: DuckDBPyConnection, name: str, relation: str, position: str, named: dict[str, str | None]
) -> Table:
    """Return the table of a relation whose columns have names and types."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    # neither the labels of an ENUM nor the digits of a DECIMAL; nor the row labels that pandas adds
    types = {column: re.sub(r"\(.*\)$", "", kind) for column, kind, *_ in described if column != position}
    types = {column: kind for column, kind in types.items() if not column.startswith("__index_level_")}
    chosen = {role: list(types)[k] for role, k in choose(name, list(types), named).items()}
    columns = {role: (identifier(column), types[column]) for role, column in chosen.items()}
    if connection.execute(f"SELECT 1 FROM {relation} LIMIT 1").fetchone() is None:  # then columns may have no type
        raise ReadError(f"{name}: has columns but no rows")
    return Table(name, relation, columns, position=position)


def number(connection: DuckDBPyConnection, table: Table, n_rows: int | None = None) -> Numbered:
    """Check every row of a table and number its ids; the view `rows` has what each row says."""
    raw = ", ".join(f"{table.columns[role][0]} AS raw_{role}" for role in table.columns)
    times = ", ".join(f"{sql} AS time_{kind}" for kind, sql in _time_sql(table).items())
    connection.execute(f"""
        CREATE OR REPLACE TEMP VIEW rows AS SELECT {table.position or "NULL"} AS position, {raw}, {times},
            {_id_sql(table, "user")} AS user_id, {_id_sql(table, "item")} AS item_id, {_count_sql(table)} AS amount
        FROM {table.relation}""")
    n_times = ", ".join(f"count(time_{kind}) AS n_{kind}" for kind in _TIME_KINDS)
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE ids AS
        SELECT user_id, item_id, grouping(item_id) = 1 AS of_user, count(*) AS n_rows, count(amount) AS n_counts,
            {n_times}
        FROM rows GROUP BY GROUPING SETS ((user_id), (item_id))""")
    ((found, sound),) = connection.execute("""
        SELECT coalesce(sum(n_rows) FILTER (of_user), 0), coalesce(bool_and(n_rows = n_counts
            AND CASE WHEN of_user THEN user_id IS NOT NULL ELSE item_id IS NOT NULL END), true) FROM ids""").fetchall()
    kind = _time_kind(connection) if "time" in table.columns else None
    if not sound or n_rows not in (None, found) or kind == "mixed":
        raise _first_fault(connection, table) if table.position else ReadError(f"{table.name}: needs a careful look")
    users, items = (_number(connection, table, role) for role in ("user", "item"))
    return Numbered(users, items, found, kind)


def gather(connection: DuckDBPyConnection, table: Table, n_rows: int | None = None) -> Interactions:
    """Check, number the ids, add up. Rows are gone through twice and never held, if they have no times."""
    users, items, found, kind = number(connection, table, n_rows)
    rows, columns, total = _numbered(connection, "TRY_CAST(sum(amount) AS BIGINT) AS total", "GROUP BY ALL")
    if np.ma.is_masked(total):
        k = np.flatnonzero(np.ma.getmaskarray(total))[0]
        raise too_many(table, users[rows[k]], items[columns[k]])
    matrix = sp.csr_array((total, (rows, columns)), shape=(len(users), len(items)))
    matrix.sum_duplicates()  # sorts, too
    matrix.eliminate_zeros()
    events = Events.of(*_numbered(connection, f"amount, time_{kind}")) if kind else None
    return Interactions(users, items, matrix, n_repeated=found - len(total), events=events)


def too_many(table: Table, user: Any, item: Any) -> ReadError:
    """Return the error for counts of one pair whose sum is no 64-bit number."""
    return ReadError(f"{table.name}: the counts of user {user!r} and item {item!r} add up to more than 2**63 - 1")


def _id_sql(table: Table, role: str) -> str:
    """The id, NULL where there is none."""
    column, kind = table.columns[role]
    if kind in INTEGER_TYPES:
        return f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        return f"nullif({column}::VARCHAR, '')"
    raise ReadError(f"{table.name}: the {role} column {column} has type {kind}; turn it into integers or text")


def _count_sql(table: Table) -> str:
    """The count, NULL where it is none."""
    column, kind = table.columns.get("count", ("1", "BIGINT"))
    number = f"TRY_CAST({column} AS BIGINT)"
    if kind in _TEXT_TYPES:
        text = f"trim({column}::VARCHAR, ' \t')"
        number = f"TRY_CAST(split_part({text}, '.', 1) AS BIGINT)"
        return f"CASE WHEN regexp_full_match({text}, '[0-9]+([.]0*)?') THEN {number} END"
    if kind in _FRACTION_TYPES:
        return f"CASE WHEN {column} >= 0 AND {column} = trunc({column}) THEN {number} END"
    if kind in INTEGER_TYPES or kind == "BOOLEAN":
        return f"CASE WHEN {number} >= 0 THEN {number} END"
    raise ReadError(f"{table.name}: the count column {column} has type {kind}; turn it into whole numbers")


def _time_sql(table: Table) -> dict[str, str]:
    """The time as each kind of time, NULL where it is none of that kind."""
    sql = dict.fromkeys(_TIME_KINDS, "NULL")
    if "time" not in table.columns:
        return sql
    column, kind = table.columns["time"]
    if kind in _TEXT_TYPES:
        text = f"trim({column}::VARCHAR, ' \t')"
        digits, date = f"regexp_full_match({text}, '-?[0-9]+')", f"regexp_full_match({text}, '{ISO_TIME}')"
        number = f"regexp_full_match({text}, '-?[0-9]+([.][0-9]*)?(e[-+]?[0-9]+)?', 'i')"
        sql["integer"] = f"CASE WHEN {digits} THEN TRY_CAST({text} AS BIGINT) END"
        sql["number"] = f"CASE WHEN {number} THEN {_finite(f'TRY_CAST({text} AS DOUBLE)')} END"
        sql["date"] = f"CASE WHEN {date} THEN TRY_CAST({text} AS TIMESTAMPTZ) END"
    elif kind in INTEGER_TYPES:
        sql["integer"] = f"TRY_CAST({column} AS BIGINT)"
    elif kind in _FRACTION_TYPES:
        sql["number"] = _finite(f"{column}::DOUBLE")
    elif kind in _DATE_TYPES:
        sql["date"] = _finite(column)
    else:
        raise ReadError(f"{table.name}: the time column {column} has type {kind}; turn it into numbers or time stamps")
    return sql


def _finite(value: str) -> str:
    return f"CASE WHEN isfinite({value}) THEN {value} END"


def _time_kind(connection: DuckDBPyConnection) -> str:
    (n_rows, *n_times), *_ = connection.execute(
        f"SELECT sum(n_rows), {', '.join(f'sum(n_{kind})' for kind in _TIME_KINDS)} FROM ids"
    ).fetchall()
    return next((kind for kind, n in zip(_TIME_KINDS, n_times, strict=True) if n == n_rows), "mixed")


def _number(connection: DuckDBPyConnection, table: Table, role: str) -> Ids:
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


def _numbered(connection: DuckDBPyConnection, values: str, grouping: str = "") -> list[Any]:
    """The codes of user and item of each row, and some values."""
    selected: dict[str, Any] = connection.execute(f"""
        SELECT users.code AS user, items.code AS item, {values}
        FROM rows JOIN users ON user_id = users.id JOIN items ON item_id = items.id {grouping}""").fetchnumpy()
    return list(selected.values())


def _first_fault(connection: DuckDBPyConnection, table: Table) -> ReadError:
    """The first row in which something is missing, in words; what a time should be is said by the first row's."""
    raw_count, raw_time = (f"raw_{role}" if role in table.columns else "1" for role in ("count", "time"))
    by_position = "ORDER BY position LIMIT 1"
    first = connection.execute(f"SELECT time_date IS NOT NULL FROM rows {by_position}").fetchall()
    expected = "date" if first == [(True,)] else "number"
    no_time = {"date": "time_date IS NULL", "number": "coalesce(time_number, time_integer) IS NULL"}[expected]
    ((position, user, item, count, time, no_user, no_item, no_count, other_time),) = connection.execute(f"""
        SELECT position, raw_user::VARCHAR, raw_item::VARCHAR, {raw_count}::VARCHAR, {raw_time}::VARCHAR,
            user_id IS NULL, item_id IS NULL, amount IS NULL, coalesce(time_date::VARCHAR, time_number::VARCHAR)
        FROM rows WHERE user_id IS NULL OR item_id IS NULL OR amount IS NULL
            OR {no_time if "time" in table.columns else "false"} {by_position}""").fetchall()
    if no_user or no_item:
        role, cell = ("user", user) if no_user else ("item", item)
        over = f"{cell} is over 2**63 - 1; turn the column into text"
        problem = f"the {role} id {over if cell else 'is empty; every row needs one'}"
    elif no_count:
        problem = f"count {count!r} {_count_problem(count)}; counts are whole numbers from 0"
    else:
        problem = f"time {time!r} {_time_problem(time, expected if other_time else None)}"
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


def _time_problem(text: str | None, expected: str | None) -> str:
    if text is None or not text.strip():
        return f"is {'missing (null)' if text is None else 'empty'}; every row needs one"
    if expected:
        return f"is no {expected}, while the first row has one; times are all numbers or all dates"
    return "is neither a number nor a date; write 2017-01-31, 2017-01-31T20:15:00 or a plain number"
