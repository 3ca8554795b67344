"""What a likelihood may see in place of a count: its logarithm, or whether there is one."""

import numpy as np
import pytest
from sklearn.base import clone

import nbmf
from helpers import small_matrix
from nbmf.data.interactions import FORMS
from nbmf.estimators.loading import load

SETTINGS = {"max_iter": 40, "random_state": 0, "dtype": "float64"}


def transformed(form):
    matrix = small_matrix().astype(float)
    return np.where(matrix > 0, FORMS[form](matrix), 0.0)


@pytest.mark.parametrize("form", ["log1p", "binary"])
@pytest.mark.parametrize("estimator", [nbmf.NBMF, nbmf.PoissonMF])
def test_input_is_a_fit_of_transformed_counts(estimator, form, tmp_path):
    """In every answer, from a file too, and the counts themselves stay."""
    model = estimator(3, input=form, **SETTINGS).fit(small_matrix())
    same = estimator(3, **SETTINGS).fit(transformed(form))
    new = small_matrix(6, 20, seed=4)
    new_form = np.where(new > 0, FORMS[form](new.astype(float)), 0.0)
    model.save(tmp_path / "model.nbmf")
    for one in (model, load(tmp_path / "model.nbmf")):
        np.testing.assert_array_equal(one.user_factors_, same.user_factors_)
        np.testing.assert_allclose(one.transform(new), same.transform(new_form), rtol=1e-12)
        assert one.score(new) == pytest.approx(same.score(new_form), rel=1e-12)
        np.testing.assert_allclose(one.explain(7, 4).contributions, same.explain(7, 4).contributions, rtol=1e-9)
        ours, theirs = (m.exposures(7).to_pandas().sort_values("item") for m in (one, same))
        np.testing.assert_allclose(ours["exposure"], theirs["exposure"], rtol=1e-12)
        np.testing.assert_array_equal(ours["count"], small_matrix()[7][ours["item"]])
        assert one.result_.target == form


def test_logarithms_have_no_distribution_of_counts():
    model = nbmf.NBMF(3, input="log1p", **SETTINGS).fit(small_matrix())
    for ask in (
        lambda: model.predictive(0, 1),
        lambda: model.predictive(0, 1, factors="posterior"),
        lambda: model.predictive_for({0: 3}, 1),
    ):
        with pytest.raises(ValueError, match="fitted with input='log1p', so it has no likelihood of counts"):
            ask()
    assert model.explain_for({0: 3}, 1).score > 0


def test_held_out_counts_have_no_likelihood_under_a_model_of_logarithms():
    matrix, rng = small_matrix(), np.random.default_rng(0)
    held_out = rng.random(matrix.shape) < 0.3
    train, test = (nbmf.Interactions.from_matrix(np.where(part, matrix, 0)) for part in (~held_out, held_out))
    model = nbmf.NBMF(3, input="log1p", **SETTINGS).fit(train)
    averaged = nbmf.Averaged(nbmf.NBMF(3, input="log1p", max_iter=5), n_runs=2, random_state=0).fit(train)
    for one in (model, averaged, nbmf.NBSLIM().fit(train)):
        for ask in (nbmf.evaluation.log_likelihood, nbmf.evaluation.calibration):
            for given in ({}, {"concentration": 1.0}):
                with pytest.raises(ValueError, match="='log1p', so it has no likelihood of counts; fit with"):
                    ask(one, train, test, **given)
    binary = nbmf.NBMF(3, input="binary", **SETTINGS).fit(train)
    assert nbmf.evaluation.log_likelihood(binary, train, test, n_boot=2).mean == pytest.approx(binary.score(test))
    stopping = nbmf.EarlyStopping(train, test, metric="log_likelihood")
    with pytest.raises(ValueError, match="input is 'log1p', so test counts have no log-likelihood"):
        clone(model).fit(train, stopping=stopping)


def test_exposures_say_what_they_are_of():
    forms = ("counts", "log1p", "binary")
    found = [nbmf.NBMF(3, input=form, **SETTINGS).fit(small_matrix()).exposures(7) for form in forms]
    titles = [repr(one).splitlines()[0].partition("items")[2] for one in found]
    assert titles == [")", ", of ln(1 + count))", ", of whether there is a count)"]


def test_binarize_is_another_name_of_binary():
    named, binarized = (nbmf.PoissonMF(3, **s, **SETTINGS) for s in ({"input": "binary"}, {"binarize": True}))
    np.testing.assert_array_equal(named.fit(small_matrix()).components_, binarized.fit(small_matrix()).components_)
    with pytest.raises(ValueError, match="binarize is True, which means input='binary', but input is 'log1p'"):
        nbmf.PoissonMF(3, binarize=True, input="log1p").fit(small_matrix())
    with pytest.raises(ValueError, match="input is 'sqrt'; it must be"):
        nbmf.NBMF(3, input="sqrt").fit(small_matrix())


def test_a_checkpoint_of_other_input_is_refused(tmp_path):
    path = tmp_path / "fit.checkpoint"
    settings = {**SETTINGS, "tol": 0, "max_iter": 4}
    nbmf.NBMF(3, input="log1p", **settings).fit(small_matrix(), checkpoint=path)
    settings["max_iter"] = 6
    nbmf.NBMF(3, input="log1p", **settings).fit(small_matrix(), resume=path)
    with pytest.raises(ValueError, match="input='log1p', and this one has None"):
        nbmf.NBMF(3, **settings).fit(small_matrix(), resume=path)
