"""Judging rankings: every metric against its formula in loops, over every order of equal scores."""

import json
import warnings
from functools import cache, partial
from itertools import permutations
from math import log2

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

import nbmf
from helpers import small_matrix
from nbmf.estimators.metrics import (
    Standings,
    coverage,
    gains_at_least,
    popularity_rank,
    popularity_ranks,
    proportional_gains,
    scaled_gains,
)
from nbmf.evaluation.resampling import intervals, resampled_means

PAPER = ("counts", 1, 2, 5, 10)
RUNS = ["nb_cavi", "poisson_cavi", "poisson_cavi_binary", "nb_mm", "poisson_mm"]


@pytest.mark.parametrize("name", RUNS)
def test_the_authors_program_is_judged_as_recorded(name, data_folder, taste_profile):
    """To 1e-9, but where rounding alone orders test items: MM on Poisson makes some items' factors equal but for it."""
    runs = json.loads((data_folder / "oracle" / "runs.json").read_text())
    recorded = {key: value for run in runs if run["run"] == name for key, value in run.items() if "ndcg" in key}
    factors, (train, test) = np.load(data_folder / "oracle" / f"{name}.npz"), taste_profile
    result = nbmf.evaluate((factors["W"], factors["H"]), train, test, PAPER, at=(), n_boot=1)
    assert set(result) == set(recorded)
    assert (result.n_users, result.n_left_out) == (1498, 4)
    lowest, highest = (ndcg_of_near_ties(factors, train, test, sign) for sign in (-1, 1))
    for metric, value in recorded.items():
        assert lowest[metric].mean <= value + 1e-9
        assert highest[metric].mean >= value - 1e-9
        assert result[metric].mean == pytest.approx(value, rel=0, abs=2e-6 if name == "poisson_mm" else 1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_the_authors_ranking_is_judged_as_recorded(name, data_folder, taste_profile):
    """All runs to 1e-9 once the rounding is the author's: a user at a time, and equal scores in the items' order."""
    runs = json.loads((data_folder / "oracle" / "runs.json").read_text())
    recorded = next(run for run in runs if run["run"] == name)
    factors, (train, test) = np.load(data_folder / "oracle" / f"{name}.npz"), taste_profile
    scores = np.array([factors["H"] @ w for w in factors["W"]])
    scores[train.matrix.nonzero()] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    place = np.argsort(order, axis=1)
    users = np.repeat(np.arange(test.n_users), np.diff(test.matrix.indptr))
    standings = Standings(test.matrix, place[users, test.matrix.indices], np.ones(test.nnz, np.int64))
    assert np.nanmean(standings.ndcg()) == pytest.approx(recorded["ndcg_counts"], rel=0, abs=1e-9)
    for s in (1, 2, 5, 10):
        found = np.nanmean(standings.ndcg(partial(gains_at_least, s)))
        assert found == pytest.approx(recorded[f"ndcg_at_least_{s}"], rel=0, abs=1e-9)


def ndcg_of_near_ties(factors, train, test, sign):
    """Judge with every score that equals a test item's to 12 digits put after it (sign 1) or before it (sign −1)."""
    W, H = factors["W"], factors["H"]

    class Leaning:
        def score_items(self, rows):
            score = W[rows] @ H.T
            return np.where(test.matrix[rows].toarray() > 0, score * (1 + sign * 1e-12), score)

    return nbmf.evaluate(Leaning(), train, test, at=(), n_boot=1)


@cache
def gain_ratio(relevance, largest):
    return (2**relevance - 1) / (2**largest - 1) if largest else 0.0  # whole numbers of any size


def literal_metrics(ranked, k):
    """The metrics of one list of test counts in the order of the ranking; k=None is the full list."""
    relevant, best = [y > 0 for y in ranked], sorted(ranked, reverse=True)
    n_relevant, n_listed = sum(relevant), len(ranked) if k is None else k
    found = {}
    for s in (None, 1, 2):
        own, ideal = ([y if s is None else int(y >= s) for y in order] for order in (ranked, best))
        dcg, ideal_dcg = (
            sum(gain_ratio(rel[p], ideal[0]) / log2(p + 2) for p in range(min(n_listed, len(rel))))
            for rel in (own, ideal)
        )
        found[f"ndcg {s}"] = dcg / ideal_dcg if ideal_dcg else np.nan
    gained, most = (
        sum(y / max(best[0], 1) / log2(p + 2) for p, y in enumerate(order[:n_listed])) for order in (ranked, best)
    )
    found["ndcg log2"] = gained / most if most else np.nan  # 2^log2(1 + y) − 1 = y
    hits = sum(relevant[:n_listed])
    precisions = [sum(relevant[: p + 1]) / (p + 1) for p in range(min(n_listed, len(ranked))) if relevant[p]]
    found["recall"] = hits / n_relevant if n_relevant else np.nan
    found["precision"] = hits / n_listed if n_relevant else np.nan
    found["average precision"] = sum(precisions) / min(n_listed, n_relevant) if n_relevant else np.nan
    return found


def all_orders(score, seen):
    """Every order that puts the unseen first and sorts by score."""
    keys = [(bool(s), -x) for x, s in zip(score, seen, strict=True)]
    return [order for order in permutations(range(len(score))) if [keys[i] for i in order] == sorted(keys)]


@st.composite
def judged_users(draw):
    """Tied scores, test counts to 10^6, some items seen: empty users, users who took everything, overlaps."""
    n_items = draw(st.integers(1, 5))
    score = draw(hnp.arrays(np.float64, (2, n_items), elements=st.integers(0, 2)))
    test = draw(hnp.arrays(np.int64, (2, n_items), elements=st.sampled_from([0, 0, 1, 2, 3, 1000, 10**6])))
    return score, test, draw(hnp.arrays(np.int64, (2, n_items), elements=st.sampled_from([0, 0, 1])))


@pytest.mark.filterwarnings("ignore:.* of pairs that were fitted")
@given(judged_users(), st.integers(1, 6))
def test_every_metric_is_the_mean_over_all_orders_of_equal_scores(judged, k):
    score, test, train = judged
    if not test.any():
        return
    result = nbmf.evaluate((score, np.eye(len(score[0]))), train, test, ("counts", 1, 2, "log2"), at=(k,), n_boot=5)
    ours_of = {"ndcg None": "ndcg_counts", "ndcg log2": "ndcg_log2"}
    ours_of |= {"ndcg 1": "ndcg_at_least_1", "ndcg 2": "ndcg_at_least_2"}
    cut = {
        "ndcg None": "ndcg_counts_at",
        "ndcg 1": "ndcg_binary_at",
        "recall": "recall_at",
        "precision": "precision_at",
        "average precision": "map_at",
    }
    for user in range(2):
        lists = [[int(test[user, i]) for i in order] for order in all_orders(score[user], train[user])]
        for at, names in ((None, ours_of), (k, {name: f"{ours}_{k}" for name, ours in cut.items()})):
            literal = [literal_metrics(ranked, at) for ranked in lists]
            for name, ours in names.items():
                expected = np.mean([metrics[name] for metrics in literal])
                np.testing.assert_allclose(result[ours].per_user[user], expected, rtol=1e-12, atol=1e-15, err_msg=ours)
    standing = result["ndcg_counts"]
    assert standing.mean == pytest.approx(np.nanmean(standing.per_user))
    assert (result.n_users, result.n_left_out) == (test.any(axis=1).sum(), (~test.any(axis=1)).sum())


def test_scikit_learn_agrees_where_it_has_the_same_metric():
    rng = np.random.default_rng(0)
    score, test = rng.integers(0, 8, (40, 30)).astype(float), rng.poisson(0.4, (40, 30)) * 3
    test[:, 0] = 1
    result = nbmf.evaluate((score, np.eye(30)), np.zeros((40, 30)), test, at=7)
    gains = 2.0**test - 1
    for metric, k, gained in (
        ("ndcg_counts", None, gains),
        ("ndcg_counts_at_7", 7, gains),
        ("ndcg_binary_at_7", 7, test > 0),
        ("ndcg_log2", None, test),
    ):
        theirs = [ndcg_score([gain], [row], k=k) for gain, row in zip(gained, score, strict=True)]
        np.testing.assert_allclose(result[metric].per_user, theirs, rtol=1e-12)
    apart = rng.random((40, 30))  # of equal scores scikit-learn takes the precision after all of them
    precise = nbmf.evaluate((apart, np.eye(30)), np.zeros((40, 30)), test, at=30)["map_at_30"].per_user
    theirs = [average_precision_score(wanted > 0, row) for wanted, row in zip(test, apart, strict=True)]
    np.testing.assert_allclose(precise, theirs, rtol=1e-12)


def test_one_list():
    assert nbmf.ndcg([5, 3, 1, 0]) == 1
    assert nbmf.ndcg([0, 3, 1]) == pytest.approx(literal_metrics([0, 3, 1], None)["ndcg None"], rel=1e-15)
    assert nbmf.ndcg([0, 3, 1, 7], k=2) == pytest.approx(literal_metrics([0, 3, 1, 7], 2)["ndcg None"], rel=1e-15)
    assert nbmf.ndcg([10**9, 10**9 - 1]) == 1
    assert nbmf.ndcg([3, 10**6]) == pytest.approx(1 / log2(3), rel=1e-15)
    assert nbmf.ndcg([0, 1e300]) == pytest.approx(1 / log2(3), rel=1e-15)
    assert nbmf.ndcg([1e-12, 2e-12]) == pytest.approx((1 + 2 / log2(3)) / (2 + 1 / log2(3)), rel=1e-9)
    assert np.isnan(nbmf.ndcg([0, 0]))
    assert np.isnan(nbmf.ndcg([]))
    for bad in ([[1]], [-1], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="finite numbers from 0"):
            nbmf.ndcg(bad)
    with pytest.raises(ValueError, match="cut-off is 0"):
        nbmf.ndcg([1], k=0)


def test_gains_are_exact_where_they_can_be():
    relevance = np.arange(40.0)
    np.testing.assert_array_equal(scaled_gains(relevance, 39.0) * 2.0**39, 2.0**relevance - 1)
    half = np.array([0.5, 2.5])
    np.testing.assert_allclose(scaled_gains(half, 2.5) * 2**2.5, 2**half - 1, rtol=1e-15)


def test_the_gain_of_a_logarithm_is_the_count():
    """2^log2(1 + y) − 1 = y for counts of any size, where 2^y − 1 leaves the largest alone."""
    counts, largest = np.array([0.25, 1, 3, 1000, 10**6]), np.full(5, 1e6)
    from_logs = scaled_gains(np.log2(1 + counts), np.log2(1 + largest))
    ours = proportional_gains(counts, largest)
    np.testing.assert_allclose(ours / ours[-1], from_logs / from_logs[-1], rtol=1e-12)
    test = sp.csr_array([[1e300, 1e300, 5e299, 1e-300]])
    ranked = Standings(test, np.array([3, 0, 1, 2]), np.ones(4, np.int64))
    discounts = 1 / np.log2(np.arange(2, 6))
    expected = discounts @ [1, 0.5, 0, 1] / (discounts @ [1, 1, 0.5, 0])
    np.testing.assert_allclose(ranked.ndcg(proportional_gains), expected, rtol=1e-14)


@pytest.mark.filterwarnings("ignore:.* of pairs that were fitted")
def test_what_is_recommended():
    train = sp.csr_array([[1, 1, 0, 0, 1], [1, 0, 0, 0, 1], [1, 0, 0, 0, 0]])
    ranks = popularity_ranks(train)
    assert ranks.tolist() == [1.0, 3.0, 4.5, 4.5, 2.0]
    best = np.array([[2, 3], [1, -1], [-1, -1]])
    assert coverage(best, 5) == 3 / 5
    np.testing.assert_array_equal(popularity_rank(best, ranks), [4.5, 3.0, np.nan])
    result = nbmf.evaluate((np.ones((3, 1)), [[5], [4], [3], [2], [1]]), train, np.eye(3, 5), at=(1, 2))
    assert result["coverage_at_1"].mean == 2 / 5  # items 2, 1, 1
    np.testing.assert_array_equal(result["popularity_rank_at_2"].per_user, [4.5, 3.75, 3.75])
    assert np.isnan(result["coverage_at_1"].interval).all()


def judged_models(n_users=300, n_items=40, seed=0):
    data = nbmf.Interactions.from_matrix(
        small_matrix(n_users, n_items), users=[f"user {n}" for n in range(n_users)], items=np.arange(n_items) + 100
    )
    train, test = data.split(0.3, seed=seed)
    models = {start: nbmf.NBMF(3, random_state=start, max_iter=20).fit(train) for start in (0, 1)}
    return train, test, models


@pytest.fixture(scope="module")
def judged():
    return judged_models()


def test_every_kind_of_model_and_any_number_of_threads(judged):
    train, test, models = judged
    model = models[0]

    class Scorer:
        def score_items(self, rows):
            return (model.user_factors_ @ model.item_factors_.T)[rows]

    results = [
        nbmf.evaluate(model, train, test, n_threads=1),
        nbmf.evaluate(model, train, test, n_threads=3),
        nbmf.evaluate((model.user_factors_, model.item_factors_), train, test),
        nbmf.evaluate(Scorer(), train.matrix, test.matrix),
    ]
    for result in results[1:]:
        for name, metric in results[0].items():
            assert result[name].per_user.tobytes() == metric.per_user.tobytes()
            np.testing.assert_array_equal((result[name].mean, *result[name].interval), (metric.mean, *metric.interval))


def test_a_mean_over_users_has_a_plain_bootstrap_interval(judged):
    train, test, models = judged
    result = nbmf.evaluate(models[0], train, test, n_boot=50, seed=4)
    rng, judged_users = np.random.RandomState(4), np.flatnonzero(~np.isnan(result["ndcg_counts"].per_user))
    draws = [judged_users[rng.randint(len(judged_users), size=len(judged_users))] for _ in range(50)]
    for name in ("ndcg_counts", "ndcg_at_least_10", "recall_at_20"):
        means = [np.nanmean(result[name].per_user[draw]) for draw in draws]
        np.testing.assert_allclose(result[name].interval, np.quantile(means, [0.025, 0.975]), rtol=1e-12)
        assert result[name].interval[0] <= result[name].mean <= result[name].interval[1]


def test_the_interval_of_a_normal_sample_is_the_textbooks():
    sample = np.random.default_rng(0).normal(3.0, 2.0, 2000)
    with_gaps = np.append(sample, np.full(500, np.nan))  # users left out change nothing but the draws
    for values in (sample, with_gaps):
        (low, high), textbook = intervals(resampled_means(values[:, None], 4000, 1))[0], 1.96 * 2 / np.sqrt(2000)
        assert (low + high) / 2 == pytest.approx(sample.mean(), abs=0.1 * textbook)
        assert (high - low) / 2 == pytest.approx(textbook, rel=0.08)  # the sample's own deviation differs by 2 %
    assert intervals(resampled_means(np.full((3, 1), np.nan), 5, 0)) == [(pytest.approx(np.nan, nan_ok=True),) * 2]


def test_comparing_is_pairing(judged):
    train, test, models = judged
    starts = [nbmf.evaluate(model, train, test) for model in models.values()]
    popular = nbmf.evaluate((np.ones((train.n_users, 1)), train.matrix.sum(axis=0)[:, None]), train, test)
    mean_of_starts = (starts[0]["ndcg_counts"].per_user + starts[1]["ndcg_counts"].per_user) / 2
    apart = (popular["ndcg_counts"].per_user - mean_of_starts)[~np.isnan(mean_of_starts)]
    rng = np.random.RandomState(3)
    means = [apart[rng.randint(len(apart), size=len(apart))].mean() for _ in range(200)]
    found = nbmf.compare({"popular": popular, "NBMF": starts}, baseline="NBMF", seed=3, n_boot=200)
    np.testing.assert_allclose(
        found["popular"].difference_interval, np.quantile(means, [0.025, 0.975]), rtol=1e-9, atol=1e-12
    )
    assert found["popular"].difference == pytest.approx(apart.mean())
    assert found["NBMF"].difference == 0
    assert found["NBMF"].difference_interval == (0, 0)
    assert found["NBMF"].n_starts == 2
    expected = np.std([start["ndcg_counts"].mean for start in starts], ddof=1)
    assert found["NBMF"].spread == pytest.approx(expected)
    assert [c.mean for c in found] == sorted((c.mean for c in found), reverse=True)
    assert nbmf.compare({"popular": popular, "NBMF": starts}).reference == found[0].name
    assert "NBMF" in repr(found)
    assert found.to_pandas()["mean"].tolist() == [row["mean"] for row in found.rows()]


def test_comparing_needs_the_same_data_and_a_value_for_each_user(judged):
    train, test, models = judged
    result = nbmf.evaluate(models[0], train, test)
    other = nbmf.evaluate((models[0].user_factors_, models[0].item_factors_), train, test.binarize())
    with pytest.raises(ValueError, match="'a' and 'b' were evaluated on different data"):
        nbmf.compare({"a": result, "b": other})
    with pytest.raises(ValueError, match="coverage_at_10 has no value for any user"):
        nbmf.compare({"a": result}, "coverage_at_10")
    with pytest.raises(KeyError, match="did you mean 'ndcg_counts'"):
        nbmf.compare({"a": result}, "ndcg_count")
    with pytest.raises(KeyError, match="baseline 'b' is not among the results: a"):
        nbmf.compare({"a": result}, baseline="b")
    with pytest.raises(ValueError, match="no results"):
        nbmf.compare({})
    with pytest.raises(ValueError, match="'a' has no evaluation"):
        nbmf.compare({"a": []})


def test_a_result_is_a_mapping_and_a_table(judged):
    train, test, models = judged
    result = nbmf.evaluate(models[0], train, test, relevance=("counts", 2.5), at=3)
    names = ["ndcg_counts", "ndcg_at_least_2.5", "ndcg_counts_at_3", "ndcg_binary_at_3"]
    assert list(result) == [
        *names, "recall_at_3", "precision_at_3", "map_at_3", "popularity_rank_at_3", "coverage_at_3"
    ]  # fmt: skip
    assert len(result) == 9
    assert result.users.tolist() == train.users.tolist()
    table = repr(result)
    assert all(name in table for name in result)
    assert f"{result['map_at_3'].mean:.4f}" in table
    frame = result.to_pandas()
    assert frame["metric"].tolist() == list(result)
    assert frame["mean"].tolist() == [row["mean"] for row in result.rows()] == [m.mean for m in result.values()]
    with pytest.raises(KeyError, match="did you mean 'recall_at_3'"):
        result["recall_at_4"]


def test_standings_know_a_cut_beyond_the_list():
    standings = Standings(sp.csr_array([[2, 1]]), np.array([0, 0]), np.array([2, 2]))
    np.testing.assert_array_equal(standings.ndcg(k=9), standings.ndcg())
    np.testing.assert_allclose(standings.average_precision(9), standings.average_precision())
    assert standings.precision(4).tolist() == [0.5]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"relevance": ["count"]}, ValueError, "relevance 'count' is neither"),
        ({"relevance": [0]}, ValueError, "every count is at least 0"),
        ({"at": (0,)}, ValueError, "cut-off is 0"),
        ({"n_boot": 0}, ValueError, "n_boot is 0"),
        ({"model": nbmf.NBMF()}, TypeError, "NBMF is not fitted yet"),
        ({"model": object()}, TypeError, "object cannot be evaluated"),
        ({"model": (np.ones((3, 2)),)}, TypeError, "a pair"),
        ({"model": (np.ones((3, 2)), np.ones((4, 3)))}, ValueError, "2 components and H has 3"),
        ({"model": (np.ones((4, 2)), np.ones((4, 2)))}, ValueError, r"W has shape \(4, 2\); with 3 users"),
        ({"model": (np.full((3, 2), np.nan), np.ones((4, 2)))}, ValueError, "W has entries that are not finite"),
        ({"test": np.zeros((3, 4))}, ValueError, "nothing to evaluate"),
        ({"test": np.ones((3, 5))}, ValueError, "train has 4 items and test has 5; take both from one"),
        (
            {"test": nbmf.Interactions.from_matrix(np.ones((3, 4)), users=["a", "b", "c"])},
            ValueError,
            "user number 0 is 0 in train and 'a' in test",
        ),
    ],
)
def test_bad_questions_are_named(change, error, message):
    given_arguments = {"model": (np.ones((3, 2)), np.ones((4, 2))), "train": np.eye(3, 4), "test": np.ones((3, 4))}
    with pytest.raises(error, match=message):
        nbmf.evaluate(**given_arguments | change)


def test_a_model_of_other_data_is_named(judged):
    train, test, models = judged
    with pytest.raises(ValueError, match="user number 0 is 0 in train and 'user 0' in the model"):
        nbmf.evaluate(models[0], train.matrix, test.matrix)


def test_a_score_that_is_no_number_is_named():
    class Broken:
        def score_items(self, rows):
            return np.full((len(rows), 2), np.nan)

    with pytest.raises(ValueError, match="score of user 1 for item 0 is not a number"):
        nbmf.evaluate(Broken(), np.zeros((2, 2)), [[0, 0], [1, 0]])


def test_tests_that_were_fitted_are_noted():
    train, test = nbmf.datasets.simulate(30, 20, n_components=2, mean_count=0.5, seed=0).split(seed=0)
    model = nbmf.NBMF(2, random_state=0).fit(train)
    nbmf.evaluate(model, train, test, n_boot=1)  # says nothing
    with pytest.warns(UserWarning, match=f"{train.nnz:,} of {train.nnz:,} test counts are of pairs that were fitted"):
        nbmf.evaluate(model, train, train, n_boot=1)


@pytest.mark.parametrize("model", [nbmf.NBMF(2, random_state=0), nbmf.NBSLIM()], ids=str)
def test_a_model_that_has_seen_the_test_counts_is_noted(model):
    data = nbmf.datasets.simulate(30, 20, n_components=2, mean_count=0.5, seed=0)
    train, test = data.split(seed=0)
    said = f"{test.nnz} of {test.nnz} test counts are of pairs that were fitted, of which train lacks {test.nnz}; fit"
    with pytest.warns(UserWarning, match=said):
        nbmf.evaluate(model.fit(data), train, test, n_boot=1)
    part = nbmf.Interactions(train.users, train.items, train.matrix.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbmf.evaluate(model.fit(train), part, test, n_boot=1)


def test_cells_that_were_left_out_of_the_likelihood_were_not_fitted():
    data = nbmf.datasets.simulate(30, 20, n_components=2, mean_count=0.5, seed=0)
    train, test = data.split(seed=0)
    model = nbmf.NBMF(2, random_state=0).fit(data, unknown=test)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nbmf.evaluate(model, train, test, n_boot=1)


def test_a_model_of_a_matrix_is_told_from_one_of_other_data():
    data = nbmf.datasets.simulate(30, 20, n_components=2, mean_count=0.5, seed=0)
    for users in ([f"u{n}" for n in range(30)], list(range(7, 37))):
        train, test = nbmf.Interactions.from_matrix(data.matrix, users=users).split(seed=0)
        model = nbmf.NBMF(2, random_state=0).fit(train.matrix)
        with pytest.raises(
            ValueError, match=f"fitted to a matrix without ids.*ids such as {users[0]!r}; fit it to train"
        ):
            nbmf.evaluate(model, train, test)
        assert nbmf.evaluate(model, train.matrix, test.matrix, n_boot=1).n_users > 0  # the remedy


def test_results_are_tables_in_a_notebook():
    train, test = nbmf.datasets.simulate(30, 20, n_components=2, mean_count=0.5, seed=0).split(seed=0)
    model = nbmf.NBMF(2, random_state=0).fit(train)
    found = nbmf.evaluate(model, train, test, n_boot=2)
    for result in (found, nbmf.compare({"a < b": found}, n_boot=2), nbmf.evaluation.calibration(model, train, test)):
        html = result._repr_html_()
        assert html.count("<tr>") == len(result.to_pandas()) + 1 == len(repr(result).splitlines()) - 1
        assert "a < b" not in html


def test_what_is_no_matrix_and_no_evaluation_is_named():
    with pytest.raises(
        TypeError, match=r"'plays.csv' is not a matrix; nbmf.read_interactions\('plays.csv'\) reads files"
    ):
        nbmf.evaluate(([[1.0]], [[1.0]]), "plays.csv", [[1]])
    with pytest.raises(TypeError, match="'ours' is a model; give what"):
        nbmf.compare({"ours": nbmf.NBMF(2)})
