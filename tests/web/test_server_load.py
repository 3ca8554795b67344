"""The server under load: many clients, silent clients, a model that is replaced, and shutdown without loss."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nbmf.web.app
from helpers import child
from nbmf.web.middleware import Limits
from nbmf.web.reload import ServedModel
from serving import BASKET, Client, half_sent, query, serving, status_of, wait_for, write_model


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model.nbmf"
    write_model(path)
    return path


def test_sixty_four_clients_get_the_serial_answers(model_file):
    with serving(model_file) as client:
        compare_with_serial(client, ServedModel(str(model_file)).views)


def compare_with_serial(client, views):
    users = [str(user) for user in views.model.users_.tolist()]
    questions = [f"/api/recommend?{query(user=user, n=5, level=0.9)}" for user in users]
    serial = [client.ask(question)[1] for question in questions]
    basket = client.ask("/api/recommend", BASKET)[1]

    def ask_all(start):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        found = [client.ask_on(connection, questions[(start + n) % 40])[1] for n in range(10)]
        other = client.ask_on(connection, "/api/recommend", BASKET)[1]
        connection.close()
        return start, found, other

    with ThreadPoolExecutor(64) as pool:
        for start, found, other in pool.map(ask_all, range(64)):
            assert found == [serial[(start + n) % 40] for n in range(10)]
            assert other == basket


def test_two_hundred_half_open_clients_do_not_keep_others_from_their_answers(model_file):
    limits = Limits(header_seconds=1.0, body_seconds=1.0)
    with serving(model_file, limits=limits) as client:
        silent = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(100)]
        begun = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(60)]
        for connection in begun:
            connection.sendall(b"GET /api/model HTTP/1.1\r\nHost: loc")
        bodies = [half_sent(client.port)[0] for _ in range(40)]
        for _ in range(20):
            assert client.ask(f"/api/recommend?{query(user='ann/7')}")[0] == 200
        for connection in bodies:
            assert status_of(connection) == 408
        for connection in silent + begun:
            connection.settimeout(20)
            assert connection.recv(1) == b""
        for connection in silent + begun + bodies:
            connection.close()


def test_a_model_replaced_twenty_times_under_load(tmp_path, monkeypatch):
    """No answer fails or mixes models: each is the complete answer of the model it names."""
    monkeypatch.setattr(nbmf.web.app, "RELOAD_SECONDS", 0.02)
    path = tmp_path / "model.nbmf"
    contents, serial = {}, {}
    for seed in (0, 1):
        write_model(path, seed=seed)
        views = ServedModel(str(path)).views
        contents[views.mark] = path.read_bytes()
        serial[views.mark] = {user: views.recommend(user, 5) for user in map(str, views.model.users_.tolist())}
    users, over = list(views.model.users_.tolist()), threading.Event()
    with serving(path) as client:

        def load(start):
            connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
            marks = set()
            n = start
            while not over.is_set():
                user = users[n % len(users)]
                status, answer, _ = client.ask_on(connection, f"/api/recommend?{query(user=user, n=5)}")
                assert status == 200
                assert answer == serial[answer["model"]][user]
                marks.add(answer["model"])
                n += 1
            connection.close()
            return n - start, marks

        with ThreadPoolExecutor(8) as pool:
            loads = [pool.submit(load, start) for start in range(8)]
            try:
                for swap in range(20):
                    mark = sorted(contents)[swap % 2]
                    if swap % 5 == 4:  # now and then a damaged one
                        put(path, contents[mark][:-100])
                        wait_for(lambda: client.get("/api/model")["refused"] is not None)
                    put(path, contents[mark])
                    wait_for(lambda mark=mark: client.get("/api/model")["model"] == mark)
            finally:
                over.set()
            answered = [job.result() for job in loads]
        loaded = re.search(r"nbmf_models_loaded_total (\d+)", client.ask("/metrics")[1].decode())[1]
    assert sum(n for n, _ in answered) > 100
    assert all(marks == set(contents) for _, marks in answered)
    assert int(loaded) >= 20


def put(path, content):
    """Replace a file as a whole, as `save` does."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    os.replace(other, path)


def test_sigterm_finishes_what_is_in_flight(model_file):
    """Requests that have begun are answered, and clients with open connections are asked to close them."""
    command = [str(Path(sys.executable).with_name("nbmf")), "serve", str(model_file), "--port", "0"]
    with child(command, stderr=subprocess.PIPE, text=True) as process:
        port = int(re.search(r"http://127.0.0.1:(\d+)/", process.stderr.readline())[1])
        client = Client(port)
        wait_for(lambda: client.ask("/ready")[0] == 200)
        held = [half_sent(port) for _ in range(10)]

        def keep_asking(_):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            n = 0
            while True:
                status, _, headers = client.ask_on(connection, f"/api/recommend?{query(user='ann/7')}")
                assert status == 200
                n += 1
                if headers.get("connection") == "close":
                    return n

        with ThreadPoolExecutor(16) as pool:
            loads = [pool.submit(keep_asking, n) for n in range(16)]
            wait_for(lambda: client.ask("/health")[0] == 200)
            process.send_signal(signal.SIGTERM)
            assert all(job.result() >= 1 for job in loads)
        for connection, rest in held:
            connection.sendall(rest)
            assert status_of(connection) == 200
            connection.close()
        assert process.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        client.ask("/health")
