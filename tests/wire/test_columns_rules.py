"""Which frames become rows, what the rows say, and where a buffer cannot be read on."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from columns_reference import (
    CHANGES,
    DELETION_2_EXTRAS,
    EXPIRATION_EXTRAS,
    STREAM_ID,
    check,
    deletion_1_extras,
    expected,
    frame,
    mutation_extras,
    on_both,
    row_of,
    with_and_without_collections,
)

from upriver.errors import DecodeError
from upriver.wire import columns as package
from upriver.wire import leb128, limits
from upriver.wire.columns import SCHEMA, ControlFrame, interface
from upriver.wire.columns.interface import Implementation
from upriver.wire.framing import packet_length

NOOP = frame(0x5C, b"", b"", b"")
MARKER = frame(0x56, bytes(7) + b"\x01" + bytes(7) + b"\x05" + b"\0\0\0\x01", b"", b"")


def is_row(columns: Implementation, data: bytes, *, collections: bool = False) -> bool:
    """Whether a frame became a row, compared with the dialect on the way."""
    decoded = check(columns, data, collections=collections)
    assert decoded is not None
    assert decoded.consumed == len(data)
    assert decoded.batch.num_rows + len(decoded.controls) == 1
    return decoded.batch.num_rows == 1


# ---- rows --------------------------------------------------------------------------------


@on_both
def test_a_mutation_row_says_everything_the_frame_says(columns: Implementation) -> None:
    data = frame(0x57, mutation_extras(), b"\x88\x01key", b"value", datatype=5)
    decoded = columns.decode(data, collections=True)
    assert decoded.consumed == len(data)
    assert decoded.controls == ()
    assert decoded.batch.schema == SCHEMA
    assert decoded.batch.to_pylist() == [
        {
            "op": "mutation",
            "vbucket": 513,
            "seqno": 9,
            "rev": 2**63 + 1,
            "cas": 0x0102030405060708,
            "flags": 0x02000006,
            "expiry": 77,
            "datatype": 5,
            "collection": 0x88,
            "key": b"key",
            "value": b"value",
            "opaque": 0xA1B2C3D4,
        }
    ]


@on_both
def test_expiry_holds_the_time_of_a_deletion_where_there_is_one(columns: Implementation) -> None:
    data = (
        frame(0x58, deletion_1_extras())
        + frame(0x58, DELETION_2_EXTRAS)
        + frame(0x59, EXPIRATION_EXTRAS)
    )
    batch = columns.decode(data, collections=False).batch
    assert batch.column("op").to_pylist() == ["deletion", "deletion", "expiration"]
    assert batch.column("expiry").to_pylist() == [0, 1_700_000_000, 1_700_000_001]
    assert batch.column("flags").to_pylist() == [0, 0, 0]
    assert batch.column("collection").to_pylist() == [0, 0, 0]


@on_both
@with_and_without_collections
def test_rows_and_other_frames_keep_their_order(columns: Implementation, collections: bool) -> None:
    frames = [MARKER, *CHANGES.values(), NOOP, MARKER, CHANGES["mutation"], NOOP]
    decoded = check(columns, b"".join(frames), collections=collections)
    assert decoded is not None
    starts = [0, *itertools.accumulate(map(len, frames))]
    assert decoded.controls == (
        ControlFrame(0, 0, len(MARKER)),
        ControlFrame(8, starts[9], len(NOOP)),
        ControlFrame(8, starts[10], len(MARKER)),
        ControlFrame(9, starts[12], len(NOOP)),
    )


@on_both
def test_there_are_no_nulls_and_one_schema(columns: Implementation) -> None:
    for data in (b"", NOOP, CHANGES["mutation"]):
        batch = columns.decode(data, collections=False).batch
        assert batch.schema == SCHEMA
        assert sum(column.null_count for column in batch.columns) == 0
    assert not any(field.nullable for field in SCHEMA)
    assert SCHEMA.names[0] == "op"
    assert pa.types.is_dictionary(SCHEMA.field("op").type)


# ---- which frames are rows ---------------------------------------------------------------


@on_both
@with_and_without_collections
@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_change_is_a_row(
    columns: Implementation, collections: bool, name: str
) -> None:
    assert is_row(columns, CHANGES[name], collections=collections)


_RULES = {
    "mutation without seqno": (frame(0x57, mutation_extras(seqno=0)), False),
    "mutation with extended metadata": (frame(0x57, mutation_extras(nmeta=1)), False),
    "deletion with extended metadata": (frame(0x58, deletion_1_extras(nmeta=256)), False),
    "deletion without seqno": (frame(0x58, bytes(21)), True),
    "no key": (frame(0x57, mutation_extras(), b""), False),
    "longest key": (frame(0x57, mutation_extras(), bytes(250)), True),
    "key too long": (frame(0x57, mutation_extras(), bytes(251)), False),
    "key longer than a byte counts": (frame(0x57, mutation_extras(), bytes(256)), False),
    "key ends with the body": (frame(0x57, mutation_extras(), value=b""), True),
    "key outside the body": (frame(0x57, mutation_extras(), value=b"", key_length=4), False),
    "extras outside the body": (frame(0x57, bytes(20), b"", b"", extras_length=31), False),
    "mutation with short extras": (frame(0x57, bytes(30)), False),
    "expiration with a deletion's extras": (frame(0x59, DELETION_2_EXTRAS), False),
    "response": (frame(0x57, mutation_extras(), magic=0x81), False),
    "request of a server": (frame(0x57, mutation_extras(), magic=0x82), False),
    "no framing extras": (frame(0x57, mutation_extras(), magic=0x08), False),
    "framing extras of another kind": (
        frame(0x57, mutation_extras(), magic=0x08, frames=b"\x72\x01\x02"),
        False,
    ),
    "malformed framing extras": (
        frame(0x57, mutation_extras(), magic=0x08, frames=b"\x23\x01\x02"),
        False,
    ),
    "two frame infos": (
        frame(0x57, mutation_extras(), magic=0x08, frames=STREAM_ID + b"\x50"),
        False,
    ),
    "prepare": (frame(0x60, mutation_extras()), False),
}


@on_both
@pytest.mark.parametrize(("data", "row"), _RULES.values(), ids=_RULES)
def test_a_change_that_breaks_a_rule_is_no_row(
    columns: Implementation, data: bytes, row: bool
) -> None:
    assert is_row(columns, data) is row


@on_both
@pytest.mark.parametrize(
    "extras", [mutation_extras(), deletion_1_extras(), DELETION_2_EXTRAS], ids=len
)
def test_datatypes(columns: Implementation, extras: bytes) -> None:
    mutation = len(extras) == 31
    allowed = set(range(8)) if mutation else {0, 2, 4, 5, 6, 7}
    opcode = 0x57 if mutation else 0x58
    found = {n for n in range(256) if is_row(columns, frame(opcode, extras, datatype=n))}
    assert found == allowed


@on_both
@pytest.mark.parametrize(
    ("key", "row"),
    [
        (b"\0k", True),
        (b"\0", False),
        (b"k", False),
        (b"\x07k", False),  # reserved
        (b"\x01k", False),
        (b"\x08k", True),
        (b"\x7fk", True),
        (b"\x80\x01k", True),
        (b"\x80\x01", False),  # no key
        (b"\x88\x00k", False),  # not the shortest form
        (b"\x80\x80", False),  # no last byte
        (b"\x80\x80\x80\x80\x80\x01k", False),  # six bytes
        (b"\xff\xff\xff\xff\x0fk", True),
        (b"\xff\xff\xff\xff\x1fk", False),  # 33 bits
        (b"\xff\xff\xff\xff\x8fk", False),
        (b"\xff\xff\xff\xff\x0f", False),
        (b"\x00" + bytes(250), True),
        (b"\x00" + bytes(251), False),
        (b"\x08" + bytes(246), True),
        (b"\x08" + bytes(247), False),
        (leb128.encode(2**32 - 1) + bytes(246), True),
        (leb128.encode(2**32 - 1) + bytes(247), False),
    ],
    ids=lambda x: f"{x[:7].hex()}({len(x)})" if isinstance(x, bytes) else None,
)
def test_keys_with_their_collection(columns: Implementation, key: bytes, row: bool) -> None:
    assert is_row(columns, frame(0x57, mutation_extras(), key), collections=True) is row
    # Without a value the key ends with the buffer, where an id must not be read on.
    assert is_row(columns, frame(0x59, EXPIRATION_EXTRAS, key, b""), collections=True) is row


@on_both
@with_and_without_collections
def test_every_opcode_with_every_length_of_extras(
    columns: Implementation, collections: bool
) -> None:
    body = mutation_extras() + b"\x00" * 300
    frames = [
        frame(opcode, body[:extras], bytes(2), b"")
        for opcode in range(256)
        for extras in (0, 17, 18, 19, 20, 21, 22, 30, 31, 32, 255)
    ]
    check(columns, b"".join(frames), collections=collections)


@on_both
@with_and_without_collections
def test_every_byte_that_leaves_a_frame_its_length(
    columns: Implementation, collections: bool
) -> None:
    frames = []
    for change in CHANGES.values():
        for at in (1, 2, 3, 4, 5, 24, 25, 26, 40, 41, 52, 53, *range(-5, 0)):
            if at < len(change):
                for byte in range(256):
                    variant = bytearray(change)
                    variant[at] = byte
                    frames.append(bytes(variant))
    check(columns, b"".join(frames), collections=collections)


@on_both
def test_the_largest_value(columns: Implementation) -> None:
    largest = frame(0x57, mutation_extras(), b"k", bytes(limits.MAX_STORED_VALUE))
    larger = frame(0x57, mutation_extras(), b"k", bytes(limits.MAX_STORED_VALUE + 1))
    decoded = columns.decode(largest + larger, collections=False)
    assert decoded.consumed == len(largest) + len(larger)
    assert decoded.batch.num_rows == 1
    assert decoded.controls == (ControlFrame(1, len(largest), len(larger)),)
    assert row_of(largest, collections=False) is not None
    assert row_of(larger, collections=False) is None


# ---- incomplete and unreadable buffers ---------------------------------------------------


@on_both
@with_and_without_collections
def test_an_incomplete_last_frame_waits(columns: Implementation, collections: bool) -> None:
    first, last = CHANGES["deletion 1"], CHANGES["mutation"]
    for size in range(len(last)):
        decoded = check(columns, first + last[:size], collections=collections)
        assert decoded is not None
        assert decoded.consumed == len(first)
        nothing = columns.decode(last[:size], collections=collections)
        assert (nothing.consumed, nothing.batch.num_rows, nothing.controls) == (0, 0, ())


@on_both
@pytest.mark.parametrize("first", [0x00, 0x09, 0x17, 0x7F, 0x84, 0xFF])
def test_a_byte_that_begins_no_frame(columns: Implementation, first: int) -> None:
    for rest in (b"", bytes(5), bytes(100)):
        fault = bytes([first]) + rest
        with pytest.raises(DecodeError) as wanted:
            packet_length(fault)
        with pytest.raises(DecodeError) as caught:
            columns.decode(fault, collections=False)
        assert str(caught.value) == str(wanted.value)
        assert not caught.value.usable
        assert columns.decode(NOOP + fault, collections=False).consumed == len(NOOP)


@on_both
@pytest.mark.parametrize("first", range(1, 8))
def test_draft_002_is_refused(columns: Implementation, first: int) -> None:
    for rest in (b"", bytes(5), bytes(100)):
        fault = bytes([first]) + rest
        with pytest.raises(DecodeError, match="draft 002") as caught:
            columns.decode(fault, collections=False)
        assert not caught.value.usable
        assert columns.decode(NOOP + fault, collections=False).consumed == len(NOOP)


@on_both
def test_a_body_above_the_limit(columns: Implementation) -> None:
    fault = frame(0x57, mutation_extras(), body_length=limits.MAX_BODY + 1)
    for size in (12, 24, len(fault)):
        with pytest.raises(DecodeError, match="total body length"):
            columns.decode(fault[:size], collections=False)
        assert columns.decode(NOOP + fault[:size], collections=False).consumed == len(NOOP)
    assert columns.decode(fault[:11], collections=False).consumed == 0
    whole = fault + bytes(limits.MAX_BODY)
    assert columns.decode(NOOP + whole, collections=False).consumed == len(NOOP)
    with pytest.raises(DecodeError, match="total body length"):
        columns.decode(whole, collections=False)


@on_both
def test_the_largest_body_is_waited_for(columns: Implementation) -> None:
    start = frame(0x57, mutation_extras(), body_length=limits.MAX_BODY)
    assert columns.decode(start, collections=False).consumed == 0
    whole = start.ljust(24 + limits.MAX_BODY, b"\0")
    decoded = columns.decode(whole + NOOP, collections=False)
    assert decoded.consumed == len(whole) + len(NOOP)
    assert decoded.batch.num_rows == 0


@on_both
def test_a_fault_behind_frames_that_a_walk_by_lengths_would_jump(columns: Implementation) -> None:
    """The bytes behind a fault look like frames, but must not be taken for some."""
    fault = b"\x44" + NOOP[1:]
    buffer = CHANGES["mutation"] + fault + CHANGES["mutation"] * 3
    decoded = check(columns, buffer, collections=True)
    assert decoded is not None
    assert decoded.consumed == len(CHANGES["mutation"])


# ---- buffers -----------------------------------------------------------------------------


@on_both
def test_any_buffer_of_bytes_will_do(columns: Implementation) -> None:
    data = b"".join(CHANGES.values()) + NOOP
    wanted = columns.decode(data, collections=True)
    odd = memoryview(b"\xff" + data)[1:]
    for buffer in (bytearray(data), memoryview(data), odd, memoryview(bytearray(data))):
        assert columns.decode(buffer, collections=True) == wanted
    shorts = memoryview(data[: len(data) // 8 * 8]).cast("Q")
    assert columns.decode(shorts, collections=True).batch == wanted.batch
    with pytest.raises(TypeError):
        columns.decode(memoryview(data)[::2], collections=True)


@on_both
def test_the_result_shares_nothing_with_the_buffer(columns: Implementation) -> None:
    data = b"".join(CHANGES.values())
    buffer = bytearray(data)
    decoded = columns.decode(buffer, collections=True)
    buffer[:] = b"\xff" * len(buffer)
    buffer.extend(b"more")  # possible only if nothing holds on to it
    assert decoded.batch.to_pylist() == expected(data, collections=True).rows


@on_both
def test_a_refused_buffer_is_not_held(columns: Implementation) -> None:
    buffer = bytearray(b"\xff" * 30)
    with pytest.raises(DecodeError) as caught:
        columns.decode(buffer, collections=True)
    buffer.extend(b"more")
    assert caught.value.field == "first byte"


@on_both
def test_more_than_arrow_can_count_is_left_for_the_next_call(
    columns: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = CHANGES["mutation"] * 5
    monkeypatch.setattr(interface, "MAX_WINDOW", 2 * len(CHANGES["mutation"]) + 30)
    decoded = columns.decode(data, collections=True)
    assert decoded.consumed == 2 * len(CHANGES["mutation"])
    assert decoded.batch.num_rows == 2


def test_the_public_names() -> None:
    assert set(package.__all__) <= set(dir(package))
    assert package.__impl__ in ("c", "numpy")
    data = CHANGES["mutation"]
    assert package.decode(data, collections=True).batch.num_rows == 1
