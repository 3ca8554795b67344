"""How far a long run is: a bar on a terminal, plain lines elsewhere. The only thing a fit may print."""

from __future__ import annotations

import io
import sys
import time
from datetime import timedelta
from numbers import Integral
from types import TracebackType
from typing import Any, Protocol, TextIO

QUIET_SECONDS = 2.0  # between plain lines, and before the first


class Sweep(Protocol):
    """What is reported of a sweep: its number from 1, and the objective after it."""

    @property
    def sweep(self) -> int:
        """Number, from 1."""

    @property
    def objective(self) -> float:
        """After it."""


class Progress:
    """A context manager whose `report` shows the sweeps of one fit on standard error."""

    def __init__(self, title: str, max_iter: int, *, quiet: bool = False) -> None:
        """Show nothing yet; if quiet, never."""
        self.title, self.max_iter = title, max_iter
        self.stream: TextIO = io.StringIO() if quiet else sys.stderr
        self.bar: Any = None
        self.shown = ""

    def __enter__(self) -> Progress:
        """Start the clock, and the bar if somebody is watching."""
        self.started = self.last = time.monotonic()
        if self.stream.isatty():
            from rich.console import Console  # noqa: PLC0415 (slow to import)
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("sweep {task.completed} of at most {task.total}  objective {task.fields[objective]}"),
                TimeElapsedColumn(),
            )
            self.bar = Progress(*columns, console=Console(file=self.stream))
            self.task = self.bar.add_task(self.title, total=self.max_iter, objective="…")
            self.bar.start()
        return self

    def report(self, done: Sweep) -> None:
        """Take note of a finished sweep."""
        sweep, objective = done.sweep, done.objective
        self.shown = f"{self.title}: sweep {sweep} of at most {self.max_iter}, objective {objective:,.1f}"
        if self.bar is not None:
            self.bar.update(self.task, completed=sweep, objective=f"{objective:,.0f}")
        elif time.monotonic() - self.last >= QUIET_SECONDS:
            self.last = time.monotonic()
            self.stream.write(self.shown + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar where it stands, or write the last line."""
        if self.bar is not None:
            self.bar.stop()
        elif self.shown:
            self.stream.write(f"{self.shown}, {time.monotonic() - self.started:.1f} s\n")


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        """Start."""
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long ago that is."""
        return time.monotonic() - self.started


class RunsProgress:
    """A context manager whose `report` shows on standard error how many of many runs are done, and the time left."""

    def __init__(self, title: str, *, what: str = "runs", pause: float = 0.0, quiet: bool = False) -> None:
        """Show nothing yet; if quiet, never. At least `pause` seconds pass before each plain line."""
        self.title, self.what, self.pause, self.shown = title, what, pause, 0.0
        self.stream: TextIO = io.StringIO() if quiet else sys.stderr
        self.bar: Any = None

    def __enter__(self) -> RunsProgress:
        """Start the clock, and the bar if somebody is watching."""
        self.watch = Stopwatch()
        if self.stream.isatty():
            from rich.console import Console  # noqa: PLC0415 (slow to import)
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            text = TextColumn("{task.fields[counted]}  {task.fields[left]}  {task.fields[last]}")
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), text)
            self.bar = Progress(*columns, console=Console(file=self.stream))
            self.task = self.bar.add_task(self.title, total=1.0, counted="", left="", last="")
            self.bar.start()
        return self

    def report(self, n_done: int, n_runs: int, share: float, last: str = "") -> None:
        """Take note of a finished run; `share` is how much of the work of this call is done, from 0 to 1."""
        counted = f"{n_done:,} of {n_runs:,} {self.what}"
        left = f"about {in_words(self.watch.seconds * (1 - share) / share)} left" if 0 < share < 1 else ""
        if self.bar is not None:
            self.bar.update(self.task, completed=share, counted=counted, left=left, last=last)
        elif self.watch.seconds - self.shown >= self.pause:
            self.shown = self.watch.seconds
            self.stream.write(f"{self.title}: {', '.join(part for part in (counted, left, last) if part)}\n")
            self.stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar where it stands."""
        if self.bar is not None:
            self.bar.stop()


def in_words(seconds: float) -> str:
    """Return a time for people.

    >>> in_words(42), in_words(100), in_words(7500)
    ('42 s', '1 min 40 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Interval:
    """Tells whether it is time again: every so many sweeps, or whenever so much time has passed."""

    def __init__(self, every: int | timedelta) -> None:
        """Start the clock, or count the sweeps."""
        is_time = isinstance(every, timedelta) and every >= timedelta()
        if not is_time and (not isinstance(every, Integral) or every < 1):
            raise ValueError(
                f"checkpoint_every is {every!r}; it must be a number of sweeps from 1, or a datetime.timedelta"
            )
        self.every, self.last = every, time.monotonic()

    def is_over(self, sweep: int) -> bool:
        """Tell whether it is time, after this sweep."""
        if not isinstance(self.every, timedelta):
            return sweep % self.every == 0
        now = time.monotonic()
        if now - self.last < self.every.total_seconds():
            return False
        self.last = now
        return True
