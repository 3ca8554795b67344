"""Commands where something around them fails: a full disk, a missing package, a shell that starts them otherwise."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import typed
from nbmf.evaluation.experiments.store import Store
from small_study import make_quick, write_plays

ROOT = Path(__file__).parents[2]
QUICK = ["-k", "3", "--max-iter", "5"]


@pytest.fixture
def full_disk(monkeypatch):
    """Let no file grow beyond 64 bytes once a command begins to write, as on a full disk."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(n_bytes=8):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, usual[1]))
        return "0" * 2 * n_bytes

    # it names the new file that will take the place of the old one
    monkeypatch.setattr("nbmf.storage.container.secrets", SimpleNamespace(token_hex=fill))
    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@pytest.fixture(scope="module")
def model_file(plays, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.nbmf"
    typed("fit", plays, "-o", path, *QUICK)
    return path


@pytest.mark.parametrize("name", ["best.csv", "best.parquet"])
def test_recommendations_on_a_full_disk(model_file, tmp_path, full_disk, name):
    (tmp_path / name).write_text("old")
    told = typed("recommend", model_file, "--all", "-o", tmp_path / name, code=2)
    assert told.stderr.count("\n") == 1
    assert f"{name}: cannot be written" in told.stderr
    assert "what was there is unchanged. Make room in" in told.stderr
    assert (tmp_path / name).read_text() == "old"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    "command", [["fit", *QUICK], ["compare", *QUICK, "--models", "poisson"], ["tune", *QUICK, "--trials", "1"]]
)
def test_models_on_a_full_disk(plays, tmp_path, full_disk, command):
    (tmp_path / "m").write_text("old")
    told = typed(command[0], plays, *command[1:], "-o", tmp_path / "m", code=2)
    assert "m: cannot be written (File too large); what was there is unchanged" in told.stderr
    assert (tmp_path / "m").read_text() == "old"
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "command", [["compare", "--models", "ease", "--folder"], ["reproduce", "-k", "2", "--starts", "1", "-o"]]
)
def test_experiments_on_a_full_disk(tmp_path, full_disk, monkeypatch, command):
    make_quick(monkeypatch)
    plays, add, folder = write_plays(tmp_path), Store.add, tmp_path / "out"
    monkeypatch.setattr(Store, "add", lambda *row: (full_disk(), add(*row)))
    told = typed(command[0], plays, *command[1:], folder, code=2)
    assert f"{folder / 'results.sqlite'}: " in told.stderr
    assert os.listdir(folder) == ["results.sqlite"]


@pytest.mark.parametrize("command", ["fit", "compare", "tune", "explore"])
def test_a_folder_that_cannot_be_written_to_ends_the_command_before_the_fit(plays, tmp_path, command):
    folder = tmp_path / "closed"
    folder.mkdir(0o500)
    if os.geteuid() == 0:  # who may write to any folder but those of the kernel
        folder = Path("/sys/kernel")
    told = typed(command, plays, "-o", folder / "m", code=2).stderr
    assert re.search(r"cannot be written \((Permission denied|Read-only file system|Operation not permitted)\)", told)
    assert f"Allow writing to {folder}, or write elsewhere" in told
    assert "Interactions(" not in told  # nothing was read


def test_a_report_on_a_full_disk(tmp_path, full_disk, monkeypatch):
    """The fits are kept; only what cannot be written is missing."""
    make_quick(monkeypatch)
    plays = write_plays(tmp_path)
    told = typed("reproduce", plays, "-k", 2, "--starts", 1, "-o", tmp_path / "out", code=2)
    assert "cannot be written (File too large)" in told.stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if "unfinished" in path.name]


def test_a_full_disk_behind_a_pipe(model_file):
    """Standard output that cannot be written ends in a sentence, too."""
    command = [sys.executable, "-m", "nbmf", "recommend", model_file, "--all", "--json"]
    with open("/dev/full", "w") as full:
        told = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert told.returncode == 2
    assert "No space left on device" in told.stderr
    assert "Traceback" not in told.stderr


# ---- how it is started and installed --------------------------------------------------------------------------------


def test_python_runs_the_package():
    told = subprocess.run(
        [sys.executable, "-m", "nbmf", "--help"], capture_output=True, text=True, timeout=300, check=False
    )
    assert told.returncode == 0
    assert told.stdout.startswith("Usage: python -m nbmf [OPTIONS] COMMAND")
    folder = subprocess.run(
        [sys.executable, "-m", "nbmf.cli", "fit"], capture_output=True, text=True, timeout=300, check=False
    )
    assert folder.returncode != 0
    assert "nbmf.cli" in folder.stderr


def test_recommending_to_one_user_does_not_wait_for_pandas(model_file):
    """scikit-learn imports it where it can, which takes longer than the answer."""
    code = "import sys; from nbmf.cli import main; main(standalone_mode=False); sys.exit('pandas' in sys.modules)"
    command = [sys.executable, "-c", code, "recommend", model_file, "--user", "user 1"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=300, check=False).returncode == 0


def test_nobody_is_sent_to_an_index():
    """The package is not on one: what is installed from there would be a stranger's."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".js", ".html", ".md")]
    for path in (*pages, *sources):
        assert not re.search(r"nbmf\[|pip install ['\"]?nbmf", path.read_text(encoding="utf-8")), path


def test_a_missing_package_is_named_with_the_way_to_install_it(plays, monkeypatch):
    monkeypatch.setattr("nbmf.evaluation.experiments.baselines.find_spec", lambda name: None)
    told = typed("compare", plays, "--models", "als", code=2)
    assert "the model als needs the package implicit; in a clone of nbmf, run pip install '.[bench]'" in told.stderr


# ---- JSON -----------------------------------------------------------------------------------------------------------


def keys(value):
    if isinstance(value, dict):
        yield from value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(part)


@pytest.mark.parametrize("command", ["fit", "plan", "recommend", "evaluate", "compare", "choose", "reproduce", "tune"])
def test_names_in_json_are_words_joined_by_underscores(plays, model_file, tmp_path, monkeypatch, command):
    make_quick(monkeypatch)
    monkeypatch.setattr("nbmf.inference.timing.TIMED_SECONDS", 0.0)
    arguments = {
        "fit": [plays, "-o", tmp_path / "m", *QUICK],
        "plan": [plays, "-k", 3],
        "recommend": [model_file, "--user", "user 1"],
        "evaluate": [plays, *QUICK],
        "compare": [plays, *QUICK, "--models", "nbmf,popularity", "--tune", 1],
        "choose": [plays, "-k", 2, "--models", "poisson,robust"],
        "reproduce": [plays, "--count", "plays", "-k", 2, "--starts", 1, "-o", tmp_path / "out"],
        "tune": [plays, *QUICK, "--trials", 1],
    }
    found = set(keys(json.loads(typed(command, *arguments[command], "--json").stdout)))
    assert found
    assert not {name for name in found if not re.fullmatch("[a-z0-9_]+", name)}


RESENT = """
import os, signal, time, click
from nbmf.cli.terminal import sentences
class Freed:
    def __del__(self):
        os.kill(os.getpid(), getattr(signal, %r))
        for _ in range(1000): pass  # the handler runs here, where its exception is dropped
@click.command()
@sentences()
def main():
    freed = Freed()
    del freed
    time.sleep(20)
main()
"""


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_python_drops_is_sent_again(number, code):
    done = subprocess.run(
        [sys.executable, "-c", RESENT % number], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


PRINTED = """
import os, signal, sys, time, click
from nbmf.cli.terminal import sentences
@click.command()
@sentences()
def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)
    except KeyboardInterrupt as error:
        sys.excepthook(KeyboardInterrupt, error, error.__traceback__)  # as compiled code does by PyErr_Print
    time.sleep(20)
main()
"""


def test_a_signal_that_compiled_code_prints_is_sent_again():
    done = subprocess.run([sys.executable, "-c", PRINTED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted; nothing was written\n"


REPLACED = """
import os, signal, time, click
from nbmf.cli.terminal import sentences
@click.command()
@sentences()
def main():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
    except SystemExit:
        raise KeyboardInterrupt  # as DuckDB does with whatever a signal raises during a query
main()
"""


def test_sigterm_keeps_its_exit_code_where_a_library_replaces_what_it_raises():
    done = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 143
    assert "Traceback" not in done.stderr
