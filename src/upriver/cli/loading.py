"""Writes documents through the key-value front end of any server, without waiting for each.

Documents travel as quiet sets, which a server answers only when it refuses. A window of them ends
with a noop: its answer says that all before it were accepted. So many windows are in flight on
each node's connection and no more, and answers are read while documents are sent: a server that
stops reading stops us, and neither waits for the other forever.

Which node has a document is taken from the cluster map at the beginning. This module knows
nothing of files and of how progress is shown.
"""

from __future__ import annotations

import selectors
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from ..consumer.access import Access
from ..consumer.link import RECEIVE_BYTES, Link
from ..consumer.source import Address, Source
from ..consumer.topology import ClusterMap, vbucket_of
from ..errors import ConnectionFailed, Status
from ..model import Datatype
from ..session.introduction import refusal_context
from ..wire import kv
from ..wire.header import HEADER_SIZE, pack_header, parse_header
from ..wire.messages import Response
from ..wire.names import Feature
from .documents import BadLine, Document

__all__ = ["Pace", "Writer", "load"]

#: A window ends with whichever comes first. Servers commit what they have read as one group, so a
#: window is as large as a good group.
WINDOW_BYTES: Final = 1024 * 1024
WINDOW_DOCUMENTS: Final = 4096
#: Windows in flight on a connection: one being sent, one being read, one being committed.
MAX_WINDOWS: Final = 3
#: Seconds in which not one byte moved, after which a server is given up: commits that take longer
#: than a slow disk's worst minute will not come.
PATIENCE: Final = 60.0

_U32: Final = 2**32


def load(documents: Iterable[Document], writer: Writer, pace: Pace | None = None) -> None:
    """Writes documents, and returns when the server has accepted the last of them."""
    try:
        for key, value in documents:
            if pace is not None:
                pace.wait(writer.flush)
            writer.set(key, value)
    except BadLine:
        writer.flush()  # the lines before it are as good as ever
        raise
    writer.flush()


class Pace:
    """Keeps writing below a number of documents a second."""

    #: Sleeping for less is mostly waking up; a sleep this long is made up for by several
    #: documents at once.
    TICK: Final = 0.01
    #: Seconds of delay that are made up for; a server that stood still longer is not flooded.
    CATCH_UP: Final = 1.0

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self, before: Callable[[], None]) -> None:
        """Waits until the next document may be written; calls ``before`` if that is not now."""
        if self._due > self._clock():
            before()
            early = self._due - self._clock()
            if early > 0:
                self._sleep(max(early, self.TICK))
        self._due = max(self._due, self._clock() - self.CATCH_UP) + self._step


class Writer:
    """Connections to every node of a bucket. Not for several threads.

    ``on_written`` is told how many more documents are known to be accepted.
    """

    def __init__(
        self,
        source: Source,
        access: Access | None = None,
        *,
        on_written: Callable[[int], None] = lambda count: None,
        patience: float = PATIENCE,
    ) -> None:
        access = access or Access()
        self.written = 0
        self._on_written = on_written
        self._patience = patience
        self._selector = selectors.DefaultSelector()
        self._links: list[Link] = []
        self._lanes: list[_Lane] = []
        try:
            self._by_vbucket = self._connect(source, access)
        except BaseException:
            self.close()
            raise

    def _connect(self, source: Source, access: Access) -> list[_Lane]:
        """Connects to the nodes of the map; returns the connection for each vbucket."""
        first = self._keep(Link.open(source, access))
        cluster = ClusterMap.parse(first.cluster_config(), reached=first.address, tls=source.tls)
        lanes: dict[Address, _Lane] = {}
        by_vbucket = []
        for vbucket in range(len(cluster.vbuckets)):
            node = cluster.owner(vbucket)
            if node is None:
                raise ConnectionFailed(
                    f"has vbucket {vbucket} of {source.bucket} on no node",
                    "wait until the cluster is whole",
                    where=first.where,
                )
            if node.address not in lanes:
                is_first = node == cluster.sender
                link = first if is_first else self._keep(Link(node.address, source, access))
                lanes[node.address] = _Lane(link)
            by_vbucket.append(lanes[node.address])
        self._lanes = list(lanes.values())
        for lane in self._lanes:
            self._selector.register(lane.link.socket, selectors.EVENT_READ, lane)
        return by_vbucket

    def _keep(self, link: Link) -> Link:
        self._links.append(link)
        return link

    def close(self) -> None:
        """Closes the connections; what was not flushed may or may not be written."""
        self._selector.close()
        for link in self._links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- writing -------------------------------------------------------------------------

    @property
    def vbuckets(self) -> int:
        return len(self._by_vbucket)

    def set(self, key: bytes, value: bytes) -> None:
        """Writes a document, now or with others; waits while too much is in flight."""
        vbucket = vbucket_of(key, len(self._by_vbucket))
        lane = self._by_vbucket[vbucket]
        lane.add(key, value, vbucket)
        if lane.is_full:
            lane.end_window()
            lane.send()
            while len(lane.in_flight) >= MAX_WINDOWS:
                self._progress()

    def flush(self) -> None:
        """Waits until every document so far is accepted."""
        for lane in self._lanes:
            lane.end_window()
        while any(lane.in_flight for lane in self._lanes):
            self._progress()

    def _progress(self) -> None:
        """Sends and hears what can be, on any connection; waits until something can be."""
        for lane in self._lanes:
            self._selector.modify(lane.link.socket, lane.events, lane)
        ready = self._selector.select(self._patience)
        if not ready:
            slow = next(lane for lane in self._lanes if lane.in_flight)
            raise slow.link.lost(f"nothing was heard of it for {self._patience:g} s")
        for key, events in ready:
            lane = key.data
            if events & selectors.EVENT_WRITE:
                lane.send()
            if events & selectors.EVENT_READ:
                written = lane.receive()
                self.written += written
                self._on_written(written)


@dataclass(slots=True)
class _Window:
    """Documents that are accepted or refused together, as far as we know."""

    #: The opaque of the first; those of the others follow, that of the noop is the last.
    first: int
    keys: list[bytes] = field(default_factory=list)
    packets: list[bytes] = field(default_factory=list)
    size: int = 0

    def holds(self, opaque: int) -> bool:
        return (opaque - self.first) % _U32 < len(self.keys)


class _Lane:
    """One node's connection: a window that fills, windows in flight, bytes not yet sent."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.in_flight: deque[_Window] = deque()
        self._filling = _Window(first=0)
        self._unsent: deque[memoryview] = deque()
        datatype = Datatype.JSON if Feature.JSON in link.features else Datatype.RAW
        # Every set has the header of this one but for lengths, vbucket and opaque: packing only
        # those is much faster as encoding a message.
        example = link.dialect.encode(kv.Set(key=b"k", quiet=True, datatype=datatype))
        self._header = parse_header(example)
        self._extras = example[HEADER_SIZE : HEADER_SIZE + self._header.extras_length]
        link.socket.setblocking(False)

    # ---- filling -------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        window = self._filling
        return window.size >= WINDOW_BYTES or len(window.keys) >= WINDOW_DOCUMENTS

    def add(self, key: bytes, value: bytes, vbucket: int) -> None:
        window = self._filling
        head = pack_header(
            self._header._replace(
                key_length=len(key),
                vbucket=vbucket,
                body_length=len(self._extras) + len(key) + len(value),
                opaque=(window.first + len(window.keys)) % _U32,
            )
        )
        window.keys.append(key)
        window.packets += (head, self._extras, key, value)
        window.size += len(head) + len(self._extras) + len(key) + len(value)

    def end_window(self) -> None:
        """Puts the window in flight, if there is anything in it."""
        window = self._filling
        if not window.keys:
            return
        last = (window.first + len(window.keys)) % _U32
        window.packets.append(self.link.dialect.encode(kv.Noop(opaque=last)))
        self._unsent.append(memoryview(b"".join(window.packets)))
        window.packets.clear()
        self.in_flight.append(window)
        self._filling = _Window(first=(last + 1) % _U32)

    # ---- the socket ----------------------------------------------------------------------

    @property
    def events(self) -> int:
        """What to wait for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def send(self) -> None:
        """Sends as much as the socket takes now."""
        try:
            while self._unsent:
                sent = self.link.socket.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except _NOT_NOW:
            pass
        except OSError as problem:
            raise self.link.lost(problem.strerror or str(problem)) from None

    def receive(self) -> int:
        """Reads the answers that have come; returns how many documents they say are written."""
        written = 0
        try:
            while chunk := self.link.socket.recv(RECEIVE_BYTES):
                for packet in self.link.framer.feed(chunk):
                    answer = self.link.dialect.decode(packet)
                    if isinstance(answer, Response):
                        written += self._answered(answer)
        except _NOT_NOW:
            return written
        except OSError as problem:
            raise self.link.lost(problem.strerror or str(problem)) from None
        raise self.link.lost("it closed the connection")

    def _answered(self, answer: Response) -> int:
        if answer.status is not Status.SUCCESS:
            raise self._refused(answer)
        if not self.in_flight or self.in_flight[0].holds(answer.opaque):
            return 0  # an accepted write that the server answers although it is quiet
        return len(self.in_flight.popleft().keys)

    def _refused(self, answer: Response) -> ConnectionFailed:
        keys = (
            window.keys[(answer.opaque - window.first) % _U32]
            for window in self.in_flight
            if window.holds(answer.opaque)
        )
        key = next(keys, b"?").decode(errors="replace")
        return ConnectionFailed(
            f"refused {key} with {answer.status.name}",
            _HINTS.get(answer.status) or refusal_context(answer) or "see what its log says",
            where=self.link.where,
        )


#: What a socket raises that would have to wait; which of them, and for what, is TLS's business.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_HINTS: Final = {
    Status.NOT_MY_VBUCKET: "its vbuckets have moved: run again",
    Status.NO_ACCESS: "give a --user that may write",
    Status.TOO_BIG: "it is larger than the bucket allows",
    Status.NO_MEMORY: "the server is out of memory",
    Status.TEMPORARY_FAILURE: "the server cannot keep up: try a lower --rate",
    Status.BUSY: "the server cannot keep up: try a lower --rate",
}
