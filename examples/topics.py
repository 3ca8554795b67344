"""Topics of newsgroup posts: word counts factorized, each component shown by its words and by who writes about it.

NBMF_DATA=… python examples/topics.py      (data/newsgroups20 of that folder: interactions, items and users as Parquet)
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import nbmf

N_TOPICS, N_WORDS = 20, 10


def main() -> None:
    """Fit, then print the topics, the most written about first."""
    folder = Path(os.environ["NBMF_DATA"]) / "data" / "newsgroups20"
    data = nbmf.read_interactions(folder / "interactions.parquet").filter(min_users_per_item=10, min_items_per_user=10)
    print(data)
    words = named(folder / "items.parquet", "item", "name")
    groups = named(folder / "users.parquet", "user", "topic")
    model = nbmf.NBMF(N_TOPICS, item_shape=0.3, max_iter=100, random_state=0, verbose=True).fit(data)
    share = model.user_factors_ * model.item_factors_.sum(axis=0)  # expected words of each document from each topic
    for topic in np.argsort(-share.sum(axis=0)):
        # words that this topic explains, not those that every topic has
        weight = model.item_factors_[:, topic] ** 2 / model.item_factors_.sum(axis=1)
        best = [words[data.items[place]] for place in np.argsort(-weight)[:N_WORDS]]
        writers = [groups[data.users[place]] for place in np.argsort(-share[:, topic])[:200]]
        about = max(set(writers), key=writers.count)
        print(
            f"{share[:, topic].sum() / share.sum():6.1%}  {' '.join(best)}  ({about}: {writers.count(about) / 2:.0f} %)"
        )


def named(path: Path, key: str, value: str) -> dict[object, str]:
    """Read a table of names."""
    table = pq.read_table(path).to_pydict()
    return dict(zip(table[key], table[value], strict=True))


if __name__ == "__main__":
    main()
