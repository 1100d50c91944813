"""The manager's command queue: runs one command at a time; failover and stop abort the running one.

The client of a waiting command receives at once which command runs, and its progress. Urgent
commands (failover, stop) do not wait: they ask the running command to stop at a point from which it
can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

from ..errors import ConfigError

#: Seconds between two progress reports to a waiting command.
_INTERVAL: Final = 0.5


class Audience(Protocol):
    """The client of a command, which may have disconnected."""

    def progress(self, done: int, total: int, what: str) -> None:
        """Reports progress: ``done`` of ``total``, and the unit."""

    def waits(self, why: str) -> None:
        """Reports what the command waits for."""


class RunningCommand:
    """A running command and its progress."""

    def __init__(self, name: str, audience: Audience) -> None:
        self.name = name
        self.so_far = name
        #: The urgent command that asks it to stop; checked only where it can be repeated.
        self.broken_off = asyncio.Event()
        self.over = asyncio.Event()
        self._audience = audience
        self._aborted_by = ""

    def report(self, done: int, total: int, what: str) -> None:
        self.so_far = f"{self.name} ({done} of {total} {what})"
        self._audience.progress(done, total, what)

    def waits(self, why: str) -> None:
        self.so_far = f"{self.name} ({why})"
        self._audience.waits(why)

    def abort(self, urgent: str) -> None:
        """Asks it to stop for an urgent command."""
        self._aborted_by = urgent
        self.broken_off.set()

    def check(self) -> None:
        """Raises if it was asked to stop."""
        if self.broken_off.is_set():
            raise ConfigError(f"the {self.name} was aborted for the {self._aborted_by}: repeat it")


class ProgressDeadline:
    """The deadline of a command, which moves on whenever more of it is done."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._most = -1
        self._now = asyncio.get_running_loop().time
        self._ends_at = self._now() + seconds

    def is_over(self, done: int) -> bool:
        """Whether nothing more than now was done for all of the seconds."""
        if done > self._most:
            self._most, self._ends_at = done, self._now() + self._seconds
        return self._now() > self._ends_at


class CommandQueue:
    """Runs one command after the other."""

    def __init__(self) -> None:
        self._now: RunningCommand | None = None

    @property
    def under_way(self) -> str:
        """The running command and its progress; empty if there is none."""
        return "" if self._now is None else self._now.so_far

    @contextlib.asynccontextmanager
    async def take(
        self, name: str, audience: Audience, *, urgent: bool = False
    ) -> AsyncIterator[RunningCommand]:
        """Waits for the running command, or asks it to stop."""
        while (other := self._now) is not None:
            if urgent:
                other.abort(name)
            audience.waits(f"waiting for the {other.so_far} to {'stop' if urgent else 'end'}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):
                    await other.over.wait()
        turn = self._now = RunningCommand(name, audience)
        try:
            yield turn
        finally:
            self._now = None
            turn.over.set()
