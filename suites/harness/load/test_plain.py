"""Plain calls: what is sent, and what an error says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from mtpgate.load.plain import http_generate, http_tokenize


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = 200, {"path": self.path, "body": body}
        if self.path == "/tokenize":
            answer = {"tokens": list(body["prompt"].encode()), "count": 0}
        if body.get("text") == "refuse":
            status, answer = 400, {"error": {"message": "too long"}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_generate_posts_the_body_and_returns_the_answer(url):
    assert http_generate(url)({"text": "a"}) == {"path": "/generate", "body": {"text": "a"}}


def test_a_refusal_carries_the_words_of_the_server(url):
    with pytest.raises(requests.HTTPError, match=r"/generate answered 400: .*too long"):
        http_generate(url)({"text": "refuse"})


def test_tokenize_asks_the_server(url):
    assert http_tokenize(url)("ab") == [97, 98]
