"""One user in numbers: what the model says."""

import numpy as np
import pytest

import nbmf
from nbmf.evaluation.experiments.paper import kept_portrait, portray


def test_a_portrait_is_what_the_model_says(study, results):
    portrait = kept_portrait(results)
    best = results.best("nbmf")
    row = max(results.rows[best], key=lambda row: row.convergence["objective"])
    model = nbmf.NBMF(best.n_components, tol=1e-5, max_iter=10_000, random_state=row.job.seed).fit(study.train)
    assert portray(study, model) == portrait
    assert kept_portrait(results) == portrait  # from the folder
    user = int(portrait.user)
    assert portrait.exposure == model.exposures(user).exposure.tolist()
    best = model.recommend(user, n=5)
    np.testing.assert_allclose(portrait.score[:5], best.scores[0], rtol=1e-6)
    names = dict(zip(study.data.items.tolist(), study.labels(), strict=True))
    assert portrait.unseen[:5] == [names[item] for item in best.items[0].tolist()]
    assert sum(portrait.held_out) == study.test.matrix[np.flatnonzero(study.data.users == user)].nnz
    with pytest.raises(ValueError, match="user 'nobody' is not among the 59 users"):
        portray(study, model, "nobody")
