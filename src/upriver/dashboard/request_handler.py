"""Requests of the dashboard's HTTP server, and what they are answered.

    GET  /               the page, and the few files that it needs
    GET  /stats.json     the latest sample, with the last minutes
    GET  /history.json   the last hour
    GET  /vbucket.json?bucket=B&vbucket=N     one vbucket: failover log, copies and readers
    GET  /document.json?bucket=B&collection=S.C&key=K     a document and its older versions
    GET  /metrics        the figures for Prometheus
    GET  /health         200, or 503 with the reason why the figures are not up to date
    POST /sign-in        {"user": U, "password": P}: opens a session, by a cookie
    POST /sign-out       ends it

Where the server has users, all but the page's files and /health need a session or HTTP basic
authentication; a viewer sees the buckets in which he has a role, and documents if he may read data.
Pages of other origins cannot read it: no response allows cross-origin access, cookies are
SameSite=Strict, and on loopback requests with another Host are refused (DNS rebinding).
"""

from __future__ import annotations

import io
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from .._hosts import is_loopback
from .._http_requests import MalformedRequest, parse_head
from ..errors import StoreRefusal, UpriverError
from .collector import Collector
from .figure_types import DocumentDetail, StatsDocument
from .prometheus_metrics import exposition
from .server_interface import WatchedServer, visible
from .sign_in import COOKIE, Sessions, basic_credentials, cookie_token

logger = logging.getLogger("upriver.dashboard")

#: The most bytes of a request; browsers send less than 2 KiB.
_MAX_REQUEST: Final = 16 * 1024
#: The most bytes of the body of a sign-in.
_MAX_BODY: Final = 4096
#: Seconds for a request to arrive, and for its response to be received.
_REQUEST_TIME: Final = 10.0
#: Seconds, for the header, until a password may be tried again after too many were checked.
_RETRY_SECONDS: Final = "1"
#: The number of missing samples after which /health reports a problem.
_MISSED_SAMPLES: Final = 10

_SCRIPT: Final = "text/javascript; charset=utf-8"
FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/{name}.js": (f"{name}.js", _SCRIPT)
        for name in ("app", "charts", "documents", "dom", "lags", "sign-in", "tables", "vbuckets")
    },
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
#: Of HTTP.
_VERSIONS: Final = ("1.0", "1.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """What a request is answered from."""

    collector: Collector
    server: WatchedServer | None
    only_loopback: bool
    #: The files of the page: content and content type by path.
    files: Mapping[str, tuple[bytes, str]]
    #: None without a server.
    sessions: Sessions | None


class DashboardHttp(HTTPServer):
    """An HTTP server whose requests are answered from a dashboard."""

    dashboard: Dashboard
    #: For HTTPS; None for HTTP.
    tls: ssl.SSLContext | None

    def viewer_is_known(self, request: Any) -> None:
        """Keeps a connection, whose viewer has signed in or need not, from being dropped."""


class _BoundedInput(io.RawIOBase):
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


class RequestHandler(BaseHTTPRequestHandler):
    server: DashboardHttp
    #: Bytes of the body.
    length: int
    server_version = "upriver"
    sys_version = ""
    timeout = _REQUEST_TIME

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_BoundedInput(self.connection))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        logger.debug(format, *args)

    def handle_one_request(self) -> None:
        """Reads the one request of the connection, strictly, and answers it."""
        self.close_connection = True
        self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
        try:
            head = self._read_head()
            if head is not None:
                self._understand(head)
        except MalformedRequest as problem:
            self._refuse(problem.status, problem.rule)
        except TimeoutError as problem:
            self.log_error("%s", problem)

    def _read_head(self) -> bytes | None:
        """The bytes of a head; None if the connection ended before them."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line.endswith(b"\n"):
                return None
            if not line.endswith(b"\r\n"):
                raise MalformedRequest("a line of a head ends with CR LF")
            head += line
            if head == b"\r\n":
                raise MalformedRequest("not a request of HTTP/1.1")
        return head

    def _understand(self, head: bytes) -> None:
        parsed = parse_head(head)
        if parsed.version not in _VERSIONS:
            raise MalformedRequest("only HTTP/1.1", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if parsed.length is None:
            raise MalformedRequest("a body has a Content-Length", HTTPStatus.LENGTH_REQUIRED)
        self.command, self.path, self.length = parsed.method, parsed.target, parsed.length
        self.requestline = f"{parsed.method} {parsed.target} HTTP/{parsed.version}"
        self.headers = Message()
        for name, value in parsed.fields.items():
            self.headers[name] = value
        answer = {"GET": self.do_GET, "HEAD": self.do_HEAD, "POST": self.do_POST}
        if parsed.method not in answer:
            raise MalformedRequest("only GET, HEAD and POST", HTTPStatus.NOT_IMPLEMENTED)
        answer[parsed.method]()

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, answer: Callable[[], None]) -> None:
        if not self._is_for_us():
            return
        try:
            answer()
        except StoreRefusal as busy:  # so many passwords are checked that this one has to wait
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, busy.rule, {"Retry-After": _RETRY_SECONDS})

    def _post(self) -> None:
        if self.path == "/sign-in":
            self._sign_in()
        elif self.path == "/sign-out":
            self._sign_out()
        else:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, "this is not a request that can be posted")

    @property
    def _dashboard(self) -> Dashboard:
        return self.server.dashboard

    def _is_for_us(self) -> bool:
        self.connection.settimeout(_REQUEST_TIME)
        host = _host_of(self.headers.get("Host", ""))
        if self._dashboard.only_loopback and not is_loopback(host):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this host name is not the dashboard's")
            return False
        return True

    def _get(self) -> None:
        dashboard, target = self._dashboard, urlsplit(self.path)
        needs_sign_in = dashboard.server is not None and dashboard.server.needs_sign_in
        if not needs_sign_in:
            self.server.viewer_is_known(self.connection)
        if target.path in dashboard.files:
            self._send(HTTPStatus.OK, *dashboard.files[target.path])
            return
        if target.path == "/health":
            self._health()
            return
        user = self._viewer()
        if user is not None:
            self.server.viewer_is_known(self.connection)
        elif needs_sign_in:
            self._refuse(HTTPStatus.UNAUTHORIZED, "sign in with a user of the server")
            return
        if target.path == "/stats.json":
            hidden = self._visible(user)
            self._send(
                HTTPStatus.OK,
                json.dumps(hidden).encode() if hidden else dashboard.collector.latest.encoded,
                _JSON,
            )
        elif target.path == "/history.json":
            self._history(user)
        elif target.path == "/metrics":
            document = self._visible(user) or dashboard.collector.latest.document
            self._send(HTTPStatus.OK, *exposition(document, self.headers.get("Accept", "")))
        elif target.path == "/vbucket.json":
            self._vbucket(user, target.query)
        elif target.path == "/document.json":
            self._document(user, target.query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    # ---- viewers -------------------------------------------------------------------------

    def _viewer(self) -> str | None:
        """The user who asks, by a session or by a password; None if neither is valid."""
        sessions = self._dashboard.sessions
        if sessions is None:
            return None
        if user := sessions.user(cookie_token(self.headers.get("Cookie", ""))):
            return user
        given = basic_credentials(self.headers.get("Authorization", ""))
        return self._checked(sessions, *given) if given is not None else None

    def _checked(self, sessions: Sessions, name: str, password: str) -> str | None:
        return sessions.check(name, password, self.client_address[0])

    def _visible(self, user: str | None) -> StatsDocument | None:
        """What of the latest sample a viewer may see; None for all of it."""
        dashboard = self._dashboard
        if dashboard.server is None or not dashboard.server.needs_sign_in:
            return None
        return visible(dashboard.collector.latest.document, dashboard.server.may_see(user))

    def _may_see(self, user: str | None, bucket: str) -> bool:
        server = self._dashboard.server
        return server is not None and (not server.needs_sign_in or server.may_see(user)(bucket))

    def _sign_in(self) -> None:
        """JSON is required, because a page of another origin cannot send it without asking."""
        if self.headers.get_content_type() != _JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a sign-in is JSON")
            return
        try:
            body = self.rfile.read(self.length) if self.length <= _MAX_BODY else b""
            if len(body) != self.length:
                raise ValueError
            given = json.loads(body)
            name, password = given["user"], given["password"]
            if not (isinstance(name, str) and isinstance(password, str)):
                raise TypeError
        except (ValueError, TypeError, LookupError, RecursionError):
            self._refuse(HTTPStatus.BAD_REQUEST, 'send {"user": NAME, "password": PASSWORD}')
            return
        sessions = self._dashboard.sessions
        user = self._checked(sessions, name, password) if sessions is not None else None
        if sessions is None or user is None:
            self._refuse(HTTPStatus.FORBIDDEN, "the name or the password is wrong")
            return
        self._send_cookie(sessions.open(user), "HttpOnly; SameSite=Strict; Path=/")

    def _sign_out(self) -> None:
        if self._dashboard.sessions is not None:
            self._dashboard.sessions.close(cookie_token(self.headers.get("Cookie", "")))
        self._send_cookie("", "Max-Age=0; HttpOnly; SameSite=Strict; Path=/")

    def _send_cookie(self, token: str, rules: str) -> None:
        secure = "; Secure" if self.server.tls is not None else ""
        cookie = f"{COOKIE}={token}; {rules}{secure}"
        self._send(HTTPStatus.OK, b"{}", _JSON, {"Set-Cookie": cookie})

    # ---- what is asked for ---------------------------------------------------------------

    def _health(self) -> None:
        collector = self._dashboard.collector
        document = collector.latest.document
        age = time.time() - document["time"]
        problem = document["problem"]
        if age > _MISSED_SAMPLES * collector.interval:
            problem = f"the last sample is {age:.0f} seconds old"
        if problem is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        else:
            self._send(HTTPStatus.OK, b'{"status":"ok"}', _JSON)

    def _history(self, user: str | None) -> None:
        collector = self._dashboard.collector
        body, hidden = collector.hour, self._visible(user)
        if hidden is not None:
            history = json.loads(body)
            shown = {one["name"] for one in hidden["history"]["lags"]}
            history["lags"] = [one for one in history["lags"] if one["name"] in shown]
            body = json.dumps(history).encode()
        self._send(HTTPStatus.OK, body, _JSON)

    def _vbucket(self, user: str | None, query: str) -> None:
        server = self._dashboard.server
        try:
            asked = parse_qs(query, max_num_fields=4, strict_parsing=True)
            bucket, number = asked["bucket"][0], int(asked["vbucket"][0])
        except (KeyError, ValueError):
            self._refuse(HTTPStatus.BAD_REQUEST, "say bucket=NAME&vbucket=NUMBER")
            return
        try:
            seen = server is not None and self._may_see(user, bucket)
            found = server.vbucket(bucket, number) if server is not None and seen else None
        except UpriverError as problem:
            self._refuse(HTTPStatus.BAD_GATEWAY, str(problem))
            return
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such vbucket")
        else:
            self._send(HTTPStatus.OK, json.dumps(found).encode(), _JSON)

    def _document(self, user: str | None, query: str) -> None:
        server = self._dashboard.server
        try:
            asked = parse_qs(query, max_num_fields=4, strict_parsing=True)
            bucket, key = asked["bucket"][0], asked["key"][0]
            collection = asked.get("collection", ["_default._default"])[0]
        except (KeyError, ValueError):
            self._refuse(
                HTTPStatus.BAD_REQUEST, "say bucket=NAME&collection=SCOPE.COLLECTION&key=KEY"
            )
            return
        if user is None and not self._dashboard.only_loopback:
            # figures are less than documents: who serves them to a network need not mean these
            self._refuse(
                HTTPStatus.FORBIDDEN,
                "documents are shown on a loopback address, or to users who have signed in",
            )
            return
        found: DocumentDetail | None = None
        try:
            if server is not None:
                found = server.document(user, bucket, collection, key)
        except PermissionError as problem:
            self._refuse(HTTPStatus.FORBIDDEN, str(problem))
            return
        except UpriverError as problem:
            self._refuse(HTTPStatus.NOT_FOUND, str(problem))
            return
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no bucket {bucket}")
        elif not found["versions"]:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no document with this key")
        else:
            self._send(HTTPStatus.OK, json.dumps(found).encode(), _JSON)

    # ---- responses -----------------------------------------------------------------------

    def _refuse(
        self, status: HTTPStatus, problem: str, more: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps({"error": problem}).encode()
        self._send(status, body, _JSON, more)

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **(more or {})}.items():
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
