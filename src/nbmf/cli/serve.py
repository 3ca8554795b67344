"""`nbmf serve` and `nbmf explore`: a model behind an HTTP API, and on a page in the browser."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nbmf.cli.options import (
    MODELS,
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
    from nbmf.web.middleware import Access

PORT = 8000
WILDCARDS = ("0.0.0.0", "::", "")
FILE: dict[str, Any] = {"metavar": "FILE", "type": click.Path()}

server_options = together(
    click.option(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Address to listen on; if not local, a token is needed.",
    ),
    click.option(
        "--port", metavar="N", type=click.IntRange(0, 65535), show_default=str(PORT), help="Port; 0 for any free one."
    ),
    click.option(
        "--token-file",
        **FILE,
        show_default="the variable NBMF_TOKEN, else none",
        help="File whose first line is the token that requests must carry as Authorization: Bearer TOKEN.",
    ),
    click.option(
        "--allow-host",
        "hosts",
        metavar="NAME",
        multiple=True,
        show_default="localhost and ADDRESS",
        help="Another host name of this server. May be repeated.",
    ),
    click.option(
        "--allow-origin",
        "origins",
        metavar="URL",
        multiple=True,
        show_default="none",
        help="Another site whose pages may call the API, such as https://shop.example. May be repeated.",
    ),
)


@click.command(short_help="Serve a model over HTTP, with a page to explore it.")
@click.argument("model", type=click.Path())
@server_options
def serve(model: str, **options: Any) -> None:
    """Serve MODEL, a file that `nbmf fit` wrote, over HTTP until Ctrl-C or SIGTERM.

    The page is at /, the description of the API at /openapi.json. When a new file takes the place of MODEL, the server
    loads it without interruption; if the new file is damaged, the server keeps the old model.
    """
    with sentences():
        _serve(model, **options)


@click.command(short_help="Fit a model if needed, and explore it in the browser.")
@click.argument("data", required=False, type=click.Path())
@click.option(
    "-o", "--output", **FILE, show_default="DATA.nbmf in this folder", help="Where to write the fitted model."
)
@click.option("--refit", is_flag=True, show_default="only if the data is newer", help="Fit the model again.")
@click.option(
    "--names", **FILE, show_default="items.parquet beside DATA, if any", help="Parquet file with columns item and name."
)
@click.option(
    "--model", type=click.Choice((*MODELS, "nbslim")), default="nbmf", show_default=True, help="Model to fit."
)
@fit_options
@data_options
@click.option("--no-browser", is_flag=True, show_default="open it", help="Only print the address.")
@server_options
def explore(data: str | None, output: str | None, refit: bool, no_browser: bool, **options: Any) -> None:
    """Explore DATA in the browser: recommendations for every user, their reasons, and a map of the items.

    DATA is a file of users, items and counts (csv, tsv, parquet) or a model file; by default, a year of groceries. The
    fitted model is written to a file, so that the page opens at once the next time.
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
                raise click.UsageError(f"-o {path} would overwrite DATA; name another file")
            if refit or not _is_newer(path, data):
                _fit(data, path, **options)
            else:
                click.echo(f"{path} is newer than the data and not fitted again; --refit fits it", err=True)
        _serve(path, **serving, open_browser=not no_browser, any_port=True)


def _is_newer(path: str, data: str | None) -> bool:
    """Return whether the model file exists and is newer than the data."""
    return os.path.exists(path) and (data is None or os.path.getmtime(path) >= os.path.getmtime(data))


def _fit(
    data: str | None, path: str, *, model: str, concentration: float | None, names: str | None, **options: Any
) -> None:
    """Fit a model to a file, or to the groceries, and write it."""
    import nbmf  # noqa: PLC0415
    from nbmf.experiments.study import item_names  # noqa: PLC0415
    from nbmf.storage.container import check_place  # noqa: PLC0415

    training = {name: options.pop(name) for name in ("components", "seed", "max_iter", "tol")}
    if model == "nbslim":
        check_slim(*training)
    else:
        check_concentration((model,), concentration)
    check_place(path)
    if data is None:
        found = nbmf.datasets.groceries().filter()
    else:
        found = read_data(data, time=None, **options)
        found = replace(found, item_names=item_names(Path(data), names, found))
    if model == "nbslim":
        make_slim(concentration).fit(found).save(path)
    else:
        fit_and_keep(make_model(model, concentration=concentration, **training), found, path)
    click.echo(f"{path}: written", err=True)


def fit_and_keep(estimator: Any, data: Interactions, path: str) -> None:
    """Fit a model and write it to a file, with the seconds up to each sweep in another file beside it."""
    from nbmf.inference.progress import Stopwatch  # noqa: PLC0415
    from nbmf.storage.container import check_place, replacing, seal  # noqa: PLC0415
    from nbmf.web.reload import history_of  # noqa: PLC0415

    seconds: list[float] = []
    watch = Stopwatch()
    estimator.fit(data, callbacks=[lambda _: seconds.append(round(watch.seconds, 4))])
    estimator.save(path)
    with replacing(check_place(history_of(path))) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"model": seal(path), "seconds": seconds}, stream)


def _check_extra() -> None:
    for module in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            raise BadInputError(f"serving needs {module}: pip install 'nbmf[server]'")


def _serve(
    path: str, host: str, port: int | None, *, open_browser: bool = False, any_port: bool = False, **allowed: Any
) -> None:
    _check_extra()
    access = _access(host, **allowed)
    with _listen(host, port, any_port) as door:
        with without("pandas"):  # scikit-learn imports it where it can, which takes half a second
            import sklearn.base  # noqa: F401, PLC0415
        from nbmf.web.app import build_app  # noqa: PLC0415
        from nbmf.web.process import make_server  # noqa: PLC0415
        from nbmf.web.reload import ServedModel  # noqa: PLC0415

        server = make_server(build_app(ServedModel(path), access=access))
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        address = _address(host, door)
        click.echo(f"{path}: serving at {address} (Ctrl-C to stop)", err=True)
        if open_browser:
            import webbrowser  # noqa: PLC0415

            threading.Timer(0.5, webbrowser.open, [address]).start()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it is done
        try:
            server.run(sockets=[door])
        except KeyboardInterrupt:
            end_interrupted("all requests were answered")


def _token(token_file: str | None) -> str | None:
    token = os.environ.get("NBMF_TOKEN")
    if token_file is not None:
        with open(token_file, encoding="utf-8") as stream:
            token = stream.readline().strip()
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or len(token) < 16):
        raise BadInputError("a token needs at least 16 letters or digits and no spaces; openssl rand -hex 32 makes one")
    return token


def _access(host: str, token_file: str | None, hosts: tuple[str, ...], origins: tuple[str, ...]) -> Access:
    """Return who may send requests; other machines only with a token and a host name."""
    from nbmf.web.middleware import LOOPBACK, Access  # noqa: PLC0415

    token = _token(token_file)
    if not _is_loopback(host) and token is None:
        raise BadInputError(
            f"--host {host} can be reached from other machines, so it needs a token: --token-file FILE, or NBMF_TOKEN"
        )
    if host in WILDCARDS and not hosts:
        raise BadInputError(f"--host {host} is no host name; give the name of this server with --allow-host NAME")
    return Access(LOOPBACK | {host, *map(str.lower, hosts)}, token, origins)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int | None, any_port: bool) -> socket:
    from nbmf.web.process import listen  # noqa: PLC0415

    wanted = PORT if port is None else port
    try:
        return listen(host, wanted)
    except OSError as error:
        if any_port and port is None:
            return listen(host, 0)
        reason = str(error.strerror).partition(" (while")[0]
        raise BadInputError(f"cannot listen on {host}:{wanted} ({reason}); --port 0 takes any free port") from error


def _address(host: str, door: socket) -> str:
    name = "localhost" if host in WILDCARDS else host
    return f"http://{f'[{name}]' if ':' in name else name}:{door.getsockname()[1]}/"


@contextmanager
def without(name: str) -> Iterator[None]:
    """Make imports of a module fail, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
