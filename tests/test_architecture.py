"""The map of ARCHITECTURE.md, read from the syntax trees: who may import whom, and who may print or read the clock."""

import ast
import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

import nbmf

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
    "experiments",  # inside evaluation/
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
    parts = module.split(".")[1:3]
    return "experiments" if "experiments" in parts else parts[0] if parts else ""


def test_the_folders_are_the_layers():
    """Twelve entries at the top: nine folders in the order of the imports and three files."""
    assert sorted(path.name for path in SOURCE.iterdir() if path.name != "__pycache__") == sorted(
        ["__init__.py", "__main__.py", "py.typed", *(set(FOLDERS) - {"experiments"})]
    )


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"nbmf", "nbmf.__main__"}))
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
    assert listed == MODULES.keys() - packages - {"nbmf.__main__"}


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


# ---- the measures of the house --------------------------------------------------------------------------------------

KINDS = {"Poisson", "NegativeBinomial", "Gamma", "Point"}


def test_the_package_is_small():
    the_house, at_the_door = 17_500, 2_500  # what newcomers asked for and new models are counted apart
    family, comparison = 1_800, 1_200  # likelihoods, their kernels and estimators; models to compare with
    criticism, choice = 950, 900  # checking a model, from the draws to the page; choosing one of the family
    board, blends = 150, 480  # rivals and metrics of the leaderboard; several models in one ranking
    encoder = 2_450  # NBFISM: its passes on every backend, its estimator, its files
    speed = 280  # momentum, and walks of a device over several runs side by side
    most = the_house + at_the_door + family + comparison + criticism + choice + board + blends + encoder + speed
    assert sum(len(path.read_text().splitlines()) for path in MODULES.values()) <= most


@pytest.mark.parametrize(
    "estimator",
    [
        nbmf.NBMF,
        nbmf.PoissonMF,
        nbmf.CompoundMF,
        nbmf.ZeroInflatedMF,
        nbmf.NBSLIM,
        nbmf.NBFISM,
        nbmf.Averaged,
        nbmf.Blend,
        nbmf.ExpoMF,
        nbmf.RandomGraphExposureMF,
        nbmf.CoupledCompoundMF,
    ],
)
def test_no_estimator_is_deep(estimator):
    """At most four classes of ours, the estimator's own included, so `recommend` is soon found."""
    ours = [each for each in inspect.getmro(estimator) if each.__module__.startswith("nbmf.")]
    assert issubclass(estimator, BaseEstimator)
    assert len(ours) <= 4, [each.__name__ for each in ours]


def kinds_asked_for(tree):
    """The lines that ask which likelihood, or which kind of factor, something is."""
    for node in ast.walk(tree):
        asked = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            asked = list(ast.walk(node.args[1]))
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node.left):
            asked = [each for right in node.comparators for each in ast.walk(right)]
        found = KINDS & {getattr(each, "id", getattr(each, "attr", "")) for each in asked}
        if found:
            yield f"line {node.lineno}: {', '.join(sorted(found))}"


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"nbmf"}))
def test_nobody_asks_what_kind_of_likelihood_or_factor_it_has(module):
    """Except where kernels are chosen and files are written: so that a new likelihood is one class."""
    if folder(module) not in ("model", "backends", "storage"):
        assert list(kinds_asked_for(ast.parse(MODULES[module].read_text()))) == []


def many_parameters(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [each.arg for each in (given.vararg, given.kwarg) if each]
            is_compiled = any(re.search(r"compiled|\bjit\b|njit", ast.unparse(each)) for each in node.decorator_list)
            if not is_compiled and len(set(names) - {"self", "cls"}) > 8:
                yield f"line {node.lineno}: {node.name} has {len(set(names) - {'self', 'cls'})}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_function_takes_more_than_eight_parameters(module):
    """Except constructors, whose settings are the model's, and compiled loops, which take arrays and nothing else."""
    assert list(many_parameters(ast.parse(MODULES[module].read_text()))) == []


def walk_of(model, X, monkeypatch):
    """Fit once to compile and once to look on.

    Returns the names of the functions from `fit` down to a kernel, for each call of a kernel by this thread, and the
    files of ours in which anything ran.
    """
    from numba.core.dispatcher import Dispatcher

    model.fit(X)
    walks, files, us = [], set(), threading.get_ident()

    def watched(name, kernel):
        def run(*arguments):
            frame, names = sys._getframe(1), [name]
            while threading.get_ident() == us and frame.f_code is not walk_of.__code__:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            walks.append(names[::-1])
            return kernel(*arguments)

        return run

    for module in [sys.modules[name] for name in MODULES if name in sys.modules]:
        for name, value in list(vars(module).items()):
            if isinstance(value, Dispatcher):
                monkeypatch.setattr(module, name, watched(name, value))

    def look_on(frame, event, argument):
        if Path(frame.f_code.co_filename).is_relative_to(SOURCE):
            files.add(str(Path(frame.f_code.co_filename).relative_to(SOURCE)))

    sys.setprofile(look_on)
    try:
        model.fit(X)
    finally:
        sys.setprofile(None)
    return [names for names in walks if len(names) > 1], files


@pytest.fixture(
    params=[nbmf.NBMF(2, exposure="tied", n_clusters=3), nbmf.NBMF(2, exposure="exact"), nbmf.PoissonMF(2)],
    ids=["tied", "exact", "poisson"],
)
def walked(request, monkeypatch):
    """So little data that no thread is woken."""
    model = clone(request.param).set_params(max_iter=3, tol=0, random_state=0, n_threads=1)
    counts = np.random.default_rng(0).poisson(0.5, (20, 12))
    return walk_of(model, nbmf.Interactions.from_matrix(counts), monkeypatch)


def test_the_way_from_fit_to_a_kernel_is_short(walked):
    """Frames of Python from `fit` to the kernel, both included."""
    walks, _ = walked
    assert {names[0] for names in walks} == {"fit"}
    longest = max(walks, key=len)
    assert len(longest) <= 11, " > ".join(longest)


def test_a_fit_runs_through_few_files(walked):
    """Every file of ours in which anything runs between the beginning of `fit` and its end; one checks the result."""
    _, files = walked
    assert len(files) <= 15 + 1, "\n".join(sorted(files))
