"""Markdown, and HTML made from it, that show every text as it is."""

import re

from nbmf.evaluation.experiments.paper import Verdict
from nbmf.evaluation.experiments.report import as_html, bold, literal, table


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
