"""What the dashboard answers over HTTP, and what it does not."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pytest
from dashboardkit import PATIENCE, ask, seen, server_of, watched
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from waiting import until

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.consumer import Consumer
from upriver.dashboard import httpd
from upriver.dashboard.collector import Collector
from upriver.dashboard.figure_types import VBucketDetail
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.prometheus_metrics import METRICS
from upriver.errors import ConfigError, UpriverError
from upriver.testing import TemporaryProducer

PAGE = files("upriver.dashboard") / "page"
SLOW_BODY = (
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n"
)


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=16) as started:
        for number in range(40):
            started.write(b"key %d" % number, b"value")
        yield started


@pytest.fixture(scope="module")
def url(producer: TemporaryProducer) -> Iterator[str]:
    with watched(producer) as address:
        yield address


def socket_to(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)


@pytest.mark.parametrize("name", sorted(one.name for one in PAGE.iterdir()))
def test_every_file_of_the_page_is_served_and_may_load_nothing_from_elsewhere(
    url: str, name: str
) -> None:
    answer = ask(url, "/" if name == "index.html" else f"/{name}")
    assert answer.status == 200
    assert answer.body == (PAGE / name).read_bytes()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Access-Control-Allow-Origin"] is None
    text = answer.body.decode()
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=\"", text)


def test_figures_tell_of_buckets_vbuckets_and_readers(
    producer: TemporaryProducer, url: str
) -> None:
    with Consumer(producer.source, name="<b>reader</b>") as consumer:
        for _ in zip(range(40), consumer, strict=False):
            pass
        document = seen(
            url,
            lambda document: any(
                (one["streams"], one["lag"]) == (16, 0)
                for one in server_of(document)["connections"]
            ),
        )
    server = document["server"]
    assert server is not None
    (bucket,) = server["buckets"]
    assert (bucket["name"], bucket["items"]) == ("default", 40)
    assert bucket["vbuckets"]["state"] == "a" * 16
    assert sum(bucket["vbuckets"]["high"]) == 40
    assert bucket["vbuckets"]["lag"] == [0] * 16
    (reader,) = (one for one in server["connections"] if one["kind"] == "reader")
    assert reader["name"] == "<b>reader</b>"
    assert reader["window"] > 0
    assert reader["lag"] == 0


def test_writes_become_a_rate_and_a_count(producer: TemporaryProducer, url: str) -> None:
    before = seen(url)["changes"]["default"]
    producer.write(b"key 0", b"again")
    after = seen(url, lambda document: document["changes"]["default"] > before)
    assert after["changes"]["default"] == before + 1
    assert any(rate > 0 for rate in after["history"]["writes"])
    columns: list[Any] = [one for name, one in after["history"].items() if name != "lags"]
    lengths = {len(column) for column in columns}
    assert len(lengths) == 1


def test_one_vbucket_comes_with_its_failover_log_and_copies(url: str) -> None:
    with TemporaryProducer(vbuckets=4) as other, watched(other) as address:
        for number in range(6):
            other.write(b"k%d" % number, b"v", vbucket=2)
        other.fail_over(2, 4)
        detail = ask(address, "/vbucket.json?bucket=default&vbucket=2").content
        assert (detail["state"], detail["high"], detail["items"]) == ("active", 4, 4)
        newest, oldest = detail["failover_log"]
        assert (newest["seqno"], oldest["seqno"]) == (4, 0)
        log = other.bucket.failover_log(2)
        assert [int(one["branch"], 16) for one in detail["failover_log"]] == [
            entry.vbuuid for entry in log
        ]
        assert detail["copies"] == [{"role": "active", "node": f"127.0.0.1:{other.port}"}]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("bucket=default&vbucket=16", 404),
        ("bucket=default&vbucket=-1", 404),
        ("bucket=nothing&vbucket=1", 404),
        ("bucket=default&vbucket=one", 400),
        ("bucket=default", 400),
        ("", 400),
        ("&".join(["bucket=default"] * 9), 400),
    ],
)
def test_a_vbucket_that_is_not_there_is_refused(url: str, query: str, status: int) -> None:
    answer = ask(url, f"/vbucket.json?{query}")
    assert answer.status == status
    assert answer.content["error"]


def test_metrics_are_what_prometheus_reads(url: str) -> None:
    answer = ask(url, "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    samples = {
        sample.name: sample
        for family in parse_text(answer.body.decode())
        for sample in family.samples
    }
    expected = {
        row.name + "_bucket" * (row.kind == "histogram")
        for row in METRICS
        if "pipeline" not in row.name
    }
    assert expected - {"upriver_streams"} <= samples.keys()
    assert samples["upriver_bucket_items"].value == 40
    assert samples["upriver_bucket_items"].labels == {"bucket": "default"}
    assert all(
        set(sample.labels) <= {"bucket", "state", "kind", "version", "scope", "collection", "le"}
        for sample in samples.values()
    )
    modern = ask(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
    parse: Any = parse_openmetrics
    families = {family.name for family in parse(modern.body.decode())}
    assert "upriver_changes" in families


def test_health_says_whether_figures_are_fresh(url: str) -> None:
    assert ask(url, "/health").content == {"status": "ok"}

    def fails() -> None:
        raise UpriverError("the disk is full")

    with (
        Collector(fails) as collector,  # type: ignore[arg-type]
        DashboardServer(collector, port=0) as page,
    ):
        until(lambda: collector.latest.document["problem"] == "the disk is full")
        answer = ask(page.url, "/health")
        assert (answer.status, answer.content) == (503, {"error": "the disk is full"})
        assert ask(page.url, "/stats.json").content["problem"] == "the disk is full"
        assert ask(page.url, "/vbucket.json?bucket=default&vbucket=0").status == 404


@pytest.mark.parametrize(
    "path", ["/nothing", "/../pyproject.toml", "/page/app.js", "/app.js/", "/%00"]
)
def test_there_is_nothing_else(url: str, path: str) -> None:
    assert ask(url, path).status == 404


def test_only_looking_is_allowed(url: str) -> None:
    assert ask(url, "/stats.json", "POST").status == 501
    head = ask(url, "/stats.json", "HEAD")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_merely_points_here_is_refused(url: str, host: str) -> None:
    for path in ("/", "/stats.json", "/metrics"):
        answer = ask(url, path, Host=host)
        assert answer.status == 421
        assert b"default" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8180"])
def test_names_of_this_machine_are_not(url: str, host: str) -> None:
    assert ask(url, "/stats.json", Host=host).status == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"\x00\xff\x80\r\n\r\n",
        b"\r\n\r\n",
        b"GET",
    ],
    ids=["long line", "many headers", "no text", "empty", "half"],
)
def test_nonsense_is_closed_and_hurts_nobody(url: str, request_bytes: bytes) -> None:
    with socket_to(url) as link:
        try:
            link.sendall(request_bytes)
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):
                pass
        except OSError:
            pass  # it may be cut off while it is still sending
    assert ask(url, "/health").status == 200


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /metrics HTTP/1.1\r\nX-Slow: ", SLOW_BODY],
    ids=["silent", "slow head", "slow body"],
)
def test_slow_requests_keep_nobody_out(url: str, beginning: bytes) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(socket_to(url)) for _ in range(40)]
        for link in slow:
            if beginning:
                with suppress(ConnectionError):
                    link.sendall(beginning)
        for path in ("/metrics", "/health"):
            assert ask(url, path).status == 200
        until(lambda: all(map(_is_closed, slow[:8])))
        assert not _is_closed(slow[-1])


def test_viewers_who_are_being_answered_keep_their_places(producer: TemporaryProducer) -> None:
    asked, go_on = threading.Semaphore(0), threading.Event()

    class SlowFeed(ProducerFeed):
        def vbucket(self, bucket: str, vbucket: int) -> VBucketDetail | None:
            asked.release()
            go_on.wait()
            return super().vbucket(bucket, vbucket)

    feed = SlowFeed(producer.producer)
    with (
        Collector(feed.sample) as collector,
        DashboardServer(collector, feed, port=0) as page,
        ThreadPoolExecutor(httpd._MAX_REQUESTS) as viewers,
    ):
        path = "/vbucket.json?bucket=default&vbucket=0"
        answers = [viewers.submit(ask, page.url, path) for _ in range(httpd._MAX_REQUESTS)]
        try:
            for _ in answers:
                assert asked.acquire(timeout=PATIENCE)
            with socket_to(page.url) as one_more:
                until(lambda: _is_closed(one_more))
        finally:
            go_on.set()
        assert {answer.result().status for answer in answers} == {200}
    until(lambda: not page._http._places)


def _is_closed(link: socket.socket) -> bool:
    link.settimeout(0)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_port_that_is_taken_is_a_clear_error(url: str) -> None:
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        DashboardServer(Collector(None), port=port)
