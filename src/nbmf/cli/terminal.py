"""What every command does alike: faults told in a sentence, tables, JSON."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

BAD_INPUT = 2
INTERRUPTED = 130  # what shells say of a command that Ctrl-C ended


class BadInputError(click.ClickException):
    """What was typed, or the file that was named, cannot be used; the message says why and what can."""

    exit_code = BAD_INPUT


@contextmanager
def sentences() -> Iterator[None]:
    """Tell bad input in a sentence on standard error, exit code 2, and warnings in a line; Ctrl-C exits with 130."""
    presses: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        signal.default_int_handler(number, frame)

    usual = signal.signal(signal.SIGINT, press)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            yield
    except BrokenPipeError:  # whoever reads this has read enough; click ends quietly
        raise
    except KeyboardInterrupt:
        end_interrupted("nothing was written")
    except Exception as error:
        if presses:  # a compiler that is interrupted loses the exception, and fails over what is missing then
            end_interrupted("nothing was written")
        if isinstance(error, KeyError):  # whose text is its argument in quotes
            raise BadInputError(_for_the_shell(str(error.args[0]))) from error
        if isinstance(error, ValueError | OSError | ModuleNotFoundError):
            raise BadInputError(_for_the_shell(str(error))) from error
        raise
    finally:
        signal.signal(signal.SIGINT, usual)


def _for_the_shell(text: str) -> str:
    """Replace what to do in Python by what to do on a command line."""
    for python, shell in (
        (
            "give them as read_interactions(…, time='column') or Interactions.from_arrays(…, times=…)",
            "give --time COLUMN",
        ),
        ("model.save(path) writes one", "nbmf fit DATA -o FILE writes one"),
        ("fit(X, resume=path) goes on from it", "nbmf fit DATA --checkpoint FILE --resume goes on from it"),
        ("nbmf.load(path) reads it", "nbmf recommend FILE reads it"),
    ):
        text = text.replace(python, shell)
    return re.sub(r"\b(user|item|count|time)=('…')?", r"--\1", text)


def end_interrupted(kept: str) -> NoReturn:
    """Say what is left after Ctrl-C, and exit as commands do that it ended."""
    click.echo(f"interrupted; {kept}", err=True)
    if sys.stdout is sys.__stdout__:
        # a usual exit waits for all threads, and one may be stuck, say in a compiler that was interrupted
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(INTERRUPTED)
    sys.exit(INTERRUPTED)


def _show_warning(message: Warning | str, *rest: Any) -> None:
    click.echo(f"note: {message}", err=True)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Write a table to standard output, framed on a terminal, plain elsewhere; the first `left` columns are text."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 (slow to import)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(title=Text(title), show_header=any(columns))
        for n, name in enumerate(columns):
            table.add_column(Text(name), justify="left" if n < left else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    click.echo(title)
    for row in (columns, *rows) if any(columns) else rows:
        cells = [
            f"{cell:{'<' if n < left else '>'}{width}}" for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def show_json(value: Any) -> None:
    """Write one JSON value to standard output; null stands for what is not a finite number."""
    click.echo(json.dumps(_plain(value), ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
