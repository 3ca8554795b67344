"""The paper's experiments: rows that are what fit and evaluate give, runs that resume, the command as typed."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import nbmf
from helpers import child
from nbmf.cli import main
from nbmf.cli.reproduce import _show
from nbmf.evaluation.experiments.paper import Entry, Grid, Results, all_claims, open_store, run_grid

GRID = Grid(components=(2, 3), n_starts=2)
N_FITS = 3 * 2 * 2
METRICS = ("ndcg_counts", *(f"ndcg_at_least_{s}" for s in GRID.thresholds))


@pytest.fixture(scope="module")
def finished(study, tmp_path_factory):
    """Run the whole grid, undisturbed; return its results and the events meanwhile."""
    events = []
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_grid(study, GRID, folder, n_workers=1, report=events.append), events


@pytest.fixture(scope="module")
def results(finished):
    return finished[0]


def all_rows(results):
    return [row for starts in results.rows.values() for row in starts]


def without_seconds(results):
    return {row.job.name: replace(row, seconds=0.0, megabytes=0.0) for row in all_rows(results)}


# rows --------------------------------------------------------------------------------------------------------------


def test_a_row_is_what_fit_and_evaluate_give(study, results):
    assert len(all_rows(results)) == N_FITS
    for entry, start in ((Entry("nbmf", 3), 1), (Entry("pf", 2), 0), (Entry("binarized_pf", 3), 1)):
        row = results.rows[entry][start]
        settings = {"random_state": row.job.seed, "max_iter": 10_000, "tol": 1e-5}
        model = {
            "nbmf": nbmf.NBMF(entry.n_components, concentration=1.0, **settings),
            "pf": nbmf.PoissonMF(entry.n_components, **settings),
            "binarized_pf": nbmf.PoissonMF(entry.n_components, binarize=True, **settings),
        }[entry.model].fit(study.train)
        result = nbmf.evaluate(model, study.train, study.test, ("counts", 1, 2, 3, 5, 10), at=())
        assert row.means == {name: metric.mean for name, metric in result.items()}
        assert (row.convergence["sweeps"], row.convergence["objective"]) == (model.n_iter_, model.objective_[-1])
        assert row.job.seed == start
        assert row.convergence["converged"]
        assert row.convergence["exposure"] == getattr(model, "exposure_", "")
        values = results.store.per_user(row.job.name)
        assert set(values) == set(METRICS)
        for name, column in values.items():
            np.testing.assert_array_equal(column, result[name].per_user)


def test_progress_is_reported(finished):
    events = finished[1]
    assert [event.n_done for event in events] == list(range(N_FITS + 1))
    assert events[0].row is None
    assert events[-1].share == pytest.approx(1)
    assert [event.share for event in events] == sorted(event.share for event in events)


def test_the_longest_come_first():
    costs = [job.cost for job in Grid().jobs()]
    assert costs == sorted(costs, reverse=True)
    assert len({job.name for job in Grid().jobs()}) == 3 * 6 * 5


KILLED = """
import os, signal

def report(event):
    if event.n_done == 5:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from nbmf.evaluation.experiments.paper import Grid, run_grid
    from nbmf.evaluation.experiments.study import open_study
    run_grid(open_study({plays!r}), Grid(components=(2, 3), n_starts=2), {folder!r}, n_workers=2, report=report)
"""


def test_a_run_that_was_killed_resumes_where_it_stopped(plays, study, results, tmp_path):
    script, folder = tmp_path / "killed.py", tmp_path / "folder"
    script.write_text(KILLED.format(plays=str(plays), folder=str(folder)))
    ended = subprocess.run([sys.executable, script], check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    before = open_store(study, GRID, folder).rows()
    assert len(before) == 5
    events = []
    resumed = run_grid(study, GRID, folder, n_workers=1, report=events.append)
    assert [event.n_done for event in events] == list(range(5, N_FITS + 1))
    rows = resumed.store.rows()
    for name, row in before.items():  # seconds and all: not made again
        assert repr(rows[name]) == repr(row)
    assert without_seconds(resumed) == without_seconds(results)
    for row in all_rows(results):
        ours, theirs = (found.store.per_user(row.job.name) for found in (resumed, results))
        assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in METRICS)


def test_results_need_every_fit(study, results, tmp_path):
    folder = shutil.copytree(results.store.folder, tmp_path / "copy")
    with closing(sqlite3.connect(folder / "results.sqlite")) as database, database:
        database.execute("DELETE FROM results WHERE name = 'pf-2-0'")
    store = open_store(study, GRID, folder)
    assert [job.name for job in store.missing(GRID.jobs())] == ["pf-2-0"]
    with pytest.raises(ValueError, match=r"1 fits are missing, among them pf-2-0"):
        Results(study, GRID, store)


def test_another_experiment_is_refused(study, results):
    folder = results.store.folder
    for grid, message in (
        (replace(GRID, seed=7), "its grid seed is 0, not 7"),
        (replace(GRID, components=(2,)), r"its grid components is \[2, 3\], not \[2\]; choose another folder"),
    ):
        with pytest.raises(ValueError, match=message):
            open_store(study, grid, folder)
    swapped = study.test.matrix.copy()
    swapped.data = swapped.data + 1
    with pytest.raises(ValueError, match="its data fingerprint"):
        open_store(replace(study, test=replace(study.test, matrix=swapped)), GRID, folder)


def test_grids_that_cannot_be_run_are_refused():
    for settings, message in (
        ({"components": ()}, "at least one"),
        ({"components": (5, 5)}, "each once"),
        ({"components": (0,)}, "0 is not a whole number from 1"),
        ({"n_starts": 0}, "at least 1"),
        ({"seed": -1}, "between 0 and"),
    ):
        with pytest.raises(ValueError, match=message):
            Grid(**settings)


# the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typed(plays, results):
    """Resume in the folder of the finished fits: only the report is left to make."""
    return ["reproduce", str(plays), "-o", str(results.store.folder), "-k", "2,3", "--starts", "2"]


@pytest.fixture(scope="module")
def answer(typed):
    result = CliRunner().invoke(main, [*typed, "--json"])
    assert result.exit_code == 0, result.output
    return result


def test_the_command_answers_in_json(answer, results):
    found = json.loads(answer.stdout)
    assert [row["model"] for row in found["ndcg_counts"]] == [
        "nbmf",
        "nbmf",
        "pf",
        "pf",
        "binarized_pf",
        "binarized_pf",
    ]
    for row in found["ndcg_counts"]:
        level = results.level(Entry(row["model"], row["components"]))
        assert (row["mean"], row["sd"]) == (level.mean, level.sd)
    assert found["claims"] == json.loads(json.dumps([claim.as_dict() for claim in all_claims(results)]))
    assert "12 of 12 fits" in answer.stderr


def test_the_command_shows_the_verdicts(results, capsys):
    _show(results, results.store.folder / "report.html", as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("undecided") >= 3
    for entry in results.chosen():
        assert str(entry) in shown


def test_the_command_refuses_in_a_sentence(typed, tmp_path):
    for wrong, message in (
        ([*typed, "--seed", "5"], "holds another experiment: its grid seed is 0, not 5"),
        ([*typed, "--portrait", "nobody"], "user 'nobody' is not among"),
        (["reproduce", str(tmp_path / "none.csv")], "there is no such file"),
        ([*typed, "-k", "5,x"], "'x' is not a whole number from 1"),
    ):
        result = CliRunner().invoke(main, wrong)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())


def test_the_report_needs_nothing_but_itself(answer, results):
    folder = results.store.folder
    html, markdown = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert set(re.findall(r'src="(.{14})', html)) == {"data:image/svg"}
    assert len(re.findall(r"<img", html)) == 6
    for claim in all_claims(results):
        for words in (claim.statement, claim.verdict):
            assert words.replace(">", "&gt;") in html
            assert words.replace("_", r"\_").replace(">", r"\>") in markdown
    for name in re.findall(r"\]\(([^)]+)\)", markdown):
        assert (folder / name).stat().st_size > 0
    for entry in results.chosen():
        level = results.level(entry)
        assert f"<strong>{level.mean:.4f} ± {level.sd:.4f}</strong>" in html
    assert "the file's own split, its column test" in html
    assert {path.suffix for path in folder.iterdir()} == {"", ".sqlite", ".html", ".json", ".md"}


COMMAND = """
import signal
from nbmf.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    main()
"""


def test_ctrl_c_ends_with_130_and_keeps_the_rows(plays, tmp_path):
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    typed = ["reproduce", plays, "-o", tmp_path / "out", "-k", "2,3,4", "--starts", "500", "--workers", "1"]
    command = [sys.executable, script, *map(str, typed)]
    with child(command, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if " 3 of " in line:
                os.killpg(running.pid, signal.SIGINT)  # a terminal signals the whole group
                break
        rest = running.stderr.read()
        assert running.wait(timeout=20) == 130
    assert "the same command resumes there" in rest
    assert "Traceback" not in rest
    with closing(sqlite3.connect(tmp_path / "out" / "results.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM results").fetchone()[0] >= 3
    with pytest.raises(ProcessLookupError):
        wait_for_the_end_of(running.pid)


def wait_for_the_end_of(group):
    """Raise ProcessLookupError when no process of the group is left; a helper of multiprocessing ends last."""
    for _ in range(100):
        os.killpg(group, 0)
        time.sleep(0.05)
