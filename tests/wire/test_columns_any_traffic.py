"""Whatever arrives, both implementations say what the dialect says frame by frame."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from columns_reference import CHANGES, C, check, needs_c, on_both, with_and_without_collections
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from strategies import FORMS, U16, message_of

from examples import examples
from upriver.errors import DecodeError
from upriver.wire import frameinfo as fi
from upriver.wire import messages as m
from upriver.wire.columns.interface import Implementation
from upriver.wire.columns.numpy_path import NUMPY
from upriver.wire.dialects import Dcp

pytestmark = pytest.mark.story

_CHANGES = (m.Mutation, m.Deletion, m.Expiration)
_STREAM = (
    m.SnapshotMarker,
    m.SeqnoAdvanced,
    m.StreamEnd,
    m.StreamNoop,
    m.Prepare,
    m.Commit,
    m.OsoSnapshot,
    m.CollectionCreated,
)
_relaxed = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@cache
def frames(collections: bool) -> st.SearchStrategy[bytes]:
    """Valid frames: mostly changes, then what else a stream sends, then any other packet."""
    dialect = Dcp(collections=collections)
    forms = [layout for owner, layout in FORMS if owner == dialect]
    changes = st.one_of(*(message_of(x, dialect) for x in forms if x.message in _CHANGES))
    stream_id = st.one_of(st.just(()), st.builds(lambda x: (fi.StreamId(x),), U16))
    plain_changes = st.builds(_with_frames, changes, stream_id)
    stream = st.one_of(*(message_of(x, dialect) for x in forms if x.message in _STREAM))
    anything = st.one_of(*(message_of(x, dialect) for x in forms))
    # Chosen in two steps: one_of would flatten them, and the many forms of packets outnumber all.
    shares = [plain_changes] * 6 + [stream] * 2 + [changes, anything]
    return st.sampled_from(shares).flatmap(lambda share: share).map(dialect.encode)


def _with_frames(message: m.Message, infos: tuple[fi.FrameInfo, ...]) -> m.Message:
    values = {name: getattr(message, name) for name in type(message).__dataclass_fields__}
    return type(message)(**values | {"frames": infos})


@st.composite
def traffic(draw: st.DrawFn) -> tuple[bool, bytes]:
    collections = draw(st.booleans())
    whole = b"".join(draw(st.lists(frames(collections), max_size=12)))
    cut = draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    return collections, whole[:cut]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bool, bytes]:
    """Valid traffic with bits flipped, and read with or without collections."""
    _, data = draw(traffic())
    buffer = bytearray(data)
    for _ in range(draw(st.integers(1, 6)) if buffer else 0):
        bit = draw(st.integers(0, 8 * len(buffer) - 1))
        buffer[bit >> 3] ^= 1 << (bit & 7)
    return draw(st.booleans()), bytes(buffer)


@on_both
@_relaxed
@given(traffic())
def test_valid_traffic(columns: Implementation, case: tuple[bool, bytes]) -> None:
    collections, buffer = case
    check(columns, buffer, collections=collections)


@on_both
@_relaxed
@given(damaged())
def test_damaged_traffic(columns: Implementation, case: tuple[bool, bytes]) -> None:
    collections, buffer = case
    check(columns, buffer, collections=collections)


@on_both
@_relaxed
@given(st.booleans(), st.binary(max_size=400))
@example(False, b"")
@example(True, b"\x80")
def test_any_bytes(columns: Implementation, collections: bool, buffer: bytes) -> None:
    check(columns, buffer, collections=collections)
    check(columns, b"\x80\x57" + buffer, collections=collections)


@needs_c
@_relaxed
@given(damaged())
def test_both_implementations_are_one(case: tuple[bool, bytes]) -> None:
    assert C is not None
    collections, buffer = case
    try:
        wanted = NUMPY.decode(buffer, collections=collections)
    except DecodeError as problem:
        with pytest.raises(DecodeError) as caught:
            C.decode(buffer, collections=collections)
        assert str(caught.value) == str(problem)
    else:
        assert C.decode(buffer, collections=collections) == wanted


@on_both
@with_and_without_collections
@pytest.mark.parametrize("name", ["mutation", "deletion 1 of a stream", "expiration"])
def test_every_bit_of_a_change(columns: Implementation, collections: bool, name: str) -> None:
    """One bit flipped, with good frames around: nothing is taken that the dialect refuses."""
    change = CHANGES[name]
    for bit in range(8 * len(change)):
        buffer = bytearray(change * 3)
        buffer[len(change) + (bit >> 3)] ^= 1 << (bit & 7)
        check(columns, bytes(buffer), collections=collections)


@on_both
@with_and_without_collections
def test_much_traffic_in_chunks(columns: Implementation, collections: bool) -> None:
    """What a consumer does: what was not consumed stands before the next chunk."""
    choose = random.Random(5)
    kinds = [*CHANGES.values(), *(Dcp().encode(x) for x in (m.StreamNoop(opaque=3),))]
    sent = [choose.choice(kinds) for _ in range(3000)]
    stream = b"".join(sent)
    pending, at = b"", 0
    found: list[bytes] = []
    while at < len(stream):
        size = choose.choice([1, 20, 50, 1000, 20_000])
        pending, at = pending + stream[at : at + size], at + size
        decoded = columns.decode(pending, collections=collections)
        rows = iter(range(decoded.batch.num_rows))
        others = {control.offset: control for control in decoded.controls}
        offset = 0
        while offset < decoded.consumed:
            if offset in others:
                frame = pending[offset : offset + others[offset].length]
            else:
                next(rows)
                frame = sent[len(found)]
            found.append(frame)
            offset += len(frame)
        pending = pending[decoded.consumed :]
    assert pending == b""
    assert found == sent


@needs_c
def test_hostile_buffers_at_the_edge_of_memory() -> None:
    """Every truncation of hostile buffers, with a page behind it that may not be touched."""
    script = Path(__file__).with_name("columns_at_the_edge.py")
    environment = {**os.environ, "UPRIVER_COLUMNS": "c"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"died with {done.returncode}: {done.stderr}"
