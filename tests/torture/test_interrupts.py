"""Ctrl-C before a command has begun, and SIGTERM; `make torture` interrupts commands at any moment."""

import subprocess
import sys

import pytest

from torture.interrupts import STANDARD_LIBRARY, is_early

INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)
send, number = os.kill, signal.SIGINT
sys.modules.pop(sys.argv[1], None)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            send(os.getpid(), number)

sys.meta_path.insert(0, Interrupt())
runpy.run_module("nbmf", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["signal", "click"])
def test_ctrl_c_during_the_imports_leaves_no_traceback(module):
    line = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED_END = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Freed:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

sys.freed = Freed()
sys.argv[1:] = ["--version"]
runpy.run_module("nbmf", run_name="__main__")
"""


def test_ctrl_c_after_the_end_is_too_late():
    line = [sys.executable, "-c", INTERRUPTED_END]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


TERMINATED = """
import os, signal, sys, tempfile

from nbmf.cli.terminal import sentences

with sentences(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_ends_a_command_after_its_temporary_files(tmp_path):
    line = [sys.executable, "-c", TERMINATED, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (143, "")
    assert list(tmp_path.iterdir()) == []


def traceback(*files, error="KeyboardInterrupt"):
    frames = "".join(f'  File "{file}", line 1, in <module>\n    import it\n' for file in files)
    return f"Traceback (most recent call last):\n{frames}{error}\n"


SITE = ("<frozen importlib._bootstrap>", "<frozen site>")
SITE_PACKAGES = f"{STANDARD_LIBRARY}site-packages/"
FATAL = "Fatal Python error: init_import_site: Failed to import the site module\nPython runtime state: initialized\n"
RUNPY = "Could not import runpy module\n"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-2, ""),
        (1, FATAL + traceback(*SITE)),
        (1, FATAL + traceback(*SITE, "<string>")),
        (1, RUNPY + traceback("<frozen runpy>", f"{STANDARD_LIBRARY}contextlib.py")),
        (-2, traceback("<frozen runpy>", f"{SITE_PACKAGES}_distutils_hack/__init__.py")),
    ],
)
def test_ctrl_c_while_python_starts_is_told_from_the_rest(code, told):
    assert is_early(code, told)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, ""),
        (130, traceback("<frozen runpy>")),
        (-2, traceback("<frozen runpy>", "/checkout/nbmf/__main__.py", f"{STANDARD_LIBRARY}signal.py")),
        (-2, traceback("<string>", "<frozen importlib._bootstrap>")),
        (1, traceback("<frozen runpy>", f"{SITE_PACKAGES}numba/__init__.py")),
        (1, traceback("<frozen runpy>", error="ImportError: no module")),
        (-2, "plays.csv: 300 users\n" + traceback("<frozen runpy>")),
        (1, f"Exception ignored in: <object>\n{traceback('<frozen runpy>')}"),
    ],
)
def test_no_other_end_passes_for_an_early_one(code, told):
    assert not is_early(code, told)
