"""The format of a text file of interactions: delimiter, header, and the role of each column."""

import csv
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

HEAD_LINES = 200
MOST_NAMED = 6  # columns that are ignored
MOST_LISTED = 20  # columns in an error
LONGEST_LINE = 131_072  # bytes; the csv module's own limit for a field
_INTEGER = re.compile("-?[0-9]+")
# what a count column may hold, right or wrong; no column has such a name
_NUMBER_LIKE = re.compile(r"\s*([-+.]?\d.*|[-+]?inf(inity)?|nan|null|none|n/?a|)\s*", re.IGNORECASE)
# patterns of column names, in lower case and without blanks and punctuation
_KNOWN_NAMES = {
    "user": "uid who users? (user|customer|household|visitor|listener|client|member|person)(id)?",
    "item": "iid sku what items? (item|song|track|artist|product|movie|book|article|page)(id)?",
    "count": "n counts? plays playcounts? listens times quantity qty freq frequency clicks hits views purchases",
}


class ReadError(ValueError):
    """A source cannot be read; the message names the file, the line, the value and the remedy."""


class BadRowsError(ReadError):
    """Some rows cannot be used, while others can."""


class MissingFileError(ReadError, FileNotFoundError):
    """There is no such file."""


class TextFormat(NamedTuple):
    """How to split the lines of a text file."""

    delimiter: str
    n_columns: int
    header: list[str]  # empty if there is none
    columns: dict[str, int]  # position of each role; without a count column, each row counts 1


def decoded(path: str, raw_lines: Iterable[bytes]) -> Iterator[str]:
    """Yield each line with its end; bytes that are not text are an error that names line and byte."""
    offset = 0
    for number, raw in enumerate(raw_lines, 1):
        where = f"{path}, line {number}"
        if len(raw) > LONGEST_LINE:
            raise ReadError(f"{where}: is longer than {LONGEST_LINE} bytes; this is not a table of users and items")
        if b"\0" in raw:
            raise ReadError(f"{where}: NUL at byte {offset + raw.index(0)}, so this is not text; convert it to UTF-8")
        try:
            text = raw.decode("utf-8" if offset else "utf-8-sig")
        except UnicodeDecodeError as error:
            byte = f"byte {offset + error.start} (0x{raw[error.start]:02x})"
            raise ReadError(f"{where}: {byte} is not UTF-8 text; convert it: iconv -f LATIN1 -t UTF-8") from None
        if "\r" in text.rstrip("\r\n") and '"' not in text:
            raise ReadError(f"{where}: has a carriage return inside; end lines with LF or CRLF")
        yield text
        offset += len(raw)


def recognise(path: str, lines: Iterable[str], named: dict[str, str | None]) -> TextFormat:
    """Recognise delimiter, header and columns of a text file from its first lines."""
    numbered = list(islice(((n, line) for n, line in enumerate(lines, 1) if line.strip()), HEAD_LINES))
    if not numbered:
        raise ReadError(f"{path}: has no rows, only blank lines")
    first_line, head = f"{path}, line {numbered[0][0]}", [line for _, line in numbered]
    tables = {delimiter: _split(head, delimiter) for delimiter in "\t,;| "}
    # perhaps all is inside a quote that is never closed; reading will say so
    if not any(_width(table)[1] for table in tables.values()):
        tables = {delimiter: [line.rstrip("\r\n").split(delimiter) for line in head] for delimiter in tables}
    for group in ("\t", ",;|", " "):  # ids are more likely to contain the later ones
        if candidates := [delimiter for delimiter in group if _width(tables[delimiter])[1] >= 0.5]:
            delimiter = max(candidates, key=lambda d: (_has_names_or_counts(tables[d], named), _width(tables[d])[1]))
            break
    else:
        raise ReadError(f"{first_line}: no two columns found; separate them by tab, comma, semicolon, pipe or space")
    records = tables[delimiter]
    n_columns, _ = _width(records)
    first = records[0]
    if len(first) != n_columns:
        raise ReadError(f"{first_line}: {wrong_width(len(first), n_columns)}")
    is_named = any(name is not None for name in named.values())
    if not is_named and not _is_header(first, [row for row in records[1:] if len(row) == n_columns]):
        if n_columns > len(_KNOWN_NAMES):
            unclear = "so nbmf cannot tell which are user, item and count; add a first line with their names"
            raise ReadError(f"{path}: has {n_columns} columns and no header, {unclear}")
        return TextFormat(delimiter, n_columns, [], dict(zip(_KNOWN_NAMES, range(n_columns), strict=False)))
    if len(records) == 1:
        raise ReadError(f"{path}: has a header but no rows")
    return TextFormat(delimiter, n_columns, first, choose_columns(path, first, named))


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    records: list[list[str]] = []
    with suppress(csv.Error):  # reading names faults by line
        for record in csv.reader(lines, delimiter=delimiter):
            records += [record] if record else []
    return records[:-1] if len(lines) == HEAD_LINES else records  # the last may be cut


def _width(records: list[list[str]]) -> tuple[int, float]:
    """The commonest number of columns, and the share of the lines that have it; 0 unless there are two or more."""
    width, n = max(Counter(map(len, records)).items(), key=lambda entry: entry[1], default=(0, 0))
    return width, n / len(records) if width > 1 else 0.0


def _roles(cell: str) -> set[str]:
    name = re.sub(r"[\W_]", "", cell).casefold()
    return {role for role, known in _KNOWN_NAMES.items() if re.fullmatch(known.replace(" ", "|"), name)}


def _has_names_or_counts(records: list[list[str]], named: dict[str, str | None]) -> bool:
    has_counts = all(len(row) > 2 and _NUMBER_LIKE.fullmatch(row[2]) for row in records[1:] or records)
    return has_counts or any(_roles(cell) or cell in named.values() for cell in records[0])


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first line is a header, if the caller has not named columns."""
    roles = [_roles(cell) for cell in first]
    # 'user' and 'song' may also be ids; as names they stand in the right column and appear only once
    is_repeated = any(row[0] == first[0] or row[1] == first[1] for row in rows)
    both = not is_repeated and set().union(*roles[:2]) >= {"user", "item"}
    if len(first) == 2:
        is_named = both or (not is_repeated and ("user" in roles[0] or "item" in roles[1]))
    elif _NUMBER_LIKE.fullmatch(first[2]):
        return both
    else:
        is_named = any(roles) or (bool(rows) and all(_NUMBER_LIKE.fullmatch(row[2]) for row in rows))
    if is_named:
        return True
    integers_below = any(all(map(_INTEGER.fullmatch, column)) for column in zip(*rows, strict=True))
    return integers_below and not any(map(_INTEGER.fullmatch, first))


def choose_columns(source: str, names: list[str], named: dict[str, str | None]) -> dict[str, int]:
    """Return the position of each role among named columns; `named` maps roles to names, None to recognise them."""
    listed = "the columns are " + ", ".join(map(repr, names[:MOST_LISTED]))
    if len(names) > MOST_LISTED:
        listed += (
            f" and {len(names) - MOST_LISTED} more; if there is one per item, model.fit(frame) takes the data frame"
        )
    chosen: dict[str, int] = {}
    for role, name in sorted(named.items(), key=lambda given: given[1] is None):
        left = [k for k in range(len(names)) if k not in chosen.values()]
        fitting = [k for k in left if (role in _roles(names[k]) if name is None else names[k].strip() == name.strip())]
        if len(fitting) > 1:
            several = " and ".join(repr(names[k]) for k in fitting)
            raise ReadError(f"{source}: {several} could each be the {role} column; pass {role}='…'; {listed}")
        if name is not None and not fitting:
            near = difflib.get_close_matches(name, names, 1, 0.5)
            hint = f" did you mean {near[0]!r}?" if near else ""
            raise ReadError(f"{source}: there is no column {name!r} to be the {role};{hint} {listed}")
        chosen.update((role, k) for k in fitting)
    missing = [role for role in ("user", "item") if role not in chosen]
    left = [k for k in range(len(names)) if k not in chosen.values()]
    if missing and len(left) == len(missing):
        chosen.update(zip(missing, left, strict=True))
    elif missing:
        raise ReadError(f"{source}: which column is the {missing[0]}? pass {missing[0]}='…'; {listed}")
    elif left and "count" not in chosen and not (named["user"] and named["item"]):
        raise ReadError(f"{source}: which is the count? pass count='…', or user= and item= to count rows; {listed}")
    return chosen


def columns_in_words(chosen: dict[str, int], names: list[str]) -> str:
    """Say which columns have which roles, and which are ignored.

    >>> columns_in_words({"user": 0, "item": 2}, ["who", "when", "what"])
    "user 'who', item 'what', each row counts 1; ignored: 'when'"
    """
    taken = [f"{role} {names[chosen[role]]!r}" for role in ("user", "item", "count", "time") if role in chosen]
    taken += ["each row counts 1"] * ("count" not in chosen)
    left = [repr(name) for k, name in enumerate(names) if k not in chosen.values()]
    others = left if len(left) <= MOST_NAMED else [*left[: MOST_NAMED - 1], f"{len(left) - MOST_NAMED + 1} more"]
    return ", ".join(taken) + (f"; ignored: {', '.join(others)}" if left else "")


def is_blank(record: list[str], delimiter: str) -> bool:
    """Whether a line that was split has nothing in it but white space."""
    return not "".join(record).strip() and (len(record) < 2 or delimiter.isspace())


def wrong_width(found: int, expected: int) -> str:
    """Say that a line has too few or too many columns."""
    what = f"{found} column{'s' * (found != 1)}"
    return f"{what} where {expected} columns are expected; quote ids with delimiters"


def list_interactions(names: list[str], *, only_numbers: bool = False) -> bool:
    """Return whether columns of these names hold a user and an item in each row.

    If they hold `only_numbers`, they may be counts of items of such names, so one must be called user, item or an id.

    >>> list_interactions(["user_id", "artist", "plays"]), list_interactions(["jazz", "folk"])
    (True, False)
    >>> list_interactions(["book", "person", "cup"]), list_interactions(["book", "person", "cup"], only_numbers=True)
    (True, False)
    """
    plain = (name for name in names if not only_numbers or re.fullmatch(r"(?i)users?|items?|.*id", name.strip()))
    return any(map(_roles, plain)) and {"user", "item"} <= set().union(*map(_roles, names))
