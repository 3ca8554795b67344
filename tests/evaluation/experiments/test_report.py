"""Markdown, and HTML made from it, that show every text as it is."""

import re

from nbmf.evaluation.experiments.paper import Verdict, all_claims, kept_portrait, tally
from nbmf.evaluation.experiments.report import as_html, bold, literal, table, write_report


def test_a_report_opens_with_its_verdict_and_draws_for_every_screen(results):
    page = write_report(results, kept_portrait(results), "nbmf reproduce")
    title, verdict, *_ = page.with_suffix(".md").read_text().split("\n\n")
    assert title.startswith("# ")
    assert verdict == bold(tally(claim.verdict for claim in all_claims(results)))
    html = page.read_text()
    assert html.count("<picture>") == html.count('<source media="(max-width: 40rem)"') == 6
    assert "image/png" not in html
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    assert not [heading for heading in headings if heading.startswith(("NDCG with", "rel_"))]
    assert [heading for heading in headings if "(rel_A)" in heading]
    assert 'class="verdict' in html


def test_pages_show_every_text_as_it_is(tmp_path):
    odd = "<b>*a*|[x](y)`_#</b>\\ &amp; ~~z~~"
    text = "&lt;b&gt;*a*|[x](y)`_#&lt;/b&gt;\\ &amp;amp; ~~z~~"
    markdown = "\n\n".join(
        [f"# {literal(odd)}", literal(odd), f"    {odd}", table(("k", odd), [(literal(odd), bold(odd))])]
    )
    html = as_html(odd, markdown, tmp_path)
    body = html[html.index("<body>") :]
    assert "<b>" not in html
    assert f"<title>{text}</title>" in html
    assert f"<h1>{text}</h1>" in body
    assert f"<p>{text}</p>" in body
    assert f"<pre><code>{text}\n</code></pre>" in body
    assert f">{text}</th>" in body
    assert f">{text}</td>" in body
    assert f"<strong>{text}</strong></td>" in body
    row = next(line for line in markdown.splitlines() if line.startswith(r"| \<b"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3


def test_a_text_stays_on_one_line():
    assert literal("two\nlines\tof text") == "two lines of text"


def test_verdicts_and_short_words_are_marked(tmp_path):
    rows = [("claim", bold(verdict), "a long sentence that needs several lines") for verdict in Verdict]
    html = as_html("", table(("", "", ""), rows, n_words=3), tmp_path)
    assert '<td class="verdict holds">holds</td>' in html
    assert '<td class="verdict does-not-hold">does not hold</td>' in html
    assert html.count('<td class="short">claim</td>') == len(Verdict)
    assert "<td>a long sentence" in html
