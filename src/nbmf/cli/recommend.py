"""`nbmf recommend`: a model file and users in, the best items out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import json_option
from nbmf.cli.terminal import sentences, show, show_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet"}


@click.command(short_help="Recommend items to users of a model.")
@click.argument("model", type=click.Path())
@click.option("--user", "users", metavar="ID", multiple=True, help="A user; may be given several times.")
@click.option("--all", "everybody", is_flag=True, show_default="the users given", help="All users of the model.")
@click.option(
    "-n", "n_items", metavar="N", default=10, show_default=True, type=click.IntRange(1), help="Items for each user."
)
@click.option("--include-seen", is_flag=True, show_default="only new items", help="Also what the user took before.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), show_default="a table", help="A .csv or .parquet file."
)
@json_option
def recommend(
    model: str,
    users: tuple[str, ...],
    everybody: bool,
    n_items: int,
    include_seen: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Recommend items to users of MODEL, a file that `nbmf fit` wrote.

    Scores are expected counts (of nbslim: expected targets). Equal scores keep the order of the items.
    """
    if everybody == bool(users):
        how = "not both" if everybody else "one of them is needed"
        raise click.UsageError(f"say for whom: --user ID, once or more often, or --all; {how}")
    if output is not None and as_json:
        raise click.UsageError("-o writes a file and --json to standard output; leave out one of them")
    if everybody and output is None and not as_json:
        raise click.UsageError("--all is much to read: give -o FILE.csv or -o FILE.parquet, or --json")
    if output is not None and os.path.splitext(output)[1] not in FORMATS:
        raise click.UsageError(f"-o {output}: the name must end in {' or '.join(FORMATS)}")
    with sentences():
        import nbmf  # noqa: PLC0415

        fitted = nbmf.load(model)
        chosen = fitted.users_ if everybody else _ids(users, fitted.users_)
        found = fitted.recommend(chosen, n_items, exclude_seen=not include_seen)
        columns = found.columns
        if output is not None:
            _write(columns, output)
            click.echo(f"{output}: {len(columns['user']):,} rows for {len(found.users):,} users", err=True)
        elif as_json:
            show_json(_by_user(columns))
        else:
            of_counts = getattr(fitted, "target", "counts") == "counts"
            _show("The expected number of times, largest first" if of_counts else "Scores, largest first", columns)


def _ids(texts: tuple[str, ...], known: NDArray[Any]) -> NDArray[Any]:
    """Ids as the model has them: numbers, if its users have numbers."""
    import numpy as np  # noqa: PLC0415

    if known.dtype.kind in "OU":
        return np.array(texts, object)
    try:
        return np.array([int(text) if known.dtype.kind in "iu" else float(text) for text in texts])
    except (ValueError, OverflowError):
        raise ValueError(f"--user {', '.join(texts)}: the users of this model are numbers such as {known[0]}") from None


def _write(columns: dict[str, NDArray[Any]], output: str) -> None:
    """Write a file, as a whole or not at all."""
    import duckdb  # noqa: PLC0415 (slow to import)

    from nbmf.storage.container import check_place, replacing  # noqa: PLC0415

    tidy = {name: cells.astype(object) if cells.dtype.kind == "U" else cells for name, cells in columns.items()}
    with replacing(check_place(output)) as temporary, duckdb.connect() as connection:
        connection.register("recommended", tidy)
        place, form = temporary.replace("'", "''"), FORMATS[os.path.splitext(output)[1]]
        connection.execute(f"COPY (SELECT * FROM recommended) TO '{place}' ({form})")


def _rows(columns: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(cells.tolist() for cells in columns.values()), strict=True)
    ]


def _by_user(columns: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    users: dict[Any, list[dict[str, Any]]] = {}
    for row in _rows(columns):
        users.setdefault(row.pop("user"), []).append({name: row[name] for name in row if name != "rank"})
    return [{"user": user, "items": items} for user, items in users.items()]


def _show(title: str, columns: dict[str, NDArray[Any]]) -> None:
    rows = [[str(cell) if name != "score" else f"{cell:.3f}" for name, cell in row.items()] for row in _rows(columns)]
    show(title, list(columns), rows, left=len(columns) - 1)
