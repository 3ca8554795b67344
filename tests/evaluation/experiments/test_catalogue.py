"""The table of catalogue sizes: fits in processes with limits, rows that say why a fit could not be made."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "catalogue.py"
SMALL = ["--items", "300,20000", "--users", "200", "--draws", "5000", "--models", "popularity,ease"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Return a function that runs the command."""
    if not SCRIPT.exists():
        pytest.skip("benchmarks/ is not part of this copy")
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is limited and measured on Linux")
    folder = tmp_path_factory.mktemp("catalogue")

    def run(*more):
        command = [sys.executable, SCRIPT, *SMALL, "--folder", folder, "--memory", "1.2", "--limit", "100", *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    return run


def test_a_fit_that_needs_too_much_is_a_row_and_nothing_is_fitted_twice(typed):
    """EASE at 20,000 items has a matrix of 1.6 GB; the limit is 1.2 GB."""
    first, second = typed(), typed()
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert len(re.findall(r"^\w+-\d+: ", first.stdout, re.MULTILINE)) == 4
    assert re.findall(r"^\w+-\d+: ", second.stdout, re.MULTILINE) == []
    heads, _, popularity, ease = second.stdout.splitlines()
    assert heads == "| model | 300 items | 20,000 items |"
    assert re.fullmatch(r"\| popularity(?: \| [\d.e-]+ s, [\d,]+ MB){2} \|", popularity)
    assert re.fullmatch(
        r"\| EASE \| [\d.e-]+ s, [\d,]+ MB \| needs more than 1.2 GB, one array alone 1.49 GiB \|", ease
    )
    assert first.stdout.endswith(second.stdout)


def test_other_limits_need_another_folder(typed):
    ended = typed("--limit", "50")
    assert ended.returncode != 0
    assert "holds another experiment: its limits seconds is 100.0, not 50.0" in ended.stderr
