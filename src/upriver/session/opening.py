"""How a consumer opens its connection once it is let in: Open, and the controls it wants.

The conversation is a generator that yields questions and is sent their answers; whoever runs it
does the I/O. What a server refuses and a reader can do without is left out; what it cannot do
without ends the conversation. Drafts 002 and 000 have no such conversation at all.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from ..errors import Status, StatusError
from ..wire import messages as m
from ..wire.dialects import Dcp, Dialect, Draft001
from ..wire.names import OpenFlag

__all__ = ["Opened", "Opening", "open_connection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a consumer wants of its connection."""

    name: str
    #: Bytes that may be under way; 0 for no flow control.
    window: int
    #: Seconds between two signs of life.
    noop_interval: float
    values: bool = True
    xattrs: bool = False
    #: Values may come compressed, and those that are not are compressed for the way.
    compression: bool = False

    @property
    def flags(self) -> OpenFlag:
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        if self.xattrs:
            flags |= OpenFlag.INCLUDE_XATTRS
        if not self.values:
            flags |= OpenFlag.NO_VALUE
        return flags


@dataclass(frozen=True, slots=True)
class Opened:
    """What the server grants."""

    window: int = 0
    noop_interval: float = 0.0


def open_connection(dialect: Dialect, opening: Opening) -> Generator[m.Request, m.Response, Opened]:
    """Opens a connection in a dialect. `StatusError` if the server does not let us."""
    if isinstance(dialect, Draft001):
        yield from _open(opening.name, OpenFlag.PRODUCER)
        return Opened()
    if not isinstance(dialect, Dcp):
        return Opened()
    try:
        yield from _open(opening.name, opening.flags)
    except StatusError as refusal:
        if refusal.status is not Status.INVALID:
            raise
        # servers from before deletions had a time know no such flag
        yield from _open(opening.name, opening.flags & ~OpenFlag.INCLUDE_DELETE_TIMES)
    # collections and xattrs are served only to readers whose death would be noticed
    needs_noop = dialect.collections or opening.xattrs
    interval = f"{opening.noop_interval:g}"
    # one that refuses only the interval has one of its own, and is alive all the same
    alive = (yield from _control("enable_noop", "true", required=needs_noop)) and (
        yield from _control("set_noop_interval", interval, required=False)
    )
    window = str(opening.window)
    limited = yield from _control("connection_buffer_size", window, required=False)
    yield from _control("enable_expiry_opcode", "true", required=False)
    if opening.compression:
        yield from _control("force_value_compression", "true", required=False)
    return Opened(
        window=opening.window if limited else 0,
        noop_interval=opening.noop_interval if alive else 0.0,
    )


def _open(name: str, flags: OpenFlag) -> Generator[m.Request, m.Response, None]:
    answer = yield m.Open(name=name, flags=flags)
    if answer.status is not Status.SUCCESS:
        raise StatusError(answer.status, request="Open")


def _control(key: str, value: str, *, required: bool) -> Generator[m.Request, m.Response, bool]:
    answer = yield m.Control(key=key, value=value)
    if answer.status is not Status.SUCCESS and required:
        raise StatusError(answer.status, request=f"Control {key}={value}")
    return answer.status is Status.SUCCESS
