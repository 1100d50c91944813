"""Encodes durable writes for the stream of a replica: prepares, commits and aborts.

A stored commit is the mutation or deletion that the prepare has become. A disk snapshot sends it
in that form, and the replica treats it as the commit of its pending prepare. A memory snapshot
must send a Commit instead, and must complete prepares in their order. The owner of the stream
decides which kind of snapshot it sends, and sets in `commits` which changes are sent as commits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..wire import canonical, stored_prepares
from .change_writer import ChangeWriter
from .flow_control import PREPARE_SURPLUS


class SyncWriteOutput:
    """Encodes prepares, commits and aborts of one stream, and tracks the pending prepares."""

    def __init__(self, writer: ChangeWriter) -> None:
        self._writer = writer
        #: Prepares that the consumer has and that this stream has not completed: seqnos by key.
        #: The keys begin with their collection id.
        self.pending: dict[bytes, int] = {}
        #: The changes of this snapshot that are sent as commits: prepare seqnos by commit seqno.
        self.commits: Mapping[int, int] = {}
        #: The number of prepares encoded since `take_surplus` was last called.
        self._written = 0

    def packet(self, frame: bytes) -> bytes | None:
        """Returns the packet for a stored prepare, commit or abort; None for other frames."""
        if stored_prepares.is_prepare(frame):
            one = stored_prepares.parse_prepare(frame)
            self.pending[one.key] = one.seqno
            packet = self._writer.prepare(one)
            self._written += packet is not None
            return packet
        if stored_prepares.is_abort(frame):
            given_up = stored_prepares.parse_abort(frame)
            self.pending.pop(given_up.key, None)
            return self._writer.abort(given_up.key, given_up.prepared_seqno, given_up.seqno)
        if not self.pending or canonical.is_event(frame):
            return None
        key = canonical.key_of(frame)
        if self.pending.pop(key, None) is None:
            return None
        seqno = canonical.seqno_of(frame)
        prepared_seqno = self.commits.get(seqno)
        return None if prepared_seqno is None else self._writer.commit(key, prepared_seqno, seqno)

    def take_surplus(self) -> int:
        """Returns the bytes that new prepares occupy in the window beyond their size."""
        written, self._written = self._written, 0
        return written * PREPARE_SURPLUS
