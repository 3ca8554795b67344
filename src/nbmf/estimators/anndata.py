"""Single-cell counts: factorize an AnnData object, with cells as users and genes as items.

The exposure absorbs a gene's burst in one cell, so give raw molecule counts, neither logarithms nor scaled ones.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from nbmf.data.interactions import Interactions
from nbmf.estimators.factorization import Factorization
from nbmf.estimators.nbmf import NBMF

if TYPE_CHECKING:
    from anndata import AnnData


def interactions(adata: "AnnData", *, layer: str | None = None) -> Interactions:
    """Return the counts of an AnnData object, with the names of its cells and genes as ids.

    Parameters
    ----------
    adata : AnnData
        Cells × genes.
    layer : str, optional
        The layer that holds the raw counts, `adata.X` by default.
    """
    if adata.isbacked:
        raise ValueError("this AnnData object is in a file, not in memory; adata.to_memory() reads it")
    if layer is not None and layer not in adata.layers:
        raise KeyError(f"there is no layer {layer!r}; there are {', '.join(map(repr, adata.layers)) or 'none'}")
    counts = adata.X if layer is None else adata.layers[layer]
    if counts is None:
        raise ValueError("adata.X is empty; name the layer with the raw counts")
    values = counts.data if hasattr(counts, "indptr") else np.asarray(counts)
    if values.size and np.any(values != np.floor(values)):
        raise ValueError(
            f"{'X' if layer is None else repr(layer)} holds fractions; give raw molecule counts, "
            "not normalized or logarithmic ones (perhaps they are in another layer)"
        )
    for what, axis, names in (("cell", "obs", adata.obs_names), ("gene", "var", adata.var_names)):
        if not names.is_unique:
            repeated = names[names.duplicated()][0]
            raise ValueError(f"{what} {repeated!r} appears more than once; adata.{axis}_names_make_unique() helps")
    return Interactions.from_matrix(counts, np.asarray(adata.obs_names, str), np.asarray(adata.var_names, str))


def factorize(
    adata: "AnnData", model: Factorization | None = None, *, layer: str | None = None, key: str = "nbmf"
) -> Factorization:
    """Fit a model to the counts, write the factors into the AnnData object, and return the model.

    Parameters
    ----------
    adata : AnnData
        Cells × genes of raw counts, to which the factors are added.
    model : estimator, optional
        What to fit, NBMF(20, random_state=0) by default; any estimator with factors.
    layer : str, optional
        The layer that holds the raw counts, `adata.X` by default.
    key : str
        Name of what is written: `obsm["X_" + key]` (cells × K), `varm[key]` (genes × K) and `uns[key]` (the settings,
        the concentration, the objective after each sweep).

    Examples
    --------
    >>> import anndata, nbmf
    >>> adata = anndata.AnnData(nbmf.datasets.simulate(50, 30, n_components=2, mean_count=1.0, seed=0).matrix)
    >>> model = factorize(adata, nbmf.NBMF(2, random_state=0))
    >>> adata.obsm["X_nbmf"].shape, adata.varm["nbmf"].shape
    ((50, 2), (30, 2))
    """
    chosen = NBMF(20, random_state=0) if model is None else model
    if not isinstance(chosen, Factorization):
        remedy = "fit it to nbmf.external.anndata.interactions(adata)"
        raise TypeError(f"{type(chosen).__name__} has no factors to write; {remedy}")
    fitted = chosen.fit(interactions(adata, layer=layer))
    settings = {name: value for name, value in fitted.get_params().items() if isinstance(value, int | float | str)}
    found: dict[str, Any] = {
        "model": type(fitted).__name__,
        "settings": settings,
        "concentration": fitted.concentration_,
        "objective": fitted.objective_,
    }
    adata.obsm["X_" + key], adata.varm[key], adata.uns[key] = fitted.user_factors_, fitted.item_factors_, found
    return fitted
