"""What is built is complete, and pyproject.toml is consistent; `make packages` installs and uses it."""

import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from packages import PROJECT, ROOT, lower_bound

pytest.importorskip("hatchling", reason="hatchling is not installed: it comes with the extra dev")
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        pytest.skip("this is not a clone: there is no list of files to compare with")
    return set(listed.stdout.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    line = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built, tracked):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode()
    assert names == {name.removeprefix("src/") for name in tracked if name.startswith("src/nbmf/")}
    assert {"nbmf/py.typed", "nbmf/web/static/index.html"} <= names
    required = set(re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.MULTILINE))
    assert required == {lower_bound(line)[0] for line in PROJECT["dependencies"]}


def test_the_sdist_has_what_tests_and_docs_need(built, tracked):
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked - names <= {".ci/run"}


def test_a_package_has_the_same_lower_bound_everywhere():
    bounds = {}
    for group in (PROJECT["dependencies"], *EXTRAS.values()):
        for name, least in map(lower_bound, group):
            assert bounds.setdefault(name, least) == least, name


def test_the_classifiers_say_which_pythons_were_tried():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    least = PROJECT["requires-python"].removeprefix(">=")
    assert versions
    assert versions[0] == least
