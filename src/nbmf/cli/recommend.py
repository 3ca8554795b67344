"""`nbmf recommend`: a model file and users in, the best items out."""

import os
from typing import TYPE_CHECKING, Any

import click

import nbmf
from nbmf.cli.options import file_option, json_option, number_option, option
from nbmf.cli.serve import import_sklearn
from nbmf.cli.terminal import sentences, show, show_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCORES = {"counts": "Expected counts", "log1p": "Expected ln(1 + count)"}  # what they are, by the form of the counts
FORMATS = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet"}


@click.command(short_help="Recommend items to users of a model.")
@click.argument("model", type=click.Path())
@option("--user", "users", metavar="ID", multiple=True, show_default=False, help="A user; may be repeated.")
@option("--all", "everybody", is_flag=True, show_default="the users given", help="All users of the model.")
@number_option("-n", default=10, help="Number of items per user.")
@option("--include-seen", is_flag=True, show_default="new items only", help="Include items the user already has.")
@file_option("-o", "--output", show_default="a table", help="Write to a .csv or .parquet file.")
@json_option
@sentences()
def recommend(
    model: str, users: tuple[str, ...], everybody: bool, n: int, include_seen: bool, output: str | None, as_json: bool
) -> None:
    """Recommend items to users of MODEL, a file written by `nbmf fit`.

    Scores are expected counts, or of what the model was fitted to: ln(1 + count) with --input log1p, whether there is a
    count with binary, the targets of nbslim and nbfism. Items with equal scores keep their order.
    """
    _check_options(bool(users), everybody, output, as_json)
    from nbmf.data.ids import Lookup  # noqa: PLC0415 (heavy modules only when the command runs)

    import_sklearn()
    fitted = nbmf.load(model)
    chosen = fitted.users_ if everybody else list(map(Lookup(fitted.users_, "user").from_text, users))
    found = fitted.recommend(chosen, n, exclude_seen=not include_seen)
    columns = found.columns
    if output is not None:
        _write(columns, output)
        click.echo(f"{output}: {len(columns['user']):,} rows for {len(found.users):,} users", err=True)
    elif as_json:
        show_json(_by_user(columns))
    else:
        what = SCORES.get(fitted.result_.target, "Scores")
        texts = [map(str if name != "score" else "{:.3f}".format, cells.tolist()) for name, cells in columns.items()]
        show(f"{what}, largest first", list(columns), list(zip(*texts, strict=True)), left=len(columns) - 1)


def _check_options(some: bool, everybody: bool, output: str | None, as_json: bool) -> None:
    if everybody == some:
        how = "not both" if everybody else "one of them is needed"
        raise click.UsageError(f"say for whom: --user ID, which may be repeated, or --all; {how}")
    if output is not None and as_json:
        raise click.UsageError("-o writes to a file and --json to standard output; leave out one of them")
    if everybody and output is None and not as_json:
        raise click.UsageError("--all is too much for a table: give -o FILE.csv, -o FILE.parquet or --json")
    if output is not None and os.path.splitext(output)[1] not in FORMATS:
        raise click.UsageError(f"-o {output}: the name must end in {' or '.join(FORMATS)}")


def _write(columns: "dict[str, NDArray[Any]]", output: str) -> None:
    import duckdb  # noqa: PLC0415 (slow to import)

    from nbmf.storage.container import check_place, replacing  # noqa: PLC0415

    tidy = {name: cells.astype(object) if cells.dtype.kind == "U" else cells for name, cells in columns.items()}
    with replacing(check_place(output)) as temporary, duckdb.connect() as connection:
        connection.register("recommended", tidy)
        place, form = temporary.replace("'", "''"), FORMATS[os.path.splitext(output)[1]]
        try:
            connection.execute(f"COPY (SELECT * FROM recommended) TO '{place}' ({form})")
        except duckdb.Error as error:  # such as a full disk; `replacing` says what it means for the file
            raise OSError(" ".join(str(error).split())) from error


def _by_user(columns: "dict[str, NDArray[Any]]") -> list[dict[str, Any]]:
    users: dict[Any, list[dict[str, Any]]] = {}
    for user, _, *cells in zip(*(column.tolist() for column in columns.values()), strict=True):
        users.setdefault(user, []).append(dict(zip(list(columns)[2:], cells, strict=True)))
    return [{"user": user, "items": items} for user, items in users.items()]
