"""Ctrl-C and SIGTERM at random moments of every command that takes a while, and Ctrl-C in a fit in Python.

    python tests/torture/interrupts.py --seconds 600 --seed 1       as many as ten minutes allow
    python tests/torture/interrupts.py --seed 1 --case 17           one of them again, at the same share of its time

Ctrl-C goes to the whole process group, as a terminal sends it, SIGTERM to the process alone, as a service manager does.
Whenever it comes, the command ends with its exit code (130, or 0 if it was done), within LIMIT_S, without a traceback,
a temporary file or a process that stays behind; and what it writes is the old file, the new one or none, never a part.
Ctrl-C before Python has started, or while it does, meets no line of ours: such a case is told, but not counted.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import numpy as np

import nbmf
from helpers import child, write_rows
from nbmf.storage.container import read
from torture import typed_options

LIMIT_S = 20.0  # from the signal to the end of the process, on a busy machine
READY = "serving at"
IN_PYTHON = """
try:
    import sys, warnings, nbmf
    warnings.simplefilter("ignore")
    model = nbmf.NBMF(4, max_iter=100, tol=0, random_state=0).fit(nbmf.read_interactions(sys.argv[1]))
    model.save(sys.argv[2])
except KeyboardInterrupt:
    raise SystemExit(130)
"""
EARLY = "before Python had started"
STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
SAID_AT_START = re.compile(  # by Python, around the lines of tracebacks, which are indented
    r"""Could\ not\ import\ runpy\ module
    | Fatal\ Python\ error:\ init_\w+:.*
    | Python\ runtime\ state:.*
    | Traceback\ \(most\ recent\ call\ last\):
    | During\ handling\ of\ the\ above\ exception,\ another\ exception\ occurred:
    | \w+Error:.*
    | KeyboardInterrupt""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Command:
    """What is typed in a folder that has plays.csv and plays.nbmf, what it writes, and what makes that whole."""

    typed: tuple[str, ...]
    writes: tuple[str, ...] = ()
    is_whole: Callable[[Path], bool] = lambda path: True

    def line(self) -> list[str]:
        if self.typed[0] == "python":
            return [sys.executable, "-c", IN_PYTHON, *self.typed[1:]]
        return [sys.executable, "-m", "nbmf", *self.typed]


def is_model(path: Path) -> bool:
    return nbmf.load(path).n_iter_ > 0


def is_table(path: Path) -> bool:
    return len(path.read_text().splitlines()) == 1 + 10 * len(nbmf.load(path.parent / "plays.nbmf").users_)


def is_database(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


COMMANDS = {
    "fit": Command(
        ("fit", "plays.csv", "-o", "out.nbmf", "-k", "5", "--max-iter", "60", "--tol", "0"), ("out.nbmf",), is_model
    ),
    "fit with checkpoints": Command(
        (
            *("fit", "plays.csv", "-o", "out.nbmf", "-k", "5", "--max-iter", "60", "--tol", "0"),
            *("--checkpoint", "out.ck", "--checkpoint-every", "1"),
        ),
        ("out.nbmf", "out.ck"),
        lambda path: is_model(path) if path.suffix == ".nbmf" else bool(read(path).arrays),
    ),
    "fit nbslim": Command(("fit", "plays.csv", "-o", "out.nbmf", "--model", "nbslim"), ("out.nbmf",), is_model),
    "evaluate": Command(("evaluate", "plays.csv", "-k", "5", "--max-iter", "60", "--tol", "0")),
    "compare": Command(("compare", "plays.csv", "-k", "5", "--max-iter", "30", "--models", "nbmf,poisson,popularity")),
    "compare tuned": Command(("compare", "plays.csv", "--tune", "2", "--models", "poisson,popularity")),
    "recommend": Command(("recommend", "plays.nbmf", "--all", "-o", "out.csv"), ("out.csv",), is_table),
    "reproduce": Command(
        ("reproduce", "plays.csv", "-o", "out", "-k", "2", "--starts", "2", "--workers", "2"),
        ("out",),
        lambda path: not (path / "results.sqlite").exists() or is_database(path / "results.sqlite"),
    ),
    "explore": Command(
        ("explore", "plays.csv", "--refit", "--no-browser", "--port", "0", "-k", "5"),
        ("plays.nbmf", "plays.nbmf.history.json"),
    ),
    "serve": Command(("serve", "plays.nbmf", "--port", "0")),
    "python": Command(("python", "plays.csv", "out.nbmf"), ("out.nbmf",), is_model),
}


def make_folder(folder: Path) -> None:
    """Write counts and a model of them."""
    rng = np.random.default_rng(0)
    counts = rng.negative_binomial(0.7, 0.3, (300, 120)) * (rng.random((300, 120)) < 0.3)
    rows = [(f"u{u}", f"i{i}", counts[u, i]) for u, i in np.argwhere(counts).tolist()]
    write_rows(folder / "plays.csv", rows, ["user", "item", "count"])
    nbmf.NBMF(4, max_iter=5, random_state=0).fit(nbmf.read_interactions(folder / "plays.csv")).save(
        folder / "plays.nbmf"
    )


def copied(original: Path, folder: Path) -> Path:
    """Make a folder with the same files, and one for temporary files inside it."""
    (folder / "temporary").mkdir(parents=True)
    for path in original.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    os.utime(folder / "plays.csv")  # newer than the model, so explore fits
    return folder


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder / "temporary"), "PYTHONUNBUFFERED": "1"}


def started(command: Command, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return child(command.line(), cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def seconds_of(command: Command, folder: Path) -> float:
    """Return how long a command takes when nobody disturbs it; of a server, until it is ready and a little more."""
    begun = time.monotonic()
    with started(command, folder) as running:
        told = []
        for line in running.stderr or ():
            told.append(line.decode())
            if READY in told[-1]:
                time.sleep(0.3)
                running.send_signal(signal.SIGTERM)
        if running.wait(timeout=300):
            raise AssertionError(f"{command.typed}, undisturbed, ends with {running.returncode}: {''.join(told)}")
    return time.monotonic() - begun


def disturb(command: Command, folder: Path, number: int, after_s: float) -> str:
    """Send a signal to a command; return what is wrong afterwards, EARLY if that came too early, or nothing."""
    before = {name: b"what was here before" for name in command.writes if name.startswith("out.")}
    for name, content in before.items():
        (folder / name).write_bytes(content)
    with started(command, folder) as running:
        time.sleep(after_s)
        if running.poll() is None:
            (os.killpg if number == signal.SIGINT else os.kill)(running.pid, number)
        try:
            told = running.communicate(timeout=LIMIT_S)[1].decode()
        except subprocess.TimeoutExpired:
            return f"still runs {LIMIT_S:.0f} s after the signal"
        code = running.returncode
    found = {name: (folder / name).read_bytes() for name in before if (folder / name).is_file()}
    early = number == signal.SIGINT and found == before and is_early(code, told)
    end = "" if early else wrong_end(code, told, number)
    wrong = "; ".join(filter(None, (end, left_running(running.pid), left_behind(folder, command, before))))
    return wrong or EARLY * early


def is_early(code: int, told: str) -> bool:
    """Return whether Ctrl-C ended Python before it came to a line of ours.

    Python then dies without a word or with a traceback of its own start alone. A line of ours, or of a library that we
    import, would have a frame of ours above it: of the package, or of what follows `python -c`.
    """
    if not told:
        return code == -signal.SIGINT
    lines = told.rstrip().splitlines()
    if code not in (1, -signal.SIGINT) or lines[-1] != "KeyboardInterrupt":
        return False
    if not all(not line or line.startswith("  ") or SAID_AT_START.fullmatch(line) for line in lines):
        return False
    files = re.findall('^  File "([^"]*)", line', told, re.MULTILINE)
    return all(is_of_the_start(file, "<frozen site>" in files) for file in files)


def is_of_the_start(file: str, in_site: bool) -> bool:
    """Return whether the code of a frame is Python's own, or that of a .pth file."""
    if "/site-packages/" in file:
        return "/site-packages/_distutils_hack/" in file
    return file.startswith(("<frozen ", STANDARD_LIBRARY)) or (file == "<string>" and in_site)


def wrong_end(code: int, told: str, number: int) -> str:
    if code == -number and not told:  # as Python ends, it no longer handles signals
        return ""
    if "Traceback" in told or "Warning" in told:
        return f"a traceback or a warning of Python:\n{told}"
    allowed = (0, 130) if number == signal.SIGINT else (0, 143, -signal.SIGTERM)
    return "" if code in allowed else f"exit code {code}: {told[-200:]!r}"


def left_running(group: int) -> str:
    """A helper of multiprocessing ends last, a moment after the command."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return ""
        time.sleep(0.05)
    return "a process is left"


def left_behind(folder: Path, command: Command, before: dict[str, bytes]) -> str:
    known = {"plays.csv", "plays.nbmf", "temporary", *command.writes}
    strange = [path.name for path in folder.iterdir() if path.name not in known]
    strange += [f"temporary/{path.name}" for path in (folder / "temporary").iterdir()]
    if strange:
        return f"left behind: {', '.join(sorted(strange)[:5])}"
    for name in command.writes:
        path = folder / name
        if path.exists() and not (path.is_file() and path.read_bytes() == before.get(name)):
            try:
                if not command.is_whole(path):
                    return f"{name} is not whole"
            except Exception as error:
                return f"{name} cannot be read: {error}"
    return ""


def case_of(seed: int, case: int) -> tuple[str, int, float]:
    """Return the command, the signal, and when it comes, as a share of the command's time."""
    chance = random.Random(1_000_003 * seed + case)
    name = chance.choice(list(COMMANDS))
    number = signal.SIGTERM if chance.random() < 0.25 else signal.SIGINT
    if name == "python":  # SIGTERM ends a program that does not handle it at once, whatever it has open
        number = signal.SIGINT
    return name, number, chance.uniform(0, 1.05)


def main() -> int:
    options = typed_options(__doc__, case=None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background, and inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    end, times, n_tried, failed, early = time.monotonic() + options.seconds, dict[str, float](), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="nbmf-interrupts-") as place:
        original = Path(place, "original")
        original.mkdir()
        make_folder(original)
        case = 0 if options.case is None else options.case
        while time.monotonic() < end:
            name, number, share = case_of(options.seed, case)
            if name not in times:
                times[name] = seconds_of(COMMANDS[name], copied(original, Path(place, f"undisturbed {name}")))
            folder = copied(original, Path(place, f"case {case}"))
            wrong = disturb(COMMANDS[name], folder, number, share * times[name])
            early += wrong == EARLY
            n_tried += wrong != EARLY
            if wrong not in ("", EARLY):
                failed += 1
                signal_name = signal.Signals(number).name
                print(f"{name}, {signal_name} after {share:.2f} of {times[name]:.1f} s: {wrong}")
                print(f"    python tests/torture/interrupts.py --seed {options.seed} --case {case}", flush=True)
            if options.case is not None:
                break
            case += 1
    ended = f"{n_tried - failed} of {n_tried} signals to {len(times)} commands ended as they should"
    print(f"interrupts: {ended}, {early} came {EARLY}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
