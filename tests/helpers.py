"""What test files share: counts, files of counts, estimators, comparisons, child processes and commands as typed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner, Result
from hypothesis import strategies as st
from scipy.stats import nbinom, poisson

import nbmf
from nbmf.backends import Given, encoder_of
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.topk import CHUNK
from nbmf.backends.encoder import EncoderCounts, Start
from nbmf.backends.reference import Reference
from nbmf.estimators.fold_in import FixedSide
from nbmf.estimators.scores import TILE_COLUMNS, TILE_ROWS
from nbmf.inference.encoder import joined
from nbmf.model.factors import Gamma, Point, Prior
from nbmf.model.ties import Ties

# ---- estimators to try: clone them, never fit them in place ---------------------------------------------------------

ONE_PEAK = {"user_shape": 1.0, "item_shape": 1.0}  # with smaller shapes a row's objective may have several peaks
MODELS = [
    nbmf.NBMF(3, exposure="exact"),
    nbmf.NBMF(3, exposure="tied", n_clusters=4),
    nbmf.NBMF(3, exposure="exact", inference="mm"),
    nbmf.NBMF(3, exposure="tied", n_clusters=4, inference="mm"),
    nbmf.PoissonMF(3),
    nbmf.PoissonMF(3, inference="mm"),
    nbmf.PoissonMF(3, binarize=True),
    nbmf.CompoundMF(3, jump=0.6, rates="shared", **ONE_PEAK),
    nbmf.CompoundMF(3, jump=0.6, inference="mm", **ONE_PEAK),
    nbmf.CompoundMF(3, jumps="geometric", jump=0.6, rates="shared", **ONE_PEAK),
    nbmf.ZeroInflatedMF(3, probability=0.6, exposure="exact", **ONE_PEAK),
    nbmf.ZeroInflatedMF(3, probability=0.6, exposure="tied", n_clusters=4, **ONE_PEAK),
    nbmf.RobustMF(3, **ONE_PEAK),
]
LEARNING = [
    nbmf.NBMF(3, rates="per_row"),
    nbmf.NBMF(3, shapes="learn"),
    nbmf.NBMF(3, concentration="learn"),
    nbmf.NBMF(3, concentration="learn_per_item"),
    nbmf.CompoundMF(3, **ONE_PEAK),
    nbmf.CompoundMF(3, jump="learn", **ONE_PEAK),
    nbmf.ZeroInflatedMF(3, **ONE_PEAK),
    nbmf.ZeroInflatedMF(3, probability="learn_per_item", **ONE_PEAK),
]


# ---- counts ---------------------------------------------------------------------------------------------------------


def small_matrix(n_users: int = 30, n_items: int = 20, seed: int = 0) -> np.ndarray:
    """Bursty counts, half of them zero, with an empty row, an empty column and a user who took every other item."""
    rng = np.random.default_rng(seed)
    count = rng.negative_binomial(0.7, 0.2, (n_users, n_items)) * (rng.random((n_users, n_items)) < 0.6)
    count[3] = 0
    count[5] = 1 + rng.poisson(2, n_items)
    count[:, 2] = 0
    return count


@st.composite
def count_matrices(draw: st.DrawFn) -> np.ndarray:
    """Any counts up to 10^9, with empty rows and columns and with users who took every item."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=7))
    entries = st.one_of(st.just(0), st.integers(0, 5), st.sampled_from([1, 10**6, 10**9]))
    count = draw(hnp.arrays(np.int64, shape, elements=entries, fill=st.just(0)))
    for user in draw(st.sets(st.integers(0, shape[0] - 1), max_size=2)):
        count[user] = draw(st.sampled_from([0, 1, 3]))
    for item in draw(st.sets(st.integers(0, shape[1] - 1), max_size=1)):
        count[:, item] = 0
    return count


def canonical(matrix: Any) -> sp.csr_array:
    csr = sp.csr_array(np.asarray(matrix, np.float64))
    csr.eliminate_zeros()
    return csr


def counts_of(matrix: Any, dtype: Any = np.float64, unknown: Any = None) -> Counts:
    csr = sp.csr_array(np.asarray(matrix))
    csr.eliminate_zeros()
    return Counts.of(csr, np.dtype(dtype), None if unknown is None else sp.csr_array(unknown))


def write_rows(path: Path, rows: Iterable[Sequence[Any]], header: Sequence[str] = (), separator: str = ",") -> Path:
    """Write a file of rows and return its path."""
    lines = ([header] if header else []) + list(rows)
    path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    return path


def assert_same_interactions(found: nbmf.Interactions, expected: nbmf.Interactions, dtype: Any = np.int64) -> None:
    """The same ids and the same counts, in the form that the package promises; files of counts choose their dtype."""
    assert found.users.tolist() == expected.users.tolist()
    assert found.items.tolist() == expected.items.tolist()
    assert found.n_repeated == expected.n_repeated
    assert found.matrix.dtype == dtype
    assert found.matrix.has_canonical_format
    assert (found.matrix.data != 0).all()
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found.matrix, name), getattr(expected.matrix, name))


# ---- parts of a model -----------------------------------------------------------------------------------------------


def ties_of(n_items: int, n_clusters: int, seed: int = 1) -> Ties:
    return Ties(np.random.default_rng(seed).integers(0, n_clusters, n_items).astype(np.int32), n_clusters)


def held(n_columns, likelihood, n_clusters, *, bayesian=True, dtype="float64", own_rates=False, seed=0) -> FixedSide:
    """A side of a factorization, drawn at random, into which rows can be folded."""
    rng = np.random.default_rng(seed)
    mean = rng.gamma(0.7, 1.0, (n_columns, 4))
    factor = Point(mean.astype(dtype))
    if bayesian:
        rows = mean.sum(axis=1), np.zeros(n_columns), np.zeros(n_columns)  # the last two are not read
        geometric_mean = mean * rng.uniform(0.2, 1, mean.shape)
        factor = Gamma(mean.astype(dtype), geometric_mean.astype(dtype), np.ones((1, 4), dtype), 1.0, *rows)
    ties = Ties(rng.integers(0, n_clusters, n_columns).astype(np.int32), n_clusters) if n_clusters else None
    return FixedSide(factor, likelihood, Prior(0.7, np.ones((n_columns, 1)) if own_rates else 1.3), ties)


def count_distribution(α: Any, μ: Any) -> Any:
    """SciPy's distribution of a count of intensity μ."""
    μ = np.asarray(μ, np.float64)
    return poisson(μ) if np.ndim(α) == 0 and α == np.inf else nbinom(α, α / (α + μ))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of a row from what it should be, relative to the row; rows of zeros must be zero."""
    difference, size = np.abs(found - expected).sum(axis=1), expected.sum(axis=1)
    assert not difference[size == 0].any()
    return (difference[size > 0] / size[size > 0]).max()


# ---- passes of an encoder --------------------------------------------------------------------------------------------


def encoded(matrix, dtype="float64", unknown=None, penalty=0.7):
    """Counts whose inputs and targets are different forms of them."""
    forms = np.log1p, np.sqrt
    unknown = None if unknown is None else canonical(unknown)
    return EncoderCounts.encoded(canonical(matrix), forms, penalty, np.dtype(dtype), unknown)


def random_starts(n_items, n_components, n_starts, dtype, seed=0):
    """Starts at which nothing is 0; V, H and b of each."""
    rng = np.random.default_rng(seed)
    shapes = (n_items, n_components), (n_items, n_components), (n_items,)
    return [Start(*(rng.gamma(2, 0.5, shape).astype(dtype) for shape in shapes)) for _ in range(n_starts)]


def _on_host(values):
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def encoder_sums(backend, counts, starts, law, ties):
    """The log-evidence, and of each start the sums of V, what [H | b] is allocated, and exposed to by a newer V."""
    passes, (users, items) = encoder_of(backend), joined([one.factors for one in starts], counts)
    found = passes.expect(counts, Given(users, items, law, ties))
    sums = []
    for inferred, one in zip(found.starts, starts, strict=True):
        both, allocated = passes.sum_inputs(counts, inferred)
        newer = Point(one.inputs * one.inputs.dtype.type(1.5))
        sums.append([*both, allocated, passes.expose_outputs(counts, inferred, newer)])
    return found.log_evidence, [[_on_host(values) for values in one] for one in sums]


def assert_encodes_as_reference(backend, counts, starts, law, n_clusters, rtol):
    ties = ties_of(counts.by_user.shape[1], n_clusters) if n_clusters else None
    (ours, sums), (plain, plain_sums) = (
        encoder_sums(each, counts, starts, law, ties) for each in (backend, Reference())
    )
    assert ours == pytest.approx(plain, rel=rtol, abs=rtol * (1 + counts.total))
    for mine, reference in zip(sums, plain_sums, strict=True):
        for name, a, b in zip(("V", "exposed V", "[H | b]", "exposed [H | b]"), mine, reference, strict=True):
            assert a.dtype == b.dtype
            # sums over all cells, from which parts are taken, round in proportion to the largest of a column
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * b.max(initial=0) + 1e-30, err_msg=name)


# ---- rankings -------------------------------------------------------------------------------------------------------


def sorted_best(score: np.ndarray, n: int, excluded: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The n best by a stable sort of the whole row."""
    masked = np.where(excluded | ~allowed, -np.inf, score)
    order = np.argsort(-masked, axis=1, kind="stable")[:, :n]
    scores = np.take_along_axis(masked, order, axis=1)
    missing = ((0, 0), (0, max(0, n - score.shape[1])))
    return (
        np.pad(np.where(np.isneginf(scores), -1, order), missing, constant_values=-1),
        np.pad(scores, missing, constant_values=-np.inf),
    )


@st.composite
def rankings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with many ties, test and train items, which may overlap; users without any and users who took all."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=6))
    score = draw(hnp.arrays(draw(st.sampled_from([np.float32, np.float64])), shape, elements=st.integers(-1, 2)))
    chosen = st.sampled_from([0, 0, 1])
    return score, draw(hnp.arrays(int, shape, elements=chosen)), draw(hnp.arrays(int, shape, elements=chosen))


def large(dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """More users and items than a tile has, whole-number factors (so equal scores are many, and exact)."""
    rng = np.random.default_rng(0)
    n_users, n_items = TILE_ROWS + 30, TILE_COLUMNS + CHUNK + 7
    W, H = rng.integers(0, 4, (n_users, 3)).astype(dtype), rng.integers(0, 4, (n_items, 3)).astype(dtype)
    train = rng.random((n_users, n_items)) < 0.05
    train[5] = True
    return W, H, train, rng


# ---- where it runs --------------------------------------------------------------------------------------------------

NOBODY = "65534"


def gpus(*, interpreted: bool = True) -> list[Any]:
    """The gpu backend as far as it runs here: its plain passes; its kernels on a GPU or, slowly, interpreted."""
    if find_spec("torch") is None:
        return []
    import torch

    from nbmf.backends.gpu.device import Gpu

    torch.set_num_threads(1)  # on small data, threads wait for each other longer than they work
    found = [Gpu(kernels="torch")]
    if find_spec("triton") is not None and (interpreted or "TRITON_INTERPRET" not in os.environ):
        found.append(Gpu(kernels="triton"))
    return found


@contextmanager
def child(command: Sequence[Any], seconds: float = 300, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process in its own group and wait for its end; a failed test or the time limit kills the group.

    So a test that reads its output cannot hang.
    """
    with subprocess.Popen(list(map(str, command)), start_new_session=True, **options) as process:
        limit = Timer(seconds, _kill_group, [process.pid])
        limit.start()
        try:
            yield process
            if process.stdin:
                process.stdin.close()
            process.wait()
        except BaseException:
            _kill_group(process.pid)
            raise
        finally:
            limit.cancel()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="nbmf-open-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def as_nobody(*command: Any) -> list[str]:
    """Return the command line that runs a command as a user who owns nothing; skip the test where that is impossible.

    The user may read everything, as the interpreter may lie in a folder that is closed to others, and write nothing.
    """
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can run a command as another user, with setpriv")
    who = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    rights = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    line = ["setpriv", *who, *rights]
    if subprocess.run([*line, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("setpriv cannot change the user here")
    return [*line, *map(str, command)]


def typed(*arguments: Any, code: int = 0, **environment: str | None) -> Result:
    """Run a command of nbmf, in this process, as typed in a shell; it must exit with the code."""
    from nbmf.cli import main

    result = CliRunner().invoke(main, list(map(str, arguments)), env={"NBMF_TOKEN": None, **environment})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def interrupted_at(sweep: int, monkeypatch: Any) -> None:
    """Press Ctrl-C right after a sweep of any fit of NBMF."""
    fit = nbmf.NBMF.fit

    def callback(snapshot: Any) -> None:
        if snapshot.sweep == sweep:
            os.kill(os.getpid(), signal.SIGINT)

    def interrupted(self: nbmf.NBMF, X: Any, callbacks: Iterable[Any] = (), **settings: Any) -> nbmf.NBMF:
        return fit(self, X, callbacks=[*callbacks, callback], **settings)

    monkeypatch.setattr(nbmf.NBMF, "fit", interrupted)
