"""Stored frames are packets of today's DCP with collections, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from strategies import BINARY, COLLECTIONS, U16, U32, U64

from upriver.model import Datatype, Op
from upriver.wire import canonical, leb128
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp

DIALECT = Dcp(collections=True)
KEYS = st.binary(min_size=1, max_size=246)


@given(
    vbucket=U16,
    seqno=st.integers(1, 2**64 - 1),
    rev=U64,
    cas=U64,
    flags=U32,
    expiry=U32,
    datatype=st.integers(0, 7).map(Datatype),
    collection=COLLECTIONS,
    key=KEYS,
    value=BINARY,
)
def test_mutations(
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    flags: int,
    expiry: int,
    datatype: Datatype,
    collection: int,
    key: bytes,
    value: bytes,
) -> None:
    stored = leb128.encode(collection) + key
    frame = canonical.mutation(vbucket, seqno, rev, cas, flags, expiry, datatype, stored, value)
    message = m.Mutation(
        vbucket=vbucket,
        seqno=seqno,
        rev=rev,
        cas=cas,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
        collection=collection,
        key=key,
        value=value,
        nru=2,
    )
    assert DIALECT.encode(message) == frame
    assert DIALECT.decode(frame) == message
    assert canonical.parse(frame) == (
        Op.MUTATION,
        vbucket,
        seqno,
        rev,
        cas,
        flags,
        expiry,
        datatype,
        collection,
        key,
        value,
    )


@given(
    kind=st.sampled_from([(m.Deletion, canonical.deletion), (m.Expiration, canonical.expiration)]),
    vbucket=U16,
    seqno=st.integers(1, 2**64 - 1),
    rev=U64,
    cas=U64,
    time=U32,
    collection=COLLECTIONS,
    key=KEYS,
    value=BINARY,
)
def test_deletions_and_expirations(
    kind: tuple[type[m.Deletion], object],
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    time: int,
    collection: int,
    key: bytes,
    value: bytes,
) -> None:
    message_kind, pack = kind
    stored = leb128.encode(collection) + key
    frame = pack(vbucket, seqno, rev, cas, time, Datatype.XATTR, stored, value)  # type: ignore[operator]
    message = message_kind(
        vbucket=vbucket,
        seqno=seqno,
        rev=rev,
        cas=cas,
        delete_time=time,
        datatype=Datatype.XATTR,
        collection=collection,
        key=key,
        value=value,
    )
    assert DIALECT.encode(message) == frame
    op = Op.DELETION if message_kind is m.Deletion else Op.EXPIRATION
    change = canonical.parse(frame)
    assert (change.op, change.key, change.value, change.time) == (op, key, value, time)
    assert (change.seqno, change.collection, change.cas) == (seqno, collection, cas)


def test_the_opaque_stands_where_streams_write_it() -> None:
    frame = bytearray(canonical.mutation(1, 2, 3, 4, 5, 6, 0, b"\0k", b"v"))
    at = canonical.OPAQUE_AT
    frame[at : at + 4] = (0xDEADBEEF).to_bytes(4, "big")
    assert DIALECT.decode(bytes(frame)).opaque == 0xDEADBEEF
