"""The dashboard's HTTP server: page, figures and metrics, read only.

    GET /               the page, and the few files that it needs
    GET /stats.json     the latest sample
    GET /vbucket.json?bucket=B&vbucket=N    one vbucket with its failover log, copies and readers
    GET /metrics        the figures for Prometheus
    GET /health         200, or 503 with the reason why the figures are not up to date

One request per connection. There is no authentication: everyone who reaches the port can read
everything, so it listens on loopback by default. Pages of other origins cannot read it: no response
allows cross-origin access, and on loopback requests with another Host are refused (DNS rebinding).
"""

from __future__ import annotations

import errno
import io
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from ..errors import ConfigError, UpriverError
from .collector import Collector
from .figures import VBucketDetail
from .metrics import exposition

__all__ = ["DashboardServer"]

logger = logging.getLogger("upriver.dashboard")

#: Concurrent requests: each page sends one per second, which takes some milliseconds.
_MAX_REQUESTS: Final = 32
#: The most bytes of a request; browsers send less than 2 KiB.
_MAX_REQUEST: Final = 16 * 1024
#: Seconds for a request to arrive, and for its response to be received.
_REQUEST_TIME: Final = 10.0
#: Seconds within which the server notices a stop request.
_STOP_TIME: Final = 0.1
#: The number of missing samples after which /health reports a problem.
_MISSED_LOOKS: Final = 10

_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/vbuckets.js": ("vbuckets.js", "text/javascript; charset=utf-8"),
    "/tables.js": ("tables.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_JSON: Final = "application/json"

Detail = Callable[[str, int], VBucketDetail | None]


class DashboardServer:
    """Runs in a with block. Listens on the first free one of ``ports``; 0 is any free port.

    ``detail`` returns one vbucket, None if it does not exist.
    """

    def __init__(
        self,
        collector: Collector,
        detail: Detail | None = None,
        *,
        host: str = "127.0.0.1",
        port: int | Sequence[int],
    ) -> None:
        self.collector = collector
        self.detail = detail
        self.host = host
        self.only_loopback = _is_loopback(host)
        page = files(__package__) / "page"
        self.files = {
            path: ((page / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()
        }
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
                return _Http(self, (host, port))
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
        return f"http://{host}:{self._http.server_address[1]}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    """A threading HTTP server with a limited number of threads."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_REQUESTS

    def __init__(self, dashboard: DashboardServer, address: tuple[str, int]) -> None:
        self.dashboard = dashboard
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As in HTTPServer, but without its DNS lookup of this machine's name."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            # Closed without a response, which would cost the resources that the limit protects.
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request of %s failed", client_address, exc_info=True)


class _Bounded(io.RawIOBase):
    """The bytes of a request, limited in size and time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = _MAX_REQUEST
        self._deadline = time.monotonic() + _REQUEST_TIME

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if self._left <= 0 or left <= 0:
            raise TimeoutError("the request is too long or too slow")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    server_version = "upriver"
    sys_version = ""
    timeout = _REQUEST_TIME

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        logger.debug(format, *args)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.connection.settimeout(_REQUEST_TIME)
        dashboard = self.server.dashboard
        if dashboard.only_loopback and not _is_loopback(_host_of(self.headers.get("Host", ""))):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this host name is not the dashboard's")
            return
        target = urlsplit(self.path)
        if target.path in dashboard.files:
            self._send(HTTPStatus.OK, *dashboard.files[target.path])
        elif target.path == "/stats.json":
            self._send(HTTPStatus.OK, dashboard.collector.latest.encoded, _JSON)
        elif target.path == "/metrics":
            document = dashboard.collector.latest.document
            self._send(HTTPStatus.OK, *exposition(document, self.headers.get("Accept", "")))
        elif target.path == "/health":
            self._health()
        elif target.path == "/vbucket.json":
            self._vbucket(target.query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _health(self) -> None:
        collector = self.server.dashboard.collector
        document = collector.latest.document
        age = time.time() - document["time"]
        problem = document["problem"]
        if age > _MISSED_LOOKS * collector.interval:
            problem = f"the last sample is {age:.0f} seconds old"
        if problem is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        else:
            self._send(HTTPStatus.OK, b'{"status":"ok"}', _JSON)

    def _vbucket(self, query: str) -> None:
        detail = self.server.dashboard.detail
        try:
            asked = parse_qs(query, max_num_fields=4, strict_parsing=True)
            bucket, number = asked["bucket"][0], int(asked["vbucket"][0])
        except (KeyError, ValueError):
            self._refuse(HTTPStatus.BAD_REQUEST, "say bucket=NAME&vbucket=NUMBER")
            return
        try:
            found = detail(bucket, number) if detail is not None else None
        except UpriverError as problem:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(problem))
            return
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such vbucket")
        else:
            self._send(HTTPStatus.OK, json.dumps(found).encode(), _JSON)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        self._send(status, json.dumps({"error": problem}).encode(), _JSON)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
