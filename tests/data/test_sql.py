"""Parquet: a folder of parts is read like one file or refused; no part is converted to the types of another."""

import datetime
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nbmf
from helpers import assert_same_interactions as assert_same
from nbmf.data import read as reading
from nbmf.data.read import ReadError

PLAYS = {"user": [1, 2], "item": [3, 4], "count": [5, 6]}


def written(folder, *parts, names=None):
    folder.mkdir(exist_ok=True)
    for n, part in enumerate(parts):
        pq.write_table(pa.table(part), folder / (names[n] if names else f"{n}.parquet"))
    return folder


DIFFERENT = {
    "fractions": ("count", {"count": [1.5, 2.5]}, "BIGINT", "DOUBLE"),
    "whole numbers as fractions": ("count", {"count": [1.0, 2.0]}, "BIGINT", "DOUBLE"),
    "fractions for ids": ("user", {"user": [5.5, 6.5]}, "BIGINT", "DOUBLE"),
    "texts": ("user", {"user": ["007", "7"]}, "BIGINT", "VARCHAR"),
    "days": ("item", {"item": [datetime.date(2020, 1, 1)] * 2}, "BIGINT", "DATE"),
    "true and false": ("count", {"count": [True, False]}, "BIGINT", "BOOLEAN"),
    "nothing but nulls": ("count", {"count": pa.nulls(2)}, "BIGINT", '"NULL"'),
    "no rows, of another type": ("user", {"user": [], "item": [], "count": []}, "BIGINT", '"NULL"'),
    "one more column": ("day", {"day": [1, 2]}, "missing", "BIGINT"),
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("case", DIFFERENT)
def test_parts_that_differ_are_refused(tmp_path, case, order):
    column, change, *kinds = DIFFERENT[case]
    folder = written(tmp_path / "parts", *(PLAYS, PLAYS | change)[::order])
    first, second = kinds[::order]
    told = f"parts: the column {column!r} is {first} in 0.parquet and {second} in 1.parquet; write all parts with the"
    for read in (nbmf.read_interactions, lambda source: nbmf.store_counts(source, tmp_path / "c")):
        with pytest.raises(ReadError, match=re.escape(told)):
            read(folder)
    assert not (tmp_path / "c").exists()


def test_a_column_that_is_missing_is_not_counted_as_one_each(tmp_path):
    without = {"user": [1, 2], "item": [3, 4]}
    with pytest.raises(ReadError, match=r"'count' is missing in 0\.parquet and BIGINT in 1\.parquet"):
        nbmf.read_interactions(written(tmp_path / "a", without, PLAYS))
    with pytest.raises(ReadError, match=r"'count' is BIGINT in 0\.parquet and missing in 1\.parquet"):
        nbmf.read_interactions(written(tmp_path / "b", PLAYS, without | {"Count": [5, 6]}))


@pytest.mark.parametrize(
    ("small", "large"), [("int8", "int64"), ("int32", "int64"), ("uint8", "int16"), ("uint64", "int64")]
)
@pytest.mark.parametrize("order", [1, -1])
def test_integers_may_differ_in_size(tmp_path, small, large, order):
    """Whichever comes first, every value of the larger type is read."""
    most = 2 ** (pa.type_for_alias(large).bit_width - 1) - 1
    parts = [
        {"user": pa.array([1, last], kind), "item": [3, 4], "count": pa.array([5, 6], kind)}
        for kind, last in ((small, 2), (large, most))
    ]
    ours = nbmf.read_interactions(written(tmp_path, *parts[::order]))
    assert_same(ours, nbmf.Interactions.from_arrays([1, 2, 1, most], [3, 4, 3, 4], [5, 6, 5, 6]))


def test_order_of_columns_and_parts_without_rows(tmp_path):
    turned = {name: PLAYS[name] for name in ("count", "user", "item")}
    empty = {name: pa.array([], "int64") for name in PLAYS}
    twice = nbmf.Interactions.from_arrays([1, 2] * 2, [3, 4] * 2, [5, 6] * 2)
    for n, parts in enumerate([(PLAYS, turned), (empty, PLAYS, turned), (turned, empty, PLAYS)]):
        assert_same(nbmf.read_interactions(written(tmp_path / str(n), *parts)), twice)


def test_row_labels_of_pandas_are_no_columns(tmp_path):
    """pandas stores them if rows were left out."""
    labelled = PLAYS | {"__index_level_0__": [7, 9]}
    ours = nbmf.read_interactions(written(tmp_path, PLAYS, labelled))
    assert_same(ours, nbmf.read_interactions(written(tmp_path / "plain", PLAYS, PLAYS)))


@pytest.mark.parametrize("name", ["part", "row", "filename", "file_row_number", "File_Row_Number", "column_0", 'a"b'])
def test_any_name_of_a_column(tmp_path, name):
    """Also of the column asked for. The first faulty row is named, and rows are sorted as numbers, not as digits."""
    plain = nbmf.read_interactions(written(tmp_path / "plain", PLAYS) / "0.parquet")
    folder = written(tmp_path / "more", PLAYS | {name: ["a", "b"]})
    columns = {"user": [1] * 12, "item": [3] * 12, name: [1, 1, -7] + [1] * 7 + [-8, 1]}
    faulty = written(tmp_path / "faulty", columns)
    for each in ("", "0.parquet"):
        assert_same(nbmf.read_interactions(folder / each, count="count"), plain)
        with pytest.raises(ReadError, match=r"0\.parquet, row 2 \(from 0\): count '-7' is negative"):
            nbmf.read_interactions(faulty / each, count=name)


def test_what_is_taken_of_a_folder(tmp_path):
    parts = written(tmp_path / "a", PLAYS, PLAYS, names=["1.parquet", "2.PARQUET"])
    for name in ("_SUCCESS", "_metadata", "_common.parquet", ".1.parquet.crc", ".hidden.parquet", "notes.txt"):
        (parts / name).write_text("not a part")
    (parts / "_temporary").mkdir()
    assert_same(nbmf.read_interactions(parts), nbmf.Interactions.from_arrays([1, 2] * 2, [3, 4] * 2, [5, 6] * 2))
    written(parts / "year=2020", PLAYS)
    with pytest.raises(ReadError, match=r"a: year=2020 is a directory.* put all parts into one .* end in \.parquet"):
        nbmf.read_interactions(parts)


def test_a_folder_without_parts(tmp_path):
    (tmp_path / "_metadata.parquet").write_text("not a part")
    (tmp_path / "plays.csv").write_text("ann,jazz,3\n")
    with pytest.raises(ReadError, match=r"is a directory without parquet files \(files whose names end in \.parquet"):
        nbmf.read_interactions(tmp_path)


def test_a_damaged_part_is_named(tmp_path):
    written(tmp_path, PLAYS)
    (tmp_path / "1.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ReadError, match=r"cannot be read .*1\.parquet"):
        nbmf.read_interactions(tmp_path)


def test_a_part_that_changes_while_it_is_read(tmp_path, monkeypatch):
    """Overwriting a part does not change the time of the folder."""
    folder, build = written(tmp_path, PLAYS, PLAYS), reading.build_interactions

    def meanwhile(*arguments):
        os.utime(folder / "1.parquet", ns=(1, 1))
        return build(*arguments)

    monkeypatch.setattr(reading, "build_interactions", meanwhile)
    with pytest.raises(ReadError, match="changed while it was being read"):
        nbmf.read_interactions(folder)
