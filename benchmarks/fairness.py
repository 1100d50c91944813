"""How long another client's get takes while one kind of client does its worst.

    python benchmarks/fairness.py [--seconds 8] [--connections 8] [--only NAME ...]

The server is a process of its own, started as a user starts it; so are the victim, whose gets are
measured one by one, and the attacker, which keeps its requests in a pipeline on several
connections at once. A row of the table is one attack: latencies before it, latencies under it,
and what both it and the server spent. At the end stands what a thousand idle streams cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from machine import machine_line
from processes import cpu_seconds

from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.session.sasl_client import ScramClient
from upriver.store import BucketSettings, SetDocument, Store
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag

VBUCKETS = 1024
NAME, PASSWORD = "somebody", "correct horse battery staple"
SMALL, LARGE, PARTED = b"small", b"large", b"parted"
#: The collection that has one document among 100,000 of another.
RARE, COMMON = 8, 9
MIB = 1024 * 1024
RECEIVE = 256 * 1024


# ---- the server --------------------------------------------------------------------------


def fill(data: Path, documents: int) -> None:
    with Store(data) as store:
        bucket = store.create_bucket("default", BucketSettings(vbuckets=VBUCKETS))
        assert bucket.create_collection(0, "rare").id == RARE
        assert bucket.create_collection(0, "common").id == COMMON
        members = ",".join(f'"name{number}":{{"value":{number}}}' for number in range(40_000))
        bucket.write_many(
            [
                SetDocument(0, b"\0" + SMALL, b'{"a":1}', 0, 0, 1),
                SetDocument(0, b"\0" + LARGE, b"x" * (20 * MIB)),
                SetDocument(0, b"\0" + PARTED, b"{%s}" % members.encode(), 0, 0, 1),
                SetDocument(1, bytes([RARE]) + b"only", b"{}", 0, 0, 1),
            ]
        )
        value = b'{"text":"' + b"x" * 189 + b'"}'
        for start in range(0, documents, 4000):
            names = (b"doc%08d" % n for n in range(start, min(start + 4000, documents)))
            bucket.write_many([SetDocument(1, bytes([COMMON]) + n, value, 0, 0, 1) for n in names])


def users_file(path: Path) -> None:
    users = Users()
    users.add(NAME, PASSWORD, Grant(Role.ADMINISTER, "*"))
    users.save(path)


@contextmanager
def serving(data: Path, *more: str) -> Iterator[tuple[int, int]]:
    """A server process: its port and its process id."""
    command = [sys.executable, "-m", "upriver", "serve", "--port", "0", "--data", str(data), *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(line.split("/")[2].rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait()


class Client:
    """One socket, and requests that are answered one by one."""

    def __init__(self, port: int, *features: Feature) -> None:
        self.dialect = Dcp(collections=Feature.COLLECTIONS in features)
        self.socket = self.connected(port)
        self._framer = Framer()
        self._packets: list[bytes] = []
        if features:
            self.ask(kv.Hello(agent="fairness", features=features))

    def connected(self, port: int) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def packet(self) -> bytes:
        while not self._packets:
            chunk = self.socket.recv(RECEIVE)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._packets += self._framer.feed(chunk)
        return self._packets.pop(0)

    def ask(self, request: m.Request) -> m.Message:
        self.socket.sendall(self.dialect.encode(request))
        return self.dialect.decode(self.packet())


# ---- the attacks -------------------------------------------------------------------------


def flood(client: Client, burst: bytes) -> None:
    """Keeps a pipeline full for ever, and reads what comes without a look at it."""

    def read() -> None:
        buffer = bytearray(RECEIVE)
        while client.socket.recv_into(buffer):
            pass

    threading.Thread(target=read, daemon=True).start()
    while True:
        client.socket.sendall(burst)


def pipeline(*requests: m.Request, count: int) -> Callable[[int], None]:
    """An attack that repeats requests."""

    def attack(port: int) -> None:
        client = Client(port, Feature.JSON, Feature.XATTR)
        flood(client, b"".join(map(client.dialect.encode, requests)) * count)

    return attack


def refused_gets(port: int) -> None:
    client = Client(port)
    flood(client, client.dialect.encode(kv.Get(key=SMALL)) * 4000)


def scram_firsts(port: int) -> None:
    client = Client(port)
    first = kv.SaslAuth(mechanism="SCRAM-SHA512", payload=b"n,,n=somebody,r=abcdefgh")
    flood(client, client.dialect.encode(first) * 2000)


def filtered_streams(port: int) -> None:
    """Reads the one document of a collection, with all those of another before it."""
    while True:
        client = Client(port, Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        client.ask(m.Open(name=f"filtered {os.getpid()} {id(client)}", flags=OpenFlag.PRODUCER))
        client.ask(m.Control(key="enable_noop", value="true"))
        wanted = json.dumps({"collections": [f"{RARE:x}"]}).encode()
        request = m.StreamRequest(
            vbucket=1, start=0, end=2**64 - 1, flags=StreamFlag.TO_LATEST, opaque=1, filter=wanted
        )
        answer = client.ask(request)
        assert isinstance(answer, m.StreamAccepted), answer
        while not isinstance(client.dialect.decode(client.packet()), m.StreamEnd):
            pass
        client.socket.close()


def manifests(port: int) -> None:
    """Sets a manifest of as many collections as there may be, and as many too many, by turns."""
    client = Client(port, Feature.JSON)

    def manifest(count: int, uid: int) -> bytes:
        collections = [{"name": f"c{n}", "uid": f"{n:x}"} for n in range(RARE, RARE + count)]
        default = {"name": "_default", "uid": "0"}
        scope = {"name": "_default", "uid": "0", "collections": [default, *collections]}
        return json.dumps({"uid": f"{uid:x}", "scopes": [scope]}).encode()

    far_too_many = client.dialect.encode(kv.SetManifest(manifest=manifest(200_000, 10**6)))
    asked = client.dialect.encode(kv.GetManifest())
    flood(client, far_too_many + asked * 100)


def observed(count: int) -> kv.Observe:
    return kv.Observe(keys=tuple((0, SMALL) for _ in range(count)))


ATTACKS: dict[str, Callable[[int], None]] = {
    "refused gets, unauthenticated": refused_gets,
    "SCRAM first messages": scram_firsts,
    "statistics of all vbuckets": pipeline(kv.Stat(group="vbucket-details"), count=50),
    "statistics": pipeline(kv.Stat(group=""), count=500),
    "GetAllSeqnos": pipeline(kv.GetAllSeqnos(), count=1000),
    "sub-documents of 1 MiB": pipeline(
        kv.SubdocOperation(command=Command.SUBDOC_GET, key=PARTED, path=b"name39999"), count=100
    ),
    "gets of 20 MiB": pipeline(kv.Get(key=LARGE), count=20),
    "Observe of 10,000 keys": pipeline(observed(10_000), count=2),
    "HELLO": pipeline(kv.Hello(agent="x" * 200, features=(Feature.JSON,)), count=1000),
    "filtered streams, 1 of 100,000": filtered_streams,
    "manifests": manifests,
}
#: Attacks that need nothing but a connection, on a server that has users.
UNAUTHENTICATED = frozenset({"refused gets, unauthenticated", "SCRAM first messages"})


def attacker(name: str, port: int, connections: int) -> None:
    """A process that attacks until it is ended."""
    repeat(lambda: ATTACKS[name](port), connections)


def repeat(attack: Callable[[], None], connections: int) -> None:
    """Attacks on several connections at once, again whenever the server closes one.

    Any other fault is one of the attack, and ends the process.
    """

    def run() -> None:
        try:
            while True:
                with contextlib.suppress(OSError):
                    attack()
                time.sleep(0.05)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- the victim --------------------------------------------------------------------------


def scram_login(client: Client) -> None:
    """Says who it is, so that a server with users answers gets."""
    exchange = ScramClient("SCRAM-SHA512", NAME, PASSWORD)
    first = kv.SaslAuth(mechanism="SCRAM-SHA512", payload=exchange.first())
    challenge = client.ask(first)
    assert isinstance(challenge, m.PlainResponse), challenge
    salted = exchange.hashing(challenge.value)()
    proof = exchange.answer(challenge.value, salted)
    final = client.ask(kv.SaslStep(mechanism="SCRAM-SHA512", payload=proof))
    assert isinstance(final, m.PlainResponse), final
    exchange.check(final.value)
    client.ask(kv.SelectBucket(bucket="default"))


def victim(port: int, login: bool, pipe: Connection) -> None:
    """Measures gets for as many seconds as it is told, as often as it is told."""
    client = Client(port, Feature.JSON, Feature.SELECT_BUCKET)
    if login:
        scram_login(client)
    while (seconds := pipe.recv()) is not None:
        delays, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.perf_counter()
            answer = client.ask(kv.Get(key=SMALL))
            delays.append((time.perf_counter() - started) * 1000)
            assert isinstance(answer, kv.DocumentResponse), answer
            time.sleep(0.002)
        pipe.send(sorted(delays))


@dataclass(frozen=True)
class Latency:
    """What gets took, in milliseconds."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, delays: list[float]) -> Latency:
        last = len(delays) - 1
        return cls(delays[last // 2], delays[int(last * 0.99)], delays[last])

    def __str__(self) -> str:
        return f"{self.p50:8.2f} {self.p99:8.2f} {self.most:8.2f}"


def measure(name: str, data: Path, users: Path, seconds: float, connections: int) -> None:
    login = name in UNAUTHENTICATED
    context = multiprocessing.get_context("spawn")
    with serving(data, *(("--users", str(users)) if login else ())) as (port, pid):
        ours, theirs = context.Pipe()
        reader = context.Process(target=victim, args=(port, login, theirs), daemon=True)
        reader.start()
        theirs.close()  # so that a victim that fails ends the run
        ours.send(min(seconds, 3.0))
        before = Latency.of(ours.recv())
        attack = context.Process(target=attacker, args=(name, port, connections), daemon=True)
        attack.start()
        time.sleep(1)  # until its pipelines are full
        assert attack.pid is not None
        spent = cpu_seconds(pid), cpu_seconds(attack.pid)
        ours.send(seconds)
        under = Latency.of(ours.recv())
        server, other = cpu_seconds(pid) - spent[0], cpu_seconds(attack.pid) - spent[1]
        assert attack.is_alive(), f"the attack {name!r} has ended"
        print(f"{name:32} {before}  {under}  {server:6.1f} {other:6.1f}", flush=True)
        attack.kill()
        attack.join()
        ours.send(None)
        reader.join()


# ---- idle streams ------------------------------------------------------------------------


def idle_streams(data: Path, seconds: float) -> None:
    """What the server spends while 1,024 streams have nothing to do, on one and on many links."""
    for links in (1, 128):
        with serving(data) as (port, pid):
            clients = [
                Client(port, Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
                for _ in range(links)
            ]
            for number, client in enumerate(clients):
                client.ask(m.Open(name=f"idle{number}", flags=OpenFlag.PRODUCER))
                client.ask(m.Control(key="enable_noop", value="true"))
                for vbucket in range(number, VBUCKETS, links):
                    client.ask(
                        m.StreamRequest(
                            vbucket=vbucket,
                            start=0,
                            end=2**64 - 1,
                            flags=StreamFlag.FROM_LATEST,
                            opaque=vbucket + 1,
                        )
                    )
            time.sleep(1)
            before = cpu_seconds(pid)
            time.sleep(seconds)
            share = (cpu_seconds(pid) - before) / seconds
            print(f"1,024 idle streams on {links} connections: {share:.2%} of a core", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=list(ATTACKS), help="some of the attacks")
    options = parser.parse_args()
    print(machine_line("rocksdict"))
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as scratch:
        data, users = Path(scratch) / "data", Path(scratch) / "users.json"
        fill(data, 100_000)
        users_file(users)
        print(f"{'get, p50 p99 max in ms':33}{'before':29}{'under attack':27}CPU s: server, other")
        for name in options.only:
            measure(name, data, users, options.seconds, options.connections)
        idle_streams(data, options.seconds)


if __name__ == "__main__":
    main()
