"""The shapes an answer can have, and so what the server has to do for it.

Nothing here knows what was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import StoreError
from ...store import Applied, Change
from ...wire.messages import Response

__all__ = ["Answer", "Blocking", "Later", "Now", "Responses", "Write"]

#: What is sent, in order; nothing for a quiet request that has nothing to tell.
Responses = tuple[Response, ...]


class Now(NamedTuple):
    """The answer is known."""

    responses: Responses


class Write(NamedTuple):
    """A change to submit, alone or grouped with others of the connection.

    ``respond`` takes what became of it, or the error that its whole group met.
    """

    change: Change
    respond: Callable[[Applied | StoreError], Responses]


class Blocking(NamedTuple):
    """Work that waits for the disk, or is too long for an event loop: for a thread of its own."""

    call: Callable[[], Responses]


class Later(NamedTuple):
    """Something that has not come yet: ``poll`` gives None until it has, or until it is too late.

    It is cheap, never blocks, and is to be asked again after a few milliseconds.
    """

    poll: Callable[[], Responses | None]


Answer = Now | Write | Blocking | Later
