"""Progress of long runs: a bar on a terminal, plain lines elsewhere. A fit prints nothing else."""

import io
import sys
import time
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from nbmf.inference.run import Snapshot

QUIET_SECONDS = 2.0  # between plain lines, and before the first


class Stopwatch:
    """Measures the seconds since its creation."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation."""
        return time.monotonic() - self.started


class Bar:
    """Context manager that shows on standard error how far a run is, or nothing if it is quiet."""

    def __init__(self, title: str, *, what: str = "runs", pause: float = 0.0, quiet: bool = False) -> None:
        self.title, self.what, self.text = title, what, ""
        self.pause, self.written_at = pause, 0.0  # least seconds between plain lines, and those of the last line
        self.stream: TextIO = io.StringIO() if quiet else sys.stderr
        self.bar: Any = None

    def __enter__(self) -> Self:
        self.watch = Stopwatch()
        if self.stream.isatty():
            from rich.console import Console  # noqa: PLC0415 (slow to import)
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            console, text = Console(stderr=True), TextColumn("{task.fields[text]}", markup=False)
            self.bar = Progress("{task.description}", BarColumn(), TimeElapsedColumn(), text, console=console)
            self.task = self.bar.add_task(self.title, total=1.0, text="")
            self.bar.start()
        return self

    def show(self, share: float, text: str) -> None:
        """Show which share of the work is done, from 0 to 1, and what there is to say about it."""
        self.text = text
        if self.bar is not None:
            self.bar.update(self.task, completed=share, text=text)
        elif self.watch.seconds - self.written_at >= self.pause:
            self.written_at = self.watch.seconds
            self.stream.write(f"{self.title}: {text}\n")

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif self.pause and self.text:  # the last text may not have been written yet
            self.stream.write(f"{self.title}: {self.text}, {self.watch.seconds:.1f} s\n")


class Progress(Bar):
    """Bar of one fit: sweeps and the objective."""

    def __init__(self, title: str, max_iter: int, *, quiet: bool = False) -> None:
        super().__init__(title, pause=QUIET_SECONDS, quiet=quiet)
        self.max_iter = max_iter

    def report(self, done: "Snapshot") -> None:
        """Show a finished sweep."""
        sweeps = f"sweep {done.sweep} of at most {self.max_iter}"
        self.show(done.sweep / self.max_iter, f"{sweeps}, objective {done.objective:,.1f}")


class RunsProgress(Bar):
    """Bar of many runs (or whatever `what` names): how many are finished, and the time left.

    If it `compiles`, the first run includes compiling, so the time left is estimated from those that follow it.
    """

    def __init__(self, title: str, *, compiles: bool = False, **options: Any) -> None:
        super().__init__(title, **options)
        self.origin = None if compiles else (0.0, 0.0)  # seconds and share from which the time left is estimated

    def report(self, n_done: int, n_runs: int, share: float, last: str = "") -> None:
        """Show a finished run; `share` is how much of the work of this call is done, from 0 to 1."""
        now = self.watch.seconds
        self.origin = (now, share) if self.origin is None and share > 0 else self.origin
        start, begun = self.origin or (now, share)
        left = f"about {in_words((now - start) * (1 - share) / (share - begun))} left" if begun < share < 1 else ""
        self.show(share, ", ".join(filter(None, (f"{n_done:,} of {n_runs:,} {self.what}", left, last))))


def in_words(seconds: float) -> str:
    """Return a duration in words.

    >>> in_words(42), in_words(100), in_words(7500)
    ('42 s', '1 min 40 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Interval:
    """Says when the next checkpoint is due: every so many sweeps, or whenever so much time has passed."""

    def __init__(self, every: int | timedelta) -> None:
        is_time = isinstance(every, timedelta) and every >= timedelta()
        if not is_time and (not isinstance(every, Integral) or every < 1):
            raise ValueError(f"checkpoint_every is {every!r}; it must be a number of sweeps from 1, or a timedelta")
        self.every, self.last = every, time.monotonic()

    def is_over(self, sweep: int) -> bool:
        """Return whether the interval has passed after this sweep."""
        if not isinstance(self.every, timedelta):
            return sweep % self.every == 0
        now = time.monotonic()
        if is_over := now - self.last >= self.every.total_seconds():
            self.last = now
        return is_over
