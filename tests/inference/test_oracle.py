"""The author's own program, followed sweep by sweep.

The oracle's runs start from RandomState(1404): W0 then H0, each Gamma(1, 1). Its multiplicative updates add 1e-16 to Y
and to WHᵀ, and drift away from the paper's after sweep 45, so the comparison ends there.
"""

import numpy as np
import pytest

import nbmf

RUNS = {
    "nb_cavi": nbmf.NBMF(10, concentration=1.0, exposure="exact"),
    "poisson_cavi": nbmf.PoissonMF(10),
    "poisson_cavi_binary": nbmf.PoissonMF(10, binarize=True),
    "nb_mm": nbmf.NBMF(10, concentration=1.0, exposure="exact", inference="mm"),
    "poisson_mm": nbmf.PoissonMF(10, inference="mm"),
}


@pytest.mark.parametrize("name", RUNS)
def test_objectives_follow_the_authors_program(name, data_folder, taste_profile):
    oracle = np.load(data_folder / "oracle" / f"{name}.npz")
    model = RUNS[name].set_params(dtype="float64", tol=0, max_iter=100, random_state=1404).fit(taste_profile[0])
    if name.endswith("_mm"):
        # the oracle has the divergence: minus the log-likelihood, up to a constant
        ours, theirs = -np.diff(model.objective_[:45]), np.diff(oracle["objective"][:45])
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * abs(oracle["objective"][0]))
    else:
        np.testing.assert_allclose(model.objective_, oracle["objective"], rtol=1e-9)
        ours, theirs = model.user_factors_ @ model.item_factors_.T, oracle["W"] @ oracle["H"].T
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
