"""Stray messages: those of streams that the consumer does not have are refused, and counted.

Document 003 lets an application close a stream by forgetting it: every message of a stream that is
not registered is answered with an error status (a NACK), at which the producer ends the stream. The
connection goes on. A producer that sends too many of them breaks a rule.

After Close Stream of today's protocol nothing is answered: the producer knows, and what still
arrives was on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import Status
from ..wire import messages as m
from ..wire.dialects import Dialect
from ..wire.protocol_enums import Command
from .requested_stream import broken_rule

#: Messages of streams that were never requested, or that the producer has ended, on one connection.
MOST_STRAYS: Final = 1000
#: Messages of closed streams since the last was closed: drafts without flow control may have
#: megabytes of small ones on their way.
MOST_LATE: Final = 1_000_000
#: Closed streams that are remembered, the newest: late messages of older ones are strays.
_REMEMBERED: Final = 4096

#: By the numbers of the column ``op``.
_COMMANDS: Final = (Command.MUTATION, Command.DELETION, Command.EXPIRATION)
#: A status that every draft has; no release of Couchbase Server closes a connection for it.
_STATUS: Final = Status.NOT_MY_VBUCKET


class StrayMessages:
    """Answers the stray messages of one connection; raises once there are too many."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._closed: dict[int, None] = {}
        self._strays = self._late = 0

    def closed(self, opaque: int) -> None:
        """The consumer has closed the stream with this opaque."""
        self._late = 0
        self._closed[opaque] = None
        if len(self._closed) > _REMEMBERED:
            del self._closed[next(iter(self._closed))]

    def message(self, message: m.Message) -> Iterator[bytes]:
        """Returns the answer to a message that is not a row."""
        return self._refused(message.opaque, {self._dialect.command_of(message): 1})

    def rows(self, opaque: int, ops: npt.NDArray[Any]) -> Iterator[bytes]:
        """Returns the answers to rows of one opaque, by their numbers in the column ``op``."""
        counts = np.bincount(ops, minlength=len(_COMMANDS)).tolist()
        return self._refused(opaque, dict(zip(_COMMANDS, counts, strict=True)))

    def _refused(self, opaque: int, counts: Mapping[Command | int, int]) -> Iterator[bytes]:
        count = sum(counts.values())
        if opaque in self._closed:
            self._late += count
            if self._late > MOST_LATE:
                detail = f"more than {MOST_LATE} messages came of streams that were closed"
                raise broken_rule("opaque", None, detail)
            if self._dialect.negotiates:
                return
        else:
            self._strays += count
            if self._strays > MOST_STRAYS:
                detail = (
                    f"more than {MOST_STRAYS} messages came of streams that were not requested or "
                    f"have ended, the last with the opaque {opaque}"
                )
                raise broken_rule("opaque", None, detail)
        for command, times in counts.items():
            if times:
                yield self._nack(command, opaque) * times

    def _nack(self, command: Command | int, opaque: int) -> bytes:
        if not self._dialect.has_memcached_header:
            command = Command.STREAM_REQUEST  # a response of draft 002 does not name its command
        nack = m.PlainResponse(command=command, status=_STATUS, opaque=opaque)
        return self._dialect.encode(nack)
