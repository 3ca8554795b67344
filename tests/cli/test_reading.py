"""How the commands read their data: from a file or a pipe, with or without bad rows, and what they say about it."""

import subprocess
import sys

import pytest

import nbmf
from helpers import typed

DIRTY = "who,what,n,when\n\nann,jazz,3,1\nbob,jazz,-1,2\nann,folk,1e1,3\nbob,folk,0,4\nbob,jazz,2,5\nbob,jazz,1,6\n"
QUICK = ["-k", "2", "--max-iter", "3"]


@pytest.fixture
def dirty(tmp_path):
    path = tmp_path / "dirty.csv"
    path.write_text(DIRTY)
    return path


def test_bad_rows_end_the_command_or_are_skipped(dirty, tmp_path):
    refused = typed("fit", dirty, "-o", tmp_path / "model", code=2)
    assert "line 4: count '-1' is negative" in refused.stderr
    assert refused.stderr.rstrip().endswith("--bad-rows skip leaves such rows out")
    told = typed("fit", dirty, "-o", tmp_path / "model", "--bad-rows", "skip", *QUICK).stderr
    assert told.count("skipped 1 of 6 rows: line 4: count '-1' is negative\n") == 1
    assert nbmf.load(tmp_path / "model").result_.counts.sum() == 16


@pytest.mark.parametrize("command", ["plan", "evaluate", "compare", "explore", "reproduce"])
def test_every_command_that_reads_can_skip(command):
    assert "--bad-rows [error|skip]" in typed(command, "--help").stdout


def test_what_was_read_is_said(dirty, tmp_path):
    told = typed("fit", dirty, "-o", tmp_path / "model", "--bad-rows", "skip", *QUICK).stderr
    assert "dirty.csv: Interactions(2 users × 2 items, 3 non-zero counts, total 16, 1 repeated pair added up)\n" in told
    assert "columns: user 'who', item 'what', count 'n'; ignored: 'when'; 1 pair with a count of 0\n" in told


def test_data_from_a_pipe(dirty, tmp_path):
    path = tmp_path / "model"
    command = [sys.executable, "-m", "nbmf", "fit", "-", "-o", path, "--bad-rows", "skip", *QUICK]
    done = subprocess.run(command, input=DIRTY.encode(), capture_output=True, timeout=300, check=True)
    assert done.stderr.decode().count("standard input: Interactions(2 users × 2 items") == 1
    typed("fit", dirty, "-o", tmp_path / "same", "--bad-rows", "skip", *QUICK)
    assert path.read_bytes() == (tmp_path / "same").read_bytes()


@pytest.mark.parametrize("command", ["reproduce", "explore"])
def test_commands_that_come_back_to_their_data_need_a_file(command):
    refused = typed(command, "-", code=2).stderr
    assert "cannot be standard input; name a file" in refused
