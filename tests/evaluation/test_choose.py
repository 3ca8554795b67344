"""Choosing a model: the right one is named, ties go to the simpler, and what cannot be compared says why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

import nbmf
from helpers import small_matrix
from nbmf.evaluation.choose import FAMILY, decide
from nbmf.evaluation.held_out import LEAST_COUNTS, Parts, hold_out_cells, sampled
from nbmf.evaluation.judging import Finding

NAMES = [name for name in FAMILY if name != "RobustMF"]


# ---- simulated data -------------------------------------------------------------------------------------------------


def drawn(law, seed, shape=(160, 100)):
    """Counts of a likelihood whose intensities vary enough to tell variances in the mean and in its square apart."""
    rng = np.random.default_rng(seed)
    μ = rng.gamma(0.5, 2.0, (shape[0], 3)) @ rng.gamma(0.5, 2.0, (shape[1], 3)).T / 3
    if law == "PoissonMF":
        return rng.poisson(μ)
    if law == "NBMF":
        return rng.poisson(2 * μ * rng.gamma(0.5, 2.0, shape))
    if law == "CompoundMF":  # sums of logarithmic jumps with θ = 0.95
        return rng.poisson(rng.gamma(0.5 * μ / -np.log1p(-0.95)) * 0.95 / 0.05)
    if law == "ZeroInflatedMF":
        return rng.poisson(4 * μ) * (rng.random(shape) < 0.3)
    return (rng.poisson(0.5 * μ) > 0).astype(int)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("law", ["PoissonMF", "NBMF", "CompoundMF", "ZeroInflatedMF", "BinaryMF"])
def test_the_likelihood_that_the_data_has_is_named(law, seed):
    """Of benchmarks/choose.py, where the data is larger, and geometric jumps are told from logarithmic ones."""
    counts = drawn(law, seed)
    models = sorted(NAMES, key=lambda name: name != "BinaryMF") if law == "BinaryMF" else NAMES
    choice = nbmf.choose(counts, models, n_components=3, random_state=seed)
    assert choice.recommended == law, choice
    assert choice.reason.startswith(law)
    likely = [c.log_likelihood for c in choice if not math.isnan(c.log_likelihood)]
    assert likely == sorted(likely, reverse=True)
    assert len(likely) == (6 if law == "BinaryMF" else 5)


@pytest.fixture(scope="module")
def choice():
    """Seven models on data with exposures."""
    return nbmf.choose(nbmf.Interactions.from_matrix(drawn("NBMF", 5, (60, 40))), n_components=2, random_state=3)


def test_what_has_no_likelihood_of_counts_says_why(choice):
    assert choice["RobustMF"].note == "its probabilities do not sum to 1"
    assert choice["BinaryMF"].note == "it is of whether there is a count"
    for name in ("RobustMF", "BinaryMF"):
        assert math.isnan(choice[name].log_likelihood)
        assert 0 < choice[name].ndcg < 1
    assert "concentration" in choice["NBMF"].note
    assert [c.name for c in choice][-2:] == sorted(("RobustMF", "BinaryMF"), key=lambda name: -choice[name].ndcg)


def test_binary_data_has_the_likelihood_of_binary_data():
    choice = nbmf.choose(drawn("BinaryMF", 2, (60, 40)), n_components=2)
    assert not math.isnan(choice["BinaryMF"].log_likelihood)
    assert choice.recommended == "BinaryMF"
    assert "all counts are 0 or 1" in choice.reason


def test_the_best_is_an_estimator_to_be_fitted(choice):
    assert isinstance(choice.best, nbmf.NBMF)
    assert (choice.best.n_components, choice.best.concentration) == (2, "learn")
    assert choice.best.max_iter == nbmf.NBMF().max_iter  # the limits of the search are not those of the model
    with pytest.raises(NotFittedError):
        choice.best.recommend(0)
    assert choice.best is not choice.best


def test_it_is_a_table(choice):
    pd = pytest.importorskip("pandas")
    frame = choice.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame.name.tolist() == [c.name for c in choice]
    assert frame.name[frame.recommended].tolist() == ["NBMF"]
    assert (frame.difference_low.dropna() <= frame.difference.dropna()).all()
    assert (frame.ndcg_low < frame.ndcg).all()
    first, head, *lines = repr(choice).splitlines()
    assert first == choice.reason
    assert "log-likelihood" in head
    assert len(lines) == 7
    assert "its probabilities do not sum to 1" in choice._repr_html_()
    with pytest.raises(KeyError, match="there is no 'NBSLIM'; there are "):
        choice["NBSLIM"]
    assert (choice.n_users, len(choice)) == (60, 7)


def test_seeds_decide_and_threads_do_not():
    data, models = drawn("NBMF", 1, (50, 30)), ["PoissonMF", "NBMF"]

    def figures(**settings):
        found = nbmf.choose(data, models, n_components=[1, 2], **settings)
        return [(c.name, c.log_likelihood, c.difference_interval, c.ndcg) for c in found], repr(found.best)

    assert figures(random_state=4, n_threads=1) == figures(random_state=4, n_threads=2)
    assert figures(random_state=4) != figures(random_state=5)


def test_progress_is_shown_if_asked_for(capsys):
    nbmf.choose(drawn("NBMF", 1, (50, 30)), ["PoissonMF"], n_components=1, verbose=True)
    shown = capsys.readouterr().err
    assert "choose: 1 of 1 models" in shown
    assert "PoissonMF: log-likelihood -" in shown


# ---- models that are given ------------------------------------------------------------------------------------------


def test_estimators_keep_their_settings():
    own = nbmf.NBMF(3, concentration=2.0, max_iter=7, tol=0, random_state=1)
    given = [own, nbmf.NBMF(2, max_iter=5, tol=0), nbmf.NBSLIM(), nbmf.NBMF(2, input="log1p", max_iter=5, tol=0)]
    choice = nbmf.choose(small_matrix(60, 30), given)
    assert {c.name for c in choice} == {"NBMF", "NBMF 2", "NBSLIM", "NBMF 4"}
    assert choice["NBMF"].estimator is own
    assert not hasattr(own, "result_")
    assert choice["NBSLIM"].note == "its fit cannot leave cells out"
    assert choice["NBMF 4"].note == "it is of ln(1 + count)"
    assert choice["NBMF"].note == "concentration 2"


def test_an_average_has_no_setting_of_its_own_for_threads():
    average = nbmf.Averaged(nbmf.NBMF(2, max_iter=5, tol=0), n_runs=2)
    choice = nbmf.choose(small_matrix(60, 30), [nbmf.PoissonMF(2, max_iter=5, tol=0), average])
    assert not math.isnan(choice["Averaged"].log_likelihood)


def test_a_name_beside_an_estimator_of_that_name_has_a_number():
    given = nbmf.PoissonMF(2, max_iter=5, tol=0)
    for models in ([given, "PoissonMF"], ["PoissonMF", given]):
        choice = nbmf.choose(small_matrix(60, 30), models, n_components=1)
        assert {c.name for c in choice} == {"PoissonMF", "PoissonMF 2"}
        assert choice["PoissonMF 2" if models[1] is given else "PoissonMF"].estimator is given


def test_without_likelihoods_the_ranking_decides():
    models = [nbmf.RobustMF(2, max_iter=5, tol=0), nbmf.NBSLIM()]
    choice = nbmf.choose(drawn("NBMF", 0, (60, 40)), models)
    assert choice.recommended == choice.ranks_best == max(choice, key=lambda c: c.ndcg).name
    assert "none has a likelihood that can be compared" in choice.reason


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"models": ["NBFM"]}, "unknown model 'NBFM'; did you mean 'NBMF'"),
        ({"models": ["Nbmf"]}, "unknown model 'Nbmf'; did you mean 'NBMF'"),
        ({"models": ["CompoundMF Geometric"]}, "did you mean 'CompoundMF geometric'"),
        ({"models": ["NBMF", "NBMF"]}, "give each model once: 'NBMF' appears twice"),
        ({"models": ["PoissonMF", nbmf.NBMF(2), "PoissonMF"]}, "give each model once: 'PoissonMF' appears twice"),
        ({"models": []}, "there are no models to choose from; give some of 'PoissonMF'"),
        ({"n_components": []}, "n_components is empty"),
        ({"n_components": 0}, "n_components is 0; it must be"),
        ({"max_counts": 0}, "max_counts is 0; it must be"),
        ({"n_components": "10"}, "n_components is '10'; it must be a whole number from 1"),
        ({"test_fraction": 1.5}, "test_fraction is 1.5"),
        ({"test_fraction": 0}, "test_fraction is 0; it must be a number between 0 and 1"),
        ({"test_fraction": 1}, "test_fraction is 1; it must be a number between 0 and 1"),
        ({"test_fraction": "x"}, "test_fraction is 'x'; it must be a number between 0 and 1"),
        ({"test_fraction": 1e-9}, "test_fraction is 1e-09, which holds out 0 of the 600 cells; at least 20 must be"),
        ({"test_fraction": 0.999}, "which holds out 599 of the 600 cells; at least 20 must be held out and 20 left"),
        ({"random_state": "x"}, "random_state is 'x'"),
    ],
)
def test_bad_settings_are_named(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        nbmf.choose(small_matrix(), **settings)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="3 is neither an estimator nor one of 'PoissonMF'"):
        nbmf.choose(small_matrix(), [3])


def test_what_is_no_matrix_is_refused_as_by_a_fit():
    for data in ("p.tsv", {"jazz": 3}):
        with pytest.raises(TypeError) as of_fit:
            nbmf.PoissonMF().fit(data)
        with pytest.raises(TypeError) as of_choose:
            nbmf.choose(data)
        assert str(of_choose.value) == str(of_fit.value)


def test_fractions_and_tiny_data_are_refused():
    counts = small_matrix().astype(float)
    row, column = np.argwhere(counts > 0)[7]
    counts[row, column] = 2.5
    with pytest.raises(ValueError, match=f"the count 2.5 of user {row} and item {column} is not whole"):
        nbmf.choose(counts)
    with pytest.raises(ValueError, match=f"the data has 3 non-zero counts; at least {LEAST_COUNTS} are needed"):
        nbmf.choose(np.eye(3))


def test_ctrl_c_ends_the_choice(monkeypatch):
    fit = nbmf.PoissonMF.fit

    def pressed(self, X, **control):
        def press(snapshot):
            raise KeyboardInterrupt

        return fit(self, X, callbacks=[press], **control)

    monkeypatch.setattr(nbmf.PoissonMF, "fit", pressed)
    with pytest.raises(KeyboardInterrupt):
        nbmf.choose(small_matrix(), ["PoissonMF"], n_components=2)


# ---- the rule -------------------------------------------------------------------------------------------------------


def parts_of(matrix):
    return Parts.of(nbmf.Interactions.from_matrix(matrix), 0.2, np.random.RandomState(0))


@pytest.fixture(scope="module")
def found():
    """A finding of each name for given nats per cell, which vary by user, and given factors to rank by."""
    counts = drawn("PoissonMF", 0, (80, 50))
    parts = parts_of(counts)
    noise = np.random.default_rng(0).normal(size=80)
    noise -= noise @ parts.judged.per_user / len(parts.judged)
    ranking = nbmf.PoissonMF(3, random_state=0, max_iter=30, tol=0).fit(parts.train)
    good = nbmf.evaluate(ranking, parts.train, parts.test, ("counts",), at=())
    poor = nbmf.evaluate((np.ones((80, 1)), np.ones((50, 1))), parts.train, parts.test, ("counts",), at=())

    def make(name, nats, spread=0.0, *, ranks_well=True):
        totals = None if nats is None else parts.judged.per_user * (nats + spread * noise)
        return Finding(name, nbmf.PoissonMF(), totals, good if ranks_well else poor, "", 0.0)

    return make, parts


def test_the_most_likely_is_recommended_if_the_difference_is_clear(found):
    make, parts = found
    choice = decide([make("simple", -1.3), make("likely", -1.0), make("ranks", None)], parts)
    assert choice.recommended == "likely"
    assert choice["simple"].difference == pytest.approx(-0.3)
    assert choice["simple"].difference_interval == pytest.approx((-0.3, -0.3))
    assert choice.reason.startswith("likely: held-out log-likelihood per cell -1.0000 against -1.3000 of simple")


def test_an_uncertain_difference_goes_to_the_first(found):
    make, parts = found
    choice = decide([make("simple", -1.1, spread=2.0), make("likely", -1.0)], parts)
    low, high = choice["simple"].difference_interval
    assert low < 0 < high
    assert choice.recommended == "simple"
    assert choice.reason.startswith("simple is the simplest of 2 models that the held-out cells cannot tell apart:")
    assert choice[0].name == "likely"
    certain = decide([make("simple", -1.1, spread=2.0), make("likely", -1.0, spread=2.0)], parts)
    assert certain.recommended == "likely"  # the same spread cancels: differences are paired


def test_a_certain_but_negligible_difference_goes_to_the_first(found):
    make, parts = found
    least = 0.01 * parts.judged.n_nonzero / len(parts.judged)
    assert decide([make("simple", -1 - 0.9 * least), make("likely", -1.0)], parts).recommended == "simple"
    assert decide([make("simple", -1 - 1.1 * least), make("likely", -1.0)], parts).recommended == "likely"


def test_one_user_tells_no_models_apart():
    counts = np.random.default_rng(0).negative_binomial(0.2, 0.02, (1, 400))
    choice = nbmf.choose(counts, ["PoissonMF", "NBMF"], n_components=1)
    assert choice.recommended == "PoissonMF"
    assert choice["PoissonMF"].difference < -1
    assert all(math.isnan(end) for c in choice for end in (*c.difference_interval, *c.ndcg_interval))
    assert "cannot tell apart" in choice.reason
    assert "ranks better" not in choice.reason


def test_what_ranks_better_is_named(found):
    make, parts = found
    choice = decide([make("likely", -1.0, ranks_well=False), make("ranks", None)], parts)
    assert (choice.recommended, choice.ranks_best) == ("likely", "ranks")
    assert choice.reason.endswith(f"ranks ranks better: NDCG {choice['ranks'].ndcg:.3f} against {choice[0].ndcg:.3f}")
    assert "ranks better" not in decide([make("likely", -1.0), make("ranks", None)], parts).reason


def test_a_single_model(found):
    make, parts = found
    assert decide([make("only", -1.0)], parts).reason == "only is the only model"


# ---- held-out cells -------------------------------------------------------------------------------------------------


def test_held_out_cells_and_the_rest_are_the_data():
    counts = small_matrix(20, 15)
    known, cells = hold_out_cells(nbmf.Interactions.from_matrix(counts), 120, np.random.RandomState(0))
    assert len(set(zip(cells.rows.tolist(), cells.columns.tolist(), strict=True))) == len(cells) == 120
    np.testing.assert_array_equal(cells.counts, counts[cells.rows, cells.columns])
    left = known.matrix.toarray()
    assert not left[cells.rows, cells.columns].any()
    left[cells.rows, cells.columns] = cells.counts
    np.testing.assert_array_equal(left, counts)
    assert 0 < cells.n_nonzero < len(cells)  # zeros are held out, too


def test_a_fit_knows_nothing_of_the_held_out_cells():
    counts = small_matrix(30, 20)
    parts = parts_of(counts)
    other = counts.copy()
    other[parts.judged.rows, parts.judged.columns] = 1000
    fits = [
        nbmf.NBMF(2, concentration="learn", max_iter=20, tol=0, random_state=0).fit(data, unknown=parts.unknown)
        for data in (parts.known, nbmf.Interactions.from_matrix(other))
    ]
    np.testing.assert_array_equal(fits[0].user_factors_, fits[1].user_factors_)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "BinaryMF"])
def test_log_probabilities_are_those_of_scipy(name):
    counts = small_matrix(30, 20)
    parts = parts_of(counts)
    model = FAMILY[name].__class__(2, max_iter=15, tol=0, random_state=0, dtype="float64")
    if "geometric" in name:
        model.set_params(jumps="geometric", jump=0.6)
    model.fit(parts.known, unknown=parts.unknown)
    cells = parts.judged
    μ = (model.user_factors_[cells.rows] * model.item_factors_[cells.columns]).sum(axis=1)
    y = cells.counts
    if name == "PoissonMF":
        logs = stats.poisson.logpmf(y, μ)
    elif name == "NBMF":
        logs = stats.nbinom.logpmf(y, 1.0, 1 / (1 + μ))
    elif name == "CompoundMF":
        θ = np.broadcast_to(model.jump_, (1, 20))[0, cells.columns]
        logs = stats.nbinom.logpmf(y, μ / -np.log1p(-θ), 1 - θ)
    elif name == "CompoundMF geometric":
        n = np.arange(1, 200)[:, None]  # NB(n, 0.4) above n, averaged over the number of events
        of_n = stats.poisson.pmf(n, μ) * stats.nbinom.pmf(y - n, n, 0.4)
        logs = np.log(np.where(y == 0, np.exp(-μ), of_n.sum(axis=0)))
    else:
        π = model.probability_
        logs = np.log(π * stats.poisson.pmf(y, μ) + (1 - π) * (y == 0))
    expected = np.bincount(cells.rows, logs, 30)
    np.testing.assert_allclose(cells.log_probabilities(model.result_), expected, rtol=1e-7, atol=1e-9)


def test_an_impossible_count_cannot_be_compared():
    counts = np.zeros((30, 20), int)
    counts[:, :10] = drawn("PoissonMF", 0, (30, 10))
    counts[0, 15] = 3  # maximum likelihood puts 0 there if the cell is held out
    given = [nbmf.PoissonMF(1, inference="mm", max_iter=50, tol=0)]
    for seed in range(100):
        parts = Parts.of(nbmf.Interactions.from_matrix(counts), 0.5, np.random.RandomState(seed))
        if np.any((parts.judged.rows == 0) & (parts.judged.columns == 15)):
            break
    choice = nbmf.choose(counts, given, test_fraction=0.5, random_state=np.random.RandomState(seed))
    assert choice[0].note == "it considers a held-out count impossible"
    assert math.isnan(choice[0].log_likelihood)


def test_large_data_is_sampled_by_user():
    data = nbmf.Interactions.from_matrix(small_matrix(300, 40))
    few = sampled(data, 500, np.random.RandomState(0))
    assert 500 <= few.nnz < 600
    np.testing.assert_array_equal(
        few.matrix.toarray(), data.matrix.toarray()[np.ix_(few.users.tolist(), few.items.tolist())]
    )
    assert sampled(data, 10**6, np.random.RandomState(0)) is data
    named = replace(data, item_names=np.array([f"song {n}" for n in range(40)], object))
    assert nbmf.choose(named, ["PoissonMF"], n_components=1, max_counts=500).n_counts == few.nnz
