"""Sign-in of viewers: passwords, and the sessions of those who have signed in.

A session is a random token in a cookie that scripts cannot read and other sites cannot send.
Programs such as Prometheus use HTTP basic authentication instead.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Final

COOKIE: Final = "upriver_session"

#: Sessions that are kept; the one that was used least recently is dropped first.
_MOST_SESSIONS: Final = 256
#: Seconds after which an unused session ends.
_IDLE_SECONDS: Final = 12 * 3600.0
#: Seconds that a refused sign-in takes, so that passwords cannot be guessed quickly.
_REFUSAL_SECONDS: Final = 0.5

#: Gets a name, a password and the viewer's address.
Authenticate = Callable[[str, str, str], str | None]


class Sessions:
    """The sessions of one dashboard. Any thread may use it."""

    def __init__(
        self, authenticate: Authenticate, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``authenticate`` returns the name of a user, None if the password is wrong."""
        self._authenticate = authenticate
        self._clock = clock
        self._lock = threading.Lock()
        #: By token: the user, and when the session was last used.
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def check(self, name: str, password: str, address: str) -> str | None:
        """The user of a name and password, None if they are wrong."""
        user = self._authenticate(name, password, address)
        if user is None:
            time.sleep(_REFUSAL_SECONDS)
        return user

    def open(self, user: str) -> str:
        """Opens a session; returns its token."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._open[token] = user, self._clock()
            while len(self._open) > _MOST_SESSIONS:
                self._open.popitem(last=False)
        return token

    def user(self, token: str) -> str | None:
        """Whose session a token is; None if there is none."""
        with self._lock:
            found = self._open.pop(token, None)
            if found is None or self._clock() - found[1] > _IDLE_SECONDS:
                return None
            self._open[token] = found[0], self._clock()
            return found[0]

    def close(self, token: str) -> None:
        with self._lock:
            self._open.pop(token, None)


def cookie_token(header: str) -> str:
    """The token in a Cookie header; empty without one."""
    try:
        cookie = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def basic_credentials(header: str) -> tuple[str, str] | None:
    """The name and password of an Authorization header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None
