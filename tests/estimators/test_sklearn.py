"""scikit-learn's contract: its own checks, its pipelines and its grid search."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import nbmf
from helpers import count_distribution, small_matrix

ESTIMATORS = [
    nbmf.NBMF(2, max_iter=30, random_state=0),
    nbmf.NBMF(2, exposure="tied", n_clusters=2, max_iter=30, random_state=0),
    nbmf.NBMF(2, inference="mm", max_iter=30, random_state=0),
    nbmf.NBMF(2, concentration="learn", rates="per_row", shapes="learn", max_iter=30, random_state=0),
    nbmf.PoissonMF(2, max_iter=30, random_state=0),
    nbmf.PoissonMF(2, binarize=True, max_iter=30, random_state=0),
    nbmf.CompoundMF(2, max_iter=30, random_state=0),
    nbmf.CompoundMF(2, jumps="geometric", jump=0.5, inference="mm", max_iter=30, random_state=0),
    nbmf.ZeroInflatedMF(2, max_iter=30, random_state=0),
    nbmf.ZeroInflatedMF(2, exposure="tied", n_clusters=2, max_iter=30, random_state=0),
    nbmf.RobustMF(2, max_iter=30, random_state=0),
    nbmf.BinaryMF(2, max_iter=30, random_state=0),
    nbmf.NBSLIM(penalty=1.0),
    nbmf.NBSLIM(n_neighbors=2, target="counts", dtype="float64"),
    nbmf.NBFISM(2, max_iter=30, n_starts=2, random_state=0),
    nbmf.NBFISM(2, likelihood="negative_binomial", target="counts", max_iter=30, dtype="float64", random_state=0),
    nbmf.Averaged(nbmf.NBMF(2, max_iter=30), n_runs=2, random_state=0),
    nbmf.Blend([nbmf.NBSLIM(penalty=1.0), nbmf.NBMF(2, max_iter=30, random_state=0)], [0.5, 0.5]),
    nbmf.Blend([nbmf.PoissonMF(2, max_iter=30, random_state=0), nbmf.NBMF(2, random_state=0)], random_state=0),
    nbmf.ExpoMF(2, max_iter=30, random_state=0),
    nbmf.RandomGraphExposureMF(2, max_iter=30, random_state=0),
    nbmf.CoupledCompoundMF(2, max_iter=30, random_state=0),
]


def cannot_grow(estimator):
    """A blend that a member keeps from growing says so, where scikit-learn expects no `partial_fit` at all."""
    checks = "check_fit_score_takes_y", "check_n_features_in_after_fitting"
    stiff = isinstance(estimator, nbmf.Blend) and any(isinstance(model, nbmf.NBSLIM) for model in estimator.models)
    return dict.fromkeys(checks, "NBSLIM has no partial_fit") if stiff else {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=cannot_grow)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


POSTS = [
    "the cat sat on the mat",
    "a cat and a dog",
    "the dog ran",
    "stocks rose and fell",
    "the stocks market rose",
] * 3


def test_topics_of_texts_in_a_pipeline():
    pipeline = make_pipeline(CountVectorizer(), nbmf.NBMF(2, max_iter=50, random_state=0))
    topics = pipeline.fit_transform(POSTS)
    assert topics.shape == (15, 2)
    np.testing.assert_allclose(pipeline.transform(POSTS), topics, rtol=0.05)
    assert list(pipeline[-1].get_feature_names_out()) == ["nbmf0", "nbmf1"]


def test_a_grid_is_searched_by_held_out_likelihood():
    matrix, model, folds = small_matrix(), nbmf.NBMF(max_iter=20, random_state=0), KFold(3)
    search = GridSearchCV(model, {"n_components": [1, 2], "concentration": [0.3, 3.0]}, cv=folds).fit(matrix)
    scores = []
    for settings in search.cv_results_["params"]:
        fits = [(clone(model).set_params(**settings).fit(matrix[train]), test) for train, test in folds.split(matrix)]
        intensities = [fit.transform(matrix[test]) @ fit.components_ for fit, test in fits]
        cells = count_distribution(settings["concentration"], np.concatenate(intensities)).logpmf(matrix)
        scores.append(cells.mean())
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores, rtol=1e-5)
    assert search.best_params_ == search.cv_results_["params"][np.argmax(scores)]
    assert np.ptp(scores) > 0.01  # so that the choice matters


def test_data_frames_go_in_and_come_out():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(small_matrix(), columns=[f"item{n}" for n in range(20)], index=[f"user{n}" for n in range(30)])
    model = nbmf.NBMF(3, max_iter=20, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(model.feature_names_in_) == list(frame.columns)
    found = model.transform(frame)
    assert list(found.columns) == ["nbmf0", "nbmf1", "nbmf2"]
    assert list(found.index) == list(frame.index)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame.rename(columns={"item3": "other"}))


def cells(n_cells=30, seed=0):
    pd = pytest.importorskip("pandas")
    index, columns = [f"cell{n}" for n in range(n_cells)], [f"gene{n}" for n in range(20)]
    return pd.DataFrame(small_matrix(n_cells, 20, seed), index=index, columns=columns)


def test_the_index_of_a_data_frame_is_its_users(tmp_path):
    frame = cells()
    model = nbmf.NBMF(3, max_iter=20, random_state=0).fit(frame)
    model.save(tmp_path / "cells.nbmf")
    for one in (model, nbmf.load(tmp_path / "cells.nbmf")):
        assert one.users_.tolist() == frame.index.tolist()
        assert one.recommend("cell0", n=2).items[0, 0].startswith("gene")
    found = model.recommend_for(frame.iloc[[4, 2]], n=2)
    assert found.users.tolist() == ["cell4", "cell2"]
    np.testing.assert_allclose(model.transform(frame.iloc[[4]]), model.transform(frame)[[4]], rtol=1e-6)
    assert model.score(frame) == pytest.approx(model.score(frame.reset_index(drop=True)))  # folded in, known or not
    more = cells(33, seed=2).iloc[28:]
    with pytest.raises(ValueError, match="user 'cell28' is in the model already"):
        model.add_users(more)
    before = model.exposures("cell28").count.sum()
    model.partial_fit(more)
    assert model.users_.tolist() == [f"cell{n}" for n in range(33)]
    assert model.exposures("cell28").count.sum() == before + more.loc["cell28"].sum()


def test_a_default_index_names_nobody():
    frame = cells().reset_index(drop=True)
    assert nbmf.NBMF(2, max_iter=5, random_state=0).fit(frame.iloc[5:]).users_.tolist() == list(range(25))
    some = frame.iloc[[7, 3, 9]]
    assert nbmf.NBSLIM().fit(some).users_.tolist() == [0, 1, 2]
    model = nbmf.NBMF(2, max_iter=5, random_state=0).fit(frame)
    assert model.partial_fit(some).users_.tolist() == list(range(33))  # three more
    assert model.add_users(some).users_.tolist() == list(range(36))
    dates = frame.set_index(np.arange(30).astype("datetime64[D]"))
    assert nbmf.NBSLIM().fit(dates).users_.tolist() == list(range(30))


def test_repeated_users_are_refused():
    frame, again = cells(), cells().rename(index={"cell9": "cell3"})
    model = nbmf.NBMF(2, max_iter=5, random_state=0).fit(frame)
    new = again.rename(index=lambda name: f"new {name}")
    for ask in (
        lambda: nbmf.NBMF(2).fit(again),
        lambda: model.partial_fit(again),
        lambda: model.add_users(new),
        lambda: model.recommend_for(again, deny={"cell3": ["gene1"]}),
    ):
        with pytest.raises(ValueError, match=r"index .* '(new )?cell3' appears"):
            ask()
    np.testing.assert_array_equal(model.transform(again), model.transform(frame))  # which needs no ids
    assert model.score(again) == model.score(frame)
    assert model.recommend_for(again, n=1).users.tolist() == again.index.tolist()


# ---- data frames of a model whose items have ids --------------------------------------------------------------------


def with_ids(kind):
    data = nbmf.Interactions.from_matrix(cells())
    if kind == "numbers":
        return nbmf.Interactions.from_matrix(data.matrix, data.users, np.arange(20) * 7 + 100)
    return data


def test_a_frame_keeps_its_names():
    data = nbmf.Interactions.from_matrix(cells())
    assert (data.users[3], data.items[19]) == ("cell3", "gene19")
    np.testing.assert_array_equal(data.matrix.toarray(), cells().to_numpy())
    numbered = nbmf.Interactions.from_matrix(cells().reset_index(drop=True), items=range(20))
    assert (numbered.users.tolist(), numbered.items.tolist()) == (list(range(30)), list(range(20)))
    pl = pytest.importorskip("polars")
    assert nbmf.Interactions.from_matrix(pl.from_pandas(cells())).items.tolist() == cells().columns.tolist()


@pytest.mark.parametrize("kind", ["text", "numbers"])
@pytest.mark.parametrize("estimator", [nbmf.NBMF(3, max_iter=20, random_state=0), nbmf.NBSLIM()], ids=str)
def test_columns_of_a_frame_are_matched_by_name(estimator, kind, tmp_path):
    data = with_ids(kind)
    estimator.fit(data).save(tmp_path / "model.nbmf")
    order = np.random.default_rng(0).permutation(20)
    new = cells(6, seed=5)
    new.columns = data.items
    shuffled, rows = new.iloc[:, order], new.to_numpy()
    for model in (estimator, nbmf.load(tmp_path / "model.nbmf")):
        assert model.score(shuffled) == model.score(rows)
        np.testing.assert_array_equal(model.predict(shuffled), model.predict(rows))
        found = model.recommend_for(shuffled, n=3)
        np.testing.assert_array_equal(found.items, model.recommend_for(rows, n=3).items)
        # items without a column count 0
        some, zeros = shuffled.iloc[:, :8], np.where(np.isin(np.arange(20), order[:8]), rows, 0)
        np.testing.assert_array_equal(model.recommend_for(some, n=3).scores, model.recommend_for(zeros, n=3).scores)


def test_models_with_factors_match_columns_by_name():
    pl = pytest.importorskip("polars")
    model, new = nbmf.NBMF(3, max_iter=20, random_state=0).fit(with_ids("text")), cells(6, seed=5)
    backwards, rows = new[new.columns[::-1]], new.to_numpy()
    np.testing.assert_array_equal(model.transform(backwards), model.transform(rows))
    np.testing.assert_array_equal(model.transform(pl.from_pandas(backwards)), model.transform(rows))
    named = backwards.rename(index=lambda name: f"new {name}")
    added = model.add_users(named).user_factors_[-6:]
    np.testing.assert_array_equal(added, model.transform(rows))
    before = model.result_.counts[:6].toarray()
    model.partial_fit(backwards)  # of cell0 to cell5
    np.testing.assert_array_equal(model.result_.counts[:6].toarray(), before + rows)


def test_columns_that_were_not_fitted_are_reported():
    model, new = nbmf.NBMF(3, max_iter=20, random_state=0).fit(with_ids("text")), cells(6, seed=5)
    renamed = new.rename(columns={"gene3": "other"})
    for ask in (model.transform, model.recommend_for, model.add_users):
        with pytest.raises(KeyError, match=r"item 'other' was not in .* unknown_items='ignore'"):
            ask(renamed)
    for ask in (model.score, model.partial_fit, model.predict):  # which have no such option
        with pytest.raises(KeyError, match="item 'other' was not in") as caught:
            ask(renamed)
        assert "unknown_items" not in str(caught.value)
    with pytest.warns(UserWarning, match="1 items were not in the data of the fit, 'other' among them"):
        found = model.transform(renamed, unknown_items="ignore")
    np.testing.assert_array_equal(found, model.transform(new.assign(gene3=0)))
    with pytest.raises(ValueError, match="columns of the data frame are taken for the items, and 'gene4' appears"):
        model.transform(new.rename(columns={"gene3": "gene4"}))


def test_new_items_of_a_frame_are_matched_by_user():
    data = with_ids("text")
    both = nbmf.NBMF(3, max_iter=20, random_state=0).fit(data), nbmf.NBMF(3, max_iter=20, random_state=0).fit(data)
    more = cells(seed=8)[["gene0", "gene1"]].rename(columns=lambda name: f"new {name}")
    both[0].add_items(nbmf.Interactions.from_matrix(more))
    both[1].add_items(more.iloc[::-1])
    np.testing.assert_array_equal(both[0].item_factors_, both[1].item_factors_)
    assert both[1].items_.tolist()[-2:] == ["new gene0", "new gene1"]


def test_tables_of_interactions_are_not_matrices():
    pd = pytest.importorskip("pandas")
    who = pd.DataFrame({"who": ["ann", "bob"], "band": ["a", "b"], "plays": [3, 4]})
    with pytest.raises(ValueError, match=r"read_interactions\(frame, user='who', item='band', count='plays'\)"):
        nbmf.NBMF(2).fit(who)
    numbers = pd.DataFrame({"user_id": [1, 2], "song": [3, 4], "rating": [3, 4], "year": [1, 2]})
    with pytest.raises(ValueError, match="read_interactions"):
        nbmf.NBSLIM().fit(numbers)
    pl = pytest.importorskip("polars")
    with pytest.raises(ValueError, match="user='who', item='band', count='plays'"):
        nbmf.NBMF(2).fit(pl.from_pandas(who))
    for names in (["jazz", "users"], ["book", "person", "cup"]):  # which are items
        assert nbmf.NBMF(2, max_iter=3, tol=0).fit(pd.DataFrame(np.eye(len(names)), columns=names)).n_iter_ == 3


def test_a_frame_whose_users_are_a_column_says_so():
    frame = cells().rename_axis("cell").reset_index()
    with pytest.raises(ValueError, match=r"if 'cell' names the users, fit frame\.set_index\('cell'\)"):
        nbmf.NBMF(2).fit(frame)
    assert nbmf.NBMF(2, max_iter=3, tol=0).fit(frame.set_index("cell")).users_[3] == "cell3"  # the remedy


def test_missing_counts_say_what_to_do():
    frame = cells().astype(float)
    frame.iloc[2, 5] = np.nan
    with pytest.raises(ValueError, match=r"count nan at row 2, column 5; .*fillna\(0\).*unknown="):
        nbmf.NBMF(2).fit(frame)
    nbmf.NBMF(2, max_iter=3, tol=0).fit(frame.fillna(0), unknown=frame.isna().to_numpy())  # both remedies


def test_a_wide_frame_is_not_read_as_interactions():
    frame = nbmf.Interactions.from_matrix(small_matrix(30, 100)).matrix.toarray()
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"and 80 more; if there is one per item, model\.fit\(frame\)") as caught:
        nbmf.read_interactions(pd.DataFrame(frame, columns=[f"gene{n}" for n in range(100)]))
    assert "'gene19'" in str(caught.value)
    assert "'gene20'" not in str(caught.value)


def test_factors_are_turned_into_expected_counts():
    model = nbmf.Averaged(nbmf.NBMF(2, max_iter=10), n_runs=2, random_state=0).fit(small_matrix())
    for one in (model, model.members_[0]):
        expected = one.inverse_transform(one.transform(small_matrix()[:3]))
        best = one.recommend_for(small_matrix()[:3], n=20, exclude_seen=False)
        np.testing.assert_allclose(np.sort(expected, axis=1)[:, ::-1], best.scores, rtol=1e-5)
        with pytest.raises(ValueError, match=r"X has shape \(3, 20\); rows of factors"):
            one.inverse_transform(small_matrix()[:3])
