"""nbmf serve and nbmf explore on the command line: what they refuse, and when they fit a model."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import warnings

import numpy as np
import pytest

import helpers
import nbmf
import nbmf.cli.serve
from helpers import child, interrupted_at
from nbmf.web.reload import ServedModel, history_of
from serving import TOKEN, Client, wait_for, write_model
from small_study import write_plays

COMMANDS = nbmf.cli.serve
QUICK = ["-k", "2", "--max-iter", "4", "--no-browser"]


def typed(*arguments, **options):
    """Run a command and return what it wrote to stderr."""
    return helpers.typed(*arguments, **options).stderr


@pytest.fixture
def started(monkeypatch):
    """Record what the commands would serve."""
    calls = []
    monkeypatch.setattr(COMMANDS, "_serve", lambda path, **options: calls.append((path, options)))
    return calls


def test_off_this_machine_only_with_a_token_and_a_name(tmp_path):
    path = tmp_path / "model.nbmf"
    assert "so it needs a token: --token-file FILE, or NBMF_TOKEN" in typed("serve", path, "--host", "10.0.0.7", code=2)
    for host in ("0.0.0.0", "::"):
        assert "--allow-host NAME" in typed("serve", path, "--host", host, code=2, NBMF_TOKEN=TOKEN)
    assert "--allow-host * lets other sites" in typed("serve", path, "--allow-host", "*", code=2)
    for name in ("https://plays.example", "plays.example:8000", "*.example", "a b"):
        assert f"--allow-host {name} is no host name" in typed("serve", path, "--allow-host", name, code=2)
    (tmp_path / "token").write_text("short\n")
    assert "a token needs at least 16 letters" in typed("serve", path, "--token-file", tmp_path / "token", code=2)
    absent = typed("serve", path, "--token-file", tmp_path / "none", code=2)
    assert f"--token-file {tmp_path / 'none'} cannot be read (No such file or directory); openssl" in absent
    assert "the variable NBMF_TOKEN is empty: a token needs" in typed("serve", path, code=2, NBMF_TOKEN="")
    assert "the variable NBMF_TOKEN is 5 characters long" in typed("serve", path, code=2, NBMF_TOKEN="short")
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert COMMANDS._is_loopback(host)


@pytest.mark.parametrize("form", ["plain", "json", None])
def test_requests_are_logged_without_what_they_ask(tmp_path, form):
    """A line per request, whatever the log level; neither query, which names users, nor token, nor a forged line."""
    path = tmp_path / "model.nbmf"
    write_model(path)
    options = ["--port", 0, "--log-level", "warning", *(["--access-log", form] if form else [])]
    command = [sys.executable, "-m", "nbmf", "serve", path, *options]
    with child(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NBMF_TOKEN": TOKEN}) as process:
        start = process.stderr.readline()
        client = Client(int(re.search(r":(\d+)/", start)[1]), TOKEN)
        wait_for(lambda: client.ask("/ready")[0] == 200, 120)
        _, answer, headers = client.ask("/api/recommend?user=ann/7")
        client.ask("/a%0aforged%20line", method="PROPFIND")
        process.terminate()
        lines = [line for line in process.stderr.read().splitlines() if "/ready" not in line]
    assert answer["items"]
    assert TOKEN not in "".join(lines)
    if form is None:
        assert lines == []
        return
    assert len(lines) == 2
    when = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    if form == "plain":
        assert re.fullmatch(
            rf"{when} 127\.0\.0\.1 GET /api/recommend 200 [\d.]+ ms {headers['content-length']} bytes", lines[0]
        )
        assert "other /a%0Aforged%20line 404" in lines[1]
    else:
        assert json.loads(start)["level"] == "info"
        assert "serving at" in json.loads(start)["message"]
        first, second = map(json.loads, lines)
        assert re.fullmatch(when, first["time"])
        assert 0 < first.pop("milliseconds") < 60_000
        expected = {"client": "127.0.0.1", "method": "GET", "path": "/api/recommend", "status": 200}
        assert first == {"time": first["time"], **expected, "bytes": int(headers["content-length"])}
        assert (second["path"], second["status"]) == ("/a%0Aforged%20line", 404)


def test_what_cannot_be_served_is_told_and_not_begun(tmp_path, monkeypatch):
    assert "there is no such file" in typed("serve", tmp_path / "none.nbmf", "--port", 0, code=2)
    (tmp_path / "notes.txt").write_text("no model")
    assert "is not a file of nbmf" in typed("serve", tmp_path / "notes.txt", "--port", 0, code=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = typed("serve", tmp_path / "model.nbmf", "--port", port, code=2)
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use); --port 0 takes any free port" in told
    monkeypatch.setattr(COMMANDS.importlib.util, "find_spec", lambda name: None)
    assert "in a clone of nbmf, run pip install '.[server]'" in typed("serve", tmp_path / "model.nbmf", code=2)


def test_explore_fits_once_and_again_when_the_data_is_newer(tmp_path, started, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plays = write_plays(tmp_path)
    assert "plays.nbmf: written" in typed("explore", plays, *QUICK)
    assert started == [("plays.nbmf", {**started[0][1], "open_browser": False, "any_port": True})]
    model, history = nbmf.load("plays.nbmf"), json.loads((tmp_path / history_of("plays.nbmf")).read_text())
    assert (model.n_components, model.n_iter_) == (2, 4)
    assert model.item_names_[1] == "Song 1"
    assert len(history["seconds"]) == 4
    assert np.all(np.diff(history["seconds"]) > 0)
    assert ServedModel("plays.nbmf").views.fit()["seconds"] == history["seconds"]
    assert "--refit fits it" in typed("explore", plays, *QUICK)
    os.utime("plays.nbmf", (1, 1))
    assert "plays.nbmf: written" in typed("explore", plays, *QUICK)
    assert "plays.nbmf: written" in typed("explore", plays, *QUICK, "--refit", "--model", "poisson")
    assert isinstance(nbmf.load("plays.nbmf"), nbmf.PoissonMF)
    assert [path for path, _ in started] == ["plays.nbmf"] * 4


def test_ctrl_c_during_its_fit_ends_explore(tmp_path, started, monkeypatch):
    """It went on to serve the unfinished model, and would have shown it from then on."""
    monkeypatch.chdir(tmp_path)
    plays = write_plays(tmp_path)
    kept = {path.name for path in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        interrupted_at(2, patched)
        told = typed("explore", plays, *QUICK, code=130)
    assert told.endswith("interrupted; plays.nbmf was not written\n")
    assert started == []
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert "plays.nbmf: written" in typed("explore", plays, *QUICK)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_no_server_starts_after_a_signal_that_a_library_has_lost(tmp_path, monkeypatch, number, code):
    class Server:
        def run(self, sockets):
            raise AssertionError("it serves")

    def make_server(*settings):
        try:
            os.kill(os.getpid(), number)
        except (KeyboardInterrupt, SystemExit):
            return Server()

    monkeypatch.setattr("nbmf.web.process.make_server", make_server)
    write_model(tmp_path / "model.nbmf")
    told = typed("serve", tmp_path / "model.nbmf", "--port", 0, code=code)
    assert "serving at" not in told
    assert ("interrupted; nothing was served" in told) == (number == signal.SIGINT)


def test_explore_does_not_show_a_model_of_other_settings(tmp_path, started, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plays = write_plays(tmp_path)
    typed("explore", plays, *QUICK)
    for option, other in ((["--input", "log1p"], "input counts, not log1p"), (["--model", "poisson"], "model NBMF")):
        refused = typed("explore", plays, *QUICK, *option, code=2)
        assert f"plays.nbmf was fitted with {other}" in refused
        assert "--refit fits it again" in refused
    assert len(started) == 1
    typed("explore", plays, "--no-browser")
    typed("explore", plays, *QUICK, "--input", "log1p", "--refit")
    typed("explore", plays, *QUICK, "--input", "log1p")
    assert len(started) == 4
    assert nbmf.load("plays.nbmf").input == "log1p"
    typed("explore", plays, *QUICK, "--model", "binary", "--refit")
    assert "fitted with binarize True, not False" in typed("explore", plays, "--model", "poisson", code=2)


@pytest.mark.parametrize(("model", "name"), [("nbfism", "NBFISM"), ("blend", "Blend"), ("averaged", "Averaged")])
def test_explore_fits_several_models_in_one(tmp_path, started, monkeypatch, model, name):
    """The settings typed are those of the factors in it, also when the file is opened again."""
    monkeypatch.chdir(tmp_path)
    plays = write_plays(tmp_path)
    assert "plays.nbmf: written" in typed("explore", plays, *QUICK, "--model", model)
    assert type(nbmf.load("plays.nbmf")).__name__ == name
    assert "--refit fits it" in typed("explore", plays, *QUICK, "--model", model)
    refused = typed("explore", plays, *QUICK, "-k", 5, "--model", model, code=2)
    assert "plays.nbmf was fitted with n_components 2, not 5" in refused
    assert (tmp_path / history_of("plays.nbmf")).exists() == (model == "nbfism")
    assert len(started) == 2


def test_notes_are_objects_in_a_log_of_objects(capsys, monkeypatch):
    for name in ("basicConfig", "getLogger"):  # the loggers are those of all tests
        monkeypatch.setattr(logging, name, lambda *_, **__: logging.Logger("own"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        COMMANDS._log_requests("json", "info")
        warnings.warn("try max_iter=9", stacklevel=1)
    note = json.loads(capsys.readouterr().err)
    assert (note["level"], note["message"]) == ("warning", "try --max-iter 9")


def test_explore_shows_a_model_file_as_it_is(tmp_path, started):
    path = tmp_path / "model.nbmf"
    write_model(path)
    before = path.read_bytes()
    typed("explore", path)
    assert started[0][0] == str(path)
    assert started[0][1]["open_browser"]
    assert path.read_bytes() == before


def test_explore_never_writes_over_the_data(tmp_path, started):
    plays = write_plays(tmp_path)
    before = plays.read_bytes()
    assert "would overwrite DATA" in typed("explore", plays, "-o", plays, code=2)
    assert plays.read_bytes() == before
    assert "no such file" in typed("explore", tmp_path / "none.csv", "-o", tmp_path / "m.nbmf", code=2).lower()
    assert started == []
