"""The data sets of the leaderboard, each with a split that no model was developed on, by the names typed.

All but the groceries are files in the folder data/ of the folder that the environment variable NBMF_DATA names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb

from nbmf.data.interactions import Interactions
from nbmf.data.read import read_interactions
from nbmf.evaluation.experiments.study import TEST_FRACTION, Study, open_study
from nbmf.evaluation.experiments.tuned import GOAL

SEED = 2027  # of the random splits


@dataclass(frozen=True)
class Board:
    """A data set of the leaderboard."""

    open: Callable[[], Study]
    goal: str = GOAL  # what models are tuned for and ordered by


def data_file(*parts: str) -> Path:
    """Return the path of a file of real data."""
    folder = os.environ.get("NBMF_DATA")
    if folder is None:
        raise SystemExit(f"{'/'.join(parts)}: set NBMF_DATA to the folder that has data/{parts[0]}")
    return Path(folder, "data", *parts)


def held_out(name: str, data: Interactions) -> Study:
    """Hold out a random fifth of the non-zero counts."""
    parts = data.split(TEST_FRACTION, seed=SEED)
    return Study(name, data, *parts, f"a fifth of the non-zero counts at random, seed {SEED}", filtered=True)


def taste_profile() -> Study:
    """Return the Taste Profile subset of the paper's author, with his split."""
    return open_study(data_file("tasteprofile_gouvert", "interactions.parquet"))


def online_retail(name: str, count: str) -> Study:
    """Return a year of a wholesaler's invoices with one of its two counts, in SQL, after the paper's filters."""
    path = data_file("online_retail", "events.parquet")
    with duckdb.connect() as connection:
        # sorted, so that the split is the same whatever order the groups come in
        query = f'SELECT "user", item, {count} AS count FROM read_parquet($1) GROUP BY ALL ORDER BY ALL'
        data = read_interactions(connection.sql(query, params=[str(path)]))
    return held_out(name, data.filter())


def newsgroups() -> Study:
    """Return word counts: words in at least 200 posts, then posts with at least 20 of these words.

    That leaves 1,800 words, so that a dense matrix of items × items takes seconds.
    """
    data = read_interactions(data_file("newsgroups20", "interactions.parquet"))
    return held_out("newsgroups20", data.filter(min_users_per_item=200, min_items_per_user=20))


BOARDS = {
    "groceries": Board(partial(open_study, seed=SEED)),
    "tasteprofile_gouvert": Board(taste_profile),
    "online_retail_invoices": Board(partial(online_retail, "online_retail_invoices", "count(DISTINCT invoice)")),
    # up to 11,692 units of an item: 2^count leaves the largest count of each user and nothing else
    "online_retail_units": Board(partial(online_retail, "online_retail_units", "sum(units)"), "ndcg_log2"),
    "newsgroups20": Board(newsgroups),
}


def open_board(source: str) -> tuple[Study, str]:
    """Return a data set by its name, or a file of users, items and counts, and the metric that models are tuned for."""
    board = BOARDS.get(source, Board(partial(open_study, source, seed=SEED)))
    return board.open(), board.goal
