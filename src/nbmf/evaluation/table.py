"""Results that are tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Table(ABC):
    """Anything with rows."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return a plain dictionary for each row."""

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(self.rows())
