"""Gene programs of single cells: components, their genes, and the populations in which they are strongest.

    python examples/single_cell.py                 (extra `demo`; goes through AnnData if that is installed)
    NBMF_DATA=… python examples/single_cell.py     (with data/pbmc_facs in that folder)

Without NBMF_DATA the cells are drawn from the model: six populations, each with a gene program of its own, so that the
programs that are found can be compared with those that were drawn. With it, they are sorted blood cells.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import nbmf

N_GENES = 8


def main() -> None:
    """Fit the counts, then print each program's genes and the population in which it is strongest."""
    folder = os.environ.get("NBMF_DATA")
    data, populations, n_programs = blood(Path(folder)) if folder else simulated()
    print(data)
    settings = {"item_shape": 0.3, "max_iter": 300, "accelerate": True, "random_state": 0}
    model = fitted(data, nbmf.NBMF(n_programs, **settings))
    print(f"{'converged' if model.converged_ else 'stopped'} after {model.n_iter_} sweeps\n")
    used = model.user_factors_ * model.item_factors_.sum(axis=0)  # expected molecules per cell and program
    used = used / used.sum(axis=1, keepdims=True)
    for program in np.argsort(-used.mean(axis=0)):
        genes = model.top_items(program, N_GENES).items
        means = {name: float(used[populations == name, program].mean()) for name in np.unique(populations)}
        strongest = max(means, key=means.__getitem__)
        print(f"{used[:, program].mean():6.1%}  {' '.join(genes):70}  {means[strongest]:.0%} of {strongest}")


def fitted(data: nbmf.Interactions, model: nbmf.NBMF) -> nbmf.NBMF:
    """Fit a model, through AnnData where it is installed: the factors are then also in its obsm and varm."""
    if find_spec("anndata") is None:
        return model.fit(data)
    import anndata  # noqa: PLC0415 (optional)
    from nbmf.external.anndata import factorize  # noqa: PLC0415 (needs anndata)

    adata = anndata.AnnData(data.matrix.astype(np.float32))
    adata.obs_names, adata.var_names = data.users.astype(str), data.items.astype(str)
    factorize(adata, model)
    print(adata)
    return model


def simulated() -> tuple[nbmf.Interactions, NDArray[np.str_], int]:
    """Return cells drawn from six programs, the population of each, and the number of programs."""
    n_programs = 6
    drawn = nbmf.datasets.simulate(1500, 800, n_components=n_programs, user_shape=0.1, item_shape=0.2, mean_count=0.5)
    genes = [f"P{row.argmax() + 1}-{n}" for n, row in enumerate(drawn.item_factors)]  # named after their program
    populations = np.array([f"population {row.argmax() + 1}" for row in drawn.user_factors])
    data = nbmf.Interactions.from_matrix(drawn.matrix, [f"cell {n}" for n in range(drawn.n_users)], genes)
    kept = np.flatnonzero(np.diff(data.matrix.indptr) > 0)
    return data.select_users(kept), populations[kept], n_programs


def blood(folder: Path) -> tuple[nbmf.Interactions, NDArray[np.str_], int]:
    """Return sorted blood cells with the genes' symbols, the population of each cell, and the number of programs."""
    place = folder / "data" / "pbmc_facs"
    data = nbmf.read_interactions(place / "interactions.parquet").filter(min_users_per_item=20, min_items_per_user=1)
    genes, cells = (pq.read_table(place / f"{name}.parquet").to_pydict() for name in ("items", "users"))
    symbol = {item: str(name) for item, name in zip(genes["item"], genes["symbol"], strict=True)}
    names = [symbol[item] for item in data.items.tolist()]
    unique = [name if names.count(name) == 1 else f"{name}-{n}" for n, name in enumerate(names)]
    population = dict(zip(cells["user"], cells["subpop"], strict=True))
    labelled = nbmf.Interactions.from_matrix(data.matrix, data.users, unique)
    return labelled, np.array([population[user] for user in data.users.tolist()]), 12


if __name__ == "__main__":
    main()
