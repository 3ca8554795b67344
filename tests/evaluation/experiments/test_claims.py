"""Claims that follow from the results."""

import numpy as np
import pytest

from nbmf.evaluation.experiments.paper import Entry, Verdict, all_claims, judge, tally, together
from small_study import as_in_the_paper, constructed


def test_the_rule():
    assert judge(0.1, 0.2) == Verdict.HOLDS
    assert judge(-0.2, -0.1) == Verdict.FAILS
    for interval in ((-0.1, 0.1), (0.0, 0.1), (-0.1, 0.0), (np.nan, np.nan)):
        assert judge(*interval) == Verdict.UNDECIDED
    holds, fails, undecided = Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED
    assert together([holds, holds]) == holds
    assert together([holds, undecided]) == undecided
    assert together([holds, undecided, fails]) == fails
    assert together([]) == Verdict.UNTESTED
    assert tally([fails, undecided]) == "0 of 2 claims hold, 1 does not hold, 1 is undecided."
    assert tally([holds] * 7) == "7 of 7 claims hold."
    assert tally([holds, holds, Verdict.UNTESTED, Verdict.UNTESTED]) == "2 of 4 claims hold, 2 were not tested."


def test_claims_follow_from_the_rows(study, tmp_path):
    paper = all_claims(constructed(study, tmp_path / "paper", as_in_the_paper))
    assert [claim.verdict for claim in paper] == [Verdict.HOLDS] * 7
    reverse = all_claims(constructed(study, tmp_path / "reverse", lambda *where: 1 - as_in_the_paper(*where)))
    assert [claim.verdict for claim in reverse] == [Verdict.FAILS] * 7
    equal = all_claims(constructed(study, tmp_path / "equal", lambda *where: 0.3, noise=0.0))
    assert [claim.verdict for claim in equal] == [Verdict.UNDECIDED] * 7
    above_one = paper[-1]
    assert len(above_one.evidence) == 2 * 2  # two others at s = 2 and at s = 5
    for item in above_one.evidence:
        assert item.difference == pytest.approx(item.levels[0] - item.levels[1], abs=1e-12)
        assert item.interval[0] < item.difference < item.interval[1]


def test_a_grid_without_the_claimed_components_decides_nothing(study, tmp_path):
    results = constructed(study, tmp_path, as_in_the_paper, components=(5, 20))
    by_name = {claim.name: claim for claim in all_claims(results)}
    assert by_name["nbmf peaks at 50"].verdict == Verdict.UNTESTED
    assert "nothing to compare" in by_name["nbmf peaks at 50"].measured
    assert by_name["binarized_pf peaks at 20"].verdict == Verdict.HOLDS


def test_best_levels_and_differences_are_those_of_the_rows(results):
    for model in results.grid.models:
        rows = {K: results.rows[Entry(model, K)] for K in results.grid.components}
        means = {K: np.mean([row.means["ndcg_counts"] for row in starts]) for K, starts in rows.items()}
        assert results.best(model) == Entry(model, max(means, key=means.get))
        for K, mean in means.items():
            assert results.level(Entry(model, K)).mean == pytest.approx(mean)
    ours, theirs = Entry("nbmf", 20), Entry("pf", 100)
    per_user = [
        np.mean([results.store.per_user(row.job.name)["ndcg_counts"] for row in results.rows[entry]], axis=0)
        for entry in (ours, theirs)
    ]
    contender = results.compare([ours, theirs], "ndcg_counts", baseline=theirs)[str(ours)]
    assert contender.difference == pytest.approx(np.nanmean(per_user[0] - per_user[1]))
