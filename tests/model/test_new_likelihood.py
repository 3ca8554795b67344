"""A likelihood that is not in the package: one class, and everything else takes it as it is."""

import inspect
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import gammaln

import nbmf
from helpers import small_matrix
from nbmf.estimators.factorization import Factorization
from nbmf.model.likelihood import KINDS, Likelihood, log_probability
from nbmf.storage import container


@dataclass(frozen=True)
class ZeroInflatedPoisson(Likelihood):
    """Exposed with probability π: a ~ Bernoulli(π), y ~ Poisson(a μ)."""

    kind = "inflated_poisson"
    probability: float = 0.5

    def exposure(self, count, intensity):
        """1 for a positive count; πe^(−μ)/(1 − π + πe^(−μ)) for a zero."""
        zero = self.probability * np.exp(-np.asarray(intensity))
        return np.where(np.asarray(count) > 0, 1.0, zero / (1 - self.probability + zero))

    def log_base(self, count):
        """−ln y!, and ln π for a positive count."""
        positive = np.where(np.asarray(count) > 0, np.log(self.probability), 0.0)
        return positive - gammaln(np.asarray(count) + 1.0)

    def log_evidence(self, count, intensity):
        """ln π − μ − ln y! for a positive count; ln(1 − π + πe^(−μ)) for a zero."""
        μ = np.asarray(intensity)
        zero = np.log1p(self.probability * np.expm1(-μ))
        return self.log_base(count) + np.where(np.asarray(count) > 0, -μ, zero)


BOUGHT = "item 7"


def data():
    matrix = small_matrix(60, 40)
    users, items = [f"user {n}" for n in range(60)], [f"item {n}" for n in range(40)]
    return nbmf.Interactions.from_matrix(matrix, users=users, items=items)


def made(**settings):
    settings = {"likelihood": ZeroInflatedPoisson(0.4), "random_state": 0, "max_iter": 60, **settings}
    return Factorization(3, backend="reference", dtype="float64", **settings)


def test_it_is_one_short_class():
    assert len(inspect.getsource(ZeroInflatedPoisson).splitlines()) <= 30
    assert KINDS["inflated_poisson"] is ZeroInflatedPoisson


def test_its_functions_are_a_distribution_and_its_derivative():
    law, μ = ZeroInflatedPoisson(0.4), 1.7
    assert np.exp(log_probability(law, np.arange(80.0), np.full(80, μ))).sum() == pytest.approx(1.0)
    for count in (0.0, 3.0):
        slope = (law.log_evidence(count, μ + 1e-6) - law.log_evidence(count, μ - 1e-6)) / 2e-6
        assert law.exposure(count, μ) == pytest.approx(-slope, rel=1e-6)


@pytest.mark.parametrize("inference", ["cavi", "mm"])
@pytest.mark.parametrize("exposure", ["exact", "tied"])
def test_it_fits_ascends_recommends_and_explains(inference, exposure):
    # refreshed ties are another bound, which may be lower; a fall within one bound raises
    model = made(inference=inference, exposure=exposure, n_clusters=6, tol=0).fit(data())
    if exposure == "exact":
        assert np.all(np.diff(model.objective_) >= -1e-9 * abs(model.objective_[-1]))
    assert model.objective_[-1] > model.objective_[0]
    assert model.recommend("user 3", n=4).items.shape == (1, 4)
    assert model.recommend_for({BOUGHT: 3}, n=4).items.shape == (1, 4)
    for why in (model.explain("user 3", "item 5"), model.explain_for({BOUGHT: 3}, "item 5")):
        assert why.contributions.sum() + why.prior == pytest.approx(why.score)
    assert np.all(model.exposures("user 3").exposure == 1.0)
    assert np.isfinite(model.score(data()))


def test_the_zeros_of_the_simulated_law_are_explained():
    """Counts drawn with π = 0.4 are more probable under it than under Poisson's likelihood."""
    rng = np.random.default_rng(0)
    μ = rng.gamma(1, 1, (80, 3)) @ rng.gamma(1, 1, (50, 3)).T
    counts = rng.poisson(μ) * (rng.random(μ.shape) < 0.4)
    inflated = made(inference="mm").fit(counts)
    plain = nbmf.PoissonMF(3, inference="mm", random_state=0, max_iter=60, dtype="float64").fit(counts)
    assert inflated.objective_[-1] > plain.objective_[-1]


def test_it_is_saved_loaded_and_resumed(tmp_path):
    model = made().fit(data())
    model.save(tmp_path / "model.nbmf")
    same = nbmf.load(tmp_path / "model.nbmf")
    assert same.likelihood == model.likelihood
    np.testing.assert_array_equal(same.recommend(n=5).scores, model.recommend(n=5).scores)
    np.testing.assert_array_equal(
        same.add_users(new_user()).predict("new", "item 5"), model.add_users(new_user()).predict("new", "item 5")
    )
    made(max_iter=20).fit(data(), checkpoint=tmp_path / "half")
    resumed = made().fit(data(), resume=tmp_path / "half")
    np.testing.assert_array_equal(resumed.user_factors_, made().fit(data()).user_factors_)


def new_user():
    return nbmf.Interactions.from_arrays(["new", "new"], ["item 1", "item 2"], [2, 1])


def test_a_backend_without_a_kernel_for_it_says_so():
    with pytest.raises(ValueError, match=r"'inflated_poisson'.*backend='reference'"):
        made().set_params(backend="cpu").fit(data())


def test_a_likelihood_without_a_kind_of_its_own_is_refused():
    with pytest.raises(TypeError, match="Nameless needs a `kind` of its own"):

        class Nameless(ZeroInflatedPoisson):
            pass

    assert KINDS["inflated_poisson"] is ZeroInflatedPoisson


def test_a_forged_likelihood_is_refused(tmp_path):
    made(max_iter=2).fit(data()).save(tmp_path / "model.nbmf")
    found = container.read(tmp_path / "model.nbmf")
    for parameters in ({"probability": "much"}, {"other": 0.5}, None):
        forged = found.document["settings"] | {
            "likelihood": {"likelihood": "inflated_poisson", "parameters": parameters}
        }
        container.write(tmp_path / "forged", found.document | {"settings": forged}, found.arrays)
        with pytest.raises(container.StorageError, match=r"settings\.likelihood"):
            nbmf.load(tmp_path / "forged")
