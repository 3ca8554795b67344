"""`nbmf reproduce`: the paper's experiments on given counts, with a report of which of its claims hold."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import json_option
from nbmf.cli.terminal import BadInputError, end_interrupted, sentences, show, show_json

if TYPE_CHECKING:
    from pathlib import Path

    from nbmf.experiments.grid import Grid
    from nbmf.experiments.results import Results
    from nbmf.experiments.runs import Tidings
    from nbmf.experiments.study import Study
    from nbmf.inference.progress import RunsProgress


def _whole_numbers(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers from 1 with commas between them."""
    parts = [part.strip() for part in value.split(",")]
    for part in parts:
        if not part.isdecimal() or not int(part):
            raise click.BadParameter(f"{part!r} is not a whole number from 1; write them like 5,10,20")
        if parts.count(part) > 1:
            raise click.BadParameter(f"{part!r} is there twice")
    return tuple(map(int, parts))


@click.command(short_help="Run the paper's experiments; say which claims hold.")
@click.argument("data", required=False, type=click.Path())
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default="reproduced",
    show_default=True,
    type=click.Path(),
    help="Where rows, figures and report go.",
)
@click.option(
    "-k",
    "--components",
    metavar="K,K,…",
    default="5,10,20,50,100,200",
    show_default=True,
    callback=_whole_numbers,
    help="Numbers of components.",
)
@click.option(
    "--starts", metavar="N", default=5, show_default=True, type=click.IntRange(1), help="Random starts of each."
)
@click.option(
    "--seed", metavar="N", default=0, show_default=True, type=click.IntRange(0), help="Seed of the first start."
)
@click.option("--user", metavar="COLUMN", show_default="recognised", help="The users' column.")
@click.option("--item", metavar="COLUMN", show_default="recognised", help="The items' column.")
@click.option("--count", metavar="COLUMN", show_default="recognised", help="The counts' column.")
@click.option(
    "--names",
    metavar="FILE",
    type=click.Path(),
    show_default="items.parquet beside DATA, if there is one",
    help="Parquet file with a column item and the items' names.",
)
@click.option(
    "--filter/--no-filter",
    "filtered",
    default=None,
    show_default="only the groceries",
    help="Keep items with 50 users or more, then users with 20 items or more.",
)
@click.option(
    "--split",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "author", "random"]),
    help="What is held out: what the file's own column `test` says (author), or a fifth at random; auto takes the "
    "first where there is such a column.",
)
@click.option(
    "--split-seed", metavar="N", default=1992, show_default=True, type=click.IntRange(0), help="Of the random split."
)
@click.option(
    "--portrait", metavar="ID", show_default="one with many different counts", help="The user whose exposures to draw."
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(1), show_default="one a core", help="How many runs at a time."
)
@json_option
def reproduce(
    data: str | None,
    output: str,
    components: tuple[int, ...],
    starts: int,
    seed: int,
    portrait: str | None,
    workers: int | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Run the paper's experiments on DATA and say which of its claims hold.

    DATA is a file of users, items and counts (csv, tsv, parquet); without it, a year of groceries. Three models (NBMF,
    Poisson factorization on raw and on binarized counts) are fitted for each number of components from several random
    starts, and judged on a fifth of the counts that they have not seen. Rows go to the folder as they come: the same
    command goes on where it was interrupted.
    """
    with sentences():
        if find_spec("matplotlib") is None:
            raise BadInputError("the figures need Matplotlib: pip install 'nbmf[plots]'")
        from nbmf.experiments.grid import Grid  # noqa: PLC0415 (numba takes a second to import)
        from nbmf.experiments.portrait import row_of  # noqa: PLC0415
        from nbmf.experiments.runs import open_folder  # noqa: PLC0415

        grid = Grid(components=components, n_starts=starts, seed=seed)
        study = _open(data, **reading)
        row_of(study, portrait)
        folder = open_folder(study, grid, output).path
    try:
        results, page = _run(study, grid, folder, portrait, workers)
    except KeyboardInterrupt:
        end_interrupted(f"finished runs are kept in {folder}, and the same command goes on from there")
    _show(results, page, as_json)


def _open(
    data: str | None,
    user: str | None,
    item: str | None,
    count: str | None,
    names: str | None,
    filtered: bool | None,
    split: str,
    split_seed: int,
) -> Study:
    from nbmf.experiments.study import open_study  # noqa: PLC0415

    columns = {"user": user, "item": item, "count": count}
    study = open_study(data, columns=columns, split=split, seed=split_seed, filtered=filtered, names=names)
    click.echo(f"{study.name}: {study.data}; held out: {study.split}", err=True)
    return study


def _run(study: Study, grid: Grid, folder: Path, portrait: str | None, workers: int | None) -> tuple[Results, Path]:
    from nbmf.experiments.portrait import kept_portrait  # noqa: PLC0415
    from nbmf.experiments.report import Making, write_report  # noqa: PLC0415
    from nbmf.experiments.runs import available_cores, run_grid  # noqa: PLC0415
    from nbmf.experiments.workers import LostWorkerError  # noqa: PLC0415
    from nbmf.inference.progress import RunsProgress, Stopwatch  # noqa: PLC0415

    watch, n_workers = Stopwatch(), workers or available_cores()
    told: list[Tidings] = []
    try:
        with RunsProgress("reproduce") as progress:

            def report(tidings: Tidings) -> None:
                told.append(tidings)
                _tell(progress, tidings)

            results = run_grid(study, grid, folder, n_workers=n_workers, report=report)
    except LostWorkerError as error:
        raise click.ClickException(f"{error}; finished runs are kept in {folder}") from error
    making = Making(shlex.join(["nbmf", *sys.argv[1:]]), len(told) - 1, watch.seconds, n_workers)
    page, _ = write_report(results, kept_portrait(results, portrait), making)
    return results, page


def _tell(progress: RunsProgress, tidings: Tidings) -> None:
    from nbmf.experiments.grid import LABELS  # noqa: PLC0415

    row, last = tidings.row, ""
    if row is not None:
        name = f"{LABELS[row.job.model]}, K = {row.job.n_components}, start {row.job.start + 1}"
        last = f"{name}: NDCG {row.means['ndcg_counts']:.4f} in {row.n_iter} sweeps, {row.seconds:.1f} s"
    progress.report(tidings.n_done, tidings.n_runs, tidings.share, last)


def _show(results: Results, page: Path, as_json: bool) -> None:
    from nbmf.experiments.claims import all_claims  # noqa: PLC0415
    from nbmf.experiments.report import best_on_counts, leaders  # noqa: PLC0415
    from nbmf.experiments.results import summary  # noqa: PLC0415

    claims = all_claims(results)
    if as_json:
        told = {"claims": [claim.as_dict() for claim in claims], "report": str(page)}
        show_json({**results.folder.settings, **summary(results), **told})
        return
    rows = [(claim.statement, claim.verdict.value) for claim in claims]
    show(f"The paper's claims on {results.study.name}", ("the paper says", "here"), rows, left=2)
    click.echo(f"NDCG, relevance = count: {best_on_counts(results)}")
    click.echo(f"NDCG, relevance = 1[count ≥ s]: {leaders(results)}")
    click.echo(f"report: {page}")
