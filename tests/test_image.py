"""The Dockerfile and the systemd unit: built and run where there is an engine, and otherwise followed step by step."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from numba.core.caching import InTreeCacheLocator

import nbmf
from helpers import as_nobody, child, open_folder
from nbmf.cli.warm import loops
from serving import TOKEN, Client, wait_for, write_model

ROOT = Path(__file__).parents[1]
FOLDERS = r"/(?=(?:venv|source|models)(?![\w-]))"  # of the image, which lie under a prefix here


def instructions():
    """The steps of the Dockerfile: pairs of a word and the rest."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def engine():
    """The container engine that answers here, if any."""
    for name in ("docker", "podman"):
        if (
            shutil.which(name)
            and subprocess.run([name, "info"], capture_output=True, timeout=60, check=False).returncode == 0
        ):
            return name
    return None


class Image:
    """What the Dockerfile makes, under a prefix of this machine's own file system."""

    def __init__(self, prefix):
        self.prefix, self.command, self.user, self.health = prefix, [], "root", []
        self.environment, self.folder = {}, prefix
        (prefix / "bin").mkdir()
        (prefix / "bin" / "python").symlink_to(sys._base_executable)  # the base image's
        for word, rest in instructions():
            getattr(self, f"do_{word.lower()}")(self.placed(rest))

    def placed(self, text):
        return re.sub(FOLDERS, f"{self.prefix}/", text)

    def do_from(self, image):
        self.environment = {"PATH": f"{self.prefix}/bin:/usr/local/bin:/usr/bin:/bin"}

    def do_workdir(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)

    def do_copy(self, names):
        if names.startswith("--from="):  # stages share the prefix
            assert Path(names.split()[1]).exists()
            return
        ignored = (ROOT / ".dockerignore").read_text().split()
        *sources, target = names.split()
        for name in sources:
            assert f"!{name}" in ignored, f"{name} is kept from the build by .dockerignore"
            place = self.folder / target if target != "./" else self.folder / name
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)

    def do_env(self, pairs):
        for pair in shlex.split(pairs):
            name, _, value = pair.partition("=")
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def do_run(self, line):
        if "pip install" in line:
            # what the package needs comes from this environment: to download it takes minutes
            site = next(self.prefix.glob("venv/lib/python*/site-packages"))
            hatchling = Path(find_spec("hatchling").origin).parents[1]
            (site / "here.pth").write_text(f"{sysconfig.get_path('purelib')}\n{hatchling}\n")
            line = line.replace("pip install", "pip install --no-index --no-deps --no-build-isolation -q")
        if line.endswith("nbmf warm"):
            self.take_compiled_code()
            line += " --dtype float32"  # half of it will do here
        run = subprocess.run(
            line, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert run.returncode == 0, line + run.stdout + run.stderr

    def take_compiled_code(self):
        """Take what was compiled here as compiled there: to compile everything takes a minute."""
        ours, _ = Path(nbmf.__file__).parent, (nbmf.NBSLIM, nbmf.evaluate)  # so that all loops are imported
        theirs = next(self.prefix.glob("venv/lib/python*/site-packages/nbmf"))
        for loop in loops():
            path = theirs / Path(loop.py_func.__code__.co_filename).relative_to(ours)
            place = Path(self.environment["NUMBA_CACHE_DIR"], InTreeCacheLocator.get_suitable_cache_subpath(str(path)))
            place.mkdir(parents=True, exist_ok=True)
            for known in reversed(loop._cache._places):
                for file in Path(known.cache_path).glob(f"{path.stem}.{loop.__name__}-*.nb?"):
                    shutil.copy(file, place)

    def do_user(self, user):
        self.user = user

    def do_volume(self, folder):
        Path(folder).mkdir()

    def do_expose(self, port):
        self.port = port

    def do_healthcheck(self, rest):
        self.health = json.loads(rest.partition("CMD ")[2])

    def do_entrypoint(self, rest):
        self.command += json.loads(rest)

    do_cmd = do_entrypoint


@pytest.fixture(scope="module")
def image():
    pytest.importorskip("hatchling", reason="hatchling is not installed: it comes with the extra dev")
    with open_folder() as prefix:
        yield Image(prefix)


def test_the_image_serves_as_nobody_and_writes_nothing(image):
    """By the steps of the Dockerfile, with files that belong to root; nothing is compiled, so nothing need be kept."""
    assert image.user == "65534:65534"
    write_model(image.prefix / "models" / "model.nbmf")
    subprocess.run(["chmod", "-R", "a+rX,a-w", image.prefix], timeout=60, check=True)
    environment = {**image.environment, "NBMF_TOKEN": TOKEN, "HOME": "/nonexistent"}
    program = shutil.which(image.command[0], path=environment["PATH"])
    command = as_nobody(program, *image.command[1:], "--port", "0", "--log-level", "debug")
    before = {path: path.stat().st_mtime_ns for path in image.prefix.rglob("*")}
    with child(command, cwd="/", env=environment, stderr=subprocess.PIPE, text=True) as server:
        lines = iter(server.stderr.readline, "")
        told = next(line for line in lines if "serving at" in line)
        port = re.search(r":(\d+)/", told)[1]
        client = Client(int(port))
        wait_for(lambda: client.ask("/ready")[0] == 200, 120)
        assert client.ask("/health", host="10.0.0.3")[0] == 200
        assert client.ask("/api/model")[0] == 401
        client.token = TOKEN
        assert len(client.get("/api/recommend", user="ann/7", n=3)["items"]) == 3
        health = [part.replace(":8000", f":{port}") for part in image.health]
        health[0] = shutil.which(health[0], path=environment["PATH"])
        assert subprocess.run(as_nobody(*health), env=environment, cwd="/", timeout=60, check=False).returncode == 0
        server.terminate()
        log = server.stderr.read()
        assert subprocess.run(as_nobody(*health), capture_output=True, cwd="/", timeout=60, check=False).returncode != 0
    assert "compiled code" not in told + log
    assert '"path": "/api/recommend", "status": 200' in log
    assert {path: path.stat().st_mtime_ns for path in image.prefix.rglob("*")} == before


def test_an_image_is_built_and_serves(tmp_path):
    name = engine()
    if name is None:
        pytest.skip("neither docker nor podman answers here; its steps are followed one by one instead")
    write_model(tmp_path / "model.nbmf")
    tmp_path.chmod(0o755)

    def run(*arguments):
        command = [name, *map(str, arguments)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=True).stdout.strip()

    run("build", "-q", "-t", "nbmf-test", ROOT)
    strict = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    options = ["-d", "--rm", "-p", "127.0.0.1::8000", "-e", f"NBMF_TOKEN={TOKEN}", "-v", f"{tmp_path}:/models:ro"]
    container = run("run", *strict, *options, "nbmf-test")
    try:
        client = Client(int(run("port", container, "8000").split()[0].rpartition(":")[2]), TOKEN)
        wait_for(lambda: answers(client), 120)
        assert len(client.get("/api/recommend", user="ann/7", n=3)["items"]) == 3
    finally:
        run("rm", "-f", container)


def answers(client):
    try:
        return client.ask("/ready")[0] == 200
    except OSError:
        return False


def test_the_systemd_unit_is_valid():
    unit = ROOT / "deploy" / "nbmf.service"
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read(unit)
    service = parser["Service"]
    assert service["DynamicUser"] == "yes"
    assert service["Environment"] == f"NUMBA_CACHE_DIR=/var/cache/{service['CacheDirectory']}"
    arguments = shlex.split(service["ExecStart"])[2:]
    from nbmf.cli.serve import serve

    with serve.make_context("serve", arguments) as context:
        assert context.params["model"] == f"/var/lib/{service['StateDirectory']}/model.nbmf"
    if shutil.which("systemd-analyze") is None:
        return
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    told = [line for line in found.stderr.splitlines() if "nbmf.service" in line and "is not executable" not in line]
    assert told == []
