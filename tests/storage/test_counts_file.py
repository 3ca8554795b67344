"""Counts larger than memory: the file holds what reading and filtering in memory gives, and damage is refused."""

import errno
import mmap
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import nbmf
from helpers import assert_same_interactions, child, count_matrices, small_matrix, write_rows
from nbmf.backends.cost import COMPILING, Sizes, continued
from nbmf.data.text import ReadError
from nbmf.storage import counts as counts_file
from nbmf.storage.container import StorageError, read, write


def written(path, users, items, counts):
    return write_rows(path, zip(users, items, counts, strict=True), separator="\t")


def assert_same(ours, plain):
    assert_same_interactions(ours, plain, dtype=ours.matrix.dtype)


@pytest.fixture
def plays(tmp_path):
    """Rows in no order, with repeated pairs and counts of 0."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 30, 400), rng.integers(0, 12, 400)
    return written(tmp_path / "plays.tsv", [f"user{u}" for u in users], items, rng.integers(0, 5, 400))


@pytest.mark.parametrize("least", [(0, 0), (8, 0), (8, 7), (99, 0), (99, 1)])
def test_as_reading_and_filtering_in_memory(plays, tmp_path, least, monkeypatch):
    """With several ranges of users."""
    monkeypatch.setattr("nbmf.storage.counts.BYTES_PER_ROW", 500_000)  # ranges of about 120 rows
    path = tmp_path / "plays.counts"
    ours = nbmf.store_counts(
        plays, path, min_users_per_item=least[0], min_items_per_user=least[1], memory_limit="500MB"
    )
    plain = nbmf.read_interactions(plays)
    kept = plain.filter(*least) if any(least) else plain
    assert_same(ours, nbmf.Interactions(kept.users, kept.items, kept.matrix, n_repeated=ours.n_repeated))
    if not any(least):
        assert_same(ours, plain)
    assert_same(nbmf.open_counts(path), ours)
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@settings(max_examples=10)
@given(count_matrices())
def test_any_counts_come_back(matrix):
    entries = sp.coo_array(matrix)
    if not entries.nnz:
        return
    with tempfile.TemporaryDirectory() as folder:
        plays = written(Path(folder, "p.csv"), *(values.tolist() for values in (*entries.coords, entries.data)))
        ours = nbmf.store_counts(plays, Path(folder, "c"))
        assert_same(ours, nbmf.read_interactions(plays))


def test_a_fit_from_the_file_is_that_from_memory(plays, tmp_path):
    ours = nbmf.store_counts(plays, tmp_path / "c")
    assert not ours.matrix.data.flags.writeable
    fits = [nbmf.NBMF(3, random_state=0, max_iter=5).fit(data) for data in (ours, nbmf.read_interactions(plays))]
    assert fits[0].objective_.tobytes() == fits[1].objective_.tobytes()
    assert fits[0].item_factors_.tobytes() == fits[1].item_factors_.tobytes()


def test_a_folder_of_parquet_parts(tmp_path):
    pd = pytest.importorskip("pandas", reason="pandas, which writes the parts, is not installed")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"user": rng.integers(0, 20, 90), "item": rng.integers(0, 9, 90), "count": 1})
    (tmp_path / "parts").mkdir()
    for n in range(3):
        frame[n::3].to_parquet(tmp_path / "parts" / f"{n}.parquet")
    assert_same(nbmf.store_counts(tmp_path / "parts", tmp_path / "c"), nbmf.read_interactions(frame))
    assert_same(nbmf.read_interactions(tmp_path / "parts"), nbmf.read_interactions(frame))


def test_a_fault_is_named_and_nothing_is_left(tmp_path):
    plays = written(tmp_path / "plays.tsv", ["ann", "bob"], ["jazz", "jazz"], ["3", "-1"])
    with pytest.raises(ValueError, match="line 2: count '-1' is negative"):
        nbmf.store_counts(plays, tmp_path / "c")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["plays.tsv"]


def test_the_file_that_is_read_is_not_written_over(plays):
    before = plays.read_bytes()
    with pytest.raises(StorageError, match="is, or lies in, the source to be read"):
        nbmf.store_counts(plays, plays.parent / "." / plays.name)
    assert plays.read_bytes() == before


@pytest.mark.parametrize("step", ["_spool", "_write"])
def test_a_full_disk_leaves_the_old_file(plays, tmp_path, monkeypatch, step):
    """Also if it fills while rows are spooled; NumPy's error then has neither a file name nor an errno."""
    path = tmp_path / "c"
    nbmf.store_counts(plays, path)
    names, whole = sorted(tmp_path.iterdir()), path.read_bytes()

    def fail(*arguments):
        raise OSError("400 requested and 0 written")

    monkeypatch.setattr(f"nbmf.storage.counts.{step}", fail)
    with pytest.raises(StorageError, match=r"c: cannot be written \(400 requested .* unchanged. Make room in"):
        nbmf.store_counts(plays, path, min_users_per_item=2)
    assert sorted(tmp_path.iterdir()) == names
    assert path.read_bytes() == whole


def test_a_source_that_fails_is_not_reported_as_a_full_disk(plays, tmp_path, monkeypatch):
    """An error of a broken disk does not name the file either."""

    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("nbmf.data.read._TextFile.check", fail)
    with pytest.raises(OSError, match=r"^\[Errno 5\] Input/output error$"):
        nbmf.store_counts(plays, tmp_path / "c")
    assert sorted(tmp_path.iterdir()) == [plays]


def test_a_place_where_nothing_can_be_made_is_named(plays, tmp_path, monkeypatch):
    def fail(name, *arguments):
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr("tempfile._os.mkdir", fail)
    with pytest.raises(StorageError, match=r"c: cannot be written \(Permission denied\).* or write elsewhere"):
        nbmf.store_counts(plays, tmp_path / "c")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("OutOfMemoryException", "failed to offload data block"), ("IOException", "write: No space left on device")],
)
def test_a_database_without_room_says_where(plays, tmp_path, monkeypatch, kind, reason):
    """The source is not read a second time, which would take long and fail again."""
    import duckdb

    tried = []

    def fail(connection, table, *arguments):
        tried.append(table.relation)
        raise getattr(duckdb, kind)(reason)

    monkeypatch.setattr("nbmf.storage.counts.number_ids", fail)
    with pytest.raises(ValueError, match=f"ran out of room in memory or in {tmp_path}/.c.working-.*{reason}"):
        nbmf.store_counts(plays, tmp_path / "c")
    assert len(tried) == 1


def test_ctrl_c_leaves_nothing_behind(plays, tmp_path, monkeypatch):
    def press(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("nbmf.storage.counts._write", press)
    with pytest.raises(KeyboardInterrupt):
        nbmf.store_counts(plays, tmp_path / "c")
    assert sorted(tmp_path.iterdir()) == [plays]


KILLED = """
import os, sys
import nbmf.storage.counts

def write(name, *arguments):
    if sys.argv[3] == "kill":
        open(os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unfinished-0123456789abcdef"), "w")
        os.kill(os.getpid(), 9)
    print("writing", flush=True)
    sys.stdin.read()

nbmf.storage.counts._write = write
nbmf.store_counts(*sys.argv[1:3])
"""


@pytest.mark.skipif(os.name != "posix", reason="elsewhere folders cannot be locked")
def test_what_the_killed_left_is_removed_by_the_next_to_write_there(plays, tmp_path):
    """But not what writers of other files left, nor the folder of a writer at work."""
    for name in ("c", "c2"):
        subprocess.run([sys.executable, "-c", KILLED, plays, tmp_path / name, "kill"], timeout=300, check=False)
    of_others = {file.name for file in tmp_path.iterdir() if file.name.startswith(".c2")}
    assert len(of_others) == 2
    assert len(list(tmp_path.iterdir())) == 5
    command = [sys.executable, "-c", KILLED, plays, tmp_path / "c", "wait"]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as at_work:
        assert at_work.stdout.readline() == b"writing\n"
        (its_own,) = (file.name for file in tmp_path.iterdir() if file.name.startswith(".c.working"))
        nbmf.store_counts(plays, tmp_path / "c")
        assert {file.name for file in tmp_path.iterdir()} == {"plays.tsv", "c", its_own} | of_others
        at_work.stdin.close()
        at_work.wait(60)
    nbmf.store_counts(plays, tmp_path / "c2")
    assert {file.name for file in tmp_path.iterdir()} == {"plays.tsv", "c", "c2"}


def test_what_is_no_file_of_counts(plays, tmp_path):
    with pytest.raises(StorageError, match=r"not a file of counts.*store_counts"):
        nbmf.open_counts(plays)
    with pytest.raises(FileNotFoundError, match="no such file"):
        nbmf.open_counts(tmp_path / "c")
    with pytest.raises(StorageError, match="folder"):
        nbmf.open_counts(tmp_path)
    with pytest.raises(StorageError, match="there is no folder"):
        nbmf.store_counts(plays, tmp_path / "nowhere" / "c")


@pytest.mark.parametrize("limit", ["much", "2 EB", -1, "100MB"])
def test_a_limit_that_is_none(plays, tmp_path, limit):
    with pytest.raises(ValueError, match="memory_limit is"):
        nbmf.store_counts(plays, tmp_path / "c", memory_limit=limit)


def test_damage_and_forgery_are_found(plays, tmp_path):
    path = tmp_path / "c"
    nbmf.store_counts(plays, path)
    whole = path.read_bytes()
    for place in range(200, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(StorageError, match=r"damaged|header"):
            nbmf.open_counts(path)
    path.write_bytes(whole)
    contents = read(path)
    for name, change in (
        ("counts.indices", lambda v: v[::-1]),
        ("counts.indices", lambda v: v + 5),
        ("counts.indptr", lambda v: np.sort(v)[::-1]),
        ("counts.data", lambda v: 0 * v),
    ):
        write(path, contents.document, contents.arrays | {name: change(contents.arrays[name])})
        with pytest.raises(StorageError, match="not how nbmf writes"):
            nbmf.open_counts(path)
    nbmf.NBMF(1, max_iter=1).fit(small_matrix()).save(path)
    with pytest.raises(StorageError, match="is a model, not a file of counts"):
        nbmf.open_counts(path)


FIT = """
import sys
import numpy as np, scipy.sparse as sp
import nbmf

def bytes_of(name):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def fit(n_users, n_items, per_user, n_components, accelerate):
    rng = np.random.default_rng(0)
    width = n_items // per_user
    indices = (rng.integers(0, width, (n_users, per_user)) + np.arange(per_user) * width).ravel().astype(np.int32)
    indptr = np.arange(0, n_users * per_user + 1, per_user, dtype=np.int32)
    matrix = sp.csr_array((np.ones(len(indices), np.int32), indices, indptr), shape=(n_users, n_items))
    data = nbmf.Interactions(np.arange(n_users), np.arange(n_items), matrix)
    nbmf.NBMF(n_components, exposure="tied", random_state=0, max_iter=4, tol=0, accelerate=accelerate > 0).fit(data)

fit(500, 100, 5, 2, 0)  # imports everything, and compiles what is not yet in the cache
print(bytes_of("VmHWM"))
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = bytes_of("VmRSS")
fit(*map(int, sys.argv[1:]))
print(bytes_of("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory through /proc")
@pytest.mark.parametrize("accelerate", [False, True])
def test_the_memory_of_a_fit_is_as_stated(accelerate):
    """Python and the data each take at most what was stated, and at least half of it.

    Not by rusage: its peak of a process is at least that of the process that started it.
    """
    n_users, n_items, per_user, K = 100_000, 8000, 20, 30
    command = [sys.executable, "-c", FIT, *map(str, (n_users, n_items, per_user, K, int(accelerate)))]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    interpreter, arrays = map(int, done.stdout.split())
    nnz = n_users * per_user
    stated = Sizes(n_users, n_items, nnz, K, accelerate=accelerate).memory()
    python = stated.pop("Python")
    assert 0.5 * python < interpreter <= python + COMPILING  # if no earlier test has compiled the loops
    assert 0.5 * sum(stated.values()) < arrays - 8 * nnz <= sum(stated.values())


SIZES = st.builds(
    Sizes, st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 10**8), st.integers(1, 200),
    st.sampled_from(["tied", "exact", None]),
)  # fmt: skip


@given(SIZES)
def test_memory_grows_with_every_size(sizes):
    for name in ("n_users", "nnz", "n_components"):
        larger = replace(sizes, **{name: 2 * getattr(sizes, name)})
        for backend in ("cpu", "gpu"):
            assert sum(sizes.memory(backend).values()) < sum(larger.memory(backend).values())
        assert sizes.memory_of_driver() < larger.memory_of_driver()
        assert sizes.products <= larger.products


@given(SIZES, st.integers(4 * 10**8, 10**11))
def test_as_many_machines_as_are_needed(sizes, memory):
    """With one machine less, they would run out of memory."""
    n, needed = sizes.machines(memory), {m: sizes.memory_of_worker(m) for m in range(2, sizes.parts + 1)}
    needed[1] = sum(sizes.memory().values())
    if n is None:
        assert min(needed.values()) > memory
        return
    assert needed[n] <= memory
    assert n == 1 or needed[n - 1] > memory


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 10**6), st.floats(0, 10), st.floats(1e-6, 1))
def test_seconds_are_on_the_line(few, more, rest, of_items, of_user):
    n_few, n_more, n_users = few, few + more, few + more + rest
    points = [(n, of_items + of_user * n) for n in (n_few, n_more)]
    assert continued(*points, n_users) == pytest.approx(of_items + of_user * n_users, rel=1e-6)
    for disturbed in ((2.0, 1.0), (0.0, 1.0)):
        assert 1.0 <= continued(*zip((n_few, n_more), disturbed, strict=True), n_users) <= n_users / n_more * (1 + 1e-9)


def test_a_source_that_changes_leaves_the_old_file(tmp_path, monkeypatch):
    source, path = tmp_path / "plays.tsv", tmp_path / "plays.counts"
    source.write_text("ann\tjazz\t3\n")
    nbmf.store_counts(source, path)
    before, spool = path.read_bytes(), counts_file._spool

    def while_it_grows(*arguments):
        source.write_text("ann\tjazz\t3\nbob\tjazz\t1\n")
        os.utime(source, ns=(1, 1))
        return spool(*arguments)

    monkeypatch.setattr(counts_file, "_spool", while_it_grows)
    with pytest.raises(ReadError, match="changed while it was being read"):
        nbmf.store_counts(source, path)
    assert path.read_bytes() == before


def test_ids_that_exceed_the_limit_are_refused_early(tmp_path, monkeypatch):
    """Ids are held in memory, so nothing is read a second time and nothing is written."""
    source, path = tmp_path / "plays.tsv", tmp_path / "plays.counts"
    source.write_text("".join(f"user{n}\tjazz\t3\n" for n in range(10)))
    monkeypatch.setattr(counts_file, "BYTES_PER_TEXT", 100_000_000)
    with pytest.raises(StorageError, match=r"ids of 10 users and 1 items alone need about 4\.7 GB, and memory_limit"):
        nbmf.store_counts(source, path, memory_limit="800MB")
    assert os.listdir(tmp_path) == ["plays.tsv"]


def test_a_fault_in_one_of_the_parts_names_it(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pa = pytest.importorskip("pyarrow")
    for n, counts in enumerate(([1, 2], [3, -7])):
        pq.write_table(pa.table({"user": [1, 2], "item": [3, 4], "count": counts}), tmp_path / f"part{n}.parquet")
    with pytest.raises(ReadError, match=r"part1\.parquet, row 1 \(from 0\): count '-7' is negative"):
        nbmf.read_interactions(tmp_path)


DISTURBED = """
import shutil, sys
import nbmf
from nbmf.storage import container

whole, other, path = sys.argv[1:]

def cut():
    open(path, "r+b").truncate(0)

def replace_in_place():
    shutil.copyfile(other, path)

def change():
    with open(path, "r+b") as stream:
        length = len(stream.read())
        stream.seek(length // 2)
        stream.write(b"\\0" * (length - length // 2))

def used(disturb):
    shutil.copyfile(whole, path)
    data = nbmf.open_counts(path)
    model = nbmf.NBMF(3, random_state=0, max_iter=6, tol=0, backend="cpu")
    model.fit(data, callbacks=[lambda snapshot: disturb() if snapshot.sweep == 2 else None])
    train, test = data.split()
    ndcg = nbmf.evaluate(nbmf.PoissonMF(2, random_state=0, max_iter=3).fit(train), train, test)["ndcg_counts"].mean
    return model.objective_.tolist(), model.recommend(data.users, n=3).items.tolist(), ndcg

for container.IN_MEMORY in (0, 1 << 26):
    expected = used(lambda: None)
    for disturb in (cut, replace_in_place, change):
        print(disturb.__name__, used(disturb) == expected, flush=True)
"""


def test_a_file_that_changes_while_it_is_open_changes_nothing(plays, tmp_path):
    """In a process of its own: a map of the file would end it by a signal."""
    nbmf.store_counts(plays, tmp_path / "whole")
    nbmf.store_counts(plays, tmp_path / "other", min_users_per_item=18)
    command = [sys.executable, "-c", DISTURBED, *(tmp_path / name for name in ("whole", "other", "path"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == ["cut True", "replace_in_place True", "change True"] * 2, done.returncode


def test_large_counts_are_on_disk(plays, tmp_path, monkeypatch):
    """Where nobody sees them, and only as long as they are open."""
    ours = nbmf.store_counts(plays, tmp_path / "c")
    monkeypatch.setattr("nbmf.storage.container.IN_MEMORY", 0)
    names = sorted(tmp_path.iterdir())
    mapped = nbmf.open_counts(tmp_path / "c")
    held = mapped.matrix.indices
    while isinstance(held, np.ndarray):
        held = held.base
    assert isinstance(held, mmap.mmap)
    assert sorted(tmp_path.iterdir()) == names
    assert_same(mapped, ours)


def test_a_folder_that_cannot_be_written_to(plays, tmp_path, monkeypatch):
    ours, tried = nbmf.store_counts(plays, tmp_path / "c"), []

    def only_elsewhere(dir=None, **options):
        tried.append(dir)
        if dir is not None:
            raise PermissionError(errno.EACCES, "Permission denied", dir)
        return temporary_file(**options)

    temporary_file = tempfile.TemporaryFile
    monkeypatch.setattr("nbmf.storage.container.IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "TemporaryFile", only_elsewhere)
    assert_same(nbmf.open_counts(tmp_path / "c"), ours)
    assert tried[:2] == [str(tmp_path), None]


def test_no_room_for_the_copy(plays, tmp_path, monkeypatch):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    nbmf.store_counts(plays, tmp_path / "c")
    monkeypatch.setattr("nbmf.storage.container.IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(
        StorageError, match=r"c: cannot be read \(No space left on device\); .* needs as much free space"
    ):
        nbmf.open_counts(tmp_path / "c")
