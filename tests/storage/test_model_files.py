"""Model files: a loaded model equals the saved one to the bit, and a failed save leaves the old file."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import nbmf
from format_1 import version_1_file
from helpers import small_matrix
from nbmf.estimators import files as storage
from nbmf.model.factors import Gamma, Point
from nbmf.storage.container import StorageError

MATRIX = small_matrix(12, 9)


def fitted(model=None, users=None, items=None, matrix=MATRIX):
    data = nbmf.Interactions.from_matrix(matrix, users=users, items=items)
    return (model or nbmf.NBMF(2, random_state=0, max_iter=3)).fit(data)


def identical(one, other):
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    else:
        assert type(one) is type(other)
        assert one == other or repr(one) == repr(other) == "nan"


def answers(model):
    """Yield the answers of all public methods and attributes."""
    users, items = model.users_, model.items_
    yield from vars(model.recommend(users, n=4)).values()
    yield from vars(model.recommend(users[:2], n=len(items), exclude_seen=False)).values()
    yield model.predict(users[0], items)
    for user in users.tolist():
        yield from vars(model.exposures(user)).values()
    for name in ("user_factors_", "item_factors_", "components_", "objective_", "users_", "items_"):
        yield getattr(model, name)
    for name in ("n_iter_", "converged_", "ending_", "concentration_", "n_features_in_"):
        yield getattr(model, name)
    one, item = users.tolist()[0], items.tolist()[0]
    parts = (model.explain(one, item), model.similar_items(item, n=3), model.similar_users(one, n=3))
    for found in (*parts, model.recommend_for({item: 3}, n=3), model.recommend(one, deny=items[:1])):
        values = (getattr(found, field.name) for field in fields(found))
        yield from (value for value in values if not callable(value))  # a function belongs to its fit
        yield getattr(found, "component_names", None)
    law = model.predictive(one, items)
    yield law.mean
    if model.likelihood_.is_normalized:
        yield from (law.sd, *law.interval(0.9), law.at_least(2))
    yield from map(np.asarray, model.likelihood_.parameters.values())
    rows = nbmf.Interactions.from_matrix(np.arange(2 * len(items)).reshape(2, -1) % 3, items=items)
    yield from (model.transform(rows), model.score_samples(rows), model.score(rows))
    yield getattr(model, "exposure_", None)
    yield getattr(model, "feature_names_in_", None)
    for posterior in (model.user_posterior_, model.item_posterior_):
        yield type(posterior)
        yield from (getattr(posterior, field.name) for field in fields(posterior))


def same_model(one, other):
    assert type(one) is type(other)
    for ours, theirs in zip(answers(one), answers(other), strict=True):
        identical(ours, theirs)


# ---- round trips -----------------------------------------------------------------------------------------------------

NUMBERS = st.floats(0.1, 100, allow_nan=False)
COMMON = {
    "inference": st.sampled_from(["cavi", "mm"]),
    "dtype": st.sampled_from(["float32", "float64"]),
    "accelerate": st.booleans(),
    "user_shape": NUMBERS,
    "item_shape": NUMBERS | st.integers(1, 3),
    "tol": st.sampled_from([0, 1e-5, 0.5]),
    "random_state": st.integers(0, 2**32 - 1),
    "n_threads": st.sampled_from([None, 1, 2]),
    "max_iter": st.integers(1, 5),
    "n_components": st.integers(1, 4),
}
ESTIMATORS = st.one_of(
    st.builds(
        nbmf.NBMF, **COMMON, concentration=NUMBERS, exposure=st.sampled_from(["exact", "tied"]), n_clusters=st.just(3)
    ),
    st.builds(nbmf.PoissonMF, **COMMON, binarize=st.booleans()),
    st.builds(nbmf.CompoundMF, **COMMON, jumps=st.sampled_from(["logarithmic", "geometric"])),
    st.builds(nbmf.ZeroInflatedMF, **COMMON, probability=st.sampled_from(["learn", "learn_per_user", 0.5])),
    st.builds(nbmf.RobustMF, **COMMON, penalty=NUMBERS),
    st.builds(nbmf.BinaryMF, **COMMON),
    st.builds(
        nbmf.NBFISM,
        COMMON["n_components"],
        target=st.just("counts"),
        likelihood=st.sampled_from(["poisson", "negative_binomial"]),
        n_starts=st.integers(1, 3),
        penalty=NUMBERS | st.just(0),
        **{name: COMMON[name] for name in ("dtype", "tol", "random_state", "n_threads", "max_iter")},
    ),
)
SOME_IDS = st.one_of(
    st.lists(st.text(max_size=8), min_size=9, max_size=9, unique=True).map(lambda ids: np.array(ids, object)),
    st.lists(st.text("abcüß☃", max_size=5), min_size=9, max_size=9, unique=True).map(np.array),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=9, max_size=9, unique=True).map(np.array),
    st.permutations(range(9)).map(lambda ids: np.array(ids, np.uint8)),
    st.lists(st.floats(allow_nan=False), min_size=9, max_size=9, unique=True).map(np.array),
)


@settings(max_examples=60)
@given(ESTIMATORS, SOME_IDS, SOME_IDS)
def test_what_is_saved_comes_back(tmp_path_factory, model, users, items):
    path = tmp_path_factory.mktemp("models") / "model.nbmf"
    model = fitted(model, users, items, MATRIX[:9])
    model.save(path)
    back = nbmf.load(path)
    same_model(model, back)
    assert back.get_params() == model.get_params()
    again = path.with_name("again.nbmf")
    back.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_settings_of_every_kind_come_back(tmp_path):
    rng = np.random.RandomState(3)
    rng.standard_normal()  # it keeps a second value for the next call
    start = (rng.gamma(1, 1, (12, 2)), rng.gamma(1, 1, (9, 2)).astype(np.float32))
    generator = np.random.RandomState(5)
    model = nbmf.NBMF(np.int64(2), concentration=np.float32(0.3), init=start, dtype=np.float64, random_state=generator)
    fitted(model.set_params(max_iter=2, tol=np.inf)).save(tmp_path / "model.nbmf")
    back = nbmf.load(tmp_path / "model.nbmf").get_params()
    for ours, theirs in zip(start, back.pop("init"), strict=True):
        identical(ours, theirs)
    assert back.pop("random_state").standard_normal(7).tolist() == generator.standard_normal(7).tolist()
    assert back.pop("dtype") == "float64"  # a type comes back as its name
    assert back == {key: value for key, value in model.get_params().items() if key in back}


def test_names_columns_and_real_counts_come_back(tmp_path):
    import pandas as pd

    path = tmp_path / "model.nbmf"
    data = nbmf.Interactions.from_matrix(MATRIX, items=np.arange(9))
    named = nbmf.NBMF(2, max_iter=2).fit(replace(data, item_names=np.array([f"Lied {n} é" for n in range(9)], object)))
    named.save(path)
    identical(nbmf.load(path).item_names_, named.item_names_)
    frame = pd.DataFrame(MATRIX * 0.5, columns=[f"item {n}" for n in range(9)])
    wide = nbmf.PoissonMF(2, max_iter=2).fit(frame)
    wide.save(path)
    same_model(wide, nbmf.load(path))
    assert nbmf.load(path).item_names_ is None


def test_a_loaded_model_can_be_fitted_again(tmp_path):
    model = fitted()
    model.save(tmp_path / "model.nbmf")
    again = nbmf.load(tmp_path / "model.nbmf").fit(nbmf.Interactions.from_matrix(MATRIX))
    same_model(model, again)


def test_other_programs_can_read_the_arrays(small, tmp_path):
    (tmp_path / "model.nbmf").write_bytes(small)
    model = nbmf.load(tmp_path / "model.nbmf")
    arrays = safetensors.numpy.load(small)
    identical(arrays["users.mean"], model.user_factors_)
    identical(arrays["items.mean"], model.item_factors_)
    assert arrays["user_ids.utf8"].tobytes().decode() == "abcé"


# ---- what cannot be saved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (np.array([b"a%d" % n for n in range(12)]), "user_ids are of type bytes"),
        (np.arange("2017-01-01", "2017-01-13", dtype="datetime64[D]"), "user_ids are of type date"),
        (np.array([*range(11), 2**70], object), "user_ids are of type int; .* all strings or all numbers"),
        (np.array(["a\ud800", *"bcdefghijkl"], object), "is not valid text"),
    ],
)
def test_odd_ids_are_refused(tmp_path, users, message):
    data = replace(nbmf.Interactions.from_matrix(MATRIX), users=users)
    model = nbmf.NBMF(2, max_iter=2).fit(data)
    with pytest.raises(StorageError, match=message):
        model.save(tmp_path / "model.nbmf")
    assert not list(tmp_path.iterdir())


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    class Mine(nbmf.NBMF):
        pass

    path = tmp_path / "model.nbmf"
    with pytest.raises(StorageError, match=r"a Mine cannot be saved; nbmf\.load knows NBMF and PoissonMF"):
        fitted(Mine(2, max_iter=2)).save(path)
    with pytest.raises(StorageError, match=r"tol is datetime\.timedelta.*; a file cannot hold a timedelta"):
        fitted().set_params(tol=timedelta(1)).save(path)
    with pytest.raises(ValueError, match="not fitted yet"):
        nbmf.NBMF().save(path)
    model = fitted()
    model.item_factors_ = model.item_factors_ * 2
    with pytest.raises(StorageError, match="no longer those of the fit"):
        model.save(path)
    with pytest.raises(StorageError, match="is a folder; name a file in it"):
        fitted().save(tmp_path)
    with pytest.raises(StorageError, match=r"there is no folder .*nowhere; make it first"):
        fitted().save(tmp_path / "nowhere" / "model.nbmf")
    assert not list(tmp_path.iterdir())


def with_exposed(factor, value):
    exposed = factor.exposed.copy()
    exposed.flat[0] = value
    return replace(factor, exposed=exposed)


SPOILT = {
    "cancelled below 0": lambda fit: {"user_posterior": with_exposed(fit.user_posterior, -7e-7)},
    "no number": lambda fit: {"item_posterior": with_exposed(fit.item_posterior, np.nan)},
    "infinite": lambda fit: {"item_posterior": replace(fit.item_posterior, row_means=np.full(9, np.inf))},
    "rate of 0": lambda fit: {"model": replace(fit.model, user_prior=replace(fit.model.user_prior, rate=0.0))},
    "mixed precision": lambda fit: {
        "item_posterior": Point(np.ones((9, 2))),
        "user_posterior": Point(np.ones((12, 2), "f")),
    },
    "no sweep": lambda fit: {"objective": np.empty(0)},
    "counts": lambda fit: {"counts": -fit.counts},
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_load_would_refuse_is_not_saved(tmp_path, small, spoil):
    path, model = tmp_path / "model.nbmf", fitted()
    path.write_bytes(small)
    model._become(replace(model.result_, **SPOILT[spoil](model.result_)))
    averaged = [nbmf.Averaged.of([fitted(), model], {"n_runs": 2})] if spoil == "cancelled below 0" else []
    for written in (model, *averaged):
        with pytest.raises(StorageError, match=r"model\.nbmf: .*nbmf could not read that back, so nothing was written"):
            written.save(path)
        assert path.read_bytes() == small
        assert os.listdir(tmp_path) == ["model.nbmf"]


def test_one_long_id_among_many_does_not_keep_a_model_from_being_saved(tmp_path):
    """As text of fixed width, 3,000 such ids take 48 MB, which `load` refuses of a file of a few kilobytes."""
    users = np.array(["a" * 4000, *(f"u{n}" for n in range(2999))])
    data = nbmf.Interactions.from_matrix(np.ones((3000, 2), int), users=users)
    nbmf.PoissonMF(1, max_iter=1, tol=0).fit(data).save(tmp_path / "model.nbmf")
    found = nbmf.load(tmp_path / "model.nbmf")
    assert found.users_.tolist() == users.tolist()
    assert found.recommend("u7", n=1, exclude_seen=False).items.shape == (1, 1)


def test_weights_that_load_would_refuse_are_not_saved(tmp_path):
    model = nbmf.NBSLIM(penalty=1.0).fit(MATRIX)
    model._become(replace(model.result_, weights=model.weights_ - 1))
    with pytest.raises(StorageError, match="'weights' has entries that are not finite numbers from 0; nbmf could not"):
        model.save(tmp_path / "model.nbmf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("n_threads", "x"),
        ("n_threads", True),
        ("tol", np.nan),
        ("backend", "abacus"),
        ("accelerate", "no"),
        ("dtype", "f2"),
    ],
)
@pytest.mark.parametrize("kind", [nbmf.NBMF, nbmf.PoissonMF, nbmf.NBSLIM, nbmf.Averaged])
def test_spoilt_settings_are_not_saved(tmp_path, kind, setting, value):
    model = kind().set_params(**{"estimator": nbmf.NBMF(2, max_iter=2), "n_runs": 2} if kind is nbmf.Averaged else {})
    model = fitted(model)
    setattr(model.members_[1] if kind is nbmf.Averaged else model, setting, value)
    with pytest.raises(StorageError, match=f"model.nbmf: {setting} is {value!r}; it must be"):
        model.save(tmp_path / "model.nbmf")
    assert not list(tmp_path.iterdir())


def test_a_form_that_was_changed_after_the_fit_is_not_saved(tmp_path):
    """The file would hold factors of one form of the counts and answer with another."""
    model = fitted(nbmf.PoissonMF(2, max_iter=2)).set_params(binarize=True)
    with pytest.raises(StorageError, match="was fitted to 'counts' of the data, and its settings now say 'binary'"):
        model.save(tmp_path / "model.nbmf")
    model.set_params(binarize=False).save(tmp_path / "model.nbmf")


# ---- all or nothing --------------------------------------------------------------------------------------------------


class FailingStream:
    """A file that takes some bytes, then fails."""

    def __init__(self, stream, room):
        self.stream, self.room = stream, room

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stream.close()

    def write(self, data):
        if len(data) > self.room:
            self.stream.write(bytes(data)[: self.room])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data)
        return self.stream.write(data)


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


FAILURES = {
    "fsync": ("nbmf.storage.container.os.fsync", failing(OSError(errno.EIO, "Input/output error"))),
    "rename": ("nbmf.storage.container.os.replace", failing(PermissionError(errno.EPERM, "Operation not permitted"))),
    "chmod": ("nbmf.storage.container.os.chmod", failing(OSError(errno.EROFS, "Read-only file system"))),
    "write": ("nbmf.storage.container.open", lambda *args: FailingStream(open(*args), 700)),  # noqa: SIM115
    "open": ("nbmf.storage.container.open", failing(OSError(errno.EMFILE, "Too many open files"))),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, small, failure):
    path = tmp_path / "model.nbmf"
    path.write_bytes(small)
    model = fitted()
    with monkeypatch.context() as patched:
        patched.setattr(*FAILURES[failure], raising=False)
        with pytest.raises(StorageError, match=re.escape(f"{path}: cannot be written (")) as caught:
            model.save(path)
    assert isinstance(caught.value.__cause__, OSError)
    assert "what was there is unchanged" in str(caught.value)
    assert path.read_bytes() == small
    assert [file.name for file in tmp_path.iterdir()] == ["model.nbmf"]


def test_ctrl_c_leaves_the_old_file(tmp_path, monkeypatch, small):
    path = tmp_path / "model.nbmf"
    path.write_bytes(small)
    model = fitted()
    monkeypatch.setattr("nbmf.storage.container.os.fsync", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        model.save(path)
    assert path.read_bytes() == small
    assert [file.name for file in tmp_path.iterdir()] == ["model.nbmf"]


def test_a_folder_that_cannot_be_synced_is_reported(tmp_path, monkeypatch):
    model = fitted()
    monkeypatch.setattr("nbmf.storage.container._sync_folder", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StorageError, match="is written, but a power cut may undo it"):
        model.save(tmp_path / "model.nbmf")
    same_model(model, nbmf.load(tmp_path / "model.nbmf"))


FULL_DISK = """
import resource, sys
import nbmf
model = nbmf.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    model.save(sys.argv[2])
except nbmf.estimators.files.StorageError as error:
    print(error)
"""


def test_no_room_leaves_the_old_file(tmp_path, small):
    """The operating system refuses to write more, as on a full disk."""
    new, path = tmp_path / "new.nbmf", tmp_path / "model.nbmf"
    fitted(nbmf.NBMF(3, random_state=1, max_iter=2)).save(new)
    path.write_bytes(small)
    before = sorted(tmp_path.iterdir())
    said = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(new), str(path), str(new.stat().st_size - 1)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    assert "model.nbmf: cannot be written (File too large); what was there is unchanged" in said
    assert path.read_bytes() == small
    assert sorted(tmp_path.iterdir()) == before


def test_links_and_permissions_are_kept(tmp_path):
    real, link = tmp_path / "real.nbmf", tmp_path / "link.nbmf"
    fitted().save(real)
    usual = (tmp_path / "usual").open("w")
    usual.close()
    assert real.stat().st_mode == (tmp_path / "usual").stat().st_mode
    real.chmod(0o640)
    link.symlink_to(real)
    fitted(nbmf.PoissonMF(2, max_iter=2)).save(link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert isinstance(nbmf.load(real), nbmf.PoissonMF)


# ---- versions --------------------------------------------------------------------------------------------------------


def is_version_1(model):
    assert isinstance(model, nbmf.PoissonMF)
    assert model.get_params() == nbmf.PoissonMF(1, inference="mm", tol=np.inf).get_params()
    assert model.predict(["ann", "bob"], [7, 8]).tolist() == [3.0, 0.125]
    assert model.exposures("ann").count.tolist() == [3, 1]
    assert model.recommend("ann", n=1).items.tolist() == [[8]]
    assert model.objective_.tolist() == [-9.5, -9.25]
    assert not model.converged_
    assert isinstance(model.user_posterior_, Point)


def test_version_1_is_read_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "model.nbmf"
    path.write_bytes(version_1_file())
    is_version_1(nbmf.load(path))

    # as in the future: versions 2 and 3 each rename the class
    def upgrade(contents, key, value):
        document = contents.document | {"version": contents.document["version"] + 1, key: value}
        return replace(contents, document=document)

    monkeypatch.setattr(storage, "VERSION", 3)
    with pytest.raises(KeyError):
        nbmf.load(path)
    monkeypatch.setitem(storage.UPGRADES, 1, lambda contents: upgrade(contents, "class", "Poisson"))
    monkeypatch.setitem(storage.UPGRADES, 2, lambda contents: upgrade(contents, "class", "PoissonMF"))
    is_version_1(nbmf.load(path))


def test_every_earlier_version_has_an_upgrade():
    assert set(storage.UPGRADES) == set(range(1, storage.VERSION))


def test_what_this_writes_is_what_the_page_says(small):
    """docs/format.md names every entry and every array."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    length = 8 + int.from_bytes(small[:8], "little")
    entries = json.loads(small[8:length])
    document = json.loads(entries.pop("__metadata__")["nbmf"])["document"]
    assert f"Version {document['version']}" in page
    for name in [*document, *entries]:
        assert f"`{re.sub('^(users|items)[.]', 'SIDE.', name)}`" in page or f"`{name}`" in page, name


def test_gammas_come_back_whole(small, tmp_path):
    (tmp_path / "model.nbmf").write_bytes(small)
    assert isinstance(nbmf.load(tmp_path / "model.nbmf").user_posterior_, Gamma)
