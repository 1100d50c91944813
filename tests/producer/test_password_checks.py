"""How many passwords a server checks at once, whichever port they come to."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from serverkit import SECRET, users_file
from talk import PATIENCE, request_bytes
from waiting import until

from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.errors import Status, StoreRefusal
from upriver.producer.bootstrap import password_checks
from upriver.producer.bootstrap.password_checks import PasswordChecks
from upriver.producer.bootstrap.users import Role
from upriver.producer.connections.thread_pools import ThreadPools
from upriver.producer.server_settings import ServerSettings
from upriver.testing import TemporaryProducer

#: Both are this machine, and different addresses to the server.
ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
SUCCESS, TEMPORARY_FAILURE = 0, 0x86


class Ports(NamedTuple):
    data: int
    management: int
    dashboard: int


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    """Of a server with users, for which a wrong password counts for as long as a test waits."""
    users = users_file(tmp_path, {"ann": (Role.ADMINISTER,)}, bucket="*")
    settings = ServerSettings(users=users, authentication_delay=PATIENCE)
    with TemporaryProducer(vbuckets=1, settings=settings) as producer:
        feed = ProducerFeed(producer.producer)
        management = producer.producer.server.http_port
        assert management is not None
        with Collector(feed.sample) as collector, DashboardServer(collector, feed, port=0) as page:
            until(lambda: collector.latest.document["server"] is not None)
            yield Ports(producer.port, management, int(page.url.rsplit(":")[-1].strip("/")))


def connected(port: int, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(address, 0))


def send_password(link: socket.socket, password: str) -> None:
    link.sendall(request_bytes(0x21, b"PLAIN", f"\0ann\0{password}".encode()))


def sasl_status(port: int, address: str) -> int:
    """What the right password is answered on the data port."""
    with connected(port, address) as link, link.makefile("rb") as answer:
        send_password(link, SECRET)
        status: int = struct.unpack_from(">H", answer.read(24), 6)[0]
        return status


def get(port: int, path: str, address: str) -> tuple[int, str | None]:
    """What the right password is answered over HTTP: the status, and when to try again."""
    credentials = b64encode(f"ann:{SECRET}".encode()).decode()
    asked = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=PATIENCE, source_address=(address, 0)
    )
    try:
        asked.request("GET", path, headers={"Authorization": f"Basic {credentials}"})
        answer = asked.getresponse()
        answer.read()
        return answer.status, answer.getheader("Retry-After")
    finally:
        asked.close()


def test_who_guesses_passwords_is_held_up_and_nobody_else(ports: Ports) -> None:
    pages = [(ports.management, "/pools"), (ports.dashboard, "/metrics")]
    for port, path in pages:
        assert get(port, path, ATTACKER) == (200, None)
    with ExitStack() as stack:
        for guess in range(password_checks.MOST_OF_GUESSER):
            link = stack.enter_context(connected(ports.data, ATTACKER))
            send_password(link, f"guess {guess}")
        until(lambda: sasl_status(ports.data, ATTACKER) == TEMPORARY_FAILURE)
        for port, path in pages:
            assert get(port, path, ATTACKER) == (503, "1")
            assert get(port, path, OTHER) == (200, None)
        assert sasl_status(ports.data, OTHER) == SUCCESS
    # that the guessing clients have gone changes nothing
    assert sasl_status(ports.data, ATTACKER) == TEMPORARY_FAILURE


def test_wrong_passwords_count_for_a_while_and_right_ones_do_not() -> None:
    now, pools = [0.0], ThreadPools()
    checks = PasswordChecks(pools.submit, held=1, clock=lambda: now[0])
    many = password_checks.MOST_OF_GUESSER
    try:
        for _ in range(3 * many):
            assert checks.submit("::1", lambda: "ann").result() == "ann"
        until(lambda: not checks._of_address)
        wait([checks.submit(f"2001:db8::{guess}", lambda: None) for guess in range(many)])
        with pytest.raises(StoreRefusal, match="from this address") as refused:
            checks.submit("2001:db8::ffff", lambda: None)  # of the same site
        assert refused.value.status is Status.TEMPORARY_FAILURE
        assert checks.submit("2001:db8:0:1::1", lambda: "ann").result() == "ann"
        until(lambda: checks._under_way == 0)
        now[0] = 1
        assert checks.submit("2001:db8::ffff", lambda: "ann").result() == "ann"
        until(lambda: not checks._of_address)
    finally:
        pools.close()


def test_many_clients_of_one_address_begin_at_the_same_time() -> None:
    pools, go_on = ThreadPools(), threading.Event()
    checks = PasswordChecks(pools.submit, held=0, clock=lambda: 0)
    try:
        most = password_checks.MOST_OF_ADDRESS
        under_way = [checks.submit(ATTACKER, go_on.wait) for _ in range(most)]
        with pytest.raises(StoreRefusal, match="from this address"):
            checks.submit(ATTACKER, go_on.wait)
        go_on.set()
        wait(under_way)
        until(lambda: not checks._of_address)
    finally:
        go_on.set()
        pools.close()


def test_checks_are_limited_however_many_addresses_they_come_from() -> None:
    pools, go_on = ThreadPools(), threading.Event()
    checks = PasswordChecks(pools.submit, held=0, clock=lambda: 0)
    try:
        under_way = [
            checks.submit(f"192.0.2.{one}", go_on.wait)
            for one in range(password_checks.MOST_CHECKS)
        ]
        with pytest.raises(StoreRefusal, match="too many passwords are checked"):
            checks.submit("192.0.2.255", go_on.wait)
        assert under_way.pop().cancel()
        under_way.append(checks.submit("192.0.2.255", go_on.wait))
        go_on.set()
        wait(under_way)
        until(lambda: checks._under_way == 0)
    finally:
        go_on.set()
        pools.close()
