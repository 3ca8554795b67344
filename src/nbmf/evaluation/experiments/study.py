"""The data of an experiment: counts, the part that is held out, and the names of the items."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nbmf.data.datasets import groceries
from nbmf.data.ids import Lookup, align
from nbmf.data.interactions import Interactions
from nbmf.data.read import read_interactions
from nbmf.data.sql import connect
from nbmf.data.text import ReadError
from nbmf.evaluation.evaluate import fingerprint

TEST_FRACTION = 0.2
SPLITS = ("auto", "author", "random")
# columns that may hold an item's name, in order of preference
_NAMES = (("title", "artist_name"), ("title", "artist"), ("title",), ("name",), ("symbol",))


def identity(train: Interactions, test: Interactions, nnz: int) -> dict[str, Any]:
    """Return the sizes and the fingerprint of the data, so that results of different data are never mixed."""
    sizes = {"n_users": train.n_users, "n_items": train.n_items, "nnz": nnz, "n_test": test.nnz}
    return {**sizes, "fingerprint": fingerprint(train, test)}


@dataclass(frozen=True, eq=False)
class Study:
    """Counts, of which `train` is fitted and `test` held out; all three have the same ids."""

    name: str
    data: Interactions
    train: Interactions
    test: Interactions
    split: str
    filtered: bool = False

    def source(self) -> dict[str, Any]:
        """Return what identifies the data, so that results of different studies are never mixed."""
        origin = {"name": self.name, "filtered": self.filtered, "split": self.split}
        return {**origin, **identity(self.train, self.test, self.data.nnz)}

    def labels(self) -> list[str]:
        """Return a name for each item; where several items share a name, the id is appended."""
        ids, names = self.data.items.tolist(), self.data.item_names
        if names is None:
            return [f"item {item}" for item in ids]
        shared = Counter(names.tolist())
        named = zip(ids, names.tolist(), strict=True)
        return [name if shared[name] == 1 else f"{name} (#{item})" for item, name in named]

    def share_at_least(self, count: float) -> float:
        """Return the share of the non-zero counts that are at least this large."""
        return float(np.mean(self.data.matrix.data >= count))


def open_study(
    path: Any = None,  # a file that `nbmf.read_interactions` reads; by default the groceries
    *,
    columns: Mapping[str, Any] | None = None,  # user, item, count and bad_rows of `nbmf.read_interactions`
    split: str = "auto",  # the file's own, a boolean column `test` ("author"), or "random"; "auto": its own if any
    seed: int = 1992,  # of the random split; the author's own, which gives his split of his Taste Profile subset
    filtered: bool | None = None,  # items with 50 users or more, then users with 20 items; by default the groceries
    names: Any = None,  # parquet file with item and title, name or symbol; by default items.parquet beside the data
) -> Study:
    """Read the counts and hold out a fifth of them, as §5.1 does."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, SPLITS))}")
    roles = dict(columns or {})
    data = replace(groceries(), events=None) if path is None else read_interactions(path, **roles)
    filtered = path is None if filtered is None else filtered
    data = data.filter() if filtered else data
    data = data if path is None else replace(data, item_names=item_names(Path(path), names, data))
    name = "groceries" if path is None else "/".join(Path(path).resolve().parts[-2:])
    if not data.nnz:
        raise ValueError(f"{name}: nothing is left by the filters (50 users per item, then 20 items per user)")
    marked = path is not None and split != "random" and _parquet_columns(Path(path)).get("test") == "BOOLEAN"
    if split == "author" and not marked:
        raise ValueError(f"{name}: has no column 'test' of true and false (parquet); use split='random'")
    train, test = _marked_parts(Path(path), data, roles) if marked else data.split(TEST_FRACTION, seed=seed)
    at_random = f"a fifth of the non-zero counts at random, seed {seed}"
    if not train.nnz or not test.nnz:
        empty = "train" if test.nnz else "test"
        raise ValueError(f"{name}: the {empty} part is empty; there must be counts to fit and counts to hold out")
    return Study(name, data, train, test, "the file's own split, its column test" if marked else at_random, filtered)


def _parquet_columns(path: Path) -> dict[str, str]:
    """Return the columns of a parquet file with their types; none of any other file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            return {}
    with connect(str(path)) as connection:
        found = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    return {column: kind for column, kind, *_ in found}


def _marked_parts(path: Path, data: Interactions, roles: Mapping[str, Any]) -> tuple[Interactions, Interactions]:
    """Return the counts whose `test` is false and those whose `test` is true, both with the ids of `data`."""
    parts, ids = [], (Lookup(data.users, "user"), Lookup(data.items, "item"))
    with connect(str(path)) as connection:
        for chosen in ("NOT test", "test"):
            rows = f"SELECT * EXCLUDE (test) FROM read_parquet($1) WHERE {chosen}"
            part = read_interactions(connection.sql(rows, params=[str(path)]), **roles)
            parts.append(replace(data, matrix=align(part, *ids, unknown="ignore"), n_repeated=0, events=None))
    if parts[0].nnz + parts[1].nnz != data.nnz:
        sizes = f"{data.nnz} pairs of user and item, but {parts[0].nnz} to fit and {parts[1].nnz} to test"
        raise ReadError(f"{path}: {sizes}; the column test must be true or false once for each pair")
    return parts[0], parts[1]


def item_names(path: Path, names: Any, data: Interactions) -> Any:
    """Return the items' names, from the file `names` or items.parquet beside the data; None if no file has any."""
    source = path.parent / "items.parquet" if names is None else Path(names)
    columns = _parquet_columns(source) if names is not None or source.is_file() else {}
    chosen = next((known for known in _NAMES if {"item", *known} <= set(columns)), None)
    if chosen is None:
        if names is None:
            return data.item_names
        raise ReadError(f"{source}: needs a column item and one of title, name, symbol; it has {list(columns)}")
    with connect(str(source)) as connection:
        query = f"SELECT item, {', '.join(chosen)} FROM read_parquet(?)"
        found = connection.execute(query, [str(source)]).fetchall()
    named = {item: " ".join([name, *(f"({artist})" for artist in by if artist)]) for item, name, *by in found if name}
    return np.array([named.get(item) or f"item {item}" for item in data.items.tolist()], object)
