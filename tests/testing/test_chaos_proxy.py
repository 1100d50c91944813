"""The proxy on real sockets: what it passes on, and every way in which it breaks."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from talk import PATIENCE, Talk

from upriver.consumer import Consumer
from upriver.errors import ConfigError, Status
from upriver.model import NO_END
from upriver.testing import ChaosProxy, Faults, TemporaryProducer
from upriver.testing.proxied_connection import ChaosCounts, Gate, ProxiedConnection
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp

PACKET = Dcp().encode(m.Mutation(vbucket=0, seqno=1, key=b"k", value=b"v" * 40, opaque=1))


class Peer:
    """A server of the test's own, which hands over its connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.address: tuple[str, int] = self._listener.getsockname()

    def accept(self) -> socket.socket:
        accepted, _ = self._listener.accept()
        accepted.settimeout(PATIENCE)
        return accepted

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def proxy(peer: Peer) -> Iterator[ChaosProxy]:
    with ChaosProxy(peer.address, seed=1) as proxy:
        yield proxy


def dial(proxy: ChaosProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE)


@contextmanager
def ends(proxy: ChaosProxy, peer: Peer) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end and the server's end of one connection."""
    with dial(proxy) as client, peer.accept() as server:
        yield client, server


def greet(client: socket.socket, server: socket.socket) -> None:
    """After this the proxy has both ends, and not only the kernel."""
    server.sendall(b"!")
    assert read(client, 1) == b"!"


def read(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = end.recv(size - len(data))
        assert part, "it ended too early"
        data += part
    return data


def read_all(end: socket.socket) -> bytes:
    """Everything up to an orderly end."""
    data = b""
    while part := end.recv(1 << 16):
        data += part
    return data


def is_reset(end: socket.socket) -> bool:
    """Waits for the end of a connection; false if it is an orderly one."""
    try:
        while end.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return False


def is_turned_away(proxy: ChaosProxy) -> bool:
    """Whether a new connection is reset, be it while it is made."""
    try:
        with dial(proxy) as client:
            return is_reset(client)
    except ConnectionResetError:
        return True


@contextmanager
def sending(end: socket.socket, data: bytes) -> Iterator[None]:
    """Sends in a thread, as far as the other side lets it."""

    def send() -> None:
        with suppress(OSError):
            end.sendall(data)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# ---- without faults ----------------------------------------------------------------------


def test_bytes_pass_in_both_directions_and_are_counted(proxy: ChaosProxy, peer: Peer) -> None:
    large = bytes(range(256)) * 8192
    with ends(proxy, peer) as (client, server):
        with sending(client, large):
            assert read(server, len(large)) == large
        with sending(server, large[:-1]):
            assert read(client, len(large) - 1) == large[:-1]
        assert proxy.connections == 1
        counts = proxy.counts
    assert (counts.bytes_to_server, counts.bytes_to_client) == (len(large), len(large) - 1)
    assert counts.connections == 1
    assert counts.cuts == counts.truncations == counts.corruptions == counts.delays == 0


def test_an_orderly_end_is_passed_on_and_the_other_direction_goes_on(
    proxy: ChaosProxy, peer: Peer
) -> None:
    with ends(proxy, peer) as (client, server):
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert read_all(server) == b"last words"
        server.sendall(b"goodbye")
        server.close()
        assert read_all(client) == b"goodbye"


def test_a_reset_is_passed_on(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (client, server):
        client.sendall(b"never read")
        assert server.recv(1, socket.MSG_PEEK)
        server.close()  # with something unread, which resets
        assert is_reset(client)


def test_a_slow_reader_holds_up_the_writer(proxy: ChaosProxy, peer: Peer) -> None:
    """What fits on the way is bounded: it is full long before the writer is done."""
    with ends(proxy, peer) as (client, server):
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.sendall(bytes(64 * 1024 * 1024))
        assert proxy.counts.bytes_to_client < 32 * 1024 * 1024
        assert client.recv(1) == b"\0"


def test_a_target_that_is_not_there_ends_connections(peer: Peer) -> None:
    with ChaosProxy() as proxy:
        assert is_turned_away(proxy)
        assert proxy.counts.unreachable == 1
        proxy.target = peer.address
        with ends(proxy, peer) as (client, server):
            server.sendall(b"found")
            assert read(client, 5) == b"found"
        peer.close()
        assert is_turned_away(proxy)
        assert proxy.counts.unreachable == 2


def test_it_stops_with_connections_open(peer: Peer) -> None:
    with ChaosProxy(peer.address) as proxy:
        address = (proxy.host, proxy.port)
        client = dial(proxy)
        server = peer.accept()
        greet(client, server)
    with client, server:
        assert is_reset(client)
        assert is_reset(server)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=PATIENCE)


def test_both_connections_are_closed_if_it_stops_while_one_closes(peer: Peer) -> None:
    """A connection that was dropped unclosed says so when it is collected."""

    async def scenario() -> None:
        relays: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            gates = Gate(Faults()), Gate(Faults())
            relay = ProxiedConnection((reader, writer), *gates, ChaosCounts(), "1")
            relays.append((asyncio.create_task(relay.run(peer.address)), writer))

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as listener:
            with socket.create_connection(listener.sockets[0].getsockname()):
                (await asyncio.to_thread(peer.accept)).close()
            ((relay, writer),) = relays
            while not writer.is_closing():
                await asyncio.sleep(0)
            relay.cancel()
            with suppress(asyncio.CancelledError):
                await relay
            del relay, writer
            relays.clear()
            gc.collect()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(scenario())
    assert [str(warning.message) for warning in said] == []


# ---- on command --------------------------------------------------------------------------


def test_all_connections_are_cut_now(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as first, ends(proxy, peer) as second:
        greet(*first)
        greet(*second)
        assert proxy.cut() == 2
        assert proxy.connections == 0
        for end in (*first, *second):
            assert is_reset(end)
    assert proxy.counts.cuts == 2
    with ends(proxy, peer) as (client, server):
        server.sendall(b"again")
        assert read(client, 5) == b"again"


def test_only_the_newest_connection_is_cut(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (older, server), ends(proxy, peer) as (newer, other):
        greet(newer, other)
        assert proxy.cut(newest=1) == 1
        assert is_reset(newer)
        server.sendall(b"alive")
        assert read(older, 5) == b"alive"


@pytest.mark.parametrize("size", [1, 24, 25, 1000])
def test_a_connection_ends_after_so_many_bytes(proxy: ChaosProxy, peer: Peer, size: int) -> None:
    data = bytes(range(250)) * 10
    with ends(proxy, peer) as (client, server):
        server.sendall(b"before")
        assert read(client, 6) == b"before"
        proxy.cut_after(size)
        server.sendall(data)
        assert read_all(client) == data[:size]
        assert is_reset(server)
    with ends(proxy, peer) as (client, server):  # once
        server.sendall(data)
        assert read(client, len(data)) == data
    assert proxy.counts.truncations == 1


def test_a_connection_ends_after_so_many_bytes_to_the_server(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (client, server):
        proxy.to_server.cut_after(3)
        client.sendall(b"12345")
        assert read_all(server) == b"123"
        server.close()
        assert is_reset(client)


def test_a_connection_ends_behind_a_packet_of_a_kind(proxy: ChaosProxy, peer: Peer) -> None:
    noop = Dcp().encode(m.StreamNoop(opaque=2))
    proxy.to_client.cut_behind(PACKET[1])
    with ends(proxy, peer) as (client, server):
        sent = noop + PACKET + PACKET
        with suppress(ConnectionError):  # it may be over before the last piece
            for at in range(0, len(sent), 10):  # packets come in pieces
                server.sendall(sent[at : at + 10])
        assert read_all(client) == noop + PACKET
    with ends(proxy, peer) as (client, server):
        server.sendall(PACKET + PACKET)
        assert read(client, 2 * len(PACKET)) == PACKET + PACKET
    with pytest.raises(ConfigError):
        proxy.to_client.cut_behind(256)


def test_a_reader_that_was_cut_behind_a_marker_reads_on() -> None:
    with (
        ChaosProxy() as proxy,
        TemporaryProducer(vbuckets=1, advertise=(proxy.host, proxy.port)) as producer,
    ):
        proxy.target = producer.host, producer.port
        producer.write(b"a", b"1")
        proxy.to_client.cut_behind(0x56)
        with Consumer(producer.source, end="now", retry_first=0.01) as consumer:
            assert [change.key for change in consumer] == [b"a"]
        assert proxy.counts.truncations == 1


def test_nothing_flows_while_it_is_stalled(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (client, server):
        proxy.to_client.stall()
        server.sendall(b"late")
        client.sendall(b"in time")  # the other direction goes on
        assert read(server, 7) == b"in time"
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        assert proxy.counts.bytes_to_client == 0
        proxy.resume()
        client.settimeout(PATIENCE)
        assert read(client, 4) == b"late"


def test_a_stalled_connection_can_be_cut(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (client, server):
        proxy.stall()
        server.sendall(b"never")
        assert proxy.cut() == 1
        assert is_reset(client)
        proxy.resume()
    with ends(proxy, peer) as (client, server):
        server.sendall(b"later")
        assert read(client, 5) == b"later"


def test_new_connections_are_refused_and_accepted_again(proxy: ChaosProxy, peer: Peer) -> None:
    with ends(proxy, peer) as (client, server):
        port = proxy.port
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        server.sendall(b"older ones stay")
        assert read(client, 15) == b"older ones stay"
        proxy.accept()
        assert proxy.port == port
        with ends(proxy, peer):
            pass


@pytest.mark.parametrize("size", [0, -1])
def test_cutting_after_nothing_is_refused(proxy: ChaosProxy, size: int) -> None:
    with pytest.raises(ConfigError, match=f"size is {size}; it must be 1 byte or more"):
        proxy.cut_after(size)


# ---- by chance ---------------------------------------------------------------------------


def passed(peer: Peer, faults: Faults, how: Callable[[socket.socket], bytes]) -> bytes:
    """What a client gets of many packets."""
    with ChaosProxy(peer.address, seed=3) as proxy:
        proxy.to_client.faults = faults
        with ends(proxy, peer) as (client, server), sending(server, PACKET * 1000):
            return how(client)


def test_truncation_is_the_same_for_the_same_seed(peer: Peer) -> None:
    faults = Faults(truncate_every=20_000)
    first, second = (passed(peer, faults, read_all) for _ in range(2))
    assert first == second
    assert (PACKET * 1000).startswith(first)
    assert 0 < len(first) < len(PACKET) * 1000


def test_other_connections_have_other_faults(proxy: ChaosProxy, peer: Peer) -> None:
    proxy.to_client.faults = Faults(truncate_every=10_000)
    lengths = set()
    for _ in range(4):
        with ends(proxy, peer) as (client, server), sending(server, PACKET * 3000):
            lengths.add(len(read_all(client)))
    assert len(lengths) > 1
    assert proxy.counts.truncations == 4


def test_connections_are_cut_by_chance(proxy: ChaosProxy, peer: Peer) -> None:
    proxy.to_client.faults = Faults(cut_every=10_000)
    with ends(proxy, peer) as (client, server), sending(server, PACKET * 3000):
        assert is_reset(client)
    assert proxy.counts.cuts == 1


def test_headers_are_corrupted_and_nothing_else(peer: Peer) -> None:
    data = passed(peer, Faults(corrupt_every=5000), lambda client: read(client, len(PACKET) * 1000))
    wrong = {at % len(PACKET) for at, byte in enumerate(data) if byte != PACKET[at % len(PACKET)]}
    assert wrong
    assert wrong <= {0, 8, 12}


def test_small_delayed_fragments_lose_nothing(proxy: ChaosProxy, peer: Peer) -> None:
    faults = Faults(fragment=5, delay=0.001)
    proxy.to_client.faults = proxy.to_server.faults = faults
    data = bytes(range(256)) * 8
    with ends(proxy, peer) as (client, server):
        with sending(server, data):
            assert read(client, len(data)) == data
        with sending(client, data):
            assert read(server, len(data)) == data
    assert proxy.counts.delays >= 2


def test_faults_can_end_while_a_connection_goes_on(peer: Peer) -> None:
    with (
        ChaosProxy(peer.address, faults=Faults(fragment=1)) as proxy,
        ends(proxy, peer) as (client, server),
    ):
        server.sendall(b"slow")
        assert read(client, 4) == b"slow"
        proxy.to_client.faults = Faults()
        with sending(server, PACKET * 5000):
            assert read(client, len(PACKET) * 5000) == PACKET * 5000


# ---- before a producer -------------------------------------------------------------------


def test_a_reader_that_is_cut_again_and_again_gets_everything() -> None:
    with (
        ChaosProxy(seed=5, faults=Faults(truncate_every=2000, fragment=100)) as proxy,
        TemporaryProducer(vbuckets=1, advertise=(proxy.host, proxy.port)) as producer,
    ):
        proxy.target = (producer.host, producer.port)
        for number in range(100):
            producer.write(b"k%d" % number, b"v" * 50, vbucket=0)
        branch = producer.bucket.failover_log(0).newest.vbuuid
        seqno = 0
        while seqno < 100:
            try:
                with Talk(proxy) as talk:
                    talk.open()
                    request = m.StreamRequest(
                        vbucket=0,
                        start=seqno,
                        end=NO_END,
                        vbuuid=branch,
                        snapshot_start=seqno,
                        snapshot_end=seqno,
                    )
                    assert talk.ask(request).status is Status.SUCCESS
                    while seqno < 100:
                        message = talk.read()
                        if isinstance(message, m.Mutation):
                            assert message.seqno == seqno + 1
                            seqno = message.seqno
            except ConnectionError:
                continue
        assert proxy.counts.truncations > 0


def test_a_producer_tells_clients_the_proxys_address() -> None:
    with (
        ChaosProxy() as proxy,
        TemporaryProducer(vbuckets=2, advertise=(proxy.host, proxy.port)) as producer,
    ):
        proxy.target = (producer.host, producer.port)
        assert producer.port != proxy.port
        assert producer.source == f"couchbase://127.0.0.1:{proxy.port}/default"
        with Talk(proxy) as talk:
            answer = talk.ask(kv.GetClusterConfig())
        assert f'"serverList":["127.0.0.1:{proxy.port}"]'.encode() in answer.value
        assert str(producer.port).encode() not in answer.value
