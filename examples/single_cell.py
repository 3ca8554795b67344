"""Gene programs of sorted blood cells, through AnnData: components, their genes, and the cell types they mark.

NBMF_DATA=… python examples/single_cell.py     (data/pbmc_facs of that folder; extra `anndata`)
"""

from __future__ import annotations

import os
from pathlib import Path

import anndata
import numpy as np
import pyarrow.parquet as pq

import nbmf
from nbmf.estimators.anndata import factorize

N_PROGRAMS, N_GENES = 12, 8


def read() -> anndata.AnnData:
    """Return the cells × genes counts with the genes' symbols and the cells' types."""
    folder = Path(os.environ["NBMF_DATA"]) / "data" / "pbmc_facs"
    data = nbmf.read_interactions(folder / "interactions.parquet").filter(min_users_per_item=20, min_items_per_user=1)
    genes, cells = (pq.read_table(folder / f"{name}.parquet").to_pandas() for name in ("items", "users"))
    adata = anndata.AnnData(data.matrix.astype(np.float32))
    symbol = dict(zip(genes["item"], genes["symbol"], strict=True))
    adata.var_names = [symbol[item] for item in data.items.tolist()]
    adata.var_names_make_unique()
    adata.obs["population"] = cells.set_index("user").loc[data.users.tolist(), "subpop"].to_numpy()
    return adata


def main() -> None:
    """Fit, then print each program's genes and the population in which it is strongest."""
    adata = read()
    print(adata)
    model = factorize(adata, nbmf.NBMF(N_PROGRAMS, item_shape=0.3, max_iter=150, random_state=0, verbose=True))
    weight = adata.varm["nbmf"] ** 2 / adata.varm["nbmf"].sum(axis=1, keepdims=True)
    used = adata.obsm["X_nbmf"] * adata.varm["nbmf"].sum(axis=0)
    used = used / used.sum(axis=1, keepdims=True)
    populations = adata.obs["population"].to_numpy()
    for program in np.argsort(-used.mean(axis=0)):
        genes = adata.var_names[np.argsort(-weight[:, program])[:N_GENES]]
        by_population = {name: used[populations == name, program].mean() for name in np.unique(populations)}
        strongest = max(by_population, key=by_population.get)
        print(f"{used[:, program].mean():6.1%}  {' '.join(genes):70}  {strongest} ({by_population[strongest]:.0%})")
    print(f"objective {model.objective_[-1]:,.0f} after {model.n_iter_} sweeps")


if __name__ == "__main__":
    main()
