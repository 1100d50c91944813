"""Where the server has users, viewers sign in and see what their roles allow."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from certificates import write_certificates
from click.testing import CliRunner
from dashboardkit import PATIENCE, Answer, ask
from waiting import until

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.cli.main import cli
from upriver.dashboard import sign_in
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.remote import RemoteServer
from upriver.dashboard.sign_in import COOKIE, Sessions
from upriver.errors import ConfigError, UpriverError
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.store import BucketSettings
from upriver.testing import TemporaryProducer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    quick = pytest.MonkeyPatch()
    quick.setattr(sign_in, "_REFUSAL_SECONDS", 0.001)
    users = Users()
    users.add("admin", "secret", Grant(Role.ADMINISTER), iterations=4096)
    users.add("ann", "secret", Grant(Role.READ_DATA, "default"), iterations=4096)
    users.add("bob", "secret", Grant(Role.READ_STREAM, "other"), iterations=4096)
    path = tmp_path_factory.mktemp("users") / "users.json"
    users.save(path)
    settings = ServerSettings(users=path, authentication_delay=0)
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        producer.producer.store.create_bucket("other", BucketSettings(vbuckets=2))
        producer.write(b"k", b"v")
        feed = ProducerFeed(producer.producer)
        with (
            Collector(feed.sample, interval=0.05) as collector,
            DashboardServer(collector, feed, port=0) as page,
        ):
            until(lambda: collector.latest.document["server"] is not None)
            yield page.url
    quick.undo()


def basic(user: str, password: str = "secret") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def post(url: str, path: str, body: bytes, **headers: str) -> Answer:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
    given = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    try:
        connection.request("POST", path, body, given)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/stats.json",
        "/history.json",
        "/metrics",
        "/vbucket.json?bucket=default&vbucket=0",
        "/document.json?bucket=default&key=k",
    ],
)
def test_nothing_is_shown_to_those_who_have_not_signed_in(url: str, path: str) -> None:
    for header in ("", "Basic", "Basic !", basic("ann", "wrong"), basic("nobody")):
        answer = ask(url, path, Authorization=header)
        assert (answer.status, answer.content) == (
            401,
            {"error": "sign in with a user of the server"},
        )
    assert ask(url, path, Cookie=f"{COOKIE}=guessed").status == 401
    assert ask(url, path, Authorization=basic("admin")).status == 200


def test_the_page_itself_and_health_are_open(url: str) -> None:
    assert ask(url, "/").status == 200
    assert ask(url, "/health").status == 200


def test_a_viewer_sees_the_buckets_of_his_roles(url: str) -> None:
    def buckets(user: str) -> list[str]:
        content = ask(url, "/stats.json", Authorization=basic(user)).content
        return [bucket["name"] for bucket in content["server"]["buckets"]]

    assert buckets("admin") == ["default", "other"]
    assert buckets("ann") == ["default"]
    assert buckets("bob") == ["other"]
    metrics = ask(url, "/metrics", Authorization=basic("bob")).body
    assert b'bucket="other"' in metrics
    assert b'bucket="default"' not in metrics
    hidden = ask(url, "/vbucket.json?bucket=default&vbucket=0", Authorization=basic("bob"))
    assert hidden.status == 404


def test_documents_need_the_role_to_read_data(url: str) -> None:
    path = "/document.json?bucket=default&key=k"
    shown = ask(url, path, Authorization=basic("ann")).content
    assert [one["value"] for one in shown["versions"]] == ["v"]
    assert ask(url, path, Authorization=basic("bob")).status == 404  # it cannot see the bucket
    refused = ask(url, path.replace("default", "other"), Authorization=basic("bob"))
    assert refused.status == 403
    assert "no role read_data in bucket other" in refused.content["error"]


def test_a_session_lasts_until_its_end(url: str) -> None:
    opened = post(url, "/sign-in", json.dumps({"user": "ann", "password": "secret"}).encode())
    assert opened.status == 200
    cookie = opened.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    token = cookie.partition(";")[0]
    assert ask(url, "/stats.json", Cookie=token).status == 200
    assert post(url, "/sign-out", b"{}", Cookie=token).status == 200
    assert ask(url, "/stats.json", Cookie=token).status == 401


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"user": "ann", "password": "wrong"}', "application/json", 403),
        (b'{"user": "ann", "password": "secret"}', "text/plain", 415),
        (b'{"user": "ann"}', "application/json", 400),
        (b'{"user": 1, "password": 2}', "application/json", 400),
        (b"[" * 4000, "application/json", 400),
        (b" " * 5000, "application/json", 400),
    ],
)
def test_a_sign_in_that_is_wrong_is_refused(url: str, body: bytes, kind: str, status: int) -> None:
    answer = post(url, "/sign-in", body, Content_Type=kind)
    assert answer.status == status
    assert answer.headers["Set-Cookie"] is None


def test_sessions_are_bounded_in_number_and_time() -> None:
    now = [0.0]
    sessions = Sessions(lambda name, password, address: name, clock=lambda: now[0])
    first = sessions.open("ann")
    now[0] += sign_in._IDLE_SECONDS
    assert sessions.user(first) == "ann"  # which counts as use
    now[0] += sign_in._IDLE_SECONDS + 1
    assert sessions.user(first) is None
    tokens = [sessions.open("ann") for _ in range(sign_in._MOST_SESSIONS + 1)]
    assert sessions.user(tokens[0]) is None
    assert sessions.user(tokens[1]) == "ann"


def test_a_dashboard_elsewhere_uses_the_rights_of_its_user(url: str) -> None:
    with pytest.raises(UpriverError, match="needs --user and a password"):
        RemoteServer(url).sample()
    server = RemoteServer(url, "ann", "secret")
    assert [bucket["name"] for bucket in server.sample()["buckets"]] == ["default"]
    found = server.document(None, "default", "_default._default", "k")
    assert found is not None
    assert found["versions"][0]["value"] == "v"
    with pytest.raises(UpriverError, match="there is no document with this key"):
        server.document(None, "default", "_default._default", "none")


def test_documents_are_not_shown_to_a_network_without_users() -> None:
    with TemporaryProducer(vbuckets=2) as producer:
        producer.write(b"k", b"v")
        feed = ProducerFeed(producer.producer)
        with (
            Collector(feed.sample, interval=0.05) as collector,
            DashboardServer(collector, feed, host="0.0.0.0", port=0) as page,
        ):
            refused = ask(page.url, "/document.json?bucket=default&key=k")
            assert refused.status == 403
            assert "loopback address" in refused.content["error"]
            assert ask(page.url, "/stats.json").status == 200


def test_a_password_goes_to_another_machine_only_if_that_is_wanted() -> None:
    with pytest.raises(ConfigError, match=r"would go to db\.example\.com unencrypted"):
        RemoteServer("http://db.example.com:8180", "ann", "secret")
    RemoteServer("http://db.example.com:8180", "ann", "secret", allow_plain=True)
    RemoteServer("https://db.example.com:8180", "ann", "secret")


def test_a_page_for_a_network_has_the_tls_of_its_server(tmp_path: Path) -> None:
    users = Users()
    users.add("ann", "secret", Grant(Role.READ_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    files = write_certificates(tmp_path)
    settings = ServerSettings(
        users=tmp_path / "users.json", certificate=files.certificate, key=files.key
    )
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        feed = ProducerFeed(producer.producer)
        with (
            Collector(feed.sample, interval=0.05) as collector,
            DashboardServer(
                collector, feed, host="0.0.0.0", port=0, tls=settings.tls_context()
            ) as page,
        ):
            until(lambda: collector.latest.document["server"] is not None)
            assert page.url.startswith("https://0.0.0.0:")
            address = page.url.replace("0.0.0.0", "127.0.0.1")
            trusted = ssl.create_default_context(cafile=files.authority)
            server = RemoteServer(address, "ann", "secret", context=trusted)
            assert [one["name"] for one in server.sample()["buckets"]] == ["default"]
            with pytest.raises(UpriverError, match="certificate verify failed"):
                RemoteServer(address, "ann", "secret").sample()
            plain = RemoteServer(address.replace("https", "http"), "ann", "secret")
            with pytest.raises(UpriverError, match="cannot be reached"):
                plain.sample()
            at = ("127.0.0.1", urlsplit(address).port)
            with ExitStack() as stack:  # silent ones, without a handshake, keep nobody out
                silent = [
                    stack.enter_context(socket.create_connection(at, PATIENCE)) for _ in range(40)
                ]
                assert [one["name"] for one in server.sample()["buckets"]] == ["default"]
                for dropped in silent[:8]:
                    with suppress(ConnectionError):
                        assert dropped.recv(1) == b""


def test_a_page_for_a_network_does_not_lend_the_rights_of_a_user() -> None:
    words = ["dashboard", "http://127.0.0.1:1", "--host", "0.0.0.0", "--user", "ann"]
    result = CliRunner().invoke(cli, words, env={"UPRIVER_PASSWORD": "secret"})
    assert result.exit_code != 0
    assert "see what user ann may see" in str(result.exception or result.output)


def test_passwords_do_not_cross_a_network_by_accident(tmp_path: Path) -> None:
    users = Users()
    users.add("ann", "secret", Grant(Role.READ_DATA), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json")
    with TemporaryProducer(vbuckets=2, settings=settings) as producer:
        feed = ProducerFeed(producer.producer)
        with pytest.raises(ConfigError, match="without TLS"):
            DashboardServer(Collector(feed.sample), feed, host="0.0.0.0", port=0)
