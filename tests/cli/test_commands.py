"""The commands that fit, recommend and evaluate, as typed: what they write, and how they fail."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from sklearn.base import clone

import nbmf
from helpers import interrupted_at, small_matrix, typed
from nbmf.cli import main
from nbmf.cli.terminal import show
from nbmf.evaluation.experiments.alternatives import Popularity
from nbmf.storage.container import StorageError

QUICK = ["-k", "3", "--max-iter", "5"]


@pytest.fixture(scope="module")
def model_file(plays, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.nbmf"
    typed("fit", plays, "-o", path, *QUICK)
    return path


# ---- fit ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ([], nbmf.NBMF(3, concentration=1.0, max_iter=5, random_state=0)),
        (["--concentration", "0.3", "--seed", "4"], nbmf.NBMF(3, concentration=0.3, max_iter=5, random_state=4)),
        (["--model", "poisson", "--tol", "0.1"], nbmf.PoissonMF(3, max_iter=5, tol=0.1, random_state=0)),
        (["--model", "binary"], nbmf.PoissonMF(3, binarize=True, max_iter=5, random_state=0)),
        (["--min-users", "10", "--min-items", "15"], nbmf.NBMF(3, max_iter=5, random_state=0)),
    ],
)
def test_fit_is_the_estimators_fit(plays, tmp_path, options, model):
    path = tmp_path / "model.nbmf"
    typed("fit", plays, "-o", path, *QUICK, *options)
    data = nbmf.read_interactions(plays)
    if "--min-users" in options:
        data = data.filter(10, 15)
        assert data.n_users < 40
    clone(model).set_params(verbose=True).fit(data).save(tmp_path / "same.nbmf")
    assert path.read_bytes() == (tmp_path / "same.nbmf").read_bytes()


def test_fit_tells_what_it_did(plays, tmp_path):
    path = tmp_path / "model.nbmf"
    told = typed("fit", plays, "-o", path, *QUICK)
    assert "NBMF of 39 users and 29 items" in told.stdout
    assert "sweeps      5\n" in told.stdout
    assert "39 users × 29 items" in told.stderr
    facts = json.loads(typed("fit", plays, "-o", path, *QUICK, "--json").stdout)
    model = nbmf.load(path)
    assert facts["file"] == str(path)
    assert (facts["users"], facts["items"], facts["sweeps"], facts["ending"]) == (39, 29, 5, "max_iter")
    assert facts["objective"] == model.objective_[-1]
    assert facts["bytes"] == path.stat().st_size


def test_fit_goes_on_from_a_checkpoint(plays, tmp_path):
    whole, model, checkpoint = (tmp_path / name for name in ("whole", "model", "checkpoint"))
    settings = ["-k", "3", "--tol", "0"]
    typed("fit", plays, "-o", whole, *settings, "--max-iter", "9")
    first = typed("fit", plays, "-o", model, *settings, "--max-iter", "4", "--checkpoint", checkpoint, "--resume")
    assert "no checkpoint yet, so the fit starts anew" in first.stderr
    again = [*settings, "--max-iter", "9", "--checkpoint", checkpoint, "--resume", "--checkpoint-every", "2"]
    typed("fit", plays, "-o", model, *again)
    assert model.read_bytes() == whole.read_bytes()
    other = typed("fit", plays, "-o", model, *again, "--seed", "1", code=2)
    assert f"{checkpoint}: was written by a fit with random_state=0, and this one has 1" in other.stderr


# ---- recommend ------------------------------------------------------------------------------------------------------


def test_recommend_is_the_models_recommend(model_file):
    model = nbmf.load(model_file)
    found = model.recommend(["user 1", "user 7"], n=4)
    answer = json.loads(
        typed("recommend", model_file, "--user", "user 1", "--user", "user 7", "-n", 4, "--json").stdout
    )
    assert [entry["user"] for entry in answer] == ["user 1", "user 7"]
    for n, entry in enumerate(answer):
        assert [item["item"] for item in entry["items"]] == found.items[n].tolist()
        assert [item["score"] for item in entry["items"]] == found.scores[n].tolist()
    lines = typed("recommend", model_file, "--user", "user 1", "-n", 2).stdout.splitlines()
    assert lines[1].split() == ["user", "rank", "item", "score"]
    assert lines[2].split() == ["user", "1", "1", *found.items[0, 0].split(), f"{found.scores[0, 0]:.3f}"]
    everything = json.loads(
        typed("recommend", model_file, "--user", "user 5", "-n", 99, "--include-seen", "--json").stdout
    )
    assert len(everything[0]["items"]) == 29


@pytest.mark.parametrize(
    ("form", "title"),
    [("counts", "Expected counts"), ("log1p", "Expected ln(1 + count)"), ("binary", "Scores")],
)
def test_scores_are_called_expected_counts_only_where_they_are(plays, tmp_path, form, title):
    typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--input", form)
    assert typed("recommend", tmp_path / "m", "--user", "user 1").stdout.startswith(f"{title}, largest first\n")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_recommend_to_everybody_in_a_file(model_file, tmp_path, ending):
    path = tmp_path / f"it's.{ending}"
    told = typed("recommend", model_file, "--all", "-n", 12, "-o", path)
    found = nbmf.load(model_file).recommend(nbmf.load(model_file).users_, n=12)
    import pandas as pd

    frame = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    expected = [
        (user, rank, item)
        for user, items in zip(found.users, found.items, strict=True)
        for rank, item in enumerate(items, 1)
        if item is not None  # user 5 has taken all but a few
    ]
    assert list(frame[["user", "rank", "item"]].itertuples(index=False, name=None)) == expected
    kept = np.array([item is not None for item in found.items.ravel()])
    np.testing.assert_allclose(frame["score"], found.scores.ravel()[kept], rtol=1e-6)
    assert f"{len(expected)} rows for 39 users" in told.stderr
    assert os.listdir(tmp_path) == [path.name]


def test_recommend_gives_names_and_numbers(tmp_path):
    data = nbmf.Interactions.from_matrix(small_matrix(6, 5)[[0, 1, 2, 4, 5]], users=np.arange(10, 15))
    data = replace(data, item_names=np.array(["Ä [bold]", "B", "C", "D", "E"], object))
    nbmf.NBMF(2, max_iter=3).fit(data).save(tmp_path / "m")
    answer = json.loads(typed("recommend", tmp_path / "m", "--user", "11", "--include-seen", "-n", 5, "--json").stdout)
    assert {item["item"]: item["name"] for item in answer[0]["items"]} == dict(enumerate(data.item_names))
    assert answer[0]["user"] == 11
    assert "Ä [bold]" in typed("recommend", tmp_path / "m", "--user", "11", "--include-seen").stdout
    wrong = typed("recommend", tmp_path / "m", "--user", "ann", code=2)
    assert "user 'ann' was not in the data of the fit, which had 5 users; ids are numbers here" in wrong.stderr


# ---- evaluate and compare -------------------------------------------------------------------------------------------


def test_evaluate_is_evaluate(plays):
    answer = json.loads(typed("evaluate", plays, *QUICK, "--seed", "3", "--json").stdout)
    train, test = nbmf.read_interactions(plays).split(seed=3)
    expected = nbmf.evaluate(nbmf.NBMF(3, max_iter=5, random_state=3).fit(train), train, test)
    assert [row["mean"] for row in answer["metrics"]] == [row["mean"] for row in expected.rows()]
    assert (answer["model"], answer["users"]) == ("NBMF", expected.n_users)
    table = typed("evaluate", plays, *QUICK, "--seed", "3").stdout
    assert f"NBMF: {expected.n_users} users evaluated; {expected.n_left_out} have nothing to test" in table
    assert f"{expected['ndcg_counts'].mean:.4f}" in table


@pytest.mark.parametrize("split", ["per-user", "last", "date"])
def test_evaluate_splits(plays, split):
    data = nbmf.read_interactions(plays, time="day")
    train, test = {
        "per-user": lambda: data.split_per_user(seed=0),
        "last": lambda: data.leave_last_out(seed=0),
        "date": lambda: data.split_by_date(test_fraction=0.2),
    }[split]()
    options = ["--time", "day", "--split", split, "--model", "popularity", "--json"]
    answer = json.loads(typed("evaluate", plays, *options).stdout)
    expected = nbmf.evaluate(Popularity(train), train, test)
    assert answer["metrics"][0]["mean"] == expected["ndcg_counts"].mean


def test_evaluate_tests_on_another_file(plays, model_file, tmp_path):
    """With --test all of the data is fitted; a model file is already fitted, so the data are the test."""
    test = tmp_path / "test.csv"
    test.write_text(
        "user,item,count\nuser 1,song 0,4\nuser 2,song 4,1\nuser 2,song 7,3\nuser 1,new song,2\nnew,song 0,1\n"
    )
    by_file = typed("evaluate", plays, *QUICK, "--test", test, "--json")
    by_model = typed("evaluate", test, "--model-file", model_file, "--json")
    for told in (by_file, by_model):
        assert "note: 2 of 5 test counts are of users or items that were not fitted; they are left out" in told.stderr
    assert json.loads(by_file.stdout) == json.loads(by_model.stdout)
    assert json.loads(by_file.stdout)["users"] == 2
    test.write_text("user,item,count\n1,2,4\n")
    assert (
        "none of its users is among those that were fitted"
        in typed("evaluate", test, "--model-file", model_file, code=2).stderr
    )


def test_compare_is_compare(plays):
    answer = json.loads(
        typed("compare", plays, *QUICK, "--starts", 2, "--models", "poisson,popularity", "--json").stdout
    )
    train, test = nbmf.read_interactions(plays).split(seed=0)
    starts = [nbmf.PoissonMF(3, max_iter=5, random_state=seed).fit(train) for seed in (0, 1)]
    expected = nbmf.compare(
        {
            "poisson": [nbmf.evaluate(model, train, test) for model in starts],
            "popularity": nbmf.evaluate(Popularity(train), train, test),
        }
    )
    assert [(row["name"], row["mean"], row["difference"], row["n_starts"]) for row in answer["models"]] == [
        (row["name"], row["mean"], row["difference"], row["n_starts"]) for row in expected.rows()
    ]
    table = typed("compare", plays, *QUICK, "--baseline", "nbmf", "--metric", "recall_at_10").stdout
    assert "recall_at_10 of" in table
    assert "differences to nbmf" in table
    assert all(name in table for name in ("nbmf", "poisson", "binary", "nbslim", "popularity"))


def test_popularity_counts_users():
    train = nbmf.Interactions.from_matrix([[3, 0, 1], [1, 0, 0]])
    assert Popularity(train).score_items(np.array([0, 1, 1])).tolist() == [[2, 0, 1]] * 3


# ---- what cannot be done --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "{folder}/nowhere.csv", "-o", "{folder}/m"], "nowhere.csv: there is no such file"),
        (["fit", "{folder}/bad.csv", "-o", "{folder}/m"], "bad.csv, line 3: count '-3'"),
        (["fit", "{plays}", "-o", "{folder}/nowhere/m"], "there is no folder"),
        (["fit", "{plays}"], "Missing option '-o'"),
        (["fit", "{plays}", "-o", "m", "--user", "nobody"], "nobody"),
        (["fit", "{plays}", "-o", "m", "--resume"], "--resume needs a checkpoint to resume from"),
        (["fit", "{plays}", "-o", "m", "--model", "binary", "--concentration", "2"], "is not a setting"),
        (["fit", "{plays}", "-o", "m", "--min-users", "1000"], "nothing is left with --min-users 1000"),
        (
            ["fit", "{plays}", "-o", "m", "--checkpoint-every", "soon"],
            "'soon' is neither a number of sweeps",
        ),
        (["fit", "{plays}", "-o", "m", "-k", "0"], "0 is not in the range x>=1"),
        (["recommend", "{plays}", "--user", "a"], "plays.csv: is not a file of nbmf"),
        (["recommend", "{model}", "--user", "nobody"], "user 'nobody' was not in the data of the fit"),
        (["recommend", "{model}"], "say for whom"),
        (["recommend", "{model}", "--all"], "--all is too much for a table"),
        (["recommend", "{model}", "--all", "-o", "m.xlsx"], "the name must end in .csv or .parquet"),
        (["recommend", "{model}", "--all", "-o", "{folder}/nowhere/m.csv"], "there is no folder"),
        (["evaluate", "{plays}", "--split", "date"], "have no times to split by"),
        (["evaluate", "{plays}", "--test", "a", "--model-file", "b"], "with --model-file the test is DATA"),
        (["evaluate", "{plays}", "--test-fraction", "1"], "1.0 is not in the range 0<x<1"),
        (["compare", "{plays}", "--models", "nbmf,mymodel"], "'mymodel' is not one of nbmf, poisson"),
        (["compare", "{plays}", "--models", "nbmf,nbmf"], "'nbmf' is there twice"),
        (["compare", "{plays}", "--models", "nbmf", "--baseline", "binary"], "--baseline binary is not among"),
        (["compare", "{plays}", "--models", "popularity", "--metric", "ndgc"], "there is no metric 'ndgc'"),
    ],
)
def test_faults_are_told_in_a_sentence(plays, model_file, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("user,item,count\nann,jazz,1\nbob,jazz,-3\n")
    before = sorted(tmp_path.iterdir())
    filled = [text.format(folder=tmp_path, plays=plays, model=model_file) for text in arguments]
    told = typed(*filled, code=2)
    assert message in told.stderr
    assert "Traceback" not in told.stderr
    assert told.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_a_fault_of_the_program_keeps_its_traceback(plays, tmp_path, monkeypatch):
    monkeypatch.setattr(nbmf.NBMF, "fit", lambda *args, **settings: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        typed("fit", plays, "-o", tmp_path / "m")


def test_warnings_are_notes(plays, tmp_path, monkeypatch):
    def fail(*args):
        raise StorageError("full")

    monkeypatch.setattr("nbmf.inference.checkpoints.write", fail)
    told = typed("fit", plays, "-o", tmp_path / "m", *QUICK, "--checkpoint", tmp_path / "c")
    assert "note: checkpoint of sweep 5: full" in told.stderr


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_last_finished_sweep(plays, tmp_path, monkeypatch):
    model, checkpoint, whole = (tmp_path / name for name in ("model", "checkpoint", "whole"))
    options = ["-k", "3", "--tol", "0", "--max-iter", "9"]
    with monkeypatch.context() as patched:
        interrupted_at(4, patched)
        told = typed("fit", plays, "-o", model, *options, "--checkpoint", checkpoint, code=130)
    assert f"interrupted; {model} holds the model of sweep 4" in told.stderr
    assert f"resume it with --checkpoint {checkpoint} --resume" in told.stderr
    assert (nbmf.load(model).n_iter_, nbmf.load(model).ending_) == (4, "interrupted")
    typed("fit", plays, "-o", model, *options, "--checkpoint", checkpoint, "--resume")
    typed("fit", plays, "-o", whole, *options)
    assert model.read_bytes() == whole.read_bytes()


def test_ctrl_c_ends_evaluate_and_compare(plays, monkeypatch):
    interrupted_at(2, monkeypatch)
    for command in ("evaluate", "compare"):
        told = typed(command, plays, "-k", "3", code=130)
        assert told.stdout == ""
        assert "interrupted; nothing was evaluated" in told.stderr


def test_ctrl_c_before_there_is_anything(plays, tmp_path, monkeypatch):
    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("nbmf.data.read.connect", interrupted)
    told = typed("fit", plays, "-o", tmp_path / "m", code=130)
    assert "interrupted; nothing was written" in told.stderr
    assert not list(tmp_path.iterdir())


STUCK = """
import threading
import nbmf.data.read
from nbmf.cli import main

def interrupted(*settings):
    threading.Thread(target=threading.Event().wait).start()
    raise KeyboardInterrupt

nbmf.data.read.connect = interrupted
main()
"""


def test_ctrl_c_waits_for_nobody(plays, tmp_path):
    """A thread may be stuck, say in an interrupted compiler; a normal exit would wait for it for ever."""
    told = subprocess.run(
        [sys.executable, "-c", STUCK, "fit", str(plays), "-o", str(tmp_path / "m")],
        timeout=30,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 130, told.stderr
    assert told.stderr == "interrupted; nothing was written\n"


# ---- tables ---------------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self):
        return True


def test_tables_are_framed_on_a_terminal(monkeypatch, capsys):
    show("[Title]", ["name", "number"], [["[bold]a", "1"], ["b", "200"]])
    assert capsys.readouterr().out == "[Title]\nname     number\n[bold]a       1\nb           200\n"
    monkeypatch.setattr("sys.stdout", Terminal())
    show("[Title]", ["name", "number"], [["[bold]a", "1"], ["b", "200"]])
    assert "│ [bold]a │      1 │" in sys.stdout.getvalue()
    assert "[Title]" in sys.stdout.getvalue()


@pytest.mark.parametrize("command", ["fit", "recommend", "evaluate", "compare"])
def test_every_option_tells_its_default(command):
    for option in main.commands[command].params:
        if getattr(option, "help", None) and not option.required and not option.multiple:
            assert option.show_default, option.name
    assert "Usage: main " + command in typed(command, "--help").stdout


# ---- what a newcomer may do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["-o", "DATA"], ["-o", "OTHER", "--checkpoint", "DATA"]])
def test_fit_does_not_write_over_the_data(plays, tmp_path, options):
    data = tmp_path / "plays.csv"
    data.write_bytes(plays.read_bytes())
    names = {"DATA": str(tmp_path / "." / "plays.csv"), "OTHER": str(tmp_path / "model.nbmf")}
    result = typed("fit", data, *QUICK, *(names.get(option, option) for option in options), code=2)
    assert "name another file" in result.output
    assert data.read_bytes() == plays.read_bytes()


def test_model_and_checkpoint_are_two_files(plays, tmp_path):
    result = typed("fit", plays, "-o", tmp_path / "one", "--checkpoint", tmp_path / "one", *QUICK, code=2)
    assert "--checkpoint" in result.output


def test_what_was_fitted_is_no_test(plays, model_file):
    for options in (["--model-file", model_file], ["--test", plays, *QUICK]):
        assert "nothing to find" in typed("evaluate", plays, *options, code=2).output


def test_faults_are_found_before_the_fit(plays):
    assert "sweep" in typed("compare", plays, *QUICK).output
    result = typed("compare", plays, "--metric", "ndcg", *QUICK, code=2)
    assert "there is no metric 'ndcg'; there are ndcg_counts, ndcg_at_least_1, " in result.output
    assert "sweep" not in result.output
    result = typed("evaluate", plays, "--test-fraction", "0.0001", *QUICK, code=2)
    assert "--test-fraction" in result.output
    assert "sweep" not in result.output


def test_a_file_of_zeros_is_named(tmp_path):
    path = tmp_path / "zeros.tsv"
    path.write_text("user\titem\tcount\nann\tjazz\t0\n")
    assert "no count is above 0" in typed("fit", path, "-o", tmp_path / "model", code=2).output


def test_advice_is_for_the_shell(plays, model_file, tmp_path):
    assert "--time COLUMN" in typed("evaluate", plays, "--split", "last", *QUICK, code=2).output
    assert "nbmf fit DATA -o FILE" in typed("recommend", plays, "--user", "ann", code=2).output
    path = tmp_path / "which.csv"
    path.write_text("a,b,c,d\n1,2,3,4\n")
    assert "--user" in typed("fit", path, "-o", tmp_path / "model", code=2).output


def test_an_id_that_is_nearly_right_is_guessed(model_file):
    assert "did you mean 'user 7'?" in typed("recommend", model_file, "--user", "User 7", code=2).output


def test_a_file_and_json_are_not_both_written(model_file, tmp_path):
    typed("recommend", model_file, "--all", "-o", tmp_path / "best.csv", "--json", code=2)
