"""Results on disk: rows survive a kill, come back as they were, and never mix with those of another experiment."""

import json
import math
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import numpy as np
import pytest

from nbmf.evaluation.experiments.store import Job, Row, Store, packed, write_whole

SETTINGS = {"data": {"name": "plays", "nnz": 7}, "grid": {"seed": 0, "components": [2, 3]}}
JOB = Job("nbmf-2-0", "nbmf", 0, {"n_components": 2, "tol": 1e-5, "input": "counts"})
ROW = Row(JOB, 0.25, math.inf, "", {"sweeps": 3, "converged": True, "objective": -1.5}, {"ndcg_counts": 1 / 3}, -0.25)
VALUES = {"ndcg_counts": np.array([0.1, np.nan, 1 / 3])}


def change(store, command, *values):
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute(command, values)


def test_a_row_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path / "new" / "folder", SETTINGS)
    assert store.rows() == {}
    assert store.missing([JOB]) == [JOB]
    store.add(ROW, packed(VALUES))
    again = Store(store.folder, SETTINGS)
    assert again.rows() == {"nbmf-2-0": ROW}
    np.testing.assert_array_equal(again.per_user("nbmf-2-0")["ndcg_counts"], VALUES["ndcg_counts"])
    assert again.missing([JOB]) == []
    other = Job(JOB.name, JOB.model, JOB.seed, {**JOB.settings, "n_components": 5})
    assert again.missing([other]) == [other]  # other settings: another trial has become the best
    again.add(Row(other, problem="ValueError: no"))
    (row,) = again.rows().values()
    assert (row.problem, row.job) == ("ValueError: no", other)
    assert math.isnan(row.seconds)


def test_another_experiment_is_refused(tmp_path):
    Store(tmp_path, SETTINGS)
    for grid, message in (
        ({"seed": 7, "components": [2, 3]}, "its grid seed is 0, not 7"),
        ({"seed": 0, "components": [2]}, r"its grid components is \[2, 3\], not \[2\]; choose another folder"),
        ({"seed": 0, "components": [2, 3], "tol": 1}, "its grid tol is None, not 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Store(tmp_path, {**SETTINGS, "grid": grid})
    assert Store(tmp_path, SETTINGS).rows() == {}


def test_damage_is_named(tmp_path):
    store = Store(tmp_path / "settings", SETTINGS)
    store.add(ROW, packed(VALUES))
    change(store, "UPDATE experiment SET settings = ?", "[1")
    with pytest.raises(ValueError, match="is damaged"):
        Store(store.folder, SETTINGS)
    change(store, "DELETE FROM experiment")
    with pytest.raises(ValueError, match="has results but no settings"):
        Store(store.folder, SETTINGS)
    store = Store(tmp_path / "row", SETTINGS)
    for text in ("{", "[]", "{}", json.dumps({"job": {"name": "a"}})):
        change(store, "INSERT OR REPLACE INTO results VALUES ('a', ?, NULL)", text)
        with pytest.raises(ValueError, match="the row 'a' is damaged"):
            store.rows()
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "results.sqlite").write_bytes(b"user,item,count\n" * 100)
    with pytest.raises(ValueError, match="is damaged"):
        Store(tmp_path / "file", SETTINGS)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "results.sqlite").mkdir()
    with pytest.raises(OSError, match=r"results\.sqlite: unable to open"):
        Store(tmp_path, SETTINGS)


KILLED = """
import os, signal, sys
from nbmf.evaluation.experiments.store import Job, Row, Store
store = Store({folder!r}, {settings!r})
for n in range(3):
    store.add(Row(Job(str(n), "nbmf", n, {{}})), b"values" * 1000)
with store._transaction() as database:  # a row that is written but not committed
    database.execute("INSERT INTO results VALUES ('torn', '{{}}', NULL)")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_whole_rows(tmp_path):
    script = tmp_path / "killed.py"
    folder = tmp_path / "folder"
    script.write_text(
        "from pathlib import Path\n" + KILLED.replace("{folder!r}", f"Path({str(folder)!r})").format(settings=SETTINGS)
    )
    ended = subprocess.run([sys.executable, script], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    store = Store(folder, SETTINGS)
    assert list(store.rows()) == ["0", "1", "2"]
    store.add(ROW)
    assert list(store.rows())[-1] == ROW.job.name


def test_two_runs_may_write_to_one_folder(tmp_path):
    stores = [Store(tmp_path, SETTINGS) for _ in range(2)]

    def write(store):
        for n in range(40):
            store.add(Row(Job(f"job {n}", "nbmf", n, {})), packed(VALUES))

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stores[0].rows()) == 40


def test_a_file_is_written_as_a_whole(tmp_path):
    path = tmp_path / "page.txt"
    for content, expected in (("é\n", "é\n".encode()), (b"\x00", b"\x00")):
        write_whole(path, content)
        assert path.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [path]
