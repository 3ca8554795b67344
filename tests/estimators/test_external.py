"""AnnData in, factors stored beside the counts; data that are not raw counts are refused by name."""

import numpy as np
import pytest
import scipy.sparse as sp

import nbmf

anndata = pytest.importorskip("anndata", reason="the extra `anndata` is not installed")
from nbmf.estimators.anndata import factorize, interactions  # noqa: E402


@pytest.fixture
def adata():
    counts = nbmf.datasets.simulate(40, 25, n_components=2, mean_count=1.0, seed=3).matrix
    made = anndata.AnnData(sp.csr_matrix(np.log1p(counts.astype(np.float64))))
    made.layers["counts"] = sp.csr_matrix(counts)
    made.obs_names, made.var_names = [f"cell{n}" for n in range(40)], [f"gene{n}" for n in range(25)]
    return made


def test_names_and_counts_are_kept(adata):
    data = interactions(adata, layer="counts")
    assert (data.users[3], data.items[24]) == ("cell3", "gene24")
    np.testing.assert_array_equal(data.matrix.toarray(), adata.layers["counts"].toarray())


def test_what_is_written_is_what_was_fitted(adata, tmp_path):
    model = factorize(adata, nbmf.NBMF(3, max_iter=10, random_state=0), layer="counts", key="programs")
    same = nbmf.NBMF(3, max_iter=10, random_state=0).fit(adata.layers["counts"])
    np.testing.assert_array_equal(adata.obsm["X_programs"], same.user_factors_)
    np.testing.assert_array_equal(adata.varm["programs"], same.item_factors_)
    assert model.recommend("cell0", n=2).items.shape == (1, 2)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    back = anndata.read_h5ad(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(back.uns["programs"]["objective"], model.objective_)


def test_normalized_counts_and_wrong_layers_are_named(adata):
    with pytest.raises(ValueError, match="raw molecule counts"):
        interactions(adata)
    with pytest.raises(KeyError, match="'counts'"):
        interactions(adata, layer="raw")
    adata.var_names = ["gene0"] * 25
    with pytest.raises(ValueError, match="var_names_make_unique"):
        interactions(adata, layer="counts")


def test_fit_names_the_way_for_cells(adata):
    with pytest.raises(TypeError, match=r"nbmf.external.anndata.factorize\(adata\)"):
        nbmf.NBMF(2).fit(adata)
