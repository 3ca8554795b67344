"""How tests run, and the fixtures that several folders use; plain functions that they share are in helpers.py."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import scipy.sparse as sp

import nbmf

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for a GPU are then interpreted, where Triton is installed

IN_MEMORY, MADE = "/dev/shm", None
if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 2e9:
    # models and checkpoints are synced to disk a thousand times, which takes a minute on a busy disk
    os.environ["TMPDIR"] = tempfile.tempdir = MADE = tempfile.mkdtemp(prefix="nbmf-tests-", dir=IN_MEMORY)

if "PYTEST_XDIST_WORKER" in os.environ:
    # two processes must not write to one numba cache: one's loops can be stored under the other's types
    folder = Path(__file__).parent.parent / ".numba_cache" / os.environ["PYTEST_XDIST_WORKER"]
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell ignores SIGINT in what it starts in the background, and children inherit that: tests of Ctrl-C would wait
    # for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("tests")


class Turns:
    """Run tests on several workers side by side, but let the others wait for a test marked `alone`."""

    def __init__(self) -> None:
        folder = Path(__file__).parent
        self.door, self.room = (os.open(path, os.O_RDONLY) for path in (folder.parent, folder))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock

        flock(self.door, LOCK_EX)  # held while waiting for the room, or a test that needs it alone might never get it
        flock(self.room, LOCK_EX if item.get_closest_marker("alone") else LOCK_SH)
        flock(self.door, LOCK_UN)
        try:
            return (yield)
        finally:
            flock(self.room, LOCK_UN)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several
        config.pluginmanager.register(Turns())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    if MADE and exitstatus == 0:  # otherwise somebody may want to look at it
        shutil.rmtree(MADE, ignore_errors=True)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    folder = os.environ.get("NBMF_DATA")
    if not folder:
        pytest.skip("NBMF_DATA is not set: it names the folder with the real data and the oracle")
    return Path(folder)


@pytest.fixture(scope="session")
def taste_profile(data_folder: Path) -> tuple[nbmf.Interactions, nbmf.Interactions]:
    """The author's subset and the author's own split of it."""
    import pyarrow.parquet as pq

    table = pq.read_table(data_folder / "data" / "tasteprofile_gouvert" / "interactions.parquet")
    user, item, count, test = (table[name].to_numpy() for name in ("user", "item", "count", "test"))

    def part(rows: np.ndarray) -> nbmf.Interactions:
        return nbmf.Interactions.from_matrix(
            sp.csr_array((count[rows].astype(np.int64), (user[rows], item[rows])), shape=(1502, 786))
        )

    return part(~test), part(test)


@pytest.fixture(scope="session")
def plays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of plays with ids, counts and times."""
    from helpers import small_matrix, write_rows  # numba reads the variables set above when it is imported

    matrix = small_matrix(40, 30, seed=1)
    rows = [
        (f"user {row}", f"song {column}", matrix[row, column], f"2017-01-{1 + n % 28:02d}")
        for n, (row, column) in enumerate(np.argwhere(matrix).tolist())
    ]
    path = tmp_path_factory.mktemp("plays") / "plays.csv"
    return write_rows(path, rows, ["listener", "song", "plays", "day"])


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small model file."""
    from helpers import small_matrix

    path = tmp_path_factory.mktemp("small") / "model.nbmf"
    data = nbmf.Interactions.from_matrix(small_matrix(12, 9)[:4, :3], users=list("abcé"))
    nbmf.NBMF(1, random_state=0, max_iter=2).fit(data).save(path)
    return path.read_bytes()
