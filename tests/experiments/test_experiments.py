"""The paper's experiments: rows that survive a kill, splits that are the file's own, the command as typed."""

import json
import operator
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import nbmf
from helpers import child
from nbmf.cli import main
from nbmf.cli.reproduce import _show
from nbmf.experiments.claims import all_claims, data_shares
from nbmf.experiments.grid import Grid, Job
from nbmf.experiments.results import Entry, Results
from nbmf.experiments.rows import DamagedFolderError, Folder, OtherExperimentError
from nbmf.experiments.runs import open_folder, run_grid
from nbmf.experiments.study import open_study
from nbmf.experiments.workers import LostWorkerError, spread
from small_study import write_plays

GRID = Grid(components=(2, 3), n_starts=2)
N_RUNS = 3 * 2 * 2


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    return write_plays(tmp_path_factory.mktemp("plays"))


@pytest.fixture(scope="module")
def study(plays):
    return open_study(plays)


@pytest.fixture(scope="module")
def finished(study, tmp_path_factory):
    """Run the whole grid, undisturbed; return its results and what was told meanwhile."""
    told = []
    folder = tmp_path_factory.mktemp("undisturbed")
    return run_grid(study, GRID, folder, n_workers=1, report=told.append), told


@pytest.fixture(scope="module")
def results(finished):
    return finished[0]


def without_seconds(results):
    return {job: replace(row, seconds=0.0) for job, row in results.rows.items()}


# rows --------------------------------------------------------------------------------------------------------------


def test_a_row_is_what_fit_and_evaluate_give(study, results):
    assert len(results.rows) == N_RUNS
    for job in (Job("nbmf", 3, 1), Job("pf", 2, 0), Job("binarized_pf", 3, 1)):
        row = results.rows[job]
        settings = {"random_state": row.seed, "max_iter": 10_000, "tol": 1e-5}
        model = {
            "nbmf": nbmf.NBMF(job.n_components, concentration=1.0, **settings),
            "pf": nbmf.PoissonMF(job.n_components, **settings),
            "binarized_pf": nbmf.PoissonMF(job.n_components, binarize=True, **settings),
        }[job.model].fit(study.train)
        result = nbmf.evaluate(model, study.train, study.test, ("counts", 1, 2, 3, 5, 10), at=())
        assert row.means == {name: metric.mean for name, metric in result.items()}
        assert (row.n_iter, row.objective, row.seed) == (model.n_iter_, model.objective_[-1], job.start)
        assert row.converged
        for name, values in results.folder.values(job).items():
            np.testing.assert_array_equal(values, result[name].per_user)


def test_what_is_told(finished):
    told = finished[1]
    assert [tidings.n_done for tidings in told] == list(range(N_RUNS + 1))
    assert told[0].row is None
    assert told[-1].share == pytest.approx(1)
    assert [tidings.share for tidings in told] == sorted(tidings.share for tidings in told)


def test_the_longest_come_first():
    costs = [job.cost for job in Grid().jobs()]
    assert costs == sorted(costs, reverse=True)
    assert len(set(Grid().jobs())) == 3 * 6 * 5


KILLED = """
import os, signal

def report(tidings):
    if tidings.n_done == 5:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from nbmf.experiments.grid import Grid
    from nbmf.experiments.runs import run_grid
    from nbmf.experiments.study import open_study
    run_grid(open_study({plays!r}), Grid(components=(2, 3), n_starts=2), {folder!r}, n_workers=2, report=report)
"""


def test_a_run_that_was_killed_goes_on_where_it_stopped(plays, study, results, tmp_path):
    script, folder = tmp_path / "killed.py", tmp_path / "folder"
    script.write_text(KILLED.format(plays=str(plays), folder=str(folder)))
    assert subprocess.run([sys.executable, script], timeout=300, check=False).returncode == -signal.SIGKILL
    with open(folder / "runs.csv", "a") as table:
        table.write("nbmf,3,")  # as if the kill had come in the middle of a write
    before = open_folder(study, GRID, folder).rows()
    assert len(before) == 5
    told = []
    resumed = run_grid(study, GRID, folder, n_workers=1, report=told.append)
    assert [tidings.n_done for tidings in told] == list(range(5, N_RUNS + 1))
    assert {job: resumed.rows[job] for job in before} == before  # seconds and all: not made again
    assert without_seconds(resumed) == without_seconds(results)
    for job in results.rows:
        ours, theirs = resumed.folder.values(job), results.folder.values(job)
        assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in GRID.metrics)


def test_a_torn_last_line_is_dropped_wherever_it_was_cut(results, tmp_path):
    original = results.folder
    stored = original.table.read_bytes()
    folder = shutil.copytree(original.path, tmp_path / "copy")
    lines = stored.splitlines(keepends=True)
    for cut in range(len(stored) - len(lines[-1]) - 3, len(stored) + 1, 2):
        (folder / "runs.csv").write_bytes(stored[:cut])
        rows = Folder.open(folder, original.settings, GRID.metrics).rows()
        assert list(rows) == list(original.rows())[: stored[:cut].count(b"\n") - 1]
        assert all(rows[job] == original.rows()[job] for job in rows)
    for cut in range(0, len(lines[0]), 9):  # not even the heading was written
        (folder / "runs.csv").write_bytes(stored[:cut])
        assert Folder.open(folder, original.settings, GRID.metrics).rows() == {}


def test_a_row_without_its_values_does_not_count(study, results, tmp_path):
    folder = shutil.copytree(results.folder.path, tmp_path / "copy")
    (folder / "per_user" / "pf-2-0.npz").unlink()
    rows = open_folder(study, GRID, folder).rows()
    assert set(results.rows) - set(rows) == {Job("pf", 2, 0)}
    with pytest.raises(ValueError, match=r"1 runs are missing, among them pf-2-0"):
        Results(study, GRID, open_folder(study, GRID, folder))


def test_another_experiment_is_refused(study, results, tmp_path):
    folder = results.folder.path
    for grid, message in (
        (replace(GRID, seed=7), "its grid seed is 0, not 7"),
        (replace(GRID, components=(2,)), r"its grid components is \[2, 3\], not \[2\]; name another folder"),
    ):
        with pytest.raises(OtherExperimentError, match=message):
            open_folder(study, grid, folder)
    swapped = study.test.matrix.copy()
    swapped.data = swapped.data + 1
    with pytest.raises(OtherExperimentError, match="its data fingerprint"):
        open_folder(replace(study, test=replace(study.test, matrix=swapped)), GRID, folder)
    damaged = shutil.copytree(folder, tmp_path / "copy")
    (damaged / "settings.json").write_text("[1")
    with pytest.raises(DamagedFolderError, match="is damaged"):
        open_folder(study, GRID, damaged)
    (damaged / "settings.json").unlink()
    with pytest.raises(DamagedFolderError, match="has rows but"):
        open_folder(study, GRID, damaged)
    shutil.copy(folder / "settings.json", damaged)
    (damaged / "runs.csv").write_text((damaged / "runs.csv").read_text() + "nbmf,many,0\n")
    with pytest.raises(DamagedFolderError, match="line 14: is not a run; delete the line"):
        open_folder(study, GRID, damaged).rows()


def test_grids_that_cannot_be_run_are_refused():
    for settings, message in (
        ({"components": ()}, "at least one"),
        ({"components": (5, 5)}, "each once"),
        ({"components": (0,)}, "0 is not a whole number from 1"),
        ({"n_starts": 0}, "at least 1"),
        ({"seed": -1}, "between 0 and"),
        ({"models": ("svd",)}, "there is no model 'svd'"),
    ):
        with pytest.raises(ValueError, match=message):
            Grid(**settings)


def test_workers_raise_what_their_work_raises():
    assert sorted(spread(operator.pow, 2, [1, 2, 3], 2)) == [2, 4, 8]
    assert list(spread(operator.pow, 2, [], 2)) == []
    with pytest.raises(ZeroDivisionError) as caught:
        list(spread(operator.truediv, 1, [0], 1))
    assert "in the process of 0" in caught.value.__notes__[0]
    with pytest.raises(LostWorkerError, match="ended without an answer"):
        list(spread(operator.call, signal.raise_signal, [signal.SIGKILL], 1))


# data --------------------------------------------------------------------------------------------------------------


def test_the_files_own_split_is_taken(plays, study):
    assert study.split == "the file's own, its column test"
    table = pq.read_table(plays)
    user, item, count, test = (table[name].to_numpy() for name in ("user", "item", "count", "test"))
    for part, rows in ((study.train, ~test), (study.test, test)):
        found = part.matrix.tocoo()
        ids = zip(part.users[found.row].tolist(), part.items[found.col].tolist(), found.data.tolist(), strict=True)
        assert set(ids) == set(zip(user[rows], item[rows], count[rows], strict=True))
        np.testing.assert_array_equal(part.users, study.data.users)
    drawn = open_study(plays, split="random", seed=3)
    expected = nbmf.read_interactions(plays).split(0.2, seed=3)
    assert (drawn.train.matrix != expected.train.matrix).nnz == 0
    assert "seed 3" in drawn.split


def test_columns_may_be_called_anything(plays, study, tmp_path):
    renamed = pq.read_table(plays).rename_columns(["a", "b", "c", "test"])
    pq.write_table(renamed, tmp_path / "plays.parquet")
    named = open_study(tmp_path / "plays.parquet", columns={"user": "a", "item": "b", "count": "c"})
    assert named.source.fingerprint == study.source.fingerprint


def test_items_that_share_a_name_are_told_apart(study):
    labels = dict(zip(study.data.items.tolist(), study.labels(), strict=True))
    assert (labels[0], labels[38], labels[5]) == ("Song 0 (#0)", "Song 0 (#38)", "Song 5")


def test_splits_that_are_none_are_refused(plays, tmp_path):
    twice = {"user": [0, 0, 1], "item": [0, 0, 1], "count": [1, 2, 3], "test": [True, False, False]}
    pq.write_table(pa.table(twice), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match="must say true or false once for each pair"):
        open_study(tmp_path / "twice.parquet")
    (tmp_path / "plays.csv").write_text("user,item,count\n" + "".join(f"u{n},i{n % 3},2\n" for n in range(10)))
    with pytest.raises(ValueError, match="has no column 'test'"):
        open_study(tmp_path / "plays.csv", split="author")
    with pytest.raises(ValueError, match="left by the filters"):
        open_study(tmp_path / "plays.csv", filtered=True)
    with pytest.raises(ValueError, match="split is 'mine'"):
        open_study(tmp_path / "plays.csv", split="mine")
    with pytest.raises(ValueError, match="needs a column item"):
        open_study(plays, names=tmp_path / "twice.parquet")
    assert open_study(tmp_path / "plays.csv").labels() == ["item i0", "item i1", "item i2"]


def test_the_authors_split_is_that_of_his_seed(data_folder, taste_profile):
    path = data_folder / "data" / "tasteprofile_gouvert" / "interactions.parquet"
    marked, drawn = open_study(path), open_study(path, split="random")
    assert "own" in marked.split
    for part in ("train", "test"):
        theirs = taste_profile[part == "test"].matrix
        assert (getattr(marked, part).matrix != theirs).nnz == 0
        assert (getattr(drawn, part).matrix != theirs).nnz == 0
    assert all(share.agrees for share in data_shares(SimpleNamespace(study=marked)))


# the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command(plays, results):
    """Go on in the folder of the finished runs: there is nothing left but the report."""
    return ["reproduce", str(plays), "-o", str(results.folder.path), "-k", "2,3", "--starts", "2"]


@pytest.fixture(scope="module")
def answer(command):
    result = CliRunner().invoke(main, [*command, "--json"])
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
    assert "12 of 12 runs" in answer.stderr


def test_the_command_shows_the_verdicts(results, capsys):
    _show(results, results.folder.path / "report.html", as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("undecided") >= 3
    for entry in results.chosen():
        assert str(entry) in shown


def test_the_command_refuses_in_a_sentence(command, tmp_path):
    for wrong, message in (
        ([*command, "--seed", "5"], "holds another experiment: its grid seed is 0, not 5"),
        ([*command, "--portrait", "nobody"], "user 'nobody' is not among"),
        (["reproduce", str(tmp_path / "none.csv")], "there is no such file"),
        ([*command, "-k", "5,x"], "'x' is not a whole number from 1"),
    ):
        result = CliRunner().invoke(main, wrong)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.stderr.split())


def test_the_report_needs_nothing_but_itself(answer, results):
    folder = results.folder.path
    html, markdown = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert set(re.findall(r'src="(.{14})', html)) == {"data:image/png"}
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
    assert "the file&#x27;s own, its column test" in html
    assert {path.suffix for path in folder.iterdir()} == {"", ".csv", ".html", ".json", ".md"}


def test_ctrl_c_ends_with_130_and_keeps_the_rows(plays, tmp_path):
    script = tmp_path / "command.py"
    script.write_text('from nbmf.cli import main\n\nif __name__ == "__main__":\n    main()\n')
    typed = ["reproduce", plays, "-o", tmp_path / "out", "-k", "2,3,4", "--starts", "500", "--workers", "1"]
    command = [sys.executable, script, *typed]
    with child(command, stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            if " 3 of " in line:
                os.killpg(running.pid, signal.SIGINT)  # a terminal tells the whole group
                break
        rest = running.stderr.read()
        assert running.wait(timeout=20) == 130
    assert "the same command goes on from there" in rest
    assert "Traceback" not in rest
    lines = (tmp_path / "out" / "runs.csv").read_bytes().splitlines(keepends=True)
    assert len(lines) >= 4
    assert all(line.endswith(b"\n") and line.count(b",") == lines[0].count(b",") for line in lines)
    with pytest.raises(ProcessLookupError):
        wait_for_the_end_of(running.pid)


def wait_for_the_end_of(group):
    """Raise ProcessLookupError when nobody of the group is left; multiprocessing has a helper that goes last."""
    for _ in range(100):
        os.killpg(group, 0)
        time.sleep(0.05)
