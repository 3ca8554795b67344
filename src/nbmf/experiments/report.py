"""The report of an experiment: every number from the rows, every verdict from `claims`."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from nbmf.experiments.claims import PAPER_MAXIMA, Claim, all_claims, data_shares
from nbmf.experiments.grid import LABELS, at_least
from nbmf.experiments.pages import Best, Block, Code, Heading, Image, Table, Text, as_html, as_markdown
from nbmf.experiments.pictures import Picture, pictures
from nbmf.experiments.portrait import Portrait
from nbmf.experiments.results import REL_A, Entry, Level, Results
from nbmf.experiments.rows import write_whole

PACKAGES = ("nbmf", "numpy", "scipy", "numba", "scikit-learn", "matplotlib")
RULE = (
    "Each comparison is a mean difference of NDCG user by user, every model averaged over its starts, with the 95 % "
    "interval of 1,000 draws of the users. A claim holds if the intervals of all its comparisons lie above 0, does not "
    "hold if one of them lies below 0, and is undecided otherwise. The intervals tell of the users; how much the "
    "starts differ is the ± of the tables."
)


@dataclass(frozen=True)
class Making:
    """How the report came about.

    command : what was typed
    n_runs, seconds, n_workers : how many of the runs that call made, how long they took, on how many processes
    """

    command: str
    n_runs: int = 0
    seconds: float = 0.0
    n_workers: int = 1


def write_report(results: Results, portrait: Portrait | None, making: Making) -> tuple[Path, Path]:
    """Draw the pictures and write report.html and report.md into the experiment's folder."""
    folder = results.folder.path
    drawn = pictures(results, portrait)
    for picture in drawn:
        picture.save(folder / "figures")
    title = f"Negative binomial matrix factorization on {results.study.name}"
    blocks = content(results, all_claims(results), drawn, making)
    page, text = folder / "report.html", folder / "report.md"
    write_whole(page, as_html(title, blocks, folder / "figures"))
    write_whole(text, as_markdown(title, blocks))
    return page, text


def content(results: Results, claims: Sequence[Claim], drawn: Sequence[Picture], making: Making) -> list[Block]:
    """Return the report, block by block."""
    images = {picture.name: Image(picture.name, picture.caption) for picture in drawn}
    intro = (
        "The experiments of Gouvert, Oberlin and Févotte, Negative Binomial Matrix Factorization for Recommender "
        "Systems, §5: which of its claims these data bear out. rel_A is NDCG with the held-out count as relevance, "
        "rel_B with 1[count ≥ s]; rankings are of all items, those of the training part last."
    )
    one_user: list[Block] = [Heading("One user"), images["exposure"]] if "exposure" in images else []
    return [
        Text(intro),
        Heading("The paper's claims"),
        claims_table(claims),
        Text(RULE),
        comparisons_table(claims),
        Heading("NDCG with rel_A against K"),
        components_table(results),
        Text(f"Mean over users{_over_starts(results)}; bold: each model's best K."),
        images["ndcg_by_components"],
        Heading("NDCG with rel_B against s"),
        threshold_table(results, results.chosen()),
        Text(
            f"Each model at its best K by rel_A; mean over users{_over_starts(results)}. Bold: a row's best; the last "
            "column says how far it is ahead of the second."
        ),
        images["ndcg_by_threshold"],
        *_at_the_papers_components(results),
        Heading("The same K for both"),
        same_components_table(claims),
        Text("Differences of NDCG with rel_A at each K, with their 95 % intervals. They decide nothing above."),
        *one_user,
        Heading("The data"),
        *_data(results),
        images["histogram"],
        Heading("The model"),
        images["mass_functions"],
        images["divergences"],
        Heading("Settings, time, versions"),
        settings_table(results),
        seconds_table(results),
        Text(_time_note(results, making)),
        Text(_versions()),
        Code(making.command),
    ]


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return each claim with what was measured and its verdict."""
    rows = [(str(n), claim.statement, claim.verdict, claim.measured) for n, claim in enumerate(claims, start=1)]
    head = ("", "the paper says", "here", "measured: NDCG of both, difference (95 % interval)")
    return Table(head, rows, n_words=4)


def comparisons_table(claims: Sequence[Claim]) -> Table:
    """Return the comparisons that decide the claims, one a row."""
    rows = []
    for n, claim in enumerate(claims, start=1):
        for item in claim.evidence:
            if item.decides:
                numbers = (
                    *(f"{level:.4f}" for level in item.levels),
                    f"{item.difference:+.4f}",
                    _interval(item.interval),
                )
                rows.append((str(n), _relevance(item.metric), item.better, item.worse, item.verdict, *numbers))
    head = ("claim", "relevance", "this", "above that", "here", "this", "that", "difference", "95 % interval")
    return Table(head, rows, n_words=5)


def components_table(results: Results) -> Table:
    """Return NDCG with rel_A, a row for each K and a column for each model."""
    best = set(results.chosen())
    rows = []
    for K in results.grid.components:
        entries = [Entry(model, K) for model in results.grid.models]
        cells = [(_level(results.level(entry)), entry in best) for entry in entries]
        rows.append([str(K), *(Best(text) if wins else text for text, wins in cells)])
    return Table(("K", *(LABELS[model] for model in results.grid.models)), rows)


def threshold_table(results: Results, entries: Sequence[Entry]) -> Table:
    """Return NDCG with rel_B, a row for each s and a column for each entry, and how far the leader is ahead."""
    rows = []
    for s in results.grid.thresholds:
        levels = [results.level(entry, at_least(s)) for entry in entries]
        first = int(np.argmax([level.mean for level in levels]))
        cells = [Best(_level(level)) if n == first else _level(level) for n, level in enumerate(levels)]
        rows.append([str(s), *cells, *_lead(results, entries, at_least(s))])
    head = ("s", *map(str, entries), "leads", "ahead by (95 % interval)")
    return Table(head, rows)


def same_components_table(claims: Sequence[Claim]) -> Table:
    """Return the comparisons that are told for information."""
    rows = [
        (item.better, item.worse, f"{item.difference:+.4f}", _interval(item.interval))
        for claim in claims
        for item in claim.evidence
        if not item.decides
    ]
    return Table(("", "less", "difference", "95 % interval"), rows, n_words=2)


def settings_table(results: Results) -> Table:
    """Return what was fitted, and how."""
    grid = results.grid
    rows = [
        ("models", ", ".join(LABELS[model] for model in grid.models)),
        ("inference", "variational Bayes (Algorithm 1), shapes of the priors 1, the items' rate learned"),
        ("concentration α of NBMF", f"{grid.concentration:g}"),
        ("exposures of NBMF", ", ".join(sorted({row.exposure for row in results.rows.values()} - {""})) or "none"),
        ("numbers of components K", ", ".join(map(str, grid.components))),
        ("random starts of each", f"{grid.n_starts} (seeds {grid.seed} to {grid.seed + grid.n_starts - 1})"),
        ("stops when", f"the objective's relative increase is below {grid.tol:g}; at most {grid.max_iter:,} sweeps"),
        ("runs that stopped so", _converged(results)),
    ]
    return Table(("setting", ""), rows, n_words=2)


def seconds_table(results: Results) -> Table:
    """Return how long a fit took, and in how many sweeps: means over starts."""
    rows = []
    for K in results.grid.components:
        starts = [results.starts(Entry(model, K)) for model in results.grid.models]
        cells = [(np.mean([row.seconds for row in of]), np.mean([row.n_iter for row in of])) for of in starts]
        rows.append([str(K), *(f"{seconds:.2f} s, {sweeps:.0f} sweeps" for seconds, sweeps in cells)])
    return Table(("K", *(LABELS[model] for model in results.grid.models)), rows)


def _data(results: Results) -> list[Block]:
    source, n_tested = results.study.source, int(np.count_nonzero(np.diff(results.study.test.matrix.indptr)))
    filters = (
        "items with at least 50 users, then users with at least 20 items, once" if source.filtered else "none here"
    )
    facts = [
        ("data", source.name),
        ("users × items", f"{source.n_users:,} × {source.n_items:,}"),
        ("non-zero counts", f"{source.nnz:,}; the largest is {results.study.data.matrix.data.max():,}"),
        ("filters", filters),
        ("held out", f"{source.n_test:,} non-zero counts: {source.split}"),
        ("users judged", f"{n_tested:,}; the other {source.n_users - n_tested:,} have nothing held out"),
        ("fingerprint of both parts", source.fingerprint),
    ]
    shares = [
        (share.what, f"{share.paper} %", f"{100 * share.measured:.1f} %", "yes" if share.agrees else "no")
        for share in data_shares(results)
    ]
    head = ("share of the", "the paper's data", "here", "the same in whole per cent")
    return [Table(("", ""), facts, n_words=2), Table(head, shares)]


def _lead(results: Results, entries: Sequence[Entry], metric: str) -> tuple[str, str]:
    """Return who is first, and by how much before the second."""
    if len(entries) < 2:
        return "", ""
    order = sorted(entries, key=lambda entry: -results.level(entry, metric).mean)
    ahead = results.compare(order[:2], metric, baseline=order[1])[str(order[0])]
    return LABELS[order[0].model], f"{ahead.difference:+.4f} ({_interval(ahead.difference_interval)})"


def _relevance(metric: str) -> str:
    return "count" if metric == REL_A else f"count ≥ {metric.rpartition('_')[2]}"


def _level(level: Level) -> str:
    return f"{level.mean:.4f}" if math.isnan(level.sd) else f"{level.mean:.4f} ± {level.sd:.4f}"


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.4f} to {interval[1]:+.4f}"


def _over_starts(results: Results) -> str:
    n = results.grid.n_starts
    return f", then mean ± standard deviation over {n} random starts" if n > 1 else ", one random start"


def _at_the_papers_components(results: Results) -> list[Block]:
    """Return the same table for the paper's K, where that is another."""
    entries = [Entry(model, PAPER_MAXIMA[model]) for model in results.grid.models]
    if entries == results.chosen() or not {entry.n_components for entry in entries} <= set(results.grid.components):
        return []
    return [Text("The same with the K of the paper; it decides nothing above."), threshold_table(results, entries)]


def _converged(results: Results) -> str:
    rows = list(results.rows.values())
    return f"{sum(row.converged for row in rows)} of {len(rows)}"


def _time_note(results: Results, making: Making) -> str:
    total = sum(row.seconds for row in results.rows.values())
    note = f"Seconds and sweeps of one fit, means over starts. All {len(results.rows)} fits together: {total:,.0f} s"
    if not making.n_runs:
        return f"{note}."
    return (
        f"{note}. The last call made {making.n_runs} of them in {making.seconds:,.0f} s, {making.n_workers} at a time."
    )


def _versions() -> str:
    found = [f"{name} {version(name)}" for name in PACKAGES]
    return f"Python {platform.python_version()} on {platform.system()} {platform.machine()}; {', '.join(found)}."


def leaders(results: Results) -> str:
    """Say in a line for which s each model leads, by the means."""
    led: dict[str, list[str]] = {}
    for s in results.grid.thresholds:
        first = max(results.chosen(), key=lambda entry: results.level(entry, at_least(s)).mean)
        led.setdefault(LABELS[first.model], []).append(str(s))
    return "; ".join(f"{model} leads at s = {', '.join(at)}" for model, at in led.items())


def best_on_counts(results: Results) -> str:
    """Say in a line how each model does at its best K by rel_A."""
    return "; ".join(f"{entry} {_level(results.level(entry, REL_A))}" for entry in results.chosen())
