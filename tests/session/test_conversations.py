"""Conversations over one connection: each gets its own answers, in whatever order they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import ConnectionFailed, UpriverError
from upriver.session.conversation import MORE, Compute, Conversation, Exchange, single
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.framing import Framer
from upriver.wire.messages import PlainResponse, Request
from upriver.wire.protocol_enums import Command

DIALECT = Dcp()


def exchange() -> Exchange:
    return Exchange(DIALECT.encode, first_opaque=7)


def requests(talks: Exchange) -> list[Request]:
    """What the conversations ask now."""
    found = [DIALECT.decode(packet) for packet in Framer().feed(talks.data_to_send())]
    return [request for request in found if isinstance(request, Request)]


def said(opaque: int, value: bytes = b"") -> PlainResponse:
    return PlainResponse(command=Command.NOOP, opaque=opaque, value=value)


def spell(word: str) -> Conversation[str]:
    """Asks for its letters one by one: its result is what it was told."""
    told = ""
    for letter in word:
        answer: PlainResponse = yield kv.Stat(group=letter)
        told += answer.value.decode()
    return told


@given(st.lists(st.text("abc", max_size=5), max_size=5), st.data())
def test_answers_in_any_order_reach_the_conversation_that_asked(
    words: list[str], data: st.DataObject
) -> None:
    talks = exchange()
    pendings = [talks.begin(spell(word)) for word in words]
    open_requests = requests(talks)
    while open_requests:
        at = data.draw(st.integers(0, len(open_requests) - 1))
        request = open_requests.pop(at)
        assert isinstance(request, kv.Stat)
        if data.draw(st.booleans()):
            assert not talks.received(said(request.opaque + 1000, b"x"))
        assert talks.received(said(request.opaque, request.group.encode()))
        assert not talks.received(said(request.opaque, b"once more"))
        open_requests += requests(talks)
    assert [pending.result() for pending in pendings] == words


def test_a_request_may_have_several_answers() -> None:
    def listing() -> Conversation[list[bytes]]:
        answer: PlainResponse = yield kv.Stat(group="all")
        found = []
        while answer.value:
            found.append(answer.value)
            answer = yield MORE
        return found

    talks = exchange()
    pending = talks.begin(listing())
    (request,) = requests(talks)
    for value in (b"1", b"2", b""):
        assert not pending.done
        talks.received(said(request.opaque, value))
    assert pending.result() == [b"1", b"2"]
    assert not talks.received(said(request.opaque, b"3"))


def test_work_is_handed_to_the_driver_and_its_result_goes_back() -> None:
    def hashing() -> Conversation[Any]:
        result = yield Compute(lambda: 42)
        answer: PlainResponse = yield kv.Noop()
        return result, answer.value

    talks = exchange()
    pending = talks.begin(hashing())
    assert requests(talks) == []
    ((other, step),) = talks.take_work()
    assert other is pending
    talks.go_on(pending, step.work())
    (request,) = requests(talks)
    talks.received(said(request.opaque, b"v"))
    assert pending.result() == (42, b"v")


def test_what_goes_wrong_is_raised_where_the_result_is_waited_for() -> None:
    def faulty() -> Conversation[None]:
        yield kv.Noop()
        raise KeyError("a fault of ours")

    talks = exchange()
    faults, forgotten = talks.begin(faulty()), talks.begin(spell("a"))
    lost = talks.begin(single(kv.Noop()))
    first, second, _ = requests(talks)
    talks.received(said(first.opaque))
    with pytest.raises(KeyError):
        faults.result()
    talks.abandon([forgotten])
    assert not talks.received(said(second.opaque))
    talks.fail(ConnectionFailed("was lost", "try again"))
    with pytest.raises(UpriverError, match="was lost"):
        lost.result()


def test_opaques_begin_again_where_they_began() -> None:
    talks = exchange()
    talks.next_opaque = 2**32 - 1
    for expected in (2**32 - 1, 7, 8):
        talks.begin(single(kv.Noop()))
        (request,) = requests(talks)
        assert request.opaque == expected
