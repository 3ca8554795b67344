"""How counts are looked at: in a sentence, as a table, as a data frame, or one user at a time."""

from html import escape
from typing import Any

import numpy as np
import scipy.sparse as sp

SHOWN_ROWS = 10


class Listing:
    """Base class of `Interactions`: ways to look at them."""

    users: Any
    items: Any
    matrix: sp.csr_array
    item_names: Any
    n_repeated: int
    events: Any
    reading: str

    def __repr__(self) -> str:
        data = self.matrix.data
        total = data.sum(dtype=np.float64) if data.dtype.kind == "i" else 0.0
        total = data.sum() if total < 2.0**62 else total  # which would wrap around
        parts = [f"{_many(self.matrix.shape[0], 'user')} × {_many(self.matrix.shape[1], 'item')}"]
        parts += [_many(len(data), "non-zero count"), f"total {total if len(data) else 0:,}"]
        parts += ["not all whole numbers"] * (data.dtype.kind == "f" and bool(np.any(data % 1)))
        parts += [f"{_many(self.n_repeated, 'repeated pair')} added up"] * bool(self.n_repeated)
        parts += [] if self.events is None else [self.events.summary]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        columns, n_left = self._columns(SHOWN_ROWS), len(self.matrix.data) - SHOWN_ROWS
        rows = [list(columns), *zip(*(values.tolist() for values in columns.values()), strict=True)]
        cells = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
        table = "".join(f"<tr>{line}</tr>" for line in cells)
        more = f"<p>… and {n_left:,} more</p>" if n_left > 0 else ""
        return f"<p>{escape(repr(self))}</p><table>{table}</table>{more}"

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per non-zero count: user, item, (name,) count."""
        import pandas as pd  # noqa: PLC0415 (optional)

        return pd.DataFrame(self._columns())

    def to_polars(self) -> Any:
        """Return the same table as a polars data frame."""
        import polars as pl  # noqa: PLC0415 (optional)

        columns = self._columns().items()
        return pl.DataFrame({name: v.tolist() if v.dtype.kind in "OU" else v for name, v in columns})

    def of_user(self, user: Any) -> dict[Any, Any]:
        """Return the counts of one user by item, the largest first; `recommend_for` takes such a dictionary.

        Examples
        --------
        >>> import nbmf
        >>> data = nbmf.Interactions.from_arrays(["ann", "bob", "ann"], ["jazz", "jazz", "folk"], [3, 1, 12])
        >>> data.of_user("ann")
        {'folk': 12, 'jazz': 3}
        """
        from nbmf.data.ids import Lookup  # noqa: PLC0415 (which imports Interactions)

        (row,) = Lookup(self.users, "user", "these interactions").positions([user])
        cells = slice(*self.matrix.indptr[row : row + 2])
        counts, items = self.matrix.data[cells], self.items[self.matrix.indices[cells]]
        order = np.argsort(-counts, kind="stable")
        return dict(zip(items[order].tolist(), counts[order].tolist(), strict=True))

    def _columns(self, n_rows: int | None = None) -> dict[str, Any]:
        """Return the columns of the table, or their first entries."""
        counts, items = self.matrix.data[:n_rows], self.matrix.indices[:n_rows]
        users = np.searchsorted(self.matrix.indptr, np.arange(len(counts)), side="right") - 1
        found = {"user": self.users[users], "item": self.items[items]}
        if self.item_names is not None:
            found["name"] = self.item_names[items]
        return {**found, "count": counts}


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
