"""Progress of long runs: plain lines where nobody watches, a bar on a terminal."""

from io import StringIO
from types import SimpleNamespace

import pytest

from nbmf.inference import progress
from nbmf.inference.progress import Progress, RunsProgress


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when it is told to."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_a_fit_writes_a_line_every_two_seconds_and_one_at_the_end(clock, capsys):
    with Progress("NBMF", 9) as bar:
        for sweep in range(1, 5):
            clock.seconds = 0.8 * sweep
            bar.report(SimpleNamespace(sweep=sweep, objective=-1234.56))
    assert capsys.readouterr().err.splitlines() == [
        "NBMF: sweep 3 of at most 9, objective -1,234.6",
        "NBMF: sweep 4 of at most 9, objective -1,234.6, 3.2 s",
    ]


def test_runs_are_written_one_by_one_with_the_time_left(clock, capsys):
    with RunsProgress("compare", what="fits") as bar:
        clock.seconds = 30.0
        bar.report(1, 4, 0.25, "nbmf: 0.5")
        bar.report(4, 4, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "compare: 1 of 4 fits, about 1 min 30 s left, nbmf: 0.5",
        "compare: 4 of 4 fits",
    ]


def test_compiling_is_not_part_of_the_time_left(clock, capsys):
    """22 s to compile and one for the first of a hundred blocks; the others take a tenth of a second each."""
    with RunsProgress("NBSLIM", compiles=True, what="items") as bar:
        clock.seconds = 23.0
        bar.report(1, 100, 0.01)
        clock.seconds = 24.0
        bar.report(11, 100, 0.11)
        bar.report(100, 100, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "NBSLIM: 1 of 100 items",
        "NBSLIM: 11 of 100 items, about 9 s left",
        "NBSLIM: 100 of 100 items",
    ]


def test_quiet_says_nothing(capsys):
    with Progress("NBMF", 9, quiet=True) as bar:
        bar.report(SimpleNamespace(sweep=1, objective=-1.0))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar(clock, monkeypatch):
    class Terminal(StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stderr", stream)
    with RunsProgress("[compare]", what="fits") as bar:
        bar.report(1, 4, 0.25, "[bold] nbmf")
    assert "━" in stream.getvalue()
    assert "1 of 4 fits, about 0 s left, [bold] nbmf" in stream.getvalue()
