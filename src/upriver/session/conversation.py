"""Request sequences as sans-I/O generators, run by a blocking or an asyncio driver.

    yield Request    its answer, whatever the status
    yield MORE       another answer to the same request, as statistics have them
    yield Compute    the result of work that takes too long for an event loop

A conversation knows no socket, no opaque and no clock. `Exchange` assigns an opaque to each
request and routes each answer to its conversation, for any number of conversations on one
connection. It does no I/O either: a driver (`blocking_connection` or `async_connection` of
`consumer.transport`) sends and receives the bytes, runs the computations and applies the timeouts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ..errors import UpriverError
from ..wire.messages import Request, Response

_T = TypeVar("_T")

_OPAQUES: Final = 2**32


class _More:
    """The type of `MORE`."""


MORE: Final = _More()


@dataclass(frozen=True, slots=True)
class Compute:
    """A computation of up to some seconds. A driver on an event loop runs it in a thread."""

    work: Callable[[], Any]


ConversationStep: TypeAlias = Request | Compute | _More
Conversation: TypeAlias = Generator[ConversationStep, Any, _T]


def single(request: Request) -> Conversation[Response]:
    """Sends one request and returns its answer, whatever the status."""
    answer: Response = yield request
    return answer


class Pending(Generic[_T]):
    """A conversation in progress. When it is done, it has a result or an error."""

    __slots__ = ("_on_done", "_result", "done", "error", "opaque", "talk")

    def __init__(self, talk: Conversation[_T], on_done: Callable[[], None] | None) -> None:
        self.talk = talk
        self.opaque: int | None = None
        self.done = False
        self.error: Exception | None = None
        self._result: _T | None = None
        self._on_done = on_done

    def result(self) -> _T:
        """Returns the result of the conversation, or raises the error that ended it."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def finish(self, result: _T | None, error: Exception | None = None) -> None:
        self.done, self._result, self.error = True, result, error
        if self._on_done is not None:
            self._on_done()


class Exchange:
    """The conversations of one connection, matched to answers by opaque."""

    def __init__(self, encode: Callable[[Request], bytes], *, first_opaque: int) -> None:
        #: The opaque of the next request. A connection raises it if streams use lower opaques.
        self.next_opaque = first_opaque
        #: The type of the last request, for the error message if it is not answered.
        self.asked = ""
        self._first = first_opaque
        self._encode = encode
        self._waiting: dict[int, Pending[Any]] = {}
        self._outbox: list[bytes] = []
        self._work: list[tuple[Pending[Any], Compute]] = []

    def begin(
        self, talk: Conversation[_T], on_done: Callable[[], None] | None = None
    ) -> Pending[_T]:
        pending = Pending(talk, on_done)
        self.go_on(pending, None)
        return pending

    def received(self, answer: Response) -> bool:
        """Routes an answer to its conversation. Returns False if no conversation expects it."""
        pending = self._waiting.get(answer.opaque)
        if pending is not None:
            self.go_on(pending, answer)
        return pending is not None

    def go_on(self, pending: Pending[Any], reply: object) -> None:
        """Resumes a conversation with the result of its step, and starts its next step."""
        if pending.done:
            return
        try:
            step = pending.talk.send(reply)
            if step is MORE:
                return
            self._forget(pending)
            if isinstance(step, Compute):
                self._work.append((pending, step))
            else:
                assert isinstance(step, Request)
                self._ask(pending, step)
        except StopIteration as stop:
            self._forget(pending)
            pending.finish(stop.value)
        except Exception as error:  # internal errors too are raised where the result is read
            self._forget(pending)
            pending.finish(None, error)

    def _ask(self, pending: Pending[Any], request: Request) -> None:
        opaque, self.next_opaque = self.next_opaque, self.next_opaque + 1
        if self.next_opaque == _OPAQUES:
            self.next_opaque = self._first
        self._outbox.append(self._encode(replace(request, opaque=opaque)))
        self.asked = type(request).__name__
        pending.opaque = opaque
        self._waiting[opaque] = pending

    def _forget(self, pending: Pending[Any]) -> None:
        if pending.opaque is not None:
            self._waiting.pop(pending.opaque, None)
            pending.opaque = None

    def abandon(self, pendings: Iterable[Pending[Any]]) -> None:
        """Ends conversations without a result. Their later answers are ignored."""
        for pending in pendings:
            self._forget(pending)
            pending.done = True
            pending.talk.close()

    def fail(self, error: UpriverError) -> None:
        """Ends every waiting conversation with ``error``, because the connection is lost."""
        waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            if not pending.done:
                pending.talk.close()
                pending.finish(None, error)
        self._work.clear()

    def take_work(self) -> list[tuple[Pending[Any], Compute]]:
        """Returns the pending computations. The driver passes each result to `go_on`."""
        work, self._work = self._work, []
        return work

    def data_to_send(self) -> bytes:
        data, self._outbox = b"".join(self._outbox), []
        return data
