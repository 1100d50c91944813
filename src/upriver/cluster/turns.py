"""One command at a time: who waits for whom, and who breaks off what is under way.

A person who gives a command is told at once whose turn it is, and how far that is. What is urgent,
because nodes are lost or all shall end, does not wait for what may take long: that is asked to
stop where it can be begun again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

from ..errors import ConfigError

__all__ = ["Audience", "Turn", "Turns"]

#: Seconds between two looks at how far the one is that others wait for.
_INTERVAL: Final = 0.5


class Audience(Protocol):
    """Whoever gave a command, and may be gone by now."""

    def progress(self, done: int, total: int, what: str) -> None:
        """How much of how much is done, and of what."""

    def waits(self, why: str) -> None:
        """What has to happen before anything can be done."""


class Turn:
    """A command that is under way, and how far it is."""

    def __init__(self, name: str, audience: Audience) -> None:
        self.name = name
        self.so_far = name
        #: Somebody wants it to stop; only what can be begun again looks at it.
        self.broken_off = asyncio.Event()
        self.over = asyncio.Event()
        self._audience = audience
        self._broken_off_by = ""

    def report(self, done: int, total: int, what: str) -> None:
        self.so_far = f"{self.name} ({done} of {total} {what})"
        self._audience.progress(done, total, what)

    def waits(self, why: str) -> None:
        self.so_far = f"{self.name} ({why})"
        self._audience.waits(why)

    def break_off(self, urgent: str) -> None:
        """Asks it to stop for something urgent."""
        self._broken_off_by = urgent
        self.broken_off.set()

    def check(self) -> None:
        """Raises if it shall stop."""
        if self.broken_off.is_set():
            raise ConfigError(
                f"the {self.name} was broken off for the {self._broken_off_by}: give it again"
            )


class Turns:
    """Gives one command its turn after the other."""

    def __init__(self) -> None:
        self._now: Turn | None = None

    @property
    def under_way(self) -> str:
        """What is being done and how far it is; empty if nothing is."""
        return "" if self._now is None else self._now.so_far

    @contextlib.asynccontextmanager
    async def take(
        self, name: str, audience: Audience, *, urgent: bool = False
    ) -> AsyncIterator[Turn]:
        """Waits for the command that is under way, or breaks it off."""
        while (other := self._now) is not None:
            if urgent:
                other.break_off(name)
            audience.waits(f"waiting for the {other.so_far} to {'stop' if urgent else 'end'}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await other.over.wait()
        turn = self._now = Turn(name, audience)
        try:
            yield turn
        finally:
            self._now = None
            turn.over.set()
