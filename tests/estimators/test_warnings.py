"""A fit that is unfinished, or that does not fit, says so."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import nbmf
from helpers import small_matrix
from nbmf.estimators.cells import cheap_cells, fitted_cells
from nbmf.estimators.findings import percents


def said_by(model, X, **control):
    """The warnings of a fit, as (category, text)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, **control)
    assert all(warning.filename == __file__ for warning in caught)  # whoever called fit is blamed
    return [(warning.category, str(warning.message)) for warning in caught]


# ---- convergence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [nbmf.NBMF(3), nbmf.NBMF(3, inference="mm"), nbmf.PoissonMF(3)], ids=str)
def test_an_unfinished_fit_says_so(model):
    model.set_params(max_iter=4, tol=1e-9, dtype="float64", random_state=0)
    [(category, text)] = said_by(model, small_matrix())
    assert category is ConvergenceWarning
    gain = (model.objective_[-1] - model.objective_[-2]) / abs(model.objective_[-2])
    for part in (f"{type(model).__name__} has not converged after max_iter=4", f"by {gain:.1e} of"):
        assert part in text
    assert text.endswith("; try accelerate=True and max_iter=8")
    [(_, text)] = said_by(model.set_params(accelerate=True), small_matrix())
    assert text.endswith("; try max_iter=8")


@pytest.mark.parametrize(("factor", "one", "is_heavy"), [(1, 1, False), (40, 1, True), (1, 1001, True)])
def test_an_unfinished_fit_of_large_counts_says_so(factor, one, is_heavy):
    counts = small_matrix() * factor
    counts[0, 0] = one
    for form in ("counts", "log1p"):
        [text] = [text for kind, text in said_by(nbmf.NBMF(3, max_iter=3, tol=1e-9, input=form), counts)][:1]
        assert text.endswith("; counts are large: try input='log1p' or NBSLIM") == (is_heavy and form == "counts")


@pytest.mark.parametrize(
    ("settings", "control"),
    [
        ({"max_iter": 2000, "tol": 1e-4}, {}),
        ({"max_iter": 4, "tol": 0}, {}),
        ({"max_iter": 9}, {"callbacks": [lambda snapshot: snapshot.sweep == 4]}),
    ],
    ids=["converged", "no early stop asked for", "stopped by a callback"],
)
def test_other_endings_say_nothing(settings, control):
    assert said_by(nbmf.NBMF(3, random_state=0, **settings), small_matrix(), **control) == []


def test_sweeps_that_were_asked_for_say_nothing():
    model = nbmf.NBMF(3, random_state=0).fit(small_matrix())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(small_matrix(8, 20, seed=3), refresh=2)


def test_item_weights_say_so():
    [(category, text)] = said_by(nbmf.NBSLIM(max_iter=2, tol=1e-6), small_matrix())
    assert category is ConvergenceWarning
    assert "NBSLIM has not converged after max_iter=2" in text
    assert text.endswith("; try max_iter=4")
    assert said_by(nbmf.NBSLIM(max_iter=2, tol=0), small_matrix()) == []
    assert said_by(nbmf.NBSLIM(), small_matrix()) == []


def test_an_average_says_it_once():
    [(category, text)] = said_by(nbmf.Averaged(nbmf.NBMF(3, max_iter=3), n_runs=4, random_state=0), small_matrix())
    assert category is ConvergenceWarning
    assert text.startswith("4 of 4 members: NBMF has not converged after max_iter=3")


def test_an_average_counts_members_and_hides_no_other_warning():
    def warns(snapshot):
        if snapshot.sweep in (1, 2):
            warnings.warn(f"sweep {snapshot.sweep}", ConvergenceWarning, stacklevel=1)
            warnings.warn(f"disk is nearly full in sweep {snapshot.sweep}", ResourceWarning, stacklevel=1)

    said = said_by(
        nbmf.Averaged(nbmf.NBMF(3, max_iter=3, tol=0), n_runs=4, random_state=0), small_matrix(), callbacks=[warns]
    )
    assert [text for kind, text in said if kind is ConvergenceWarning] == ["4 of 4 members: sweep 2"]
    others = [text for kind, text in said if kind is ResourceWarning]
    assert others == ["disk is nearly full in sweep 1", "disk is nearly full in sweep 2"] * 4


# ---- misfit ---------------------------------------------------------------------------------------------------------


def bursts(largest=100_000, n_users=300, n_items=200):
    """Few pairs, with counts over many orders of magnitude: most of the variance is in a few of them."""
    rng = np.random.default_rng(0)
    counts = np.floor(np.exp(rng.uniform(0, np.log(largest), (n_users, n_items))))
    return (counts * (rng.random((n_users, n_items)) < 0.03)).astype(int)


def test_a_misfit_is_named():
    model = nbmf.NBMF(5, random_state=0, max_iter=100, tol=0)
    [(category, text)] = said_by(model, bursts())
    assert category is nbmf.MisfitWarning
    share = cheap_cells(model.result_).occupancy()
    expected, observed = percents(1 - share.expected, 1 - share.observed)
    assert text.startswith(f"the model expects {expected} zeros where {observed} are; ")
    assert text.endswith(": try CompoundMF, input='log1p' or NBSLIM")
    assert text.split("; ")[1] in [finding.split("; ")[-1] for finding in model.check().findings]  # as `check` says it
    assert said_by(model.set_params(input="log1p"), bursts()) == []
    [(category, text)] = said_by(nbmf.Averaged(model.set_params(input="counts"), n_runs=2, random_state=0), bursts())
    assert category is nbmf.MisfitWarning
    assert text.startswith("2 of 2 members: the model expects")


def test_a_fit_of_its_own_model_is_no_misfit():
    for mean in (0.05, 1.0, 50.0):
        data = nbmf.datasets.simulate(200, 100, n_components=3, mean_count=mean, seed=1)
        assert said_by(nbmf.NBMF(3, random_state=0, max_iter=60, tol=0), data) == []


def test_a_fit_that_has_hardly_begun_is_only_unfinished():
    data = nbmf.datasets.simulate(200, 100, n_components=3, mean_count=0.05, seed=1)
    model = nbmf.NBMF(20, random_state=0, max_iter=1)
    assert [category for category, _ in said_by(model, data)] == [ConvergenceWarning]
    share = cheap_cells(model.result_).occupancy()
    assert share.expected > 3 * share.observed  # or it would not show anything


def test_occupancy_is_that_of_all_cells_where_few_users_are_all():
    matrix, unknown = small_matrix(), np.zeros((30, 20), bool)
    unknown[4:9, 2:11] = True
    model = nbmf.NBMF(3, random_state=0, max_iter=999, tol=0, dtype="float64").fit(matrix, unknown=unknown)
    chance = model.predictive(np.repeat(np.arange(30), 20), np.tile(np.arange(20), 30)).at_least(1).reshape(30, 20)
    found = cheap_cells(model.result_).occupancy()
    assert found.expected == pytest.approx(chance[~unknown].mean(), rel=1e-9)
    assert found.observed == np.mean(matrix[~unknown] > 0)
    assert found.expected_mean == pytest.approx(model.inverse_transform(model.user_factors_)[~unknown].mean(), rel=1e-9)
    assert found.observed_mean == pytest.approx(matrix[~unknown].mean(), rel=1e-12)
    assert found.sd == pytest.approx(np.sqrt((chance * (1 - chance))[~unknown].sum()) / (~unknown).sum(), rel=1e-9)


def test_the_check_leaves_the_random_stream_alone(monkeypatch):
    generators = np.random.RandomState(5), np.random.RandomState(5)
    nbmf.NBMF(3, random_state=generators[0], exposure="tied", n_clusters=3, max_iter=5).fit(small_matrix())
    monkeypatch.setattr("nbmf.estimators.factorize.cheap_cells", lambda fit: fitted_cells(fit, 20))
    nbmf.NBMF(3, random_state=generators[1], exposure="tied", n_clusters=3, max_iter=5).fit(small_matrix())
    assert generators[0].randint(1 << 30) == generators[1].randint(1 << 30)
