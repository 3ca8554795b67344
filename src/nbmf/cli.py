"""The command line. Heavy modules are imported inside commands, so that `nbmf --help` answers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from nbmf.interactions import Interactions


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nbmf")
def main() -> None:
    """Factorize counts (plays, clicks, purchases, words) and recommend from them."""


@main.command()
@click.option("--household", type=int, default=None, help="Show this household [default: one with a typical basket].")
@click.option("-k", "--components", default=50, show_default=True, help="Number of components.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random start.")
def demo(household: int | None, components: int, seed: int) -> None:
    """Fit real groceries; show what one household bought, how exposed it was, and what it may like.

    Both models see a year of purchases of 2,250 households. The negative binomial model explains a burst of one product
    by exposure; the Poisson model has to explain it by taste.
    """
    from rich.console import Console  # noqa: PLC0415

    import nbmf  # noqa: PLC0415

    console = Console()
    console.print("Reading the groceries …")
    try:
        data = nbmf.datasets.groceries().filter()
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    if household is not None and household not in data.users:
        raise click.BadParameter(f"{household} is not among the {data.n_users} households", param_hint="--household")
    console.print(f"{data}\n")
    models = []
    for estimator in (nbmf.NBMF, nbmf.PoissonMF):
        models.append(estimator(n_components=components, random_state=seed, verbose=True).fit(data))
    chosen = _typical_household(data) if household is None else household
    console.print(f"\n[bold]Household {chosen}[/bold]\n")
    console.print(_bought(data, models[0], chosen))
    console.print(_recommended(data, models, chosen))


def _typical_household(data: Interactions) -> Any:
    """Return a household with the median number of different products and, among those, of purchases."""
    import numpy as np  # noqa: PLC0415

    n_products, n_bought = np.diff(data.matrix.indptr), data.matrix.sum(axis=1)
    typical = np.flatnonzero(n_products == np.sort(n_products)[len(n_products) // 2])
    return data.users[sorted(typical, key=lambda row: n_bought[row])[len(typical) // 2]].item()


def _names(data: Interactions) -> dict[Any, str]:
    assert data.item_names is not None
    # many products share type and size: the id tells them apart
    return {item: f"{name} (#{item})" for item, name in zip(data.items.tolist(), data.item_names.tolist(), strict=True)}


def _bought(data: Interactions, model: Any, household: Any) -> Table:
    from rich.table import Table  # noqa: PLC0415

    names, exposures = _names(data), model.exposures(household)
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


def _recommended(data: Interactions, models: list[Any], household: Any) -> Table:
    from rich.table import Table  # noqa: PLC0415

    names = _names(data)
    table = Table(title="Ten products it has not bought and may like, with the expected number of purchases")
    table.add_column("", justify="right")
    columns = []
    for model in models:
        table.add_column(type(model).__name__)
        table.add_column("expected", justify="right")
        found = model.recommend(household, n=10)
        columns.append(
            [(names[item], f"{score:.2f}") for item, score in zip(found.items[0], found.scores[0], strict=True)]
        )
    for rank, row in enumerate(zip(*columns, strict=True), start=1):
        table.add_row(str(rank), *(cell for pair in row for cell in pair))
    return table
