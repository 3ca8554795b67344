"""`nbmf check`: whether a model fits its data, and what to try if it does not."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

import nbmf
from nbmf.cli.options import file_option, json_option, number_option, seed_option
from nbmf.cli.serve import import_sklearn
from nbmf.cli.terminal import BadInputError, in_the_shell, sentences, show, show_json
from nbmf.data import how_to_install

if TYPE_CHECKING:
    from nbmf.estimators.check import Check

PICTURES = (".png", ".pdf", ".svg")


@click.command(short_help="Check whether a model fits its data.")
@click.argument("model", type=click.Path())
@number_option("--draws", default=100, type=click.IntRange(2), help="Number of draws from the model.")
@seed_option
@file_option("-o", "--output", show_default="no picture", help="Draw the comparison into a .png, .pdf or .svg file.")
@json_option
@sentences()
def check(model: str, draws: int, seed: int, output: str | None, as_json: bool) -> None:
    """Compare the data of MODEL, a file written by `nbmf fit`, with draws from the model.

    Compared are the shares of zeros and ones, the variance over the mean, and the tail, over all cells and for the most
    and least active users and items. Each thing that does not fit is one line that says what to try. The exit code is 0
    whether it fits or not.
    """
    if output is not None:
        _check_picture(output)
    import_sklearn()
    fitted = nbmf.load(model)
    name = type(fitted).__name__
    from nbmf.estimators.check import why_unchecked  # noqa: PLC0415 (heavy modules only when the command runs)

    if why := why_unchecked(getattr(fitted, "likelihood_", None)):
        raise ValueError(f"{model}: {name} {why}")
    found = fitted.check(n_draws=draws, seed=seed)
    if output is not None:
        _write(found, output)
    columns = found.columns
    rows = list(zip(*columns.values(), strict=True))
    if as_json:
        statistics = [dict(zip(columns, row, strict=True)) for row in rows]
        sizes = {"cells": found.n_cells, "draws": found.n_draws}
        show_json({"class": name, **in_json(found), **sizes, "statistics": statistics})
        return
    show_findings(name, found)
    title = f"{found.n_cells:,} cells and {found.n_draws} draws from the model, 90 % of which are from low to high"
    show(title, list(columns), [[_text(value) for value in row] for row in rows], left=2)


def in_json(found: "Check") -> dict[str, Any]:
    """Return whether the model fits, and what does not."""
    return {"fits": found.fits, "findings": list(found.findings)}


def show_findings(name: str, found: "Check") -> None:
    """Print a line for each finding, or one that says that there are none."""
    if found.fits:
        click.echo(f"{name} fits its data: no statistic is off by more than is normal for a correct model")
    for finding in found.findings:
        click.echo(f"{name} {in_the_shell(finding)}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_picture(output: str) -> None:
    from nbmf.storage.container import check_place  # noqa: PLC0415 (heavy modules only when the command runs)

    if os.path.splitext(output)[1] not in PICTURES:
        raise click.UsageError(f"-o {output}: the name must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    if find_spec("matplotlib") is None:
        raise BadInputError(f"a picture needs Matplotlib; {how_to_install('plots')}")
    check_place(output)


def _write(found: "Check", output: str) -> None:
    from nbmf.storage.container import check_place, replacing  # noqa: PLC0415

    with replacing(check_place(output)) as temporary:
        found.plot().savefig(temporary, dpi=200, format=os.path.splitext(output)[1][1:])
    click.echo(f"{output}: observed beside expected", err=True)
