"""A fit that is cut short and resumed ends as if nothing had happened; callbacks and stopping see every sweep."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone

import nbmf
from helpers import small_matrix
from nbmf.inference.progress import Interval
from nbmf.storage import container
from nbmf.storage.container import MissingStorageError, StorageError

MATRIX = small_matrix(60, 40)
MODELS = [
    nbmf.NBMF(3, exposure="exact"),
    nbmf.NBMF(3, exposure="tied", n_clusters=5),
    nbmf.NBMF(3, exposure="tied", n_clusters=5, accelerate=True),
    nbmf.NBMF(3, exposure="tied", n_clusters=5, inference="mm", accelerate=True),
    nbmf.NBMF(3, exposure="exact", inference="mm", backend="reference"),
    nbmf.NBMF(3, exposure="tied", n_clusters=5, concentration="learn", shapes="learn"),
    nbmf.NBMF(3, concentration="learn_per_item", rates="per_row", accelerate=True),
    nbmf.PoissonMF(3, accelerate=True),
    nbmf.PoissonMF(3, inference="mm", binarize=True),
]


def file_of(model, path):
    model.save(path)
    return path.read_bytes()


# ---- bit for bit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tol", [0, 1e-3])
def test_a_resumed_fit_is_the_undisturbed_one(tmp_path, model, dtype, tol):
    """Cut after 1 to 6 sweeps, which covers every step of the extrapolation and refreshes of the ties, and later."""
    model = clone(model).set_params(dtype=dtype, tol=tol, random_state=3, max_iter=20)
    whole = file_of(model.fit(MATRIX), tmp_path / "whole")
    checkpoint, n_sweeps = tmp_path / "checkpoint", model.n_iter_
    for cut in (1, 2, 3, 4, 5, 6, 16):
        clone(model).set_params(max_iter=min(cut, n_sweeps)).fit(MATRIX, checkpoint=checkpoint, checkpoint_every=99)
        resumed = clone(model).fit(MATRIX, resume=checkpoint)
        assert file_of(resumed, tmp_path / "resumed") == whole, cut


def test_a_chain_of_resumes_is_one_fit(tmp_path):
    """Each part overwrites the checkpoint it started from, with other threads, with and without progress."""
    model = nbmf.NBMF(3, exposure="tied", n_clusters=5, accelerate=True, random_state=np.random.RandomState(1), tol=0)
    path, resume = tmp_path / "checkpoint", None
    for n in range(1, 10):
        part = clone(model).set_params(max_iter=5 * n, n_threads=1 + n % 2)
        part.fit(MATRIX, checkpoint=path, resume=resume)
        resume = path
    whole = clone(model).set_params(max_iter=45).fit(MATRIX)
    np.testing.assert_array_equal(part.objective_, whole.objective_)
    np.testing.assert_array_equal(part.user_factors_, whole.user_factors_)
    assert part.n_iter_ == 45


def test_a_finished_fit_is_resumed_at_its_end(tmp_path):
    model = nbmf.NBMF(2, random_state=0, tol=1e-3).fit(MATRIX, checkpoint=tmp_path / "c")
    assert model.converged_
    seen = []
    again = clone(model).fit(MATRIX, resume=tmp_path / "c", callbacks=[seen.append])
    assert file_of(again, tmp_path / "again") == file_of(model, tmp_path / "model")
    assert seen == []
    further = clone(model).set_params(tol=1e-4).fit(MATRIX, resume=tmp_path / "c")
    np.testing.assert_array_equal(further.objective_, clone(model).set_params(tol=1e-4).fit(MATRIX).objective_)


def test_the_kind_of_matrix_does_not_matter(tmp_path):
    nbmf.NBMF(2, random_state=0, max_iter=3).fit(MATRIX, checkpoint=tmp_path / "c")
    data = nbmf.Interactions.from_matrix(MATRIX.astype(float), users=[f"user {n}" for n in range(60)])
    resumed = nbmf.NBMF(2, random_state=0, max_iter=6).fit(data, resume=tmp_path / "c")
    whole = nbmf.NBMF(2, random_state=0, max_iter=6).fit(MATRIX)
    np.testing.assert_array_equal(resumed.objective_, whole.objective_)


def test_other_bits_are_told(tmp_path):
    """A checkpoint from a machine that rounds differently, or of a model changed by hand."""
    path = tmp_path / "c"
    nbmf.NBMF(2, random_state=0, max_iter=3).fit(MATRIX, checkpoint=path)
    found = container.read(path)
    objectives = found.arrays["objectives"].copy()
    objectives[-1] = np.nextafter(objectives[-1], 0)
    container.write(path, found.document, found.arrays | {"objectives": objectives})
    with pytest.warns(UserWarning, match="rounds differently from the one that wrote it"):
        nbmf.NBMF(2, random_state=0, max_iter=6).fit(MATRIX, resume=path)


# ---- kill -9 --------------------------------------------------------------------------------------------------------


def test_killed_fits_go_on_to_the_same_end():
    """`python tests/torture/kills.py --kills 100` does it a hundred times."""
    script = Path(__file__).parents[1] / "torture" / "kills.py"
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "12", "--seconds", "500"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 12


# ---- when and where -------------------------------------------------------------------------------------------------


def written(path, monkeypatch, **settings):
    """The sweeps after which a fit of 10 wrote a checkpoint."""
    sweeps = []

    def note(path, document, arrays):
        sweeps.append(len(arrays["objectives"]))

    monkeypatch.setattr("nbmf.inference.checkpoints.write", note)
    nbmf.NBMF(2, random_state=0, max_iter=10, tol=0).fit(MATRIX, checkpoint=path, **settings)
    return sweeps


def test_checkpoints_come_when_asked_for(tmp_path, monkeypatch):
    assert written(tmp_path / "c", monkeypatch) == [10]  # the default of a minute never passes
    assert written(tmp_path / "c", monkeypatch, checkpoint_every=4) == [4, 8, 10]
    assert written(tmp_path / "c", monkeypatch, checkpoint_every=5) == [5, 10]
    assert written(tmp_path / "c", monkeypatch, checkpoint_every=timedelta()) == list(range(1, 11))


def test_intervals_of_time(monkeypatch):
    clock = iter([0, 1, 2, 4, 6, 7, 20, 21, 23])  # the first when it starts
    monkeypatch.setattr("nbmf.inference.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    interval = Interval(timedelta(seconds=3))
    assert [sweep for sweep in range(1, 9) if interval.is_over(sweep)] == [3, 5, 6, 8]


@pytest.mark.parametrize("every", [0, -1, 2.5, "5 minutes", timedelta(seconds=-1)])
def test_senseless_intervals_are_refused(tmp_path, every):
    with pytest.raises(ValueError, match=r"checkpoint_every is .*; it must be a number of sweeps"):
        nbmf.NBMF(2).fit(MATRIX, checkpoint=tmp_path / "c", checkpoint_every=every)


def test_ctrl_c_writes_the_last_finished_sweep(tmp_path):
    def interrupt(snapshot):
        if snapshot.sweep == 7:
            raise KeyboardInterrupt

    model = nbmf.NBMF(2, random_state=0, max_iter=20, tol=0)
    with pytest.warns(UserWarning, match="the model is that of sweep 7"):
        # 6 checkpoints are written; the seventh sweep is interrupted before its own
        clone(model).fit(MATRIX, checkpoint=tmp_path / "c", checkpoint_every=1, callbacks=[interrupt])
    assert len(container.read(tmp_path / "c").arrays["objectives"]) == 6
    resumed = clone(model).fit(MATRIX, resume=tmp_path / "c")
    assert file_of(resumed, tmp_path / "resumed") == file_of(model.fit(MATRIX), tmp_path / "whole")


def test_a_checkpoint_that_fails_does_not_end_the_fit(tmp_path, monkeypatch):
    path = tmp_path / "c"
    nbmf.NBMF(2, random_state=0, max_iter=3).fit(MATRIX, checkpoint=path)
    old = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nbmf.storage.container.os.fsync", fail)
    with pytest.warns(UserWarning, match=r"checkpoint of sweep 5: .*c: cannot be written \(No space left on device\)"):
        model = nbmf.NBMF(2, random_state=0, max_iter=5).fit(MATRIX, checkpoint=path)
    assert model.n_iter_ == 5
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["c"]


def test_a_place_where_nothing_can_be_put_is_refused_at_once(tmp_path):
    with pytest.raises(StorageError, match="there is no folder"):
        nbmf.NBMF(2).fit(MATRIX, checkpoint=tmp_path / "nowhere" / "c")
    with pytest.raises(StorageError, match="is a folder"):
        nbmf.NBMF(2).fit(MATRIX, checkpoint=tmp_path)


def test_what_a_killed_writer_left_is_removed(tmp_path):
    left = tmp_path / (".c.unfinished-" + "0" * 16)
    others = [tmp_path / name for name in (".c.unfinished-mine", ".cc.unfinished-" + "0" * 16, "c.txt")]
    for file in (left, *others):
        file.write_text("half")
    nbmf.NBMF(2, max_iter=2).fit(MATRIX, checkpoint=tmp_path / "c")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "c", *others])


# ---- what cannot be resumed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concentration": 2.0}, "with concentration=1.0, and this one has 2.0; resume with the same settings"),
        ({"random_state": 1}, "with random_state=0, and this one has 1"),
        ({"dtype": "float64"}, "with dtype='float32'"),
        ({"accelerate": True}, "with accelerate=False"),
        ({"init": (np.ones((60, 2)), np.ones((40, 2)))}, "with init='random', and this one has {'arrays': 2}"),
        ({"max_iter": 4}, "stands after sweep 5, beyond max_iter=4"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, message):
    model = nbmf.NBMF(2, random_state=0, max_iter=5, tol=0).fit(MATRIX, checkpoint=tmp_path / "c")
    with pytest.raises(StorageError, match=message):
        model.set_params(**change).fit(MATRIX, resume=tmp_path / "c")


def test_other_starts_are_refused(tmp_path):
    rng = np.random.RandomState(0)
    starts = [(rng.gamma(1, 1, (60, 2)), rng.gamma(1, 1, (40, 2))) for _ in range(2)]
    nbmf.NBMF(2, init=starts[0], max_iter=2).fit(MATRIX, checkpoint=tmp_path / "c")
    nbmf.NBMF(2, init=starts[0], max_iter=3).fit(MATRIX, resume=tmp_path / "c")
    with pytest.raises(StorageError, match="with another init; resume with the same settings"):
        nbmf.NBMF(2, init=starts[1], max_iter=3).fit(MATRIX, resume=tmp_path / "c")


def test_other_data_and_files_are_refused(tmp_path):
    path, model = tmp_path / "c", nbmf.NBMF(2, random_state=0, max_iter=5)
    with pytest.raises(MissingStorageError, match="there is no such file"):
        model.fit(MATRIX, resume=path)
    model.fit(MATRIX, checkpoint=path)
    with pytest.raises(StorageError, match=r"to other counts \(\[60, 40\], .* non-zeros\) than these \(\[59, 40\]"):
        model.fit(MATRIX[1:], resume=path)
    other = MATRIX.copy()
    other[0, 0] += 1
    with pytest.raises(StorageError, match="to other counts"):
        model.fit(other, resume=path)
    with pytest.raises(StorageError, match="by a fit of NBMF, and this is PoissonMF"):
        nbmf.PoissonMF(2, random_state=0).fit(MATRIX, resume=path)
    model.save(tmp_path / "model")
    with pytest.raises(StorageError, match=r"is a model, not a checkpoint; nbmf\.load\(path\) reads it"):
        model.fit(MATRIX, resume=tmp_path / "model")
    with pytest.raises(ValueError, match="stopping cannot be resumed"):
        model.fit(MATRIX, resume=path, stopping=nbmf.EarlyStopping(MATRIX, MATRIX))


@pytest.mark.parametrize(
    ("entries", "arrays", "message"),
    [
        ({"version": 9}, {}, "is a checkpoint of format version 9"),
        ({"pending": ["1"]}, {}, "its pending refreshes are"),
        ({"momentum": [0.5]}, {}, r"its momentum is \[0\.5\]"),
        ({"momentum": [0.5, 2.0, 3]}, {}, r"its momentum is \[0\.5, 2\.0, 3\]"),
        ({"momentum": [0.5, 1.0, 4]}, {}, r"its momentum is \[0\.5, 1\.0, 4\]"),
        ({"momentum": [0.5, 1.0, 3]}, {}, r"has no array 'past\.0'"),
        ({"n_clusters": 4}, {}, "clusters that do not exist"),
        ({"n_clusters": 10**12}, {}, "clusters that do not exist"),
        ({}, {"ties": np.full(40, -1, np.int32)}, "clusters that do not exist"),
        ({}, {"objectives": np.empty(0)}, "it has no sweep"),
        ({"generator": {"position": -1}}, {}, "has an invalid state"),
        ({"before": None}, {}, "'before' is None, not a number"),
        ({"before": "nan"}, {}, "'before' is 'nan', not a number"),
        ({"log_base": "inf"}, {}, "its log_base is inf"),
        ({}, {"objectives": np.array([-9.0, np.nan])}, "or one without an objective"),
        ({}, {"users.mean": np.ones((60, 2))}, "have different shapes or types"),
    ],
)
def test_lies_are_found(tmp_path, entries, arrays, message):
    model = nbmf.NBMF(2, exposure="tied", n_clusters=5, random_state=0, max_iter=3)
    model.fit(MATRIX, checkpoint=tmp_path / "c")
    found = container.read(tmp_path / "c")
    container.write(tmp_path / "c", found.document | entries, found.arrays | arrays)
    with pytest.raises(StorageError, match=message):
        model.fit(MATRIX, resume=tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values[1:], r"'past.0' has type float32 and shape \(59, 2\); it must be 60 × 2"),
        (lambda values: values.astype(np.float64), "not finite, or of another type"),
        (lambda values: np.nan * values, "not finite, or of another type"),
    ],
)
def test_a_momentum_that_does_not_fit_is_found(tmp_path, change, message):
    model = nbmf.NBMF(2, random_state=0, max_iter=3, accelerate=True).fit(MATRIX, checkpoint=tmp_path / "c")
    found = container.read(tmp_path / "c")
    container.write(tmp_path / "c", found.document, found.arrays | {"past.0": change(found.arrays["past.0"])})
    with pytest.raises(StorageError, match=message):
        model.set_params(max_iter=6).fit(MATRIX, resume=tmp_path / "c")


def test_a_checkpoint_that_could_not_be_resumed_is_not_written(tmp_path):
    """The fit warns and goes on, and the checkpoint before stays."""
    path = tmp_path / "c"
    model = nbmf.NBMF(2, random_state=0, max_iter=4, tol=0)

    def spoil(snapshot):
        if snapshot.sweep == 3:
            snapshot.state.users.exposed.flat[0] = -7e-7

    with pytest.warns(
        UserWarning, match=r"checkpoint of sweep 3: .*c: its array 'users.exposed' .*nothing was written"
    ):
        model.fit(MATRIX, checkpoint=path, checkpoint_every=1, callbacks=[spoil])
    assert len(container.read(path).arrays["objectives"]) in (2, 4)
    assert os.listdir(tmp_path) == ["c"]


# ---- callbacks and early stopping -----------------------------------------------------------------------------------


def test_callbacks_see_every_sweep():
    seen = []
    model = nbmf.NBMF(2, random_state=0, max_iter=6, tol=0).fit(MATRIX, callbacks=[seen.append, lambda s: "logged"])
    assert [snapshot.sweep for snapshot in seen] == [1, 2, 3, 4, 5, 6]
    assert [snapshot.objective for snapshot in seen] == list(model.objective_)
    np.testing.assert_array_equal(seen[-1].user_factors, model.user_factors_)
    np.testing.assert_array_equal(seen[-1].item_factors, model.item_factors_)
    assert model.ending_ == "max_iter"


@pytest.mark.parametrize("true", [True, np.True_])
def test_a_callback_ends_a_fit(true):
    stop = nbmf.NBMF(2, random_state=0, tol=0).fit(MATRIX, callbacks=[lambda s: s.sweep == 4 and true])
    assert (stop.n_iter_, stop.ending_, stop.converged_) == (4, "stopped", False)
    short = nbmf.NBMF(2, random_state=0, tol=0, max_iter=4).fit(MATRIX)
    np.testing.assert_array_equal(stop.user_factors_, short.user_factors_)


def split():
    return nbmf.datasets.simulate(80, 60, n_components=3, mean_count=0.5, seed=1).split(seed=0)


@pytest.mark.parametrize(
    "metric", ["ndcg_counts", "ndcg_log2", "ndcg_at_least_2", "ndcg_binary_at_5", "recall_at_5", "log_likelihood"]
)
def test_early_stopping_keeps_the_best_sweep(metric):
    train, test = split()
    stopping = nbmf.EarlyStopping(train, test, metric=metric, patience=3, every=2)
    model = nbmf.NBMF(12, random_state=0, tol=0, max_iter=300).fit(train, stopping=stopping)
    sweeps, values = zip(*stopping.history, strict=True)
    assert model.ending_ == "stopped"
    assert list(sweeps) == list(range(2, sweeps[-1] + 1, 2))
    best = int(np.argmax(values))
    assert len(values) == best + 1 + 3
    assert model.n_iter_ == len(model.objective_) == sweeps[best]
    if metric == "log_likelihood":
        again = nbmf.evaluation.log_likelihood(model, train, test).mean
    else:
        again = nbmf.evaluate(model, train, test, ("counts", 2, "log2"), at=5)[metric].mean
    assert again == values[best]
    plain = nbmf.NBMF(12, random_state=0, tol=0, max_iter=int(sweeps[best])).fit(train)
    np.testing.assert_array_equal(model.user_factors_, plain.user_factors_)


def test_early_stopping_looks_at_the_end_too():
    """A fit that converges between two evaluations is evaluated where it ended; the next fit starts afresh."""
    train, test = split()
    stopping = nbmf.EarlyStopping(train, test, every=1000)
    for _ in range(2):
        model = nbmf.NBMF(2, random_state=0, tol=1e-2).fit(train, stopping=stopping)
        assert model.converged_
        assert [sweep for sweep, _ in stopping.history] == [model.n_iter_]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "coverage_at_10"}, "metric is 'coverage_at_10'; it must be"),
        ({"metric": "ndcg"}, "metric is 'ndcg'"),
        ({"patience": 0}, "patience is 0"),
        ({"every": 1.5}, "every is 1.5"),
    ],
)
def test_senseless_stopping_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        nbmf.EarlyStopping(MATRIX, MATRIX, **settings)
