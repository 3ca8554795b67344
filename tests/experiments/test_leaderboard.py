"""Models compared: trials that see no test count, rows that last, tables, a picture, the command."""

import importlib.util
import json
import math
import operator
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import helpers
import nbmf
from nbmf.evaluation import Comparison
from nbmf.evaluation.compare import Contender
from nbmf.experiments import contest as contests
from nbmf.experiments.contest import METRICS, Contest, Fit, NothingFoundError, run_contest
from nbmf.experiments.leaderboard import picture, quality_table, settings_table
from nbmf.experiments.rivals import RIVALS, Popularity, Rival
from nbmf.experiments.search import Between
from nbmf.experiments.workers import LostWorkerError, OvertimeError, attempt
from small_contest import QUICK, in_this_process, make_quick, planted


@pytest.fixture(scope="module")
def parts():
    return planted()


@pytest.fixture
def one_process(monkeypatch):
    make_quick(monkeypatch)


# a contest -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(parts, tmp_path_factory):
    """Run a whole contest, undisturbed."""
    with pytest.MonkeyPatch.context() as patched:
        make_quick(patched)
        return run_contest(*parts, QUICK, tmp_path_factory.mktemp("undisturbed"), n_workers=1)


def without_cost(standing):
    return {job: replace(row, seconds=0.0, megabytes=0.0) for job, row in standing.rows.items()}


def test_the_best_trial_is_judged(parts, ended):
    train, test = parts
    known, aside = train.split(0.2, seed=0)
    assert len(ended.rows) == 1 + 3 + 3 + 1 + 1 + 2
    trials = {}
    for n, settings in enumerate(QUICK.trials_of("ease")):
        result = nbmf.evaluate(RIVALS["ease"].fit(known, 0, 1, **settings), known, aside)
        row = ended.rows[Fit("ease", "trial", n)]
        assert row.settings == settings
        assert row.means == {name: pytest.approx(result[name].mean) for name in METRICS}
        trials[n] = result["ndcg_counts"].mean
    assert ended.settings["ease"] == QUICK.trials_of("ease")[max(trials, key=trials.get)]
    result = nbmf.evaluate(RIVALS["ease"].fit(train, 0, 1, **ended.settings["ease"]), train, test)
    assert ended.mean("ease", "recall_at_20") == pytest.approx(result["recall_at_20"].mean)
    starts = [RIVALS["poisson"].fit(train, seed, 1, **ended.settings["poisson"]) for seed in (0, 1)]
    expected = nbmf.compare(
        {
            "popularity": nbmf.evaluate(Popularity(train), train, test),
            "ease": result,
            "poisson": [nbmf.evaluate(model, train, test) for model in starts],
        }
    )
    for ours, theirs in zip(ended.compare(), expected, strict=True):
        assert (ours.name, ours.n_starts) == (theirs.name, theirs.n_starts)
        assert (ours.mean, *ours.difference_interval) == pytest.approx((theirs.mean, *theirs.difference_interval))


def test_trials_are_given_the_training_counts_and_nothing_else(parts, tmp_path, one_process, monkeypatch):
    train, test = parts
    seen = []

    def watched(work, shared, tasks, n_workers, *, limit_s=None):
        seen.append((shared, [task.job.stage for task in tasks]))
        return in_this_process(work, shared, tasks, n_workers)

    monkeypatch.setattr(contests, "attempt", watched)
    run_contest(train, test, QUICK, tmp_path, n_workers=1)
    (trials, stages), *finals = seen
    assert set(stages) == {"trial"}
    assert (trials.train.matrix + trials.test.matrix != train.matrix).nnz == 0
    assert all(stages == ["start"] and shared.test is test for shared, stages in finals)


def test_other_test_counts_change_no_trial(parts, ended, tmp_path, one_process):
    train, test = parts
    poisoned = replace(test, matrix=sp.csr_array(test.matrix[:, ::-1] * 7))
    other = run_contest(train, poisoned, QUICK, tmp_path, n_workers=1)
    ours, theirs = (
        {job: row for job, row in without_cost(standing).items() if job.stage == "trial"} for standing in (ended, other)
    )
    assert ours == theirs
    assert other.mean("ease", "ndcg_counts") != ended.mean("ease", "ndcg_counts")


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})

def report(tidings):
    if tidings.n_done == {after}:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from small_contest import QUICK, in_this_process, planted
    from nbmf.experiments import contest
    contest.attempt = in_this_process
    contest.run_contest(*planted(), QUICK, {folder!r}, n_workers=1, report=report)
"""


@pytest.mark.parametrize("after", [0, 4, 9, 11])
def test_a_contest_that_was_killed_goes_on_where_it_stopped(parts, ended, tmp_path, one_process, after):
    script, folder = tmp_path / "killed.py", tmp_path / "folder"
    if after == 9:  # once in earnest; the others from what it would have left
        script.write_text(KILLED.format(tests=str(Path(__file__).parents[1]), folder=str(folder), after=after))
        assert subprocess.run([sys.executable, script], timeout=300, check=False).returncode == -signal.SIGKILL
    else:
        shutil.copytree(ended.folder.path, folder)
        lines = (folder / "runs.csv").read_text().splitlines(keepends=True)
        (folder / "runs.csv").write_text("".join(lines[: after + 1]) + "ease,tri")
    told = []
    resumed = run_contest(*parts, QUICK, folder, n_workers=1, report=told.append)
    assert sum(tidings.row is not None for tidings in told) == len(ended.rows) - after
    assert told[-1].n_done == told[-1].n_fits == len(ended.rows)
    assert without_cost(resumed) == without_cost(ended)
    costs = ("seconds", "MB")
    for table in (quality_table, settings_table):
        ours, theirs = table(resumed), table(ended)
        kept = [n for n, head in enumerate(ours.head) if head not in costs]
        assert [[row[n] for n in kept] for row in ours.rows] == [[row[n] for n in kept] for row in theirs.rows]


def test_models_trials_and_starts_can_be_added(parts, ended, tmp_path, one_process):
    folder = shutil.copytree(ended.folder.path, tmp_path / "copy")
    told = []
    more = replace(QUICK, models=("ease", "poisson", "binary"), n_trials=4, n_starts=3)
    grown = run_contest(*parts, more, folder, n_workers=1, report=told.append)
    made = [tidings.row.job for tidings in told if tidings.row is not None]
    assert {job for job in made if job.stage == "trial" and job.model != "binary"} == {
        Fit("ease", "trial", 3),
        Fit("poisson", "trial", 3),
    }
    for model in ("ease", "poisson"):  # a start is made again where another trial is the best now
        again = [job for job in made if (job.model, job.stage) == (model, "start")]
        same = grown.settings[model] == ended.settings[model]
        assert len(again) == (more.starts_of(model) - QUICK.starts_of(model) if same else more.starts_of(model))
    assert all(row.settings == grown.settings[model] for model, rows in grown.starts.items() for row in rows)


def odd_fit(train, seed, n_threads, *, penalty):
    if penalty > 1:
        raise ValueError("a penalty\nabove 1")
    return Popularity(train)


def test_a_fit_that_fails_is_a_row(parts, tmp_path, one_process, monkeypatch):
    monkeypatch.setitem(RIVALS, "odd", Rival("odd", odd_fit, {"penalty": 9.0}, {"penalty": Between(0.1, 10)}))
    monkeypatch.setitem(RIVALS, "hopeless", Rival("hopeless", odd_fit, {"penalty": 2.0}, {}))
    contest = Contest(("odd", "hopeless"), n_trials=6, n_starts=1)
    standing = run_contest(*parts, contest, tmp_path, n_workers=1)
    for row in standing.trials("odd"):
        assert row.problem == ("ValueError: a penalty above 1" if row.settings["penalty"] > 1 else "")
        assert math.isnan(row.means["ndcg_counts"]) == bool(row.problem)
    assert not standing.rows[Fit("odd", "trial", 0)].is_sound
    assert standing.settings["odd"]["penalty"] <= 1
    assert standing.problems() == {"hopeless": "ValueError: a penalty above 1"}
    assert [row[:2] for row in quality_table(standing).rows][-1] == ["hopeless", "failed"]
    assert settings_table(standing).rows[0][-1] == str(sum(not row.is_sound for row in standing.trials("odd")))
    with pytest.raises(NothingFoundError, match="no model came to an end"):
        run_contest(*parts, replace(contest, models=("hopeless",)), tmp_path, n_workers=1)


def test_contests_that_cannot_be_run_are_refused():
    for settings, message in (
        ({"models": ()}, "at least one"),
        ({"models": ("ease", "ease")}, "each once"),
        ({"models": ("svd",)}, "there is no model 'svd'"),
        ({"n_starts": 0}, "0 starts"),
        ({"goal": "auc"}, "the goal is 'auc'"),
    ):
        with pytest.raises(ValueError, match=message):
            Contest(**{"models": ("ease",), **settings})


@pytest.mark.alone
def test_a_task_ends_when_its_time_is_over():
    """The others go on, and one whose process dies is told, too."""
    watch = time.monotonic()
    outcomes = {o.task: o for o in attempt(operator.call, time.sleep, [60, 0, 0.01], 1, limit_s=1.5)}
    assert time.monotonic() - watch < 30
    assert isinstance(outcomes[60].error, OvertimeError)
    assert str(outcomes[60].error) == "took longer than 1.5 s"
    assert outcomes[0].error is None
    assert outcomes[0.01].error is None
    (lost,) = attempt(operator.call, sys.exit, [3], 1)
    assert isinstance(lost.error, LostWorkerError)


def test_memory_is_that_of_the_fit():
    before = contests._memory(reset=True)
    if math.isnan(before):
        pytest.skip("this system does not tell the peak of a process's memory")
    np.ones(10_000_000)
    assert 75 < contests._memory() - before < 120  # of 80 megabytes


def test_a_contest_in_processes_of_its_own_is_the_same(parts, ended, tmp_path):
    """Those of trials and of final fits: seconds and, where the system tells them, megabytes are of the latter."""
    contest = replace(QUICK, models=("ease",), n_trials=1)
    standing = run_contest(*parts, contest, tmp_path, n_workers=1)
    assert standing.trials("ease")[0].means == pytest.approx(ended.trials("ease")[0].means)
    (row,) = standing.starts["ease"]
    assert row.seconds > 0
    assert not row.megabytes < 0
    assert all(math.isnan(trial.megabytes) for trial in standing.trials("ease"))


# what is shown -------------------------------------------------------------------------------------------------------


def test_tables_are_in_the_order_of_the_goal(ended):
    table = quality_table(ended)
    means = [float(row[1]) for row in table.rows]
    assert means == sorted(means, reverse=True)
    assert [row[2] == "" for row in table.rows] == [True, False, False]
    assert {row[0]: row[-1] for row in table.rows} == {"EASE": "1", "PF": "2", "popularity": "1"}


def crowded():
    """Return all models close together, as a picture needs them."""
    names = list(RIVALS)
    means = {name: 0.34 + 0.006 * (n % 5) for n, name in enumerate(names)}
    apart = {name: mean - max(means.values()) for name, mean in means.items()}
    contenders = tuple(
        Contender(name, means[name], (0.0, 1.0), d, (d - 0.004, d + 0.004), 1, math.nan) for name, d in apart.items()
    )
    board = Comparison(contenders, "ndcg_counts", max(means, key=means.get), 100)
    return SimpleNamespace(compare=lambda: board, seconds=lambda name: 0.5 * 1.3 ** names.index(name))


def test_labels_of_the_picture_meet_nothing():
    pytest.importorskip("matplotlib", reason="pictures come with the extra 'plots'")
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    standing = crowded()
    figure = picture(standing)
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(text, renderer) for text in axes.texts]  # without lines to the points
    bars = []
    for contender in standing.compare():
        x, y = standing.seconds(contender.name), contender.mean
        bars.append(Bbox(axes.transData.transform([(x, y - 0.004), (x, y + 0.004)])))
    assert {text.get_text() for text in axes.texts} == {rival.label for rival in RIVALS.values()}
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.overlaps(bar) for box in boxes for bar in bars)


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[2] / "benchmarks" / "leaderboard.py"
    if not path.exists():
        pytest.skip("benchmarks/ is not part of this copy")
    spec = importlib.util.spec_from_file_location("leaderboard_script", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_written_between_marks(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- leaderboard -->\nold\n<!-- /leaderboard -->\nafter\n")
    for text in ("new", "newer"):
        script.put_between(page, "leaderboard", text)
    assert page.read_text() == "before\n<!-- leaderboard -->\n\nnewer\n\n<!-- /leaderboard -->\nafter\n"
    script.put_between(page, "other", "more")
    assert page.read_text().endswith("after\n\n<!-- other -->\n\nmore\n\n<!-- /other -->\n")
    page.write_text("<!-- leaderboard -->\n")
    with pytest.raises(ValueError, match="once each"):
        script.put_between(page, "leaderboard", "new")


def test_data_sets_have_names_without_folders(script):
    assert script.name_of("groceries") == "groceries"
    assert script.name_of("a/plays.2017.tsv.gz") == "plays"
    assert script.name_of("a/taste/interactions.parquet") == "taste"
    assert script.short_path("a/b/taste/interactions.parquet") == "taste/interactions.parquet"


# the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "plays.csv"
    train, test = planted()
    cells = (train.matrix + test.matrix).tocoo()
    rows = ((f"u{u}", f"i{i}", y) for u, i, y in zip(*cells.coords, cells.data, strict=True))
    return helpers.write_rows(path, rows, ["user", "item", "count"])


typed = partial(helpers.typed, "compare")


def test_compare_takes_any_of_the_models(plays):
    answer = json.loads(typed(plays, "--models", "popularity,ease,nbslim", "--metric", "recall_at_10", "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    expected = {
        name: nbmf.evaluate(RIVALS[name].fit(train, 0, 1, **RIVALS[name].defaults), train, test)["recall_at_10"].mean
        for name in ("popularity", "ease", "nbslim")
    }
    assert {row["name"]: row["mean"] for row in answer["models"]} == pytest.approx(expected, rel=1e-6)
    assert all(row["seconds"] >= 0 for row in answer["models"])


def test_compare_tunes_and_goes_on(plays, tmp_path, one_process):
    folder = tmp_path / "fits"
    arguments = [plays, "--models", "popularity,ease", "--tune", 3, "--folder", folder]
    answer = json.loads(typed(*arguments, "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=0)
    standing = run_contest(train, test, Contest(("popularity", "ease"), 3, 1, limit_s=None), tmp_path / "same")
    assert {row["name"]: row["settings"] for row in answer["models"]} == standing.settings
    means = {name: standing.mean(name, "ndcg_counts") for name in standing.starts}
    assert {row["name"]: row["mean"] for row in answer["models"]} == pytest.approx(means)
    before = (folder / "runs.csv").read_bytes()
    table = typed(*arguments)
    assert (folder / "runs.csv").read_bytes() == before  # nothing was made again
    assert "penalty=" in table.stdout
    assert "seconds" in table.stdout
    other = typed(*arguments, "--seed", 5, code=2)
    assert "holds another experiment" in other.stderr


def test_compare_tunes_from_what_was_typed(plays, one_process):
    options = ["-k", 3, "--max-iter", 7, "--tol", 0, "--concentration", 2, "--tune", 1, "--json"]
    answer = json.loads(typed(plays, "--models", "nbmf", *options).stdout)
    settings = answer["models"][0]["settings"]
    assert [settings[name] for name in ("n_components", "max_iter", "tol", "concentration")] == [3, 7, 0, 2]
