"""Fits on several workers: the same numbers as one process, also if workers are killed."""

import shutil
import signal
import time

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import nbmf
from helpers import small_matrix
from nbmf.backends import Given
from nbmf.backends.counts import Counts
from nbmf.backends.cpu.passes import Cpu
from nbmf.model.factors import Point
from nbmf.model.family import LogarithmicJumps, ZeroInflatedPoisson
from nbmf.model.likelihood import NegativeBinomial, Poisson
from nbmf.storage.counts import fingerprint

pytest.importorskip("distributed", reason="dask.distributed is not installed: extra dask")

from nbmf.backends.dask import Cluster, WorkersKilledError, cut_users
from torture import workers as kill_workers

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of sockets to workers that were killed


@pytest.fixture(scope="module")
def counts_file(tmp_path_factory):
    return kill_workers.write_counts(tmp_path_factory.mktemp("distributed"), n_users=300, n_items=60)


@pytest.fixture(scope="module")
def started():
    """A cluster, and the seconds until its workers were there: two or three, on a machine with nothing else to do."""
    begun = time.perf_counter()
    with nbmf.distributed.local_cluster(2) as found:
        found.wait_for_workers(2)
        yield found, time.perf_counter() - begun


@pytest.fixture(scope="module")
def cluster(started):
    return started[0]


@pytest.fixture(scope="module")
def client(cluster):
    from distributed import Client

    with Client(cluster) as found:
        yield found


@pytest.fixture(scope="module")
def single():
    """A client of one worker."""
    from distributed import Client

    with nbmf.distributed.local_cluster(1) as one, Client(one) as found:
        yield found


@pytest.fixture(scope="module")
def plain(counts_file, client):
    """What an undisturbed fit gives."""
    return kill_workers.fit(counts_file, client)


def assert_same_bits(ours, plain):
    for name in ("objective_", "user_factors_", "item_factors_"):
        assert getattr(ours, name).tobytes() == getattr(plain, name).tobytes()


class Immediate:
    """A client that does each task at once, in this process."""

    def submit(self, function, *arguments, **options):
        return function(*arguments)


class Alone(Cluster):
    """A cluster without workers, whose tasks are done already."""

    def _gather(self, tasks):
        return tasks


@pytest.mark.parametrize(("n_parts", "first_unknown"), [(3, 0), (11, 20)])
@pytest.mark.parametrize("n_clusters", [0, 4])
@pytest.mark.parametrize("group", ["all", "user", "item"])
@pytest.mark.parametrize("law", [Poisson, NegativeBinomial, LogarithmicJumps, ZeroInflatedPoisson])
def test_parts_are_one(law, group, n_clusters, n_parts, first_unknown, tmp_path):
    """Sums, log-evidence, slopes and mean exposures of parts add up to those of the whole.

    Parameters are for all cells, for each user or for each item, and cells are left out of all parts or of the last.
    """
    if law is Poisson and group != "all":
        pytest.skip("it has no parameter")
    if n_clusters and group == "item":
        pytest.skip("the cells of a cluster share one parameter")
    matrix = sp.coo_array(small_matrix())
    frame = nbmf.Interactions.from_arrays(*matrix.coords, matrix.data)  # ids as in the file, which has no empty rows
    import pandas as pd

    data = nbmf.store_counts(
        pd.DataFrame({"user": matrix.coords[0], "item": matrix.coords[1], "count": matrix.data}), tmp_path / "c"
    )
    assert (data.matrix != frame.matrix).nnz == 0
    rng = np.random.default_rng(0)
    shape = data.matrix.shape
    value = rng.uniform(0.3, 0.9, {"all": (), "user": (shape[0], 1), "item": (1, shape[1])}[group])
    law = law() if law is Poisson else law(value if value.ndim else float(value))
    users, items = (Point(rng.gamma(1, 1, (n, 3))) for n in shape)
    unknown = sp.csr_array((rng.random(shape) < 0.1) & (np.arange(shape[0])[:, None] >= first_unknown))
    ties = nbmf.model.ties.Ties(rng.integers(0, 4, shape[1]).astype(np.int32), 4) if n_clusters else None
    counts = Counts.of(data.matrix, np.dtype(np.float64), unknown)
    parts = cut_users(tmp_path / "c", data.matrix, n_parts, np.dtype(np.float64), unknown=unknown)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    found = []
    for backend in (Alone(Immediate(), tuple(parts)), Cpu()):
        expectation = backend.expect(counts, Given(users, items, law, ties))
        sums = [*expectation.user_sums, *backend.sum_by_item(counts, expectation, users)]
        if law.learns_from == "slopes":
            sums += backend.slopes(counts, expectation, group)
        if law.has_exposure:
            sums.append(backend.mean_exposure(counts, expectation, group))
        found.append([np.array(expectation.log_evidence), *sums])
    for ours, whole in zip(*found, strict=True):
        np.testing.assert_allclose(ours, whole, rtol=1e-11)


def test_so_many_workers_of_one_thread(cluster):
    assert [worker.nthreads for worker in cluster.scheduler.workers.values()] == [1, 1]


def test_two_workers_are_one_process(counts_file, plain):
    data = nbmf.open_counts(counts_file)
    alone = nbmf.NBMF(**kill_workers.SETTINGS).fit(data)
    np.testing.assert_allclose(plain.objective_, alone.objective_, rtol=1e-6)
    np.testing.assert_allclose(plain.user_factors_, alone.user_factors_, rtol=1e-3)  # single precision, twelve sweeps
    assert plain.recommend(data.users[:3], n=2).items.shape == (3, 2)


LEARNING = [
    nbmf.CompoundMF(3, max_iter=8),
    nbmf.CompoundMF(3, jumps="geometric", jump="learn_per_item", max_iter=5),
    nbmf.ZeroInflatedMF(3, exposure="tied", n_clusters=6, max_iter=8),
    nbmf.ZeroInflatedMF(3, probability="learn_per_user", exposure="exact", max_iter=5),
    nbmf.BinaryMF(3, max_iter=5),
    nbmf.NBMF(3, input="log1p", max_iter=5),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", LEARNING, ids=str)
def test_every_model_learns_on_workers_what_it_learns_alone(model, counts_file, client, single):
    """And to the same bits on one worker as on two."""
    model = clone(model).set_params(random_state=0, dtype="float64", tol=0)
    ours = nbmf.distributed.fit(clone(model), counts_file, client=client, n_parts=4)
    alone = clone(model).fit(nbmf.open_counts(counts_file))
    np.testing.assert_allclose(ours.objective_, alone.objective_, rtol=1e-10)
    np.testing.assert_allclose(ours.user_factors_, alone.user_factors_, rtol=1e-6)
    for name, value in ours.likelihood_.parameters.items():
        np.testing.assert_allclose(value, alone.likelihood_.parameters[name], rtol=1e-8)
    assert_same_bits(nbmf.distributed.fit(clone(model), counts_file, client=single, n_parts=4), ours)


def test_a_dask_data_frame(client):
    """Its rows are those of the whole frame."""
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"user": rng.integers(0, 40, 600), "item": rng.integers(0, 20, 600)})
    settings = {"n_components": 2, "random_state": 0, "max_iter": 3, "dtype": "float64"}
    ours = nbmf.distributed.fit(nbmf.PoissonMF(**settings), dd.from_pandas(frame, npartitions=3), client=client)
    alone = nbmf.PoissonMF(**settings).fit(nbmf.read_interactions(frame))
    np.testing.assert_allclose(ours.objective_, alone.objective_, rtol=1e-9)


def test_a_later_client_of_the_program_takes_no_part(counts_file, cluster, client, plain, monkeypatch):
    """Tasks that were waited for in its event loop could not be gathered in ours."""
    import distributed

    clients, wait = set(), distributed.wait
    monkeypatch.setattr(
        distributed,
        "wait",
        lambda *given, **options: clients.add(distributed.default_client()) or wait(*given, **options),
    )
    with distributed.Client(cluster):
        assert_same_bits(kill_workers.fit(counts_file, client), plain)
    assert clients == {client}


def test_a_killed_worker_changes_nothing(counts_file, cluster, client, plain):
    assert_same_bits(kill_workers.disturbed_fit(counts_file, client, cluster, seed=0), plain)


@pytest.mark.alone
def test_a_task_that_always_kills_is_named(counts_file, client, started):
    """Within 10 seconds; on a busy machine, where workers start slowly, one that starts anew has the time it needs."""
    matrix = nbmf.open_counts(counts_file).matrix
    parts = cut_users(counts_file, matrix, 3, np.dtype(np.float32))
    parts[1] = kill_workers.Deadly(**parts[1].__dict__)
    backend, users = Cluster(client, tuple(parts)), Point(np.ones((matrix.shape[0], 2), np.float32))
    items, begun = Point(np.ones((matrix.shape[1], 2), np.float32)), time.perf_counter()
    with pytest.raises(WorkersKilledError, match=r"part 1 \(users .*died"):
        backend.expect(Counts.of(matrix, np.dtype(np.float32)), Given(users, items, Poisson(), None))
    assert time.perf_counter() - begun < max(10, 2 * started[1])


def test_a_fit_goes_on_from_its_checkpoint(counts_file, client, plain, tmp_path):
    """The driver is gone after some sweeps; another one goes on, and ends with the bits of an undisturbed fit."""

    def end(snapshot):
        if snapshot.sweep == 5:
            raise RuntimeError("the driver dies")

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(RuntimeError, match="the driver dies"):
        kill_workers.fit(counts_file, client, checkpoint=checkpoint, checkpoint_every=2, callbacks=[end])
    assert_same_bits(kill_workers.fit(counts_file, client, resume=checkpoint), plain)


def test_ctrl_c_is_for_the_driver_alone(client):
    """A terminal sends it to every process; workers that ended by it would be missing where the last sweep is kept."""
    assert set(client.run(signal.getsignal, signal.SIGINT).values()) == {signal.SIG_IGN}


def test_the_driver_does_not_copy_the_counts_to_cut_them(counts_file, monkeypatch):
    """SciPy copies the rows of a slice."""
    matrix = nbmf.open_counts(counts_file).matrix
    with monkeypatch.context() as patched:
        patched.setattr(type(matrix), "__getitem__", lambda *_: pytest.fail("rows were copied"))
        parts = cut_users(counts_file, matrix, 2, np.dtype(np.float32))
    assert [part.fingerprint for part in parts] == [fingerprint(matrix[part.rows]) for part in parts]


def test_a_file_that_was_replaced_or_is_not_there(counts_file, tmp_path):
    """A worker that reads its part again must not mix two files."""
    path = tmp_path / "c"
    shutil.copy(counts_file, path)
    part = cut_users(path, nbmf.open_counts(path).matrix, 2, np.dtype(np.float32))[1]
    assert part.load().by_user.nnz > 0
    nbmf.store_counts(counts_file.parent / "parts", path, min_items_per_user=30)
    with pytest.raises(OSError, match="was replaced or changed since the fit began"):
        part.load()
    whole = counts_file.read_bytes()
    for changed in (whole[: len(whole) // 2], whole[:-2000] + bytes(2000)):
        path.write_bytes(changed)
        with pytest.raises(OSError, match=r"was replaced or changed since the fit began|cut short|does not lie"):
            part.load()
    path.unlink()
    with pytest.raises(FileNotFoundError, match="put it where every machine sees it"):
        part.load()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"backend": "gpu"}, {}, "backend is 'gpu'; workers compute on their CPUs"),
        ({}, {"n_workers": 0}, "n_workers is 0; it must be a whole number from 1"),
        ({}, {"n_parts": 0}, "n_parts is 0"),
        ({"n_components": 0}, {}, "n_components is 0"),
    ],
)
def test_settings_that_cannot_be(counts_file, model, options, message):
    with pytest.raises(ValueError, match=message):
        nbmf.distributed.fit(nbmf.PoissonMF(**{"n_components": 2} | model), counts_file, **options)


def test_models_and_data_that_cannot_be(counts_file, tmp_path):
    with pytest.raises(TypeError, match="the model is a NBSLIM; several machines fit models with factors"):
        nbmf.distributed.fit(nbmf.NBSLIM(), counts_file)
    (tmp_path / "plays.tsv").write_text("ann\tjazz\t0\n")
    with pytest.raises(ValueError, match="no count is above 0"):
        nbmf.distributed.fit(nbmf.NBMF(2), tmp_path / "plays.tsv")


def test_other_collections_are_refused(client):
    bag = pytest.importorskip("dask.bag")
    with pytest.raises(TypeError, match="dask's Bag; make it a dask data frame"):
        nbmf.distributed.fit(nbmf.PoissonMF(2), bag.from_sequence([1, 2]), client=client)


def test_counts_in_memory_are_no_file():
    with pytest.raises(TypeError, match="store_counts"):
        nbmf.distributed.fit(nbmf.PoissonMF(2), nbmf.Interactions.from_matrix([[1]]))
