"""The settings of models on the command line: typed, found by a search, and fitted again."""

import json
import re
import shlex
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import nbmf
from helpers import interrupted_at, typed, write_rows
from nbmf.cli import main
from nbmf.cli.options import COMPARED, FITTED, as_typed, make_model
from nbmf.evaluation.experiments.tuned import TunedComparison
from nbmf.web.criticism import why_no_intervals
from nbmf.web.views import Views
from small_study import make_quick

QUICK = ["-k", "3", "--max-iter", "5"]


@pytest.mark.parametrize(
    ("options", "model"),
    [
        (["--user-shape", "0.3", "--item-shape", "0.5"], nbmf.NBMF(3, user_shape=0.3, item_shape=0.5, max_iter=5)),
        (["--rates", "per_row", "--accelerate"], nbmf.NBMF(3, rates="per_row", accelerate=True, max_iter=5)),
        (["--inference", "mm", "--threads", "1"], nbmf.NBMF(3, inference="mm", n_threads=1, max_iter=5)),
        (["--input", "log1p"], nbmf.NBMF(3, input="log1p", max_iter=5)),
        (["--model", "poisson", "--item-shape", "2"], nbmf.PoissonMF(3, item_shape=2.0, max_iter=5)),
        (["--model", "averaged"], nbmf.Averaged(nbmf.NBMF(3, max_iter=5))),
        (
            ["--concentration", "learn", "--exposure", "tied"],
            nbmf.NBMF(3, concentration="learn", exposure="tied", max_iter=5),
        ),
        (["--model", "compound"], nbmf.CompoundMF(3, max_iter=5)),
        (
            ["--model", "compound", "--jumps", "geometric", "--jump", "0.3"],
            nbmf.CompoundMF(3, jumps="geometric", jump=0.3, max_iter=5),
        ),
        (
            ["--model", "compound-geometric", "--jump", "learn"],
            nbmf.CompoundMF(3, jumps="geometric", jump="learn", max_iter=5),
        ),
        (
            ["--model", "zero-inflated", "--probability", "learn_per_user"],
            nbmf.ZeroInflatedMF(3, probability="learn_per_user", max_iter=5),
        ),
        (["--model", "robust", "--penalty", "2"], nbmf.RobustMF(3, penalty=2.0, max_iter=5)),
        (["--model", "bernoulli"], nbmf.BinaryMF(3, max_iter=5)),
        (
            ["--model", "nbfism", "--joint-starts", "2", "--penalty", "3", "--input", "binary", "--target", "counts"],
            nbmf.NBFISM(3, n_starts=2, penalty=3.0, input="binary", target="counts", max_iter=5),
        ),
        (
            ["--model", "nbfism", "--likelihood", "negative_binomial", "--concentration", "2"],
            nbmf.NBFISM(3, likelihood="negative_binomial", concentration=2.0, max_iter=5),
        ),
    ],
)
def test_fit_has_the_settings_of_the_estimators(plays, tmp_path, options, model):
    typed("fit", plays, "-o", tmp_path / "typed.nbmf", *QUICK, *options)
    verbose = "estimator__verbose" if isinstance(model, nbmf.Averaged) else "verbose"
    same = clone(model).set_params(random_state=0, **{verbose: True})
    same.fit(nbmf.read_interactions(plays)).save(tmp_path / "same.nbmf")
    assert (tmp_path / "typed.nbmf").read_bytes() == (tmp_path / "same.nbmf").read_bytes()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--jump", "1.5"], "1.5 is not in the range 0<x<1; or give learn, learn_per_item"),
        (["--jump", "learned"], "'learned' is not a valid float range; or give learn, learn_per_item"),
        (["--probability", "0"], "0.0 is not in the range 0<x<1; or give learn, learn_per_user, learn_per_item"),
        (["--concentration", "-1"], "-1.0 is not in the range x>0; or give learn"),
    ],
)
def test_what_is_neither_a_number_nor_a_word_is_named(plays, tmp_path, options, sentence):
    assert sentence in typed("fit", plays, "-o", tmp_path / "m", *options, code=2).stderr


def test_nbslim_has_settings_of_its_own(plays, tmp_path):
    options = ["--penalty", "5", "--input", "binary", "--target", "counts", "--tol", "1", "--max-iter", "7"]
    typed("fit", plays, "-o", tmp_path / "typed", "--model", "nbslim", *options, "--no-accelerate", "--quiet")
    own = {"penalty": 5.0, "input": "binary", "target": "counts", "tol": 1.0, "max_iter": 7, "accelerate": False}
    nbmf.NBSLIM(**own).fit(nbmf.read_interactions(plays)).save(tmp_path / "same")
    assert (tmp_path / "typed").read_bytes() == (tmp_path / "same").read_bytes()


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("nbslim", ["--user-shape", "1"]),
        ("nbslim", ["--seed", "1"]),
        ("averaged", ["--checkpoint", "c"]),
        ("blend", ["--checkpoint", "c"]),
        ("blend", ["--user-shape", "1"]),
        ("nbfism", ["--accelerate"]),
        ("nbmf", ["--joint-starts", "2"]),
        ("nbslim", ["--likelihood", "poisson"]),
        ("binary", ["--concentration", "2"]),
        ("nbmf", ["--penalty", "2"]),
        ("compound-geometric", ["--jumps", "logarithmic"]),
        ("compound", ["--input", "log1p"]),
        ("robust", ["--probability", "0.5"]),
        ("bernoulli", ["--exposure", "exact"]),
    ],
)
def test_what_a_model_does_not_have_is_refused(plays, tmp_path, model, option):
    refused = typed("fit", plays, "-o", tmp_path / "m", "--model", model, *option, code=2)
    assert "Interactions(" not in refused.stderr  # nothing was read
    assert f"{option[0]} is not a setting of the model {model}; leave it out" in refused.stderr


@pytest.mark.parametrize("name", [name for name in FITTED if name in COMPARED])
def test_whatever_a_search_finds_can_be_typed(name):
    """Each trial of `compare --tune`, typed as options of `nbmf fit`, is the model of that trial."""
    for found in TunedComparison((name,), n_trials=5).settings_of(name):
        words = ["DATA", "-o", "MODEL", *shlex.split(as_typed(name, found))]
        settings = main.commands["fit"].make_context("fit", words).params
        model = make_model(settings["model"], settings)
        model = model.estimator if name == "averaged" else model.models[1] if name == "blend" else model
        assert {key: model.get_params()[key] for key in found} == found


def test_quiet_writes_nothing_but_the_model(plays, tmp_path):
    told = typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--tol", 0, "--quiet")
    assert told.output == ""
    assert nbmf.load(tmp_path / "m").n_iter_ == 5
    answer = typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--tol", 0, "--quiet", "--json")
    assert json.loads(answer.stdout)["sweeps"] == 5
    assert answer.stderr == ""


def test_defaults_that_options_state_are_those_of_the_estimators():
    """Of nbfism, whose settings have other defaults than those of nbmf."""
    told = " ".join(typed("fit", "--help").stdout.split())
    own = nbmf.NBFISM()
    stated = {"components": f"or {own.n_components} for nbfism", "penalty": f"{own.penalty:g} for nbfism"}
    stated |= {
        "max_iter": f"{own.max_iter} for nbfism",
        "tol": "2e-4 for nbfism",
        "n_starts": f"[default: ({own.n_starts})",
        "likelihood": f"[default: ({own.likelihood})",
    }
    assert own.tol == 2e-4
    assert all(words in told for words in stated.values()), stated


def test_large_counts_are_an_encoders_targets(tmp_path):
    """An unfinished fit of them says which option to type."""
    rows = [(f"u{n % 9}", f"i{n % 7}", 5000 + n) for n in range(60)]
    path = write_rows(tmp_path / "large.csv", rows, ["user", "item", "count"])
    options = ["--model", "nbfism", "-k", 2, "--target", "counts", "--max-iter", 2, "--tol", 1e-12]
    told = typed("fit", path, "-o", tmp_path / "m", *options, "--quiet").stderr
    assert "try --max-iter 4; counts are large: try --target log1p or --model nbslim" in told


def test_an_encoder_resumes_from_its_checkpoint(plays, tmp_path):
    options = ["--model", "nbfism", "-k", 3, "--joint-starts", 2, "--tol", 0, "--quiet"]
    resumable = ["--checkpoint", tmp_path / "c", "--checkpoint-every", 2]
    typed("fit", plays, "-o", tmp_path / "whole", *options, "--max-iter", 9)
    typed("fit", plays, "-o", tmp_path / "part", *options, "--max-iter", 5, *resumable)
    typed("fit", plays, "-o", tmp_path / "part", *options, "--max-iter", 9, *resumable, "--resume")
    assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()


# ---- what a fit warns of --------------------------------------------------------------------------------------------


def test_an_unfinished_fit_says_what_to_type(plays, tmp_path):
    told = typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--json")
    facts = json.loads(told.stdout)
    assert (facts["converged"], facts["ending"]) == (False, "max_iter")
    (note,) = [line for line in told.stderr.splitlines() if line.startswith("note: ")]
    assert "--max-iter" in note
    assert "--accelerate" in note
    finished = typed("fit", plays, "-o", tmp_path / "m", "-k", 3, "--max-iter", 9999, "--json")
    assert json.loads(finished.stdout)["converged"]
    assert "note:" not in finished.stderr


def test_warnings_are_lines_without_a_place_in_the_code(plays, tmp_path, monkeypatch):
    fit = nbmf.NBMF.fit

    def warned(self, X, **control):
        for category in (UserWarning, ConvergenceWarning):
            warnings.warn("try accelerate=True, max_iter=2000 or input='log1p'", category, stacklevel=1)
        return fit(self, X, **control)

    monkeypatch.setattr(nbmf.NBMF, "fit", warned)
    told = typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--tol", 0, "--quiet")
    assert told.stderr == "note: try --accelerate, --max-iter 2000 or --input log1p\n"  # once


def test_paths_are_not_taken_for_settings(tmp_path):
    folder = tmp_path / "time=2024-01-01" / "max_iter_500" / "max_iter=5"
    folder.mkdir(parents=True)
    path = folder / "count=1 plays.csv"
    path.write_text("user,item,count\nann,jazz,-1\n")
    refused = typed("fit", path, "-o", tmp_path / "m", code=2).stderr
    assert f"{path}, line 2: " in refused
    assert refused.rstrip().endswith("--bad-rows skip leaves such rows out")


def test_notes_have_the_number_of_sweeps_of_the_library(plays, tmp_path, monkeypatch):
    def warned(*_, **__):
        warnings.warn(
            "not converged after max_iter=5000 sweeps; raise max_iter, or set accelerate=True and max_iter=10000",
            stacklevel=1,
        )
        raise ValueError("enough")

    monkeypatch.setattr(nbmf.NBMF, "fit", warned)
    told = typed("fit", plays, "-o", tmp_path / "m", "--quiet", code=2).stderr
    note = "not converged after 5000 sweeps; raise --max-iter, or set --accelerate and --max-iter 10000"
    assert f"note: {note}\n" in told


@pytest.mark.parametrize(
    ("models", "remedy"),
    [
        ("nbmf,popularity", "--input log1p or --models nbmf,popularity,compound,nbslim"),
        ("nbmf,compound,nbslim", "--input log1p"),
    ],
)
def test_notes_of_compare_name_its_own_option(plays, monkeypatch, models, remedy):
    def warned(*_, **__):
        warnings.warn("the counts are too large; try CompoundMF, input='log1p' or NBSLIM", stacklevel=1)
        raise ValueError("enough")

    monkeypatch.setattr(nbmf.NBMF, "fit", warned)
    told = typed("compare", plays, "--models", models, code=2).stderr
    assert f"note: the counts are too large; try {remedy}\n" in told


@pytest.mark.parametrize("command", ["fit", "evaluate", "compare", "tune", "explore"])
def test_values_are_refused_before_the_data_is_read(tmp_path, command):
    options = ["-o", tmp_path / "m"] if command == "fit" else []
    models = ["--models" if command == "compare" else "--model", "robust"]
    told = typed(command, tmp_path / "nothing.csv", *options, *models, "--penalty", 0, code=2)
    assert "penalty is 0.0; it must be a positive number" in told.stderr


# ---- compare --------------------------------------------------------------------------------------------------------


def test_compare_has_nbslim_by_default(plays):
    answer = json.loads(typed("compare", plays, *QUICK, "--json").stdout)
    assert {row["name"] for row in answer["models"]} == {"nbmf", "poisson", "binary", "nbslim", "popularity"}


def test_compare_writes_the_best_model(plays, tmp_path, monkeypatch):
    make_quick(monkeypatch)
    best, again = tmp_path / "best.nbmf", tmp_path / "again.nbmf"
    told = typed("compare", plays, *QUICK, "--models", "poisson,ease", "--tune", 2, "-o", best)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    found = json.loads(typed("compare", plays, *QUICK, "--models", "poisson,ease", "--tune", 2, "--json").stdout)
    (row,) = [row for row in found["models"] if row["name"] == "poisson"]
    model = nbmf.PoissonMF(**row["settings"], random_state=0, verbose=True).fit(train)
    model.save(again)
    assert best.read_bytes() == again.read_bytes()
    assert nbmf.evaluate(nbmf.load(best), train, test)["ndcg_counts"].mean == pytest.approx(row["mean"])
    assert as_typed("poisson", row["settings"]) in told.stdout
    assert "penalty=" in told.stdout  # ease, which `nbmf fit` does not have


def test_compare_does_not_write_what_it_cannot(plays, tmp_path):
    refused = typed("compare", plays, "--models", "ease,popularity", "-o", tmp_path / "m", code=2)
    assert "-o needs one of nbmf, poisson, binary, nbslim, compound, " in refused.stderr
    data = tmp_path / "plays.csv"
    data.write_bytes(plays.read_bytes())
    assert "name another file" in typed("compare", data, *QUICK, "-o", data, code=2).stderr
    assert data.read_bytes() == plays.read_bytes()


@pytest.mark.parametrize(("models", "own"), [("poisson,nbslim", (100, 5.0)), ("nbslim,popularity", (7, 0.5))])
def test_sweeps_and_gains_of_other_models_are_not_those_of_nbslim(plays, monkeypatch, models, own):
    """A tol of 1e-5 is a fraction for the others, and next to nothing in units of log-likelihood."""
    fit, seen = nbmf.NBSLIM.fit, []
    monkeypatch.setattr(nbmf.NBSLIM, "fit", lambda self, X: seen.append((self.max_iter, self.tol)) or fit(self, X))
    typed("compare", plays, "--models", models, "--max-iter", 7, "--tol", 0.5)
    assert seen == [own]


def test_a_quiet_comparison_prints_the_table_alone(plays):
    told = typed("compare", plays, *QUICK, "--tol", 0, "--models", "poisson,ease", "--quiet")
    assert told.stderr == ""
    assert "ease" in told.stdout


def test_evaluate_has_the_average(plays):
    found = json.loads(typed("evaluate", plays, *QUICK, "--model", "averaged", "--quiet", "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    model = nbmf.Averaged(nbmf.NBMF(3, max_iter=5), random_state=0).fit(train)
    assert found["model"] == "Averaged"
    expected = nbmf.evaluate(model, train, test)["ndcg_counts"].mean
    assert {row["metric"]: row["mean"] for row in found["metrics"]}["ndcg_counts"] == expected


def test_a_blend_is_fitted_and_asked_like_any_model(plays, tmp_path):
    """The settings typed are those of its factors; its file works where any does."""
    path, options = tmp_path / "typed", [*QUICK, "--threads", 1, "--quiet"]
    facts = json.loads(typed("fit", plays, "-o", path, "--model", "blend", *options, "--json").stdout)
    assert (facts["model"], facts["objective"], facts["components"]) == ("Blend", None, None)
    factors = nbmf.NBFISM(3, max_iter=5, n_threads=1, random_state=0)
    same = nbmf.Blend([nbmf.NBSLIM(n_threads=1), factors], random_state=0).fit(nbmf.read_interactions(plays))
    found = nbmf.load(path)
    assert [each["model"] for each in facts["weights"]] == ["NBSLIM", "NBFISM"]
    np.testing.assert_array_equal([each["weight"] for each in facts["weights"]], same.weights_)
    np.testing.assert_array_equal(found.weights_, same.weights_)
    np.testing.assert_array_equal(found.recommend(n=3).scores, same.recommend(n=3).scores)
    shown = typed("fit", plays, "-o", path, "--model", "blend", *QUICK).stdout
    assert re.search(r"^weights +NBSLIM [\d.]+, NBFISM [\d.]+$", shown, re.MULTILINE)
    refused = typed("fit", plays, "-o", path, "--model", "blend", *QUICK, "--concentration", 2, code=2)
    assert "give --likelihood negative_binomial too" in refused.stderr
    card = Views(found, "0").card()
    assert (card["weights"], card["fit"]["sweeps"]) == (same.weights_.tolist(), same.n_iter_)
    assert "as its scores are of several models" in why_no_intervals(found)
    best = typed("recommend", path, "--user", found.users_[0], "--json").stdout
    assert json.loads(best)[0]["items"][0]["item"] == found.recommend(found.users_[0], n=1).items[0, 0]
    assert "Scores, largest first" in typed("recommend", path, "--user", found.users_[0]).stdout
    shown = json.loads(typed("evaluate", plays, *options, "--model", "blend", "--json").stdout)
    assert shown["model"] == "Blend"
    assert shown["check"] is None


def test_slow_models_say_that_they_are_fitted(plays):
    told = typed("compare", plays, "--models", "popularity,ease").stderr
    assert told.index("EASE: fitting …") < told.index("EASE: fitted in")


LIKELY = {"nbmf", "poisson", "compound", "compound-geometric", "zero-inflated", "averaged"}


@pytest.mark.parametrize("more", [[], ["--tune", "1"]], ids=["here", "in processes"])
def test_compare_has_log_likelihoods_where_models_have_one(plays, more):
    models = "nbmf,poisson,compound,binary,robust,bernoulli,popularity"
    found = json.loads(typed("compare", plays, *QUICK, "--models", models, *more, "--json").stdout)["models"]
    likely = {row["name"]: row["log_likelihood"] for row in found}
    assert {name for name, value in likely.items() if value is not None} == set(models.split(",")) & LIKELY
    train, test = nbmf.read_interactions(plays).split(seed=0)
    model = nbmf.CompoundMF(3, max_iter=5, random_state=0).fit(train)
    assert likely["compound"] == pytest.approx(nbmf.evaluation.log_likelihood(model, train, test).mean, rel=1e-6)


def test_compare_takes_all_that_is_installed(plays, monkeypatch):
    monkeypatch.setattr("nbmf.evaluation.experiments.baselines.find_spec", lambda name: None)
    told = typed("compare", plays, *QUICK, "--models", "all", "--quiet")
    rows = {line.split()[0]: line for line in told.stdout.splitlines()[2:]}
    assert set(rows) == {*FITTED, "popularity", "ease", "edlae", "kl-nmf"}
    assert "the model als needs the package implicit" in told.stderr
    assert "log-likelihood" in told.stdout


# ---- choose ---------------------------------------------------------------------------------------------------------


def test_choose_is_choose(plays, tmp_path):
    options = ["-k", "2", "--models", "poisson,nbmf,robust", "--seed", 3]
    answer = typed("choose", plays, *options, "--json")
    found = json.loads(answer.stdout)
    expected = nbmf.choose(
        nbmf.read_interactions(plays), ["PoissonMF", "NBMF", "RobustMF"], n_components=2, random_state=3
    )
    assert found["reason"] == expected.reason
    assert [row["log_likelihood"] for row in found["models"]][:2] == [c.log_likelihood for c in expected][:2]
    assert found["models"][-1]["log_likelihood"] is None
    assert "3 of 3 models" in answer.stderr
    table = typed("choose", plays, *options, "--quiet")
    assert table.stderr == ""
    *_, reason, command = table.stdout.splitlines()
    assert reason == expected.reason
    assert command == f"nbmf fit DATA -o MODEL {found['options']}"
    words = ["DATA", "-o", "MODEL", *shlex.split(found["options"])]
    settings = main.commands["fit"].make_context("fit", words).params
    typed_model = make_model(settings["model"], settings).set_params(random_state=None, verbose=False)
    assert repr(typed_model) == repr(expected.best)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--models", "nbmf,nbslim"], "'nbslim' is not one of poisson, nbmf, compound"),
        (["-k", "3,x"], "'3,x' is neither a whole number from 1 nor several"),
        (["-k", "0"], "'0' is neither a whole number from 1"),
        (["--models", "nbmf,nbmf"], "give each model once: 'nbmf' appears twice"),
    ],
)
def test_a_bad_choice_is_named(plays, options, sentence):
    assert sentence in typed("choose", plays, *options, code=2).stderr


# ---- tune -----------------------------------------------------------------------------------------------------------


def test_tune_is_tune(plays, tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: extra tune")
    options = ["-k", 3, "--seed", 4, "--trials", 3, "--study", tmp_path / "trials"]
    answer = typed("tune", plays, *options, "--json", "-o", tmp_path / "m")
    data = nbmf.read_interactions(plays)
    expected = nbmf.tune(data, n_trials=3, seed=4, settings={"n_components": 3})
    found = json.loads(answer.stdout)
    assert found["settings"] == expected.best
    assert found["value"] == expected.value
    assert found["trials"] == expected.trials
    assert "3 of 3 trials" in answer.stderr
    nbmf.NBMF(**expected.best, verbose=True).fit(data).save(tmp_path / "same")
    assert (tmp_path / "m").read_bytes() == (tmp_path / "same").read_bytes()
    again = typed("tune", plays, *options)
    assert "of 3 trials" not in again.stderr  # nothing was tried again
    assert f"nbmf fit DATA -o MODEL {as_typed('nbmf', expected.best)}\n" in again.stdout
    assert f"{expected.value:.4g}" in again.stdout


@pytest.mark.parametrize("model", ["nbslim", "binary", "compound-geometric", "robust", "nbfism"])
def test_tune_has_every_model(plays, model):
    pytest.importorskip("optuna", reason="optuna is not installed: extra tune")
    found = json.loads(typed("tune", plays, "--model", model, "--trials", 2, "--quiet", "--json").stdout)
    assert found["value"] == max(trial["value"] for trial in found["trials"])
    assert ("penalty" in found["settings"]) == (model in ("nbslim", "robust", "nbfism"))
    assert ("jumps" in found["settings"]) == (model == "compound-geometric")


def test_ctrl_c_ends_a_search(plays, tmp_path, monkeypatch):
    pytest.importorskip("optuna", reason="optuna is not installed: extra tune")
    interrupted_at(2, monkeypatch)
    told = typed("tune", plays, *QUICK, "--trials", 3, "-o", tmp_path / "m", code=130)
    assert "trials" not in told.output
    assert "Traceback" not in told.output
    assert not (tmp_path / "m").exists()
    told = typed("tune", plays, *QUICK, "--study", tmp_path / "trials", code=130)
    assert "finished trials are kept in" in told.stderr


def test_workers_do_not_warn(plays):
    """Of a search, the best number of sweeps is among what is found; rows say whether a fit converged."""
    command = [sys.executable, "-m", "nbmf", "compare", plays, *QUICK, "--models", "poisson", "--tune", "1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "2 of 2 fits" in told.stderr
    assert "Warning" not in told.stderr
    assert "not converged" not in told.stderr
