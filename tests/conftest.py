"""What several test files share: the real data, small matrices, and matrices made by hypothesis."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

import nbmf

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for a GPU are then interpreted, where Triton is installed

IN_MEMORY, MADE = "/dev/shm", None
if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 2e9:
    # models and checkpoints are forced to the disk a thousand times, which takes a minute where others write, too
    os.environ["TMPDIR"] = tempfile.tempdir = MADE = tempfile.mkdtemp(prefix="nbmf-tests-", dir=IN_MEMORY)

if "PYTEST_XDIST_WORKER" in os.environ:
    # numba's cache is no place where two may write: one's loops can be stored under the other's types
    folder = Path(__file__).parent.parent / ".numba_cache" / os.environ["PYTEST_XDIST_WORKER"]
    os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("tests")


class Turns:
    """Tests on several workers side by side, but for those marked `alone`, for which the others wait."""

    def __init__(self) -> None:
        folder = Path(__file__).parent
        self.door, self.room = (os.open(path, os.O_RDONLY) for path in (folder.parent, folder))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock

        flock(self.door, LOCK_EX)  # kept while waiting for the room, or one who needs it alone might wait for ever
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
    if MADE and exitstatus == 0:  # else somebody may want to look
        shutil.rmtree(MADE, ignore_errors=True)


def gpus(*, interpreted: bool = True) -> list[Any]:
    """The gpu backend as far as it runs here: its plain passes; its kernels on a GPU or, slowly, interpreted."""
    if find_spec("torch") is None:
        return []
    import torch

    from nbmf.backends.gpu.device import Gpu

    torch.set_num_threads(1)  # in tests threads would wait for each other longer than they work
    found = [Gpu(kernels="torch")]
    if find_spec("triton") is not None and (interpreted or "TRITON_INTERPRET" not in os.environ):
        found.append(Gpu(kernels="triton"))
    return found


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


def small_matrix(n_users: int = 30, n_items: int = 20, seed: int = 0) -> np.ndarray:
    """Bursty counts, half of them zero, with an empty row, an empty column and a user who took all the others."""
    rng = np.random.default_rng(seed)
    count = rng.negative_binomial(0.7, 0.2, (n_users, n_items)) * (rng.random((n_users, n_items)) < 0.6)
    count[3] = 0
    count[5] = 1 + rng.poisson(2, n_items)
    count[:, 2] = 0
    return count


@st.composite
def count_matrices(draw: st.DrawFn) -> np.ndarray:
    """Any counts to 10^9, with empty rows and columns and with users who took every item."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=7))
    entries = st.one_of(st.just(0), st.integers(0, 5), st.sampled_from([1, 10**6, 10**9]))
    count = draw(hnp.arrays(np.int64, shape, elements=entries, fill=st.just(0)))
    for user in draw(st.sets(st.integers(0, shape[0] - 1), max_size=2)):
        count[user] = draw(st.sampled_from([0, 1, 3]))
    for item in draw(st.sets(st.integers(0, shape[1] - 1), max_size=1)):
        count[:, item] = 0
    return count


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small model file."""
    path = tmp_path_factory.mktemp("small") / "model.nbmf"
    data = nbmf.Interactions.from_matrix(small_matrix(12, 9)[:4, :3], users=list("abcé"))
    nbmf.NBMF(1, random_state=0, max_iter=2).fit(data).save(path)
    return path.read_bytes()
