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
    nbmf.NBSLIM(penalty=1.0),
    nbmf.NBSLIM(n_neighbors=2, target="counts", dtype="float64"),
    nbmf.Averaged(nbmf.NBMF(2, max_iter=30), n_runs=2, random_state=0),
]


@parametrize_with_checks(ESTIMATORS)
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
