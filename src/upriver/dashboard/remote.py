"""Fetches a server's figures from its own dashboard over HTTP."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from .._hosts import is_loopback
from ..errors import ConfigError, UpriverError
from .figure_types import FORMAT, DocumentDetail, ServerFigures, VBucketDetail
from .figure_validation import checked

#: The most bytes of a response. A bucket with 1024 vbuckets takes about 50 KiB.
_MOST: Final = 16 * 1024 * 1024
#: Seconds for each step of a request.
_PATIENCE: Final = 5.0


_D = TypeVar("_D")


class RemoteServer:
    """A server with a dashboard. May be used from any thread.

    Viewers see what ``user`` may see; they need not sign in themselves.
    """

    needs_sign_in = False

    def __init__(
        self,
        url: str,
        user: str = "",
        password: str = "",
        *,
        context: ssl.SSLContext | None = None,
        allow_plain: bool = False,
        timeout: float = _PATIENCE,
    ) -> None:
        """``context`` is for https; ``allow_plain`` lets a password go over http anywhere."""
        self.url = url
        self._context, self._timeout = context, timeout
        self._headers: dict[str, str] = {}
        if user:
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as problem:
            raise ConfigError(f"{url!r} is not the URL of a dashboard: {problem}") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"{url!r} is not the URL of a dashboard: give http://HOST:PORT")
        self._secure = parts.scheme == "https"
        if user and not (self._secure or allow_plain or is_loopback(host)):
            raise ConfigError(
                f"the password of {user} would go to {host} unencrypted: use https://, a tunnel to "
                "127.0.0.1, or --allow-plain"
            )
        self._host, self._port = host, port
        self._prefix = parts.path.rstrip("/").removesuffix("/stats.json")

    def sample(self) -> ServerFigures:
        """The server's figures; UpriverError says why there are none."""
        document = self._fetched("/stats.json")
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UpriverError(f"{self.url} has figures of another version of Upriver")
        if document.get("server") is None:
            raise UpriverError(f"{self.url} is a dashboard without a server")
        return self._usable(ServerFigures, document["server"])

    def vbucket(self, bucket: str, vbucket: int) -> VBucketDetail | None:
        path = f"/vbucket.json?bucket={quote(bucket, safe='')}&vbucket={vbucket}"
        return self._usable(VBucketDetail, self._fetched(path))

    def document(
        self, user: str | None, bucket: str, collection: str, key: str
    ) -> DocumentDetail | None:
        asked = urlencode({"bucket": bucket, "collection": collection, "key": key})
        return self._usable(DocumentDetail, self._fetched(f"/document.json?{asked}"))

    def authenticate(self, name: str, password: str, address: str) -> str | None:
        return None

    def may_see(self, user: str | None) -> Callable[[str], bool]:
        return lambda bucket: True

    def _usable(self, kind: type[_D], value: object) -> _D:
        try:
            return checked(kind, value)
        except ValueError as problem:
            raise UpriverError(f"the figures of {self.url} cannot be used: {problem}") from None

    def _fetched(self, path: str) -> Any:
        if self._secure:
            connection: HTTPConnection = HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context
            )
        else:
            connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            connection.request("GET", self._prefix + path, headers=self._headers)
            response = connection.getresponse()
            body = response.read(_MOST + 1)
        except (OSError, HTTPException) as problem:
            raise UpriverError(f"{self.url} cannot be reached: {problem}") from None
        finally:
            connection.close()
        if response.status == 401:
            raise UpriverError(f"{self.url} needs --user and a password, or refuses these")
        if response.status in (403, 404) and (reason := _reason(body)):
            raise UpriverError(reason)
        if response.status != 200:
            raise UpriverError(f"{self.url} answers with status {response.status}")
        if len(body) > _MOST:
            raise UpriverError(f"{self.url} answers with more than {_MOST:,} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise UpriverError(f"{self.url} does not answer with JSON") from None


def _reason(body: bytes) -> str:
    """The text of a refusal, empty if there is none."""
    try:
        error = json.loads(body).get("error")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return error if isinstance(error, str) else ""
