"""Item–item weights: the paper's update with fixed user rows, in three forms that agree, and what the model answers."""

import os
import signal
import warnings
from threading import Timer

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from scipy.stats import nbinom

import literal
import nbmf
from helpers import small_matrix
from nbmf.backends import threads
from nbmf.cli import main
from nbmf.estimators.slim_fit import Regressions, fit, fit_plainly

COUNTS = arrays(
    np.int64, st.tuples(st.integers(1, 12), st.integers(2, 9)), elements=st.sampled_from([0, 0, 0, 1, 2, 7])
)


def problem(counts, α=2.0, ρ=0.7, dtype=np.float64):
    matrix = sp.csr_array(np.asarray(counts, np.float64))
    x = sp.csr_array((np.log1p(matrix.data).astype(dtype), matrix.indices, matrix.indptr), shape=matrix.shape)
    t = sp.csr_array((matrix.data.astype(dtype), matrix.indices, matrix.indptr), shape=matrix.shape)
    return Regressions(x, t, α, ρ)


def run(problem, sweeps, n_neighbors=None, accelerate=False, tol=0.0, n_threads=1):
    return fit(problem, sweeps, tol, n_neighbors=n_neighbors, accelerate=accelerate, n_threads=n_threads)


def dense(weights):
    return weights.toarray() if sp.issparse(weights) else weights


def log_likelihood(problem, found):
    μ = problem.inputs.toarray() @ dense(found.weights) + found.intercept
    t, α = problem.targets.toarray(), problem.concentration
    with np.errstate(divide="ignore"):
        return nbinom.logpmf(t, α, α / (α + μ)).sum() - problem.penalty * dense(found.weights).sum()


def literal_sweeps(problem, sweeps, neighbours):
    """Eq. (nmfH) in loops: W is x and a column of ones, H is B and b; the penalty is one more row without counts."""
    x, t, α = problem.inputs.toarray(), problem.targets.toarray(), problem.concentration
    n_users, n_items = t.shape
    half = t.mean(axis=0) / 2
    start = half / np.maximum((x.mean(axis=0)[:, None] * neighbours).sum(axis=0), 1e-300)
    W = np.hstack([x, np.ones((n_users, 1))])
    H = np.vstack([neighbours * start, half]).T
    for _ in range(sweeps):
        new = np.zeros_like(H)
        for i in range(n_items):
            for k in range(n_items + 1):
                if H[i, k] == 0:
                    continue
                above = sum(t[u, i] / (W[u] @ H[i]) * W[u, k] for u in range(n_users))
                below = sum((t[u, i] + α) / (W[u] @ H[i] + α) * W[u, k] for u in range(n_users))
                new[i, k] = H[i, k] * above / (below + (problem.penalty if k < n_items else 0.0))
        H = new
    return H[:, :-1].T, H[:, -1]


def test_an_update_without_penalty_is_the_papers():
    counts = small_matrix()[:8, :6] + 1
    p = problem(counts, ρ=0.0)
    found = fit_plainly(p, 1, 0.0)
    x, t = p.inputs.toarray(), p.targets.toarray()
    W = np.hstack([x, np.ones((len(x), 1))])
    half = t.mean(axis=0) / 2
    start = half / (x.mean(axis=0).sum() - x.mean(axis=0))
    H = np.hstack([np.where(np.eye(6, dtype=bool), 0.0, start[None, :]).T, half[:, None]])
    new = literal.nmf_h(t, W, H, p.concentration)
    np.testing.assert_allclose(found.weights.T, new[:, :-1], rtol=1e-12)
    np.testing.assert_allclose(found.intercept, new[:, -1], rtol=1e-12)


def test_the_plain_form_is_the_loops():
    p = problem(small_matrix()[:12, :7])
    neighbours = 1.0 - np.eye(7)
    weights, intercept = literal_sweeps(p, 3, neighbours)
    found = fit_plainly(p, 3, 0.0)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(found.intercept, intercept, rtol=1e-11)


def test_few_neighbours_are_the_loops_with_the_others_left_out():
    p = problem(small_matrix()[:15, :7])
    found = run(p, 3, n_neighbors=2)
    together = p.inputs.T @ p.targets
    strength = together.toarray() / np.sqrt(np.maximum(p.inputs.sum(axis=0), 1e-300))[:, None]
    np.fill_diagonal(strength, 0)
    neighbours = np.zeros((7, 7))
    for item in range(7):
        best = np.argsort(-strength[:, item], kind="stable")[:2]
        neighbours[best[strength[best, item] > 0], item] = 1
    weights, intercept = literal_sweeps(p, 3, neighbours)
    np.testing.assert_allclose(dense(found.weights), weights, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(found.intercept, intercept, rtol=1e-11)


@given(COUNTS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_three_forms_one_meaning(counts, accelerate):
    p, n_items = problem(counts), counts.shape[1]
    full, few = run(p, 6, accelerate=accelerate), run(p, 6, n_items, accelerate=accelerate)
    np.testing.assert_allclose(dense(few.weights), full.weights, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(few.objective, full.objective, rtol=1e-9, atol=1e-9)
    plain = fit_plainly(p, 6, 0.0, accelerate=accelerate)
    np.testing.assert_allclose(full.weights, plain.weights, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(full.intercept, plain.intercept, rtol=1e-9)
    np.testing.assert_allclose(full.objective, plain.objective, rtol=1e-9, atol=1e-9)


@given(COUNTS, st.sampled_from([0.1, 2.0, 1e4]), st.sampled_from([0.0, 5.0]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_sweep_ascends_to_the_likelihood_it_claims(counts, α, ρ, accelerate):
    p = problem(counts, α, ρ)
    for n_neighbors in (None, 2):
        found = run(p, 12, n_neighbors, accelerate=accelerate)
        rises = np.diff(found.objective)
        assert np.all(rises >= -1e-9 * (1 + abs(found.objective[:-1])))
        np.testing.assert_allclose(found.objective[-1], log_likelihood(p, found), rtol=1e-8, atol=1e-8)


def test_large_counts_ascend_too():
    counts = small_matrix()[:20, :9] * 10**9
    for dtype in (np.float32, np.float64):
        found = run(problem(counts, dtype=dtype), 15, accelerate=True)
        assert np.all(np.diff(found.objective) >= -1e-5 * abs(found.objective[:-1]))


def test_longer_steps_get_further():
    p = problem(small_matrix())
    plain, longer = run(p, 8), run(p, 8, accelerate=True)
    assert np.all(longer.objective > plain.objective)
    ends = [run(p, 4000, accelerate=fast, tol=1e-9).objective[-1] for fast in (False, True)]
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-6)


def test_a_longer_step_that_falls_is_taken_back(monkeypatch):
    """From a start that is far too small, the ratio is so large that its power overshoots."""
    starts = Regressions.starts

    def tiny(self, input_means):
        b, weight = starts(self, input_means)
        return b / 300, weight / 300

    monkeypatch.setattr(Regressions, "starts", tiny)
    p = problem(small_matrix(), α=1000.0, ρ=0.0)
    first = fit_plainly(p, 1, 0.0, accelerate=True), fit_plainly(p, 1, 0.0)
    assert np.any(first[0].weights != first[1].weights)
    fast, few, plain = run(p, 9, accelerate=True), run(p, 9, 20, accelerate=True), run(p, 8)
    taken_back = np.isclose(fast.weights, plain.weights, rtol=1e-9, atol=1e-300).all(axis=0)
    assert taken_back[small_matrix().any(axis=0)].any()  # one sweep went into taking it back, the others were plain
    reference = fit_plainly(p, 9, 0.0, accelerate=True)
    for found in (fast, few):
        np.testing.assert_allclose(dense(found.weights), reference.weights, rtol=1e-8, atol=1e-300)
        np.testing.assert_allclose(found.objective, reference.objective, rtol=1e-9)
        assert np.all(np.diff(found.objective) >= 0)


def test_the_end_of_the_road_is_not_called_a_fall():
    rng = np.random.RandomState(0)
    counts = 1 + rng.poisson(rng.gamma(0.5, 10, (500, 40)))
    for chosen in ({"penalty": 0.0, "dtype": "float64"}, {"penalty": 1.0}):
        for n_neighbors in (None, 10):
            model = nbmf.NBSLIM(input="binary", target="counts", tol=0.0, n_neighbors=n_neighbors, **chosen)
            assert np.isfinite(model.fit(counts).objective_).all()


def test_what_a_sweep_costs_does_not_depend_on_how_many_are_allowed():
    p = problem(small_matrix())
    assert len(run(p, 10**6, tol=1e-3).objective) < 10**4


def test_an_item_stops_by_its_own_gain():
    p = problem(small_matrix())
    found, endless = run(p, 200, tol=0.5), run(p, 200)
    assert found.settled
    assert not endless.settled
    assert found.n_sweeps.min() < found.n_sweeps.max() < 200
    stopped = np.array([run(p, int(n), tol=0.0).weights[:, i] for i, n in enumerate(found.n_sweeps)]).T
    np.testing.assert_allclose(found.weights, stopped, rtol=1e-9)


def test_same_bits_for_any_number_of_threads_and_single_precision_is_close():
    counts = small_matrix(120, 150)
    for n_neighbors in (None, 20):
        first, *others = (run(problem(counts, dtype=np.float32), 5, n_neighbors, n_threads=n) for n in (1, 2, 4))
        for other in others:
            np.testing.assert_array_equal(dense(first.weights), dense(other.weights))
        double = run(problem(counts), 5, n_neighbors)
        np.testing.assert_allclose(first.objective, double.objective, rtol=1e-5)


@pytest.fixture(scope="module")
def split():
    rng = np.random.RandomState(0)
    tastes = 0.1 + 2.0 * (np.arange(200)[:, None] % 4 == np.arange(80)[None, :] % 4)
    popularity = rng.gamma(2.0, 0.4, 80)
    return nbmf.Interactions.from_matrix(
        sp.csr_array(rng.poisson(tastes * popularity * rng.gamma(0.5, 2.0, (200, 80))))
    ).split(seed=0)


@pytest.fixture(scope="module", params=[None, 30], ids=["all", "few"])
def model(request, split):
    return nbmf.NBSLIM(n_neighbors=request.param).fit(split[0])


def test_it_ranks_better_than_popularity(model, split):
    train, test = split
    popularity = np.ones((200, 1)), train.matrix.sum(axis=0)[:, None].astype(float)
    ranked = nbmf.evaluate(model, train, test)["ndcg_counts"].mean
    assert ranked > 1.1 * nbmf.evaluate(popularity, train, test)["ndcg_counts"].mean


def test_recommendations_are_the_best_predictions(model, split):
    train, _ = split
    user = train.users[3]
    scores = model.predict(user, train.items)
    np.testing.assert_allclose(scores, model.score_items(np.array([3]))[0], rtol=1e-6)
    new = train.matrix[[3]].toarray()[0] == 0
    best = np.argsort(-np.where(new, scores, -np.inf), kind="stable")[:5]
    found = model.recommend(user, n=5)
    assert found.items[0].tolist() == train.items[best].tolist()
    np.testing.assert_allclose(found.scores[0], scores[best], rtol=1e-6)
    listed = model.recommend([user], n=3, allow={user: train.items[:20]}, exclude_seen=False)
    assert listed.items[0].tolist() == train.items[np.argsort(-scores[:20], kind="stable")[:3]].tolist()
    assert found.items[0, 0] not in model.recommend(user, n=5, deny={user: found.items[0, :1]}).items


def test_a_new_user_with_an_old_row_gets_the_old_scores(model, split):
    train, _ = split
    row = train.matrix[[7]]
    counts = dict(zip(train.items[row.indices].tolist(), row.data.tolist(), strict=True))
    new, old = model.recommend_for(counts, n=6), model.recommend(train.users[7], n=6)
    np.testing.assert_array_equal(new.items, old.items)
    np.testing.assert_allclose(new.scores, old.scores, rtol=1e-6)
    unknown = model.recommend_for({}, n=3)
    assert unknown.items[0].tolist() == train.items[np.argsort(-model.intercept_, kind="stable")[:3]].tolist()


def test_an_explanation_adds_up_and_is_the_weights(model, split):
    train, _ = split
    user, item = train.users[3], train.items[11]
    why = model.explain(user, item)
    np.testing.assert_allclose(why.contributions.sum() + why.prior, why.score, rtol=1e-12)
    np.testing.assert_allclose(why.score, model.predict(user, item)[0], rtol=1e-5)
    first = int(np.flatnonzero(train.items == why.items[0])[0])
    expected = np.log1p(why.counts[0]) * dense(model.weights_)[first, 11]
    np.testing.assert_allclose(why.contributions[0], expected, rtol=1e-5)
    assert np.all(np.diff(why.contributions) <= 0)


def test_likeness_is_mutual(model, split):
    items = split[0].items
    one = model.similar_items(items[5], n=79)
    assert items[5] not in one.ids
    for other, value in zip(one.ids[:3], one.similarity[:3], strict=True):
        back = model.similar_items(other, n=79)
        np.testing.assert_allclose(back.similarity[back.ids.tolist().index(items[5])], value, rtol=1e-6)


def test_the_law_of_counts_needs_counts_for_targets(model, split):
    train, _ = split
    with pytest.raises(ValueError, match="target='counts'"):
        model.predictive(train.users[0], train.items[0])
    counts = nbmf.NBSLIM(target="counts").fit(train)
    law = counts.predictive(train.users[0], train.items[:4])
    np.testing.assert_allclose(law.mean, counts.predict(train.users[0], train.items[:4]), rtol=1e-6)
    np.testing.assert_allclose(law.at_least(1), 1 - law.probability(0), rtol=1e-9)


def test_the_score_is_the_mean_likelihood_of_the_cells(split):
    train, test = split
    model = nbmf.NBSLIM(target="counts", dtype="float64").fit(train)
    y, μ = test.matrix.toarray(), np.log1p(test.matrix.toarray()) @ model.weights_ + model.intercept_
    expected = nbinom.logpmf(y, 3.0, 3.0 / (3.0 + μ)).mean()
    np.testing.assert_allclose(model.score(test.matrix), expected, rtol=1e-9)


def test_the_reference_backend_agrees(split):
    for n_neighbors in (None, 7):
        settings = {"dtype": "float64", "n_neighbors": n_neighbors}
        plain = nbmf.NBSLIM(backend="reference", **settings).fit(split[0])
        fast = nbmf.NBSLIM(**settings).fit(split[0])
        np.testing.assert_allclose(dense(fast.weights_), dense(plain.weights_), rtol=1e-9, atol=1e-300)
        assert sp.issparse(fast.weights_) == sp.issparse(plain.weights_)


def test_a_fitted_model_keeps_to_what_was_fitted(split):
    train, _ = split
    model = nbmf.NBSLIM().fit(train)
    before = model.predict(train.users[0], train.items)
    model.set_params(input="counts", target="counts", concentration=0.1, dtype="float64")
    np.testing.assert_array_equal(model.predict(train.users[0], train.items), before)
    for ask in (
        lambda: model.predictive(train.users[0], train.items[0]),
        lambda: nbmf.evaluation.log_likelihood(model, *split),
    ):
        with pytest.raises(ValueError, match="fitted with target='log1p', so it has no likelihood of counts"):
            ask()


def test_odd_data_get_answers_or_sentences(split):
    model = nbmf.NBSLIM(penalty=0.1).fit(small_matrix() > 0)
    assert np.isclose(model.explain(0, 0).score, model.predict(0, 0)[0])
    with pytest.raises(ValueError, match=r"count 1e\+39 is out of the range of float32"):
        nbmf.NBSLIM(input="counts").fit(small_matrix()).recommend_for({0: 1e39})
    with pytest.raises(ValueError, match="NBSLIM has no random_state"):
        nbmf.Averaged(nbmf.NBSLIM()).fit(small_matrix())
    with pytest.raises(TypeError, match="Averaged has neither n_components nor a penalty to tune"):
        nbmf.tune(split[0], estimator=nbmf.Averaged)
    assert np.all(model.similar_items(0, n=20).similarity > 0)


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_stop_is_prompt(interrupts):
    """Also where a library has set signals to restart the system calls they interrupt."""
    p = problem(np.random.RandomState(0).poisson(0.2, (3000, 400)), dtype=np.float32)
    run(p, 1)  # compiled
    for n_neighbors in (None, 399):
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.siginterrupt(signal.SIGINT, interrupts)
        Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run(p, 100_000, n_neighbors)  # for hours
        signal.signal(signal.SIGINT, handler)


def test_a_stop_while_work_is_handed_out_is_prompt(monkeypatch):
    p = problem(np.random.RandomState(0).poisson(0.2, (3000, 400)), dtype=np.float32)
    give, handed = threads._Pool.give, []

    def interrupted(pool, helper):
        if handed:
            raise KeyboardInterrupt
        handed.append(helper)
        give(pool, helper)

    monkeypatch.setattr(threads._Pool, "give", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(p, 100_000, n_threads=2)  # for hours
    assert handed[0].ended or not handed[0].begun


def test_it_comes_back_from_a_file(model, split, tmp_path):
    path = tmp_path / "model.nbmf"
    model.save(path)
    same = nbmf.load(path)
    assert same.get_params() == model.get_params()
    np.testing.assert_array_equal(same.score_items(np.arange(9)), model.score_items(np.arange(9)))
    np.testing.assert_array_equal(same.objective_, model.objective_)
    assert (same.ending_, same.n_iter_) == (model.ending_, model.n_iter_)
    damaged = bytearray(path.read_bytes())
    damaged[-9] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        nbmf.load(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1}, "penalty is -1; it must be a number from 0"),
        ({"penalty": np.inf}, "penalty is inf"),
        ({"input": "sqrt"}, "input is 'sqrt'; it must be 'log1p', 'binary' or 'counts'"),
        ({"target": None}, "target is None"),
        ({"n_neighbors": True}, "n_neighbors is True"),
        ({"concentration": np.array([[1.0, 2.0]])}, "it must be a positive number"),
        ({"accelerate": "yes"}, "accelerate is 'yes'"),
        ({"input": ["log1p"]}, "input is \\['log1p'\\]"),
        ({"n_neighbors": 0}, "n_neighbors is 0; it must be a whole number from 1"),
        ({"concentration": 0}, "concentration"),
        ({"backend": "gpu"}, "backend is 'gpu'"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"n_threads": 0}, "n_threads is 0"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        nbmf.NBSLIM(**settings).fit([[1, 2], [0, 1]])


def test_a_failed_fit_leaves_the_model_as_it_was():
    model = nbmf.NBSLIM(penalty=1.0).fit(small_matrix())
    before = model.weights_.copy()
    with pytest.raises(ValueError, match="Negative"):
        model.fit([[1, -2], [0, 1]])
    np.testing.assert_array_equal(model.weights_, before)
    assert model.n_features_in_ == small_matrix().shape[1]


def test_data_without_a_second_item_or_a_count_still_fit():
    for counts in ([[3], [0], [1]], np.zeros((3, 4)), [[0, 5], [0, 2]]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = nbmf.NBSLIM().fit(np.array(counts))
        assert np.isfinite(model.score_items(np.arange(2))).all()


def test_the_commands_fit_and_recommend(tmp_path, split):
    runner, data, file = CliRunner(), tmp_path / "counts.csv", tmp_path / "model.nbmf"
    cells = split[0].matrix.tocoo()
    rows = zip(*(part.tolist() for part in (*cells.coords, cells.data)), strict=True)
    data.write_text("user,item,count\n" + "".join(f"{u},{i},{y}\n" for u, i, y in rows))
    fitted = runner.invoke(main, ["fit", str(data), "--model", "nbslim", "-o", str(file)])
    assert fitted.exit_code == 0, fitted.output
    assert "NBSLIM of 200 users" in fitted.output
    found = runner.invoke(main, ["recommend", str(file), "--user", "3", "-n", "2"])
    assert "Expected ln(1 + count), largest first" in found.output
    assert nbmf.load(file).recommend(3, n=1).items[0, 0] == int(found.output.splitlines()[2].split()[2])
    refused = runner.invoke(main, ["fit", str(data), "--model", "nbslim", "-k", "3", "-o", str(file)])
    assert refused.exit_code == 2
    assert "--components is not a setting of the model nbslim" in refused.output
