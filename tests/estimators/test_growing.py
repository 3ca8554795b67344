"""New users and items: a model answers for them, and grows by them into one consistent model."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import nbmf
from helpers import LEARNING, MODELS, count_matrices, relative, small_matrix


def named_fit(model=None):
    users = [f"user {n}" for n in range(30)]
    items = [f"item {n:02}" for n in range(20)]
    data = nbmf.Interactions.from_matrix(small_matrix(), users=users, items=items)
    return (model or nbmf.NBMF(3, random_state=0, max_iter=30)).fit(data), data


def test_recommendations_for_somebody_new():
    model, _ = named_fit()
    counts = {"item 03": 4, "item 17": 1, "item 05": 0}
    row = np.zeros((1, 20))
    row[0, [3, 17]] = 4, 1
    found = model.recommend_for(counts, n=20)
    score = (model.transform(row) @ model.item_factors_.T)[0]
    best = [n for n in np.argsort(-score, kind="stable") if n not in (3, 17)]
    assert found.items[0].tolist() == [f"item {n:02}" for n in best] + [None, None]
    np.testing.assert_allclose(found.scores[0, :18], score[best], rtol=1e-6)
    as_row = model.recommend_for(row, n=20)
    np.testing.assert_array_equal(as_row.items, found.items)
    assert "item 03" in model.recommend_for(counts, n=20, exclude_seen=False).items
    assert model.recommend_for(counts, n=3, allow=["item 00", "item 03"]).items.tolist() == [["item 00", None, None]]
    people = nbmf.Interactions.from_matrix(row, users=["zoe"], items=model.items_)
    assert model.recommend_for(people, n=1, deny={"zoe": found.items[0, :4]}).items[0, 0] == found.items[0, 4]
    with pytest.raises(KeyError, match="item 'item 99'"):
        model.recommend_for({"item 99": 1})
    with pytest.raises(ValueError, match="count -1 at item 'item 01'"):
        model.recommend_for({"item 01": -1})


@pytest.mark.parametrize("inference", ["cavi", "mm"])
def test_of_an_empty_mapping_nothing_is_known(inference):
    model, _ = named_fit(nbmf.NBMF(3, inference=inference, user_shape=0.5, random_state=0, dtype="float64"))
    user = np.ones(3) if inference == "cavi" else model.user_factors_.mean(axis=0)  # the prior mean is 0.5/0.5
    score = model.item_factors_ @ user
    found = model.recommend_for({}, n=20)
    np.testing.assert_allclose(found.scores[0], np.sort(score)[::-1], rtol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_added_users_are_users(model, tmp_path):
    model, data = named_fit(clone(model).set_params(random_state=0, max_iter=30))
    before = model.user_factors_.copy(), model.item_factors_.copy()
    new = nbmf.Interactions.from_matrix(small_matrix(7, 20, seed=5), users=[f"new {n}" for n in range(7)])
    new = nbmf.Interactions.from_matrix(new.matrix, users=new.users, items=data.items)
    expected, recommended = model.transform(new), model.recommend_for(new, n=5)
    assert model.add_users(new) is model
    np.testing.assert_array_equal(model.user_factors_, np.concatenate((before[0], expected)))
    np.testing.assert_array_equal(model.item_factors_, before[1])
    assert model.users_.tolist() == [*data.users, *new.users]
    found = model.recommend(new.users, n=5)
    np.testing.assert_array_equal(found.items, recommended.items)
    assert sorted(model.exposures("new 5").item) == sorted(data.items[np.flatnonzero(small_matrix(7, 20, seed=5)[5])])
    model.save(tmp_path / "grown.nbmf")
    same = nbmf.load(tmp_path / "grown.nbmf")
    np.testing.assert_array_equal(same.transform(new), model.transform(new))
    np.testing.assert_array_equal(same.recommend(n=3).items, model.recommend(n=3).items)
    with pytest.raises(ValueError, match="user 'new 0' is in the model already; partial_fit"):
        model.add_users(new)
    with pytest.raises(ValueError, match="ids of their own, such as 'user 0'"):
        model.add_users(np.ones((1, 20)))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_added_items_are_items(model):
    model, data = named_fit(clone(model).set_params(random_state=0, max_iter=30))
    new = nbmf.Interactions.from_matrix(
        small_matrix(9, 3, seed=4)[[6, 1, 0, 5]], users=["user 3", "user 4", "user 5", "user 7"]
    )
    new = nbmf.Interactions(new.users, np.array(["x", "y", "z"]), new.matrix, item_names=np.array(["Ex", "Why", "Zed"]))
    before = model.user_factors_.copy()
    model.add_items(new)
    np.testing.assert_array_equal(model.user_factors_, before)
    assert model.items_.tolist() == [*data.items, "x", "y", "z"]
    assert model.item_names_.tolist() == [*data.items, "Ex", "Why", "Zed"]
    assert model.components_.shape == (3, 23)
    assert model.n_features_in_ == 23
    assert model.transform(np.ones((1, 23))).shape == (1, 3)
    assert set(model.recommend("user 3", n=23).items[0]) >= {"x", "y", "z"} - set(new.items[new.matrix[[0]].indices])
    with pytest.raises(ValueError, match="item 'x' is in the model already"):
        model.add_items(new)
    stranger = nbmf.Interactions.from_arrays(["who"], ["w"])
    with pytest.raises(KeyError, match="user 'who' was not in the data"):
        model.add_items(stranger)
    with pytest.raises(ValueError, match="4 rows for 30 users"):
        model.add_items(np.ones((4, 1)))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_partial_fit_adds_up(model):
    model, data = named_fit(clone(model).set_params(random_state=0, max_iter=30, dtype="float64", tol=1e-7))
    users, items = model.user_factors_.copy(), model.item_factors_.copy()
    more = nbmf.Interactions.from_arrays(
        ["user 1", "user 1", "user 8", "zoe", "zoe", "abe"], ["item 00", "new", "item 00", "item 07", "new", "newer"]
    )
    model.partial_fit(more)
    assert model.users_.tolist() == [*data.users, "abe", "zoe"]
    assert model.items_.tolist() == [*data.items, "new", "newer"]
    others = np.setdiff1d(np.arange(30), [1, 8])
    np.testing.assert_array_equal(model.user_factors_[others], users[others])
    np.testing.assert_array_equal(model.item_factors_[:20], items)
    assert np.all(model.item_factors_.sum(axis=1)[20:] > 0)
    total = np.zeros((32, 22), int)
    total[:30, :20] = small_matrix()
    for row, column in ((1, 0), (1, 20), (8, 0), (31, 7), (31, 20), (30, 21)):
        total[row, column] += 1
    # users of the data get what folding in all their counts gives
    for row in (1, 8, 30, 31):
        assert relative(model.transform(total[[row]]), model.user_factors_[[row]]) < 1e-4
    assert (
        dict(zip(model.exposures("user 1").item, model.exposures("user 1").count, strict=True))["item 00"]
        == (total[1, 0])
    )
    everybody = nbmf.Interactions.from_matrix(np.zeros((32, 22), int), users=model.users_, items=model.items_)
    before = model.user_factors_.copy()
    np.testing.assert_array_equal(model.partial_fit(everybody).user_factors_, before)  # no counts, nothing new
    refreshed = model.partial_fit(nbmf.Interactions.from_arrays(["user 1"], ["item 00"]), refresh=3)
    assert refreshed.n_iter_ == len(refreshed.objective_) == 3
    assert not np.allclose(model.user_factors_[others], users[others], rtol=1e-5)


def test_sweeps_go_on_from_where_the_factors_are():
    """Sweeps after a partial_fit without counts are those that a longer fit would have made."""
    matrix = small_matrix()
    for settings in ({}, {"inference": "mm"}, {"exposure": "tied", "n_clusters": 4}, {"rates": "per_row"}):
        short, long = (
            nbmf.NBMF(3, random_state=0, dtype="float64", tol=0, max_iter=n, **settings).fit(matrix) for n in (40, 45)
        )
        nobody = nbmf.Interactions.from_arrays([], [])
        nobody = nbmf.Interactions(
            np.arange(0), short.items_, sp.csr_array((0, 20), dtype=int), item_names=nobody.item_names
        )
        short.partial_fit(nobody, refresh=5)
        np.testing.assert_allclose(short.objective_, long.objective_[40:], rtol=1e-12)
        np.testing.assert_allclose(short.user_factors_, long.user_factors_, rtol=1e-9)


def test_unknown_cells_stay_unknown(tmp_path):
    """Refreshing and folding in again do not depend on what they hold."""
    matrix, unknown = small_matrix(), np.random.default_rng(2).random((30, 20)) < 0.3
    more = nbmf.Interactions.from_matrix(np.where(unknown, 0, np.eye(30, 20, dtype=int)))

    def grown(counts):
        model = nbmf.NBMF(3, max_iter=15, dtype="float64", random_state=0).fit(counts, unknown=unknown)
        model.save(tmp_path / "model.nbmf")
        model = nbmf.load(tmp_path / "model.nbmf")
        return model.partial_fit(more).user_factors_, model.partial_fit(more, refresh=2).user_factors_

    for found, expected in zip(grown(matrix), grown(np.where(unknown, 77, matrix)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_partial_fit_of_an_estimator_and_of_rows():
    matrix = small_matrix()
    first = nbmf.NBMF(3, random_state=0).partial_fit(matrix[:20])
    np.testing.assert_array_equal(first.user_factors_, nbmf.NBMF(3, random_state=0).fit(matrix[:20]).user_factors_)
    expected = first.transform(matrix[20:])
    first.partial_fit(matrix[20:])
    np.testing.assert_array_equal(first.users_, np.arange(30))
    np.testing.assert_array_equal(first.user_factors_[20:], expected)
    with pytest.raises(ValueError, match="19 features"):
        first.partial_fit(matrix[:, :19])
    with pytest.raises(ValueError, match="refresh is -1"):
        first.partial_fit(matrix, refresh=-1)
    with pytest.raises(ValueError, match="0 and 'ann' are of different types"):
        first.partial_fit(nbmf.Interactions.from_arrays(["ann"], ["jazz"]))
    assert len(first.users_) == 30  # nothing has changed


def test_a_newcomer_without_counts_is_as_transform_says():
    for inference in ("cavi", "mm"):
        model = nbmf.NBMF(2, inference=inference, random_state=0).fit(small_matrix())
        expected = model.transform(np.zeros((1, 20)))
        model.partial_fit(nbmf.Interactions.from_matrix(np.zeros((1, 20), int), users=[77]))
        np.testing.assert_array_equal(model.user_factors_[-1:], expected)


@given(count_matrices(), count_matrices(), st.integers(1, 9), st.sampled_from([*MODELS, *LEARNING]))
def test_any_counts_can_follow(matrix, more, n_components, model):
    fit = clone(model).set_params(n_components=n_components, max_iter=6, tol=0, random_state=0).fit(matrix)
    nobody = nbmf.Interactions.from_matrix(more, users=np.arange(len(more)) + 3, items=np.arange(more.shape[1]) + 2)
    grown = fit.partial_fit(nobody, refresh=0)
    found = [grown.user_factors_.copy(), grown.item_factors_.copy(), grown.transform(np.ones((1, len(grown.items_))))]
    grown.partial_fit(nobody, refresh=1)
    found += [grown.user_factors_, grown.item_factors_, grown.recommend_for({2: 3}, exclude_seen=False).scores]
    for values in found:
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert grown.user_factors_.shape == (len(grown.users_), n_components)
    assert grown.item_factors_.shape == (len(grown.items_), n_components)
