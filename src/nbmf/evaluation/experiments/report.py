"""The report of an experiment: Markdown from the template report.md, and the same as one HTML page.

All names are literal: whatever a file, a user or an item is called, the report shows it as it is.
"""

import base64
import math
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from nbmf.evaluation.experiments import paper
from nbmf.evaluation.experiments.engine import Level
from nbmf.evaluation.experiments.figures import all_pictures
from nbmf.evaluation.experiments.paper import LABELS, REL_A, Claim, Entry, Portrait, Results, at_least
from nbmf.evaluation.experiments.store import Row, write_whole

PACKAGES = ("nbmf", "numpy", "scipy", "numba", "scikit-learn", "matplotlib")
SHORT = 24  # characters that stay on one line of a table


# Markdown and HTML ---------------------------------------------------------------------------------------------------


def literal(text: Any) -> str:
    """Return Markdown that shows a text as it is, on one line."""
    return re.sub(r"([\\`*_|<>#\[\]&~])", r"\\\1", " ".join(str(text).split()))


def bold(text: Any) -> str:
    """Return Markdown that shows a text as it is, in bold."""
    return f"**{literal(text)}**"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], n_words: int = 1) -> str:
    """Return a Markdown table; the cells are Markdown, and the columns from `n_words` on are numbers."""
    rule = ["---" if n < n_words else "---:" for n in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(map(literal, head)), rule, *rows])


def as_html(title: str, markdown: str, folder: Path) -> str:
    """Return the Markdown as one page that contains its figures, which lie in `folder`."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 (only a report needs it)

    def embed(found: re.Match[str]) -> str:
        wide, narrow = (
            base64.b64encode((folder / f"figures/{found[1]}{kind}.svg").read_bytes()) for kind in ("_wide", "")
        )
        small = f'<source media="(max-width: 40rem)" srcset="data:image/svg+xml;base64,{narrow.decode()}">'
        return f'<picture>{small}<img src="data:image/svg+xml;base64,{wide.decode()}" alt="{found[2]}"></picture>'

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    body = re.sub(r'<img src="figures/(\w+)\.png" alt="([^"]*)" ?/?>', embed, body)
    for verdict in paper.Verdict:
        shown = f'<td class="verdict {verdict.replace(" ", "-")}">{verdict}</td>'
        body = body.replace(f"<td><strong>{verdict}</strong></td>", shown)
    body = re.sub(rf"<td>([^<]{{1,{SHORT}}})</td>", r'<td class="short">\1</td>', body)
    return _filled("report.html", title=escape(title), body=body)


def _filled(template: str, **parts: str) -> str:
    return Template(Path(__file__).with_name(template).read_text(encoding="utf-8")).substitute(parts)


# the report ----------------------------------------------------------------------------------------------------------


def write_report(results: Results, portrait: Portrait, command: str, last_run: str = "") -> Path:
    """Draw the figures and write report.md and report.html, whose path is returned, into the experiment's folder."""
    folder = results.store.folder
    for picture in all_pictures(results, portrait):
        picture.save(folder / "figures")
        picture.save_for_screens(folder / "figures")
    title = f"Negative binomial matrix factorization on {results.study.name}"
    user = f"User {portrait.user}, by {portrait.model} (K = {portrait.n_components})."
    parts = {**_tables(results), **_words(results), "user": literal(user), "last_run": last_run}
    text = _filled("report.md", title=literal(title), command=command.replace("\n", "\n    "), **parts)
    text = re.sub(r"\n{3,}", "\n\n", text)  # where a part is missing
    write_whole(folder / "report.md", text)
    write_whole(folder / "report.html", as_html(title, text, folder))
    return folder / "report.html"


def leaders(results: Results) -> str:
    """Return a line that says for which s each model leads."""
    led: dict[str, list[str]] = {}
    for s in results.grid.thresholds:
        first = max(results.chosen(), key=lambda entry: results.level(entry, at_least(s)).mean)
        led.setdefault(LABELS[first.model], []).append(str(s))
    return "; ".join(f"{model} leads at s = {', '.join(at)}" for model, at in led.items())


def best_on_counts(results: Results) -> str:
    """Return a line with the NDCG of each model at its best K by rel_A."""
    return "; ".join(f"{entry} {_level(results.level(entry))}" for entry in results.chosen())


def _words(results: Results) -> dict[str, str]:
    """Return the data, the settings and the time by their names in the template."""
    study, grid, rows = results.study, results.grid, [row for starts in results.rows.values() for row in starts]
    n_tested = int(np.count_nonzero(np.diff(study.test.matrix.indptr)))
    filters = "items with at least 50 users, then users with at least 20 items, once"
    spread = f"mean ± standard deviation over {grid.n_starts} random starts"
    found = {
        "starts": spread if grid.n_starts > 1 else "one random start",
        "chosen": ", ".join(map(str, results.chosen())),
        "name": study.name,
        "sizes": f"{study.data.n_users:,} × {study.data.n_items:,}",
        "counts": f"{study.data.nnz:,}; the largest is {study.data.matrix.data.max():,}",
        "filters": filters if study.filtered else "none",
        "held_out": f"{study.test.nnz:,} non-zero counts: {study.split}",
        "tested": f"{n_tested:,}; the other {study.data.n_users - n_tested:,} have nothing held out",
        "fingerprint": study.source()["fingerprint"],
        "models": ", ".join(LABELS[model] for model in grid.models),
        "concentration": f"{grid.concentration:g}",
        "exposures": ", ".join(sorted({row.convergence["exposure"] for row in rows} - {""})) or "none",
        "components": ", ".join(map(str, grid.components)),
        "seeds": f"{grid.n_starts} (seeds {grid.seed} to {grid.seed + grid.n_starts - 1})",
        "stopping": f"relative increase of the objective below {grid.tol:g}; at most {grid.max_iter:,} sweeps",
        "converged": f"{sum(row.convergence['converged'] for row in rows)} of {len(rows)}",
        "time": f"All {len(rows)} fits together: {sum(row.seconds for row in rows):,.0f} s.",
        "system": f"Python {platform.python_version()} on {platform.system()} {platform.machine()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    }
    return {name: literal(text) for name, text in found.items()}


def _tables(results: Results) -> dict[str, str]:
    """Return the tables by their names in the template."""
    claims, chosen = paper.all_claims(results), results.chosen()
    as_in_the_paper = [Entry(model, paper.MAXIMA[model]) for model in results.grid.models]
    known = {entry.n_components for entry in as_in_the_paper} <= set(results.grid.components)
    the_same = "The same with the K of the paper, which decides no claim:\n\n"
    differs = known and as_in_the_paper != chosen
    return {
        "verdict": bold(paper.tally(claim.verdict for claim in claims)),
        "claims": _claims_table(claims),
        "comparisons": _comparisons_table(claims),
        "by_components": _grid_table(results, lambda entry: _level(results.level(entry), entry in chosen)),
        "by_threshold": _threshold_table(results, chosen),
        "at_the_papers_components": the_same + _threshold_table(results, as_in_the_paper) if differs else "",
        "same_components": _same_components_table(claims),
        "shares": _shares_table(results),
        "seconds": _grid_table(results, lambda entry: _cost(results.rows[entry])),
    }


def _claims_table(claims: Sequence[Claim]) -> str:
    texts = [(claim.statement, claim.verdict, claim.measured) for claim in claims]
    rows = [(str(n), literal(said), bold(verdict), literal(found)) for n, (said, verdict, found) in enumerate(texts, 1)]
    head = ("", "claim of the paper", "here", "NDCG of both, difference (95 % interval)")
    return table(head, rows, n_words=4)


def _comparisons_table(claims: Sequence[Claim]) -> str:
    rows = []
    for n, item in ((n, item) for n, claim in enumerate(claims, 1) for item in claim.evidence if item.decides):
        relevance = "count" if item.metric == REL_A else f"count ≥ {item.metric.rpartition('_')[2]}"
        words, levels = map(literal, (n, relevance, item.better, item.worse)), (f"{level:.4f}" for level in item.levels)
        rows.append((*words, bold(item.verdict), *levels, f"{item.difference:+.4f}", paper.in_words(item.interval)))
    names = ("claim", "relevance", "should lead", "compared with", "here")
    head = (*names, "NDCG", "the other's", "difference", "95 % interval")
    return table(head, rows, n_words=5)


def _same_components_table(claims: Sequence[Claim]) -> str:
    rows = []
    for item in (item for claim in claims for item in claim.evidence if not item.decides):
        names = map(literal, (item.better, item.worse))
        rows.append((*names, f"{item.difference:+.4f}", paper.in_words(item.interval)))
    return table(("model", "compared with", "difference of NDCG", "95 % interval"), rows, n_words=2)


def _grid_table(results: Results, cell: Callable[[Entry], str]) -> str:
    """Return a table with a row per K and a column per model."""
    models = results.grid.models
    rows = [[str(K), *(cell(Entry(model, K)) for model in models)] for K in results.grid.components]
    return table(("K", *(LABELS[model] for model in models)), rows)


def _threshold_table(results: Results, entries: Sequence[Entry]) -> str:
    """Return NDCG with rel_B, a row per s and a column per entry, and the lead of the best over the second."""
    rows = []
    for metric, s in ((at_least(s), s) for s in results.grid.thresholds):
        best, second, *_ = sorted(entries, key=lambda entry: -results.level(entry, metric).mean)
        ahead = results.compare([best, second], metric, baseline=second)[str(best)]
        lead = f"{ahead.difference:+.4f} ({paper.in_words(ahead.difference_interval)})"
        levels = (_level(results.level(entry, metric), entry == best) for entry in entries)
        rows.append([str(s), *levels, LABELS[best.model], lead])
    return table(("s", *map(str, entries), "best", "lead over the second (95 % interval)"), rows)


def _shares_table(results: Results) -> str:
    rows = []
    for what, theirs, ours in paper.data_shares(results.study):
        agrees = "yes" if round(100 * ours) == theirs else "no"
        rows.append((literal(what), f"{theirs} %", f"{100 * ours:.1f} %", agrees))
    return table(("share of", "the paper's data", "these data", "equal in whole per cent"), rows)


def _cost(starts: Sequence[Row]) -> str:
    seconds, sweeps = np.mean([(row.seconds, row.convergence["sweeps"]) for row in starts], axis=0)
    return f"{seconds:.2f} s, {sweeps:.0f} sweeps"


def _level(level: Level, is_best: bool = False) -> str:
    text = f"{level.mean:.4f}" if math.isnan(level.sd) else f"{level.mean:.4f} ± {level.sd:.4f}"
    return bold(text) if is_best else text
