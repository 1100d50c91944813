"""What streams cost the server that do not want everything: CPU seconds of one backfill each.

    python benchmarks/streams.py [--docs 500000] [--runs 3]

The server is a process of its own; its CPU time is the system's account of it. Each kind of
stream reads all vbuckets to their ends; the ratio is to the stream that wants everything. One in a
hundred documents is in a collection of its own, and one in another; the others are in the default
one. A second bucket has documents with extended attributes.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import machine_line
from processes import cpu_seconds
from producer import VALUE, key, serving
from producer import vbucket_of as vbucket_of_1024

from upriver.store import Bucket, BucketSettings, SetDocument, Store
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire import values
from upriver.wire.columns import __impl__
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Command, Feature, OpenFlag, StreamFlag

EVERYTHING = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
#: Few, so that the changes count and not the opening of streams.
VBUCKETS = 64
RECEIVE = 1 << 20
ATTRIBUTED = values.join_xattrs({"_sync": b'{"rev":"1-2","sequence":17}'}, VALUE)
_STREAM_END = Dcp.table.opcodes[Command.STREAM_END]
_HEADER = struct.Struct(">xB6xI")


def vbucket_of(name: bytes) -> int:
    return vbucket_of_1024(name) % VBUCKETS


@dataclass(frozen=True)
class Kind:
    """One way to read a bucket."""

    name: str
    flags: OpenFlag = EVERYTHING
    collections: bool = True
    filter: str = ""
    stream_id: bool = False
    bucket: str = "default"


def fill(data: Path, documents: int) -> dict[str, int]:
    """Writes both buckets; returns the ids of the collections."""
    with Store(data) as store:
        bucket = store.create_bucket("default", BucketSettings(vbuckets=VBUCKETS))
        ids = {name: bucket.create_collection(0, name).id for name in ("percent", "single")}
        places = [0] * 99 + [ids["percent"]]
        write(bucket, documents, VALUE, 1, lambda n: places[n % 100])
        name = key(documents)
        bucket.write(SetDocument(vbucket_of(name), bytes([ids["single"]]) + name, VALUE, 0, 0, 1))
        other = store.create_bucket("attributes", BucketSettings(vbuckets=VBUCKETS))
        write(other, documents, ATTRIBUTED, 5, lambda n: 0)
    return ids


def write(
    bucket: Bucket, documents: int, value: bytes, datatype: int, collection: Callable[[int], int]
) -> None:
    for start in range(0, documents, 4000):
        bucket.write_many(
            [
                SetDocument(
                    vbucket_of(key(n)), bytes([collection(n)]) + key(n), value, 0, 0, datatype
                )
                for n in range(start, min(start + 4000, documents))
            ]
        )


def read_all(port: int, kind: Kind) -> tuple[int, int]:
    """Reads every vbucket to its end; returns packets and bytes."""
    dialect = Dcp(collections=kind.collections)
    connection = socket.create_connection(("127.0.0.1", port))
    framer = Framer()

    def ask(request: m.Request) -> None:
        connection.sendall(dialect.encode(request))
        while not (answers := list(framer.feed(connection.recv(RECEIVE)))):
            pass
        answer = dialect.decode(answers[0])
        assert isinstance(answer, m.Response), answer
        assert answer.status.name == "SUCCESS", answer

    features = [Feature.XATTR, Feature.SNAPPY, Feature.JSON, Feature.SELECT_BUCKET]
    ask(kv.Hello(agent="bench", features=(*features, *([Feature.COLLECTIONS] * kind.collections))))
    ask(kv.SelectBucket(bucket=kind.bucket))
    ask(m.Open(name=f"streams-{time.monotonic_ns()}", flags=OpenFlag.PRODUCER | kind.flags))
    ask(m.Control(key="enable_noop", value="true"))
    ask(m.Control(key="set_noop_interval", value="3600"))
    ask(m.Control(key="enable_expiry_opcode", value="true"))
    if kind.stream_id:
        ask(m.Control(key="enable_stream_id", value="true"))
    wanted = kind.filter.encode()
    connection.sendall(
        b"".join(
            dialect.encode(
                m.StreamRequest(
                    vbucket=v,
                    start=0,
                    end=2**64 - 1,
                    flags=StreamFlag.TO_LATEST,
                    opaque=v + 1,
                    filter=wanted,
                )
            )
            for v in range(VBUCKETS)
        )
    )
    ends = packets = size = 0
    buffer = bytearray()
    while ends < VBUCKETS:
        chunk = connection.recv(RECEIVE)
        assert chunk, "the server closed the connection"
        size += len(chunk)
        buffer += chunk
        at, last = 0, len(buffer) - 24
        while at <= last:
            opcode, body = _HEADER.unpack_from(buffer, at)
            if at + 24 + body > len(buffer):
                break
            at += 24 + body
            packets += 1
            ends += opcode == _STREAM_END
        del buffer[:at]
    connection.close()
    return packets, size


def measure(port: int, pid: int, kind: Kind) -> tuple[float, int, int]:
    """The server's CPU time for one reader, and what it sent."""
    before = cpu_seconds(pid)
    packets, size = read_all(port, kind)
    return cpu_seconds(pid) - before, packets, size


def kinds(ids: dict[str, int]) -> list[Kind]:
    def only(*numbers: int) -> str:
        return '{"collections":[' + ",".join(f'"{n:x}"' for n in numbers) + "]}"

    return [
        Kind("everything"),
        Kind("filter, all match", filter=only(0, *ids.values())),
        Kind("filter, 1 % match", filter=only(ids["percent"])),
        Kind("filter, one match", filter=only(ids["single"])),
        Kind("without collections", collections=False),
        Kind("stream id", filter='{"sid":7}', stream_id=True),
        Kind("no value", flags=EVERYTHING | OpenFlag.NO_VALUE),
        Kind("no delete times", flags=OpenFlag.INCLUDE_XATTRS),
        Kind("everything, with xattrs", bucket="attributes"),
        Kind("xattrs stripped", flags=OpenFlag.INCLUDE_DELETE_TIMES, bucket="attributes"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(machine_line("rocksdict", "numpy"))
    print(f"{options.docs:,} documents of {len(VALUE)} B, columns in {__impl__}")
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as scratch:
        data = Path(scratch) / "data"
        ids = fill(data, options.docs)
        with serving(data) as (port, pid):
            for bucket in ("default", "attributes"):
                read_all(port, Kind("", bucket=bucket))  # reads cold files
            best: dict[Kind, tuple[float, int, int]] = {}
            for _ in range(options.runs):  # in turns, so that a busy moment does not hit one kind
                for kind in kinds(ids):
                    found = measure(port, pid, kind)
                    best[kind] = min(best.get(kind, found), found)
            base = 0.0
            for kind, (seconds, packets, size) in best.items():
                base = seconds if kind.name.startswith("everything") else base
                print(
                    f"  {kind.name:<24} {seconds:6.2f} s CPU  {seconds / base:5.2f} x"
                    f"  {packets:>9,} packets  {size / 2**20:7,.1f} MiB"
                )


if __name__ == "__main__":
    main()
