"""Tests always end: whatever processes they start, and in the background, where shells ignore Ctrl-C."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
APART = {TESTS / "helpers.py", TESTS / "smoke.py"}  # which has `child`, and which cannot import it
FILES = sorted(path for path in TESTS.rglob("*.py") if path not in APART)
IN_THE_BACKGROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
import conftest
interrupt = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
sys.exit(subprocess.run([sys.executable, "-c", interrupt], stderr=subprocess.DEVNULL, timeout=60).returncode == 0)
"""


def test_children_can_be_interrupted_in_the_background():
    done = subprocess.run([sys.executable, "-c", IN_THE_BACKGROUND], cwd=TESTS, timeout=300, check=False)
    assert done.returncode == 0


def calls_without_a_limit(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, options = ast.unparse(node.func), {option.arg for option in node.keywords}
            starts = name in ("subprocess.run", "subprocess.check_output", "subprocess.check_call")
            waits = node.func.attr in ("wait", "join", "communicate") and not node.args
            if name == "subprocess.Popen" or ((starts or waits) and "timeout" not in options):
                yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_nobody_waits_for_a_process_without_a_limit(path):
    """`helpers.child` starts a process to talk to."""
    assert not list(calls_without_a_limit(ast.parse(path.read_text())))
