"""Models tuned and compared: trials that see no test count, runs that resume, the command."""

import json
import math
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import nbmf
from nbmf.cli import main
from nbmf.evaluation.experiments import engine
from nbmf.evaluation.experiments.alternatives import Popularity
from nbmf.evaluation.experiments.baselines import BASELINES, Baseline
from nbmf.evaluation.experiments.tuned import CUTOFFS, METRICS, TunedComparison, compare_tuned
from small_study import QUICK, in_this_process, make_quick, planted


@pytest.fixture(scope="module")
def parts():
    return planted()


@pytest.fixture
def one_process(monkeypatch):
    make_quick(monkeypatch)


@pytest.fixture(scope="module")
def ended(parts, tmp_path_factory):
    """Run a whole comparison, undisturbed."""
    with pytest.MonkeyPatch.context() as patched:
        make_quick(patched)
        return compare_tuned(*parts, QUICK, tmp_path_factory.mktemp("undisturbed"), n_workers=1)


def without_cost(result):
    return {name: replace(row, seconds=0.0, megabytes=0.0) for name, row in result.stored.items()}


def trials_of(result):
    return {name: row for name, row in without_cost(result).items() if "-trial-" in name}


def test_the_best_trial_is_judged(parts, ended):
    train, test = parts
    known, aside = train.split(0.2, seed=0)
    assert len(ended.stored) == 1 + 3 + 3 + 1 + 1 + 2
    trials = {}
    for n, settings in enumerate(QUICK.settings_of("ease")):
        result = nbmf.evaluate(BASELINES["ease"].fit(known, 0, 1, **settings), known, aside, at=CUTOFFS)
        row = ended.stored[f"ease-trial-{n}"]
        assert row.job.settings == settings
        assert row.means == {name: pytest.approx(metric.mean) for name, metric in result.items()}
        assert set(METRICS) == {name for name, metric in result.items() if metric.n_users}
        trials[n] = result["ndcg_counts"].mean
    assert ended.settings["ease"] == QUICK.settings_of("ease")[max(trials, key=trials.get)]
    result = nbmf.evaluate(BASELINES["ease"].fit(train, 0, 1, **ended.settings["ease"]), train, test)
    assert ended.level("ease", "recall_at_20").mean == pytest.approx(result["recall_at_20"].mean)
    starts = [BASELINES["poisson"].fit(train, seed, 1, **ended.settings["poisson"]) for seed in (0, 1)]
    expected = nbmf.compare(
        {
            "popularity": nbmf.evaluate(Popularity(train), train, test),
            "ease": result,
            "poisson": [nbmf.evaluate(model, train, test) for model in starts],
        }
    )
    for ours, theirs in zip(ended.board(), expected, strict=True):
        assert (ours.name, ours.n_starts) == (theirs.name, theirs.n_starts)
        assert (ours.mean, *ours.difference_interval) == pytest.approx((theirs.mean, *theirs.difference_interval))


def test_trials_are_given_the_training_counts_and_nothing_else(parts, tmp_path, one_process, monkeypatch):
    train, test = parts
    seen = []

    def watched(work, shared, jobs, n_workers, *, limit_s=None):
        seen.append((shared, [job.name.split("-")[1] for job in jobs]))
        return in_this_process(work, shared, jobs, n_workers)

    monkeypatch.setattr(engine, "attempt", watched)
    compare_tuned(train, test, QUICK, tmp_path, n_workers=1)
    (trials, stages), *finals = seen
    assert set(stages) == {"trial"}
    assert (trials.train.matrix + trials.test.matrix != train.matrix).nnz == 0
    assert all(stages == ["start"] and shared.test is test for shared, stages in finals)


@pytest.mark.filterwarnings("ignore:.* of pairs that were fitted")
def test_other_test_counts_change_no_trial(parts, ended, tmp_path, one_process):
    train, test = parts
    poisoned = replace(test, matrix=sp.csr_array(test.matrix[:, ::-1] * 7))
    other = compare_tuned(train, poisoned, QUICK, tmp_path, n_workers=1)
    assert trials_of(ended) == trials_of(other)
    assert other.level("ease").mean != ended.level("ease").mean


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})

def report(event):
    if event.n_done == {after}:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from small_study import QUICK, in_this_process, planted
    from nbmf.evaluation.experiments import engine, tuned
    engine.attempt = in_this_process
    tuned.compare_tuned(*planted(), QUICK, {folder!r}, n_workers=1, report=report)
"""


@pytest.mark.parametrize("after", [0, 4, 9, 11])
def test_a_comparison_that_was_killed_resumes_where_it_stopped(parts, ended, tmp_path, one_process, after):
    script, folder = tmp_path / "killed.py", tmp_path / "folder"
    if after == 9:  # once in earnest; the others from what it would have left
        script.write_text(KILLED.format(tests=str(Path(__file__).parents[2]), folder=str(folder), after=after))
        killed = subprocess.run([sys.executable, script], check=False, timeout=300)
        assert killed.returncode == -signal.SIGKILL
    else:
        shutil.copytree(ended.store.folder, folder)
        with closing(sqlite3.connect(folder / "results.sqlite")) as database, database:
            database.execute("DELETE FROM results WHERE rowid > ?", [after])
    events = []
    resumed = compare_tuned(*parts, QUICK, folder, n_workers=1, report=events.append)
    assert sum(event.row is not None for event in events) == len(ended.stored) - after
    assert events[-1].n_done == events[-1].n_jobs == len(ended.stored)
    assert without_cost(resumed) == without_cost(ended)
    assert resumed.settings == ended.settings
    assert repr(resumed.board()) == repr(ended.board())


def test_models_trials_and_starts_can_be_added(parts, ended, tmp_path, one_process):
    folder = shutil.copytree(ended.store.folder, tmp_path / "copy")
    events = []
    more = replace(QUICK, models=("ease", "poisson", "binary"), n_trials=4, n_starts=3)
    grown = compare_tuned(*parts, more, folder, n_workers=1, report=events.append)
    made = [event.row.job.name for event in events if event.row is not None]
    assert {name for name in made if "-trial-" in name and "binary" not in name} == {"ease-trial-3", "poisson-trial-3"}
    for model in ("ease", "poisson"):  # a start is made again where another trial is the best now
        again = [name for name in made if name.startswith(f"{model}-start-")]
        wanted, had = (len(plan.starts_of(model, {})) for plan in (more, QUICK))
        same = grown.settings[model] == ended.settings[model]
        assert len(again) == (wanted - had if same else wanted)
    assert all(row.job.settings == grown.settings[model] for model, rows in grown.rows.items() for row in rows)


def odd_fit(train, seed, n_threads, *, penalty):
    if penalty > 1:
        raise ValueError("a penalty\nabove 1")
    return Popularity(train)


def test_a_fit_that_fails_is_a_row(parts, tmp_path, one_process, monkeypatch):
    monkeypatch.setitem(BASELINES, "odd", Baseline("odd", odd_fit, {"penalty": 9.0}, {"penalty": (0.1, 10.0)}))
    monkeypatch.setitem(BASELINES, "hopeless", Baseline("hopeless", odd_fit, {"penalty": 2.0}, {}))
    plan = TunedComparison(("odd", "hopeless"), n_trials=6, n_starts=1)
    result = compare_tuned(*parts, plan, tmp_path, n_workers=1)
    for row in result.trials("odd"):
        assert row.problem == ("ValueError: a penalty above 1" if row.job.settings["penalty"] > 1 else "")
        assert math.isnan(row.seconds) == (not row.means) == bool(row.problem)
    assert result.stored["odd-trial-0"].problem
    assert result.settings["odd"]["penalty"] <= 1
    assert result.problems() == {"hopeless": "ValueError: a penalty above 1"}
    assert list(result.rows) == ["odd"]
    with pytest.raises(ValueError, match=r"no model could be fitted. hopeless: ValueError: a penalty above 1"):
        compare_tuned(*parts, replace(plan, models=("hopeless",)), tmp_path, n_workers=1)


def test_models_of_several_parts_are_compared_like_any(parts, tmp_path, one_process):
    """A blend has no objective, and neither it nor an encoder of logarithms has a likelihood of counts."""
    small = {"n_components": 3}
    models = ("popularity", "averaged", "nbfism", "blend")
    plan = TunedComparison(models, 1, 1, defaults=dict.fromkeys(models[1:], small))
    result = compare_tuned(*parts, plan, tmp_path, n_workers=1)
    assert result.problems() == {}
    assert set(result.rows) == set(models)
    (popularity,), (encoder,), (blend,) = (result.rows[model] for model in ("popularity", "nbfism", "blend"))
    assert blend.convergence["objective"] is None
    assert encoder.convergence["objective"] < 0
    assert min(blend.means["ndcg_counts"], encoder.means["ndcg_counts"]) > popularity.means["ndcg_counts"]
    assert all(math.isnan(row.log_likelihood) for row in (blend, encoder))


def test_comparisons_that_cannot_be_run_are_refused():
    for settings, message in (
        ({"models": ()}, "at least one"),
        ({"models": ("ease", "ease")}, "each once"),
        ({"models": ("svd",)}, "there is no model 'svd'"),
        ({"n_starts": 0}, "0 starts"),
        ({"goal": "auc"}, "the goal is 'auc'"),
    ):
        with pytest.raises(ValueError, match=message):
            TunedComparison(**{"models": ("ease",), **settings})


def test_a_comparison_in_processes_of_its_own_is_the_same(parts, ended, tmp_path):
    """Those of trials and of final fits: seconds and, where the system tells them, megabytes are of the latter."""
    plan = replace(QUICK, models=("ease",), n_trials=1)
    result = compare_tuned(*parts, plan, tmp_path, n_workers=1)
    assert result.trials("ease")[0].means == pytest.approx(ended.trials("ease")[0].means)
    (row,) = result.rows["ease"]
    assert row.seconds > 0
    assert not row.megabytes < 0
    assert all(math.isnan(trial.megabytes) for trial in result.trials("ease"))


# the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "plays.csv"
    train, test = planted()
    cells = (train.matrix + test.matrix).tocoo()
    lines = [f"u{u},i{i},{y}" for u, i, y in zip(*cells.coords, cells.data, strict=True)]
    path.write_text("\n".join(["user,item,count", *lines]) + "\n")
    return path


def typed(*arguments, code=0):
    result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_compare_takes_any_of_the_models(plays):
    answer = json.loads(typed(plays, "--models", "popularity,ease,nbslim", "--metric", "recall_at_10", "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    expected = {
        name: nbmf.evaluate(BASELINES[name].fit(train, 0, 1, **BASELINES[name].defaults), train, test)[
            "recall_at_10"
        ].mean
        for name in ("popularity", "ease", "nbslim")
    }
    assert {row["name"]: row["mean"] for row in answer["models"]} == pytest.approx(expected, rel=1e-6)
    assert all(row["seconds"] >= 0 for row in answer["models"])


def test_compare_tunes_and_resumes(plays, tmp_path, one_process):
    folder = tmp_path / "fits"
    arguments = [plays, "--models", "popularity,ease", "--tune", 3, "--folder", folder]
    answer = json.loads(typed(*arguments, "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    result = compare_tuned(train, test, TunedComparison(("popularity", "ease"), 3, 1, limit_s=None), tmp_path / "same")
    assert {row["name"]: row["settings"] for row in answer["models"]} == result.settings
    means = {name: result.level(name).mean for name in result.rows}
    assert {row["name"]: row["mean"] for row in answer["models"]} == pytest.approx(means)
    before = (folder / "results.sqlite").read_bytes()
    table = typed(*arguments)
    assert (folder / "results.sqlite").read_bytes() == before  # nothing was made again
    assert "penalty=" in table.stdout
    assert "seconds" in table.stdout
    other = typed(*arguments, "--seed", 5, code=2)
    assert "holds another experiment" in other.stderr


def test_compare_tunes_from_what_was_typed(plays, one_process):
    options = ["-k", 3, "--max-iter", 7, "--tol", 0, "--concentration", 2, "--tune", 1, "--json"]
    answer = json.loads(typed(plays, "--models", "nbmf", *options).stdout)
    settings = answer["models"][0]["settings"]
    assert [settings[name] for name in ("n_components", "max_iter", "tol", "concentration")] == [3, 7, 0, 2]
