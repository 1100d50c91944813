"""Runs of stored frames are sent exactly as the change writer would send them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from columns_reference import on_both
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_frames import COLLECTIONS, SCOPES, VBUCKET, frame_lists

from examples import examples
from upriver.session import stream_output
from upriver.session.change_writer import ChangeWriter, Shape, ValueMode
from upriver.session.collection_filter import FilterKind, StreamFilter
from upriver.session.stream_output import StreamOutput
from upriver.wire import canonical, values
from upriver.wire.columns.interface import Implementation
from upriver.wire.dialects import Dcp

OPAQUE = 0xDEADBEEF

shapes = st.builds(
    Shape,
    value=st.sampled_from(ValueMode),
    xattrs=st.booleans(),
    deleted_user_xattrs=st.booleans(),
    delete_times=st.booleans(),
    expirations=st.booleans(),
    snappy=st.booleans(),
    compress=st.sampled_from([False, False, False, True]),
)
stream_ids = st.sampled_from([None, None, 1, 0xFFFF])
chosen = st.frozensets(st.sampled_from(COLLECTIONS), max_size=4)
filters = st.one_of(
    st.builds(StreamFilter, kind=st.just(FilterKind.EVERYTHING), stream_id=stream_ids),
    st.builds(
        StreamFilter,
        kind=st.just(FilterKind.COLLECTIONS),
        collections=chosen,
        stream_id=stream_ids,
    ),
    st.builds(
        StreamFilter,
        kind=st.just(FilterKind.SCOPE),
        scope=st.sampled_from(SCOPES),
        collections=chosen,
        stream_id=stream_ids,
    ),
    st.just(StreamFilter(kind=FilterKind.LEGACY, collections=frozenset({0}))),
)


@contextmanager
def using(columns: Implementation) -> Iterator[None]:
    """Streams select with one implementation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_output, "select", columns.select)
        patch.setattr(stream_output, "patch_opaque", columns.patch_opaque)
        yield


def one_by_one(
    writer: ChangeWriter, frames: list[bytes], *, skip_deletions: bool
) -> tuple[bytes, int, int]:
    """Packets, how many, and the last seqno: what the stream has to send."""
    packets, last = [], 0
    for frame in frames:
        packet = writer.packet(frame, skip_deletions=skip_deletions)
        if packet is not None:
            packets.append(packet)
            last = int.from_bytes(frame[24:32], "big")
    return b"".join(packets), len(packets), last


@on_both
@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.too_slow])
@given(
    frames=frame_lists(),
    cut=st.integers(0, 12),
    shape=shapes,
    wanted=filters,
    skip_deletions=st.booleans(),
)
def test_runs_are_what_single_changes_are(
    columns: Implementation,
    frames: list[bytes],
    cut: int,
    shape: Shape,
    wanted: StreamFilter,
    skip_deletions: bool,
) -> None:
    dialect = Dcp(collections=wanted.kind is not FilterKind.LEGACY)
    about: dict[str, Any] = {"vbucket": VBUCKET, "opaque": OPAQUE, "shape": shape, "filter": wanted}
    stream, writer = StreamOutput(dialect, **about), ChangeWriter(dialect, **about)
    with using(columns):
        for part in (frames[:cut], frames[cut:]):
            last = int.from_bytes(part[-1][24:32], "big") if part else 0
            found = stream.changes(b"".join(part), last, skip_deletions=skip_deletions)
            packets, count, seqno = one_by_one(writer, part, skip_deletions=skip_deletions)
            assert found.packets == packets
            assert (found.count, found.last_seqno) == (count, seqno)
            assert stream.emptied == writer.emptied


@on_both
def test_more_frames_to_write_one_by_one_than_a_walk_may_leave(columns: Implementation) -> None:
    """Their places need bounded memory, and none of them is lost."""
    packed = values.deflate(b"x" * 40)
    frames = [
        canonical.mutation(VBUCKET, n, 1, 1, 0, 0, 2 if n % 3 else 0, b"\0k%d" % n, packed)
        for n in range(1, 4000)
    ]
    wanted = StreamFilter(kind=FilterKind.EVERYTHING)
    about: dict[str, Any] = {
        "vbucket": VBUCKET,
        "opaque": OPAQUE,
        "shape": Shape(),
        "filter": wanted,
    }
    stream = StreamOutput(Dcp(collections=True), **about)
    writer = ChangeWriter(Dcp(collections=True), **about)
    with using(columns):
        found = stream.changes(b"".join(frames), 3999)
    packets, count, last = one_by_one(writer, frames, skip_deletions=False)
    assert found.packets == packets
    assert (found.count, found.last_seqno) == (count, last)
