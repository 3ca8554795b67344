"""Answers and results that are tables: text at a prompt, HTML in a notebook, a data frame on request."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

MOST_ROWS = 25  # that are shown

Shown = tuple[str, Sequence[str], Iterable[Sequence[str]]]
"""What is shown of a table: a title, the heads of the columns, and the rows."""


class Table(ABC):
    """Base class of what is shown as a table."""

    @property
    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """The columns by name."""

    @abstractmethod
    def shown(self) -> Shown:
        """Return what is shown: a title, the heads of the columns, and the rows."""

    def to_pandas(self) -> Any:
        """Return the table as a pandas data frame."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(self.columns)

    def __repr__(self) -> str:
        return as_text(*self.shown())

    def _repr_html_(self) -> str:
        return as_html(*self.shown())


class RowTable(Table):
    """Base class of tables that are made of rows."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per row."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        rows = self.rows()
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def first_rows(columns: dict[str, Any], size: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the first rows of a table as text; a last row says how many of the `size` rows are left."""
    kept = {name: values[:MOST_ROWS] for name, values in columns.items()}
    rows = [[_text(value) for value in row] for row in zip(*kept.values(), strict=True)]
    n_left = (len(next(iter(columns.values()))) if size is None else size) - len(rows)
    return list(columns), [*rows, [f"… {n_left:,} more", *[""] * (len(columns) - 1)]] if n_left > 0 else rows


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def as_text(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as text, its first column aligned to the left and the others to the right.

    >>> as_text("Metrics", ("", "mean"), [("ndcg", "0.3"), ("recall", "0.25")]).splitlines()
    ['Metrics', '        mean', 'ndcg     0.3', 'recall  0.25']
    """
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    forms = [f"{'>' if n else '<'}{width}" for n, width in enumerate(widths)]
    texts = ("  ".join(map(format, line, forms)).rstrip() for line in lines)
    return "\n".join([title, *texts])


def as_html(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as HTML.

    >>> "<td>a &lt; b</td>" in as_html("Metrics", ("", "mean"), [("a < b", "0.3")])
    True
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"
