"""A dashboard that watches a server through that server's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from dashboardkit import ask, seen, watched
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from upriver.dashboard.collector import Collector
from upriver.dashboard.figure_types import StatsDocument
from upriver.dashboard.figure_validation import checked
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.remote import RemoteServer
from upriver.errors import ConfigError, UpriverError
from upriver.testing import TemporaryProducer


def test_it_shows_what_the_other_shows_and_counts_by_itself() -> None:
    with TemporaryProducer(vbuckets=8) as producer:
        for number in range(3):
            producer.write(b"%d" % number, b"v", vbucket=5)
        with watched(producer) as there:
            server = RemoteServer(there)
            with (
                Collector(server.sample, interval=0.05) as collector,
                DashboardServer(collector, server, port=0) as page,
            ):
                assert seen(page.url)["changes"] == {"default": 0}
                producer.write(b"k", b"v", vbucket=5)
                seen(page.url, lambda document: document["changes"]["default"] == 1)
                producer.fail_over(5, 2)
                document = seen(page.url, lambda document: bool(document["events"]))
                assert document["events"][0]["vbucket"] == 5
                path = "/vbucket.json?bucket=default&vbucket=5"
                assert ask(page.url, path).content == ask(there, path).content
                assert ask(page.url, "/vbucket.json?bucket=other&vbucket=5").status == 502
        # the other has gone: what was seen last stays, with what is wrong now
        with (
            Collector(server.sample, interval=0.05) as collector,
            DashboardServer(collector, server, port=0) as page,
        ):
            until(lambda: "cannot be reached" in str(collector.latest.document["problem"]))
            assert ask(page.url, "/health").status == 503


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999", "http://[::1", "x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a dashboard"):
        RemoteServer(url)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[RemoteServer]:
    """A server that says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield RemoteServer(f"http://127.0.0.1:{http.server_address[1]}/")
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (500, b"", "answers with status 500"),
        (200, b"<html>", "does not answer with JSON"),
        (200, b"[" * 200_000, "does not answer with JSON"),
        (200, b"[]", "figures of another version"),
        (200, b'{"format": 1}', "figures of another version"),
        (200, b'{"format": 2, "server": null}', "dashboard without a server"),
        (200, b'{"format": 2, "server": {}}', "cannot be used: ServerFigures has no"),
        (200, b'{"format": 2, "server": []}', "cannot be used: ServerFigures is not an object"),
    ],
)
def test_answers_that_are_no_figures_are_clear_errors(
    status: int, body: bytes, problem: str
) -> None:
    with answering(status, body) as server, pytest.raises(UpriverError, match=problem):
        server.sample()


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
NAMES = sorted(StatsDocument.__annotations__)


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON))
def test_any_document_is_checked_or_refused(content: dict[str, object]) -> None:
    try:
        result = checked(StatsDocument, content)
    except ValueError:
        return
    assert checked(StatsDocument, result) == result


def test_what_a_server_tells_passes_the_check_unchanged() -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        content = json.loads(ask(url, "/stats.json").body)
        assert checked(StatsDocument, content) == content
