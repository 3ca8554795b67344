"""`nbmf serve` and `nbmf explore`: a model behind an endpoint, and on a page."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import (
    MODELS,
    Decorator,
    check_concentration,
    check_slim,
    data_options,
    fit_options,
    make_model,
    make_slim,
    read_data,
    together,
)
from nbmf.cli.terminal import BadInputError, end_interrupted, sentences

if TYPE_CHECKING:
    from socket import socket

    from nbmf.data.interactions import Interactions

PORT = 8000
WILDCARDS = ("0.0.0.0", "::", "")

server_options: Decorator = together(
    click.option(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Where to listen; off this machine only with a token.",
    ),
    click.option(
        "--port", metavar="N", type=click.IntRange(0, 65535), show_default=str(PORT), help="0 takes any free one."
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(),
        show_default="the variable NBMF_TOKEN, else none",
        help="Whose first line every request must carry, as Authorization: Bearer TOKEN.",
    ),
    click.option(
        "--allow-host",
        "hosts",
        metavar="NAME",
        multiple=True,
        show_default="localhost and ADDRESS",
        help="Another name that the server may be called by; may be given several times.",
    ),
    click.option(
        "--allow-origin",
        "origins",
        metavar="URL",
        multiple=True,
        show_default="none",
        help="Another site whose pages may ask, such as https://shop.example; may be given several times.",
    ),
)


@click.command(short_help="Serve a model over HTTP, with a page to explore it.")
@click.argument("model", type=click.Path())
@server_options
def serve(model: str, **options: Any) -> None:
    """Serve MODEL, a file that `nbmf fit` wrote, over HTTP until Ctrl-C or SIGTERM.

    The page is at /, what can be asked at /openapi.json. A new file under the same name is picked up while requests go
    on; a damaged one is refused, and the model before it stays.
    """
    with sentences():
        _serve(model, **options)


@click.command(short_help="Fit if needed, serve, open the browser.")
@click.argument("data", required=False, type=click.Path())
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    show_default="DATA.nbmf in this folder",
    help="Where the model goes that is fitted.",
)
@click.option("--refit", is_flag=True, show_default="only if the data is newer", help="Fit again.")
@click.option(
    "--names",
    metavar="FILE",
    type=click.Path(),
    show_default="items.parquet beside DATA, if there is one",
    help="Parquet file with a column item and the items' names.",
)
@click.option("--model", type=click.Choice((*MODELS, "nbslim")), default="nbmf", show_default=True, help="What to fit.")
@fit_options
@data_options
@click.option("--no-browser", is_flag=True, show_default="open it", help="Only tell the address.")
@server_options
def explore(data: str | None, output: str | None, refit: bool, no_browser: bool, **options: Any) -> None:
    """Show DATA as a model sees it: in the browser, on a page about every user and item.

    DATA is a file of users, items and counts (csv, tsv, parquet) or a model file; without it, a year of groceries.
    Counts are fitted first, and the model is kept: the next time the page is there at once.
    """
    serving = {name: options.pop(name) for name in ("host", "port", "token_file", "hosts", "origins")}
    with sentences():
        from nbmf.storage.container import seal  # noqa: PLC0415

        _check_extra()
        if data is not None and seal(data) is not None:
            path = data
        else:
            path = output or f"{os.path.basename(data or 'groceries').split('.')[0]}.nbmf"
            if data is not None and os.path.realpath(path) == os.path.realpath(data):
                raise click.UsageError(f"-o {path} is DATA too; name another file, as this one would be lost")
            if refit or not _is_newer(path, data):
                _fit(data, path, **options)
            else:
                click.echo(f"{path} is newer than the data, so it is shown as it is; --refit fits it again", err=True)
        _serve(path, **serving, open_browser=not no_browser, any_port=True)


def _is_newer(path: str, data: str | None) -> bool:
    """Whether the model is there, and was written after the data."""
    if not os.path.exists(path):
        return False
    return data is None or os.path.getmtime(path) >= os.path.getmtime(data)


def _fit(
    data: str | None,
    path: str,
    model: str,
    components: int,
    concentration: float | None,
    seed: int,
    max_iter: int,
    tol: float,
    names: str | None,
    **reading: Any,
) -> None:
    """Fit a model and write it down."""
    from nbmf.storage.container import check_place  # noqa: PLC0415

    if model == "nbslim":
        check_slim("components", "seed", "max_iter", "tol")
    else:
        check_concentration((model,), concentration)
    check_place(path)
    found = _groceries() if data is None else _named(data, names, read_data(data, time=None, **reading))
    if model == "nbslim":
        make_slim(concentration).fit(found).save(path)
    else:
        fit_and_keep(make_model(model, components, concentration, seed, max_iter, tol), found, path)
    click.echo(f"{path}: written", err=True)


def fit_and_keep(estimator: Any, data: Interactions, path: str) -> None:
    """Fit a model and write it to a file, and beside it how long the fit had taken after each sweep."""
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415
    from nbmf.storage.container import check_place, replacing, seal  # noqa: PLC0415
    from nbmf.web.reload import history_of  # noqa: PLC0415

    seconds: list[float] = []
    watch = Stopwatch()
    estimator.fit(data, callbacks=[lambda _: seconds.append(round(watch.seconds, 4))])
    estimator.save(path)
    with replacing(check_place(history_of(path))) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"model": seal(path), "seconds": seconds}, stream)


def _groceries() -> Interactions:
    import nbmf  # noqa: PLC0415

    return nbmf.datasets.groceries().filter()


def _named(data: str, names: str | None, found: Interactions) -> Interactions:
    from dataclasses import replace  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    from nbmf.experiments.study import item_names  # noqa: PLC0415

    return replace(found, item_names=item_names(Path(data), names, found))


def _check_extra() -> None:
    for module in ("fastapi", "uvicorn", "httptools"):
        if importlib.util.find_spec(module) is None:
            raise BadInputError(f"serving needs {module}: pip install 'nbmf[server]'")


def _serve(
    path: str,
    host: str,
    port: int | None,
    token_file: str | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    *,
    open_browser: bool = False,
    any_port: bool = False,
) -> None:
    _check_extra()
    token = _token(token_file)
    _check_open(host, token, hosts)
    from nbmf.web.process import listen, make_server  # noqa: PLC0415

    with _listen(listen, host, port, any_port and port is None) as door:
        with without("pandas"):  # scikit-learn imports it if it can: half a second, and a server has no data frames
            import sklearn.base  # noqa: F401, PLC0415
        from nbmf.web.app import build_app  # noqa: PLC0415
        from nbmf.web.middleware import LOOPBACK, Access  # noqa: PLC0415
        from nbmf.web.reload import Shelf  # noqa: PLC0415

        access = Access(LOOPBACK | {host, *map(str.lower, hosts)}, token, origins)
        server = make_server(build_app(Shelf(path), access=access))
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        address = _address(host, door)
        click.echo(f"{path}: {address} (Ctrl-C ends it)", err=True)
        if open_browser:
            threading.Timer(0.5, _open, [address]).start()
        signal.signal(signal.SIGTERM, _end)  # to which uvicorn hands the signal on, when all have their answers
        try:
            server.run(sockets=[door])
        except KeyboardInterrupt:
            end_interrupted("everything that was asked has been answered")


def _end(number: int, frame: Any) -> None:
    sys.exit(0)


def _open(address: str) -> None:
    import webbrowser  # noqa: PLC0415

    webbrowser.open(address)


def _token(token_file: str | None) -> str | None:
    token = os.environ.get("NBMF_TOKEN")
    if token_file is not None:
        with open(token_file, encoding="utf-8") as stream:
            token = stream.readline().strip()
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or len(token) < 16):
        raise BadInputError(
            "a token needs 16 letters or digits or more, without spaces: openssl rand -hex 32 makes one"
        )
    return token


def _check_open(host: str, token: str | None, hosts: tuple[str, ...]) -> None:
    """Refuse to be open to other machines without a token, or without a name."""
    if _is_loopback(host):
        return
    if token is None:
        raise BadInputError(
            f"--host {host} can be reached from other machines, so it needs a token: --token-file FILE, or NBMF_TOKEN"
        )
    if host in WILDCARDS and not hosts:
        raise BadInputError(f"--host {host} has no name of its own; say what it is called by: --allow-host NAME")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(listen: Callable[[str, int], socket], host: str, port: int | None, any_port: bool) -> socket:
    wanted = PORT if port is None else port
    try:
        return listen(host, wanted)
    except OSError as error:
        if any_port:
            return listen(host, 0)
        remedy = "--port N takes another, 0 any free one"
        raise BadInputError(f"{host}:{wanted} cannot be listened on ({error.strerror}); {remedy}") from error


def _address(host: str, door: socket) -> str:
    name = "localhost" if host in WILDCARDS else host
    return f"http://{f'[{name}]' if ':' in name else name}:{door.getsockname()[1]}/"


@contextmanager
def without(name: str) -> Iterator[None]:
    """Keep a module from being imported meanwhile."""
    kept = sys.modules.get(name)
    if kept is None:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if kept is None:
            del sys.modules[name]
