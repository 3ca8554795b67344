"""`nbmf serve` and `nbmf explore`: a model behind an HTTP API, and on a page in the browser."""

import importlib.util
import ipaddress
import json
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import nbmf
from nbmf.cli import options
from nbmf.cli.options import Values, file_option, grouped, number_option, option
from nbmf.cli.terminal import BadInputError, end_interrupted, in_the_shell, raise_lost, sentences
from nbmf.data import how_to_install
from nbmf.inference.progress import Stopwatch

if TYPE_CHECKING:
    from socket import socket

    from nbmf.web.middleware import Access

PORT = 8000
WILDCARDS = ("0.0.0.0", "::", "")

server_group = grouped(
    "server",
    option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen; if not local, a token is needed."),
    number_option("--port", type=click.IntRange(0, 65535), show_default=str(PORT), help="Port; 0 for any free one."),
    file_option(
        "--token-file",
        show_default="the variable NBMF_TOKEN, else none",
        help="File whose first line is the token that requests must carry as Authorization: Bearer TOKEN.",
    ),
    option(
        "--allow-host",
        metavar="NAME",
        multiple=True,
        show_default="localhost and ADDRESS",
        help="Another host name of this server; * for any, with a token. May be repeated.",
    ),
    option(
        "--allow-origin",
        metavar="URL",
        multiple=True,
        show_default="none",
        help="Another site whose pages may call the API, such as https://shop.example. May be repeated.",
    ),
    option(
        "--access-log",
        type=click.Choice(["plain", "json"]),
        show_default="none",
        help="Log every request to standard error: time, client, method, path, status, duration and size.",
    ),
    option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        help="Least severity of other messages.",
    ),
)


@click.command(short_help="Serve a model over HTTP, with a page to explore it.")
@click.argument("model", type=click.Path())
@server_group
@sentences()
def serve(model: str, server: Values) -> None:
    """Serve MODEL, a file that `nbmf fit` wrote, over HTTP until Ctrl-C or SIGTERM.

    The page is at /, the description of the API at /openapi.json. When a new file takes the place of MODEL, the server
    loads it without interruption; if the new file is damaged, the server keeps the old model.
    """
    _serve(model, **server)


@click.command(short_help="Fit a model if needed, and explore it in the browser.")
@file_option("-o", "--output", show_default="DATA.nbmf in this folder", help="Where to write the fitted model.")
@option("--refit", is_flag=True, show_default="only if the data is newer", help="Fit the model again.")
@file_option(
    "--names", show_default="items.parquet beside DATA, if any", help="Parquet file with columns item and name."
)
@option("--model", type=click.Choice(options.MODELS), default="nbmf", help="Model to fit.")
@options.fit_group
@grouped("source", click.argument("data", required=False, type=click.Path()), options.data_options)
@option("--no-browser", is_flag=True, show_default="open it", help="Only print the address.")
@server_group
@sentences()
def explore(source: Values, output: str | None, refit: bool, no_browser: bool, server: Values, **fitting: Any) -> None:
    """Explore DATA in the browser: recommendations for every user, their reasons, and a map of the items.

    DATA is a file of users, items and counts (csv, tsv, parquet) or a model file; by default, a year of groceries. The
    fitted model is written to a file, so that the page opens at once the next time.
    """
    from nbmf.storage.container import seal  # noqa: PLC0415

    data = source["data"]
    options.check_not_piped(data)
    _check_extra()
    if data is not None and seal(data) is not None:
        path = data
    else:
        options.check_settings([fitting["model"]], fitting["settings"])
        options.check_absent(fitting["model"], *("seed",) * (fitting["model"] == "nbslim"))
        path = output or f"{os.path.basename(data or 'groceries').split('.')[0]}.nbmf"
        if data is not None and os.path.realpath(path) == os.path.realpath(data):
            raise click.UsageError(f"-o {path} would overwrite DATA; name another file")
        is_newer = os.path.exists(path) and (data is None or os.path.getmtime(path) >= os.path.getmtime(data))
        if is_newer and not refit:
            _check_kept(path, **fitting)
            click.echo(f"{path} is newer than the data and not fitted again; --refit fits it", err=True)
        else:
            _fit(source, path, **fitting)
    _serve(path, **server, open_browser=not no_browser, any_port=True)


def _check_kept(path: str, names: str | None, model: str, settings: Values) -> None:
    """Refuse to show a model that was fitted with other settings than those typed."""
    typed = {key: value for key, value in settings.items() if options.is_typed(key)}
    if not typed and not options.is_typed("model"):
        return
    fixed = {key for own in options.FIXED.values() for key in own}  # such as what tells binary from poisson
    keys = ("model", *sorted(fixed), *options.settings_of(model, typed))
    models = nbmf.load(path), options.make_model(model, settings)
    kept, wanted = ({"model": type(each).__name__, **each.get_params()} for each in models)
    for key in keys:
        if kept.get(key) != wanted.get(key):
            remedy = "--refit fits it again, -o FILE fits another, and without these options it is shown as it is"
            raise BadInputError(f"{path} was fitted with {key} {kept.get(key)}, not {wanted.get(key)}; {remedy}")


def _fit(source: Values, path: str, names: str | None, model: str, settings: Values) -> None:
    from nbmf.evaluation.experiments.study import item_names  # noqa: PLC0415
    from nbmf.storage.container import check_writable  # noqa: PLC0415

    check_writable(path)
    if source["data"] is None:
        found = nbmf.datasets.groceries().filter()
    else:
        found = options.read_data(**source)
        found = replace(found, item_names=item_names(Path(source["data"]), names, found))
    estimator = options.make_model(model, settings)
    if model == "nbslim":
        estimator.fit(found).save(path)
    else:
        fit_and_keep(estimator, found, path)
    click.echo(f"{path}: written", err=True)


def fit_and_keep(estimator: Any, data: "nbmf.Interactions", path: str) -> Any:
    """Fit a model, write it and, to a second file beside it, the seconds up to each sweep; return the model.

    After Ctrl-C nothing is written: `explore` would show the unfinished model from then on.
    """
    from nbmf.storage.container import check_place, replacing, seal  # noqa: PLC0415
    from nbmf.web.reload import history_of  # noqa: PLC0415

    seconds: list[float] = []
    watch = Stopwatch()
    watching = [lambda _: seconds.append(round(watch.seconds, 4))]
    options.fit_whole(estimator, data, f"{path} was not written", callbacks=watching)
    estimator.save(path)
    with replacing(check_place(history_of(path))) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        json.dump({"model": seal(path), "seconds": seconds}, stream)
    return estimator


def _check_extra() -> None:
    for module in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            raise BadInputError(f"serving needs {module}; {how_to_install('server')}")


def _serve(
    path: str,
    host: str,
    port: int | None,
    *,
    access_log: str | None,
    log_level: str,
    open_browser: bool = False,
    any_port: bool = False,
    **allowed: Any,
) -> None:
    _check_extra()
    access = _access(host, **allowed)
    with _listen(host, port, any_port) as door:
        import_sklearn()
        from nbmf.web.app import build_app  # noqa: PLC0415
        from nbmf.web.process import make_server  # noqa: PLC0415
        from nbmf.web.reload import ServedModel  # noqa: PLC0415

        _log_requests(access_log, log_level)
        level = "debug" if log_level == "debug" else "warning"  # at info, uvicorn only repeats what is said below
        server = make_server(build_app(ServedModel(path), access=access), level)
        raise_lost("nothing was served")
        name = "localhost" if host in WILDCARDS else host
        address = f"http://{f'[{name}]' if ':' in name else name}:{door.getsockname()[1]}/"
        _tell(f"{path}: serving at {address} (Ctrl-C to stop)", access_log)
        if open_browser:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again when it is done
        try:
            server.run(sockets=[door])
        except KeyboardInterrupt:
            end_interrupted("all requests were answered")


def _tell(text: str, access_log: str | None, level: str = "INFO") -> None:
    """Write a line to standard error whatever the log level, as an object if the log is of objects."""
    record = logging.makeLogRecord({"msg": text, "levelname": level})
    click.echo(_Lines(True).format(record) if access_log == "json" else text, err=True)


def _log_requests(access_log: str | None, log_level: str) -> None:
    """Write messages to standard error and, if wanted, a line for every request."""
    handler = logging.StreamHandler()
    if access_log is not None:
        handler.setFormatter(_Lines(access_log == "json"))
    if access_log == "json":  # else `sentences` writes them as notes
        warnings.showwarning = lambda message, *_, **__: _tell(in_the_shell(str(message)), access_log, "WARNING")
    logging.basicConfig(level=log_level.upper(), format="%(message)s", handlers=[handler])
    logging.getLogger("nbmf.access").setLevel(logging.CRITICAL if access_log is None else logging.INFO)


class _Lines(logging.Formatter):
    """Log lines with the time in UTC: as text, or as JSON objects."""

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

    def __init__(self, as_json: bool) -> None:
        super().__init__("%(message)s")
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        from nbmf.web.middleware import LOGGED  # noqa: PLC0415

        when, text = self.formatTime(record), super().format(record)
        if not self.as_json:
            return f"{when} {text}"
        if record.name == "nbmf.access" and isinstance(record.args, tuple):
            return json.dumps({"time": when, **dict(zip(LOGGED, record.args, strict=True))})
        return json.dumps({"time": when, "level": record.levelname.lower(), "message": text})


def _access(host: str, token_file: str | None, allow_host: tuple[str, ...], allow_origin: tuple[str, ...]) -> "Access":
    """Return who may send requests; other machines only with a token and a host name."""
    from nbmf.web.middleware import ANY, LOOPBACK, Access  # noqa: PLC0415

    names = {name.lower().strip("[]") for name in allow_host}
    for name in names - {ANY}:
        if not re.fullmatch(r"[\w.-]+", name) and not _is_address(name):
            raise BadInputError(f"--allow-host {name} is no host name; give it without scheme and port, or * for any")
    token, place = os.environ.get("NBMF_TOKEN"), "the variable NBMF_TOKEN"
    if token_file is not None:
        place = f"--token-file {token_file}"
        try:
            token = Path(token_file).read_text("ascii", "replace").partition("\n")[0].strip()
        except OSError as error:
            raise BadInputError(
                f"{place} cannot be read ({error.strerror}); openssl rand -hex 32 makes a token"
            ) from error
    if token is not None and not re.fullmatch("[!-~]{16,}", token):
        wrong = f"is {len(token)} characters long" if len(token) < 16 else "has spaces or other characters"
        needed = "a token needs at least 16 letters or digits and no spaces; openssl rand -hex 32 makes one"
        raise BadInputError(f"{place} {wrong if token else 'is empty'}: {needed}")
    if not _is_loopback(host) and token is None:
        raise BadInputError(
            f"--host {host} can be reached from other machines, so it needs a token: --token-file FILE, or NBMF_TOKEN"
        )
    if ANY in names and token is None:
        raise BadInputError(
            "--allow-host * lets other sites reach this server under names of theirs, so it needs a token: "
            "--token-file FILE, or NBMF_TOKEN"
        )
    if host in WILDCARDS and not allow_host:
        raise BadInputError(f"--host {host} is no host name; give the name of this server with --allow-host NAME")
    return Access(LOOPBACK | {host} | names, token, allow_origin)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if _is_address(host) else host == "localhost"


def _listen(host: str, port: int | None, any_port: bool) -> "socket":
    from nbmf.web.process import listen  # noqa: PLC0415

    wanted = PORT if port is None else port
    try:
        return listen(host, wanted)
    except OSError as error:
        if any_port and port is None:
            return listen(host, 0)
        reason = str(error.strerror).partition(" (while")[0]
        raise BadInputError(f"cannot listen on {host}:{wanted} ({reason}); --port 0 takes any free port") from error


def import_sklearn() -> None:
    """Import scikit-learn without pandas, which it imports where it can and which takes half a second."""
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    import sklearn.base  # noqa: F401, PLC0415

    if sys.modules["pandas"] is None:
        del sys.modules["pandas"]
