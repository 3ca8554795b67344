"""`nbmf reproduce`: the paper's experiments on given counts, with a report that says which of its claims hold."""

import shlex
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import bad_rows_option, check_not_piped, file_option, json_option, number_option, option
from nbmf.cli.terminal import BadInputError, end_interrupted, sentences, show, show_json
from nbmf.data import how_to_install

if TYPE_CHECKING:
    from pathlib import Path

    from nbmf.evaluation.experiments.paper import Grid, Results
    from nbmf.evaluation.experiments.store import Row
    from nbmf.evaluation.experiments.study import Study

column_option = partial(option, metavar="COLUMN", show_default="recognised")


def _whole(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas."""
    parts = [part.strip() for part in value.split(",")]
    for part in parts:
        if not part.isdecimal() or not int(part):
            raise click.BadParameter(f"{part!r} is not a whole number from 1; write them like 5,10,20")
        if parts.count(part) > 1:
            raise click.BadParameter(f"{part!r} is there twice")
    return tuple(map(int, parts))


@click.command(short_help="Run the paper's experiments; say which claims hold.")
@click.argument("data", required=False, type=click.Path())
@option("-o", "--output", metavar="FOLDER", default="reproduced", help="Folder for results, figures and report.")
@option(
    "-k", "--components", metavar="K,K,…", default="5,10,20,50,100,200", callback=_whole, help="Numbers of components."
)
@number_option("--starts", default=5, help="Random starts per model and K.")
@number_option("--seed", default=0, type=click.IntRange(0), help="Seed of the first start.")
@column_option("--user", help="Column of the users.")
@column_option("--item", help="Column of the items.")
@column_option("--count", help="Column of the counts.")
@bad_rows_option
@file_option(
    "--names",
    show_default="items.parquet beside DATA, if there is one",
    help="Parquet file with a column item and the items' names.",
)
@option(
    "--filter/--no-filter",
    "filtered",
    default=None,
    show_default="only the groceries",
    help="Keep items with at least 50 users, then users with at least 20 items.",
)
@option(
    "--split",
    default="auto",
    type=click.Choice(["auto", "author", "random"]),
    help="What to hold out: the rows marked by the file's own column `test` (author), or a fifth at random; auto uses "
    "the column if there is one.",
)
@number_option("--split-seed", default=1992, type=click.IntRange(0), help="Seed of the random split.")
@option("--portrait", metavar="ID", show_default="one with many different counts", help="User to draw.")
@number_option("--workers", show_default="one per core", help="Fits at a time.")
@json_option
@sentences()
def reproduce(data: str | None, output: str, portrait: str | None, as_json: bool, **options: Any) -> None:
    """Run the paper's experiments on DATA and say which of its claims hold.

    DATA is a file of users, items and counts (csv, tsv, parquet); by default, a year of groceries. Three models (NBMF,
    and Poisson factorization on raw and on binarized counts) are fitted for each number of components from several
    random starts, and evaluated on a fifth of the counts, which is held out. Each result is written as soon as it is
    ready, and the same command resumes an interrupted run.
    """
    check_not_piped(data)
    if find_spec("matplotlib") is None:
        raise BadInputError(f"the figures need Matplotlib; {how_to_install('plots')}")
    from nbmf.evaluation.experiments.paper import Grid, open_store, row_of  # noqa: PLC0415 (numba takes a second to import)
    from nbmf.evaluation.experiments.study import open_study  # noqa: PLC0415

    grid = Grid(components=options["components"], n_starts=options["starts"], seed=options["seed"])
    columns = {name: options[name] for name in ("user", "item", "count", "bad_rows")}
    chosen = {name: options[name] for name in ("split", "filtered", "names")}
    study = open_study(data, columns=columns, seed=options["split_seed"], **chosen)
    click.echo(f"{study.name}: {study.data}; held out: {study.split}", err=True)
    row_of(study, portrait)
    folder = open_store(study, grid, output).folder
    try:
        results, page = _run(study, grid, folder, portrait, options["workers"])
    except KeyboardInterrupt:
        end_interrupted(f"finished fits are kept in {folder}, and the same command resumes there")
    _show(results, page, as_json)


def _run(
    study: "Study", grid: "Grid", folder: "Path", portrait: str | None, workers: int | None
) -> "tuple[Results, Path]":
    from nbmf.evaluation.experiments.engine import LostWorkerError, available_cores, shown_by  # noqa: PLC0415
    from nbmf.evaluation.experiments.paper import kept_portrait, open_store, run_grid  # noqa: PLC0415
    from nbmf.evaluation.experiments.report import write_report  # noqa: PLC0415
    from nbmf.inference.progress import RunsProgress, Stopwatch  # noqa: PLC0415

    watch, n_workers = Stopwatch(), workers or available_cores()
    n_made = len(open_store(study, grid, folder).missing(grid.jobs()))
    try:
        with RunsProgress("reproduce", what="fits") as progress:
            report = shown_by(progress, _in_words)
            results = run_grid(study, grid, folder, n_workers=n_workers, report=report)
    except LostWorkerError as error:
        raise click.ClickException(f"{error}; finished fits are kept in {folder}") from error
    last_run = f"The last run made {n_made} in {watch.seconds:,.0f} s, {n_workers} at a time." if n_made else ""
    command = shlex.join(["nbmf", *sys.argv[1:]])
    return results, write_report(results, kept_portrait(results, portrait), command, last_run)


def _in_words(row: "Row") -> str:
    from nbmf.evaluation.experiments.baselines import BASELINES  # noqa: PLC0415

    name = f"{BASELINES[row.job.model].label}, K = {row.job.settings['n_components']}, seed {row.job.seed}"
    return f"{name}: NDCG {row.means['ndcg_counts']:.4f} in {row.convergence['sweeps']} sweeps, {row.seconds:.1f} s"


def _show(results: "Results", page: "Path", as_json: bool) -> None:
    from nbmf.evaluation.experiments.paper import all_claims  # noqa: PLC0415
    from nbmf.evaluation.experiments.report import best_on_counts, leaders  # noqa: PLC0415

    claims = all_claims(results)
    if as_json:
        found = {"claims": [claim.as_dict() for claim in claims], "report": str(page)}
        settings = {name.replace(" ", "_"): value for name, value in results.store.settings.items()}
        show_json({**settings, **results.summary(), **found})
        return
    rows = [(claim.statement, claim.verdict.value) for claim in claims]
    show(f"The paper's claims on {results.study.name}", ("the paper says", "here"), rows, left=2)
    click.echo(f"NDCG, relevance = count: {best_on_counts(results)}")
    click.echo(f"NDCG, relevance = 1[count ≥ s]: {leaders(results)}")
    click.echo(f"report: {page}")
