"""Tuning: what it returns is what was best, a search goes on where it stopped, and its picture is there."""

import pytest

import nbmf

pytest.importorskip("optuna", reason="the extra `tune` is not installed")


@pytest.fixture(scope="module")
def data():
    return nbmf.datasets.simulate(80, 50, n_components=3, mean_count=0.5, seed=1)


def search(data, **settings):
    return nbmf.tune(data, **{"components": (2, 8), "settings": {"max_iter": 30}, **settings})


def test_the_best_is_the_best_and_can_be_refitted(data):
    found = search(data, n_trials=4)
    assert found.value == max(trial["value"] for trial in found.trials)
    best = next(trial for trial in found.trials if trial["value"] == found.value)
    assert {name: found.best[name] for name in ("n_components", "concentration")} == {
        name: best[name] for name in ("n_components", "concentration")
    }
    train, valid = data.split(0.2, seed=0)
    model = nbmf.NBMF(**found.best).fit(train)
    assert nbmf.evaluate(model, train, valid, n_boot=1)["ndcg_counts"].mean == pytest.approx(found.value, abs=1e-9)


def test_a_search_goes_on_where_it_stopped(data, tmp_path):
    journal = tmp_path / "search.log"
    first = search(data, n_trials=2, study=journal)
    reported = []
    second = search(data, n_trials=3, study=journal, report=lambda *row: reported.append(row))
    assert second.trials[:2] == first.trials
    assert [(n, total) for n, total, _ in reported] == [(3, 3)]
    with pytest.raises(ValueError, match="other data"):
        search(data.binarize(), n_trials=3, study=journal)


def test_settings_given_are_not_searched(data):
    found = search(data, n_trials=2, estimator=nbmf.PoissonMF, settings={"n_components": 3, "max_iter": 5})
    assert all("concentration" not in trial and trial["sweeps"] <= 5 for trial in found.trials)
    assert found.best["n_components"] == 3


def test_item_weights_are_tuned(data):
    found = nbmf.tune(data, estimator=nbmf.NBSLIM, n_trials=3, penalties=(1.0, 50.0), settings={"tol": 1.0})
    assert {"penalty", "concentration"} <= found.best.keys()
    assert not {"max_iter", "random_state"} & found.best.keys()
    train, valid = data.split(0.2, seed=0)
    model = nbmf.NBSLIM(**found.best).fit(train)
    assert nbmf.evaluate(model, train, valid, n_boot=1)["ndcg_counts"].mean == pytest.approx(found.value, abs=1e-9)


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_an_encoder_is_tuned(data, likelihood):
    """By the ranking of all of its starts; the concentration only where there is one."""
    settings = {"max_iter": 30, "n_starts": 2, "likelihood": likelihood}
    found = search(data, n_trials=2, estimator=nbmf.NBFISM, components=(2, 6), settings=settings)
    assert {"n_components", "penalty"} <= found.best.keys()
    assert ("concentration" in found.best) == (likelihood == "negative_binomial")
    assert all(1 <= trial["penalty"] <= 100 for trial in found.trials)
    train, valid = data.split(0.2, seed=0)
    model = nbmf.NBFISM(**found.best).fit(train)
    assert nbmf.evaluate(model, train, valid, n_boot=1)["ndcg_counts"].mean == pytest.approx(found.value, abs=1e-6)


def test_an_encoder_of_logarithms_is_not_tuned_by_likelihood(data):
    with pytest.raises(ValueError, match="target is 'log1p', so test counts have no log-likelihood"):
        search(data, n_trials=1, estimator=nbmf.NBFISM, metric="log_likelihood")


@pytest.mark.parametrize("estimator", [nbmf.CompoundMF, nbmf.ZeroInflatedMF, nbmf.RobustMF, nbmf.BinaryMF])
def test_the_family_is_tuned(data, estimator):
    """By the ranking that the fitted model has, also where items differ in the size of their jumps."""
    found = search(data, n_trials=3, estimator=estimator)
    assert {"n_components", "user_shape", "item_shape"} <= found.best.keys()
    assert ("penalty" in found.best) == (estimator is nbmf.RobustMF)
    assert all(3 <= trial.get("penalty", 3) <= 300 for trial in found.trials)
    train, valid = data.split(0.2, seed=0)
    model = estimator(**found.best).fit(train)
    assert nbmf.evaluate(model, train, valid, n_boot=1)["ndcg_counts"].mean == pytest.approx(found.value, abs=1e-6)


def test_a_likelihood_that_is_not_normalized_is_not_tuned_by_it(data):
    with pytest.raises(ValueError, match="the probabilities of RobustMF do not sum to 1; tune it by another metric"):
        search(data, n_trials=1, estimator=nbmf.RobustMF, metric="log_likelihood")


def test_a_search_shows_its_progress(data, capsys):
    found = search(data, n_trials=2, verbose=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"tune NBMF: 2 of 2 trials, best ndcg_counts so far {found.value:.4f}")
    search(data, n_trials=1)
    assert capsys.readouterr().err == ""


def test_a_search_is_shown_by_its_best_settings(data):
    found = search(data, n_trials=2, metric="log_likelihood")
    lines = repr(found).splitlines()
    assert lines[0] == f"Tuning of NBMF: best log_likelihood {found.value:.4f} of 2 trials"
    assert [line.split()[0] for line in lines[2:]] == list(found.best)
    assert found._repr_html_().count("<td>") == 2 * len(found.best)
    assert len(found.to_pandas()) == 2


def test_an_instance_is_refused(data):
    with pytest.raises(TypeError, match=r"estimator is an instance; give the class, estimator=NBMF, and .* settings="):
        search(data, n_trials=1, estimator=nbmf.NBMF(3))


def test_the_picture_is_drawn(data, tmp_path, monkeypatch):
    figure, drawn = pytest.importorskip("matplotlib.figure").Figure, []
    save = figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *given, **how: drawn.append(self) or save(self, *given, **how))
    search(data, n_trials=3).plot(tmp_path / "tuning.png")
    assert all(tick.is_integer() for tick in drawn[0].axes[0].get_xticks().tolist())  # trials are counted
    assert (tmp_path / "tuning.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("settings", [{"n_trials": 0}, {"shapes": (2.0, 1.0)}, {"components": (0, 5)}])
def test_bad_searches_are_named(data, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        search(data, **settings)
