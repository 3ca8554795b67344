"""How commands talk to the terminal: faults as one sentence, tables, JSON."""

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.table import Table

Rows = Sequence[Sequence[str]]

RESENT_AFTER = 0.05  # seconds
RAISED: dict[type[BaseException], int] = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
INTERRUPTED, TERMINATED = 130, 143  # the exit codes that shells report after Ctrl-C and SIGTERM
IN_THE_SHELL = {  # remedies in messages of the library, and the same on the command line
    "read_interactions(…, time='column') or Interactions.from_arrays(…, times=…)": "--time COLUMN",
    "model.save(path)": "nbmf fit DATA -o FILE",
    "fit(X, resume=path)": "nbmf fit DATA --checkpoint FILE --resume",
    "nbmf.load(path)": "nbmf recommend FILE",
    " after max_iter=": " after ",
    "bad_rows='skip'": "--bad-rows skip",
}
# models that findings propose, and their names on the command line
MODELS = {"PoissonMF": "poisson", "NBMF": "nbmf", "RobustMF": "robust", "BinaryMF": "bernoulli", "NBSLIM": "nbslim"}
MODELS |= {"ZeroInflatedMF": "zero-inflated", "CompoundMF": "compound", "NBFISM": "nbfism"}
MODELS |= {"jumps='logarithmic'": "compound", "jumps='geometric'": "compound-geometric"}
_received: list[int] = []  # signals, by the command that runs
_REMEDIES = re.compile("([:;] try )([^;\n]*)")
_SIZES = re.compile("^(?:a )?(larger|smaller|fewer) (concentration|jump|components)s?$")
# whole words only, so that a path such as data/time=2024-01-01/max_iter=500.csv stays as it is
_WORD = r"(?<![^\s(]){}(?=[,;:.)]*(?:\s|$))"
_SETTING = re.compile(
    _WORD.format(
        r"(?:(max_iter)|(max_iter|tol|accelerate|input|target|inference|rates|exposure|likelihood)=(?:True|'(\w+)'|([\d.e+-]*\d)))"
    )
)
_COLUMN = re.compile(_WORD.format("(user|item|count|time)=(?:'…')?"))


class BadInputError(click.ClickException):
    """An argument or a file that cannot be used; the message says why, and what to use instead."""

    exit_code = 2


@contextmanager
def sentences() -> Iterator[None]:
    """Report bad input as a sentence with exit code 2, each warning as one note, and Ctrl-C with exit code 130.

    What was left behind is the text of a KeyboardInterrupt, if it has one. SIGTERM ends a command with exit code 143,
    after its temporary files and processes.
    """
    _received.clear()
    noted: set[str] = set()

    def press(*pressed: Any) -> None:
        _received.append(signal.SIGINT)
        signal.default_int_handler(*pressed)

    def terminate(*received: Any) -> None:
        _received.append(signal.SIGTERM)
        sys.exit(TERMINATED)

    def note(text: str) -> None:
        if text not in noted:
            click.echo(f"note: {in_the_shell(text)}", err=True)
        noted.add(text)

    def again(lost: Any) -> bool:
        """Send a signal once more whose exception was dropped, and return whether it was one."""
        number = next((sent for kind, sent in RAISED.items() if isinstance(lost, kind)), None)
        if number is not None:
            Timer(RESENT_AFTER, os.kill, (os.getpid(), number)).start()
        return number is not None

    usual = signal.signal(signal.SIGINT, press), signal.signal(signal.SIGTERM, terminate)
    dropped, printed = sys.unraisablehook, sys.excepthook
    # Python drops what is raised while an object is freed, and compiled code may print what it does not pass on
    sys.unraisablehook = lambda lost: None if again(lost.exc_value) else dropped(lost)
    sys.excepthook = lambda kind, lost, trace: None if again(lost) else printed(kind, lost, trace)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *rest, **more: note(str(message))
            yield
    except BrokenPipeError:  # the reader of our output, such as `head`, has read enough; click exits quietly
        raise
    except (KeyboardInterrupt, Exception) as error:
        # a compiler loses what a signal raises, and then fails over something that is missing; a database replaces it
        if signal.SIGTERM in _received:
            sys.exit(TERMINATED)
        if signal.SIGINT in _received or isinstance(error, KeyboardInterrupt):
            told = str(error) if isinstance(error, KeyboardInterrupt) else ""
            end_interrupted(told or "nothing was written")
        if not isinstance(error, KeyError | ValueError | OSError | ModuleNotFoundError):
            raise
        # the text of a KeyError is its argument in quotes
        text = str(error.args[0] if isinstance(error, KeyError) else error)
        raise BadInputError(in_the_shell(text)) from error
    finally:
        sys.unraisablehook, sys.excepthook = dropped, printed
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), usual, strict=True):
            signal.signal(number, handler)


def raise_lost(kept: str) -> None:
    """Raise again what a signal has raised and a library has lost, before something begins that does not end by itself.

    A compiler may lose it, and what then fails is made up for by code that knows nothing of signals.
    """
    if signal.SIGTERM in _received:
        sys.exit(TERMINATED)
    if signal.SIGINT in _received:
        raise KeyboardInterrupt(kept)


def in_the_shell(text: str) -> str:
    """Return a message of the library with settings and calls as they are typed on the command line.

    >>> in_the_shell("max_iter=5/plays.csv: raise max_iter, say max_iter=2000, or try accelerate=True or input='log1p'")
    'max_iter=5/plays.csv: raise --max-iter, say --max-iter 2000, or try --accelerate or --input log1p'
    """
    text = _REMEDIES.sub(_remedies, text)
    for python, shell in IN_THE_SHELL.items():
        text = text.replace(python, shell)
    text = _SETTING.sub(_setting, text)
    return _COLUMN.sub(r"--\1", text)


def _remedies(found: re.Match[str]) -> str:
    """Return ": try …" with models as the command that runs chooses them, without those that were chosen already."""
    parts, context = re.split(", | or ", found[2]), click.get_current_context(silent=True)
    if not any(part in MODELS or _SIZES.match(part) for part in parts):
        return found[0]
    chosen = None if context is None else context.params.get("models")
    if chosen is None:
        parts = [f"--model {MODELS[part]}" if part in MODELS else part for part in parts]
    else:
        more = dict.fromkeys(MODELS[part] for part in parts if part in MODELS and MODELS[part] not in chosen)
        parts = [part for part in parts if part not in MODELS]
        parts += [f"--models {','.join((*chosen, *more))}"] if more else []
    *others, last = [_SIZES.sub(_size, part) for part in parts] or [""]
    return f"{found[1]}{', '.join(others)}{' or ' if others else ''}{last}" if last else ""


def _setting(found: re.Match[str]) -> str:
    name, *value = filter(None, found.groups())
    return " ".join((f"--{name.replace('_', '-')}", *value))


def _size(found: re.Match[str]) -> str:
    return f"fewer --{found[2]}" if found[1] == "fewer" else f"a {found[1]} --{found[2]}"


def say(text: str) -> None:
    """Write a line to standard error, unless the command was told to be quiet."""
    context = click.get_current_context(silent=True)
    if context is None or not context.params.get("quiet"):
        click.echo(text, err=True)


def end_interrupted(kept: str) -> NoReturn:
    """Say what Ctrl-C left behind, and exit with code 130."""
    click.echo(f"interrupted; {kept}", err=True)
    if sys.stdout is sys.__stdout__:
        # a normal exit waits for all threads, and one may be stuck, such as in an interrupted compiler
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        if workers := sys.modules.get("multiprocessing.util"):
            workers._run_finalizers(0)  # else semaphores of worker processes would be reported as leaked
        os._exit(INTERRUPTED)
    sys.exit(INTERRUPTED)


def show(title: str, columns: Sequence[str], rows: Rows, *, left: int = 1) -> None:
    """Print a table, framed on a terminal and plain elsewhere; the first `left` columns are left-aligned."""
    alignment = "<" * left + ">" * (len(columns) - left)
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 (slow to import)

        Console(highlight=False).print(framed(title, columns, rows, alignment))
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    click.echo(title)
    for row in (columns, *rows) if any(columns) else rows:
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def framed(title: str, columns: Sequence[str], rows: Rows, alignment: str, *, lines: bool = False) -> "Table":
    """Return a table with a frame; `alignment` has < or > for each column, and `lines` separate the rows."""
    from rich.table import Table  # noqa: PLC0415 (slow to import)
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(title), show_header=any(columns), show_lines=lines)
    for name, side in zip(columns, alignment, strict=True):
        table.add_column(Text(name), justify="left" if side == "<" else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def show_json(value: Any) -> None:
    """Print one JSON value; numbers that are not finite become null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda constant: None)
    click.echo(json.dumps(finite, ensure_ascii=False))
