"""The HTTP API: its routes, its errors, and the files of the page."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from pydantic import StringConstraints
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Scope

from nbmf.web import schema
from nbmf.web.middleware import RETRY, Access, Guard, Limits, refusal
from nbmf.web.reload import ServedModel
from nbmf.web.views import NoAnswerError, Plain, Views

log = logging.getLogger("nbmf.web")

THREADS = 2  # for answers that take longer than a millisecond; more threads would only wait for each other
RELOAD_SECONDS = 0.5  # between checks of the model file
COMPRESSION = 4  # twice as fast as level 6, for 4 % more bytes of plotly.js
CHOICE = {"include_seen", "allow", "deny"}  # fields of a request that say what may be recommended

Number = Annotated[int, Query(ge=1, le=schema.MOST_ITEMS, description="Largest number of results")]
Level = Annotated[float | None, Query(gt=0, lt=1, description="Probability of the interval of each item")]
Text = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="Words to find; empty for the most frequent")]
User = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="User id")]
Item = Annotated[str, Query(max_length=schema.MOST_LETTERS, description="Item id")]
ItemIds = list[Annotated[str, StringConstraints(max_length=schema.MOST_LETTERS)]] | None
Allow = Annotated[ItemIds, Query(max_length=schema.MOST_QUERIED, description="The only items that may be recommended")]
Deny = Annotated[ItemIds, Query(max_length=schema.MOST_QUERIED, description="Items not to recommend")]

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Error, "description": description}
    for status, description in {
        400: "The body is not JSON",
        401: "The token is missing or wrong",
        404: "Unknown user or item, or this kind of model cannot answer",
        408: "The body did not arrive in time",
        413: "The body is too long",
        421: "Unknown host name",
        422: "A parameter or the body is out of bounds",
        503: "Too many requests, no answer in time, or the model is not ready yet",
    }.items()
}


def build_app(served: ServedModel, *, limits: Limits | None = None, access: Access | None = None) -> Guard:
    """Return the ASGI application that serves a model; by default, to this machine alone."""
    access, registry = access or Access(), CollectorRegistry()  # one per app, as a process may have several
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="nbmf-web")

    async def ask(question: Callable[[Views], Plain], *, at_once: bool = False) -> Response:
        """Answer in a worker thread, or here if that takes less time than handing the question over."""
        if not served.ready:
            raise HTTPException(503, "the model is still loading; try again in a second", RETRY)
        views = served.views  # read once: the model may be replaced before the answer is complete
        if at_once:
            return JSONResponse(question(views))
        return await asyncio.get_running_loop().run_in_executor(pool, lambda: JSONResponse(question(views)))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(_keep_current(served))
        yield
        watcher.cancel()
        pool.shutdown(wait=False, cancel_futures=True)

    # no pages of documentation, as they load scripts from other sites
    described: dict[str, Any] = {"title": "nbmf", "version": version("nbmf"), "responses": ERRORS}
    checks = [Depends(_refuse_unknown_parameters)]
    app = FastAPI(docs_url=None, redoc_url=None, lifespan=lifespan, dependencies=checks, **described)
    app.description = "Recommendations of one model, with reasons and intervals."
    _handle_errors(app)
    _add_answers(app, served, ask)
    _add_operations(app, served, registry)
    _add_page(app)
    if access.origins:
        app.add_middleware(CORSMiddleware, access.origins, ["GET", "POST"], ["authorization", "content-type"])
    return Guard(app, limits or Limits(), access, registry)


async def _keep_current(served: ServedModel) -> None:
    """Prepare the model, then reload it whenever its file changes."""
    try:
        await asyncio.to_thread(served.views.warm_up)
        served.ready = True
    except Exception:  # logged, and /ready stays at 503, so that a load balancer sends no requests here
        log.exception("%s: this model cannot answer", served.path)
        return
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        await asyncio.to_thread(served.reload)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal(422, "; ".join(map(_in_words, error.errors())) or "the request is invalid")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 404:
            return refusal(404, f"there is nothing at {path[:100]}; the API is described at /openapi.json")
        routes = [route for route in app.routes if getattr(route, "path", "") == path]
        if error.status_code == 405 and routes:  # Starlette names the methods of the first of them only
            methods = {method for route in routes for method in getattr(route, "methods", ())}
            methods |= {"HEAD"} if "GET" in methods else set()
            return refusal(405, error.detail, {"allow": ", ".join(sorted(methods))})
        return refusal(error.status_code, error.detail, error.headers)

    @app.exception_handler(NoAnswerError)
    @app.exception_handler(ValueError)
    async def unanswered(request: Request, error: Exception) -> Response:
        return refusal(404 if isinstance(error, NoAnswerError) else 422, str(error))


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse parameters in the address that a route of the API does not have, as fields of a body are refused."""
    route, path = request.scope["route"], request.url.path
    known = [parameter.alias for parameter in route.dependant.query_params]
    if path.startswith("/api/") and (unknown := sorted(set(request.query_params) - set(known))):
        takes = ", ".join(known) or "no parameters"
        raise HTTPException(422, f"{unknown[0][:100]}: no such parameter; {request.method} {path} takes {takes}")


def _in_words(part: Any) -> str:
    where = ".".join(str(step) for step in part["loc"] if step not in ("query", "body"))
    return f"{where or 'body'}: {part['msg'][:200]}"


def _add_answers(app: FastAPI, served: ServedModel, ask: Callable[..., Awaitable[Response]]) -> None:
    """Add the routes that a model answers."""

    @app.get("/api/model", response_model=schema.Whole, summary="Describe the model and what it can answer")
    async def model() -> Response:
        return await ask(lambda views: {**views.card(), "refused": served.refused}, at_once=True)

    @app.get("/api/recommend", response_model=schema.Recommendations, summary="Recommend items to a user")
    async def recommend(
        user: User,
        n: Number = 10,
        level: Level = None,
        include_seen: bool = False,
        allow: Allow = None,
        deny: Deny = None,
    ) -> Response:
        choice = {"include_seen": include_seen, "allow": allow, "deny": deny}
        at_once = served.views.is_fast and allow is None and deny is None
        return await ask(lambda views: views.recommend(user, n, level, **choice), at_once=at_once)

    @app.post("/api/recommend", response_model=schema.Recommendations, summary="Recommend items to a new user")
    async def recommend_for(basket: schema.Basket) -> Response:
        counts, choice = [(row.item, row.count) for row in basket.items], basket.model_dump(include=CHOICE)
        return await ask(lambda views: views.recommend_for(counts, basket.n, basket.level, basket.order, **choice))

    @app.post(
        "/api/recommend/batch", response_model=schema.BatchRecommendations, summary="Recommend items to several users"
    )
    async def recommend_to_all(batch: schema.Batch) -> Response:
        choice = batch.model_dump(include=CHOICE)
        return await ask(lambda views: views.recommend_to_all(batch.users, batch.n, batch.level, **choice))

    @app.get("/api/explain", response_model=schema.Reasons, summary="Explain a user's score of an item")
    async def explain(user: User, item: Item, n: Number = 10) -> Response:
        return await ask(lambda views: views.explain(user, item, n))

    @app.post("/api/explain", response_model=schema.Reasons, summary="Explain a new user's score of an item")
    async def explain_for(question: schema.Question) -> Response:
        counts = [(row.item, row.count) for row in question.items]
        return await ask(lambda views: views.explain_for(counts, question.item, question.n))

    @app.get("/api/exposures", response_model=schema.History, summary="List a user's items with their exposures")
    async def exposures(user: User, n: Number = schema.MOST_ITEMS) -> Response:
        return await ask(lambda views: views.history(user, n))

    @app.get("/api/item", response_model=schema.Whole, summary="Describe an item: its counts, users and factors")
    async def item(item: Item, n: Number = 10) -> Response:
        return await ask(lambda views: views.item(item, n))

    @app.get("/api/similar/items", response_model=schema.Items, summary="List the most similar items")
    async def similar_items(item: Item, n: Number = 10) -> Response:
        return await ask(lambda views: views.similar_items(item, n))

    @app.get("/api/similar/users", response_model=schema.Users, summary="List the most similar users")
    async def similar_users(user: User, n: Number = 10) -> Response:
        return await ask(lambda views: views.similar_users(user, n))

    @app.get("/api/search/items", response_model=schema.Items, summary="Search items by name")
    async def search_items(q: Text = "", n: Number = 10) -> Response:
        return await ask(lambda views: views.search_items(q, n))

    @app.get("/api/search/users", response_model=schema.Users, summary="Search users by id")
    async def search_users(q: Text = "", n: Number = 10) -> Response:
        return await ask(lambda views: views.search_users(q, n))

    @app.get("/api/search/factors", response_model=schema.Whole, summary="Search factors by the names of their items")
    async def search_factors(q: Text = "") -> Response:
        return await ask(lambda views: views.search_factors(q))

    @app.get("/api/factors", response_model=schema.Whole, summary="List the factors with their top items and users")
    async def factors() -> Response:
        return await ask(lambda views: views.factors)

    @app.get("/api/map", response_model=schema.Whole, summary="Place the items on a map")
    async def item_map() -> Response:
        return await ask(lambda views: views.map)

    @app.get("/api/counts", response_model=schema.Whole, summary="Count the training counts by size")
    async def counts() -> Response:
        return await ask(lambda views: views.count_sizes)

    @app.get("/api/check", response_model=schema.Whole, summary="Say what of its data the model does not fit")
    async def check() -> Response:
        return await ask(lambda views: views.check)

    @app.get("/api/fit", response_model=schema.Whole, summary="Return the objective after each sweep of the fit")
    async def fit() -> Response:
        return await ask(lambda views: views.fit())


def _add_operations(app: FastAPI, served: ServedModel, registry: CollectorRegistry) -> None:
    """Add the routes for those who operate the server."""

    class ModelMetrics:
        def collect(self) -> Iterator[Metric]:
            yield CounterMetricFamily("nbmf_models_loaded", "Model files loaded.", served.n_loaded)
            yield CounterMetricFamily("nbmf_models_refused", "Model files refused.", served.n_refused)
            yield GaugeMetricFamily("nbmf_ready", "Whether the model is ready.", served.ready)

    registry.register(ModelMetrics())

    @app.get("/health", response_model=dict[str, str], summary="Tell whether the server is up")
    async def health() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/ready", response_model=dict[str, str], summary="Tell whether the server is ready for requests")
    async def ready() -> Response:
        return JSONResponse({"status": "ready"}) if served.ready else refusal(503, "the model is still loading")

    @app.get("/metrics", response_class=Response, summary="Return metrics for Prometheus")
    async def prometheus(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    describe = app.openapi
    app.openapi = lambda: _with_examples(describe(), served.views.example)  # type: ignore[method-assign]


def _with_examples(description: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """Add ids of the present model to the OpenAPI description, so that every example works."""
    basket = [{"item": example["item"], "count": 3}]
    shapes = description["components"]["schemas"]
    shapes["Basket"]["example"] = {"items": basket, "n": 5, "level": 0.9}
    shapes["Question"]["example"] = {"items": basket, "item": example["item"], "n": 5}
    shapes["Batch"]["example"] = {"users": [example["user"]], "n": 5, "deny": [example["item"]]}
    for route in description["paths"].values():
        for operation in route.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in example:
                    parameter["example"] = str(example[parameter["name"]])
    return description


class _PageFiles(StaticFiles):
    """Files of the page, which browsers may keep if they ask each time whether a file has changed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if os.sep in path:
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "no-cache"
        return response


def _add_page(app: FastAPI) -> None:
    files, plotly = _PageFiles(directory=Path(__file__).with_name("static")), find_spec("plotly")
    if plotly is not None and plotly.origin is not None:
        files.all_directories.append(Path(plotly.origin).with_name("package_data"))  # for plotly.min.js
    app.mount("/static", GZipMiddleware(files, compresslevel=COMPRESSION))

    @app.get("/", include_in_schema=False)
    @app.get("/favicon.ico", include_in_schema=False)
    async def page(request: Request) -> Response:
        name = "index.html" if request.url.path == "/" else "favicon.svg"
        return await files.get_response(name, request.scope)
