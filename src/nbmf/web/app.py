"""The routes: what a client may ask over HTTP, and the files of the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from importlib import resources
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from nbmf.web import schema
from nbmf.web.metrics import CONTENT_TYPE, Metrics
from nbmf.web.middleware import Access, Guard, Limits
from nbmf.web.reload import Shelf
from nbmf.web.views import NoAnswerError, Plain, UnknownIdError, Views

log = logging.getLogger("nbmf.web")

THREADS = 2  # that answer what takes longer than a millisecond; more would only wait for each other
LOOK_SECONDS = 0.5  # between looks at the model file

Number = Annotated[int, Query(ge=1, le=schema.MOST_ITEMS, description="How many, at most")]
Level = Annotated[float | None, Query(gt=0, lt=1, description="Of the interval that comes with each item")]
Text = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="Words; none: those taken most")]
User = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="Id of a user")]
Item = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="Id of an item")]
Ask = Callable[[Callable[[], Plain]], Awaitable[Response]]

FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Fault, "description": description}
    for status, description in {
        400: "A body that is no JSON",
        401: "No token, or a wrong one",
        404: "No such user or item, or no such answer from this kind of model",
        408: "The body did not arrive in time",
        413: "The body is too long",
        421: "The server may not be called by this name",
        422: "A parameter or body out of its bounds",
        503: "Too many requests, no answer in time, or not ready yet",
    }.items()
}


@dataclass(frozen=True, eq=False)
class File:
    """A file of the page."""

    content: bytes
    media_type: str

    @cached_property
    def tag(self) -> str:
        """What tells this content from another."""
        return f'"{sha256(self.content).hexdigest()[:16]}"'

    @cached_property
    def packed(self) -> bytes:
        """The content, compressed."""
        return gzip.compress(self.content, 6)

    def answer(self, request: Request) -> Response:
        """Return what the browser needs of it: all, or that nothing changed."""
        headers = {"etag": self.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


def page_files() -> dict[str, File]:
    """Return the files of the page by their names, plotly.js among them if it is installed."""
    found = {}
    for file in (resources.files("nbmf") / "web" / "static").iterdir():
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        found[file.name] = File(file.read_bytes(), media_type)
    with suppress(ModuleNotFoundError, FileNotFoundError):
        script = resources.files("plotly") / "package_data" / "plotly.min.js"
        found["plotly.min.js"] = File(script.read_bytes(), "text/javascript")
    return found


def encode(value: Plain) -> bytes:
    """Return plain data as JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def answer(value: Plain) -> Response:
    """Return plain data as an answer."""
    return Response(encode(value), media_type="application/json")


def fault(status: int, sentence: str) -> Response:
    """Return why there is no answer."""
    return Response(encode({"error": sentence}), status, media_type="application/json")


def build_app(shelf: Shelf, *, limits: Limits | None = None, access: Access | None = None) -> Guard:
    """Return the ASGI application that serves the model of a shelf, with the guard around it."""
    metrics, access = Metrics(), access or Access()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="nbmf-web")

    async def ask(question: Callable[[], Plain]) -> Response:
        """Answer in another thread, so that the next request can be read meanwhile."""
        body = await asyncio.get_running_loop().run_in_executor(pool, lambda: encode(question()))
        return Response(body, media_type="application/json")

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_watch(shelf))
        yield
        watcher.cancel()
        pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(
        title="nbmf",
        version=version("nbmf"),
        description="Recommendations of one model, why, and how sure.",
        docs_url=None,  # they fetch scripts from other sites
        redoc_url=None,
        lifespan=life,
        responses=FAULTS,
    )
    _handle_faults(app)
    _add_questions(app, shelf, ask)
    _add_operations(app, shelf, metrics)
    _add_page(app, pool)
    guarded: Any = app
    if access.origins:
        headers = ["authorization", "content-type"]
        guarded = CORSMiddleware(
            app, allow_origins=access.origins, allow_methods=["GET", "POST"], allow_headers=headers
        )
    return Guard(guarded, limits or Limits(), access, metrics)


async def _watch(shelf: Shelf) -> None:
    """Make the model ready, then look again and again whether there is a new one."""
    try:
        await asyncio.to_thread(shelf.warm)
    except Exception:  # told, and never ready: whoever sends requests by /ready sends none
        log.exception("%s: this model cannot answer", shelf.path)
        return
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(shelf.look)


def _handle_faults(app: FastAPI) -> None:
    async def invalid(request: Request, error: Exception) -> Response:
        parts = error.errors() if isinstance(error, RequestValidationError) else ()
        return fault(422, "; ".join(map(_in_words, parts)) or "the request is not as it should be")

    async def http(request: Request, error: Exception) -> Response:
        known = error if isinstance(error, HTTPException) else HTTPException(500)
        told = fault(known.status_code, str(known.detail))
        told.headers.update(known.headers or {})
        if known.status_code == 405:  # what all routes of this path take, not only the first
            told.headers["allow"] = ", ".join(sorted(_methods(app, request.url.path)))
        return told

    async def unknown(request: Request, error: Exception) -> Response:
        return fault(404, str(error))

    async def wrong(request: Request, error: Exception) -> Response:
        return fault(422, str(error))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(UnknownIdError, unknown)
    app.add_exception_handler(NoAnswerError, unknown)
    app.add_exception_handler(ValueError, wrong)


def _methods(app: FastAPI, path: str) -> set[str]:
    return {
        method for route in app.routes if getattr(route, "path", "") == path for method in getattr(route, "methods", ())
    }


def _in_words(part: Any) -> str:
    where = ".".join(str(step) for step in part["loc"] if step not in ("query", "body"))
    return f"{where or 'body'}: {part['msg'][:200]}"


def _add_questions(app: FastAPI, shelf: Shelf, ask: Ask) -> None:
    """Add what a model is asked. Each handler takes the shelf's views once: an answer is of one model."""

    def views() -> Views:
        if not shelf.ready:
            raise HTTPException(503, "the model is being made ready; come back in a second", {"retry-after": "1"})
        return shelf.views

    @app.get("/api/model", response_model=schema.Whole, summary="What model this is, and what it can be asked")
    async def model() -> Response:
        return answer({**views().card(), "refused": shelf.refused})

    @app.get("/api/recommend", response_model=schema.Recommendations, summary="The best items for a user")
    async def recommend(user: User, n: Number = 10, level: Level = None, include_seen: bool = False) -> Response:
        found = views()
        if found.quick:
            return answer(found.recommend(user, n, level, include_seen))
        return await ask(partial(found.recommend, user, n, level, include_seen))

    @app.post("/api/recommend", response_model=schema.Recommendations, summary="The best items for somebody new")
    async def recommend_for(basket: schema.Basket) -> Response:
        return await ask(partial(views().recommend_for, _added(basket.items), basket.n, basket.level))

    @app.get("/api/explain", response_model=schema.Reasons, summary="Why an item is recommended to a user")
    async def explain(user: User, item: Item, n: Number = 10) -> Response:
        return await ask(partial(views().explain, user, item, n))

    @app.post("/api/explain", response_model=schema.Reasons, summary="Why an item is recommended to somebody new")
    async def explain_for(question: schema.Question) -> Response:
        return await ask(partial(views().explain_for, _added(question.items), question.item, question.n))

    @app.get("/api/exposures", response_model=schema.Took, summary="What a user took, and how exposed the user was")
    async def exposures(user: User, n: Number = schema.MOST_ITEMS) -> Response:
        return await ask(partial(views().took, user, n))

    @app.get("/api/similar/items", response_model=schema.AlikeItems, summary="Items like another")
    async def similar_items(item: Item, n: Number = 10) -> Response:
        return await ask(partial(views().similar_items, item, n))

    @app.get("/api/similar/users", response_model=schema.AlikeUsers, summary="Users like another")
    async def similar_users(user: User, n: Number = 10) -> Response:
        return await ask(partial(views().similar_users, user, n))

    @app.get("/api/search/items", response_model=schema.FoundItems, summary="Items by their names")
    async def search_items(q: Text = "", n: Number = 10) -> Response:
        return await ask(partial(views().search_items, q, n))

    @app.get("/api/search/users", response_model=schema.FoundUsers, summary="Users by their ids")
    async def search_users(q: Text = "", n: Number = 10) -> Response:
        return await ask(partial(views().search_users, q, n))

    @app.get("/api/factors", response_model=schema.Whole, summary="The factors, with what and who is most theirs")
    async def factors() -> Response:
        found = views()
        return await ask(lambda: found.factors)

    @app.get("/api/map", response_model=schema.Whole, summary="Every item on a plane")
    async def catalogue() -> Response:
        found = views()
        return await ask(lambda: found.map)

    @app.get("/api/fit", response_model=schema.Whole, summary="How the fit went")
    async def fit() -> Response:
        return await ask(views().fit)


def _added(items: Sequence[schema.Taken]) -> dict[Any, float]:
    counts: dict[Any, float] = {}
    for taken in items:
        counts[taken.item] = counts.get(taken.item, 0.0) + taken.count
    return counts


def _add_operations(app: FastAPI, shelf: Shelf, metrics: Metrics) -> None:
    """Add what those who run the server ask."""

    @app.get("/health", response_model=schema.Health, summary="Whether the server is alive")
    async def health() -> Response:
        return answer({"status": "alive"})

    @app.get("/ready", response_model=schema.Health, summary="Whether requests should be sent here")
    async def ready() -> Response:
        return answer({"status": "ready"}) if shelf.ready else fault(503, "the model is being made ready")

    @app.get("/metrics", response_class=Response, summary="Counters and times for Prometheus")
    async def counted() -> Response:
        others = {
            "nbmf_models_loaded_total": shelf.n_loaded,
            "nbmf_models_refused_total": shelf.n_refused,
            "nbmf_ready": int(shelf.ready),
        }
        return Response(metrics.text(others), headers={"content-type": CONTENT_TYPE})

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
        return _with_examples(app.openapi_schema, shelf.views.example)

    app.openapi = described  # type: ignore[method-assign]


def _with_examples(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """Put ids of the present model where users and items are asked for, so that every example can be tried."""
    basket = [{"item": example["item"], "count": 3}]
    schema["components"]["schemas"]["Basket"]["example"] = {"items": basket, "n": 5, "level": 0.9}
    schema["components"]["schemas"]["Question"]["example"] = {"items": basket, "item": example["item"], "n": 5}
    for route in schema["paths"].values():
        for operation in route.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in example:
                    parameter["example"] = str(example[parameter["name"]])
    return schema


def _add_page(app: FastAPI, pool: ThreadPoolExecutor) -> None:
    """Add the page and its files."""
    files = page_files()

    async def hand_out(name: str, request: Request) -> Response:
        if name not in files:
            return fault(404, f"there is no file {name[:100]!r}")
        return await asyncio.get_running_loop().run_in_executor(pool, files[name].answer, request)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await hand_out("index.html", request)

    @app.get("/favicon.ico", include_in_schema=False)
    async def favicon(request: Request) -> Response:
        return await hand_out("favicon.svg", request)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        return await hand_out(name, request)
