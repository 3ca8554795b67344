"""A report as a list of blocks, written as Markdown or as one HTML page that needs nothing but itself.

All text is literal: whatever a file, a user or an item is called, it is shown as it is called.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path


class Best(str):
    """A cell that stands out among those of its row or column."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    """A heading of a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Something to type."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table with a heading for each column; the columns from `n_words` on are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_words: int = 1


@dataclass(frozen=True)
class Image:
    """A picture by its name; its PNG lies in the folder figures."""

    name: str
    caption: str


Block = Heading | Text | Code | Table | Image

SHORT = 24  # letters that stay on one line

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fdfdfc; --line: #d6d6d2; --quiet: #5c5c5c;
  --holds: #00664b; --fails: #a13a00; --undecided: #5c5c5c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e4; --paper: #17181a; --line: #3c3e42; --quiet: #a8a8a4;
  --holds: #4fd0a8; --fails: #ff9d66; --undecided: #b4b4b0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 58rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; font-size: 0.92rem; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.short, .verdict { white-space: nowrap; } .verdict { font-weight: 600; }
.holds { color: var(--holds); } .does-not-hold { color: var(--fails); } .undecided { color: var(--undecided); }
figure { margin: 1rem 0; } figure img { width: 100%; max-width: 34rem; height: auto; background: #fff; padding: 0.5rem;
  border: 1px solid var(--line); } figcaption { color: var(--quiet); font-size: 0.9rem; max-width: 44rem; }
@media (max-width: 40rem) { .words thead { display: none; } .words tr { display: block; padding: 0.4rem 0;
  border-bottom: 1px solid var(--line); } .words td { display: block; padding: 0.1rem 0; border: 0; } }
pre { white-space: pre-wrap; padding: 0.6rem 0.8rem; border: 1px solid var(--line); }
"""


def as_markdown(title: str, blocks: Sequence[Block]) -> str:
    """Return the report as Markdown; pictures are referred to."""
    return f"# {_literal(title)}\n\n{blocks_as_markdown(blocks)}\n"


def blocks_as_markdown(blocks: Sequence[Block]) -> str:
    """Return part of a page."""
    return "\n\n".join(map(_block_as_markdown, blocks))


def as_html(title: str, blocks: Sequence[Block], figures: Path) -> str:
    """Return the report as one page with its pictures inside."""
    body = "\n".join(_block_as_html(block, figures) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _literal(text: str) -> str:
    return re.sub(r"([\\`*_|<>#\[\]])", r"\\\1", text)


def _block_as_markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_literal(text)}"
        case Text(text):
            return _literal(text)
        case Code(text):
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Image(name, caption):
            return f"![{_literal(caption)}](figures/{name}.png)\n\n{_literal(caption)}"
        case Table(head, rows, n_words):
            rule = ["---" if n < n_words else "---:" for n in range(len(head))]
            lines = [map(_literal, head), rule, *(map(_cell_as_markdown, row) for row in rows)]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell_as_markdown(cell: str) -> str:
    return f"**{_literal(cell)}**" if isinstance(cell, Best | StrEnum) else _literal(cell)


def _block_as_html(block: Block, figures: Path) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Image(name, caption):
            picture = base64.b64encode((figures / f"{name}.png").read_bytes()).decode()
            return (
                f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{picture}">'
                f"<figcaption>{escape(caption)}</figcaption></figure>"
            )
        case Table(head, rows, n_words):
            kinds = ["" if n < n_words else ' class="number"' for n in range(len(head))]
            titles = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
            body = ("".join(_cell_as_html(cell, kind) for kind, cell in zip(kinds, row, strict=True)) for row in rows)
            lines = "\n".join(f"<tr>{row}</tr>" for row in body)
            words = ' class="words"' if n_words == len(head) else ""  # on a phone, one cell under the other
            table = f"<table{words}>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"
            return f'<div class="wide">{table}</div>'


def _cell_as_html(cell: str, kind: str) -> str:
    if isinstance(cell, StrEnum):
        return f'<td class="verdict {cell.replace(" ", "-")}">{escape(cell)}</td>'
    text = f"<strong>{escape(cell)}</strong>" if isinstance(cell, Best) else escape(cell)
    short = ' class="short"' if not kind and len(cell) <= SHORT else ""
    return f"<td{kind or short}>{text}</td>"
