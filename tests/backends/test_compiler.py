"""Where compiled code is kept: wherever there is room, never where others could change it, and never with an error."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import caching

import nbmf
from helpers import NOBODY, as_nobody, child, open_folder, small_matrix, write_rows
from nbmf.backends.cpu import compiler
from nbmf.cli.options import MODELS
from serving import Client, wait_for


def twice(x):
    return x + x


def loop():
    """A compiled function that is like new, as in another process."""
    return compiler.compiler(fastmath=False)(twice)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for compiled code, as the variable NUMBA_CACHE_DIR would name it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def nowhere(monkeypatch):
    """As if none of numba's own places could be written to."""

    kinds = (compiler.UserProvided, compiler.InTree, compiler.UserWide)
    usual = compiler.InTree.ensure_cache_path

    def refuse(self):
        if type(self) in kinds:
            raise PermissionError("read-only")
        usual(self)

    for kind in kinds:
        monkeypatch.setattr(kind, "ensure_cache_path", refuse)
    compiler.private_folder.cache_clear()
    yield
    compiler.private_folder.cache_clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder of temporary files that everybody shares, such as /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    return shared


def test_code_is_kept_and_found_again(folder):
    first, second = loop(), loop()
    assert first(3) == second(3) == 6
    assert (first.stats.cache_misses.total(), first.stats.cache_hits.total()) == (1, 0)
    assert (second.stats.cache_misses.total(), second.stats.cache_hits.total()) == (0, 1)
    assert Path(first.stats.cache_path).parent == folder


def test_code_is_read_from_a_folder_that_cannot_be_written_to(folder, temporary, monkeypatch, request):
    loop()(3)
    request.getfixturevalue("nowhere")
    found = loop()
    assert found(3) == 6  # without a warning, which would be an error here
    assert found.stats.cache_hits.total() == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("nowhere", "folder")
def test_without_another_place_code_is_kept_among_temporary_files(temporary):
    with pytest.warns(UserWarning, match=f"kept in {temporary}/nbmf-{os.getuid()}, .* set NUMBA_CACHE_DIR"):
        assert loop()(3) == 6
    private = temporary / f"nbmf-{os.getuid()}"
    assert private.stat().st_mode & 0o777 == 0o700
    again = loop()
    assert again(3) == 6  # and is told only once
    assert again.stats.cache_hits.total() == 1


@pytest.mark.usefixtures("nowhere", "folder")
@pytest.mark.parametrize("trap", ["link", "open", "file", "shared", "foreign"])
def test_a_folder_that_others_could_change_is_not_used(temporary, trap):
    """Code is loaded as it lies there: whoever can write to the folder can run code as us."""
    place = temporary / f"nbmf-{os.getuid()}"
    if trap == "link":
        (temporary / "theirs").mkdir(mode=0o700)
        place.symlink_to(temporary / "theirs")
    elif trap == "open":
        place.mkdir()
        place.chmod(0o777)
    elif trap == "file":
        place.write_text("")
    elif trap == "shared":  # without the sticky bit, anybody can rename our folder and make another
        temporary.chmod(0o777)
    elif os.getuid() == 0:
        place.mkdir(mode=0o700)
        os.chown(place, 1, 1)
    else:
        pytest.skip("only root can make a folder of another user")
    found = loop()
    with pytest.warns(UserWarning, match="there is no folder to keep compiled code in"):
        assert found(3) == 6
    assert found.stats.cache_path is None
    assert list(temporary.rglob("*.nb?")) == []


@pytest.mark.parametrize("trap", ["open", "group", "foreign", "replaceable"])
def test_a_chosen_folder_that_others_could_change_is_not_used(folder, temporary, monkeypatch, trap):
    """Neither read from nor written to, even though the variable names it."""
    monkeypatch.setattr(compiler._Code, "_places", property(lambda code: [compiler._Place(code.function, chosen())]))

    def chosen():
        return compiler.UserProvided(twice, __file__)

    assert loop()(3) == 6
    [place] = folder.iterdir()
    if trap == "foreign" and os.getuid():
        pytest.skip("only root can give folders away")
    if trap == "open":
        place.chmod(0o757)
    elif trap == "group":
        os.chown(place, -1, next(group for group in (*os.getgroups(), 12) if group != os.getuid()))
        place.chmod(0o775)
    elif trap == "foreign":
        os.chown(place, 12, 12)
    else:
        place.parent.chmod(0o777)
    before = sorted(place.iterdir())
    compiler.private_folder.cache_clear()
    found = loop()
    with pytest.warns(UserWarning, match=f"kept in {temporary}"):
        assert found(3) == 6
    assert found.stats.cache_hits.total() == 0
    assert found(2.5) == 5
    assert sorted(place.iterdir()) == before
    compiler.private_folder.cache_clear()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("above", ["foreign", "foreign and sticky"])
def test_a_private_folder_in_a_folder_of_another_user_is_not_used(folder, temporary, above):
    if os.getuid():
        pytest.skip("only root can give folders away")
    temporary.chmod(0o1777 if "sticky" in above else 0o755)
    os.chown(temporary, 12, 12)
    with pytest.warns(UserWarning, match="there is no folder to keep compiled code in"):
        assert loop()(3) == 6
    assert list(temporary.rglob("*.nb?")) == []


def test_without_a_home_nothing_is_kept_below_the_working_folder(tmp_path, monkeypatch):
    """Where the user has no home, numba's folder for the user is `~/.cache/numba`, and that from wherever we are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    places = [place.cache_path for place in loop()._cache._places]
    assert places
    assert all(map(os.path.isabs, places))


@pytest.mark.usefixtures("folder")
def test_a_full_disk_or_a_damaged_file_costs_time_only(folder, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(caching.IndexDataCacheFile, "_save_data", fail)
        assert loop()(3) == 6
    assert loop()(3) == 6
    [index] = folder.rglob("*.nbi")
    [code] = folder.rglob("*.nbc")
    for path in (index, code):
        path.write_bytes(path.read_bytes()[:20])
        found, after = loop(), loop()
        assert found(3) == after(3) == 6
        assert after.stats.cache_hits.total() == 1  # mended


@pytest.mark.usefixtures("folder")
def test_two_processes_that_write_at_once_do_not_mix_up_types(folder, monkeypatch):
    """Both have read an empty index, so each believes that its code is the first."""
    monkeypatch.setattr(caching.IndexDataCacheFile, "_load_index", lambda self: {})
    loop()(3)
    loop()(2.5)
    assert len(list(folder.rglob("*.nbc"))) == 2
    monkeypatch.undo()
    assert (loop()(3), loop()(2.5)) == (6, 5.0)


# ---- in a process of its own ----------------------------------------------------------------------------------------


@pytest.fixture
def entered():
    with open_folder() as folder:
        yield folder


def test_a_user_without_a_home_or_a_writable_package_can_do_everything(entered):
    """The usual hardened container: uid 65534, no home, files that belong to root."""
    site, own, shared = entered / "site", entered / "own", entered / "shared"
    shutil.copytree(Path(nbmf.__file__).parent, site / "nbmf", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a-w", site], timeout=60, check=True)
    for folder in (own, shared):
        folder.mkdir()
        os.chown(folder, int(NOBODY), int(NOBODY))
    shared.chmod(0o1777)
    rows = [(f"u{u}", f"i{i}", n) for (u, i), n in np.ndenumerate(small_matrix()) if n]
    data, model = write_rows(entered / "plays.csv", rows), own / "model.nbmf"
    environment = {"HOME": "/nonexistent", "PYTHONPATH": str(site), "TMPDIR": str(shared), "PATH": os.environ["PATH"]}
    nbmf_command = as_nobody(sys.executable, "-m", "nbmf")

    def run(*arguments):
        found = subprocess.run(
            [*nbmf_command, *map(str, arguments)], env=environment, cwd=own, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        return found

    said = run("fit", data, "-o", model, "--model", "poisson", "-k", 2, "--max-iter", 2).stderr
    assert said.count(f"note: compiled code is kept in {shared}/nbmf-{NOBODY}") == 1
    [best, *_] = json.loads(run("recommend", model, "--user", "u1", "--json").stdout)[0]["items"]
    command = [*nbmf_command, "serve", model, "--port", "0"]
    with child(command, env=environment, cwd=own, stderr=subprocess.PIPE, text=True) as server:
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"http://127.0.0.1:(\d+)/", line)))
        client = Client(port)
        wait_for(lambda: client.ask("/ready")[0] == 200, 120)
        assert client.ask("/health")[0] == 200
        assert client.get("/api/recommend", user="u1", n=1)["items"][0]["item"] == best["item"]
        server.terminate()
    assert list(site.rglob("*.nb?")) == []


LOGARITHM = """
import numpy as np
from nbmf.backends.cpu import kernels
print(kernels.sum_log1p(np.ones(3), 1.0, False), kernels.sum_log1p.stats.cache_hits.total())
"""


def test_code_that_contains_a_changed_function_is_compiled_anew(tmp_path):
    """Loops of `elementary` become part of others' code, which is of an older version once `elementary` is upgraded."""
    package = tmp_path / "site" / "nbmf"
    shutil.copytree(Path(nbmf.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))

    def run():
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        command = [sys.executable, "-c", LOGARITHM]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert found.returncode == 0, found.stderr
        total, hits = found.stdout.split()
        return float(total), int(hits)

    assert run() == (pytest.approx(3 * np.log(2)), 0)
    assert run() == (pytest.approx(3 * np.log(2)), 1)
    path = package / "backends" / "cpu" / "elementary.py"
    path.write_text(path.read_text().replace("LN_2 = 0.6931471805599453", "LN_2 = 1.0"))
    assert run() == (pytest.approx(3), 0)


COUNTED = """
import json, sys
from nbmf.cli import main
from nbmf.cli.warm import loops
from nbmf.web.reload import ServedModel

*arguments, ask = sys.argv[1:]
main(arguments, standalone_mode=False)
if ask:
    views = ServedModel(ask).views
    views.warm_up()
    user, item = map(str, views.example.values())
    choice = {"include_seen": True, "allow": [item], "deny": []}
    views.recommend(user, 5, 0.9, **choice)
    views.recommend_to_all(views.model.users_[:20].tolist(), 5, 0.9)
    views.recommend_for([(item, 3)], 5, 0.9, **choice)
    views.history(user, 5)
    views.abilities["factors"] and (views.factors, views.map)
types = {f"{loop.py_func.__module__}.{loop.__name__}": list(map(str, loop.signatures)) for loop in loops()}
print(json.dumps(types))
"""


def test_after_warm_nothing_is_left_to_compile(tmp_path):
    """Neither for `nbmf fit` of any model, nor for `recommend`, `evaluate` and whatever a server is asked."""

    def types_used(*arguments, ask=""):
        command = [sys.executable, "-c", COUNTED, *map(str, arguments), ask]
        found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert found.returncode == 0, found.stderr
        types = json.loads(found.stdout.splitlines()[-1])
        return {(name, each) for name, signatures in types.items() for each in signatures}

    warm = types_used("warm", "--json")
    rows = [(f"u{u}", f"i{i}", n) for (u, i), n in np.ndenumerate(small_matrix(90, 50)) if n]
    data = write_rows(tmp_path / "plays.csv", rows)
    for model in MODELS:
        path, few = str(tmp_path / model), [] if model == "nbslim" else ["--max-iter", 3]
        used = types_used("fit", data, "-o", path, "--model", model, *few, ask=path)
        assert len(used) > 3
        assert used <= warm, sorted(used - warm)
    used = types_used("recommend", tmp_path / "nbmf", "--user", "u1") | types_used("evaluate", data, "--max-iter", 3)
    assert used <= warm, sorted(used - warm)
