"""Build the wheel and the sdist, install them in clean environments, and use every public name there.

    make packages
    python tests/packages.py --only wheel "lower bounds"
    python tests/packages.py --python /usr/bin/python3.13       besides this one and those on the path

Each environment has a Python, one of the two files with some extras, and nothing else; "lower bounds" pins every
dependency to the least version that pyproject.toml allows. `tests/smoke.py` then runs in it, in an empty folder. This
takes minutes and needs a package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("plots", "tune", "server", "anndata", "dask", "demo")  # gpu brings gigabytes, and bench compiles
KNOWN_PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
STEP_S = 1800.0
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,]+\])?>=(?P<least>[\d.]+)(; .*)?")


@dataclass(frozen=True)
class Environment:
    """What is installed where."""

    name: str
    python: str
    file: Path
    extras: tuple[str, ...] = ()
    at_lower_bounds: bool = False

    @property
    def requirement(self) -> str:
        return f"{self.file}[{','.join(self.extras)}]" if self.extras else str(self.file)

    def constraints(self) -> str:
        groups = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in self.extras)]
        least = dict(lower_bound(line) for group in groups for line in group)
        return "".join(f"{name}=={bound}\n" for name, bound in least.items())


def lower_bound(requirement: str) -> tuple[str, str]:
    """Return the package and its least version.

    >>> lower_bound("uvicorn[standard]>=0.32")
    ('uvicorn', '0.32')
    """
    parts = REQUIREMENT.fullmatch(requirement)
    if parts is None:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound; write name>=version")
    return parts["name"], parts["least"]


def step(*line: object, cwd: Path | None = None) -> str:
    """Run one step without the surroundings of this process; return its last lines."""
    inherited = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NUMBA_CACHE_DIR", "NBMF_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    done = subprocess.run(
        list(map(str, line)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, line))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout.strip()


def make(python: str, folder: Path, *install: object) -> Path:
    """Make an environment, with uv where it is installed; return its interpreter."""
    step(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    pip = [inside, "-m", "pip", "install", "--disable-pip-version-check"]
    step(*(["uv", "pip", "install", "--python", inside] if shutil.which("uv") else pip), "--quiet", *install)
    return inside


def build(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist, built in a clean environment."""
    python = make(
        sys.executable,
        folder / "builder",
        *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"],
    )
    step(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


def pythons(given: list[str]) -> list[str]:
    """Return this Python, those on the path and those given, each version once."""
    found: dict[str, str] = {}
    for name in (sys.executable, *given, *filter(None, map(shutil.which, KNOWN_PYTHONS))):
        try:
            number = step(name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        except RuntimeError:  # a shim of something that is not there
            continue
        found.setdefault(number, name)
    return list(found.values())


def try_out(environment: Environment, folder: Path) -> str:
    """Install and use the package; return what the smoke test says, with the versions."""
    (folder / "empty").mkdir(parents=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(environment.constraints() if environment.at_lower_bounds else "")
    python = make(environment.python, folder / "venv", environment.requirement, "-c", constraints)
    where = step(python, "-c", "import nbmf; print(nbmf.__file__)", cwd=folder / "empty")
    if not Path(where).is_relative_to(folder):
        raise RuntimeError(f"nbmf comes from {where}, not from the environment")
    told = step(python, ROOT / "tests" / "smoke.py", cwd=folder / "empty").splitlines()[-1]
    names = [lower_bound(line)[0] for line in PROJECT["dependencies"]]
    code = f"from importlib.metadata import version; print(*(n + ' ' + version(n) for n in {names}), sep=', ')"
    return f"{told}\n    {step(python, '-VV').split(' (')[0]}; {step(python, '-c', code)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="another interpreter to try")
    parser.add_argument("--only", nargs="*", help="names of environments")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="nbmf-packages-") as name:
        wheel, sdist = build(Path(name))
        print(f"built {wheel.name} ({wheel.stat().st_size:,} bytes) and {sdist.name} ({sdist.stat().st_size:,} bytes)")
        this, *others = pythons(options.python)
        environments = [
            Environment("wheel", this, wheel),
            Environment("sdist", this, sdist),
            Environment("lower bounds", this, wheel, at_lower_bounds=True),
            Environment("extras", this, wheel, EXTRAS),
            Environment("lower bounds of extras", this, wheel, EXTRAS, at_lower_bounds=True),
            *(Environment(f"wheel, {Path(python).name}", python, wheel) for python in others),
        ]
        for n, environment in enumerate(environments):
            if options.only and environment.name not in options.only:
                continue
            begun, folder = time.monotonic(), Path(name, str(n))
            try:
                told = try_out(environment, folder)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                told, failed = f"FAILED: {error}", failed + 1
            print(f"{environment.name}: {told} ({time.monotonic() - begun:.0f} s)", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"packages: {'every environment passed' if not failed else f'{failed} environments FAILED'}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
