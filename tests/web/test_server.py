"""The server as clients see it: answers, refusals, limits, and the files of the page."""

import asyncio
import gzip
import http.client
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import plotly
import pytest
from prometheus_client.parser import text_string_to_metric_families

import nbmf.web.app
import nbmf.web.views
from nbmf.web.app import build_app
from nbmf.web.middleware import OPEN, Access, Limits
from nbmf.web.reload import ServedModel
from serving import BASKET, TOKEN, half_sent, query, serving, status_of, wait_for, write_model

ASKED = {  # one request per route
    "/api/model": {},
    "/api/recommend": {"user": "ann/7"},
    "/api/explain": {"user": "ann/7", "item": 104},
    "/api/exposures": {"user": "ann/7"},
    "/api/item": {"item": 104},
    "/api/similar/items": {"item": 104},
    "/api/similar/users": {"user": "ann/7"},
    "/api/search/items": {"q": "blue"},
    "/api/search/users": {"q": "bob"},
    "/api/search/factors": {"q": "blue"},
    "/api/factors": {},
    "/api/map": {},
    "/api/counts": {},
    "/api/fit": {},
    "/api/check": {},
    "/health": {},
    "/ready": {},
    "/metrics": {},
    "/openapi.json": {},
    "/": {},
    "/favicon.ico": {},
    "/static/app.js": {},
}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model.nbmf"
    write_model(path)
    return path


@pytest.fixture(scope="module")
def client(model_file):
    with serving(model_file) as client:
        yield client


@pytest.fixture(scope="module")
def views(model_file):
    return ServedModel(str(model_file)).views


# ---- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_the_views(client, views):
    assert client.get("/api/recommend", user="ann/7", n=4, level=0.9) == views.recommend("ann/7", 4, 0.9)
    assert client.get("/api/recommend", user="bob 4 é", include_seen=True) == views.recommend(
        "bob 4 é", 10, include_seen=True
    )
    assert client.get("/api/explain", user="ann/7", item=104, n=3) == views.explain("ann/7", "104", 3)
    assert client.get("/api/exposures", user="ann/7") == views.history("ann/7", 1000)
    assert client.get("/api/similar/items", item=104) == views.similar_items("104", 10)
    assert client.get("/api/similar/users", user="ann/7") == views.similar_users("ann/7", 10)
    assert client.get("/api/search/items", q="blue so", n=2) == views.search_items("blue so", 2)
    assert client.get("/api/search/users", q="bob") == views.search_users("bob", 10)
    assert client.get("/api/factors") == views.factors
    assert client.get("/api/map") == views.map
    assert client.get("/api/fit") == views.fit()
    assert client.get("/api/check") == views.check
    assert client.get("/api/counts") == views.count_sizes
    assert client.get("/api/item", item=104, n=2) == views.item("104", 2)
    assert client.get("/api/search/factors", q="blue") == views.search_factors("blue")
    assert client.get("/api/model") == {**views.card(), "refused": None}
    counts = [(104, 3.0), (107, 1.0)]
    assert client.ask("/api/recommend", BASKET)[:2] == (200, views.recommend_for(counts, 4, 0.9))
    by_lift = views.recommend_for(counts, 4, 0.9, "lift")
    assert client.ask("/api/recommend", {**BASKET, "order": "lift"})[:2] == (200, by_lift)
    question = {"items": [*BASKET["items"], {"item": "104", "count": 2}], "item": 103}
    assert client.ask("/api/explain", question)[:2] == (200, views.explain_for([(104, 5.0), (107, 1.0)], 103, 10))


def test_a_batch_of_users_gets_what_each_would_get_alone(client):
    users = ["ann/7", "bob 4 é", "ann/7"]
    status, answer, _ = client.ask("/api/recommend/batch", {"users": users, "n": 3, "level": 0.9, "deny": [104]})
    assert status == 200
    for user, found in zip(users, answer["users"], strict=True):
        alone = client.get("/api/recommend", user=user, n=3, level=0.9, deny=104)
        assert [row["item"] for row in found["items"]] == [row["item"] for row in alone["items"]]
        assert found["user"] == user
        assert found["items"][0]["score"] == pytest.approx(alone["items"][0]["score"], rel=1e-6)
        assert found["items"][0]["interval"] == alone["items"][0]["interval"]
    assert client.ask("/api/recommend/batch", {"users": []})[1] == {"model": answer["model"], "users": []}


def test_what_may_be_recommended_can_be_chosen(client, model_file):
    model = nbmf.load(model_file)
    best = model.recommend("ann/7", n=4).items[0].tolist()
    asked = f"/api/recommend?{query(user='ann/7', n=30)}"

    def items(answer):
        assert answer[0] == 200, answer[1]
        return [row["item"] for row in answer[1]["items"]]

    assert items(client.ask(f"{asked}&allow={best[2]}&allow={best[0]}")) == [best[0], best[2]]
    assert items(client.ask(f"{asked}&deny={best[0]}&deny={best[2]}"))[:2] == [best[1], best[3]]
    assert items(client.ask(f"{asked}&allow={best[0]}&deny={best[0]}")) == []
    seen = {row["item"] for row in client.get("/api/exposures", user="ann/7")["items"]}
    assert items(client.ask(f"{asked}&allow={min(seen)}")) == []
    assert items(client.ask(f"{asked}&allow={min(seen)}&include_seen=true")) == [min(seen)]
    best = items(client.ask("/api/recommend", {**BASKET, "n": 30}))
    assert items(client.ask("/api/recommend", {**BASKET, "allow": [best[3], str(best[1])]})) == [best[1], best[3]]
    assert items(client.ask("/api/recommend", {**BASKET, "deny": best[:2], "n": 1})) == [best[2]]
    assert items(client.ask("/api/recommend", {**BASKET, "allow": []})) == []
    assert items(client.ask("/api/recommend", {**BASKET, "allow": [104], "include_seen": True})) == [104]


@pytest.mark.parametrize("path", ASKED)
def test_head_is_get_without_the_body(client, path):
    url = f"{path}?{query(**ASKED[path])}"
    status, _, headers = client.ask(url, accept_encoding="identity")
    head, nothing, same = client.ask(url, method="HEAD", accept_encoding="identity", accept="text/html")
    assert (head, nothing) == (status, b"")
    assert same["content-type"].split(";")[0] == headers["content-type"].split(";")[0]
    assert same["content-length"] == headers["content-length"] or path == "/metrics"  # which counts this request


def test_every_route_has_a_question_here(model_file):
    app = build_app(ServedModel(str(model_file))).app
    posted_only = {"/api/recommend/batch"}
    assert {route.path.replace("/static", "/static/app.js") for route in app.routes} == set(ASKED) | posted_only


def test_examples_of_the_description_can_be_tried(client):
    description = client.get("/openapi.json")
    n_tried = 0
    for path, route in description["paths"].items():
        for method, operation in route.items():
            given = {p["name"]: p["example"] for p in operation.get("parameters", ()) if "example" in p}
            body = None
            if method == "post":
                shape = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                body = description["components"]["schemas"][shape]["example"]
            assert client.ask(f"{path}?{query(**given)}", body)[0] == 200, path
            n_tried += bool(given or body)
    assert n_tried == 9


def test_schemathesis_finds_no_fault(client, tmp_path):
    typed = ["run", f"http://127.0.0.1:{client.port}/openapi.json", "--max-examples", "8", "--generation-deterministic"]
    command = [sys.executable, "-m", "schemathesis.cli", *typed, "--no-color"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
    assert int(re.search(r"(\d+) generated", found.stdout)[1]) > 100


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/api/recommend?user=nobody", None, 404, "user 'nobody' is not among the 40 users"),
        ("/api/explain?user=ann/7&item=soup", None, 404, "item 'soup' is not among the 30 items"),
        ("/api/recommend", {"items": [{"item": 1}]}, 404, "item '1' is not among the 30 items"),
        ("/api/recommend", None, 422, "user: Field required"),
        ("/api/recommend?user=ann/7&n=0", None, 422, "n: Input should be greater than or equal to 1"),
        ("/api/recommend?user=ann/7&n=1001", None, 422, "n: Input should be less than or equal to 1000"),
        ("/api/recommend?user=ann/7&level=1", None, 422, "level: Input should be less than 1"),
        (f"/api/recommend?user={'a' * 501}", None, 422, "user: String should have at most 500 characters"),
        ("/api/recommend", {"items": [{"item": 104, "count": -1}]}, 422, "items.0.count: Input should be greater than"),
        ("/api/recommend", {"items": [{"item": 104, "count": 1e-300}]}, 422, "count 1e-300 is out of the range"),
        ("/api/recommend", {"items": [{"item": 104}] * 1001}, 422, "items: List should have at most 1000 items"),
        ("/api/recommend", {"items": [], "m": 1}, 422, "m: Extra inputs are not permitted"),
        ("/api/recommend?user=ann/7&m=2", None, 422, "m: no such parameter; GET /api/recommend takes user, n, level, "),
        ("/api/recommend?n=5", {"items": []}, 422, "n: no such parameter; POST /api/recommend takes no parameters"),
        ("/api/factors?q=blue", None, 422, "q: no such parameter; GET /api/factors takes no parameters"),
        ("/api/recommend", b"{", 422, "JSON"),
        ("/api/recommend?user=ann/7&allow=soup", None, 404, "item 'soup' is not among the 30 items"),
        ("/api/recommend?user=ann/7" + "&deny=104" * 51, None, 422, "deny: List should have at most 50 items"),
        ("/api/recommend", {"items": [], "deny": [1]}, 404, "item '1' is not among the 30 items"),
        ("/api/recommend", {"items": [], "allow": [104] * 1001}, 422, "allow: List should have at most 1000 items"),
        ("/api/recommend/batch", {"users": ["ann/7", "nobody"]}, 404, "user 'nobody' is not among the 40 users"),
        ("/api/recommend/batch", {"users": ["ann/7"] * 1001}, 422, "users: List should have at most 1000 items"),
        ("/api/recommend/batch", {"users": [], "n": 101}, 422, "n: Input should be less than or equal to 100"),
        ("/docs", None, 404, "the API is described at /openapi.json"),
        ("/api/nothing", None, 404, "there is nothing at /api/nothing"),
        ("/static/secrets.txt", None, 404, "there is nothing at /static/secrets.txt"),
        ("/static/..%2fserver.py", None, 404, ""),
    ],
)
def test_what_cannot_be_answered_is_told(client, path, body, status, sentence):
    found, answer, headers = client.ask(path, body, content_type="application/json")
    assert found == status
    assert sentence in answer["error"]
    assert headers["x-content-type-options"] == "nosniff"


def test_methods_that_a_route_does_not_take(client):
    status, _, headers = client.ask("/api/recommend", method="DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD, POST")
    status, _, headers = client.ask("/static/app.js", method="DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("chunked", [False, True])
def test_long_bodies_are_refused(client, chunked):
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    body = iter([b"x" * 60_000] * 5) if chunked else b"x" * 300_000
    try:
        connection.request("POST", "/api/recommend", body, {"content-type": "application/json"}, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert b"longer than 262144 bytes" in response.read()
    except (BrokenPipeError, ConnectionResetError):  # told while still sending, and the connection closed
        pass
    finally:
        connection.close()
    assert client.ask("/health")[0] == 200


def test_without_the_token_no_route_tells_anything_of_the_model(model_file):
    with serving(model_file, access=Access(token=TOKEN)) as client:
        for token in (None, "wrong", TOKEN[:-1], TOKEN + "x", TOKEN):
            client.token, right = token, token == TOKEN
            for path, given in ASKED.items():
                is_open = path in OPEN or path.startswith("/static/")
                status, answer, headers = client.ask(f"{path}?{query(**given)}")
                assert status == (200 if right or is_open else 401), path
                if status == 401:
                    assert headers["www-authenticate"] == "Bearer"
                    assert set(answer) == {"error"}
            assert client.ask("/api/recommend", BASKET)[0] == (200 if right else 401)
            assert client.ask("/api/explain", {"items": [], "item": 104})[0] == (200 if right else 401)
            assert client.ask("/api/recommend/batch", {"users": []})[0] == (200 if right else 401)
            assert client.ask("/api/model", authorization=f"Basic {TOKEN}")[0] == 401


def test_other_names_and_other_sites_are_refused(model_file, client):
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
        assert client.ask("/api/model", host=host)[0] == 421
    for host in ("localhost", f"LOCALHOST:{client.port}", "[::1]:80"):
        assert client.ask("/api/model", host=host)[0] == 200
    for probe in ("/health", "/ready"):  # a kubelet asks by address
        assert client.ask(probe, host="10.0.0.3:8103")[0] == 200
    assert client.ask("/metrics", host="10.0.0.3:8103")[0] == 421
    assert "access-control-allow-origin" not in client.ask("/api/model", origin="https://evil.example")[2]
    access = Access(hosts=frozenset({"shop.example"}), origins=("https://shop.example",), token=TOKEN)
    with serving(model_file, access=access) as named:
        leave = {"access_control_request_method": "GET", "access_control_request_headers": "authorization"}
        for origin, status in (("https://shop.example", 200), ("https://evil.example", 400)):
            assert named.ask("/api/model", method="OPTIONS", host="shop.example", origin=origin, **leave)[0] == status
        assert named.ask("/api/model", method="OPTIONS", host="shop.example")[0] == 405
        assert named.ask("/api/model", host="shop.example", origin="https://shop.example")[0] == 401
        headers = {"host": "shop.example", "authorization": f"Bearer {TOKEN}"}
        allowed = named.ask("/api/model", origin="https://shop.example", **headers)[2]
        assert allowed["access-control-allow-origin"] == "https://shop.example"
        assert "access-control-allow-origin" not in named.ask("/api/model", origin="https://evil.example", **headers)[2]


def test_with_a_token_metrics_are_read_by_address_and_any_name_can_be_allowed(model_file):
    with serving(model_file, access=Access(token=TOKEN)) as client:
        assert client.ask("/metrics", host="10.0.0.3:8103")[0] == 401
        client.token = TOKEN
        assert client.ask("/metrics", host="10.0.0.3:8103")[0] == 200
        assert client.ask("/api/model", host="10.0.0.3:8103")[0] == 421
    with serving(model_file, access=Access(hosts=frozenset({"*"}), token=TOKEN)) as client:
        assert client.ask("/api/model", host="any.example")[0] == 401
        client.token = TOKEN
        assert client.ask("/api/model", host="any.example")[0] == 200


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_endless_headers_are_cut_off(client):
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=20)

    def send_for_ever():
        connection.sendall(b"GET /api/model HTTP/1.1\r\nHost: localhost\r\n")
        for n in range(10_000):
            connection.sendall(f"X-{n}: {'y' * 1000}\r\n".encode())

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_for_ever()
    connection.close()


def test_no_more_than_so_many_at_a_time(model_file):
    with serving(model_file, limits=Limits(in_flight=2)) as client:
        held = [half_sent(client.port) for _ in range(2)]
        wait_for(lambda: client.ask("/health")[0] == 503)
        status, answer, headers = client.ask("/api/model")
        assert (status, headers["retry-after"]) == (503, "1")
        assert "2 requests are in flight" in answer["error"]
        for connection, rest in held:
            connection.sendall(rest)
            assert status_of(connection) == 200
            connection.close()
        wait_for(lambda: client.ask("/health")[0] == 200)


def test_an_answer_that_takes_too_long_is_given_up(model_file, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(nbmf.web.views.Views, "history", lambda *_: let_go.wait(20) and {})
    with serving(model_file, limits=Limits(seconds=0.2)) as client:
        status, answer, _ = client.ask("/api/exposures?user=ann/7")
        assert (status, answer) == (503, {"error": "no answer within 0.2 s"})
        assert client.ask("/api/recommend?user=ann/7")[0] == 200
        let_go.set()


def test_a_model_that_cannot_answer_is_never_ready(model_file, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(nbmf.web.views.Views, "warm_up", fail)
    served = ServedModel(str(model_file))
    asyncio.run(nbmf.web.app._keep_current(served))
    assert not served.ready
    assert "this model cannot answer" in caplog.text


def test_metrics_count_what_was_answered(model_file):
    with serving(model_file) as client:
        client.ask("/static/app.js")  # first, as it is counted when its file is closed, after the client has it
        for user in ("ann/7", "ann/9", "nobody"):
            client.ask(f"/api/recommend?{query(user=user)}")
        client.ask("/wp-admin/1")
        client.ask("/wp-admin/2")
        _, content, headers = client.ask("/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    text = content.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}

    def value(name, **labels):
        [found] = [
            sample.value
            for family in families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        return found

    assert value("nbmf_requests_total", method="GET", route="/api/recommend", code="200") == 2
    assert value("nbmf_requests_total", method="GET", route="/api/recommend", code="404") == 1
    assert value("nbmf_requests_total", method="GET", route="other", code="404") == 2
    assert value("nbmf_request_seconds_bucket", route="/api/recommend", le="+Inf") == 3
    assert value("nbmf_request_seconds_count", route="/api/recommend") == 3
    assert value("nbmf_requests_total", method="GET", route="/static/{name}", code="200") == 1
    assert value("nbmf_requests_in_flight") == 1  # this request
    assert value("nbmf_models_loaded_total") == 1
    assert value("nbmf_models_refused_total") == 0
    assert value("nbmf_ready") == 1
    kinds = {name: family.type for name, family in families.items() if not name.endswith("_created")}
    assert kinds == {
        "nbmf_requests": "counter",
        "nbmf_request_seconds": "histogram",
        "nbmf_requests_in_flight": "gauge",
        "nbmf_models_loaded": "counter",
        "nbmf_models_refused": "counter",
        "nbmf_ready": "gauge",
    }
    assert "wp-admin" not in text


def test_each_server_of_a_process_counts_alone(model_file):
    with serving(model_file) as first, serving(model_file) as second:
        first.ask("/health")
        assert 'route="/health"' in first.ask("/metrics")[1].decode()
        assert 'route="/health"' not in second.ask("/metrics")[1].decode()


# ---- the page's files -----------------------------------------------------------------------------------------------


STATIC = Path(nbmf.web.app.__file__).with_name("static")
PLOTLY = Path(plotly.__file__).with_name("package_data") / "plotly.min.js"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def test_files_are_sent_once_and_compressed(client):
    for path in (*STATIC.iterdir(), PLOTLY):
        url, expected = f"/static/{path.name}", path.read_bytes()
        status, content, headers = client.ask(url, accept_encoding="gzip")
        is_long = len(expected) >= 500
        assert status == 200
        assert (gzip.decompress(content) if is_long else content) == expected
        assert headers.get("content-encoding") == ("gzip" if is_long else None)
        assert headers["content-type"].split(";")[0] == TYPES[path.suffix]
        assert headers["cache-control"] == "no-cache"
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert client.ask(url)[1] == expected
        assert client.ask(url, if_none_match=headers["etag"])[0] == 304
    assert client.ask("/")[1] == (STATIC / "index.html").read_bytes()


def test_only_the_files_of_the_page_are_sent(client):
    for path in ("datasets", "templates", "../app.py", "..%2fapp.py", "%2e%2e/app.py", "", "datasets/tips.csv.gz"):
        assert client.ask(f"/static/{path}")[0] == 404, path


def test_the_page_loads_nothing_from_elsewhere_and_has_all_it_names():
    names = {path.name for path in (*STATIC.iterdir(), PLOTLY)}
    for path in STATIC.iterdir():
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        assert text.count("\n") <= 400, path
        for named in re.findall(r"(?:from|src=|href=)\s*[\"'](?:\./|static/)([\w.-]+)[\"']", text):
            assert named in names, (path, named)
