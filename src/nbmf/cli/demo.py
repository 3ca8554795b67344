"""`nbmf demo`: real groceries, recommendations for one household, and a comparison of four models."""

import shlex
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import nbmf
from nbmf.cli.options import components_option, file_option, fit_whole, option, seed_option
from nbmf.cli.serve import fit_and_keep
from nbmf.cli.terminal import framed, sentences
from nbmf.data import how_to_install

if TYPE_CHECKING:
    from rich.table import Table

    from nbmf.evaluation.experiments.study import Study

RELEVANCE = {"ndcg_counts": "count", **{f"ndcg_at_least_{s}": f"count ≥ {s}" for s in (1, 2, 5)}}
FAIRNESS = (
    "The same K for all flatters NBMF beside PoissonMF: each model has a best K of its own, and at those the two are "
    "close; `nbmf reproduce` compares them so. NBFISM, of which this is one start, ranks better with its defaults, "
    "four starts and K = 200, and NBSLIM better still; `nbmf compare --models nbmf,nbslim,nbfism` shows them."
)


@click.command(short_help="Fit real groceries, recommend, and compare four models.")
@option("--household", metavar="ID", type=int, show_default="one with a typical basket", help="Household to show.")
@components_option
@seed_option
@file_option("-o", "--output", metavar="FOLDER", default="nbmf-demo", help="Where to write the figure and the model.")
@sentences()
def demo(household: int | None, components: int, seed: int, output: str) -> None:
    """Fit a year of groceries, recommend products to one household, and compare four models.

    The models are fitted to four fifths of what 2,250 households bought, and compared by how well they rank the rest.
    NBMF explains a burst of one product by exposure; PoissonMF has to explain it by taste, or forget how often a
    product was bought. NBFISM predicts each product from all others that a household bought.
    """
    from rich.console import Console  # noqa: PLC0415

    from nbmf.evaluation.experiments.study import open_study  # noqa: PLC0415

    console, folder = Console(), Path(output)
    console.print("Reading the groceries …")
    study = open_study()
    data = study.data
    if household is not None and household not in data.users:
        raise click.BadParameter(f"{household} is not among the {data.n_users} households", param_hint="--household")
    console.print(f"{data}\nheld out: {study.split}\n")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "groceries.nbmf"
    settings: dict[str, Any] = {"random_state": seed, "verbose": True}
    models = {"NBMF": fit_and_keep(nbmf.NBMF(components, **settings), study.train, str(kept))}
    others = {
        "PoissonMF": nbmf.PoissonMF(components, **settings),
        "binarized PoissonMF": nbmf.PoissonMF(components, binarize=True, **settings),
        "NBFISM": nbmf.NBFISM(components, n_starts=1, **settings),
    }
    for name, model in others.items():
        models[name] = fit_whole(model, study.train, f"{kept} is written, and nothing was evaluated")
    chosen = _typical_household(study.train) if household is None else household
    console.print(f"\n[bold]Household {chosen}[/bold]\n")
    names = dict(zip(data.items.tolist(), study.labels(), strict=True))
    console.print(_bought(names, models["NBMF"], chosen))
    console.print(_recommended(study, names, models, chosen))
    console.print(_judged(study, models))
    console.print(FAIRNESS, markup=False, highlight=False)
    console.print(_draw(study, models["NBMF"], chosen, folder), markup=False, soft_wrap=True)
    how = shlex.join([sys.argv[0] if sys.argv[0].endswith("nbmf") else "nbmf", "explore", str(kept)])
    console.print(f"Every household, in the browser: {how}", markup=False, soft_wrap=True)


def _typical_household(data: "nbmf.Interactions") -> Any:
    """Return a household with the median number of different products and, among those, of purchases."""
    n_products, n_bought = (data.matrix > 0).sum(axis=1), data.matrix.sum(axis=1)
    [typical] = (n_products == sorted(n_products)[len(n_products) // 2]).nonzero()
    return data.users[sorted(typical, key=lambda row: n_bought[row])[len(typical) // 2]].item()


def _bought(names: dict[Any, str], model: Any, household: Any) -> "Table":
    found = model.exposures(household)
    cells = zip(found.item.tolist(), found.count, found.intensity, found.exposure, found.sd, strict=True)
    rows = [
        (names[item], f"{count:.0f}", f"{intensity:.2f}", f"{exposure:.2f} ± {sd:.2f}")
        for item, count, intensity, exposure, sd in islice(cells, 10)
    ]
    title = "What it bought most often, and its exposure (1: as often as its tastes suggest)"
    return framed(title, ("product", "times bought", "expected", "exposure"), rows, "<>>>")


def _recommended(study: "Study", names: dict[Any, str], models: dict[str, Any], household: Any) -> "Table":
    """Return ten products per model, with a mark on those that were held out."""
    held_out = study.test.matrix[[study.data.users.tolist().index(household)]].indices
    later = set(study.data.items[held_out].tolist())
    columns = [list(map(str, range(1, 11)))]
    for name in ("NBMF", "PoissonMF"):
        found = models[name].recommend(household, n=10)
        columns.append([names[item] + " ✓" * (item in later) for item in found.items[0].tolist()])
        columns.append([f"{score:.2f}" for score in found.scores[0]])
    title = "Ten products it may like, with the expected number of purchases (✓: held out, so it did buy it)"
    headings = ("", "NBMF", "expected", "PoissonMF", "expected")
    return framed(title, headings, list(zip(*columns, strict=True)), "><><>")


def _judged(study: "Study", models: dict[str, Any]) -> "Table":
    """Return a row per relevance: the NDCG of each model, and the lead of the best over the second."""
    rows, parts = [], (study.train, study.test)
    results = {name: nbmf.evaluate(model, *parts, ("counts", 1, 2, 5), at=()) for name, model in models.items()}
    for metric, relevance in RELEVANCE.items():
        best, second, *_ = nbmf.compare(results, metric)
        ahead = nbmf.compare(results, metric, baseline=second.name)[best.name]
        found = {name: result[metric] for name, result in results.items()}
        cells = [_cell(one.mean, one.interval, "best " * (name == best.name)) for name, one in found.items()]
        rows.append((relevance, *cells, _cell(ahead.difference, ahead.difference_interval)))
    title = "How well they rank what was held out: NDCG and 95 % interval"
    return framed(
        title, ("relevance", *results, "lead over the second"), rows, "<" + ">" * (len(results) + 1), lines=True
    )


def _cell(value: float, interval: tuple[float, float], mark: str = "") -> str:
    return f"{mark}{value:.3f}\n{interval[0]:.3f} to {interval[1]:.3f}"


def _draw(study: "Study", model: Any, household: Any, folder: Path) -> str:
    """Draw the exposures of a household, and return a sentence that says where."""
    if find_spec("matplotlib") is None:
        return f"For a figure of its exposures, {how_to_install('plots')}"
    from nbmf.evaluation.experiments.figures import of_user  # noqa: PLC0415
    from nbmf.evaluation.experiments.paper import portray  # noqa: PLC0415

    of_user(portray(study, model, household)).save(folder)
    return f"Its exposures, and what it has not bought yet: {folder / 'exposure.png'}"
