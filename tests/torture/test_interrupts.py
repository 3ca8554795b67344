"""Ctrl-C before a command has begun, and SIGTERM; `make torture` interrupts commands at any moment."""

import subprocess
import sys

INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module("nbmf", run_name="__main__")
"""


def test_ctrl_c_during_the_imports_leaves_no_traceback():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


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
