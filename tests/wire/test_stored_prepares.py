"""Stored prepares and aborts are packets of today's DCP with collections, byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from strategies import BINARY, COLLECTIONS, DATATYPES, U16, U32, U64

from upriver.model import Datatype
from upriver.wire import canonical, leb128, stored_prepares
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp
from upriver.wire.header import cas_of, vbucket_of
from upriver.wire.protocol_enums import DurabilityLevel
from upriver.wire.stored_prepares import StoredPrepare

DIALECT = Dcp(collections=True)
KEYS = st.binary(min_size=1, max_size=246)
SEQNOS = st.integers(1, 2**64 - 1)
LEVELS = {
    1: DurabilityLevel.MAJORITY,
    2: DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER,
    3: DurabilityLevel.PERSIST_TO_MAJORITY,
}


@given(
    vbucket=U16,
    seqno=SEQNOS,
    rev=U64,
    cas=st.integers(1, 2**64 - 1),
    flags=U32,
    time=U32,
    datatype=DATATYPES,
    collection=COLLECTIONS,
    key=KEYS,
    value=BINARY,
    deleted=st.booleans(),
    level=st.sampled_from(sorted(LEVELS)),
)
def test_prepares(
    vbucket: int,
    seqno: int,
    rev: int,
    cas: int,
    flags: int,
    time: int,
    datatype: Datatype,
    collection: int,
    key: bytes,
    value: bytes,
    deleted: bool,
    level: int,
) -> None:
    stored = StoredPrepare(
        vbucket,
        seqno,
        rev,
        cas,
        flags,
        time,
        int(datatype),
        leb128.encode(collection) + key,
        value,
        deleted,
        level,
    )
    frame = stored_prepares.prepare(stored)
    message = m.Prepare(
        vbucket=vbucket,
        seqno=seqno,
        rev=rev,
        cas=cas,
        flags=flags,
        expiry=time,
        datatype=datatype,
        collection=collection,
        key=key,
        value=value,
        deleted=deleted,
        level=LEVELS[level],
        nru=0,
    )
    assert DIALECT.encode(message) == frame
    assert DIALECT.decode(frame) == message
    assert stored_prepares.parse_prepare(frame) == stored
    assert stored_prepares.is_valid_prepare(frame)
    assert stored_prepares.is_prepare(frame)
    assert stored_prepares.is_hidden(frame)
    assert not stored_prepares.is_abort(frame)
    assert (canonical.seqno_of(frame), canonical.key_of(frame)) == (seqno, stored.key)
    assert (vbucket_of(frame), cas_of(frame)) == (vbucket, cas)


@given(
    vbucket=U16,
    seqno=SEQNOS,
    prepared_seqno=SEQNOS,
    cas=U64,
    collection=COLLECTIONS,
    key=KEYS,
)
def test_aborts_have_their_own_seqno_first(
    vbucket: int, seqno: int, prepared_seqno: int, cas: int, collection: int, key: bytes
) -> None:
    """Besides the CAS, which DCP's Abort has not, this is the one difference."""
    named = leb128.encode(collection) + key
    frame = stored_prepares.abort(vbucket, seqno, prepared_seqno, cas, named)
    swapped = m.Abort(
        vbucket=vbucket,
        prepared_seqno=seqno,
        abort_seqno=prepared_seqno,
        collection=collection,
        key=key,
    )
    without_cas = stored_prepares.abort(vbucket, seqno, prepared_seqno, 0, named)
    assert DIALECT.encode(swapped) == without_cas
    assert DIALECT.decode(without_cas) == swapped
    assert stored_prepares.parse_abort(frame) == (vbucket, seqno, prepared_seqno, cas, named)
    assert stored_prepares.is_abort(frame)
    assert stored_prepares.is_hidden(frame)
    assert not stored_prepares.is_prepare(frame)
    assert (canonical.seqno_of(frame), canonical.key_of(frame)) == (seqno, named)
    assert cas_of(frame) == cas
