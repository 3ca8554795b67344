"""What models of the family answer where counts are not on average their intensities, or know nothing of some cells."""

import numpy as np
import pytest

import nbmf
from helpers import small_matrix

SETTLED = {"max_iter": 25, "dtype": "float64", "random_state": 0}
FAMILY = [
    nbmf.CompoundMF(3, **SETTLED),
    nbmf.CompoundMF(3, jumps="geometric", jump="learn", **SETTLED),
    nbmf.ZeroInflatedMF(3, **SETTLED),
    nbmf.ZeroInflatedMF(3, probability="learn_per_user", **SETTLED),
    nbmf.RobustMF(3, **SETTLED),
    nbmf.BinaryMF(3, **SETTLED),
    nbmf.RandomGraphExposureMF(3, **SETTLED),
]
ROWS = small_matrix()[:4]


@pytest.fixture(params=FAMILY, ids=str)
def model(request):
    return request.param.fit(small_matrix())


def everything(model):
    """The expected count of every cell."""
    return np.array([model.predict(user, np.arange(20)) for user in range(30)])


def test_the_total_of_a_row_is_that_of_its_expected_counts(model):
    cells = [model.predictive_for(ROWS[[n]], np.arange(20)).mean.sum() for n in range(4)]
    np.testing.assert_allclose(model.predict(ROWS), cells, rtol=1e-9)


def test_parts_of_a_component_are_of_the_scores(model):
    top = model.top_items(1, n=20)
    scores = model.result_.scores().pairs(*(each.ravel() for each in np.indices((30, 20)))).reshape(30, 20)
    np.testing.assert_allclose(top.weight / top.share, scores.sum(axis=0)[top.items], rtol=1e-9)


@pytest.mark.parametrize("estimator", FAMILY[:4], ids=str)
def test_an_average_says_of_new_users_what_its_members_say(estimator):
    model = nbmf.Averaged(estimator, n_runs=3, random_state=5).fit(small_matrix())
    expected = np.mean([member.predictive_for(ROWS[[2]], np.arange(20)).mean for member in model.members_], axis=0)
    np.testing.assert_allclose(model.predictive_for(ROWS[[2]], np.arange(20)).mean, expected, rtol=1e-9)
    found = model.recommend_for(ROWS[[2]], n=20, exclude_seen=False)
    np.testing.assert_allclose(found.scores[0], expected[found.items[0]], rtol=1e-9)


@pytest.mark.parametrize("estimator", [nbmf.ExpoMF(2), nbmf.CoupledCompoundMF(2)], ids=str)
def test_only_models_of_two_factors_are_averaged(estimator):
    with pytest.raises(TypeError, match="cannot be averaged; Averaged takes a model with factors, such as NBMF"):
        nbmf.Averaged(estimator, n_runs=2).fit(small_matrix())


@pytest.mark.parametrize("estimator", [*FAMILY[:2], FAMILY[-1]], ids=str)
def test_counts_of_unknown_cells_are_not_looked_at(estimator):
    matrix = small_matrix()
    unknown = np.random.RandomState(0).rand(*matrix.shape) < 0.2
    found = [estimator.fit(np.where(unknown, hidden, matrix), unknown=unknown).objective_ for hidden in (0, 99)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_a_large_intensity_does_not_change_what_is_said_of_a_small_one():
    counts = small_matrix()
    counts[0, 0] = 40_000
    model = nbmf.CompoundMF(3, jumps="geometric", jump=0.5, **SETTLED).fit(counts)
    both, alone = model.predictive([0, 5], [0, 7]), model.predictive([5], [7])
    assert both.at_least(1)[1] == pytest.approx(alone.at_least(1)[0], rel=1e-9)
    assert [end[1] for end in both.interval(0.9)] == [end[0] for end in alone.interval(0.9)]


def test_frequencies_of_whether_there_is_a_count_sum_to_one():
    train, test = nbmf.Interactions.from_matrix(small_matrix()).split(0.3, seed=0)
    table = nbmf.evaluation.calibration(nbmf.BinaryMF(3, **SETTLED).fit(train), train, test)
    assert table.predicted.sum() == pytest.approx(1)
    assert not table.predicted[2:].any()
    with pytest.raises(ValueError, match="do not sum to 1, so there is nothing to tabulate"):
        nbmf.evaluation.calibration(nbmf.RobustMF(3, **SETTLED).fit(train), train, test)


def test_random_graph_exposures_can_be_checked():
    assert len(nbmf.RandomGraphExposureMF(3, **SETTLED).fit(small_matrix()).check().statistics) > 5


@pytest.mark.parametrize(
    ("estimator", "counts", "message"),
    [
        (nbmf.RobustMF(2, penalty="x"), [[1, 2]], "penalty is 'x'; it must be a positive number"),
        (nbmf.RobustMF(2, penalty=0), [[1, 2]], "penalty is 0; it must be a positive number"),
        (
            nbmf.CompoundMF(2, dtype="float64"),
            [[1e30, 2]],
            r"a count is 1e\+30; CompoundMF takes counts up to 1e\+18",
        ),
    ],
)
def test_what_cannot_be_used_is_named(estimator, counts, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(np.array(counts))
