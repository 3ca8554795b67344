"""The mean of several starts: every answer is the mean of the members' answers, and one file holds them all."""

import numpy as np
import pytest
import scipy.sparse as sp

import nbmf
from helpers import small_matrix
from nbmf.model.likelihood import NegativeBinomial

ESTIMATORS = [
    nbmf.NBMF(3, max_iter=25, dtype="float64"),
    nbmf.NBMF(3, exposure="tied", n_clusters=4, concentration="learn_per_user", max_iter=25, dtype="float64"),
    nbmf.NBMF(3, inference="mm", max_iter=25, dtype="float64"),
    nbmf.PoissonMF(3, binarize=True, max_iter=25, dtype="float64"),
]


def data():
    matrix = small_matrix()
    return nbmf.Interactions.from_matrix(matrix, [f"u{n}" for n in range(30)], [f"i{n}" for n in range(20)])


@pytest.fixture(params=ESTIMATORS, ids=str)
def model(request):
    return nbmf.Averaged(request.param, n_runs=3, random_state=5).fit(data())


def mean_of(model, answer):
    return np.mean([answer(member) for member in model.members_], axis=0)


def test_scores_are_means(model):
    users, items = ["u0", "u7", "u29"], ["i3", "i0", "i19"]
    assert len({member.random_state for member in model.members_}) == 3
    np.testing.assert_allclose(model.predict(users, items), mean_of(model, lambda m: m.predict(users, items)))
    rows = small_matrix()[:4]
    frame = nbmf.Interactions.from_matrix(rows, list("abcd"), [f"i{n}" for n in range(20)])
    scores = mean_of(model, lambda m: m.transform(frame) @ m.components_)
    np.testing.assert_allclose(model.transform(frame) @ model.components_, scores, rtol=1e-12)
    np.testing.assert_allclose(
        model.recommend_for({"i3": 4}, n=20, exclude_seen=False).scores[0],
        np.sort(mean_of(model, lambda m: m.transform(only("i3", 4)) @ m.components_)[0])[::-1],
    )


def only(item, count):
    return nbmf.Interactions.from_arrays(["new"], [item], [count])


def test_explanations_are_means_and_add_up(model):
    why = model.explain("u3", "i5")
    assert why.contributions.sum() + why.prior == pytest.approx(why.score, rel=1e-12)
    assert why.score == pytest.approx(model.predict("u3", "i5")[0], rel=1e-12)
    assert list(why.contributions) == sorted(why.contributions, reverse=True)
    for item, part in zip(why.items, why.contributions, strict=True):
        parts = [m.explain("u3", "i5") for m in model.members_]
        assert part == pytest.approx(np.mean([p.contributions[p.items == item][0] for p in parts]), rel=1e-12)


def test_one_file_holds_them_all(model, tmp_path):
    model.save(tmp_path / "model.nbmf")
    same = nbmf.load(tmp_path / "model.nbmf")
    np.testing.assert_array_equal(same.user_factors_, model.user_factors_)
    np.testing.assert_array_equal(same.concentration_, model.concentration_)
    assert same.get_params()["n_runs"] == 3
    users = ["u0", "u11"]
    np.testing.assert_array_equal(same.recommend(users).items, model.recommend(users).items)
    np.testing.assert_array_equal(same.recommend_for({"i2": 1}).scores, model.recommend_for({"i2": 1}).scores)
    np.testing.assert_array_equal(same.explain("u3", "i5").contributions, model.explain("u3", "i5").contributions)
    single = tmp_path / "single.nbmf"
    model.members_[0].save(single)
    assert (tmp_path / "model.nbmf").stat().st_size < 3 * single.stat().st_size  # counts and ids are there once


def test_growing_grows_every_member(model):
    before = model.user_factors_.copy()
    members = list(model.members_)
    more = nbmf.Interactions.from_arrays(["new", "new"], ["i1", "i2"], [3, 1])
    model.add_users(more)
    np.testing.assert_array_equal(model.user_factors_[:30], before)
    np.testing.assert_allclose(model.predict("new", "i4"), mean_of(model, lambda m: m.predict("new", "i4")))
    assert all(len(member.users_) == 30 for member in members)  # members handed out before are not changed


def test_averaging_ranks_better_than_its_members():
    train, test = nbmf.datasets.simulate(150, 100, n_components=5, mean_count=0.4, seed=2).split(seed=0)
    model = nbmf.Averaged(nbmf.NBMF(10, max_iter=60), n_runs=6, random_state=0).fit(train)
    ndcg = [nbmf.evaluate(m, train, test, n_boot=1)["ndcg_counts"].mean for m in (model, *model.members_)]
    assert ndcg[0] > np.mean(ndcg[1:])


@pytest.mark.parametrize(("settings", "message"), [({"n_runs": 0}, "n_runs"), ({"n_runs": 2.5}, "n_runs")])
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        nbmf.Averaged(**settings).fit(data())


def test_a_checkpoint_is_of_one_start(tmp_path):
    with pytest.raises(ValueError, match="one by one"):
        nbmf.Averaged(nbmf.NBMF(2)).fit(data(), checkpoint=tmp_path / "check")


def test_of_somebody_unknown_the_members_say_the_same_as_their_mean(model):
    scores = mean_of(
        model, lambda m: m.recommend_for({}, n=20).scores[0, np.argsort(m.recommend_for({}, n=20).items[0])]
    )
    found = model.recommend_for({}, n=20)
    np.testing.assert_allclose(found.scores[0, np.argsort(found.items[0])], scores, rtol=1e-12)


def test_changed_factors_are_not_saved(model, tmp_path):
    model.user_factors_ = model.user_factors_ * 0
    with pytest.raises(ValueError, match="no longer those of the fit"):
        model.save(tmp_path / "model.nbmf")


def test_members_that_were_fitted_again_are_not_saved(model, tmp_path):
    """A file would hold something else than what answers."""
    model.members_[1].fit(2 * small_matrix())
    with pytest.raises(ValueError, match=r"members_\[1\] is no longer that of the fit"):
        model.save(tmp_path / "model.nbmf")


def test_a_member_may_have_learned_nothing():
    """No step on the concentrations raised the objective of some members, which keep the one number they began with."""
    estimator = nbmf.NBMF(1, concentration="learn_per_item", max_iter=17, tol=0)
    model = nbmf.Averaged(estimator, n_runs=3, random_state=0)
    model.fit(np.array([[0.0], [2.0]]), unknown=sp.csr_array(np.ones((2, 1))))
    np.testing.assert_allclose(model.concentration_, mean_of(model, lambda m: np.reshape(m.concentration_, (1, 1))))
    mean = NegativeBinomial(1.0).averaged([NegativeBinomial(1.0), NegativeBinomial(np.array([[2.0, 4.0]]))])
    np.testing.assert_array_equal(mean.concentration, [[1.5, 2.5]])


def test_ctrl_c_ends_all_starts():
    """The starts that were fitted are averaged, the last one as far as it got."""
    begun = []

    def interrupt(snapshot):
        begun.append(snapshot.sweep)
        if begun.count(1) == 2 and snapshot.sweep == 3:
            raise KeyboardInterrupt

    model = nbmf.Averaged(nbmf.NBMF(2, max_iter=6, tol=0), n_runs=5, random_state=0)
    with pytest.warns(UserWarning, match="interrupted"):
        model.fit(small_matrix(20, 15), callbacks=[interrupt])
    assert [member.n_iter_ for member in model.members_] == [6, 3]
    assert model.ending_ == "interrupted"
