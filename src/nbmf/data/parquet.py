"""Parquet: one file, or a folder of parts that all have the same columns.

DuckDB reads all parts by the types of one and converts the others in silence (1.5 becomes 2, '007' becomes 7), so the
columns of every part are compared before a row is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbmf.data.sql import INTEGER_TYPES, Table, identifier, path_literal, typed_table
from nbmf.data.text import ReadError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_POSITION = "__nbmf_position__"  # reserved: no column of a file is called like this
_TAKEN = "files whose names end in .parquet, without those that begin with a dot or _"


def parts_of(folder: str) -> list[str]:
    """Return the paths of the parts in a folder, in order; what would be left out in silence is an error."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith((".", "_")))
    parts = [os.path.join(folder, name) for name in names if name.casefold().endswith(".parquet")]
    subfolder = next((name for name in names if os.path.isdir(os.path.join(folder, name))), None)
    if not parts:
        raise ReadError(f"{folder}: is a directory without parquet files ({_TAKEN}); name one file")
    if subfolder is not None:
        raise ReadError(
            f"{folder}: {subfolder} is a directory, and those inside others are not read; put all parts into one "
            f"directory, of which are taken the {_TAKEN}"
        )
    return parts


def parquet_table(connection: DuckDBPyConnection, path: str, named: dict[str, str | None]) -> Table:
    """Return the table of a file or of all parts of a folder; `named` are names of columns, None for those unknown."""
    is_folder = os.path.isdir(path)
    files = parts_of(path) if is_folder else [path]
    if is_folder:
        _check_alike(connection, path, files)
    names = list(_types(connection, files))
    # a column may be called like those that DuckDB has to offer, which are seen when it goes by another name
    other = [f"column_{k}" for k in range(len(names))]
    columns = ", ".join(f"{ours} AS {identifier(name)}" for ours, name in zip(other, names, strict=True))
    row = "file_row_number"
    position = f"{{'part': parse_filename(filename), 'row': {row}}}" if is_folder else row
    relation = f"(SELECT {columns}, {position} AS {_POSITION} FROM {_all_of(files)} AS parts({', '.join(other)}))"
    table = typed_table(connection, path, relation, _POSITION, named)
    return table._replace(place="{0[part]}, row {0[row]} (from 0)") if is_folder else table


def _all_of(files: list[str]) -> str:
    listed = ", ".join(map(path_literal, files))
    return f"read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"  # by name: also the widest integers


def _types(connection: DuckDBPyConnection, files: list[str]) -> dict[str, str]:
    """Names and types of the columns, as they are read."""
    described = connection.execute(f"DESCRIBE SELECT * FROM {_all_of(files)}").fetchall()
    return {column: kind for column, kind, *_ in described}


def _check_alike(connection: DuckDBPyConnection, folder: str, files: list[str]) -> None:
    """Refuse parts whose columns differ in name or type; their order and the size of integers may differ."""
    first = _types(connection, files[:1])
    for file in files[1:]:
        found = _types(connection, [file])
        for column in first | found:
            kinds = [types.get(column, "missing") for types in (first, found)]
            is_label = column.startswith("__index_level_")  # pandas adds it to some parts and not to others
            if kinds[0] != kinds[1] and not is_label and not INTEGER_TYPES.issuperset(kinds):
                places = (os.path.basename(place) for place in (files[0], file))
                differ = " and ".join(f"{kind} in {place}" for kind, place in zip(kinds, places, strict=True))
                raise ReadError(
                    f"{folder}: the column {column!r} is {differ}; write all parts with the same columns and types"
                )
