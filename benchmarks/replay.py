"""A trivial sender: a node whose changes were recorded before, so that only the reader is measured.

    python benchmarks/replay.py --vbuckets 16 --docs 1000000 [--value 200]

prints its port and serves until it is killed. It answers what a reader asks before it streams and
keeps to the flow-control window, and checks nothing. All documents have one size, so a stream is
an array of which two fields are written over. A thread serves each connection.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from upriver.errors import Status
from upriver.model import FailoverEntry
from upriver.wire import canonical
from upriver.wire import kv_messages as kv
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.protocol_enums import Feature, MarkerFlag

PIECE = 1 << 20
VBUUID = 0x5EED
_LOG = (FailoverEntry(VBUUID, 0),)
_MANIFEST = (
    b'{"uid":"0","scopes":[{"name":"_default","uid":"0",'
    b'"collections":[{"name":"_default","uid":"0"}]}]}'
)


def record(documents: int, value_size: int) -> npt.NDArray[np.uint8]:
    """The frames of a vbucket, one a row."""
    value = b'{"text":"' + b"x" * (value_size - 11) + b'"}'
    cas = 1_700_000_000_000_000_000
    frames = b"".join(
        canonical.mutation(0, n, 1, cas + (n << 16), 0, 0, 1, b"\0doc%09d" % n, value)
        for n in range(1, documents + 1)
    )
    return np.frombuffer(frames, np.uint8).reshape(documents, -1)


class Connection:
    """One reader."""

    def __init__(self, link: socket.socket, frames: npt.NDArray[np.uint8], vbuckets: int) -> None:
        self._link = link
        self._frames = frames
        self._vbuckets = vbuckets
        self._port = link.getsockname()[1]
        self._dialect = Dcp(collections=True)
        self._framer = Framer()
        self._window = self._outstanding = 0
        #: What is still to be sent, made when its turn comes.
        self._queue: deque[Iterator[memoryview]] = deque()

    def serve(self) -> None:
        try:
            while self._read(wait=not self._can_send()):
                if self._can_send():
                    piece = next(self._queue[0], None)
                    if piece is None:
                        self._queue.popleft()
                        continue
                    self._link.sendall(piece)
                    self._outstanding += len(piece)
        except OSError:
            pass
        self._link.close()

    def _can_send(self) -> bool:
        return bool(self._queue) and not (self._window and self._outstanding >= self._window)

    def _read(self, *, wait: bool) -> bool:
        if not wait and not select.select([self._link], [], [], 0)[0]:
            return True
        data = self._link.recv(PIECE)
        for packet in self._framer.feed(data):
            self._answer(self._dialect.decode(packet))
        return bool(data)

    def _send(self, *messages: m.Message) -> None:
        self._link.sendall(b"".join(map(self._dialect.encode, messages)))

    def _answer(self, request: m.Message) -> None:
        if isinstance(request, m.BufferAck):
            self._outstanding -= request.size
        elif isinstance(request, m.StreamRequest):
            self._stream(request)
        elif isinstance(request, kv.Stat):
            self._statistics(request)
        elif isinstance(request, m.Request):
            if isinstance(request, m.Control) and request.key == "connection_buffer_size":
                self._window = int(request.value)
            answer = self._response(request)
            self._send(replace(answer, opaque=request.opaque))

    def _response(self, request: m.Request) -> m.Response:
        command = self._dialect.command_of(request)
        if isinstance(request, kv.Hello):
            wanted = (Feature.COLLECTIONS, Feature.XATTR, Feature.JSON, Feature.SELECT_BUCKET)
            return kv.HelloResponse(features=tuple(f for f in request.features if f in wanted))
        if isinstance(request, kv.GetClusterConfig):
            return m.PlainResponse(command=command, value=self._map())
        if isinstance(request, kv.GetManifest):
            return m.PlainResponse(command=command, value=_MANIFEST)
        if isinstance(request, kv.GetAllSeqnos):
            seqnos = tuple((vb, len(self._frames)) for vb in range(self._vbuckets))
            return kv.AllSeqnosResponse(seqnos=seqnos)
        if isinstance(request, m.FailoverLogRequest):
            return m.FailoverLogResponse(failover_log=_LOG)
        if isinstance(request, kv.GetFailoverLog):
            return kv.GetFailoverLogResponse(failover_log=_LOG)
        known = isinstance(request, m.Open | m.Control | kv.SelectBucket | m.CloseStream | kv.Noop)
        status = Status.SUCCESS if known else Status.UNKNOWN_COMMAND
        return m.PlainResponse(command=command, status=status)

    def _statistics(self, request: kv.Stat) -> None:
        """Where vbuckets are, of one or of all: the only group that readers ask for."""
        one = request.group.partition(" ")[2]
        facts = {"uuid": VBUUID, "high_seqno": len(self._frames), "purge_seqno": 0}
        found = {
            f"vb_{vbucket}:{name}": str(value)
            for vbucket in ([int(one)] if one else range(self._vbuckets))
            for name, value in facts.items()
        }
        answers = [
            kv.StatResponse(opaque=request.opaque, key=name, value=value.encode())
            for name, value in found.items()
        ]
        self._send(*answers, kv.StatResponse(opaque=request.opaque))

    def _map(self) -> bytes:
        here = f"127.0.0.1:{self._port}"
        document = {
            "rev": 1,
            "name": "default",
            "uuid": "0123456789abcdef",
            "nodeLocator": "vbucket",
            "nodesExt": [{"services": {"kv": self._port}, "hostname": "127.0.0.1"}],
            "vBucketServerMap": {
                "numReplicas": 0,
                "serverList": [here],
                "vBucketMap": [[0]] * self._vbuckets,
            },
        }
        return json.dumps(document).encode()

    def _stream(self, request: m.StreamRequest) -> None:
        self._send(m.StreamAccepted(opaque=request.opaque, failover_log=_LOG))
        self._queue.append(self._pieces(request))

    def _pieces(self, request: m.StreamRequest) -> Iterator[memoryview]:
        vbucket, opaque = request.vbucket, request.opaque
        end = min(request.end, len(self._frames))
        marker = m.SnapshotMarker(
            vbucket=vbucket, opaque=opaque, start=request.start, end=end, flags=MarkerFlag.DISK
        )
        if end > request.start:
            yield memoryview(self._dialect.encode(marker))
        head = np.frombuffer(struct.pack(">HI", vbucket, opaque), np.uint8)
        rows = max(1, PIECE // self._frames.shape[1])
        for first in range(request.start, end, rows):
            piece = self._frames[first : min(first + rows, end)].copy()
            piece[:, 6:8] = head[:2]
            piece[:, 12:16] = head[2:]
            yield piece.data.cast("B")
        if request.end < 2**64 - 1:
            finished = m.StreamEnd(vbucket=vbucket, opaque=opaque)
            yield memoryview(self._dialect.encode(finished))


@contextmanager
def replaying(vbuckets: int, documents: int, value_size: int = 200) -> Iterator[int]:
    """Such a sender as a process of its own; its port."""
    command = [sys.executable, str(Path(__file__)), "--vbuckets", str(vbuckets)]
    command += ["--docs", str(documents), "--value", str(value_size)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vbuckets", type=int, default=16)
    parser.add_argument("--docs", type=int, default=1_000_000, help="of all vbuckets together")
    parser.add_argument("--value", type=int, default=200)
    options = parser.parse_args()
    frames = record(options.docs // options.vbuckets, options.value)
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    while True:
        link, _ = server.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(link, frames, options.vbuckets)
        threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    main()
