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


def test_models_without_factors_are_refused_before_they_are_fitted(adata):
    with pytest.raises(TypeError, match=r"NBSLIM has no factors to write; fit it to nbmf\.external\.anndata\.inter"):
        factorize(adata, nbmf.NBSLIM(), layer="counts")
    assert nbmf.NBSLIM().fit(interactions(adata, layer="counts")).users_[0] == "cell0"  # the remedy


def test_an_object_in_a_file_says_how_to_read_it(adata, tmp_path):
    adata.X = adata.layers["counts"]
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    with pytest.raises(ValueError, match=r"adata\.to_memory\(\) reads it"):
        factorize(backed)
    assert interactions(backed.to_memory()).n_users == 40
    backed.file.close()


def test_a_frame_of_cells_is_matched_by_gene(adata):
    model = factorize(adata, nbmf.NBMF(3, max_iter=10, random_state=0, tol=0), layer="counts")
    frame = adata.to_df("counts").iloc[:4]
    np.testing.assert_array_equal(model.transform(frame.iloc[:, ::-1]), model.transform(frame.to_numpy()))


def test_fit_names_the_way_for_cells(adata):
    with pytest.raises(TypeError, match=r"nbmf.external.anndata.factorize\(adata\)"):
        nbmf.NBMF(2).fit(adata)
