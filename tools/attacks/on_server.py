"""Attacks on one ``upriver serve``: its loop, its memory, its descriptors, its doors.

The attacker is a process of its own, and so is the client whose gets are measured meanwhile. The
floods are those of ``benchmarks/fairness.py``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import fairness
import trustme
from fairness import LARGE, MIB, Client

from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.protocol_enums import Feature, OpenFlag

from .report import Row

__all__ = ["ATTACKS", "Arena", "attack"]

#: What a server may take while it is attacked: the memory that connections may hold together
#: (--buffer-memory), RocksDB's caches, copies that are under way.
MOST_MIB = 256 + 256 + 256
#: What may be left of that a while after the attack.
LEFT_MIB = 256
#: Lines of log that a server may write a second, whatever happens to it.
LINES_A_SECOND = 40


@dataclass(frozen=True)
class ServerAttack:
    """What to do to which server."""

    #: Attacks until it is ended; gets the port, and the port of HTTP if there is one.
    run: Callable[[int, int], None]
    did: str
    users: bool = False
    tls: bool = False
    connections: int = 8


@dataclass(frozen=True)
class Arena:
    """Files that all servers of a run share."""

    home: Path
    users: Path = field(init=False)
    certificate: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "users", self.home / "users.json")
        object.__setattr__(self, "certificate", self.home / "server.pem")
        fairness.fill(self.home / "data", 100_000)
        fairness.users_file(self.users)
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(self.certificate)


# ---- the server and its victim -----------------------------------------------------------


@dataclass
class Serving:
    """A server process."""

    process: subprocess.Popen[str]
    port: int
    http: int
    log: Path

    def resident_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def complaint(self, seconds: float) -> str:
        """What its log says that it must not say; empty if nothing."""
        lines = self.log.read_text(errors="replace").splitlines()
        if any("Traceback" in line for line in lines):
            return f"a stack trace in the log: {next(x for x in reversed(lines) if x)}"
        if len(lines) > 100 + LINES_A_SECOND * seconds:
            return f"{len(lines)} lines of log in {seconds:.0f} s"
        return ""


@contextmanager
def serving(arena: Arena, what: ServerAttack) -> Iterator[Serving]:
    log = arena.home / "serve.log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = free.getsockname()[1]
    command = [sys.executable, "-m", "upriver", "serve", "--port", "0"]
    command += ["--data", str(arena.home / "data"), "--http-port", str(http)]
    if what.users:
        command += ["--users", str(arena.users)]
        command += [] if what.tls else ["--plain-without-tls"]
    if what.tls:
        command += ["--certificate", str(arena.certificate), "--key", str(arena.certificate)]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {log.read_text()}")
        yield Serving(process, int(line.split("/")[2].rpartition(":")[2]), http, log)
    finally:
        process.terminate()
        process.wait()


class TlsClient(Client):
    """A client that encrypts; it believes any certificate."""

    def connected(self, port: int) -> socket.socket:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(super().connected(port))


def victim(port: int, users: bool, tls: bool, pipe: Connection) -> None:
    """Measures gets for as many seconds as it is told, as often as it is told."""
    client = (TlsClient if tls else Client)(port, Feature.JSON, Feature.SELECT_BUCKET)
    if users:
        fairness.scram_login(client)
    pipe.send("ready")
    while True:
        seconds = pipe.recv()
        delays, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.perf_counter()
            answer = client.ask(kv.Get(key=fairness.SMALL))
            delays.append((time.perf_counter() - started) * 1000)
            assert isinstance(answer, kv.DocumentResponse), answer
            time.sleep(0.002)
        pipe.send(delays)


def attacker(name: str, port: int, http: int, pipe: Connection) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    what = ATTACKS[name]
    pipe.send("ready")
    fairness.repeat(lambda: what.run(port, http), what.connections)


def attack(arena: Arena, name: str, seconds: float) -> Row:
    """Runs one attack on a server of its own."""
    what = ATTACKS[name]
    row = Row(attack=name, did=what.did)
    context = multiprocessing.get_context("spawn")
    with serving(arena, what) as server:
        pipes: list[Connection] = []

        def started(target: Callable[..., None], *arguments: object) -> BaseProcess:
            """A process that is ready."""
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            ours.recv()
            return process

        reader = started(victim, server.port, what.users, what.tls)
        measured = pipes[0]
        measured.send(min(seconds, 2.0))
        row.idle = measured.recv()
        row.before = row.most = server.resident_mib()
        attacking = started(attacker, name, server.port, server.http)
        time.sleep(1)  # until its pipelines are full
        try:
            measured.send(seconds)
            while not measured.poll(0.25):
                row.most = max(row.most, server.resident_mib())
            row.gets = measured.recv()
            if not row.gets:
                row.failure = "nothing was measured"
        except (EOFError, OSError):
            row.failure = "another client got no answer"
        if not row.failure and not attacking.is_alive():
            row.failure = "the attack itself ended early"
        for process in (attacking, reader):
            process.kill()
            process.join()
        row.failure = row.failure or _aftermath(server, row, seconds)
    return row


def _aftermath(server: Serving, row: Row, seconds: float) -> str:
    """What is wrong with a server after an attack; empty if nothing."""
    if server.process.poll() is not None:
        return f"the server ended with {server.process.returncode}"
    assert row.before is not None
    assert row.most is not None
    deadline = time.monotonic() + 20
    while True:
        row.after = server.resident_mib()
        if row.after - row.before < LEFT_MIB:
            break
        if time.monotonic() > deadline:
            return f"{row.after - row.before:.0f} MiB stay after the attack"
        time.sleep(0.5)
    if row.most - row.before > MOST_MIB:
        return f"the server took {row.most - row.before:.0f} MiB more"
    return server.complaint(seconds + 20)


# ---- the attacks -------------------------------------------------------------------------


def _flood(name: str) -> Callable[[int, int], None]:
    return lambda port, http: fairness.ATTACKS[name](port)


def _header(body: int, opcode: int = 0x01) -> bytes:
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, 3, 8, 0, 0, body, 0, 0)


def _stay() -> None:
    while True:
        time.sleep(1)


def half_packets(port: int, http: int) -> None:
    """Ten clients of 8 connections, each with most of a packet of 20 MiB."""
    held = []
    for _ in range(10):
        client = Client(port)
        client.socket.settimeout(2)
        held.append(client)
        with contextlib.suppress(TimeoutError):  # the server stops reading
            client.socket.sendall(_header(20 * MIB) + b"x" * (19 * MIB))
    _stay()


def packets_of_strangers(port: int, http: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            client = Client(port)
            client.socket.sendall(_header(20 * MIB) + b"x" * (20 * MIB))
            client.socket.recv(1)
            client.socket.close()
        time.sleep(0.01)


def unread_documents(port: int, http: int) -> None:
    client = Client(port)
    client.socket.sendall(client.dialect.encode(kv.Get(key=LARGE)) * 20)
    _stay()


def narrow_streams(port: int, http: int) -> None:
    """Streams of 100,000 documents with a window of one byte, and never an acknowledgement."""
    held = []
    for number in range(16):
        client = Client(port, Feature.JSON)
        client.ask(m.Open(name=f"narrow {os.getpid()} {number}", flags=OpenFlag.PRODUCER))
        client.ask(m.Control(key="connection_buffer_size", value="1"))
        for opaque in range(1, 9):
            request = m.StreamRequest(vbucket=1, start=0, end=2**64 - 1, opaque=opaque)
            client.socket.sendall(client.dialect.encode(request))
        held.append(client)
    _stay()


def silent_connections(port: int, http: int) -> None:
    """As many connections as there may be, and more, on both ports; none says anything."""
    held: list[socket.socket] = []
    while True:
        for where in (port, http):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", where), timeout=5))
        if len(held) >= 8000:
            _stay()


def slow_senders(port: int, http: int) -> None:
    """Sends one byte of a request after the other."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    packet = _header(60_000, opcode=0x21)
    for byte in packet + b"x" * 60_000:
        for one in sockets:
            one.sendall(bytes([byte]))
        time.sleep(0.01)


def mutated_packets(port: int, http: int) -> None:
    """Packets with a few wrong bytes; the server may answer or hang up.

    Opcodes stay as they are: everybody may delete here, and that would be no fault of the server.
    """
    chance = random.Random(os.getpid())
    dialect = Client(port).dialect
    requests: tuple[m.Request, ...] = (
        kv.Get(key=fairness.SMALL),
        kv.GetAllSeqnos(),
        kv.Hello(agent="mutated", features=(Feature.JSON, Feature.XATTR)),
        kv.SaslAuth(mechanism="SCRAM-SHA512", payload=b"n,,n=somebody,r=abcdefgh"),
        m.Open(name="mutated", flags=OpenFlag.PRODUCER),
        m.StreamRequest(vbucket=1, start=0, end=2**64 - 1, opaque=1),
        kv.Stat(group="vbucket-details"),
        kv.GetManifest(),
    )
    originals = [dialect.encode(request) for request in requests]
    while True:
        packet = bytearray(chance.choice(originals))
        for _ in range(chance.randrange(1, 4)):
            packet[chance.randrange(2, len(packet))] = chance.randrange(256)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as one:
            one.settimeout(0.05)
            one.sendall(bytes(packet) * 3)
            one.recv(4096)


def tls_that_ends(port: int, http: int) -> None:
    """Thousands of requests behind which the client closes its side."""
    while True:
        client = TlsClient(port, Feature.JSON)
        client.socket.sendall(client.dialect.encode(kv.GetAllSeqnos()) * 20_000)
        with contextlib.suppress(OSError):
            client.socket.unwrap()  # type: ignore[attr-defined]
        client.socket.close()


def tls_handshakes(port: int, http: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            TlsClient(port).socket.close()


def guessed_passwords(port: int, http: int) -> None:
    """Over HTTP, each with a hash to be made."""
    word = b64encode(b"somebody:wrong").decode()
    request = f"GET /pools HTTP/1.1\r\nAuthorization: Basic {word}\r\n\r\n".encode()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", http)) as one:
            one.sendall(request)
            while one.recv(4096):
                pass


def lines_in_names(port: int, http: int) -> None:
    """Names with line breaks, which would forge lines of the log."""
    forged = "x\n2026-01-01 00:00:00 ERROR Traceback (most recent call last):\r\n"
    client = Client(port, Feature.JSON)
    while True:
        client.ask(kv.Hello(agent=forged, features=(Feature.JSON,)))
        client.ask(m.Open(name=forged, flags=OpenFlag.PRODUCER))
        guess = json.dumps({"a": forged, "i": "0"})
        client.ask(kv.Hello(agent=guess, features=(Feature.JSON,)))
        client.ask(kv.SaslAuth(mechanism="PLAIN", payload=f"\0{forged}\0x".encode()))


ATTACKS: dict[str, ServerAttack] = {
    **{
        name: ServerAttack(
            _flood(name),
            "pipelines on 8 connections",
            users=name in fairness.UNAUTHENTICATED,
        )
        for name in fairness.ATTACKS
    },
    "half packets": ServerAttack(half_packets, "80 packets of 20 MiB, none of them whole"),
    "packets of strangers": ServerAttack(
        packets_of_strangers, "20 MiB before any authentication", users=True
    ),
    "unread documents": ServerAttack(
        unread_documents, "64 clients ask for 400 MiB each and read nothing", connections=64
    ),
    "windows of one byte": ServerAttack(narrow_streams, "1,024 streams that may send one byte"),
    "silent connections": ServerAttack(
        silent_connections, "8,000 connections on both ports", users=True, connections=1
    ),
    "silent TLS connections": ServerAttack(
        silent_connections, "8,000 without a handshake", users=True, tls=True, connections=1
    ),
    "slow senders": ServerAttack(slow_senders, "200 clients, a byte at a time", connections=1),
    "mutated packets": ServerAttack(mutated_packets, "valid packets with wrong bytes"),
    "TLS handshakes": ServerAttack(tls_handshakes, "one after the other", users=True, tls=True),
    "TLS that ends": ServerAttack(tls_that_ends, "20,000 GetAllSeqnos, then the end", tls=True),
    "guessed passwords over HTTP": ServerAttack(
        guessed_passwords, "Basic authentication, 64 at a time", users=True, connections=64
    ),
    "line breaks in names": ServerAttack(lines_in_names, "agents, connections, users"),
}
