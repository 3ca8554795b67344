"""A fitted likelihood is checked against data: faults are found and named, and a model that is right is left alone."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

import nbmf
from helpers import small_matrix
from nbmf.estimators.cells import Cells, fitted_cells
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.findings import NAMED, REMEDIES, SETTINGS, advice, percents
from nbmf.estimators.statistics import GROUPS, LARGEST, MEAN, ONES, QUANTILE, VARIANCE, ZEROS, Measure, compare, figure
from nbmf.model.family import BernoulliPoisson, GeometricJumps, LogarithmicJumps, RobustPoisson, ZeroInflatedPoisson
from nbmf.model.likelihood import NegativeBinomial, Poisson

SETTLED = {"max_iter": 300, "tol": 1e-4, "random_state": 0}
POISSON = Poisson()
PLAIN = {**SETTLED, "backend": "reference", "dtype": "float64"}


def named(statistics, name, cells=None):
    return [each for each in statistics if each.name == name and cells in (None, each.cells)]


def redrawn(model, seed):
    """Counts drawn from a fitted likelihood at the fitted intensities."""
    rng = np.random.RandomState(seed)
    return model.result_.model.likelihood.sample(rng, (model.user_factors_ @ model.item_factors_.T).astype(float))


def cells_of(counts, intensity, likelihood=POISSON):
    users, items = np.indices(counts.shape)
    flat = (array.ravel() for array in (counts.astype(float), intensity))
    return Cells(*flat, likelihood, users.ravel(), items.ravel())


def drawn_from(law, shape=(300, 150), mean=0.3, seed=0):
    """Counts of a likelihood whose intensities are a product of gamma factors."""
    rng = np.random.RandomState(seed)
    μ = rng.gamma(1.0, 1.0, (shape[0], 3)) @ rng.gamma(1.0, mean / 3, (shape[1], 3)).T
    return law.sample(rng, μ)


# ---- statistics -----------------------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_all_cells_where_few_are_all():
    model = nbmf.NBMF(3, dtype="float64", random_state=0, max_iter=50, tol=0).fit(small_matrix())
    found, y = model.check().statistics, small_matrix()
    m = model.inverse_transform(model.user_factors_)
    assert named(found, MEAN)[0].observed == pytest.approx(y.mean())
    assert named(found, ZEROS, "all cells")[0].observed == pytest.approx(np.mean(y == 0))
    assert named(found, ONES)[0].observed == pytest.approx(np.mean(y[y > 0] == 1))
    assert named(found, QUANTILE)[0].observed == pytest.approx(np.quantile(y[y > 0], 0.99))
    assert named(found, LARGEST)[0].observed == y.max()
    for n, group in enumerate(GROUPS):
        totals = m.sum(axis=1 - n // 2)
        order = np.argsort(totals)[:: [1, -1][n % 2]]
        few = order[np.cumsum(totals[order]) - totals[order] / 2 < totals.sum() / 5]  # who have a fifth of the counts
        chosen = y[few] if n < 2 else y[:, few]
        assert named(found, ZEROS, group)[0].observed == pytest.approx(np.mean(chosen == 0)), group


def test_the_variance_is_about_the_mean_of_the_bin():
    """Σ (y − c m)²/Σ y with c = Σ y/Σ m, in five bins of equal Σ m."""
    rng = np.random.default_rng(0)
    m = rng.gamma(0.5, 1.0, (200, 150))
    y = rng.poisson(1.7 * m)
    cells, seed = cells_of(y, m), 0
    found = named(compare(cells, 10, np.random.RandomState(seed)), VARIANCE)
    largest = Measure.of(cells, np.random.RandomState(seed)).cap
    assert 0.5 < largest / y.max() < 1  # of counts that are drawn with too small a mean
    order = np.argsort(m, axis=None)
    edges = np.searchsorted(np.cumsum(m.flat[order]), m.sum() * np.arange(1, 5) / 5)
    for each, bin_ in zip(found, np.split(order, edges), strict=True):
        counts, means = np.minimum(y.flat[bin_], largest), m.flat[bin_]
        assert means.sum() == pytest.approx(m.sum() / 5, rel=0.01)
        literal = np.sum((counts - counts.sum() / means.sum() * means) ** 2) / counts.sum()
        assert each.observed == pytest.approx(literal, rel=0.01)  # a cell at an edge may be in either bin
        assert each.cells == f"expecting {figure(means.mean())}"
        assert each.observed == pytest.approx(1, abs=0.25)  # although the mean is wrong
    assert not named(compare(cells_of(y, m / 2), 10, np.random.RandomState(0)), MEAN)[0].fits


def test_draws_surround_what_they_are_draws_of():
    """The statistics of the draws have the expectations that the likelihood knows."""
    law, μ = NegativeBinomial(0.5), np.random.default_rng(0).gamma(1.0, 1.0, (100, 80))
    found = compare(cells_of(law.sample(np.random.RandomState(1), μ), μ, law), 200, np.random.RandomState(0))
    zeros, mean = named(found, ZEROS, "all cells")[0], named(found, MEAN)[0]
    assert zeros.drawn.mean() == pytest.approx(law.up_to(0, μ).mean(), rel=0.002)
    assert mean.drawn.mean() == pytest.approx(μ.mean(), rel=0.01)
    assert all(each.fits for each in found)
    assert zeros.interval[0] < zeros.expected < zeros.interval[1]
    for each in found:
        low, high = each.tolerated
        assert low <= each.expected <= high
        assert low <= each.observed <= high


def test_a_difference_must_be_both_large_and_significant():
    rng = np.random.RandomState(0)
    many, few = np.full((500, 400), 0.5), np.full((5, 4), 0.02)
    slightly = compare(cells_of(rng.poisson(1.15 * many), many), 50, rng)
    zeros = named(slightly, ZEROS, "all cells")[0]
    assert zeros.observed < zeros.drawn.min()  # significant
    assert all(each.fits for each in slightly)
    two = np.zeros(few.shape)
    two[[0, 1], [0, 1]] = 1  # where 0.4 are expected
    found = compare(cells_of(two, few), 50, rng)
    assert named(found, MEAN)[0].observed == pytest.approx(5 * few.mean())
    assert all(each.fits for each in found)
    assert not all(each.fits for each in compare(cells_of(rng.poisson(3 * many), many), 50, rng))


def test_cells_that_were_left_out_are_not_looked_at():
    counts, unknown = small_matrix(), np.zeros((30, 20), bool)
    unknown[:, 3:9] = True
    model = nbmf.NBMF(3, random_state=0, max_iter=30, tol=0).fit(counts, unknown=unknown)
    found = model.check()
    assert found.n_cells == (~unknown).sum()
    assert named(found.statistics, MEAN)[0].observed == pytest.approx(counts[~unknown].mean())


def test_the_sample_is_even_and_bounded():
    data = nbmf.datasets.simulate(2000, 900, n_components=3, mean_count=0.05, seed=0)
    model = nbmf.PoissonMF(3, random_state=0, max_iter=5, tol=0).fit(data)
    cells = fitted_cells(model.result_)
    assert 200_000 < len(cells.counts) <= 250_000
    assert len(np.unique(cells.users)) == len(np.unique(cells.items)) == 500
    assert cells.counts.mean() == pytest.approx(data.matrix.mean(), rel=0.05)
    wide = fitted_cells(model.result_, 900)
    assert len(np.unique(wide.users)) == 30
    assert len(wide.counts) == 900
    assert model.check(n_draws=2).n_cells == len(cells.counts)


def test_parameters_of_single_users_and_items_reach_their_cells():
    data = nbmf.datasets.simulate(90, 60, n_components=3, mean_count=0.5, seed=0)
    for group in ("learn_per_user", "learn_per_item"):
        model = nbmf.NBMF(3, concentration=group, exposure="exact", random_state=0, max_iter=30, tol=0).fit(data)
        cells = fitted_cells(model.result_, 1600)
        learned = np.broadcast_to(model.concentration_, (90, 60))
        assert set(np.ravel(cells.likelihood.concentration)) <= set(learned.ravel())
        assert cells.likelihood.concentration.shape == cells.counts.shape
        assert model.check().n_cells == 90 * 60


# ---- calibration ----------------------------------------------------------------------------------------------------

RIGHT = [
    nbmf.NBMF(5, **SETTLED),
    nbmf.PoissonMF(5, **SETTLED),
    nbmf.PoissonMF(5, inference="mm", **SETTLED),
    Factorization(5, likelihood=LogarithmicJumps(0.7), **PLAIN),
]


@pytest.mark.parametrize("estimator", RIGHT, ids=lambda each: f"{type(each).__name__} {each._likelihood().kind}")
def test_a_model_that_is_right_is_left_alone(estimator):
    """Counts drawn from a fit and fitted by the same model; at full length, 20 times each with at most one alarm."""
    first = clone(estimator).fit(nbmf.datasets.simulate(150, 80, n_components=5, mean_count=0.4, seed=1))
    for seed in range(3):
        again = clone(estimator).set_params(random_state=seed + 1).fit(redrawn(first, seed))
        assert again.check(seed=seed).findings == ()
        assert again.check(seed=seed).fits


def test_units_of_a_wholesaler_are_too_much_for_it(data_folder):
    """Means of 19 and a variance of 55,000: the exposure explains the zeros away."""
    events = pytest.importorskip("pandas").read_parquet(data_folder / "data" / "online_retail" / "events.parquet")
    units = events.groupby(["user", "item"], as_index=False)["units"].sum()
    data = nbmf.read_interactions(units, user="user", item="item", count="units")
    data = data.select_users(np.arange(0, data.n_users, 4))
    with pytest.warns(nbmf.MisfitWarning, match="zero counts are being explained as missing exposure: try CompoundMF"):
        model = nbmf.NBMF(10, concentration=1, random_state=0, max_iter=60, tol=0).fit(data)
    found = model.check()
    assert not found.fits
    assert found.findings[0].endswith("try CompoundMF, input='log1p' or NBSLIM")
    assert len(found.findings) >= 3


# ---- findings -------------------------------------------------------------------------------------------------------


def findings_of(counts, model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nbmf.MisfitWarning)  # which says the same
        return clone(model).fit(counts).check().findings


def test_many_zeros_of_large_counts_are_compound():
    counts = drawn_from(LogarithmicJumps(0.99), mean=0.05)
    for model in (nbmf.PoissonMF(3, **SETTLED), nbmf.NBMF(3, **SETTLED)):
        [zeros, *others] = findings_of(counts, model)
        assert zeros.startswith("expects")
        assert "zeros where" in zeros
        assert "try CompoundMF, input='log1p' or NBSLIM" in zeros
        assert ("missing exposure" in zeros) == isinstance(model, nbmf.NBMF)
        assert others
    assert findings_of(counts, Factorization(3, likelihood=LogarithmicJumps(0.99), **PLAIN)) == ()


def test_many_zeros_of_small_counts_are_inflated():
    counts = drawn_from(ZeroInflatedPoisson(0.25), mean=0.8)
    [zeros, *_] = findings_of(counts, nbmf.PoissonMF(3, **SETTLED))
    assert "try ZeroInflatedMF or NBMF" in zeros


def test_ones_alone_are_binary():
    counts = drawn_from(BernoulliPoisson(), mean=1.0)
    for model in (nbmf.PoissonMF(3, **SETTLED), nbmf.PoissonMF(3, binarize=True, **SETTLED), nbmf.NBMF(3, **SETTLED)):
        assert any(text.endswith("above 1 where all are 1: try BinaryMF") for text in findings_of(counts, model))
    assert findings_of(counts, Factorization(3, likelihood=BernoulliPoisson(), **PLAIN)) == ()
    # which takes larger counts for 1
    assert findings_of(5 * counts, Factorization(3, likelihood=BernoulliPoisson(), **PLAIN)) == ()


def test_bursts_are_over_dispersed_and_even_counts_under_dispersed():
    bursts = findings_of(drawn_from(NegativeBinomial(0.3), mean=3.0), nbmf.PoissonMF(3, **SETTLED))
    assert any("variance" in text and text.endswith("try NBMF or CompoundMF") for text in bursts)
    even = findings_of(drawn_from(Poisson(), mean=6.0), nbmf.NBMF(3, concentration=0.2, **SETTLED))
    assert any("variance" in text and text.endswith("try a larger concentration or PoissonMF") for text in even)


def remedies(found):
    return {text.split(": try ")[1] for text in found}


def test_uneven_counts_are_compound_whatever_is_too_even_for_them():
    counts = drawn_from(LogarithmicJumps(0.97))
    for model in (nbmf.ZeroInflatedMF(3, **SETTLED), nbmf.NBMF(3, concentration="learn", **SETTLED)):
        assert remedies(findings_of(counts, model)) == {"CompoundMF"}
    assert findings_of(counts, nbmf.CompoundMF(3, **SETTLED)) == ()
    too_many_zeros = findings_of(
        drawn_from(NegativeBinomial(5.0), mean=6.0), nbmf.NBMF(3, concentration=0.1, **SETTLED)
    )
    assert any("zeros" in text for text in too_many_zeros)
    assert remedies(too_many_zeros) == {"CompoundMF or a larger concentration"}


@pytest.mark.parametrize(
    ("law", "wrong", "right"),
    [(GeometricJumps(0.9), "logarithmic", "geometric"), (LogarithmicJumps(0.97), "geometric", "logarithmic")],
    ids=["geometric", "logarithmic"],
)
def test_jumps_of_the_other_kind_are_proposed(law, wrong, right):
    counts = drawn_from(law)
    assert remedies(findings_of(counts, nbmf.CompoundMF(3, jumps=wrong, **SETTLED))) == {f"jumps='{right}'"}
    assert findings_of(counts, nbmf.CompoundMF(3, jumps=right, **SETTLED)) == ()


def test_nobody_is_told_to_change_what_was_learned():
    counts = drawn_from(Poisson(), (60, 40))
    for model, is_learned in (
        (nbmf.CompoundMF(2), True),
        (nbmf.CompoundMF(2, jump="learn"), True),
        (nbmf.CompoundMF(2, jump=0.3), False),
        (nbmf.NBMF(2, concentration="learn"), True),  # which goes to the largest that is allowed
        (nbmf.NBMF(2, concentration="learn_per_user"), True),
        (nbmf.NBMF(2, concentration=2.5), False),
        (nbmf.Averaged(nbmf.NBMF(2, concentration=0.1, max_iter=20, tol=0), 3), False),
    ):
        settings = {} if isinstance(model, nbmf.Averaged) else {"max_iter": 20, "tol": 0}
        fit = model.set_params(random_state=0, **settings).fit(counts).result_
        assert ("jumps" in advice("large counts and zeros", fit)) == (not is_learned and hasattr(model, "jumps"))
        assert ("a larger" in advice("evenness", fit)) == (not is_learned and not hasattr(model, "jumps"))
        assert ("a smaller" in advice("zeros", fit)) == (not is_learned and not hasattr(model, "jumps"))
        assert ("smaller jumps" in advice("evenness", fit)) == (not is_learned and hasattr(model, "jumps"))


def test_a_few_giants_are_outliers():
    counts = drawn_from(Poisson(), mean=2.0)
    counts[[3, 50, 120], [7, 20, 70]] = 5000
    found = findings_of(counts, nbmf.NBMF(3, concentration=5.0, **SETTLED))
    assert any("a largest count of about" in text and text.endswith("try RobustMF") for text in found)


def test_users_without_much_are_overrated_by_a_common_prior():
    """A few counts of each item among many components: the prior has more to say than they do."""
    rng = np.random.RandomState(0)
    popularity = np.repeat([0.005, 0.3], [240, 60])
    counts = rng.poisson(rng.gamma(1.0, 1.0, (200, 1)) * popularity)
    found = findings_of(counts, nbmf.PoissonMF(30, **SETTLED))
    assert any(text.endswith("among the least popular items: try rates='per_row'") for text in found)
    assert findings_of(counts, nbmf.PoissonMF(30, rates="per_row", **SETTLED)) == ()


def test_a_fit_that_has_hardly_begun_needs_sweeps():
    data = nbmf.datasets.simulate(200, 100, n_components=3, mean_count=0.05, seed=1)
    found = findings_of(data.matrix, nbmf.NBMF(20, random_state=0, max_iter=1, tol=0))
    assert any(text.endswith("; the fit has not got far: try a larger max_iter") for text in found)


ALL = [
    Poisson(),
    NegativeBinomial(1.0),
    LogarithmicJumps(0.5),
    GeometricJumps(0.5),
    ZeroInflatedPoisson(0.5),
    BernoulliPoisson(),
]


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.kind)
def test_nothing_is_advised_that_the_model_already_is(law):
    for settings in ({"rates": "per_row"}, {"input": "binary"}):
        fit = Factorization(2, likelihood=law, **{**PLAIN, "max_iter": 2, "tol": 0, **settings}).fit([[1, 0], [3, 2]])
        for symptom, remedies in REMEDIES.items():
            text = advice(symptom, fit.result_)
            assert text == "" or text.startswith(": try ")
            for words in remedies:
                is_own = words in NAMED and law.kind in NAMED[words]
                is_elsewhere = words in SETTINGS and law.kind not in SETTINGS[words]
                assert not ((is_own or is_elsewhere) and words in text.replace("ZeroInflatedMF", "").split(" try ")[-1])
            assert "per_row" not in text or "rates" not in settings
            assert "log1p" not in text or "input" not in settings


def test_what_follows_the_noise_needs_fewer_parameters():
    """Maximum likelihood with four parameters per non-zero count, whose likelihood is right."""
    counts = drawn_from(NegativeBinomial(0.1), (200, 100))
    found = findings_of(counts, nbmf.NBMF(20, concentration=0.1, inference="mm", max_iter=150, tol=0, random_state=0))
    assert found
    assert all(text.endswith(": try fewer components or inference='cavi'") for text in found)


def test_zeros_and_ones_are_never_explained_as_counts():
    for model in (nbmf.PoissonMF(2, binarize=True), Factorization(2, likelihood=BernoulliPoisson(), **PLAIN)):
        fit = clone(model).set_params(max_iter=2, tol=0).fit([[1, 0, 2], [3, 2, 0]]).result_
        texts = {advice(symptom, fit) for symptom in REMEDIES if symptom not in ("activity", "sweeps", "parameters")}
        assert texts == {": try BinaryMF" if fit.input == "binary" else ""}


def test_shares_are_told_from_none_and_all():
    assert percents(0.5, 0.25) == ("50 %", "25 %")
    assert percents(0.99996, 0.99) == ("99.996 %", "99.000 %")
    assert percents(0.0, 1.0) == ("0 %", "100 %")


# ---- the answer -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty():
    return nbmf.PoissonMF(3, **SETTLED).fit(drawn_from(NegativeBinomial(0.1), mean=2.0)).check(n_draws=30)


def test_it_is_a_table_with_findings_below(faulty):
    text, html, frame = repr(faulty), faulty._repr_html_(), faulty.to_pandas()
    assert not faulty.fits
    assert text.startswith(f"Check({len(faulty.findings)} findings; 45,000 cells, 30 draws)\nstatistic ")
    assert text.splitlines()[-len(faulty.findings) :] == [f"- {finding}" for finding in faulty.findings]
    assert html.count("<li>") == len(faulty.findings)
    assert list(frame) == ["statistic", "cells", "observed", "expected", "low", "high", "fits"]
    assert len(frame) == len(faulty.statistics) == 14
    assert ((frame.low <= frame.expected) & (frame.expected <= frame.high)).all()
    assert not frame.fits.all()


def test_a_model_that_fits_has_no_list():
    found = nbmf.PoissonMF(3, **SETTLED).fit(drawn_from(Poisson())).check(n_draws=20)
    assert found.fits
    assert repr(found).startswith("Check(fits; ")
    assert "<ul>" not in found._repr_html_()


def test_its_picture_marks_what_is_off(faulty, tmp_path):
    pytest.importorskip("matplotlib")
    figure = faulty.plot(tmp_path / "check.png")
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_title() for axes in figure.axes] == [panel.title for panel in faulty.panels]
    crosses = sum(len(line.get_xdata()) for axes in figure.axes for line in axes.lines if line.get_marker() == "X")
    assert crosses == sum(not each.fits for each in faulty.statistics)
    for panel in faulty.panels:
        for mark in panel.marks:
            assert mark["least"] <= mark["low"] <= mark["expected"] <= mark["high"] <= mark["most"]
            assert mark["fits"] == (mark["least"] <= mark["observed"] <= mark["most"])


def test_a_picture_of_nothing_but_zeros_can_be_drawn():
    pytest.importorskip("matplotlib")
    model = nbmf.PoissonMF(2, random_state=0, max_iter=3, tol=0).fit(small_matrix())
    model.check(np.zeros((4, 20), int), n_draws=5).plot()


def test_the_same_seed_finds_the_same():
    model = nbmf.NBMF(3, random_state=0, max_iter=20, tol=0).fit(small_matrix())
    first, second, other = model.check(seed=1), model.check(seed=1), model.check(seed=2)
    np.testing.assert_array_equal(first.statistics[1].drawn, second.statistics[1].drawn)
    assert not np.array_equal(first.statistics[1].drawn, other.statistics[1].drawn)


def test_an_average_is_checked_too():
    model = nbmf.Averaged(nbmf.NBMF(3, max_iter=100, tol=0), n_runs=2, random_state=0)
    data = drawn_from(NegativeBinomial(1.0))
    assert model.fit(data).check().fits
    assert model.check(data[:50]).n_cells == 50 * 150


# ---- other data -----------------------------------------------------------------------------------------------------


def test_the_data_of_the_fit_given_by_id_is_the_default():
    data = nbmf.datasets.simulate(60, 40, n_components=3, mean_count=0.5, seed=0)
    model = nbmf.NBMF(3, random_state=0, max_iter=50, tol=0).fit(data)
    for own, given in zip(model.check().statistics, model.check(data).statistics, strict=True):
        assert own.observed == given.observed
        np.testing.assert_array_equal(own.drawn, given.drawn)


def test_new_users_are_folded_in():
    counts = drawn_from(NegativeBinomial(1.0), (400, 100), mean=0.5)
    model = nbmf.NBMF(3, **SETTLED).fit(counts[:300])
    assert model.check(counts[300:]).fits
    assert model.check(sp.csr_array(counts[300:])).n_cells == 100 * 100
    bursts = 40 * (counts[300:] > 0)
    assert not model.check(bursts).fits


def test_what_has_no_distribution_says_so():
    with pytest.raises(ValueError, match=r"input='log1p', so it has no likelihood of counts; fit with input='counts'"):
        nbmf.NBMF(2, input="log1p", random_state=0, max_iter=3, tol=0).fit(small_matrix()).check()
    with pytest.raises(ValueError, match=r"the model is a profile likelihood .*, so it cannot be checked; NBMF "):
        Factorization(2, likelihood=RobustPoisson(), **{**PLAIN, "max_iter": 3, "tol": 0}).fit(small_matrix()).check()
    model = nbmf.NBMF(2, random_state=0, max_iter=3, tol=0).fit(small_matrix())
    for wrong in (1, 2.5, True, "many"):
        with pytest.raises(ValueError, match=r"n_draws is .*; it must be a whole number from 2"):
            model.check(n_draws=wrong)


def test_a_few_giant_cells_make_no_statistic_of_their_own():
    """Bins of expected counts have equal sums, so one giant fills a bin, whose variance would say nothing."""
    intensity = np.full((50, 50), 0.5)
    intensity[0, 0] = 1e6
    counts = POISSON.sample(np.random.RandomState(0), intensity)
    found = named(compare(cells_of(counts, intensity), 20, np.random.RandomState(0)), VARIANCE)
    assert len(found) == 1
    assert found[0].cells == "expecting 0.5"


def test_ones_alone_are_binary_whatever_else_is_off():
    counts = (drawn_from(POISSON, mean=2.0) > 0).astype(int)
    assert all("PoissonMF" not in each for each in findings_of(counts, nbmf.CompoundMF(3, **SETTLED)))
