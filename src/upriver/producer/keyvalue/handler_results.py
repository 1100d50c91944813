"""Result types of command handlers: a response now, later, or in several parts.

This module knows nothing of requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from ...errors import StoreError
from ...store import Applied, ChangeRequest
from ...wire.messages import Response

#: The responses to send, in order. Empty for a quiet request without anything to report.
Responses = tuple[Response, ...]
#: The extras of the response to a write, for clients that asked for mutation tokens.
MUTATION_TOKEN = struct.Struct(
    ">"
    "Q"  # vbuuid
    "Q"  # seqno
)


class Now(NamedTuple):
    """The responses are known already."""

    responses: Responses


class Write(NamedTuple):
    """A change for the store, submitted alone or grouped with others of the connection.

    ``respond`` is called with the result of the change, or with the error of its whole group.
    """

    change: ChangeRequest
    respond: Callable[[Applied | StoreError], Responses]


class Several(NamedTuple):
    """A result of many responses or many steps, computed while it is sent.

    Each step takes well below a millisecond, and may return nothing to send yet.
    """

    steps: Iterator[Responses]


class BackgroundWork(Enum):
    """Classes of background work. Each class has threads of its own."""

    #: Password hashing: milliseconds of CPU time each, with the GIL released.
    HASHING = "hashing"
    #: Searches in large documents: milliseconds to seconds, with the GIL held.
    SEARCHING = "searching"
    #: Edits that read, write and wait for the commit.
    EDITING = "editing"
    #: Compaction of files: seconds to minutes.
    COMPACTING = "compacting"
    #: Vbucket states, manifests and flushes: one synced commit each.
    ADMINISTERING = "administering"
    #: Writes that this node receives as a replica.
    REPLICATING = "replicating"


class Blocking(NamedTuple):
    """Work that waits for the disk or takes too long for the event loop, so it runs in a thread."""

    work: BackgroundWork
    call: Callable[[], Responses]
    #: Makes the responses if the work cannot be accepted now.
    refused: Callable[[StoreError], Responses] = lambda error: ()


class Later(NamedTuple):
    """A result that is not known yet: ``poll`` returns None until it is known or the time is up.

    ``poll`` is cheap and never blocks. It is called again after a few milliseconds.
    """

    poll: Callable[[], Responses | None]


Answer = Now | Write | Several | Blocking | Later
