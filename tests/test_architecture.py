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
FOLDERS = [
    "model",
    "data",
    "storage",
    "backends",
    "inference",
    "estimators",
    "evaluation",
    "experiments",
    "web",
    "cli",
]  # in this order


def imports(module):
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def folder(module):
    return module.split(".")[1] if "." in module else ""


def test_the_folders_are_the_layers():
    """Twelve entries at the top: ten folders in the order of the imports, the public names and the marker of types."""
    assert sorted(path.name for path in SOURCE.iterdir() if path.name != "__pycache__") == sorted(
        ["__init__.py", "py.typed", *FOLDERS]
    )


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"nbmf"}))
def test_a_folder_imports_only_folders_before_it(module):
    allowed = FOLDERS[: FOLDERS.index(folder(module)) + 1]
    public = folder(module) in ("cli",)  # the command line also uses the public names, as a user would
    used = {name for name in imports(module) if name in MODULES and (name != "nbmf" or not public)}
    assert {folder(name) for name in used} <= set(allowed)


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"nbmf", "nbmf.inference.progress"}))
def test_only_progress_and_the_command_line_print_or_read_the_clock(module):
    if folder(module) == "cli":
        return
    text = MODULES[module].read_text()
    assert not {"time", "rich", "click", "sys"} & {name.split(".")[0] for name in imports(module)}
    assert not re.search(r"(?<![\w.])print\(", text)
    assert "environ" not in text


def test_help_answers_at_once():
    """Nothing heavy is imported for --help; counted in modules, as seconds depend on the machine."""
    heavy = "{'numpy', 'numba', 'sklearn', 'duckdb', 'rich', 'fastapi', 'uvicorn'}"
    code = f"import sys, nbmf.cli; sys.exit(len({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_the_map_lists_every_module_and_nothing_else():
    tree = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    listed = {
        f"nbmf.{line.split('/ ')[0].replace('/', '.')}.{name}"
        for line in tree.strip().splitlines()
        for name in line.split("/ ")[1].strip().split(" · ")
    }
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    assert listed == MODULES.keys() - packages


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
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    host = "pypi" + ".org"
    for name in listed.stdout.split():
        text = (ROOT / name).read_text(errors="ignore")
        assert host not in text, name
        assert not re.search(r"(^|[\s'\"(=])/(work|root|home|opt)/", text), name


def test_public_parts_are_there_after_one_import():
    code = (
        "import nbmf; nbmf.evaluation.log_likelihood, nbmf.datasets.simulate, [getattr(nbmf, n) for n in nbmf.__all__]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
