"""The short way for plain sets says what the codec and the key-value front end say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kvkit import MODERN, Desk, open_desk

from examples import examples
from upriver.model import Datatype
from upriver.producer.keyvalue import Write
from upriver.producer.keyvalue.fast_sets import plain_set, set_answer
from upriver.store import Applied
from upriver.wire import frameinfo as fi
from upriver.wire import kv_messages as kv
from upriver.wire.dialects import Dcp
from upriver.wire.messages import Request
from upriver.wire.protocol_enums import Feature

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
_relaxed = settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(tmp_path_factory.mktemp("desk")) as desk:
        yield desk


def negotiated(desk: Desk, *, collections: bool, tokens: bool = True, json: bool = True) -> None:
    wanted = {
        Feature.COLLECTIONS: collections,
        Feature.MUTATION_SEQNO: tokens,
        Feature.JSON: json,
    }
    desk.negotiate(MODERN - {feature for feature, is_wanted in wanted.items() if not is_wanted})


values = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"", b"{}", b'{"a":[1,2]}', b"NaN", b"1", b" [] ", b'"\xff"', b"[" * 3000]),
)


@st.composite
def sets(draw: st.DrawFn, *, collections: bool) -> kv.Set:
    collection = draw(st.sampled_from([0, 0, 0, 8, 2**32 - 1])) if collections else None
    return kv.Set(
        vbucket=draw(U16),
        opaque=draw(U32),
        key=draw(st.one_of(st.binary(min_size=1, max_size=12), st.just(b"k" * 246))),
        collection=collection,
        value=draw(values),
        flags=draw(U32),
        expiry=draw(U32),
        datatype=Datatype(draw(st.integers(0, 1))),
        cas=draw(st.sampled_from([0, 0, 0, 5])),
        quiet=draw(st.booleans()),
        frames=draw(st.sampled_from([(), (), (), (fi.PreserveTtl(),)])),
    )


@st.composite
def packets(draw: st.DrawFn) -> tuple[bool, bytes]:
    """A set, or some other request that resembles one, as a framer would cut it."""
    collections = draw(st.booleans())
    packet = bytearray(Dcp(collections=collections).encode(draw(sets(collections=collections))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.sampled_from([x for x in range(len(packet)) if not 8 <= x < 12]))
        packet[at] ^= 1 << draw(st.integers(0, 7))
    return collections, bytes(packet)


@_relaxed
@given(packets(), st.booleans(), st.booleans())
@example((True, b"\x80\x01" + bytes(22)), True, True)
def test_a_quick_set_is_the_change_that_the_front_end_makes(
    desk: Desk, case: tuple[bool, bytes], tokens: bool, json: bool
) -> None:
    collections, packet = case
    negotiated(desk, collections=collections, tokens=tokens, json=json)
    quick = plain_set(packet, collections=collections, json=json)
    if quick is None:
        return
    request = desk.dialect.decode(packet)
    assert isinstance(request, Request)
    answer = desk.keyvalue.answer(desk.client, request)
    assert isinstance(answer, Write)
    assert answer.change == quick
    assert type(answer.change) is type(quick)


@_relaxed
@given(st.data(), st.booleans(), st.booleans())
def test_every_plain_set_is_quick(
    desk: Desk, data: st.DataObject, collections: bool, json: bool
) -> None:
    """The fast path is for plain sets: otherwise the test above would compare nothing."""
    negotiated(desk, collections=collections, json=json)
    request = data.draw(sets(collections=collections))
    plain = not request.cas and not request.frames and not request.collection
    plain = plain and (json or request.datatype is Datatype.RAW)
    quick = plain_set(desk.dialect.encode(request), collections=collections, json=json)
    assert (quick is not None) == plain


@_relaxed
@given(st.data(), st.booleans(), st.booleans(), U64, U64)
def test_its_answer_is_the_one_that_the_front_end_gives(
    desk: Desk, data: st.DataObject, collections: bool, tokens: bool, seqno: int, cas: int
) -> None:
    negotiated(desk, collections=collections, tokens=tokens)
    request = data.draw(sets(collections=collections))
    packet = desk.dialect.encode(request)
    if plain_set(packet, collections=collections, json=True) is None:
        return
    answer = desk.answer(request)
    assert isinstance(answer, Write)
    vbucket = request.vbucket % 4
    done = Applied(vbucket, seqno, cas, None)
    vbuuid = desk.bucket.failover_log(vbucket).newest.vbuuid if tokens else None
    expected = b"".join(map(desk.dialect.encode, answer.respond(done)))
    assert set_answer(packet, done, vbuuid) == expected
