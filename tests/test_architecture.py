"""The map of ARCHITECTURE.md, read from the syntax trees: who may import whom, and who may print or read the clock."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "nbmf"
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
# each row may import itself and the rows above it
LAYERS = [
    {
        "nbmf.likelihood",
        "nbmf.factors",
        "nbmf.events",
        "nbmf.splitting",
        "nbmf.interactions",
        "nbmf.counts",
        "nbmf.layout",
        "nbmf.ties",
        "nbmf.progress",
        "nbmf.container",
        "nbmf.lookup",
        "nbmf.intake",
        "nbmf.planning",
    },
    {
        "nbmf.backends",
        "nbmf.backends.elementary",
        "nbmf.backends.kernels",
        "nbmf.backends.tiles",
        "nbmf.backends.reference",
        "nbmf.backends.slopes",
        "nbmf.backends.cpu",
        "nbmf.backends.ranks",
        "nbmf.backends.resident",
        "nbmf.backends.resident_folds",
        "nbmf.backends.resident_ranks",
        "nbmf.backends.torch_passes",
        "nbmf.backends.triton_kernels",
        "nbmf.backends.triton_passes",
        "nbmf.backends.clustering",
        "nbmf.backends.curves",
        "nbmf.backends.gpu",
        "nbmf.backends.folds",
        "nbmf.backends.item_items",
        "nbmf.ranking",
        "nbmf.scoring",
        "nbmf.folding",
        "nbmf.gathering",
        "nbmf.parquet",
        "nbmf.reading",
        "nbmf.simulation",
        "nbmf.datasets",
    },
    {"nbmf.model"},
    {
        "nbmf.inference",
        "nbmf.inference.run",
        "nbmf.inference.hyperparameters",
        "nbmf.inference.cavi",
        "nbmf.inference.mm",
        "nbmf.inference.accelerate",
    },
    {"nbmf.fitted", "nbmf.item_items"},
    {"nbmf.packing", "nbmf.storage", "nbmf.checkpoints", "nbmf.compacting", "nbmf.parts"},
    {"nbmf.recommending", "nbmf.explaining", "nbmf.newcomers", "nbmf.growing", "nbmf.forecasting"},
    {"nbmf.factorization"},
    {"nbmf.recommender", "nbmf.slim"},
    {"nbmf.averaging", "nbmf.distributed"},
    {"nbmf.loading"},
    {
        "nbmf.evaluation",
        "nbmf.evaluation.judged",
        "nbmf.evaluation.metrics",
        "nbmf.evaluation.resampling",
        "nbmf.evaluation.table",
        "nbmf.evaluation.protocol",
        "nbmf.evaluation.comparison",
        "nbmf.evaluation.predictive",
    },
    {"nbmf.stopping"},
    {"nbmf.tuning", "nbmf.external", "nbmf.external.anndata"},
    {
        "nbmf.experiments",
        "nbmf.experiments.study",
        "nbmf.experiments.grid",
        "nbmf.experiments.rows",
        "nbmf.experiments.workers",
        "nbmf.experiments.search",
        "nbmf.experiments.rivals",
    },
    {"nbmf.experiments.results", "nbmf.experiments.runs"},
    {"nbmf.experiments.claims", "nbmf.experiments.portrait", "nbmf.experiments.contest"},
    {"nbmf.experiments.figures", "nbmf.experiments.pages"},
    {"nbmf.experiments.pictures", "nbmf.experiments.report", "nbmf.experiments.leaderboard"},
    {"nbmf.web", "nbmf.web.search", "nbmf.web.atlas", "nbmf.web.metrics", "nbmf.web.shapes"},
    {"nbmf.web.views", "nbmf.web.guard"},
    {"nbmf.web.shelf"},
    {"nbmf.web.server", "nbmf.web.running"},
    {"nbmf"},
    {
        "nbmf.commands",
        "nbmf.commands.terminal",
        "nbmf.commands.options",
        "nbmf.commands.demo",
        "nbmf.commands.fit",
        "nbmf.commands.plan",
        "nbmf.commands.recommend",
        "nbmf.commands.evaluate",
        "nbmf.commands.compare",
        "nbmf.commands.reproduce",
        "nbmf.commands.serve",
    },
    {"nbmf.cli"},
]


def imports(module):
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_every_module_has_a_layer():
    assert set(MODULES) == set.union(*LAYERS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_one_way(module):
    layer = next(n for n, modules in enumerate(LAYERS) if module in modules)
    allowed = set.union(*LAYERS[: layer + 1])
    used = {name for name in imports(module) if name in MODULES}
    assert used <= allowed


def may_print(module):
    return module in ("nbmf.progress", "nbmf.cli") or module.startswith("nbmf.commands")


@pytest.mark.parametrize("module", sorted(module for module in MODULES if not may_print(module)))
def test_only_progress_and_commands_print_or_read_the_clock(module):
    text = MODULES[module].read_text()
    assert not {"time", "rich", "click", "sys"} & {name.split(".")[0] for name in imports(module)}
    assert not re.search(r"(?<![\w.])print\(", text)
    assert "environ" not in text


def test_help_answers_at_once():
    """Nothing heavy is imported for --help; counted in modules, as seconds depend on the machine."""
    heavy = "{'numpy', 'numba', 'sklearn', 'duckdb', 'rich', 'fastapi', 'uvicorn'}"
    code = f"import sys, nbmf.cli; sys.exit(len({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_name_of_the_map_exists():
    """What ARCHITECTURE.md lists under src/ is there, and what is there is listed."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = text.split("```")[1]
    assert set(re.findall(r"([a-z_]+\.py)", tree)) >= {path.name for path in MODULES.values()}
    for name in re.findall(r"`([a-z_/]+\.(?:py|md))`", text):
        assert list(ROOT.glob(f"**/{name}")), name


def test_every_function_the_paper_page_names_exists():
    page = (ROOT / "docs" / "paper.md").read_text()
    named = re.findall(r"`nbmf\.([\w.]+)`", page)
    assert len(named) > 15
    for dotted in named:
        module, attribute = "nbmf." + dotted, []
        while module not in MODULES:
            module, _, last = module.rpartition(".")
            attribute.insert(0, last)
        target = __import__(module, fromlist=["_"])
        for name in attribute:
            target = getattr(target, name)


def test_the_project_names_no_machine():
    """No absolute home or work folders, no registry hosts."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    host = "pypi" + ".org"
    for name in tracked:
        text = (ROOT / name).read_text(errors="ignore")
        assert host not in text, name
        assert not re.search(r"(^|[\s'\"(=])/(work|root|home|opt)/", text), name


def test_public_parts_are_there_after_one_import():
    code = (
        "import nbmf; nbmf.evaluation.log_likelihood, nbmf.datasets.simulate, [getattr(nbmf, n) for n in nbmf.__all__]"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_figure_is_a_placeholder():
    for page in ("README.md", "docs/paper.md"):
        assert not re.search(r"\b[A-Z]+_(?:RATIO|NEW|KNOWN|MB)\b", (ROOT / page).read_text())
