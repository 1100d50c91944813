"""A server that says what a test wants, and a cluster map of several."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from packets import Packets

from upriver.consumer.transport.connection_string import Address, Source
from upriver.errors import Status
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.messages import PlainResponse, Request

#: An answer, or its status or value; None for what a server would say.
Said: TypeAlias = PlainResponse | Status | bytes | None


class Peer:
    """A server that says what a test wants, on as many connections as come."""

    def __init__(
        self,
        answer: Callable[[Request], Said] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._answer = answer or (lambda request: None)
        self.map: dict[str, Any] = {}
        self.sets: list[kv.Set] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    @property
    def source(self) -> Source:
        return Source((self.address,), "b", tls=self._tls is not None)

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()
        except OSError:
            return

    def _serve(self, connection: socket.socket) -> None:
        dialect = Dcp()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection, suppress(ConnectionError):
            for packet in Packets(connection):
                request = dialect.decode(packet)
                assert isinstance(request, Request)
                connection.sendall(self._packet(dialect, request))

    def _packet(self, dialect: Dcp, request: Request) -> bytes:
        said = self._answer(request)
        if isinstance(said, PlainResponse):
            return dialect.encode(said)
        status, value = (said, b"") if isinstance(said, Status) else (Status.SUCCESS, said or b"")
        if said is None and isinstance(request, kv.Hello):
            return dialect.encode(kv.HelloResponse(opaque=request.opaque, features=()))
        if said is None and isinstance(request, kv.Set):
            self.sets.append(request)
            return b""
        if said is None and isinstance(request, kv.GetClusterConfig):
            value = json.dumps(self.map).encode()
        command = dialect.command_of(request)
        answer = PlainResponse(command=command, opaque=request.opaque, status=status, value=value)
        return dialect.encode(answer)


def cluster(peers: list[Peer], this: Peer, rows: list[int]) -> dict[str, Any]:
    return {
        "rev": 1,
        "nodesExt": [
            {
                "hostname": "127.0.0.1",
                "services": {"kv": peer.port},
                **({"thisNode": True} if peer is this else {}),
            }
            for peer in peers
        ],
        "vBucketServerMap": {
            "serverList": [f"127.0.0.1:{peer.port}" for peer in peers],
            "vBucketMap": [[row, -1] for row in rows],
        },
    }
