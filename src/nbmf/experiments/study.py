"""What an experiment is about: counts, the part of them that is held out, and what the items are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from nbmf.data.datasets import groceries
from nbmf.data.interactions import Interactions, canonical
from nbmf.data.read import read_interactions
from nbmf.data.sql import connect
from nbmf.data.text import ReadError
from nbmf.evaluation.judged import fingerprint

TEST_FRACTION = 0.2
SPLITS = ("auto", "author", "random")
# columns that may name an item, in the order of preference
_NAMES = (("title", "artist_name"), ("title", "artist"), ("title",), ("name",), ("symbol",))


@dataclass(frozen=True)
class Source:
    """Where the counts come from and how they were parted, in words and numbers that a file can hold."""

    name: str
    filtered: bool
    split: str
    n_users: int
    n_items: int
    nnz: int
    n_test: int
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Study:
    """Counts, of which `train` is to be learned from and `test` to be found; the same ids on all sides."""

    name: str
    data: Interactions
    train: Interactions
    test: Interactions
    split: str
    filtered: bool = False

    @property
    def source(self) -> Source:
        """What to write down, so that rows of different studies are never mixed."""
        data, mark = self.data, fingerprint(self.train, self.test)
        sizes = {"n_users": data.n_users, "n_items": data.n_items, "nnz": data.nnz, "n_test": self.test.nnz}
        return Source(self.name, self.filtered, self.split, **sizes, fingerprint=mark)

    def labels(self) -> list[str]:
        """Return something to call each item by; a name that several items share is followed by the id."""
        ids, names = self.data.items.tolist(), self.data.item_names
        if names is None:
            return [f"item {item}" for item in ids]
        shared = Counter(names.tolist())
        return [
            name if shared[name] == 1 else f"{name} (#{item})" for item, name in zip(ids, names.tolist(), strict=True)
        ]


def open_study(
    path: Any = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    split: str = "auto",
    seed: int = 1992,
    filtered: bool | None = None,
    names: Any = None,
) -> Study:
    """Read the counts and hold out a fifth of them, as §5.1 does.

    Parameters
    ----------
    path : anything `nbmf.read_interactions` takes from a file; None: the groceries of `nbmf.datasets.groceries`
    columns : names of the columns user, item and count; those not given are recognised
    split : "author", the file's own, a column `test` of true and false in a parquet file; "random", a fifth of the
        non-zero counts; "auto", the first where there is such a column
    seed : of the random split. 1992 is the author's: on his subset of the Taste Profile it gives his own split
    filtered : keep items with 50 users, then users with 20 items, once; None: only the groceries
    names : parquet file with a column `item` and one of title, name, symbol (and artist); None: items.parquet beside
        the file, if there is one
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, SPLITS))}")
    roles = dict(columns or {})
    data = replace(groceries(), events=None) if path is None else read_interactions(path, **roles)
    filtered = path is None if filtered is None else filtered
    data = data.filter() if filtered else data
    data = data if path is None else replace(data, item_names=item_names(Path(path), names, data))
    name = "groceries" if path is None else "/".join(Path(path).resolve().parts[-2:])
    if not data.nnz:
        raise ValueError(f"{name}: no user and item is left by the filters (50 users an item, then 20 items a user)")
    marked = path is not None and split != "random" and _has_marks(Path(path))
    if split == "author" and not marked:
        raise ValueError(f"{name}: has no column 'test' of true and false (parquet); use split='random'")
    if marked:
        train, test = _marked_parts(Path(path), data, roles)
        words = "the file's own, its column test"
    else:
        train, test = data.split(TEST_FRACTION, seed=seed)
        words = f"a fifth of the non-zero counts at random, seed {seed}"
    if not train.nnz or not test.nnz:
        empty = "train" if test.nnz else "test"
        raise ValueError(f"{name}: the {empty} part is empty; there must be counts to learn from and counts to find")
    return Study(name, data, train, test, words, filtered)


def _columns(connection: Any, path: Path) -> dict[str, str]:
    found = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    return {column: kind for column, kind, *_ in found}


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def _has_marks(path: Path) -> bool:
    if not _is_parquet(path):
        return False
    with connect(str(path)) as connection:
        return _columns(connection, path).get("test") == "BOOLEAN"


def _marked_parts(path: Path, data: Interactions, roles: Mapping[str, str | None]) -> tuple[Interactions, Interactions]:
    """Return the rows whose `test` is false and those whose `test` is true, both with the ids of `data`."""
    parts = []
    with connect(str(path)) as connection:
        for chosen in ("NOT test", "test"):
            rows = f"SELECT * EXCLUDE (test) FROM read_parquet($1) WHERE {chosen}"
            parts.append(_placed(read_interactions(connection.sql(rows, params=[str(path)]), **roles), data))
    if parts[0].nnz + parts[1].nnz != data.nnz:
        raise ReadError(
            f"{path}: {data.nnz} pairs of user and item, but {parts[0].nnz} to learn from and {parts[1].nnz} to test; "
            "column test must say true or false once for each pair"
        )
    return parts[0], parts[1]


def _placed(part: Interactions, data: Interactions) -> Interactions:
    """Return the counts of a part in the rows and columns of the whole; ids that the whole has not are left out."""
    part = part.select_users(np.flatnonzero(np.isin(part.users, data.users)))
    part = part.select_items(np.flatnonzero(np.isin(part.items, data.items)))
    entries = part.matrix.tocoo()
    rows = np.searchsorted(data.users, part.users)[entries.row]
    columns = np.searchsorted(data.items, part.items)[entries.col]
    matrix = canonical(sp.csr_array((entries.data, (rows, columns)), shape=data.matrix.shape))
    return replace(data, matrix=matrix, n_repeated=0, events=None)


def item_names(path: Path, names: Any, data: Interactions) -> Any:
    """Return the items' names in the order of `data`, or None where no file has any.

    names : parquet file with them; None: items.parquet beside the data at `path`, if there is one
    """
    source = path.parent / "items.parquet" if names is None else Path(names)
    if names is None and not (source.is_file() and _is_parquet(source)):
        return data.item_names
    with connect(str(source)) as connection:
        columns = _columns(connection, source)
        chosen = next((known for known in _NAMES if set(known) <= set(columns)), None)
        if chosen is None or "item" not in columns:
            if names is None:  # nobody asked for it
                return data.item_names
            raise ReadError(f"{source}: needs a column item and one of title, name, symbol; it has {list(columns)}")
        query = f"SELECT item, {', '.join(chosen)} FROM read_parquet(?)"
        called = {item: _in_words(*words) for item, *words in connection.execute(query, [str(source)]).fetchall()}
    return np.array([called.get(item) or f"item {item}" for item in data.items.tolist()], object)


def _in_words(name: str | None, by: str | None = None) -> str | None:
    return f"{name} ({by})" if name and by else name
