"""System events in FlatBuffers: as an independent library writes them, and as nobody does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import flatbuffers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.wire import messages as m
from upriver.wire.flatbuffer_event_decoder import NamedEvent, named_event

U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


def table(fields: int, put: Callable[[Any, int | None], None], name: str | None = None) -> bytes:
    """A FlatBuffer whose root has so many fields, and perhaps a name."""
    builder = flatbuffers.Builder(64)
    text = None if name is None else builder.CreateString(name)
    builder.StartObject(fields)
    put(builder, text)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def collection(
    uid: int, scope: int, id_: int, name: str, ttl: int | None = None, *, history: bool = False
) -> bytes:
    def put(builder: Any, text: int | None) -> None:
        builder.PrependUint64Slot(0, uid, 0)
        builder.PrependUint32Slot(1, scope, 0)
        builder.PrependUint32Slot(2, id_, 0)
        builder.PrependBoolSlot(3, ttl is not None, False)
        builder.PrependUint32Slot(4, ttl or 0, 0)
        builder.PrependUOffsetTRelativeSlot(5, text, 0)
        builder.PrependBoolSlot(6, history, False)
        builder.PrependUint64Slot(9, 77, 0)  # a field of later releases

    return table(10, put, name)


def event(number: int, value: bytes, version: int = 2) -> NamedEvent | m.SystemEvent:
    said = m.SystemEvent(vbucket=3, opaque=9, seqno=5, event=number, version=version, value=value)
    return named_event(said)


@given(U64, U32, U32, st.text(min_size=1, max_size=60), st.none() | U32, st.booleans())
def test_collections_that_begin_and_change(
    uid: int, scope: int, id_: int, name: str, ttl: int | None, history: bool
) -> None:
    value = collection(uid, scope, id_, name, ttl, history=history)
    facts: dict[str, Any] = {
        "vbucket": 3,
        "opaque": 9,
        "seqno": 5,
        "name": name,
        "manifest_uid": uid,
        "scope": scope,
        "collection": id_,
        "max_ttl": ttl,
    }
    assert event(0, value) == m.CollectionCreated(**facts)
    assert event(5, value) == m.CollectionModified(**facts, history=history)


def test_what_is_dropped_and_scopes() -> None:
    def three(builder: Any, text: int | None) -> None:
        builder.PrependUint64Slot(0, 7, 0)
        builder.PrependUint32Slot(1, 8, 0)
        if text is None:
            builder.PrependUint32Slot(2, 9, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(2, text, 0)

    place: dict[str, Any] = {"vbucket": 3, "opaque": 9, "seqno": 5, "manifest_uid": 7, "scope": 8}
    assert event(1, table(4, three)) == m.CollectionDropped(**place, collection=9)
    assert event(3, table(3, three, "s")) == m.ScopeCreated(**place, name="s")
    assert event(4, table(3, three)) == m.ScopeDropped(**place)


def test_golden_bytes() -> None:
    value = bytes.fromhex(
        "14000000"  # the root table is at 20
        "0000" "0e00" "1c00" "1400" "1000" "0c00" "0000" "0000"  # padding, vtable of 14 bytes
        "0e000000"  # the vtable is 14 before
        "00000000" "00000000" "08000000" "09000000" "0700000000000000"
    )  # fmt: skip
    with pytest.raises(ValueError, match="no name"):
        event(0, value)
    assert event(1, value) == m.CollectionDropped(
        vbucket=3, opaque=9, seqno=5, manifest_uid=7, scope=9, collection=8
    )


def test_other_versions_and_kinds_are_left_as_they_are() -> None:
    value = collection(1, 2, 3, "c")
    assert isinstance(event(0, value, version=3), m.SystemEvent)
    assert isinstance(event(9, value), m.SystemEvent)


@given(st.binary(max_size=120), st.sampled_from([0, 1, 3, 4, 5]))
def test_any_bytes_are_read_or_refused(value: bytes, number: int) -> None:
    with suppress(ValueError):
        event(number, value)


@given(st.data())
def test_damaged_events_are_read_or_refused(data: st.DataObject) -> None:
    value = bytearray(collection(1, 2, 3, "collection", 60))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    value = value[: data.draw(st.integers(0, len(value)))]
    with suppress(ValueError):
        event(data.draw(st.sampled_from([0, 1, 3, 4, 5])), bytes(value))
