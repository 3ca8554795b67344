"""A server for tests, in a thread of this process and on a free port, and a client for it."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import numpy as np

import nbmf
from helpers import small_matrix
from nbmf.web.app import build_app
from nbmf.web.process import listen, make_server
from nbmf.web.reload import ServedModel

BASKET = {"items": [{"item": 104, "count": 3}, {"item": "107"}], "n": 4, "level": 0.9}
SONGS = ("Blue", "Green", "Red", "Golden", "Silver", "Quiet", "Late", "Early", "Far", "Near")
TOKEN = "f00d" * 8


def plays(seed=0):
    """40 users with text for ids, and 30 songs with numbers for ids and with names."""
    names = np.array([f"{SONGS[n % 10]} song {n % 29}" for n in range(30)], object)
    users = [f"ann/{n}" if n % 2 else f"bob {n} é" for n in range(40)]
    data = nbmf.Interactions.from_matrix(small_matrix(40, 30, seed=seed), users=users, items=np.arange(100, 130))
    return nbmf.Interactions(data.users, data.items, data.matrix, item_names=names)


def write_model(path, model=None, seed=0):
    """Fit a small model, write it, and return it as it is loaded."""
    model = nbmf.NBMF(4, max_iter=15, random_state=seed) if model is None else model
    model.fit(plays()).save(path)
    return nbmf.load(path)


@contextmanager
def serving(path, **settings):
    """Serve a model file, and yield a client."""
    served = ServedModel(str(path))
    server = make_server(build_app(served, **settings))
    server.drain_seconds = 0.0
    door = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        wait_for(lambda: served.ready, 120)  # with nothing compiled yet
        yield Client(door.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)


def wait_for(happened, seconds=20):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


class Client:
    """A client of a server on this machine."""

    def __init__(self, port, token=None):
        self.port, self.token = port, token

    def ask(self, path, body=None, method=None, **headers):
        """Return status, answer and headers; JSON is parsed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            return self.ask_on(connection, path, body, method, **headers)
        finally:
            connection.close()

    def ask_on(self, connection, path, body=None, method=None, **headers):
        """Do the same over a connection that stays open."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            sent.setdefault("authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers.get("content-type") == "application/json" and method != "HEAD"
        return response.status, json.loads(content) if is_json else content, response.headers

    def get(self, path, **parameters):
        """Return the answer to a request that must succeed."""
        status, answer, _ = self.ask(f"{path}?{query(**parameters)}")
        assert status == 200, answer
        return answer


def query(**parameters):
    return urlencode(parameters)


def half_sent(port, n_bytes=5):
    """Send part of a request, and return the connection and the rest of the request."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    body = json.dumps(BASKET).encode()
    head = "POST /api/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:n_bytes])
    return connection, body[n_bytes:]


def status_of(connection):
    """Return the status of an answer, or None if the connection was closed."""
    answer = connection.recv(1 << 16)
    return int(answer.split()[1]) if answer else None
