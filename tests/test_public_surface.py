"""The names users type keep their meanings, and the files that older commits wrote can be read."""

import inspect
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import nbmf
from helpers import assert_same_interactions, small_matrix, typed, write_rows
from make_fixtures import CHECKPOINTED, CUT, MODELS, N_SWEEPS, answers_of, arithmetic, arrays_of, counts, digest

BEFORE = Path(__file__).parent / "fixtures" / "before_house"
EXPECTED = json.loads((BEFORE / "expected.json").read_text())
SAME_ARITHMETIC = EXPECTED["arithmetic"]["arithmetic"] == arithmetic()  # as where the files were written


# ---- names ----------------------------------------------------------------------------------------------------------

FACTORIZATION = {
    "n_components": 50,
    "user_shape": 1.0,
    "item_shape": 1.0,
    "inference": "cavi",
    "init": "random",
    "max_iter": 500,
    "tol": 1e-5,
    "accelerate": False,
    "backend": "auto",
    "dtype": "float32",
    "random_state": None,
    "verbose": False,
}


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        (nbmf.NBMF, {**FACTORIZATION, "concentration": 1.0, "exposure": "auto", "n_clusters": 64}),
        (nbmf.PoissonMF, {**FACTORIZATION, "binarize": False}),
        (
            nbmf.NBFISM,
            {
                "n_components": 200,
                "likelihood": "poisson",
                "concentration": 3.0,
                "penalty": 10.0,
                "input": "log1p",
                "target": "log1p",
                "n_clusters": 64,
                "n_starts": 4,
                "max_iter": 200,
                "tol": 2e-4,
                "backend": "auto",
                "n_threads": None,
                "dtype": "float32",
                "random_state": None,
                "verbose": False,
            },
        ),
    ],
)
def test_settings_and_their_defaults(estimator, settings):
    parameters = inspect.signature(estimator).parameters
    assert {name: parameters[name].default for name in settings} == settings
    assert next(iter(parameters)) == "n_components"
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in settings if name != "n_components")


def test_data(tmp_path):
    users, items, numbers = ["ann", "ann", "bob", "cy"], ["jazz", "folk", "jazz", "rock"], [3, 1, 2, 5]
    path = write_rows(tmp_path / "plays.tsv", zip(users, items, numbers, strict=True), ["user", "item", "count"], "\t")
    data = nbmf.Interactions.from_arrays(users, items, numbers)
    frame = pd.DataFrame({"who": users, "what": items, "n": numbers})
    assert_same_interactions(nbmf.read_interactions(path), data)
    assert_same_interactions(nbmf.read_interactions(frame, user="who", item="what", count="n"), data)
    assert nbmf.read_interactions(frame[["who", "what"]], user="who", item="what").matrix.sum() == 4
    assert (data.n_users, data.n_items, data.nnz) == (3, 3, 4)
    assert data.users.tolist() == ["ann", "bob", "cy"]
    assert data.items.tolist() == ["folk", "jazz", "rock"]
    assert isinstance(data.matrix, sp.csr_array)
    assert_same_interactions(nbmf.Interactions.from_matrix(data.matrix, users=data.users, items=data.items), data)
    assert nbmf.Interactions.from_matrix(data.matrix).users.tolist() == [0, 1, 2]
    assert data.filter(min_users_per_item=2, min_items_per_user=1, repeat=False).items.tolist() == ["jazz"]
    train, test = nbmf.datasets.simulate(40, 30, n_components=3, seed=0).split(test_fraction=0.2, seed=0)
    assert train.users.tolist() == test.users.tolist()
    assert not (train.matrix.multiply(test.matrix)).nnz
    assert all(callable(getattr(nbmf.datasets, name)) for name in ("groceries", "taste_profile"))


@pytest.mark.parametrize(
    "model",
    [
        nbmf.NBMF(3, exposure="exact", max_iter=20, random_state=0),
        nbmf.NBMF(3, exposure="tied", n_clusters=4, accelerate=True, max_iter=20, random_state=0),
        nbmf.NBMF(3, inference="mm", backend="reference", dtype="float64", max_iter=20, random_state=0),
        nbmf.PoissonMF(3, max_iter=20, random_state=0),
        nbmf.PoissonMF(3, binarize=True, init=(np.ones((30, 3)), np.eye(20, 3) + 0.1), max_iter=20),
    ],
    ids=["exact", "tied", "mm", "poisson", "binarized"],
)
def test_a_factorization(model, tmp_path):
    data = nbmf.Interactions.from_matrix(small_matrix(), users=[f"u{n}" for n in range(30)])
    model = clone(model).fit(data)
    W, H = model.user_factors_, model.item_factors_
    assert (W.shape, H.shape) == ((30, 3), (20, 3))
    np.testing.assert_array_equal(model.components_, H.T)
    assert model.n_iter_ == len(model.objective_) <= 20
    assert model.objective_[-1] > model.objective_[0]
    assert isinstance(model.converged_, bool)
    assert model.concentration_ == (np.inf if isinstance(model, nbmf.PoissonMF) else 1.0)
    assert model.transform(small_matrix()[:2]).shape == (2, 3)
    assert model.score(small_matrix(9, 20, seed=1)) < 0
    np.testing.assert_allclose(model.predict(["u1", "u7"], [4, 0]), (W[[1, 7]] * H[[4, 0]]).sum(axis=1), rtol=1e-5)
    best = model.recommend(["u1", "u7"], n=10, exclude_seen=True, allow=None, deny=[4])
    assert best.items.shape == best.scores.shape == (2, 10)
    assert 4 not in best.items
    assert len(best.to_pandas()) == len(best.to_polars()) > 0
    assert set(model.recommend("u1", n=2, exclude_seen=False, allow=[0, 1]).items[0]) == {0, 1}
    assert model.recommend_for({3: 2}, n=4).items.shape == (1, 4)
    assert model.recommend_for(small_matrix()[:2], n=4).items.shape == (2, 4)
    exposures = model.exposures("u1").to_pandas()
    assert {"item", "count", "intensity", "exposure", "sd"} <= set(exposures.columns)
    explanation = model.explain("u1", 4)
    assert explanation.contributions.sum() + explanation.prior == pytest.approx(explanation.score, rel=1e-5)
    assert len(model.similar_items(4, n=3).ids) == len(model.similar_users("u1", n=3).ids) == 3
    forecast = model.predictive(["u1"], [4])
    low, high = forecast.interval(0.9)
    assert low <= forecast.mean <= high
    assert forecast.sd > 0
    assert 0 <= forecast.at_least(2) <= 1
    model.save(tmp_path / "model.nbmf")
    np.testing.assert_array_equal(nbmf.load(tmp_path / "model.nbmf").user_factors_, W)


def test_the_other_estimators():
    average = nbmf.Averaged(nbmf.NBMF(2, max_iter=5), n_runs=2, random_state=0)
    encoder = nbmf.NBFISM(2, max_iter=5, random_state=0)
    for model in (
        nbmf.NBSLIM(),
        encoder,
        average,
        nbmf.Blend([nbmf.NBSLIM(), average], weights="learn", random_state=0),
    ):
        assert model.fit(small_matrix()).recommend([0, 1], n=3).items.shape == (2, 3)
    unknown = np.eye(30, 20, dtype=bool)
    assert nbmf.NBMF(2, max_iter=5, random_state=0).fit(small_matrix(), unknown=unknown).n_iter_ == 5


def test_evaluation():
    train, test = nbmf.datasets.simulate(40, 30, n_components=3, seed=0).split(test_fraction=0.2, seed=0)
    result = nbmf.evaluate(nbmf.NBMF(3, random_state=0).fit(train), train, test, relevance=("counts", 1, 2, 5, 10))
    for name in ("ndcg_counts", "ndcg_at_least_1", "ndcg_at_least_2"):
        low, high = result[name].interval
        assert low <= result[name].mean <= high
        assert len(result[name].per_user) == 40
    assert result.n_users + result.n_left_out == 40
    assert nbmf.ndcg([3, 2, 0]) == 1.0
    assert 0 < nbmf.ndcg([0, 5000]) < 1  # 2^5000 is beyond a double


def test_commands():
    for name in ("demo", "fit", "recommend", "evaluate", "compare", "reproduce", "serve"):
        assert "--" in typed(name, "--help").stdout


# ---- files of the commit before the folders were layers -------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_comes_back(name, tmp_path):
    """Arrays to the bit; answers, which are computed afresh, to rounding where the machine's arithmetic differs."""
    model, expected = nbmf.load(BEFORE / f"{name}.nbmf"), EXPECTED[name]
    assert type(model).__name__ == expected["class"]
    assert repr(model.get_params()) == repr(MODELS[name].get_params())
    assert model.users_.tolist() == counts().users.tolist()
    assert arrays_of(model) == expected["arrays"]
    answers = answers_of(model)
    np.testing.assert_allclose(answers["scores"], expected["scores"], rtol=1e-4, atol=1e-5)
    if SAME_ARITHMETIC:
        assert answers == {question: expected[question] for question in answers}
    model.save(tmp_path / "again.nbmf")
    assert arrays_of(nbmf.load(tmp_path / "again.nbmf")) == expected["arrays"]


CHANGED = ("tied", "accelerated", "mm")  # items are tied, and steps taken, in another way than before
OTHER_BITS = "error" if SAME_ARITHMETIC else "ignore:the objective after sweep"


@pytest.mark.filterwarnings(OTHER_BITS)
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_checkpoint_is_resumed(name, tmp_path):
    """As if the fit had never stopped, to the bit; to rounding where the machine's arithmetic differs.

    Where the sweeps have changed since, the fit goes on all the same and ends where one of today does, or nearly.
    """
    checkpoint, data, estimator = BEFORE / f"{name}.checkpoint.nbmf", counts(), CHECKPOINTED[name]
    sweeps = []
    resumed = clone(estimator).fit(data, resume=checkpoint, callbacks=[lambda snapshot: sweeps.append(snapshot.sweep)])
    assert sweeps == list(range(CUT + 1, N_SWEEPS + 1))
    whole = clone(estimator).fit(data)
    if name in CHANGED:
        np.testing.assert_allclose(resumed.objective_[-1], whole.objective_[-1], rtol=3e-2)
    else:
        if SAME_ARITHMETIC:
            assert arrays_of(resumed) == arrays_of(whole)
        np.testing.assert_allclose(resumed.objective_, whole.objective_, rtol=1e-4)
    part = tmp_path / "part.nbmf"
    clone(estimator).set_params(max_iter=CUT + 3).fit(data, resume=checkpoint, checkpoint=part)
    assert arrays_of(clone(estimator).fit(data, resume=part)) == arrays_of(resumed)


def test_a_file_of_counts_comes_back():
    stored, data = nbmf.open_counts(BEFORE / "plays.counts"), counts()
    assert {name: digest(getattr(stored.matrix, name)) for name in EXPECTED["counts"]} == EXPECTED["counts"]
    order = np.argsort(data.users[:-1])  # as files of counts have them; the last user has no counts
    assert stored.users.tolist() == data.users[order].tolist()
    assert (stored.matrix != data.matrix[order]).nnz == 0
