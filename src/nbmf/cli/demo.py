"""`nbmf demo`: real groceries, what one household may like, and which of three models finds it best."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.serve import fit_and_keep
from nbmf.cli.terminal import sentences

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nbmf.data.interactions import Interactions
    from nbmf.evaluation import Evaluation
    from nbmf.experiments.study import Study

RELEVANCE = {"ndcg_counts": "count", **{f"ndcg_at_least_{s}": f"count ≥ {s}" for s in (1, 2, 5)}}


@click.command()
@click.option("--household", type=int, default=None, help="Show this household [default: one with a typical basket].")
@click.option("-k", "--components", default=50, show_default=True, help="Number of components.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random start.")
@click.option(
    "-o",
    "--output",
    default="nbmf-demo",
    show_default=True,
    type=click.Path(),
    help="Folder of the picture and the model.",
)
def demo(household: int | None, components: int, seed: int, output: str) -> None:
    """Fit real groceries; show what one household may like, and how well three models find what was held out.

    The models see four fifths of what 2,250 households bought in a year. The negative binomial model explains a burst
    of one product by exposure; the Poisson model has to explain it by taste, or forget how often a product was bought.
    """
    with sentences():
        _show(household, components, seed, Path(output))


def _show(household: int | None, components: int, seed: int, folder: Path) -> None:
    from rich.console import Console  # noqa: PLC0415

    import nbmf  # noqa: PLC0415
    from nbmf.experiments.study import open_study  # noqa: PLC0415

    console = Console()
    console.print("Reading the groceries …")
    study = open_study()
    data = study.data
    if household is not None and household not in data.users:
        raise click.BadParameter(f"{household} is not among the {data.n_users} households", param_hint="--household")
    console.print(f"{data}\nheld out: {study.split}\n")
    settings: dict[str, Any] = {"random_state": seed, "verbose": True}
    models: dict[str, Any] = {
        "NBMF": nbmf.NBMF(components, **settings),
        "PoissonMF": nbmf.PoissonMF(components, **settings),
        "binarized PoissonMF": nbmf.PoissonMF(components, binarize=True, **settings),
    }
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "groceries.nbmf"
    fit_and_keep(models["NBMF"], study.train, str(kept))
    for name in ("PoissonMF", "binarized PoissonMF"):
        models[name].fit(study.train)
    chosen = _typical_household(study.train) if household is None else household
    console.print(f"\n[bold]Household {chosen}[/bold]\n")
    console.print(_bought(study, models["NBMF"], chosen))
    console.print(_recommended(study, models, chosen))
    results = {
        name: nbmf.evaluate(model, study.train, study.test, ("counts", 1, 2, 5), at=())
        for name, model in models.items()
    }
    console.print(_judged(results))
    _draw(console, study, models["NBMF"], chosen, folder)
    how = shlex.join([sys.argv[0] if sys.argv[0].endswith("nbmf") else "nbmf", "explore", str(kept)])
    console.print(f"Every household, in the browser: {how}", markup=False, soft_wrap=True)


def _typical_household(data: Interactions) -> Any:
    """Return a household with the median number of different products and, among those, of purchases."""
    import numpy as np  # noqa: PLC0415

    n_products, n_bought = np.diff(data.matrix.indptr), data.matrix.sum(axis=1)
    typical = np.flatnonzero(n_products == np.sort(n_products)[len(n_products) // 2])
    return data.users[sorted(typical, key=lambda row: n_bought[row])[len(typical) // 2]].item()


def _names(study: Study) -> dict[Any, str]:
    from rich.markup import escape  # noqa: PLC0415

    return dict(zip(study.data.items.tolist(), map(escape, study.labels()), strict=True))


def _bought(study: Study, model: Any, household: Any) -> Table:
    from rich.table import Table  # noqa: PLC0415

    names, exposures = _names(study), model.exposures(household)
    table = Table(title="What it bought most often, and how exposed it was (1 = as its tastes suggest)")
    table.add_column("product")
    for name in ("times bought", "expected", "exposure"):
        table.add_column(name, justify="right")
    for n in range(min(10, len(exposures.item))):
        table.add_row(
            names[exposures.item[n].item()],
            f"{exposures.count[n]:.0f}",
            f"{exposures.intensity[n]:.2f}",
            f"{exposures.exposure[n]:.2f} ± {exposures.sd[n]:.2f}",
        )
    return table


def _recommended(study: Study, models: dict[str, Any], household: Any) -> Table:
    from rich.table import Table  # noqa: PLC0415

    names = _names(study)
    held_out = study.test.matrix[[study.data.users.tolist().index(household)]].indices
    later = set(study.data.items[held_out].tolist())
    table = Table(
        title="Ten products it may like, with the expected number of purchases (✓: held out, so it did buy it)"
    )
    table.add_column("", justify="right")
    columns = []
    for name in ("NBMF", "PoissonMF"):
        table.add_column(name)
        table.add_column("expected", justify="right")
        found = models[name].recommend(household, n=10)
        columns.append(
            [
                (names[item] + " ✓" * (item in later), f"{score:.2f}")
                for item, score in zip(found.items[0].tolist(), found.scores[0], strict=True)
            ]
        )
    for rank, row in enumerate(zip(*columns, strict=True), start=1):
        table.add_row(str(rank), *(cell for pair in row for cell in pair))
    return table


def _judged(results: dict[str, Evaluation]) -> Table:
    """Return a row for each relevance: NDCG of each model with its interval, and how far the best is ahead."""
    from rich.table import Table  # noqa: PLC0415

    from nbmf.evaluation import compare  # noqa: PLC0415

    table = Table(title="How well they rank what was held out: NDCG, 95 % interval", show_lines=True)
    table.add_column("relevance")
    for name in (*results, "best ahead of the second by"):
        table.add_column(name, justify="right")
    for metric, relevance in RELEVANCE.items():
        best, second, *_ = compare(results, metric)
        ahead = compare(results, metric, baseline=second.name)[best.name]
        cells = [
            _cell(result[metric].mean, result[metric].interval, "best " * (name == best.name))
            for name, result in results.items()
        ]
        table.add_row(relevance, *cells, _cell(ahead.difference, ahead.difference_interval))
    return table


def _cell(value: float, interval: tuple[float, float], mark: str = "") -> str:
    return f"{mark}{value:.3f}\n{interval[0]:.3f} to {interval[1]:.3f}"


def _draw(console: Console, study: Study, model: Any, household: Any, folder: Path) -> None:
    if find_spec("matplotlib") is None:
        console.print("For a picture of its exposures: pip install 'nbmf[plots]'", markup=False)
        return
    from nbmf.experiments.figures import of_user  # noqa: PLC0415
    from nbmf.experiments.portrait import portray  # noqa: PLC0415

    of_user(portray(study, model, household)).save(folder)
    console.print(
        f"Its exposures and what it has not bought yet: {folder / 'exposure.png'}", markup=False, soft_wrap=True
    )
