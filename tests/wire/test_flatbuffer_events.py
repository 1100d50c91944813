"""System events as FlatBuffers: the bytes, which gomemcached read as what they say."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.wire import messages as m
from upriver.wire.flatbuffer_event_encoder import StoredEvent, flatbuffer_event

WHERE: dict[str, Any] = {"vbucket": 1, "seqno": 5, "opaque": 7, "manifest_uid": 0x1234, "scope": 8}


def golden(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    ("event", "number", "key", "value"),
    [
        pytest.param(
            m.CollectionCreated(**WHERE, name="fruit", collection=9, max_ttl=100),
            0,
            b"fruit",
            golden(
                "14000000 1000 1d00 0400 0c00 1000 1c00 1400 1800 10000000 3412000000000000"
                "08000000 09000000 64000000 08000000 01 000000 05000000 6672756974 00"
            ),
            id="a collection whose documents expire",
        ),
        pytest.param(
            m.CollectionCreated(**WHERE, name="fruit", collection=9),
            0,
            b"fruit",
            golden(
                "14000000 1000 1d00 0400 0c00 1000 1c00 1400 1800 10000000 3412000000000000"
                "08000000 09000000 00000000 08000000 00 000000 05000000 6672756974 00"
            ),
            id="a collection",
        ),
        pytest.param(
            m.CollectionDropped(**WHERE, collection=9),
            1,
            b"",
            golden(
                "14000000 0a00 1400 0400 0c00 1000 000000000000 10000000 3412000000000000"
                "08000000 09000000"
            ),
            id="a collection that went",
        ),
        pytest.param(
            m.ScopeCreated(**WHERE, name="shop"),
            3,
            b"shop",
            golden(
                "14000000 0a00 1400 0400 0c00 1000 000000000000 10000000 3412000000000000"
                "08000000 04000000 04000000 73686f70 00"
            ),
            id="a scope",
        ),
        pytest.param(
            m.ScopeDropped(**WHERE),
            4,
            b"",
            golden("0c000000 0800 1000 0400 0c00 08000000 3412000000000000 08000000"),
            id="a scope that went",
        ),
    ],
)
def test_the_bytes(event: StoredEvent, number: int, key: bytes, value: bytes) -> None:
    told = flatbuffer_event(event)
    assert (told.event, told.version, told.key, told.value) == (number, 2, key, value)
    assert (told.vbucket, told.seqno, told.opaque) == (1, 5, 7)


def field(data: bytes, index: int, layout: str) -> Any:
    """A field of the table, at a multiple of its size as verifiers want it."""
    (table,) = struct.unpack_from("<I", data)
    (back,) = struct.unpack_from("<i", data, table)
    (place,) = struct.unpack_from("<H", data, table - back + 4 + 2 * index)
    assert (table + place) % struct.calcsize(layout) == 0
    return struct.unpack_from("<" + layout, data, table + place)[0], table + place


@given(
    st.text(min_size=1, max_size=251),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_every_collection_can_be_read(name: str, uid: int, number: int, ttl: int | None) -> None:
    event = m.CollectionCreated(
        vbucket=0,
        seqno=1,
        name=name,
        manifest_uid=uid,
        scope=number,
        collection=number ^ 1,
        max_ttl=ttl,
    )
    data = flatbuffer_event(event).value
    numbers = [field(data, index, layout)[0] for index, layout in enumerate("QIIBI")]
    assert numbers == [uid, number, number ^ 1, ttl is not None, ttl or 0]
    offset, place = field(data, 5, "I")
    (length,) = struct.unpack_from("<I", data, place + offset)
    assert (place + offset) % 4 == 0
    start = place + offset + 4
    assert data[start : start + length].decode() == name
    assert data[start + length :] == b"\0"
