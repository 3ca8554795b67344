"""The data and results that the tests of experiments share."""

import pytest

from nbmf.evaluation.experiments.study import open_study
from small_study import as_in_the_paper, constructed, write_plays


@pytest.fixture(scope="session")
def plays(tmp_path_factory):
    return write_plays(tmp_path_factory.mktemp("plays"))


@pytest.fixture(scope="session")
def study(plays):
    return open_study(plays)


@pytest.fixture(scope="module")
def results(study, tmp_path_factory):
    """Results for which every claim of the paper holds."""
    return constructed(study, tmp_path_factory.mktemp("results"), as_in_the_paper)
