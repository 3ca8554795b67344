"""The data of an experiment: splits that are the file's own, names, and shares of the counts."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nbmf
from nbmf.evaluation.experiments.paper import data_shares
from nbmf.evaluation.experiments.study import open_study


def test_the_files_own_split_is_taken(plays, study):
    assert study.split == "the file's own split, its column test"
    table = pq.read_table(plays)
    user, item, count, test = (table[name].to_numpy() for name in ("user", "item", "count", "test"))
    for part, rows in ((study.train, ~test), (study.test, test)):
        found = part.matrix.tocoo()
        ids = zip(part.users[found.row].tolist(), part.items[found.col].tolist(), found.data.tolist(), strict=True)
        assert set(ids) == set(zip(user[rows], item[rows], count[rows], strict=True))
        np.testing.assert_array_equal(part.users, study.data.users)
    drawn = open_study(plays, split="random", seed=3)
    expected = nbmf.read_interactions(plays).split(0.2, seed=3)
    assert (drawn.train.matrix != expected.train.matrix).nnz == 0
    assert "seed 3" in drawn.split


def test_columns_may_be_called_anything(plays, study, tmp_path):
    renamed = pq.read_table(plays).rename_columns(["a", "b", "c", "test"])
    pq.write_table(renamed, tmp_path / "plays.parquet")
    named = open_study(tmp_path / "plays.parquet", columns={"user": "a", "item": "b", "count": "c"})
    assert named.source()["fingerprint"] == study.source()["fingerprint"]


def test_items_that_share_a_name_are_told_apart(study):
    labels = dict(zip(study.data.items.tolist(), study.labels(), strict=True))
    assert (labels[0], labels[38], labels[5]) == ("Song 0 (#0)", "Song 0 (#38)", "Song 5")


def test_splits_that_are_none_are_refused(plays, tmp_path):
    twice = {"user": [0, 0, 1], "item": [0, 0, 1], "count": [1, 2, 3], "test": [True, False, False]}
    pq.write_table(pa.table(twice), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match="must be true or false once for each pair"):
        open_study(tmp_path / "twice.parquet")
    (tmp_path / "plays.csv").write_text("user,item,count\n" + "".join(f"u{n},i{n % 3},2\n" for n in range(10)))
    with pytest.raises(ValueError, match="has no column 'test'"):
        open_study(tmp_path / "plays.csv", split="author")
    with pytest.raises(ValueError, match="left by the filters"):
        open_study(tmp_path / "plays.csv", filtered=True)
    with pytest.raises(ValueError, match="split is 'mine'"):
        open_study(tmp_path / "plays.csv", split="mine")
    with pytest.raises(ValueError, match="needs a column item"):
        open_study(plays, names=tmp_path / "twice.parquet")
    assert open_study(tmp_path / "plays.csv").labels() == ["item i0", "item i1", "item i2"]


def test_the_authors_split_is_that_of_his_seed(data_folder, taste_profile):
    path = data_folder / "data" / "tasteprofile_gouvert" / "interactions.parquet"
    marked, drawn = open_study(path), open_study(path, split="random")
    assert "own" in marked.split
    for part in ("train", "test"):
        theirs = taste_profile[part == "test"].matrix
        assert (getattr(marked, part).matrix != theirs).nnz == 0
        assert (getattr(drawn, part).matrix != theirs).nnz == 0
    assert all(round(100 * ours) == theirs for _, theirs, ours in data_shares(marked))


def test_shares_of_the_counts(study):
    counts = study.data.matrix.data
    for y in (0, 1, 2, 3, 10, 10**6):
        assert study.share_at_least(y) == pytest.approx(np.mean(counts >= y))
    measured = {what: ours for what, _, ours in data_shares(study)}
    assert measured["non-zero counts that are 1"] == pytest.approx(np.mean(counts == 1))
