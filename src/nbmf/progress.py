"""How far a long run is: a bar on a terminal, plain lines elsewhere. The only thing a fit may print."""

from __future__ import annotations

import io
import sys
import time
from types import TracebackType
from typing import Any, TextIO

QUIET_SECONDS = 2.0  # between plain lines, and before the first


class Progress:
    """A context manager whose `report(sweep, objective)` shows the sweeps of one fit on standard error."""

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

    def report(self, sweep: int, objective: float) -> None:
        """Take note of a finished sweep."""
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
