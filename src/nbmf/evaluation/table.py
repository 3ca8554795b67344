"""Results that are tables."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any


class Table(ABC):
    """Base class of results that have rows."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per row."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(self.rows())


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
