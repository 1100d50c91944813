"""One connection that carries many edits at once: what fills, what is under way, what is unsent.

Edits travel in rounds. A round is one request of each of its edits, all of them quiet, and a noop
behind them: its answer says that whoever was not answered has nothing to hear. Then those that are
not done go on in another round. So many rounds are under way and no more, and answers are read
while requests are sent: a server that stops reading stops us, and neither waits for the other
forever. Each answer is used as it comes, and none is kept.

A lane knows one node. Where documents are, and when to try again, is its owner's business.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final, Protocol

from ..errors import Status
from ..model import Datatype
from ..wire import kv
from ..wire.header import REQUEST, Header, pack_header
from ..wire.messages import Response
from ..wire.names import Feature
from .edits import Edit
from .link import RECEIVE_BYTES, Link
from .quick_answers import quick_answer

__all__ = ["ROUND_BYTES", "Lane", "Owner"]

#: A round ends with whichever comes first, this or the number of its edits. Servers commit what
#: they have read as one group, so a round is as large as a good group.
ROUND_BYTES: Final = 1024 * 1024

_U32: Final = 2**32
#: What a socket raises that would have to wait; which of them, and for what, is TLS's business.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_JSON: Final = int(Datatype.JSON)


class Owner(Protocol):
    """Who is told what becomes of edits."""

    def settled(self, edits: Iterable[Edit]) -> None:
        """These are done."""

    def postponed(self, edit: Edit, where: str, status: Status) -> None:
        """It is to be tried again later, perhaps elsewhere."""


class _Round:
    """Edits whose requests are under way."""

    __slots__ = ("answered", "edits", "first", "settled", "unfinished")

    def __init__(self, first: int, edits: list[Edit]) -> None:
        #: The opaque of the first; those of the others follow, that of the noop is the last.
        self.first = first
        self.edits = edits
        self.answered: set[int] = set()
        self.settled: list[Edit] = []
        #: Those that have more to ask.
        self.unfinished: list[Edit] = []

    def hear(self, edit: Edit, answer: Response | None) -> None:
        done = False
        try:
            done = edit.hear(answer)
        finally:  # of an answer that is nonsense, too: no edit is ever lost
            (self.settled if done else self.unfinished).append(edit)

    def silent(self) -> list[Edit]:
        """Those that were not answered."""
        if not self.answered:
            return self.edits
        return [edit for at, edit in enumerate(self.edits) if at not in self.answered]


class Lane:
    """A connection to a node, with at most ``rounds`` rounds of ``size`` edits under way."""

    def __init__(self, link: Link, owner: Owner, *, size: int, rounds: int) -> None:
        self.link = link
        self.filling: dict[bytes, Edit] = {}
        self._filled = 0
        self._owner = owner
        self._size = size
        self._rounds = rounds
        self._opaque = 0
        self._under_way: deque[_Round] = deque()
        self._unsent: deque[memoryview] = deque()
        self._collections = Feature.COLLECTIONS in link.features
        self._datatypes = _JSON if Feature.JSON in link.features else 0
        #: When a byte last moved, or could have.
        self.moved = time.monotonic()
        link.socket.setblocking(False)

    # ---- filling -------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    @property
    def is_crowded(self) -> bool:
        return len(self._under_way) >= self._rounds

    def add(self, edit: Edit) -> bool:
        """Takes an edit into the round that fills; whether that is full now."""
        self.filling[edit.name] = edit
        self._filled += len(edit.name) + len(edit.ask.value)
        return len(self.filling) >= self._size or self._filled >= ROUND_BYTES

    def dispatch(self) -> None:
        """Sends the round that fills, if there is anything in it."""
        if self.filling:
            edits = list(self.filling.values())
            self.filling = {}
            self._filled = 0
            self.launch(edits)

    def launch(self, edits: list[Edit]) -> None:
        """Begins a round."""
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
        packets.append(self.link.dialect.encode(kv.Noop(opaque=opaque)))
        self._opaque = (opaque + 1) % _U32
        self._unsent.append(memoryview(b"".join(packets)))

    def abandon(self) -> list[Edit]:
        """Closes the connection; returns the edits that are not done, to be begun again."""
        self.link.close()
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
        """What to wait for."""
        return EVENT_READ | (EVENT_WRITE if self._unsent else 0)

    def send(self) -> None:
        """Sends as much as the socket takes now."""
        try:
            while self._unsent:
                sent = self.link.socket.send(self._unsent[0])
                self.moved = time.monotonic()
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except _NOT_NOW:
            pass
        except OSError as problem:
            raise self.link.lost(problem.strerror or str(problem)) from None

    def receive(self) -> None:
        """Hears the answers that have come."""
        try:
            while chunk := self.link.socket.recv(RECEIVE_BYTES):
                self.moved = time.monotonic()
                for packet in self.link.framer.feed(chunk):
                    answer = quick_answer(packet) or self.link.dialect.decode(packet)
                    if isinstance(answer, Response):
                        self._hear(answer)
        except _NOT_NOW:
            return
        except OSError as problem:
            raise self.link.lost(problem.strerror or str(problem)) from None
        raise self.link.lost("it closed the connection")

    def _hear(self, answer: Response) -> None:
        if not self._under_way:
            return
        begun = self._under_way[0]  # a server answers in the order of what it is asked
        at = (answer.opaque - begun.first) % _U32
        if at == len(begun.edits):
            self._finish(self._under_way.popleft())
        elif at < len(begun.edits) and at not in begun.answered:
            begun.answered.add(at)
            edit = begun.edits[at]
            if answer.status.retriable:
                self._owner.postponed(edit, self.link.where, answer.status)
            else:
                begun.hear(edit, answer)

    def _finish(self, done: _Round) -> None:
        for edit in done.silent():
            done.hear(edit, None)
        self._owner.settled(done.settled)
        if done.unfinished:
            self.launch(done.unfinished)
