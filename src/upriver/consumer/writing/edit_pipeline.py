"""Edit pipeline: sends many edits over one connection without waiting for each response.

Edits are sent in rounds. A round is one quiet request of each of its edits, followed by a noop. The
response to the noop means that the server has processed the whole round: an edit without a response
by then gets none. Edits that need another request are sent again in a new round.

The number of rounds in progress is limited, and responses are read while requests are sent. So a
server that stops reading also stops the client from sending, and the two cannot deadlock. Each
response is processed when it arrives and is not stored.

A pipeline knows one node only. Its owner (`writer`) decides which node gets an edit and when to
retry.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final, Protocol

from ...errors import Status
from ...model import Datatype
from ...wire import kv_messages as kv
from ...wire.header import REQUEST, Header, pack_header
from ...wire.messages import Response
from ...wire.protocol_enums import Feature
from ..transport.blocking_connection import BlockingConnection
from .fast_get_responses import quick_answer
from .write_operations import Edit

#: A round is full at this many bytes, or at its number of edits, whichever comes first. Servers
#: commit what they have read as one group, so a round has the size of an efficient group.
ROUND_BYTES: Final = 1024 * 1024

_U32: Final = 2**32
_JSON: Final = int(Datatype.JSON)


class Owner(Protocol):
    """The interface through which a pipeline reports the results of edits."""

    def settled(self, edits: Iterable[Edit]) -> None:
        """Called with edits that are done."""

    def postponed(self, edit: Edit, where: str, status: Status) -> None:
        """Called with an edit to be retried later, possibly at another node."""


class _Round:
    """Edits whose requests were sent together."""

    __slots__ = ("answered", "edits", "first", "settled", "unfinished")

    def __init__(self, first: int, edits: list[Edit]) -> None:
        #: The opaque of the first request. The opaques of the others and of the noop follow it.
        self.first = first
        self.edits = edits
        self.answered: set[int] = set()
        self.settled: list[Edit] = []
        #: Edits that need another request.
        self.unfinished: list[Edit] = []

    def hear(self, edit: Edit, answer: Response | None) -> None:
        done = False
        try:
            done = edit.hear(answer)
        finally:  # also after an invalid response, so that no edit is lost
            (self.settled if done else self.unfinished).append(edit)

    def silent(self) -> list[Edit]:
        """The edits that got no response."""
        if not self.answered:
            return self.edits
        return [edit for at, edit in enumerate(self.edits) if at not in self.answered]


class EditPipeline:
    """A connection to a node, with at most ``rounds`` rounds of ``size`` edits in progress."""

    def __init__(
        self, connection: BlockingConnection, owner: Owner, *, size: int, rounds: int
    ) -> None:
        self.connection = connection
        self.filling: dict[bytes, Edit] = {}
        self._filled = 0
        self._owner = owner
        self._size = size
        self._rounds = rounds
        self._opaque = 0
        self._under_way: deque[_Round] = deque()
        self._unsent: deque[memoryview] = deque()
        self._collections = Feature.COLLECTIONS in connection.features
        self._datatypes = _JSON if Feature.JSON in connection.features else 0
        #: When bytes were last sent or received, or when a round was started on an idle pipeline.
        self.moved = time.monotonic()
        connection.socket.setblocking(False)

    # ---- filling -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    @property
    def is_crowded(self) -> bool:
        return len(self._under_way) >= self._rounds

    def add(self, edit: Edit) -> bool:
        """Adds an edit to the next round; returns whether that round is full."""
        self.filling[edit.name] = edit
        self._filled += len(edit.name) + len(edit.ask.value)
        return len(self.filling) >= self._size or self._filled >= ROUND_BYTES

    def dispatch(self) -> None:
        """Starts the next round, unless it is empty."""
        if self.filling:
            edits = list(self.filling.values())
            self.filling = {}
            self._filled = 0
            self.launch(edits)

    def launch(self, edits: list[Edit]) -> None:
        """Starts a round: encodes its requests and the noop for sending."""
        if not self._under_way:
            self.moved = time.monotonic()
        begun = _Round(self._opaque, edits)
        self._under_way.append(begun)
        packets: list[bytes] = []
        opaque, collections, known = self._opaque, self._collections, self._datatypes
        for edit in edits:
            form, extras, value, cas, datatype = edit.ask
            key = edit.name if collections else edit.key
            in_key, in_extras = len(key), len(extras)
            body = in_extras + in_key + len(value)
            head = (form.opcode, 0, in_key, in_extras, datatype & known, edit.vbucket, body, opaque)
            packets += (pack_header(Header(REQUEST, *head, cas)), extras, key, value)
            opaque = (opaque + 1) % _U32
        packets.append(self.connection.dialect.encode(kv.Noop(opaque=opaque)))
        self._opaque = (opaque + 1) % _U32
        self._unsent.append(memoryview(b"".join(packets)))

    def abandon(self) -> list[Edit]:
        """Closes the connection; returns the edits that are not done, reset to their start."""
        self.connection.close()
        left = list(self.filling.values())
        for begun in self._under_way:
            left += begun.silent()
            left += begun.unfinished
            self._owner.settled(begun.settled)
        self.filling = {}
        self._under_way.clear()
        for edit in left:
            edit.begin()
        return left

    # ---- the socket ----------------------------------------------------------------------

    @property
    def events(self) -> int:
        """The selector events to wait for."""
        return EVENT_READ | (EVENT_WRITE if self._unsent else 0)

    def send(self) -> None:
        """Sends as many bytes as the socket accepts without blocking."""
        while self._unsent:
            sent = self.connection.send_now(self._unsent[0])
            if not sent:
                return
            self.moved = time.monotonic()
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def receive(self) -> None:
        """Processes the responses that can be received without blocking."""
        decode = self.connection.dialect.decode
        for packets in self.connection.receive_now():
            self.moved = time.monotonic()
            for packet in packets:
                answer = quick_answer(packet) or decode(packet)
                if isinstance(answer, Response):
                    self._hear(answer)

    def _hear(self, answer: Response) -> None:
        if not self._under_way:
            return
        begun = self._under_way[0]  # servers respond in the order of the requests
        at = (answer.opaque - begun.first) % _U32
        if at == len(begun.edits):
            self._finish(self._under_way.popleft())
        elif at < len(begun.edits) and at not in begun.answered:
            begun.answered.add(at)
            edit = begun.edits[at]
            if answer.status.retriable:
                self._owner.postponed(edit, self.connection.where, answer.status)
            else:
                begun.hear(edit, answer)

    def _finish(self, done: _Round) -> None:
        for edit in done.silent():
            done.hear(edit, None)
        self._owner.settled(done.settled)
        if done.unfinished:
            self.launch(done.unfinished)
