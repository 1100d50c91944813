"""The producer over a real socket: backfill, live tail, pipelined writes, memory.

    python benchmarks/producer.py [--docs 1000000] [--quick]

The server is a process of its own, started as a user starts it. Beside each figure stands what
the machine itself can do: a raw loopback socket for the backfill, Debian's memcached for writes.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machine import machine_line
from processes import resident_mib

from upriver.store import BucketSettings, SetDocument, Store
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Feature, OpenFlag, StreamFlag

VBUCKETS = 1024
VALUE = b'{"text":"' + b"x" * 189 + b'"}'
FRAME = 24 + 31 + 12 + len(VALUE)
RECEIVE = 1 << 20


def key(number: int) -> bytes:
    return b"doc%08d" % number


def vbucket_of(name: bytes) -> int:
    return (zlib.crc32(name) >> 16 & 0x7FFF) % VBUCKETS


@contextmanager
def serving(data: Path) -> Iterator[tuple[int, int]]:
    """A server process: its port and its process id."""
    command = [sys.executable, "-m", "upriver", "serve", "--port", "0", "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(line.split("/")[2].rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait()


class Client:
    """Enough of a consumer to open streams and count bytes."""

    def __init__(self, port: int, name: str) -> None:
        self.dialect = Dcp(collections=True)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._framer = Framer()
        self._packets: list[bytes] = []
        features = (Feature.COLLECTIONS, Feature.XATTR, Feature.SNAPPY, Feature.JSON)
        self.ask(kv.Hello(agent=name, features=features))
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
        self.ask(m.Open(name=name, flags=flags))
        self.ask(m.Control(key="enable_noop", value="true"))
        self.ask(m.Control(key="set_noop_interval", value="3600"))
        self.ask(m.Control(key="enable_expiry_opcode", value="true"))

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(map(self.dialect.encode, messages)))

    def ask(self, request: m.Request) -> m.Message:
        self.send(request)
        return self.dialect.decode(self.packet())

    def packet(self) -> bytes:
        while not self._packets:
            self._packets += self._framer.feed(self.socket.recv(RECEIVE))
        return self._packets.pop(0)

    def stream_everything(self, flags: StreamFlag = StreamFlag.NONE) -> None:
        self.send(
            *(
                m.StreamRequest(vbucket=v, start=0, end=2**64 - 1, flags=flags, opaque=v + 1)
                for v in range(VBUCKETS)
            )
        )

    def count(self, wanted: int) -> int:
        """Reads at least so many bytes and looks at none of them."""
        buffer, got = bytearray(RECEIVE), 0
        while got < wanted:
            got += self.socket.recv_into(buffer)
        return got


def fill(data: Path, documents: int) -> None:
    with Store(data) as store:
        bucket = store.create_bucket("default", BucketSettings(vbuckets=VBUCKETS))
        for start in range(0, documents, 4000):
            names = map(key, range(start, min(start + 4000, documents)))
            bucket.write_many(
                [SetDocument(vbucket_of(n), b"\0" + n, VALUE, 0, 0, 1) for n in names]
            )


def raw_socket(size: int) -> float:
    """Bytes a second of a process that only sends, read by one that only counts."""
    sender = (
        "import socket,sys\n"
        "s=socket.create_server(('127.0.0.1',0));print(s.getsockname()[1],flush=True)\n"
        "c,_=s.accept();b=bytes(1<<20)\n"
        f"for _ in range({size >> 20}): c.sendall(b)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", sender], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reader = socket.create_connection(("127.0.0.1", int(process.stdout.readline())))
    buffer, got, started = bytearray(RECEIVE), 0, time.perf_counter()
    while chunk := reader.recv_into(buffer):
        got += chunk
    process.wait()
    return got / (time.perf_counter() - started)


def backfill(port: int, documents: int) -> float:
    client = Client(port, "backfill")
    started = time.perf_counter()
    client.stream_everything(StreamFlag.TO_LATEST)
    client.count(documents * FRAME)
    seconds = time.perf_counter() - started
    client.socket.close()
    return seconds


def live_tail(port: int, rate: int, seconds: float) -> list[float]:
    """Delays from a write's answer to its delivery, in milliseconds."""
    reader, writer = Client(port, "tail"), Client(port, "writer")
    reader.send(
        *(
            m.StreamRequest(
                vbucket=v, start=0, end=2**64 - 1, flags=StreamFlag.FROM_LATEST, opaque=v + 1
            )
            for v in range(VBUCKETS)
        )
    )
    for _ in range(VBUCKETS):
        reader.packet()
    total = int(rate * seconds)
    answered = [0.0] * total
    delivered = [0.0] * total

    def read_changes() -> None:
        seen = 0
        while seen < total:
            message = reader.dialect.decode(reader.packet())
            if isinstance(message, m.Mutation) and message.key.startswith(b"live"):
                delivered[int(message.key[4:])] = time.perf_counter()
                seen += 1

    def read_answers() -> None:
        for _ in range(total):
            packet = writer.packet()
            answered[struct.unpack_from(">I", packet, 12)[0]] = time.perf_counter()

    threads = [threading.Thread(target=read_changes), threading.Thread(target=read_answers)]
    for thread in threads:
        thread.start()
    began, burst = time.perf_counter(), max(1, rate // 1000)
    for first in range(0, total, burst):
        pause = began + first / rate - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        names = [b"live%07d" % n for n in range(first, min(first + burst, total))]
        writer.send(
            *(
                kv.Set(key=n, collection=0, vbucket=vbucket_of(n), value=VALUE, opaque=int(n[4:]))
                for n in names
            )
        )
    for thread in threads:
        thread.join()
    reader.socket.close()
    writer.socket.close()
    return sorted(max(0.0, d - a) * 1000 for d, a in zip(delivered, answered, strict=True))


_SETQ = struct.Struct(">BBHBBHIIQII")
_NOOP = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 7, 0)


def quiet_sets(port: int, documents: int) -> float:
    """Pipelined quiet sets a second, with a noop after each thousand to learn of errors."""
    chunks = []
    for start in range(0, documents, 1000):
        parts = []
        for number in range(start, start + 1000):
            name = b"set%08d" % number
            body = 8 + len(name) + len(VALUE)
            head = _SETQ.pack(0x80, 0x11, len(name), 8, 0, vbucket_of(name), body, number, 0, 0, 0)
            parts.append(head + name + VALUE)
        chunks.append(b"".join(parts) + _NOOP)
    connection = socket.create_connection(("127.0.0.1", port))
    answers = len(chunks) * len(_NOOP)
    received = bytearray()

    def read_answers() -> None:
        while len(received) < answers:
            received.extend(connection.recv(RECEIVE))

    thread = threading.Thread(target=read_answers)
    started = time.perf_counter()
    thread.start()
    for chunk in chunks:
        connection.sendall(chunk)
    thread.join()
    seconds = time.perf_counter() - started
    assert len(received) == answers, "a write was refused"
    connection.close()
    return documents / seconds


def memcached_sets(documents: int) -> float | None:
    program = shutil.which("memcached")
    if program is None:
        return None
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [program, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-m", "1024", "-t", "1"]
    process = subprocess.Popen(command)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        return quiet_sets(port, documents)
    finally:
        process.terminate()
        process.wait()


def stalled_reader(port: int, pid: int) -> tuple[float, float]:
    """Resident memory with 1024 streams that nobody reads, before and after."""
    before = resident_mib(pid)
    client = Client(port, "stalled")
    client.stream_everything()
    time.sleep(3)
    after = resident_mib(pid)
    client.socket.close()
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    documents = options.docs // 10 if options.quick else options.docs
    sets = 20_000 if options.quick else 200_000
    print(machine_line("rocksdict", "numpy"))
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as scratch:
        data = Path(scratch) / "data"
        fill(data, documents)
        raw = raw_socket(documents * FRAME)
        with serving(data) as (port, pid):
            for _ in range(2):  # the first reads cold files
                seconds = backfill(port, documents)
            rate = documents / seconds
            bytes_a_second = documents * FRAME / seconds
            print(f"backfill of {documents:,} documents of {len(VALUE)} B:")
            print(f"  {rate:,.0f} messages/s, {bytes_a_second / 2**20:,.0f} MiB/s")
            print(f"  a raw loopback socket: {raw / 2**20:,.0f} MiB/s")
            delays = live_tail(port, 5000, 1.0 if options.quick else 10.0)
            p50, p99 = statistics.median(delays), delays[int(len(delays) * 0.99)]
            print("live tail at 5,000 writes/s, answer to delivery:")
            print(f"  p50 {p50:.2f} ms, p99 {p99:.2f} ms")
            print("pipelined quiet sets, one connection:")
            print(f"  {quiet_sets(port, sets):,.0f}/s, durable")
            other = memcached_sets(sets)
            print(f"  memcached: {other:,.0f}/s, in memory" if other else "  (no memcached here)")
            before, after = stalled_reader(port, pid)
            print("resident memory of the server:")
            memory = f"{before:.0f} MiB, with 1,024 streams and a stalled reader {after:.0f} MiB"
            print(f"  {memory}")


if __name__ == "__main__":
    main()
