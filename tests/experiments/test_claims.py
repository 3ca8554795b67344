"""Claims that follow from rows, pictures that can be read, pages that show every text as it is."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nbmf.experiments import figures
from nbmf.experiments.claims import Verdict, all_claims, data_shares, judge, together
from nbmf.experiments.grid import Job
from nbmf.experiments.pages import Best, Code, Heading, Table, Text, as_html, as_markdown
from nbmf.experiments.pictures import pictures
from nbmf.experiments.portrait import kept_portrait, portray
from nbmf.experiments.results import Entry, count_shares
from nbmf.experiments.study import open_study
from small_study import constructed, write_plays


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return open_study(write_plays(tmp_path_factory.mktemp("plays")))


@pytest.fixture(scope="module")
def results(study, tmp_path_factory):
    return constructed(study, tmp_path_factory.mktemp("results"), as_in_the_paper)


def as_in_the_paper(model, n_components, metric):
    best = {"nbmf": 50, "pf": 50, "binarized_pf": 20}[model]
    ahead = {"nbmf": 0.02, "pf": 0.0, "binarized_pf": 0.01}[model]
    if metric == "ndcg_at_least_1" and model == "binarized_pf":
        ahead = 0.05
    return 0.3 + ahead - 0.01 * (n_components != best)


def test_the_rule():
    assert judge(0.1, 0.2) == Verdict.HOLDS
    assert judge(-0.2, -0.1) == Verdict.FAILS
    for interval in ((-0.1, 0.1), (0.0, 0.1), (-0.1, 0.0), (np.nan, np.nan)):
        assert judge(*interval) == Verdict.UNDECIDED
    holds, fails, undecided = Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED
    assert together([holds, holds]) == holds
    assert together([holds, undecided]) == undecided
    assert together([holds, undecided, fails]) == fails
    assert together([]) == undecided


def test_claims_follow_from_the_rows(study, tmp_path):
    paper = all_claims(constructed(study, tmp_path / "paper", as_in_the_paper))
    assert [claim.verdict for claim in paper] == [Verdict.HOLDS] * 7
    reverse = all_claims(constructed(study, tmp_path / "reverse", lambda *where: 1 - as_in_the_paper(*where)))
    assert [claim.verdict for claim in reverse] == [Verdict.FAILS] * 7
    equal = all_claims(constructed(study, tmp_path / "equal", lambda *where: 0.3, noise=0.0))
    assert [claim.verdict for claim in equal] == [Verdict.UNDECIDED] * 7
    above_one = paper[-1]
    assert len(above_one.evidence) == 2 * 2  # two rivals at s = 2 and at s = 5
    for item in above_one.evidence:
        assert item.difference == pytest.approx(item.levels[0] - item.levels[1], abs=1e-12)
        assert item.interval[0] < item.difference < item.interval[1]


def test_a_grid_without_the_claimed_components_decides_nothing(study, tmp_path):
    results = constructed(study, tmp_path, as_in_the_paper, components=(5, 20))
    by_name = {claim.name: claim for claim in all_claims(results)}
    assert by_name["nbmf peaks at 50"].verdict == Verdict.UNDECIDED
    assert "nothing to compare" in by_name["nbmf peaks at 50"].measured
    assert by_name["binarized_pf peaks at 20"].verdict == Verdict.HOLDS


def test_best_levels_and_differences_are_those_of_the_rows(results):
    for model in results.grid.models:
        rows = {K: [results.rows[Job(model, K, n)] for n in (0, 1)] for K in results.grid.components}
        means = {K: np.mean([row.means["ndcg_counts"] for row in starts]) for K, starts in rows.items()}
        assert results.best(model) == Entry(model, max(means, key=means.get))
        for K, mean in means.items():
            assert results.level(Entry(model, K)).mean == pytest.approx(mean)
    ours, theirs = Entry("nbmf", 20), Entry("pf", 100)
    per_user = [
        np.mean([results.folder.values(Job(*entry, n))["ndcg_counts"] for n in (0, 1)], axis=0)
        for entry in (ours, theirs)
    ]
    contender = results.compare([ours, theirs], "ndcg_counts", baseline=theirs)[str(ours)]
    assert contender.difference == pytest.approx(np.nanmean(per_user[0] - per_user[1]))


def test_shares_of_the_counts(study):
    counts, shares = study.data.matrix.data, count_shares(study)
    for y in (0, 1, 2, 3, 10, 10**6):
        assert shares.at_least(y) == pytest.approx(np.mean(counts >= y))
    told = {share.what: share.measured for share in data_shares(SimpleNamespace(study=study))}
    assert told["non-zero counts that are 1"] == pytest.approx(np.mean(counts == 1))


def test_a_portrait_is_what_the_model_says(study, results):
    portrait = kept_portrait(results)
    rows = results.starts(results.best("nbmf"))
    model = results.grid.estimator(max(rows, key=lambda row: row.objective).job).fit(study.train)
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


def test_pictures_are_files_with_readable_words(results, tmp_path):
    portrait = kept_portrait(results)
    drawn = pictures(results, replace(portrait, taken=[name * 6 for name in portrait.taken]))
    assert len(drawn) == 6
    for picture in drawn:
        made = []
        figures.save(lambda picture=picture, made=made: made.append(picture.draw()) or made[0], tmp_path, picture.name)
        words = [text for text in made[0].findobj(lambda artist: hasattr(artist, "get_fontsize")) if text.get_text()]
        assert len(words) > 5
        assert min(text.get_fontsize() for text in words) >= 6.5
        inked, (width, height) = made[0].get_tightbbox(), made[0].get_size_inches()
        assert min(inked.x0, inked.y0, width - inked.x1, height - inked.y1) >= 0, picture.name
        assert (tmp_path / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{picture.name}.pdf").read_bytes().startswith(b"%PDF")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    drawn[0].save(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_lines_differ_by_more_than_colour():
    for looks in (list(figures.LOOKS.values()), list(figures._CURVES)):
        for part in zip(*looks, strict=True):
            assert len(set(part)) == len(looks)


def test_pages_show_every_text_as_it_is(tmp_path):
    odd = "<b>*a*|[x](y)`_#</b>"
    blocks = [Heading(odd), Text(odd), Code(odd), Table(("k", odd), [(odd, Best(odd))])]
    html, markdown = as_html(odd, blocks, tmp_path), as_markdown(odd, blocks)
    assert "<b>" not in html
    assert html.count("&lt;b&gt;") == 8
    row = next(line for line in markdown.splitlines() if line.startswith(r"| \<b"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
