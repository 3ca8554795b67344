"""The first damaged and forged files of a seed; `python tests/torture/files.py` does it for as long as you like."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory through /proc")
def test_damaged_and_forged_files():
    script = Path(__file__).with_name("files.py")
    command = [sys.executable, str(script), "--most", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    assert words[0] == "files:"
    refused, answered = (int(words[words.index(word) - 1]) for word in ("refused,", "loaded"))
    assert refused + answered == 300
    assert answered > 0
    assert refused > answered
