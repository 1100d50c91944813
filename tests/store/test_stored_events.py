"""Stored system events are packets of today's DCP, and only such packets are taken for stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import StoreRefusal
from upriver.store.manifest import ManifestEvent
from upriver.store.writes import system_event_records
from upriver.wire import canonical, stored_prepares
from upriver.wire import messages as m
from upriver.wire.dialects import Dcp

DIALECT = Dcp(collections=True)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=30)
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
MESSAGES = st.one_of(
    st.builds(
        m.CollectionCreated,
        vbucket=st.just(0),
        seqno=st.just(0),
        manifest_uid=U64,
        scope=U32,
        collection=U32,
        name=NAMES,
        max_ttl=st.none() | U32,
    ),
    st.builds(
        m.CollectionDropped,
        vbucket=st.just(0),
        seqno=st.just(0),
        manifest_uid=U64,
        scope=U32,
        collection=U32,
    ),
    st.builds(
        m.ScopeCreated,
        vbucket=st.just(0),
        seqno=st.just(0),
        manifest_uid=U64,
        scope=U32,
        name=NAMES,
    ),
    st.builds(m.ScopeDropped, vbucket=st.just(0), seqno=st.just(0), manifest_uid=U64, scope=U32),
)


@given(MESSAGES, U16, U64)
def test_an_event_is_stored_as_its_packet(
    message: m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped,
    vbucket: int,
    seqno: int,
) -> None:
    placed = replace(message, vbucket=vbucket, seqno=seqno)
    frame = system_event_records.encode(ManifestEvent(message), vbucket, seqno)
    assert frame == DIALECT.encode(placed)
    assert system_event_records.decode(frame).message == placed
    assert canonical.is_event(frame)
    assert canonical.seqno_of(frame) == seqno


@given(MESSAGES, U16, U64, st.integers(1, 2**32 - 1))
def test_only_whole_frames_of_the_vbucket_without_an_opaque_have_the_stored_form(
    message: m.CollectionCreated | m.CollectionDropped | m.ScopeCreated | m.ScopeDropped,
    vbucket: int,
    seqno: int,
    opaque: int,
) -> None:
    placed = replace(message, vbucket=vbucket, seqno=seqno)
    frame = DIALECT.encode(placed)
    assert system_event_records.is_canonical(frame, vbucket)
    assert not system_event_records.is_canonical(frame, vbucket ^ 1)
    assert not system_event_records.is_canonical(frame[:-1], vbucket)
    assert not system_event_records.is_canonical(frame + b"\0", vbucket)
    assert not system_event_records.is_canonical(
        DIALECT.encode(replace(placed, opaque=opaque)), vbucket
    )
    assert not system_event_records.is_canonical(
        DIALECT.encode(m.StreamNoop(opaque=0)), 0
    )  # another command


def test_a_prepare_has_the_stored_form_and_an_abort_has_not() -> None:
    change = stored_prepares.StoredPrepare(3, 5, 1, 9, 0, 0, 0, b"\0key", b"v", False, 1)
    assert system_event_records.is_canonical(stored_prepares.prepare(change), 3)
    given_up = stored_prepares.abort(3, 6, 5, 9, b"\0key")
    assert not system_event_records.is_canonical(given_up, 3)
    with pytest.raises(StoreRefusal, match="no event that can be stored"):
        system_event_records.decode(stored_prepares.prepare(change))
