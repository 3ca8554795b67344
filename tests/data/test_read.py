"""Reading: sound data comes in unchanged, and every fault is named."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.parquet  # type: ignore[import-untyped,unused-ignore]
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import nbmf
from helpers import assert_same_interactions as assert_same
from nbmf.data import read as reading
from nbmf.data.interactions import Interactions
from nbmf.data.read import ReadError, read_interactions
from nbmf.data.sql import connect

LARGEST = 2**63 - 1
LIMIT = 120  # seconds that a subprocess may take
PLAYS = b"ann\tjazz\t3\nbob\tjazz\t1\nann\tfolk\t12\n"
ANN_AND_BOB = Interactions.from_arrays(["ann", "bob", "ann"], ["jazz", "jazz", "folk"], [3, 1, 12])
FILLER = b"".join(b"user%040d,item%040d,%d\n" % (k % 977, k % 1013, k % 7) for k in range(11_500))  # over 1 MB
quick = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, content: bytes | str, name: str = "plays.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def outcome(path: Path, **columns: str) -> Any:
    """Return the result of reading, or its error, in a form that can be compared."""
    try:
        data = read_interactions(path, **columns)
    except ReadError as error:
        return str(error)
    return data.users.tolist(), data.items.tolist(), data.matrix.toarray().tolist(), data.n_repeated


def refuse_care(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a plain file was read the slow way")

    monkeypatch.setattr(reading._TextFile, "read_carefully", fail)


def refuse_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ReadError("not the fast way")

    monkeypatch.setattr(reading._TextFile, "fast_table", fail)


def zstd_frames(content: bytes) -> bytes:
    half = len(content) // 2
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()  # no content size in its header
    return zstandard.compress(content[:half]) + skippable + stream.compress(content[half:]) + stream.flush()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    ".csv": bytes,
    ".csv.gz": gzip.compress,
    ".TXT.GZ": lambda content: gzip.compress(content[:30]) + gzip.compress(content[30:]) + b"\0" * 8,
    ".tsv.zst": zstandard.compress,
    ".zst": zstd_frames,
    ".data": gzip.compress,
    ".dat": zstandard.compress,
}


# ---- text formats


@pytest.mark.parametrize("hurry", [True, False], ids=["fast", "careful"])
@pytest.mark.parametrize(
    "content",
    [
        PLAYS,
        PLAYS.rstrip(b"\n"),
        PLAYS + b"\n\n\n",
        PLAYS + b"\n" * 1500,
        b"\n\n" + PLAYS.replace(b"\n", b"\n\n\n"),
        PLAYS.replace(b"\n", b"\r\n\r\n"),
        PLAYS.replace(b"12", b"1.2e+01").replace(b"3", b"3.E0"),
        PLAYS.replace(b"\n", b"\r\n"),
        PLAYS.replace(b"\n", b"\r\n") + b"\r\n\r\n",
        b"\xef\xbb\xbf" + PLAYS,
        PLAYS.replace(b"\t", b","),
        PLAYS.replace(b"\t", b";"),
        PLAYS.replace(b"\t", b"|"),
        PLAYS.replace(b"\t", b" "),
        PLAYS.replace(b"12", b" 12.00 ").replace(b"3", b"003.").replace(b"\t", b","),
        b"user\titem\tcount\n" + PLAYS,
        b"\xef\xbb\xbfuser\titem\tcount\r\n" + PLAYS.replace(b"\n", b"\r\n"),
        b"User ID\tSong\tPlay-Count\n" + PLAYS,
        b"visitor\tthing\tplays\n" + PLAYS,
        b"count,test,item,user\n3,0,jazz,ann\n1,1,jazz,bob\n12,0,folk,ann\n",
        b",user,item,plays\n0,ann,jazz,3\n1,bob,jazz,1\n2,ann,folk,12\n",
        b'"user","item","count"\nann,jazz,3\nbob,jazz,1\nann,folk,12\n',
    ],
)
def test_format_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, hurry: bool) -> None:
    (refuse_care if hurry else refuse_haste)(monkeypatch)
    assert_same(read_interactions(written(tmp_path, content)), ANN_AND_BOB)


@pytest.mark.parametrize(
    ("content", "users", "items"),
    [
        ("1,10\n2,10\n1,30\n", [1, 2], [10, 30]),  # no header
        ("who,what\n1,10\n2,10\n1,30\n", [1, 2], [10, 30]),  # known names
        ("a,b\n1,10\n2,10\n1,30\n", [1, 2], [10, 30]),  # names are not integers
        ("a,b\n1,x\n2,x\n1,y\n", [1, 2], ["x", "y"]),
        ("item,user\n10,1\n10,2\n30,1\n", [1, 2], [10, 30]),
        ("guest,7\n5,8\n", ["5", "guest"], [7, 8]),  # a header has no integers
        ("doc,user\ndog,cat\n", ["doc", "dog"], ["cat", "user"]),  # 'user' in the wrong column is an id
        ("user,x\nuser,y\n", ["user"], ["x", "y"]),  # a name appears only once
        ("user,item\n1,a\n", [1], ["a"]),
        ("n,folk\nann,jazz\n", ["ann", "n"], ["folk", "jazz"]),  # there is no count column to name
    ],
)
def test_two_columns_count_one_a_row(tmp_path: Path, content: str, users: list[Any], items: list[Any]) -> None:
    data = read_interactions(written(tmp_path, content))
    assert (data.users.tolist(), data.items.tolist()) == (users, items)
    assert set(data.matrix.data) == {1}


def test_first_line_with_a_count_is_no_header(tmp_path: Path) -> None:
    data = read_interactions(written(tmp_path, "n,track,3\nuser,song,4\n"))
    assert (data.users.tolist(), data.matrix.sum().item()) == (["n", "user"], 7)


@pytest.mark.parametrize(
    ("content", "users", "items", "total"),
    [
        ("ann\tNo 5\nbob\tNo 6\n", ["ann", "bob"], ["No 5", "No 6"], 2),  # tab before space
        ("a b,c d,3\ne f,g h,4\n", ["a b", "e f"], ["c d", "g h"], 7),  # comma before space
        ("1|Smith, John|3\n2|Doe, Jane|4\n", [1, 2], ["Doe, Jane", "Smith, John"], 7),  # counts before order
        ("user;item;n\na,b;c,d;5\n", ["a,b"], ["c,d"], 5),  # names before order
    ],
)
def test_delimiter_is_the_one_that_makes_sense(
    tmp_path: Path, content: str, users: list[Any], items: list[Any], total: int
) -> None:
    data = read_interactions(written(tmp_path, content))
    assert (data.users.tolist(), data.items.tolist(), data.matrix.sum().item()) == (users, items, total)


def test_columns_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, "day,who,what,n,m\n9,ann,jazz,3,30\n8,bob,jazz,1,10\n7,ann,folk,12,120\n")
    assert_same(read_interactions(path), ANN_AND_BOB)
    assert read_interactions(path, count="m").matrix.sum() == 160
    swapped = read_interactions(path, user="what", item="who")
    np.testing.assert_array_equal(swapped.matrix.toarray(), ANN_AND_BOB.matrix.toarray().T)
    rows = written(tmp_path, "a,b,when\nann,jazz,1\nann,jazz,2\n")
    assert read_interactions(rows, user="a", item="b").matrix.sum() == 2


# ---- ids and counts


@pytest.mark.parametrize(
    ("ids", "are_integers"),
    [
        (["3", "-20", "0"], True),
        ([str(LARGEST), str(-(2**63))], True),
        ([str(LARGEST + 1), "1"], False),
        (["007", "7"], False),
        (["+7", "7"], False),
        (["-0", "7"], False),
        (["7.0", "7"], False),
        (["1e3", "7"], False),
        ([" 7", "7"], False),
        (["x", "7"], False),
        (["NULL", "nan"], False),
        (["Zoë", "zoe", "Ångström", "東京", "😀", "￿"], False),
    ],
)
def test_ids_stay_what_they_were(tmp_path: Path, ids: list[str], are_integers: bool) -> None:
    content = "user,item,count\n" + "".join(f"{name},{k},1\n" for k, name in enumerate(ids))
    data = read_interactions(written(tmp_path, content))
    assert data.users.dtype == (np.int64 if are_integers else object)
    assert data.users.tolist() == sorted(map(int, ids) if are_integers else ids)
    assert are_integers or type(data.users[0]) is str


def test_zero_keeps_its_ids_and_repeats_add_up(tmp_path: Path) -> None:
    data = read_interactions(written(tmp_path, "a,x,0\nb,y,2\nb,y,3\na,x,0\n"))
    assert_same(data, Interactions.from_arrays(["a", "b", "b", "a"], ["x", "y", "y", "x"], [0, 2, 3, 0]))
    assert (data.n_users, data.n_items, data.nnz, data.n_repeated) == (2, 2, 1, 2)


def test_largest_count_is_exact(tmp_path: Path) -> None:
    assert read_interactions(written(tmp_path, f"a,x,{LARGEST - 1}\na,x,1\n")).matrix.data.tolist() == [LARGEST]


names = st.text(st.sampled_from("abz019 \"'\nÅ東😀-"), min_size=1, max_size=4)
tables = st.lists(st.tuples(names, names, st.integers(0, 10**9)), min_size=1, max_size=8)


def as_read(ids: list[str]) -> list[Any]:
    return [int(i) for i in ids] if all(re.fullmatch("0|-?[1-9][0-9]*", i) for i in ids) else ids


@quick
@given(tables, st.sampled_from("\t,;| "), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
@example([("1", "2", 3)], ",", False, "\n", False)
def test_round_trip(
    tmp_path: Path, rows: list[tuple[str, str, int]], delimiter: str, header: bool, end: str, quote_all: bool
) -> None:
    rows = [(f"{delimiter}{user}" if user == "z" else user, item, count) for user, item, count in rows]
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    )
    writer.writerows([("user", "item", "count")] * header)
    writer.writerows(rows)
    users, items, counts = (list(column) for column in zip(*rows, strict=True))
    data = read_interactions(written(tmp_path, text.getvalue()))
    assert_same(data, Interactions.from_arrays(as_read(users), as_read(items), counts))


pieces = [b"a", b"7", b"07", b"3", b"0", b"2.5", b"-1", b",", b",", b",", b'"', b"\n", b"\n", b"\r\n", b" ", b"\r"]
pieces += [b"\xe9", b"\0", b"\x1f", b"\xc3\xa9", b"\xef\xbb\xbf", b"\t"]


@quick
@given(st.lists(st.sampled_from(pieces), max_size=12), st.booleans())
def test_fast_and_careful_agree_on_anything(tmp_path: Path, dirt: list[bytes], header: bool) -> None:
    path = written(tmp_path, b"user,item,count\n" * header + b"u,i,1\nv,j,2\nu,j,3\nw,i,2\n" + b"".join(dirt))
    with pytest.MonkeyPatch.context() as monkeypatch:
        fast = outcome(path)
        refuse_haste(monkeypatch)
        assert fast == outcome(path)


# ---- errors


LINE_FAULTS = [
    (b"a,x,-3", "count '-3' is negative; counts are whole numbers from 0"),
    (b"a,x,2.5", "count '2.5' is a fraction"),
    (b"a,x,NaN", "count 'NaN' is NaN"),
    (b"a,x,inf", "count 'inf' is infinite"),
    (b"a,x,", "count '' is empty"),
    (b"a,x,  ", "count '  ' is empty"),
    (b"a,x,abc", "count 'abc' is not a number"),
    (b"a,x,0x10", "count '0x10' is not a number"),
    (b"a,x,1e-3", "count '1e-3' is a fraction"),
    (b"a,x,1.5e0", "count '1.5e0' is a fraction"),
    (b"a,x,1.25e1", "count '1.25e1' is a fraction"),
    (b"a,x,1e400", r"count '1e400' is over 2\*\*63 - 1"),
    (b"a,x,1e19", r"count '1e19' is over 2\*\*63 - 1"),
    (b"a,x,9.223372036854775808e18", r"is over 2\*\*63 - 1"),
    (b'a,x,"350,000"', r"count '350,000' has thousands separators \(write 350000\); counts are whole"),
    (b"a,x,1'234'567", r"has thousands separators \(write 1234567\)"),
    (b"a,x,+3", r"count '\+3' is not written in plain digits"),
    (b"a,x,1_000", "count '1_000' is not written in plain digits"),
    ("a,x,٣".encode(), "count '٣' is not written in plain digits"),
    (b"a,x,9223372036854775808", r"count '9223372036854775808' is over 2\*\*63 - 1"),
    (b"a,x," + b"9" * 5000, "is over 2"),
    (b",x,3", "the user id is empty"),
    (b"a,,3", "the item id is empty"),
    (b"a,x", "2 columns where 3 columns are expected"),
    (b"a,x,3,4", "4 columns where 3 columns are expected"),
    (b"a;x;3", "1 column where 3 columns are expected"),
    (b'"a"b,x,3', "',' expected after '\"'"),
]


@pytest.mark.parametrize(
    ("line", "problem", "packing"),
    [(*fault, "plain") for fault in LINE_FAULTS]
    + [(*fault, packing) for fault in LINE_FAULTS[::5] for packing in ("gzip", "zstd", "far down")],
)
def test_fault_in_a_line_is_named(tmp_path: Path, line: bytes, problem: str, packing: str) -> None:
    before = b"u,i,1\nv,i,2\n" * 5 if packing != "far down" else FILLER
    content = before + line + b"\nw,j,1\nw,i,1\n"
    name = {"gzip": ".csv.gz", "zstd": ".tsv.zst"}.get(packing, ".csv")
    path = written(tmp_path, PACKINGS[name](content), "plays" + name)
    number = before.count(b"\n") + 1
    with pytest.raises(ReadError, match=f"{re.escape(str(path))}, line {number}: .*{problem}"):
        read_interactions(path)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far down"])
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"caf\xe9,x,3", r"byte {} \(0xe9\) is not UTF-8 text; convert it"),
        (b"caf\0,x,3", "NUL at byte {}, so this is not text; convert it"),
        (b"caf\xed\xa0\x80,x,3", r"byte {} \(0xed\) is not UTF-8"),
        (b"a,x\r,3", "has a carriage return inside"),
        (b"a,x,3," + b"y" * 2_500_000, "is longer than 131072 bytes"),
        (b'a,"x,3', r"the quotes do not match \(unexpected end of data\)"),
    ],
)
def test_what_is_not_text_is_named(tmp_path: Path, line: bytes, problem: str, far: bool) -> None:
    before = FILLER if far else b"u,i,1\n"
    path = written(tmp_path, before + line + b"\nw,j,1\n")
    expected = f", line {before.count(10) + 1}: {problem.format(len(before) + 3)}"
    with pytest.raises(ReadError, match=expected):
        read_interactions(path)


def test_first_fault_is_named_whatever_its_kind(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"line 2: count '-3'"):
        read_interactions(written(tmp_path, "a,x,1\nb,x,-3\nc,x\nd,x,1\ne,x,1\n"))
    with pytest.raises(ReadError, match=r"line 2: 2 columns"):
        read_interactions(written(tmp_path, "a,x,1\nc,x\nb,x,-3\nd,x,1\ne,x,1\n"))


@pytest.mark.parametrize("far", [False, True], ids=["near", "far down"])
@pytest.mark.parametrize(
    ("line", "user", "item"),
    [
        (b'"a,b","x",3', "a,b", "x"),
        (b'"say ""hi""",x,3', 'say "hi"', "x"),
        (b'12" vinyl,x,3', '12" vinyl', "x"),
        (b'"two\nlines","a\r\nb",3', "two\nlines", "a\r\nb"),
        (b"a\x1fb,x\x0bc,3", "a\x1fb", "x\x0bc"),
        (b"a,x,3\r", "a", "x"),
        ("a\u2028b,x\x85,3".encode(), "a\u2028b", "x\x85"),
        (b"#a,x\\,3", "#a", "x\\"),
        (b"a," + b"x" * 100_000 + b",3", "a", "x" * 100_000),
    ],
)
def test_odd_ids_come_in_unchanged(tmp_path: Path, line: bytes, user: str, item: str, far: bool) -> None:
    before = FILLER if far else b"user1,item1,1\n"
    data = read_interactions(written(tmp_path, before + line + b"\nuser2,item2,2\n"))
    row, column = data.users.tolist().index(user), data.items.tolist().index(item)
    assert data.matrix[row, column] == 3
    assert data.n_users == len({a.split(b",")[0] for a in before.splitlines()} | {b"user2", line})


def test_sum_past_the_largest_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, f"a,x,{LARGEST}\nb,x,1\na,x,1\n")
    with pytest.raises(ReadError, match=r"the counts of user 'a' and item 'x' add up to more than 2\*\*63 - 1"):
        read_interactions(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\n\n\r\n", "has no rows, only blank lines"),
        (b"\xef\xbb\xbf", "has no rows"),
        (b"user,item,count\n", "has a header but no rows"),
        (b"user,item\n\n", "has a header but no rows"),
        (b'"ann,x,3\nbob,x,3\neve,x,2\n', r"line 1: the quotes do not match \(unexpected end of data\)"),
        (b'"ann,x,3\n' + b"bob,x,3\n" * 300, r"line 1: the quotes do not match \(unexpected end of data\)"),
        (b"only\none\ncolumn\n", "line 1: no two columns found; separate them by tab"),
        (b"ann,jazz,3,881250949\nbob,jazz,1,881250950\n", "has 4 columns and no header"),
        (b"a title\nu,i,1\nv,i,2\nw,i,2\n", "line 1: 1 column where 3"),
        (b"ann lee,x,3\nbob lee,x,3\neve lee,x\n", "line 3: 2 columns where 3"),  # not two columns with spaces
        ("u,i,1\nv,i,2\n".encode("utf-16"), r"line 1: NUL at byte|line 1: byte 0 \(0xff\) is not UTF-8"),
        (b"u,i,1\rv,i,2\r", "line 1: has a carriage return inside"),
        (b"a;b;1,5\nc;d;2,0\n", "line 1: count '1,5' is not a number"),
        (b"ann,jazz,three\nbob,jazz,1\n", "which column is the user.*'ann', 'jazz', 'three'"),
        (b"user,item,timestamp\na,x,10\nb,x,11\n", "pass count='…', or user= and item= to count rows.*'timestamp'"),
        (b"user,item,day\na,x,mo\nb,x,tu\n", "pass count='…'"),
        (b"user,thing,day\na,x,1\n", "which column is the item"),
        (b"user,user_id,item,n\na,1,x,1\n", "'user' and 'user_id' could each be the user column; pass user='…'"),
        (b"user,item,n,n\na,x,1,1\n", "'n' and 'n' could each be the count"),
        (b"user,item,n\na,x,1\nuser,item,n\n", "line 3: the header again"),
        (b"user,item\n" + b"a,x\n" * 300 + b"user,item\na,x\n", "line 302: the header again"),
        (b"user,item,2023\na,x,1\n", "pass count='…'"),
        (bytes(range(1, 256)) * 50, r"line 2: byte 127 \(0x80\) is not UTF-8"),
    ],
)
def test_fault_of_the_whole_file_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(ReadError, match=f"plays.txt.*{problem}"):
        read_interactions(written(tmp_path, content))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"count": "play"}, "there is no column 'play' to be the count; did you mean 'plays'.*'who', 'what', 'plays'"),
        ({"user": "zzz"}, "there is no column 'zzz' to be the user; the columns are 'who', 'what', 'plays'"),
        ({"user": "who", "item": "who"}, "there is no column 'who' to be the item"),
    ],
)
def test_unknown_column_is_named(tmp_path: Path, columns: dict[str, str], problem: str) -> None:
    path = written(tmp_path, "who,what,plays\nann,jazz,3\n")
    with pytest.raises(ReadError, match=problem):
        read_interactions(path, **columns)
    with pytest.raises(ReadError, match="data frame: " + problem):
        read_interactions(pd.read_csv(path), **columns)


def test_file_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, PLAYS)
    build = reading.build_interactions

    def change(*arguments: Any) -> Interactions:
        os.utime(path, ns=(1, 1))
        return build(*arguments)

    monkeypatch.setattr(reading, "build_interactions", change)
    with pytest.raises(ReadError, match="changed while it was being read"):
        read_interactions(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: there is no such file"):
        read_interactions(tmp_path / "nowhere.csv")
    with pytest.raises(ReadError, match="there is no such file"):
        read_interactions(str(tmp_path / "nowhere.csv"))
    with pytest.raises(ReadError, match="is a directory"):
        read_interactions(tmp_path)
    with pytest.raises(TypeError, match="cannot read interactions from a list"):
        read_interactions([1, 2])


# ---- packed files


@pytest.mark.parametrize("name", PACKINGS)
def test_packed_files_read_like_plain_ones(tmp_path: Path, name: str) -> None:
    plain = read_interactions(written(tmp_path, FILLER))
    assert plain.matrix.sum() == sum(k % 7 for k in range(11_500))
    assert_same(read_interactions(written(tmp_path, PACKINGS[name](FILLER), "packed" + name)), plain)


def test_latin_in_zstd_is_named_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, zstandard.compress(b"a,x,1\nb,x,1\ncaf\xe9,x,1\n"), "plays.csv.zst")
    with pytest.raises(ReadError, match=r"plays\.csv\.zst: cannot be read.*Line: 3 .*not utf-8"):
        read_interactions(path)


@pytest.mark.parametrize("name", [".csv.gz", ".tsv.zst"])
def test_quotes_in_packed_files(tmp_path: Path, name: str) -> None:
    content = b'user,item,plays\n"ann","jazz",3\nbob,jazz,1\nann,"folk",12\n\n'
    assert_same(read_interactions(written(tmp_path, PACKINGS[name](content), "q" + name)), ANN_AND_BOB)
    broken = content.replace(b"folk", b"fo\nlk")
    path = written(tmp_path, PACKINGS[name](broken), "b" + name)
    if name == ".csv.gz":
        assert read_interactions(path).items.tolist() == ["fo\nlk", "jazz"]
    else:
        with pytest.raises(ReadError, match="line breaks inside quotes; decompress it"):
            read_interactions(path)


def parquet(content: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("name", [".csv.gz", ".tsv.zst", ".zst", ".parquet"])
def test_cut_file_is_an_error_wherever_it_is_cut(tmp_path: Path, name: str) -> None:
    table = pa.table({"user": np.arange(3000) % 71, "item": np.arange(3000) % 73, "count": np.arange(3000) % 5})
    packed = parquet(table) if name == ".parquet" else PACKINGS[name](FILLER[:40_000])
    draw = random.Random(0)
    for size in [3, 4, 5, len(packed) - 1, len(packed) - 4, *(draw.randrange(6, len(packed)) for _ in range(3))]:
        if name == ".zst" and size == len(zstandard.compress(FILLER[:20_000])):
            continue  # a cut between frames leaves a complete file
        with pytest.raises(ReadError, match="damaged"):
            read_interactions(written(tmp_path, packed[:size], "cut" + name))


def test_flipped_bits_in_gzip_are_errors(tmp_path: Path) -> None:
    packed = gzip.compress(FILLER[:40_000])
    draw = random.Random(0)
    for _ in range(6):
        flipped = bytearray(packed)
        flipped[draw.randrange(10, len(packed) - 4)] ^= 1 << draw.randrange(8)
        with pytest.raises(ReadError, match="damaged"):
            read_interactions(written(tmp_path, bytes(flipped), "flipped.csv.gz"))


@pytest.mark.parametrize("name", ["plays.gz", "plays.zst", "plays.parquet"])
def test_misnamed_file_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReadError, match="is damaged or misnamed"):
        read_interactions(written(tmp_path, PLAYS, name))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures memory through /proc")
def test_gzip_bombs_do_not_fill_memory(tmp_path: Path) -> None:
    size = 250_000_000
    written(tmp_path, PLAYS, "plays.csv")
    for name, line in [("nothing", b"\0"), ("endless", b"a"), ("rows", b"a,%s,1\n" % (b"x" * 300))]:
        block = gzip.compress(line * (size // len(line) // 30))
        written(tmp_path, block * 30, f"{name}.csv.gz")
    script = f"""
from nbmf.data.read import ReadError, read_interactions
memory = lambda: open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
read_interactions({str(tmp_path)!r} + "/plays.csv")
print(memory())
for name in ("nothing", "endless"):
    try:
        read_interactions({str(tmp_path)!r} + f"/{{name}}.csv.gz")
    except ReadError as error:
        print(error)
print(read_interactions({str(tmp_path)!r} + "/rows.csv.gz").matrix.sum())
print(memory())
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    printed = done.stdout
    before, nothing, endless, total, after = printed.splitlines()
    assert "line 1: is longer than" in nothing
    assert "line 1: is longer than" in endless
    assert int(total) == size // 305 // 30 * 30
    assert int(after) - int(before) < 160_000, "kilobytes; DuckDB has buffers of its own"


# ---- names of files and columns


@pytest.mark.parametrize("name", ["a[1].csv", "a*.csv", "a?.csv", "it's.csv", "user=7/plays.csv", "a b.csv", "é.csv"])
def test_odd_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    refuse_care(monkeypatch)
    written(tmp_path, "x,y,1\n", "ab.csv")  # a pattern would match this one too
    (tmp_path / name).parent.mkdir(exist_ok=True)
    path = written(tmp_path, PLAYS, name)
    assert_same(read_interactions(path), ANN_AND_BOB)
    table = pa.table({"what": ["jazz", "jazz", "folk"], "n": [3, 1, 12], "who": ["ann", "bob", "ann"]})
    assert_same(read_interactions(written(tmp_path, parquet(table), name + ".parquet")), ANN_AND_BOB)
    monkeypatch.chdir(tmp_path)
    assert_same(read_interactions(name), ANN_AND_BOB)


def test_database_is_offline() -> None:
    with connect("") as connection:
        rows = connection.execute("SELECT name, value FROM duckdb_settings()").fetchall()
    found = dict(rows)
    assert found["autoinstall_known_extensions"] == found["autoload_known_extensions"] == "false"
    assert os.path.isabs(found["temp_directory"])
    assert not os.path.exists(found["temp_directory"])
    assert "build_side_probe_side" in found["disabled_optimizers"]
    size, unit = found["memory_limit"].split()
    assert unit in {"KiB", "MiB"} or (unit == "GiB" and float(size) <= 2)


def opens(descriptor: str, folder: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder))
    except OSError:  # the descriptor of the listing itself
        return False


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, PLAYS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    read_interactions("plays.txt")
    assert os.listdir(tmp_path) == ["plays.txt"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no list of open files")
def test_no_file_stays_open_behind_an_error(tmp_path: Path) -> None:
    gc.disable()  # or it would close files that were left open
    try:
        for content in (b"a,x,1\nb,x\nc,x,1\nd,x,1\n", b"a,x,1\nb,x,\xe9\nc,x,1\n", FILLER + b"a,x\n", b"a\n"):
            with pytest.raises(ReadError) as caught:
                read_interactions(written(tmp_path, content))
            assert not [name for name in os.listdir("/proc/self/fd") if opens(name, tmp_path)], str(caught.value)
    finally:
        gc.enable()


# ---- data frames and parquet

COLUMNS: dict[str, list[Any]] = {"who": ["ann", "bob", "ann"], "what": ["jazz", "jazz", "folk"], "n": [3, 1, 12]}


def parquet_file(columns: dict[str, Any], folder: Path) -> Path:
    return written(folder, parquet(pa.table(columns)), "plays.parquet")


def unnamed_parquet_file(columns: dict[str, Any], folder: Path) -> Path:
    return written(folder, parquet(pa.table(columns)), "plays.bin")


MAKERS: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "pandas": lambda columns, _: pd.DataFrame(columns),
    "filtered pandas": lambda columns, _: pd.DataFrame({k: [*v, v[0]] for k, v in columns.items()}).iloc[[2, 0, 1]],
    "polars": lambda columns, _: pl.DataFrame(columns),
    "pyarrow": lambda columns, _: pa.table(columns),
    "stream": lambda columns, _: pa.table(columns).to_reader(),
    "parquet": parquet_file,
    "parquet by content": unnamed_parquet_file,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_frames(tmp_path: Path, maker: str) -> None:
    assert_same(read_interactions(MAKERS[maker](COLUMNS, tmp_path)), ANN_AND_BOB)
    extra = {"x": [1, 2, 3], **COLUMNS}
    assert_same(read_interactions(MAKERS[maker](extra, tmp_path), user="who", item="what"), ANN_AND_BOB)
    pairs = {name: COLUMNS[name] for name in ("who", "what")}
    assert_same(read_interactions(MAKERS[maker](pairs, tmp_path)), ANN_AND_BOB.binarize())
    with pytest.raises(
        ReadError, match=r"pass count='…', or user= and item= to count rows; the columns are 'x', 'who'"
    ):
        read_interactions(MAKERS[maker]({"x": [1, 2, 3], **pairs}, tmp_path))


@pytest.mark.parametrize(
    "counts",
    [
        pa.array([3, 1, 12], pa.int8()),
        pa.array([3, 1, 12], pa.uint64()),
        pa.array([3.0, 1.0, 12.0]),
        pa.array([3.0, 1.0, 12.0], pa.float32()),
        pa.array([3, 1, 12], pa.decimal128(20, 2)),
        pa.array(["3", " 1", "12.0"]),
        pa.array(["3", "1", "12"]).dictionary_encode(),
    ],
    ids=lambda counts: str(counts.type)[:20],
)
@pytest.mark.parametrize("maker", ["pyarrow", "parquet"])
def test_types_of_counts(tmp_path: Path, maker: str, counts: pa.Array) -> None:
    assert_same(read_interactions(MAKERS[maker]({**COLUMNS, "n": counts}, tmp_path)), ANN_AND_BOB)


def test_truth_counts_as_zero_or_one() -> None:
    data = read_interactions(pl.DataFrame({**COLUMNS, "n": [True, False, True]}))
    assert_same(data, Interactions.from_arrays(COLUMNS["who"], COLUMNS["what"], [1, 0, 1]))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([5, -7, 5], pa.int16()), [-7, 5]),
        (pa.array([5, 7, 5], pa.uint64()), [5, 7]),
        (pa.array(["5", "7", "5"]), ["5", "7"]),  # typed text stays text
        (pa.array(["b", "a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"]),
    ],
    ids=lambda ids: str(getattr(ids, "type", ""))[:20],
)
@pytest.mark.parametrize("maker", ["pyarrow", "parquet"])
def test_types_of_ids(tmp_path: Path, maker: str, ids: pa.Array, expected: list[Any]) -> None:
    data = read_interactions(MAKERS[maker]({**COLUMNS, "who": ids}, tmp_path))
    assert data.users.tolist() == expected
    assert data.users.dtype == (object if isinstance(expected[0], str) else np.int64)


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("n", pa.array([1, -3, -4]), "row 1 (from 0): count '-3' is negative; counts are whole numbers from 0"),
        ("n", pa.array([1, 1.0, 2.5]), "row 2 (from 0): count '2.5' is a fraction"),
        ("n", pa.array([1.0, float("nan"), 1.0]), "row 1 (from 0): count 'nan' is NaN"),
        ("n", pa.array([1.0, 1.0, float("inf")]), "row 2 (from 0): count 'inf' is infinite"),
        ("n", pa.array([None, 1, 2]), "row 0 (from 0): count None is missing (null or NaN)"),
        ("n", pa.array([1, 2**63, 1], pa.uint64()), "row 1 (from 0): count '9223372036854775808' is over 2**63 - 1"),
        ("n", pa.array([1.0, 1e19, 1.0]), "row 1 (from 0): count '1e+19' is over 2**63 - 1"),
        ("n", pa.array(["1", "x", "1"]), "row 1 (from 0): count 'x' is not a number"),
        ("n", pa.array([b"1", b"1", b"1"]), 'the count column "n" has type BLOB; turn it into whole numbers'),
        ("who", pa.array(["a", None, "b"]), "row 1 (from 0): the user id is empty"),
        ("what", pa.array(["a", "b", ""]), "row 2 (from 0): the item id is empty"),
        ("who", pa.array([1, 2, None]), "row 2 (from 0): the user id is empty"),
        ("who", pa.array([1, 2**63, 1], pa.uint64()), "the user id 9223372036854775808 is over 2**63 - 1; turn"),
        ("who", pa.array([1.0, 2.0, 3.0]), 'the user column "who" has type DOUBLE; turn it into integers or text'),
        ("what", pa.array([True, False, True]), 'the item column "what" has type BOOLEAN'),
        ("what", pa.array([["a"], ["b"], ["c"]]), 'the item column "what" has type VARCHAR[]'),
        ("n", pa.array([[1.0], [2.0], [3.0]]), 'the count column "n" has type DOUBLE[]'),
    ],
)
@pytest.mark.parametrize("maker", ["pyarrow", "parquet"])
def test_fault_in_a_frame_is_named(tmp_path: Path, maker: str, column: str, values: Any, problem: str) -> None:
    source = MAKERS[maker]({**COLUMNS, column: values}, tmp_path)
    with pytest.raises(ReadError, match="^(data frame|.*plays.parquet).*" + re.escape(problem)):
        read_interactions(source)


def test_names_that_the_reader_uses_itself() -> None:
    names = ["times", "raw_user", "user_id", "position", 'say "hi"']
    for user, item, count in [names[:3], names[1:4], names[2:], [names[4], *names[:2]]]:
        columns = {user: COLUMNS["who"], item: COLUMNS["what"], count: COLUMNS["n"]}
        frame = pa.table({**{name: [7, 8, 9] for name in names}, **columns})
        assert_same(read_interactions(frame, user=user, item=item, count=count), ANN_AND_BOB)


def test_fault_in_a_pandas_frame_is_named() -> None:
    with pytest.raises(ReadError, match=r"row 1 \(from 0\): count None is missing \(null or NaN\)"):
        read_interactions(pd.DataFrame({**COLUMNS, "n": [1, np.nan, 2]}))
    with pytest.raises(ReadError, match=r"data frame: cannot be read.*who"):
        read_interactions(pd.DataFrame({**COLUMNS, "who": pd.Series([1, "b", 2], dtype=object)}))
    with pytest.raises(ReadError, match="data frame: has columns but no rows"):
        read_interactions(pd.DataFrame(COLUMNS).iloc[:0])


def test_many_rows_of_a_frame_keep_their_numbers() -> None:
    n = 400_000
    counts = np.ones(n)
    counts[[250_123, 390_000]] = -1
    frame = pl.DataFrame({"user": np.arange(n), "item": np.arange(n) % 10, "count": counts})
    with pytest.raises(ReadError, match="row 250123 "):
        read_interactions(frame)


def test_interactive_import_is_light_and_quiet_and_polars_needs_no_pyarrow() -> None:
    # DuckDB takes python -c for an interactive session and would draw a progress bar
    script = """
import sys
import nbmf.data.read
print("duckdb" in sys.modules)
with nbmf.data.sql.connect("") as connection:
    print(connection.execute("SELECT current_setting('enable_progress_bar')").fetchall())
sys.modules["pyarrow"] = None
import polars
print(nbmf.data.read.read_interactions(polars.DataFrame({"user": ["a"], "item": [1], "n": [2.0]})))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    printed = done.stdout
    assert printed.splitlines() == [
        "False",
        "[(False,)]",
        "Interactions(1 user × 1 item, 1 non-zero count, total 2)",
    ]


# ---- times


def at(*times: Any) -> Interactions:
    return Interactions.from_arrays(*list(COLUMNS.values()), times=times)


NUMBERED = at(5, 7, -6)
DATES = ["2017-01-31", "2017-01-31T20:15:00.5", "2016-02-29T23:59"]
DATED = at(*DATES)
TIMESTAMPS = pa.array(pd.to_datetime(DATES, format="ISO8601"))


def assert_same_events(data: Interactions, expected: Interactions) -> None:
    assert_same(data, expected)
    assert data.events is not None
    assert expected.events is not None
    assert data.events.times.dtype.kind == expected.events.times.dtype.kind
    for name in ("rows", "columns", "counts", "times"):
        np.testing.assert_array_equal(getattr(data.events, name), getattr(expected.events, name), err_msg=name)


@pytest.mark.parametrize("hurry", [True, False], ids=["fast", "careful"])
@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (["5", "7", "-6"], NUMBERED),
        ([" 5", "7\t", "-6"], NUMBERED),
        (["5.0", "7", "-6e0"], at(5.0, 7.0, -6.0)),
        (DATES, DATED),
        (["2017-01-31 00:00:00", "2017-01-31 20:15:00.500000", "2016-02-29 23:59"], DATED),
        (["2017-01-31T00:00Z", "2017-01-31T22:15:00.5+02:00", "2016-02-29T18:29:00-0530"], DATED),
    ],
)
def test_times_in_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[str], expected: Interactions, hurry: bool
) -> None:
    (refuse_care if hurry else refuse_haste)(monkeypatch)
    rows = zip(*COLUMNS.values(), times, strict=True)
    content = "who|what|n|when\n" + "".join(f"{user}|{item}|{n}|{when}\n" for user, item, n, when in rows)
    assert_same_events(read_interactions(written(tmp_path, content), time="when"), expected)
    assert read_interactions(written(tmp_path, content)).events is None


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pa.array([5, 7, -6], pa.int16()), NUMBERED),
        (pa.array([5.0, 7.0, -6.0]), at(5.0, 7.0, -6.0)),
        (pa.array(["5", "7", "-6"]), NUMBERED),
        (TIMESTAMPS, DATED),
        (TIMESTAMPS.cast(pa.timestamp("ns")), DATED),
        (TIMESTAMPS.cast(pa.timestamp("us", "Europe/Paris")), DATED),
        (TIMESTAMPS.cast(pa.date32(), safe=False), at("2017-01-31", "2017-01-31", "2016-02-29")),
    ],
    ids=lambda times: str(getattr(times, "type", ""))[:24],
)
@pytest.mark.parametrize("maker", ["pandas", "polars", "pyarrow", "parquet"])
def test_times_in_frames(tmp_path: Path, maker: str, times: pa.Array, expected: Interactions) -> None:
    columns = {"who": COLUMNS["who"], "what": COLUMNS["what"], "n": COLUMNS["n"], "times": times}
    if maker in {"pandas", "polars"}:
        table = pa.table(columns)
        source = table.to_pandas() if maker == "pandas" else pl.DataFrame(table)
    else:
        source = MAKERS[maker](columns, tmp_path)
    assert_same_events(read_interactions(source, count="n", time="times"), expected)


def test_rows_with_times_count_one_each(tmp_path: Path) -> None:
    data = read_interactions(written(tmp_path, "user,item,time\nann,jazz,7\nann,jazz,5\n"), time="time")
    assert_same_events(data, Interactions.from_arrays(["ann", "ann"], ["jazz", "jazz"], times=[5, 7]))


@pytest.mark.parametrize(
    ("times", "row", "problem"),
    [
        (["1", "2", ""], 2, "time '' is empty; every row needs one"),
        (["1", "yesterday", "3"], 1, "time 'yesterday' is neither a number nor a date; write 2017-01-31, 2017-01-31T"),
        (["2017-01-01", "2017-02-30", "2017-01-01"], 1, "time '2017-02-30' is neither a number nor a date"),
        (["2017-01-01", "2017-01-01T25:00", "2017-01-01"], 1, "time '2017-01-01T25:00' is neither"),
        (["31/01/2017", "1/2/2017", "2/2/2017"], 0, "time '31/01/2017' is neither"),
        (["nan", "2", "3"], 0, "time 'nan' is neither"),
        (["1", "1e999", "3"], 1, "time '1e999' is neither"),
        (
            ["1", "2017-01-01", "3"],
            1,
            "time '2017-01-01' is not a number, but the time of the first row is; times are all",
        ),
        (["2017-01-01", "2017-01-02", "3"], 2, "time '3' is not a date, but the time of the first row is"),
    ],
)
def test_fault_in_a_time_is_named(tmp_path: Path, times: list[str], row: int, problem: str) -> None:
    frame = pa.table({**COLUMNS, "when": times})
    with pytest.raises(ReadError, match=re.escape(f"data frame, row {row} (from 0): {problem}")):
        read_interactions(frame, time="when")
    path = written(tmp_path, frame.to_pandas().to_csv(index=False))
    with pytest.raises(ReadError, match=re.escape(f"plays.txt, line {row + 2}: {problem}")):
        read_interactions(path, time="when")


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        (pa.array([1, None, 2]), "row 1 (from 0): time None is missing (null); every row needs one"),
        (pa.array([1.0, 2.0, float("inf")]), "row 2 (from 0): time 'inf' is neither a number nor a date"),
        (pa.array([True, True, False]), 'the time column "when" has type BOOLEAN; turn it into numbers or time stamps'),
    ],
)
def test_fault_in_a_typed_time_is_named(times: pa.Array, problem: str) -> None:
    with pytest.raises(ReadError, match=re.escape(problem)):
        read_interactions(pa.table({**COLUMNS, "when": times}), time="when")


def test_unknown_time_column_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "who,what,n,when\nann,jazz,3,1\n")
    with pytest.raises(ReadError, match="there is no column 'whenn' to be the time; did you mean 'when'"):
        read_interactions(path, time="whenn")


def test_zip_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="is a zip archive; unpack it"):
        read_interactions(written(tmp_path, b"PK\3\4" + b"\0" * 30, "plays.zip"))


# ---- real data


def real(name: str) -> Path:
    if "NBMF_DATA" not in os.environ:
        pytest.skip("NBMF_DATA does not name a folder with real data")
    return Path(os.environ["NBMF_DATA"], "data", name)


def test_taste_profile_from_text_and_parquet() -> None:
    text = read_interactions(real("tasteprofile_gouvert/interactions.csv.gz"))
    assert (text.n_users, text.n_items, text.nnz, text.matrix.sum().item()) == (1502, 786, 63_973, 183_299)
    assert_same(read_interactions(real("tasteprofile_gouvert/interactions.parquet")), text)
    assert text.users.dtype == text.items.dtype == np.int64


def test_taste_profile_with_its_own_ids(tmp_path: Path) -> None:
    path = real("tasteprofile_turi_head/interactions.parquet")
    data = read_interactions(path)
    assert (data.n_users, data.n_items, data.nnz) == (1630, 9071, 42_739)
    frame = pd.read_parquet(path)
    assert_same(data, Interactions.from_arrays(frame["user"], frame["item"], frame["count"]))
    triplets = tmp_path / "train_triplets.txt"
    frame[["user", "item", "count"]].to_csv(triplets, sep="\t", header=False, index=False)
    assert_same(read_interactions(triplets), data)


@pytest.mark.parametrize("told", [RuntimeError("Query interrupted"), "InterruptException"])
def test_ctrl_c_in_the_database_is_no_fault_of_the_file(tmp_path, monkeypatch, told):
    """The file is not read again, and is not called damaged."""
    import duckdb

    from nbmf.data import read as reading

    def interrupted(*arguments):
        raise getattr(duckdb, told)("Interrupted!") if isinstance(told, str) else told

    path = tmp_path / "plays.tsv"
    path.write_text("ann\tjazz\t3\n")
    monkeypatch.setattr(reading, "build_interactions", interrupted)
    monkeypatch.setattr(reading._TextFile, "read_carefully", lambda *arguments: pytest.fail("read again"))
    with pytest.raises(KeyboardInterrupt):
        read_interactions(path)


def test_what_nbmf_wrote_is_opened_otherwise(tmp_path):
    source, path = tmp_path / "plays.tsv", tmp_path / "plays.counts"
    source.write_text("ann\tjazz\t3\n")
    nbmf.store_counts(source, path)
    for read in (read_interactions, lambda path: nbmf.store_counts(path, tmp_path / "other")):
        with pytest.raises(ReadError, match=r"was written by nbmf; nbmf\.open_counts"):
            read(path)


# ---- blank lines, bad rows, standard input, what was read


@pytest.mark.parametrize("name", [".csv", ".csv.gz", ".tsv.zst"])
@pytest.mark.parametrize(
    "content",
    [
        b"\nuser,item,count\n\nann,jazz,3\n\n\nbob,jazz,1\nann,folk,12\n",
        b"\r\n\r\nuser,item,count\r\nann,jazz,3\r\n\r\nbob,jazz,1\r\nann,folk,12\r\n\r\n",
        b"  \nuser,item,count\nann,jazz,3\n   \nbob,jazz,1\n\t\nann,folk,12\n \t \n",
        b"ann\tjazz\t3\n\t\t\nbob\tjazz\t1\n\nann\tfolk\t12\n",
        b'\n"ann","jazz",3\n\nbob,jazz,1\n  \nann,"folk",12\n\n',
        b"\n" * 300 + PLAYS,
    ],
)
def test_blank_lines_are_skipped(tmp_path: Path, name: str, content: bytes) -> None:
    data = read_interactions(written(tmp_path, PACKINGS[name](content), "plays" + name))
    assert_same(data, ANN_AND_BOB)


@pytest.mark.parametrize("name", [".csv", ".csv.gz", ".tsv.zst"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_blank_lines_do_not_shift_the_lines_of_errors(tmp_path: Path, name: str, end: bytes) -> None:
    content = b"\nuser,item,count\n\n  \na,x,1\n\nb,x,-3\nb,x\n".replace(b"\n", end)
    with pytest.raises(ReadError, match=r"line 7: count '-3' .*also line 8: 2 columns"):
        read_interactions(written(tmp_path, PACKINGS[name](content), "plays" + name))


def test_blank_lines_across_blocks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is checked by blocks of a mebibyte, whose ends may fall before, inside and after an empty line."""
    refuse_care(monkeypatch)
    line = b"user%025d,item%022d,1\r\n"
    for shift in range(4):
        n_before = (1 << 20) // 60
        lines = [line % (k, k) for k in range(n_before)]
        padding = b"u" * ((1 << 20) - 60 * n_before - shift - 4) + b",i,1\r\n"
        content = b"".join(lines) + padding + b"\r\n\r\n\r\n" + line % (7, 7)
        assert read_interactions(written(tmp_path, content)).matrix.sum() == n_before + 2


@pytest.mark.parametrize("maker", ["pyarrow", "parquet"])
def test_whole_numbers_in_exponent_form_are_counts(tmp_path: Path, maker: str) -> None:
    """Exactly, also where a double would round."""
    texts = ["1e+05", "1.5E3", "9.223372036854775807e18", "9.007199254740993e15", "0e0", "00012.50e002"]
    columns = {"user": list("abcdef"), "item": list("xxxxxx"), "count": texts}
    expected = [100_000, 1500, LARGEST, 2**53 + 1, 0, 1250]
    assert read_interactions(MAKERS[maker](columns, tmp_path)).matrix.toarray().ravel().tolist() == expected
    path = written(tmp_path, "".join(f"{user},x,{text}\n" for user, text in zip("abcdef", texts, strict=True)))
    assert read_interactions(path).matrix.toarray().ravel().tolist() == expected


DIRTY = {"user": ["ann", "bob", "", "ann", "eve", "bob"], "item": ["jazz", "jazz", "x", "folk", "x", "jazz"]}
DIRTY["count"] = ["3", "1", "2", "12", "-2", "2.5"]


def dirty(kind: str, folder: Path) -> Any:
    if kind in MAKERS:
        return MAKERS[kind](DIRTY, folder)
    if kind == "folder":
        (folder / "parts").mkdir()
        MAKERS["parquet"](DIRTY, folder / "parts")
        return folder / "parts"
    text = "user,item,count\n" + "".join(",".join(row) + "\n" for row in zip(*DIRTY.values(), strict=True))
    text = text.replace("ann,folk", "too,many,columns,3\nuser,item,count\nann,folk")
    return written(folder, PACKINGS[kind](text.encode()), "dirty" + kind)


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".tsv.zst", "pandas", "polars", "parquet", "folder"])
def test_bad_rows_are_skipped_with_one_warning(tmp_path: Path, kind: str) -> None:
    with pytest.warns(UserWarning, match=r"skipped \d of \d rows") as caught:
        data = read_interactions(dirty(kind, tmp_path), bad_rows="skip")
    assert_same(data, ANN_AND_BOB)
    (warning,) = caught
    assert warning.filename == __file__
    told = str(warning.message)
    if "." in kind:
        assert "skipped 5 of 8 rows: line 4: the user id is empty; line 5: 4 columns where 3" in told
        assert told.endswith("line 6: the header again; line 8: count '-2' is negative; and 1 more")
    else:
        assert "skipped 3 of 6 rows: " in told
        assert re.search(
            r"row 2 \(from 0\): the user id is empty; .*row 5 \(from 0\): count '2.5' is a fraction$", told
        )


@pytest.mark.parametrize("kind", [".csv", ".tsv.zst", "polars", "parquet"])
def test_an_error_names_the_next_bad_rows_and_the_way_out(tmp_path: Path, kind: str) -> None:
    place = "line 4" if "." in kind else r"row 2 \(from 0\)"
    also = r"\(also .*count '-2' is negative.*\)"
    way_out = "bad_rows='skip' leaves such rows out"
    with pytest.raises(ReadError, match=f"{place}: the user id is empty; every row needs one {also}; {way_out}$"):
        read_interactions(dirty(kind, tmp_path))


def test_nothing_is_said_when_there_is_nothing_to_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_care(monkeypatch)
    assert_same(read_interactions(written(tmp_path, PLAYS), bad_rows="skip"), ANN_AND_BOB)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a,x,1\nb,x,-1\ncaf\xe9,x,1\n", r"line 3: byte 16 \(0xe9\) is not UTF-8"),
        (b"a,x,1\nb,x,-1\nc\0,x,1\n", "line 3: NUL"),
        (b'a,x,1\nb,x,-1\n"c,x,1\n', "line 3: the quotes do not match"),
        (b"a,x,-1\nb,x,-1\n", "none of its 2 rows can be used: line 1: count '-1' is negative"),
    ],
)
def test_what_is_no_table_is_not_skipped(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(ReadError, match=problem):
        read_interactions(written(tmp_path, content), bad_rows="skip")


def test_rows_without_a_time_are_skipped(tmp_path: Path) -> None:
    """The first time that can be read decides whether times are dates."""
    path = written(tmp_path, "user,item,day\nann,jazz,soon\nann,jazz,2017-01-31\nbob,jazz,7\nbob,folk,2017-02-01\n")
    with pytest.warns(UserWarning, match="skipped 2 of 4 rows: line 2: time 'soon' is neither .*; line 4: time '7'"):
        data = read_interactions(path, time="day", bad_rows="skip")
    dates = ["2017-01-31", "2017-02-01"]
    assert_same_events(data, Interactions.from_arrays(["ann", "bob"], ["jazz", "folk"], times=dates))


def test_a_way_to_treat_bad_rows_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad_rows is 'drop'; it must be 'error' or 'skip'"):
        read_interactions(written(tmp_path, PLAYS), bad_rows="drop")


STANDARD_INPUT = """
import nbmf
try:
    print(nbmf.read_interactions("-").of_user("ann"))
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (PLAYS, "{'folk': 12, 'jazz': 3}"),
        (gzip.compress(PLAYS), "{'folk': 12, 'jazz': 3}"),
        (zstandard.compress(PLAYS), "{'folk': 12, 'jazz': 3}"),
        (b"a,x,1\nb,x,-3\n", "standard input, line 2: count '-3' is negative"),
        (b"", "standard input: is empty (0 bytes)"),
    ],
    ids=["plain", "gzip", "zstd", "fault", "empty"],
)
def test_standard_input(content: bytes, told: str) -> None:
    command = [sys.executable, "-c", STANDARD_INPUT]
    done = subprocess.run(command, input=content, capture_output=True, timeout=LIMIT, check=True)
    assert done.stdout.decode().startswith(told)


@pytest.mark.parametrize(
    ("content", "reading"),
    [
        (
            "day,who,what,n,m\n9,ann,jazz,3,30\n8,bob,jazz,0,10\n",
            "user 'who', item 'what', count 'n'; ignored: 'day', 'm'; 1",
        ),
        ("who,what\nann,jazz\n", "user 'who', item 'what', each row counts 1"),
        (
            "ann,jazz,3\nbob,jazz,0\nbob,folk,0\n",
            "no header, so user, item, count in this order; 2 pairs with a count of 0",
        ),
        ("1,10\n2,10\n", "no header, so user, item in this order; each row counts 1"),
    ],
)
def test_reading_says_which_columns_it_used(tmp_path: Path, content: str, reading: str) -> None:
    assert read_interactions(written(tmp_path, content)).reading.startswith(reading)
    with pytest.MonkeyPatch.context() as monkeypatch:
        refuse_haste(monkeypatch)
        assert read_interactions(written(tmp_path, content)).reading.startswith(reading)


def test_reading_of_a_frame_says_which_columns_it_used() -> None:
    frame = pd.DataFrame({**COLUMNS, **{f"x{k}": k for k in range(9)}})
    said = "user 'who', item 'what', count 'n'; ignored: 'x0', 'x1', 'x2', 'x3', 'x4', 4 more"
    assert read_interactions(frame).reading == said
