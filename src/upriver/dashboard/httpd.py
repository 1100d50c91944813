"""The dashboard's HTTP server: its address, and limits on threads and requests.

What it answers is in `request_handler`. One request per connection. It listens on loopback by
default. Where the server has users, viewers sign in with their names and passwords; on other
addresses than loopback that needs TLS.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Sequence
from importlib.resources import files
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, Self

from .._hosts import is_loopback
from ..errors import ConfigError
from .collector import Collector
from .request_handler import FILES, Dashboard, DashboardHttp, RequestHandler
from .server_interface import WatchedServer
from .sign_in import Sessions

logger = logging.getLogger("upriver.dashboard")

#: Concurrent connections: each page sends one per second, which takes some milliseconds.
_MAX_REQUESTS: Final = 32
#: Seconds within which the server notices a stop request.
_STOP_TIME: Final = 0.1


class DashboardServer:
    """Runs in a with block. Listens on the first free one of ``ports``; 0 is any free port."""

    def __init__(
        self,
        collector: Collector,
        server: WatchedServer | None = None,
        *,
        host: str = "127.0.0.1",
        port: int | Sequence[int],
        tls: ssl.SSLContext | None = None,
        plain_passwords: bool = False,
    ) -> None:
        """``server`` is what the page shows besides samples: vbuckets, documents, who may see them.

        ``tls`` serves the page over HTTPS. ``plain_passwords`` allows sign-in without it on other
        addresses than loopback.
        """
        self.host = host
        self.tls = tls
        only_loopback = is_loopback(host)
        is_private = only_loopback or tls is not None or plain_passwords
        if server is not None and server.needs_sign_in and not is_private:
            raise ConfigError(
                f"viewers of the dashboard on {host} would send their passwords without TLS: give "
                "--certificate and --key, or listen on 127.0.0.1, or give --plain-without-tls"
            )
        page = files(__package__) / "page"
        dashboard = Dashboard(
            collector=collector,
            server=server,
            only_loopback=only_loopback,
            files={
                path: ((page / name).read_bytes(), kind) for path, (name, kind) in FILES.items()
            },
            sessions=None if server is None else Sessions(server.authenticate),
        )
        self._dashboard = dashboard
        self._http = self._listening(host, (port,) if isinstance(port, int) else port)
        self._thread = threading.Thread(
            target=self._http.serve_forever,
            args=(_STOP_TIME,),
            name="upriver dashboard http",
            daemon=True,
        )

    def _listening(self, host: str, ports: Sequence[int]) -> _Http:
        for port in ports:
            try:
                return _Http(self._dashboard, (host, port), self.tls)
            except (OSError, OverflowError) as problem:
                taken = getattr(problem, "errno", None) == errno.EADDRINUSE
                if taken and port != ports[-1]:
                    continue
                tried = f"{host}:{port}" if len(ports) == 1 else f"{host}:{ports[0]} to {port}"
                raise ConfigError(f"the dashboard cannot listen on {tried}: {problem}") from problem
        raise ConfigError("the dashboard was given no port")

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{host}:{self._http.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingMixIn, DashboardHttp):
    """A threading HTTP server with a limited number of connections, each with a thread.

    At the limit a new connection takes the place of the oldest one whose viewer is not known:
    connections that send nothing, or half a request, keep nobody out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_REQUESTS

    def __init__(
        self, dashboard: Dashboard, address: tuple[str, int], tls: ssl.SSLContext | None
    ) -> None:
        self.dashboard = dashboard
        self.tls = tls
        self._lock = threading.Lock()
        #: Connections that count, and the ones of them whose viewer is not known, oldest first.
        self._places: set[Any] = set()
        self._strangers: OrderedDict[Any, None] = OrderedDict()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, RequestHandler)

    def server_bind(self) -> None:
        """As in HTTPServer, but without its DNS lookup of this machine's name."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        """Accepts a connection. The TLS handshake is made by its thread, when that reads."""
        connection, address = super().get_request()
        if self.tls is not None:
            connection = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._places) >= _MAX_REQUESTS and self._strangers:
                self._drop(self._strangers.popitem(last=False)[0])
            admitted = len(self._places) < _MAX_REQUESTS
            if admitted:
                self._places.add(request)
                self._strangers[request] = None
        if not admitted:
            # Closed without a response, which would cost the resources that the limit protects.
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def _drop(self, request: Any) -> None:
        """Ends a connection, whose thread then finds it closed by its peer."""
        self._places.discard(request)
        with contextlib.suppress(OSError):  # the peer has closed it
            # not the method of a TLS socket, which its thread may be using
            socket.socket.shutdown(request, socket.SHUT_RDWR)

    def viewer_is_known(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection; its place is free first, so that no closed one is dropped."""
        with self._lock:
            self._places.discard(request)
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request of %s failed", client_address, exc_info=True)
